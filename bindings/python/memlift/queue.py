# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Queue` and `memlift.JoinableQueue`: multiprocessing's, with arrays that are copied once and never pickled.

- **Flow** put: arrays are copied into memory that all processes of the queue map; get: the getter has them there, in place
- **Owner** no process hosts the queue: no broker, no thread, no file. It lives in an anonymous memfd as long as one process has it.
  The maker's death changes nothing for the others; what a killed process was putting or looking at is given back
- **Not here** peers that are not children of the same program: memlift.ipc has clients and servers for those
"""

import asyncio
import functools
import multiprocessing.connection
import multiprocessing.context
import os
import queue as queues
from collections import deque
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from memlift import _native, _readers

__all__ = ["JoinableQueue", "Queue"]

_T = TypeVar("_T")


def _attach(cls: type, memory: Any, bell: Any, allow_pickle: bool) -> Any:
    fds = memory.detach(), bell.detach()
    try:
        # A pickle runs code: only from the same user.
        allow_pickle = allow_pickle and os.fstat(fds[0]).st_uid == os.geteuid()
        return _native.Queue.__new__(cls, allow_pickle=allow_pickle, fds=fds)
    finally:
        for fd in fds:
            os.close(fd)


class Queue(_native.Queue, Generic[_T]):
    """A queue between processes, shaped like multiprocessing.Queue.

    maxsize       items that may wait; 0 or less: as many as there is memory for
    bytes_max     bytes of memory that the queue may take; then `put` waits as if it were full. Half of what is available, unless
                  given. Memory is taken as items need it
    allow_pickle  whether objects that are not plain data are pickled. Both ends have the same setting, since the queue carries it

    Pass it to a process as an argument of `Process`, `Pool(initargs=…)` or `memlift.Executor(initargs=…)`, with any start
    method; it cannot be pickled otherwise. Any number of processes and threads may put and get.

    What can be put: None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, numpy arrays and
    scalars of every type without objects, masked arrays, dataclasses (see `memlift.register`), torch tensors in host memory, Arrow
    tables, batches and columns, pandas frames, series and indexes, refs of an arena; nested. What is taken has the type that was put: for other classes,
    subclasses too, `put` raises UnsupportedTypeError, unless pickles are allowed. `put` returns when the data has been copied: it may be changed at
    once, and nothing is lost if this process ends.

    Arrays that come out are writable, this process's alone, and lie in the queue's memory, which they keep until they are gone.
    While such arrays take more than half of `bytes_max`, new ones are copied out instead.

    To wait for several things at once, pass the queue to `multiprocessing.connection.wait`, `select` or a selector: it counts as readable while
    an item waits. In an event loop, `await queue.aget()`. To a type checker, `Queue[int]` is a queue of ints.
    """

    _ledger = "none"

    def __new__(cls, maxsize: int = 0, *, bytes_max: int | None = None, allow_pickle: bool = False, ctx: Any = None) -> "Queue[_T]":
        return super().__new__(cls, maxsize, bytes_max=bytes_max, allow_pickle=allow_pickle, ledger=cls._ledger)

    if TYPE_CHECKING:

        def put(self, obj: _T, block: bool = True, timeout: float | None = None) -> None: ...
        def put_nowait(self, obj: _T) -> None: ...
        def get(self, block: bool = True, timeout: float | None = None, *, out: Any = None) -> _T: ...
        def get_nowait(self) -> _T: ...

    async def aget(self, timeout: float | None = None) -> _T:
        """As `get`, without a thread: other tasks of the event loop run while this one waits. Cancelled, it has taken nothing."""
        lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = self.__dict__.setdefault("_lines", WeakKeyDictionary())
        line = lines.setdefault(asyncio.get_running_loop(), _Line())
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await line.get(self)
        except TimeoutError:
            if limit.expired():
                raise queues.Empty from None
            raise

    def close(self) -> None:
        """This process uses the queue no more. What it put stays; arrays that it got stay valid."""
        super().close()
        for loop, line in list(self.__dict__.get("_lines", {}).items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(line.wake)

    @property
    def _reader(self) -> "_Reader":
        return _Reader(self)

    def __reduce__(self) -> Any:
        multiprocessing.context.assert_spawning(self)
        return _attach, (type(self), *map(DupFd, self._descriptors()), self._allow_pickle)

    def join_thread(self) -> None:
        """Does nothing: there is no thread, and everything put is there already."""

    def cancel_join_thread(self) -> None:
        """Does nothing: see `join_thread`."""

    def __repr__(self) -> str:
        return f"<memlift.{type(self).__name__}, {self.qsize()} items>"


class JoinableQueue(Queue[_T]):
    """As `Queue`, shaped like multiprocessing.JoinableQueue: `join` waits until everything that was put is done with."""

    _ledger = "tasks"

    def task_done(self) -> None:
        """Says that an item which was taken is done with. Raises ValueError if there is none."""
        if not self._task_done():
            raise ValueError("task_done() called too many times")

    def join(self) -> None:
        """Waits until every item was taken and reported by `task_done`. What a process had taken that died counts as done."""
        self._join()


class _Reader:
    """In the place of multiprocessing's `Queue._reader`, which programs pass to `multiprocessing.connection.wait`."""

    def __init__(self, queue: Queue[Any]) -> None:
        self._queue = queue

    def fileno(self) -> int:
        return self._queue.fileno()

    def poll(self, timeout: float | None = 0.0) -> bool:
        return bool(multiprocessing.connection.wait([self], timeout))


class _Line:
    """Tasks of one event loop that wait for an item of a queue, in the order in which they came.

    The loop watches the queue's descriptor only while somebody waits. A task that is woken takes its item by itself, so that none is lost
    when it is cancelled; then the next is woken.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._watched = -1

    async def get(self, queue: Queue[Any]) -> Any:
        loop, was_woken = asyncio.get_running_loop(), False
        while True:
            try:
                return queue.get_nowait()
            except queues.Empty:
                pass
            place: asyncio.Future[None] = loop.create_future()
            (self._waiting.appendleft if was_woken else self._waiting.append)(place)
            if self._watched < 0:
                self._watched = queue.fileno()
                _readers.join(loop, self._watched, functools.partial(self._turn, queue))
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._wake(1)
                raise
            finally:
                if place in self._waiting:
                    self._waiting.remove(place)
                self._leave(loop)
            was_woken = True

    def wake(self) -> None:
        """Lets all look again."""
        self._wake(len(self._waiting))

    def _turn(self, queue: Queue[Any]) -> None:
        # At least one: if the bell rang for nothing, its look at the empty queue silences it.
        self._wake(max(1, queue.qsize()))
        self._leave(asyncio.get_running_loop())

    def _wake(self, count: int) -> None:
        while self._waiting and count > 0:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                count -= 1

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting and self._watched >= 0:
            _readers.leave(loop, self._watched)
            self._watched = -1
