# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Executor`: concurrent.futures.ProcessPoolExecutor, with arrays that are copied once and never pickled.

- **Flow** `submit`, `map` ─▶ calls of the workers (memlift/_workers.py) ─▶ futures
- **Rule** a worker that dies breaks the executor, as in concurrent.futures; in a `memlift.Pool` it is replaced
- **Not here** workers that were not started here: memlift.ipc has servers
"""

import concurrent.futures
import itertools
import multiprocessing
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Any, ParamSpec, TypeVar

from memlift._functions import name_of
from memlift._workers import Workers, run_chunk

__all__ = ["Executor"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Executor(concurrent.futures.Executor):
    """Runs calls in other processes; shaped like concurrent.futures.ProcessPoolExecutor.

    max_workers   processes at most; the number of processors that this one may use, unless given. Started as calls come
    mp_context    how they are started: as `multiprocessing` starts processes in this program, unless given
    initializer   called as initializer(*initargs) at the start of each worker; may take memlift.Queue objects
    max_tasks_per_child  calls after which a worker is replaced by a new one; not with "fork", and "spawn" unless mp_context is given
    allow_pickle  whether arguments and results that are not plain data are pickled
    bytes_max     bytes of memory for calls, and as much for results; half of what is available, unless given

    A function is found by its module and name; a method of an object that can be sent goes with it. Arrays that a function gets, and those
    that come back, are writable, lie in shared memory, and keep it until they are gone; see `memlift.Queue` for what can be sent.

    An exception in a worker is raised by `Future.result()` as itself, with the worker's traceback as its cause; where this process
    does not have its class, or it holds what cannot be sent, as RemoteError. What cannot be sent or read of a call, a result or an
    exception fails that future alone. When a worker dies, all unfinished calls raise BrokenProcessPool (a BrokenExecutor).
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: int | None = None,
        allow_pickle: bool = False,
        bytes_max: int | None = None,
    ) -> None:
        if max_workers is None:
            max_workers = len(os.sched_getaffinity(0))
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("the initializer must be a callable")
        if mp_context is None:
            mp_context = multiprocessing.get_context(None if max_tasks_per_child is None else "spawn")
        if max_tasks_per_child is not None:
            if not isinstance(max_tasks_per_child, int):
                raise TypeError("max_tasks_per_child must be an integer")
            if max_tasks_per_child <= 0:
                raise ValueError("max_tasks_per_child must be 1 or more")
            if mp_context.get_start_method() == "fork":
                raise ValueError("max_tasks_per_child does not go with the start method 'fork': take 'spawn' or 'forkserver'")
        self._max_workers = max_workers  # dask looks at it
        self._allow_pickle = allow_pickle
        options: dict[str, Any] = {"allow_pickle": allow_pickle, "bytes_max": bytes_max, "replaces": False}
        self._workers = Workers(max_workers, mp_context, initializer, tuple(initargs), max_tasks_per_child, **options)
        weakref.finalize(self, self._workers.finish)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> "concurrent.futures.Future[_T]":
        """Sends fn(*args, **kwargs) to a worker. What it is given has been copied when it leaves the list of pending calls: do not
        change arrays before the future runs or is done.

        Raises UnsupportedTypeError for a function without a name at the top of a module, RuntimeError after `shutdown`,
        BrokenProcessPool after a worker died. What cannot be sent is the future's exception.
        """
        return self._workers.submit(name_of(fn, self._allow_pickle), args, kwargs)

    def map(
        self, fn: Callable[..., _T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1, **options: Any
    ) -> Iterator[_T]:
        """As `Executor.map` of concurrent.futures; `chunksize` calls travel together."""
        if chunksize < 1:
            raise ValueError("chunksize must be 1 or more")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout, **options)
        name, calls = name_of(fn, self._allow_pickle), zip(*iterables)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        answers = super().map(run_chunk, itertools.repeat(name), chunks, timeout=timeout, **options)
        return _flat(answers)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. Those that were taken are done, or, unless they run already, cancelled. `wait`: until all workers
        have ended."""
        self._workers.end(cancel_futures)
        if wait:
            self._workers.join()

    def terminate_workers(self) -> None:
        """Ends the workers now, as in Python 3.14. Calls that are not done raise BrokenProcessPool."""
        self._workers.give_up(BrokenProcessPool("the workers were terminated before this call was done"))

    def __repr__(self) -> str:
        return f"<memlift.Executor, {len(self._workers.processes)} of at most {self._workers.count} workers>"


def _flat(chunks: Iterator[list[Any]]) -> Iterator[Any]:
    for chunk in chunks:
        chunk.reverse()
        while chunk:
            yield chunk.pop()
