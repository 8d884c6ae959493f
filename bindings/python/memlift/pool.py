# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Pool`: multiprocessing.Pool, with arrays that are copied once and never pickled.

- **Flow** `map`, `apply_async` … ─▶ calls of the workers (memlift/_workers.py) ─▶ futures ─▶ `AsyncResult`; `imap`: a thread takes from the
  iterable as the workers take its calls ─▶ iterator
- **Order** `map` and `imap` give results in the order of the arguments, `imap_unordered` as they come
- **Owner** all workers start with the pool, and end with it: `close` and `join`, `terminate`, or the last reference to the pool and its results
- **Rule** a worker that dies fails the call that it had (PeerDiedError), and another is started. No result is waited for without an end
"""

import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.pool
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.context import BaseContext
from multiprocessing.pool import CLOSE, RUN, TERMINATE
from typing import Any, Generic, TypeVar

from memlift._functions import function_of, name_of
from memlift._workers import Workers, run_chunk

__all__ = ["AsyncResult", "Pool"]

_S = TypeVar("_S")
_T = TypeVar("_T")

_PENDING_PER_WORKER = 4
"""Calls that an `imap` may have pending for each worker."""


def _map_chunk(name: Any, chunk: list[Any]) -> list[Any]:
    function = function_of(name)
    return [function(argument) for argument in chunk]


class AsyncResult(Generic[_T]):
    """The result of `apply_async`, `map_async` or `starmap_async`: to be waited for, or asked."""

    def __init__(self, pool: "Pool", merge: Callable[[list[Any]], Any], callback: Any, error_callback: Any) -> None:
        self._pool: Pool | None = pool  # it is not collected while somebody waits
        self._merge, self._callback, self._error_callback = merge, callback, error_callback
        self._ended = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._left = 0

    def ready(self) -> bool:
        """Whether the result is there."""
        return self._ended.is_set()

    def successful(self) -> bool:
        """Whether nothing was raised. Raises ValueError if the result is not there yet."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._error is None

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the result is there, `timeout` seconds at most."""
        self._ended.wait(timeout)

    def get(self, timeout: float | None = None) -> _T:
        """The result, or what was raised instead. Raises multiprocessing.TimeoutError if it is not there within `timeout` seconds."""
        if not self._ended.wait(timeout):
            raise multiprocessing.TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def _follow(self, futures: "list[concurrent.futures.Future[Any]]") -> "AsyncResult[_T]":
        """Ends when all of them have ended: with what the first one raised, if any did."""
        self._left = len(futures)
        if not futures:
            self._end(futures)
        # The last one may end while this goes on, and its callback empties the list.
        for future in futures:
            future.add_done_callback(lambda ended: self._one_ended(ended, futures))
        return self

    def _one_ended(self, future: "concurrent.futures.Future[Any]", futures: "list[concurrent.futures.Future[Any]]") -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or future.exception()
            ends = self._left == 0
        if ends:
            self._end(futures)

    def _end(self, futures: "list[concurrent.futures.Future[Any]]") -> None:
        told, value = self._error_callback, self._error
        if self._error is None:
            told, value = self._callback, self._merge([future.result() for future in futures])
            self._value = value
        futures.clear()
        try:
            if told is not None:
                told(value)
        finally:
            self._pool = self._callback = self._error_callback = None
            self._ended.set()


def _only(values: list[Any]) -> Any:
    return values[0]


def _flat(chunks: list[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(chunks))


class _Results(Iterator[_T]):
    """What `imap` and `imap_unordered` give: results as they come, or in the order of their numbers."""

    def __init__(self, pool: "Pool", in_order: bool) -> None:
        self._pool: Pool | None = pool  # it is not collected while somebody waits
        self._in_order = in_order
        self._changed = threading.Condition()
        self._ready: deque[concurrent.futures.Future[_T]] = deque()
        self._early: dict[int, concurrent.futures.Future[_T]] = {}
        self._next = 0
        self._given = 0
        self._length: int | None = None

    def __iter__(self) -> "_Results[_T]":
        return self

    def next(self, timeout: float | None = None) -> _T:
        """The next result, or what was raised instead. Raises multiprocessing.TimeoutError without one within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._given == self._length, timeout)
            if not self._ready:
                if self._given != self._length:
                    raise multiprocessing.TimeoutError
                self._pool = None
                raise StopIteration
            self._given += 1
            future = self._ready.popleft()
        return future.result()

    __next__ = next

    def _add(self, number: int, future: "concurrent.futures.Future[_T]") -> None:
        with self._changed:
            if not self._in_order:
                self._ready.append(future)
            else:
                self._early[number] = future
                while self._next in self._early:
                    self._ready.append(self._early.pop(self._next))
                    self._next += 1
            self._changed.notify_all()

    def _end(self, length: int) -> None:
        with self._changed:
            self._length = length
            self._changed.notify_all()


