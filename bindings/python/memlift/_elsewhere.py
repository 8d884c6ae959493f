# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Queue, JoinableQueue, Executor and Pool where memlift's native part is not there: the standard library's, with the same arguments.

- **Why** code that is shared with machines other than Linux runs there, too: slower, and with everything pickled
- **Not here** everything else of memlift, which says so
"""

import asyncio
import multiprocessing
import multiprocessing.pool
import multiprocessing.queues
import sys
import types
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from memlift.errors import MemliftFallbackWarning

NAMES = frozenset(("Executor", "JoinableQueue", "Pool", "Queue"))


def needs(name: str) -> ImportError:
    """Returns the error for what has no replacement."""
    return ImportError(f"memlift.{name} needs memlift's native part, {_why()}", name=f"memlift.{name}")


def _why() -> str:
    if sys.platform == "linux":
        return "which this installation does not have: pip install --no-binary memlift memlift, where there is Rust and a C compiler"
    return f"which runs on Linux only; this is {sys.platform}"


def warn() -> None:
    """Says once per place that everything is pickled."""
    warnings.warn(
        f"memlift: the standard library's queues and processes are used in place of memlift's native part, {_why()}",
        MemliftFallbackWarning,
        stacklevel=3,
    )


class _Asynchronous:
    __class_getitem__ = classmethod(types.GenericAlias)

    async def aget(self, timeout: float | None = None) -> Any:
        """As `get`, in a thread."""
        return await asyncio.to_thread(self.get, True, timeout)  # type: ignore[attr-defined]


class Queue(_Asynchronous, multiprocessing.queues.Queue):  # type: ignore[type-arg]
    """multiprocessing.Queue with the arguments of `memlift.Queue`."""

    def __init__(self, maxsize: int = 0, *, bytes_max: int | None = None, allow_pickle: bool = False, ctx: Any = None) -> None:
        super().__init__(maxsize, ctx=ctx or multiprocessing.get_context())


class JoinableQueue(_Asynchronous, multiprocessing.queues.JoinableQueue):  # type: ignore[type-arg]
    """multiprocessing.JoinableQueue with the arguments of `memlift.JoinableQueue`."""

    def __init__(self, maxsize: int = 0, *, bytes_max: int | None = None, allow_pickle: bool = False, ctx: Any = None) -> None:
        super().__init__(maxsize, ctx=ctx or multiprocessing.get_context())


class Executor(ProcessPoolExecutor):
    """ProcessPoolExecutor with the arguments of `memlift.Executor`."""

    def __init__(self, *args: Any, bytes_max: int | None = None, allow_pickle: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Pool(multiprocessing.pool.Pool):
    """multiprocessing.Pool with the arguments of `memlift.Pool`."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Any = None,
        initargs: Any = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        bytes_max: int | None = None,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(processes, initializer, initargs, maxtasksperchild, context or multiprocessing.get_context())