def _feed(workers: Workers, results: _Results[Any], name: Any, calls: Iterator[Any]) -> None:
    """Body of the thread of an `imap`."""
    number = 0
    try:
        for arguments in calls:
            workers.wait_for_room(workers.count * _PENDING_PER_WORKER)
            future = workers.submit(name, arguments, {})
            future.add_done_callback(lambda ended, number=number: results._add(number, ended))
            number += 1
            del future, arguments
    except BaseException as error:
        # What the iterable or the pool's end raised, in its place among the results.
        failed: concurrent.futures.Future[Any] = concurrent.futures.Future()
        failed.set_exception(error)
        results._add(number, failed)
        number += 1
    with workers.lock:
        workers.sources -= 1
        workers.fill()
    results._end(number)


class Pool(multiprocessing.pool.Pool):
    """Worker processes that run calls; shaped like multiprocessing.Pool.

    processes         number of workers; the number of processors that this process may use, unless given. All start at once
    initializer       called as initializer(*initargs) at the start of each worker; may take memlift.Queue objects
    maxtasksperchild  calls after which a worker is replaced by a new one
    context           how workers are started: as `multiprocessing` starts processes in this program, unless given
    allow_pickle      whether arguments and results that are not plain data are pickled
    bytes_max         bytes of memory for calls, and as much for results; half of what is available, unless given

    A function is found by its module and name; a method of an object that can be sent goes with it. Arrays that a function gets, and those
    that come back, are writable, lie in shared memory, and keep it until they are gone; see `memlift.Queue` for what can be sent.

    An exception in a worker is raised by `get` as itself; see `memlift.Executor`. A worker that dies fails the call that it had with
    PeerDiedError, and is replaced. If workers die before they have begun, or the initializer fails, all calls raise BrokenProcessPool.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: BaseContext | None = None,
        *,
        allow_pickle: bool = False,
        bytes_max: int | None = None,
    ) -> None:
        self._state = TERMINATE  # for __del__, if this raises
        if processes is None:
            processes = len(os.sched_getaffinity(0))
        if processes < 1:
            raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
            raise ValueError("maxtasksperchild must be a positive int or None")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._allow_pickle = allow_pickle
        options: dict[str, Any] = {"allow_pickle": allow_pickle, "bytes_max": bytes_max, "replaces": True}
        context = context or multiprocessing.get_context()
        self._workers = Workers(processes, context, initializer, tuple(initargs), maxtasksperchild, **options)
        self._workers.start_all()
        weakref.finalize(self, self._workers.finish)
        self._state = RUN

    @property
    def _pool(self) -> list[Any]:
        """The worker processes, for programs that look at multiprocessing's attribute of that name."""
        return list(self._workers.processes)

    def _check_running(self) -> None:
        if self._state != RUN:
            raise ValueError("Pool not running")

    def _submit(self, function: Any, calls: Iterable[tuple[Any, dict[str, Any]]], result: AsyncResult[_T], body: Any = None) -> AsyncResult[_T]:
        """Sends calls of a function, or of a body that is given the function's name. A call that cannot be sent fails the result."""
        self._check_running()
        try:
            name = name_of(function, self._allow_pickle)
            if body is not None:
                calls, name = [((name, *arguments), keywords) for arguments, keywords in calls], name_of(body, False)
            futures = [self._workers.submit(name, arguments, keywords) for arguments, keywords in calls]
        except Exception as error:
            failed: concurrent.futures.Future[Any] = concurrent.futures.Future()
            failed.set_exception(error)
            futures = [failed]
        return result._follow(futures)

    def apply(self, func: Callable[..., _T], args: Iterable[Any] = (), kwds: Mapping[str, Any] = {}) -> _T:
        """Calls func(*args, **kwds) in a worker and waits for the result."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., _T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        callback: Callable[[_T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[_T]:
        """As `apply`, without waiting. `callback` is called with the result, or `error_callback` with what was raised, on another thread."""
        return self._submit(func, [(tuple(args), dict(kwds))], AsyncResult(self, _only, callback, error_callback))

    def map(self, func: Callable[[_S], _T], iterable: Iterable[_S], chunksize: int | None = None) -> list[_T]:
        """Calls a function with each argument; gives the list of results. `chunksize` calls travel together."""
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[_S], _T],
        iterable: Iterable[_S],
        chunksize: int | None = None,
        callback: Callable[[list[_T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[_T]]:
        """As `map`, without waiting."""
        return self._map_async(func, iterable, _map_chunk, chunksize, callback, error_callback)

    def starmap(self, func: Callable[..., _T], iterable: Iterable[Iterable[Any]], chunksize: int | None = None) -> list[_T]:
        """As `map`, for arguments that are tuples of arguments."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., _T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[_T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[_T]]:
        """As `starmap`, without waiting."""
        return self._map_async(func, map(tuple, iterable), run_chunk, chunksize, callback, error_callback)

    def _map_async(
        self, func: Any, iterable: Any, mapper: Any, chunksize: int | None = None, callback: Any = None, error_callback: Any = None
    ) -> AsyncResult[list[Any]]:
        self._check_running()
        items = list(iterable)
        if chunksize is None:
            chunksize = max(1, -(-len(items) // (self._workers.count * 4)))
        chunks = [((items[at : at + chunksize],), {}) for at in range(0, len(items), max(1, chunksize))]
        return self._submit(func, chunks, AsyncResult(self, _flat, callback, error_callback), mapper)

    def imap(self, func: Callable[[_S], _T], iterable: Iterable[_S], chunksize: int | None = 1) -> Iterator[_T]:
        """Calls a function with each argument; gives an iterator over the results, in the order of the arguments."""
        return self._iterate(func, iterable, chunksize or 1, True)

    def imap_unordered(self, func: Callable[[_S], _T], iterable: Iterable[_S], chunksize: int | None = 1) -> Iterator[_T]:
        """As `imap`, with the results in the order in which they come."""
        return self._iterate(func, iterable, chunksize or 1, False)

    def _iterate(self, func: Any, iterable: Iterable[Any], chunksize: int, in_order: bool) -> Iterator[Any]:
        self._check_running()
        self._workers.check_process()
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize}")
        name, items = name_of(func, self._allow_pickle), iter(iterable)
        calls: Iterator[Any] = ((item,) for item in items)
        if chunksize > 1:
            calls = ((name, chunk) for chunk in iter(lambda: list(itertools.islice(items, chunksize)), []))
        results = _Results(self, in_order)
        with self._workers.lock:
            self._workers.sources += 1
        body = name if chunksize == 1 else name_of(_map_chunk, False)
        threading.Thread(target=_feed, args=(self._workers, results, body, calls), name="memlift-imap", daemon=True).start()
        return results if chunksize == 1 else itertools.chain.from_iterable(results)

    def close(self) -> None:
        """Takes no more calls; the workers end when those that were taken are done."""
        if self._state == RUN:
            self._state = CLOSE
            self._workers.end(False)

    def terminate(self) -> None:
        """Ends the workers now. Calls that are not done raise ClosedError."""
        self._state = TERMINATE
        self._workers.finish()

    def join(self) -> None:
        """Waits until the workers have ended, after `close` or `terminate`."""
        if self._state == RUN:
            raise ValueError("Pool is still running")
        self._workers.join()

    def __enter__(self) -> "Pool":
        self._check_running()
        return self

    def __exit__(self, *exception: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def __repr__(self) -> str:
        return f"<memlift.Pool state={self._state} pool_size={len(self._pool)}>"

    def __del__(self, _warn: Any = warnings.warn, RUN: str = RUN) -> None:
        if self._state == RUN:
            _warn(f"unclosed running multiprocessing pool {self!r}", ResourceWarning, source=self)
