# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Executor`: concurrent.futures.ProcessPoolExecutor, with arrays that are copied once and never pickled.

Flow     submit ─▶ pending ─▶ queue of calls ─▶ whichever worker is free ─▶ queue of results ─▶ collector thread ─▶ Future
Order    a call is pending, and can be cancelled, until it enters the queue of calls, which holds one more than there are workers
Owner    this process starts the workers and hosts nothing: both queues are memory that all of them map. A worker ends when this
         process does, by whatever cause. One thread collects results, one sleeps until a worker dies; none polls
Rule     functions travel by name, arguments and results as values (memlift/_values.py). A worker that dies breaks the executor, as
         in concurrent.futures: nobody can know what it had done
Not here workers that were not started here: memlift.ipc has servers
"""

import atexit
import collections
import concurrent.futures
import functools
import importlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import queue as queues
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Any

from memlift.errors import Error, PoolFull, RemoteError, UnsupportedType
from memlift.queue import Queue

__all__ = ["Executor"]

_executors: "weakref.WeakSet[Executor]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for executor in list(_executors):
        executor.shutdown()


class RemoteTraceback(Exception):
    """What the worker's Python would have printed: the `__cause__` of an exception that came from a worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"


def _resolve(name: str) -> Any:
    module, _, path = name.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _name_of(function: Any, allow_pickle: bool) -> Any:
    """What stands for a function: its name, or, where pickles are allowed, itself."""
    if isinstance(function, functools.partial):
        return ("partial", _name_of(function.func, allow_pickle), tuple(function.args), dict(function.keywords))
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(module, str) and isinstance(path, str) and "<" not in path:
        try:
            if _resolve(f"{module}:{path}") is function:
                return f"{module}:{path}"
        except (ImportError, AttributeError):
            pass
    if allow_pickle and not isinstance(path, str | None):
        return ("object", function)
    if allow_pickle and "<" not in (path or ""):
        return ("object", function)
    raise UnsupportedType(
        f"cannot send {function!r}: workers find a function by its module and name; define it at the top of a module"
    )


def _function(name: Any) -> Callable[..., Any]:
    if isinstance(name, str):
        return _resolve(name)
    if name[0] == "partial":
        return functools.partial(_function(name[1]), *name[2], **name[3])
    return name[1]


def _run_chunk(name: Any, chunk: list[tuple[Any, ...]]) -> list[Any]:
    function = _function(name)
    return [function(*arguments) for arguments in chunk]


def _failure(error: BaseException) -> tuple[str, str, tuple[Any, ...], str]:
    cls = type(error)
    return cls.__module__, cls.__qualname__, error.args, "".join(traceback.format_exception(error))


def _exception(failure: tuple[str, str, tuple[Any, ...], str]) -> BaseException:
    """The exception that a worker told of, if this process has its class; else RemoteError."""
    module, path, arguments, text = failure
    try:
        cls = functools.reduce(getattr, path.split("."), sys.modules[module])
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError
        error = cls(*arguments)
    except Exception:
        error = RemoteError(path, text)
    error.__cause__ = RemoteTraceback(text)
    return error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(calls: Queue, results: Queue, initializer: Any, initargs: tuple[Any, ...]) -> None:
    """Body of a worker."""
    threading.Thread(target=_end_with_parent, name="memlift-parent", daemon=True).start()
    if initializer is not None:
        try:
            initializer(*initargs)
        except BaseException:
            results.put((-1, os.getpid(), traceback.format_exc()))
            signal.pause()  # its end would be told of before its reason; it is ended by who reads that
    while True:
        call = value = failure = None  # what lies in the queues is given back before the next wait
        call = calls.get()
        if call is None:
            return
        number, name, arguments, keywords = call
        del call
        try:
            value = _function(name)(*arguments, **keywords)
        except BaseException as error:
            failure = _failure(error)
            error.__traceback__ = None
        del arguments, keywords
        if failure is None:
            try:
                results.put((number, True, value))
                continue
            except Error as error:
                failure = _failure(error)
        del value
        try:
            results.put((number, False, failure))
        except Error:
            module, path, told, text = failure
            results.put((number, False, (module, path, tuple(str(part) for part in told), text)))


class _State:
    """All of an executor but its handle, so that the threads do not keep the handle alive."""

    def __init__(self, workers: int, context: BaseContext, initializer: Any, initargs: Any, options: dict[str, Any]) -> None:
        self.lock = threading.Lock()
        self.workers, self.context = workers, context
        self.start = (initializer, initargs)
        self.calls, self.results = Queue(**options), Queue(**options)
        self.pending: collections.deque[tuple[int, Any, Any, Any]] = collections.deque()
        self.futures: dict[int, concurrent.futures.Future[Any]] = {}
        self.inside: set[int] = set()
        self.numbers = itertools.count()
        self.processes: list[Any] = []
        self.ending = False
        self.dismissed = False
        self.broken: str | None = None
        self.threads: list[threading.Thread] = []
        self.woken, self.wake = multiprocessing.connection.Pipe(duplex=False)

    def begin_threads(self) -> None:
        for body in (self.collect, self.watch):
            thread = threading.Thread(target=body, name=f"memlift-executor-{body.__name__}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def submit(self, name: Any, arguments: Any, keywords: Any) -> "concurrent.futures.Future[Any]":
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self.lock:
            if self.broken is not None:
                raise BrokenProcessPool(self.broken)
            if self.ending:
                raise RuntimeError("cannot schedule new futures after shutdown: make a new Executor")
            number = next(self.numbers)
            self.futures[number] = future
            self.pending.append((number, name, arguments, keywords))
            if len(self.processes) < min(self.workers, len(self.futures)):
                self.start_worker()
            self.fill()
        return future

    def start_worker(self) -> None:
        process = self.context.Process(target=_work, args=(self.calls, self.results, *self.start))  # type: ignore[attr-defined]
        process.start()
        self.processes.append(process)
        if not self.threads:
            self.begin_threads()
        self.wake.send_bytes(b"w")

    def fill(self) -> None:
        """Lets pending calls enter the queue; with the lock."""
        while self.pending and len(self.inside) <= self.workers:
            call = self.pending.popleft()
            number = call[0]
            future = self.futures[number]
            if number not in self.inside and not future.running() and not future.set_running_or_notify_cancel():
                del self.futures[number]
                continue
            try:
                self.calls.put_nowait(call)
                self.inside.add(number)
            except queues.Full:
                if self.inside:
                    self.pending.appendleft(call)
                    break
                del self.futures[number]
                future.set_exception(
                    PoolFull("the executor's memory is full of arrays that its workers keep: copy what they keep, or raise bytes_max")
                )
            except Exception as error:
                del self.futures[number]
                future.set_exception(error)
        if self.ending and not self.futures and not self.dismissed:
            self.dismiss()

    def dismiss(self) -> None:
        self.dismissed = True
        for _ in self.processes:
            self.calls.put(None)
        self.results.put(None)

    def collect(self) -> None:
        while True:
            try:
                result = self.results.get()
            except Error as error:
                # Which call it belonged to is not known.
                self.give_up(f"a result could not be read ({error}): make a new Executor")
                return
            if result is None:
                return
            number, ok, value = result
            del result
            if number == -1:
                self.give_up(f"the initializer failed in worker {ok}: mend it and make a new Executor\n{value}")
                continue
            with self.lock:
                future = self.futures.pop(number, None)
                self.inside.discard(number)
                self.fill()
            if future is not None:
                if ok:
                    future.set_result(value)
                else:
                    future.set_exception(_exception(value))
            del future, value

    def watch(self) -> None:
        while True:
            with self.lock:
                processes = list(self.processes)
            ready = multiprocessing.connection.wait([self.woken, *(process.sentinel for process in processes)])
            if self.woken in ready:
                if self.woken.recv_bytes() == b"e":
                    return
            with self.lock:
                dismissed = self.dismissed
            dead = [process for process in processes if process.sentinel in ready]
            if dead and not dismissed:
                dead[0].join()
                self.give_up(_epitaph(dead[0]))
                return
            if dead:
                return

    def give_up(self, why: str) -> None:
        """A worker died: fails everything and ends the others."""
        with self.lock:
            if self.broken is not None:
                return
            self.broken, self.ending, self.dismissed = why, True, True
            futures = list(self.futures.values())
            self.futures.clear()
            self.pending.clear()
            self.inside.clear()
            processes = list(self.processes)
        for future in futures:
            if not future.done():
                future.set_running_or_notify_cancel() if not future.running() else None
                if not future.cancelled():
                    future.set_exception(BrokenProcessPool(why))
        for process in processes:
            process.terminate()
        self.results.put(None)

    def end(self, cancel: bool) -> None:
        with self.lock:
            self.ending = True
            if cancel:
                for number, *_ in self.pending:
                    self.futures.pop(number).cancel()
                self.pending.clear()
            if not self.futures and not self.dismissed:
                self.dismiss()

    def join(self) -> None:
        collector = self.threads[0] if self.threads else None
        if collector is not None and collector is not threading.current_thread():
            collector.join()
        for process in self.processes:
            process.join()
        if self.threads:
            try:
                self.wake.send_bytes(b"e")
            except OSError:
                pass
            if self.threads[1] is not threading.current_thread():
                self.threads[1].join()


def _epitaph(process: Any) -> str:
    code = process.exitcode
    how = f"with exit code {code}"
    advice = "look at what it printed"
    if code is not None and code < 0:
        try:
            how = f"by {signal.Signals(-code).name}"
        except ValueError:
            how = f"by signal {-code}"
        if -code == signal.SIGKILL:
            advice = "was it out of memory (dmesg, memory.events of its cgroup)?"
        elif -code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
            advice = "run the call with python -X faulthandler"
    return f"worker process {process.pid} ended {how} before its work was done: {advice}; then make a new Executor"


class Executor(concurrent.futures.Executor):
    """Runs calls in other processes; shaped like concurrent.futures.ProcessPoolExecutor.

    max_workers   processes at most; the number of processors that this one may use, unless given. Started as calls come
    mp_context    how they are started; "spawn" unless given
    initializer   called as initializer(*initargs) at the start of each worker; may take memlift.Queue objects
    allow_pickle  whether arguments and results that are not plain data are pickled
    bytes_max     bytes of memory for calls, and as much for results; half of what is available, unless given

    A function is found by its module and name, as with ProcessPoolExecutor and spawn. Arrays that a function gets, and those
    that come back, are writable, lie in shared memory, and keep it until they are gone; see `memlift.Queue` for what can be sent.

    An exception in a worker is raised by `Future.result()` with the worker's traceback as its cause; where this process does not
    have its class, as RemoteError. When a worker dies, all unfinished calls raise BrokenProcessPool (a BrokenExecutor).
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        allow_pickle: bool = False,
        bytes_max: int | None = None,
    ) -> None:
        if max_workers is None:
            max_workers = len(os.sched_getaffinity(0))
        if max_workers <= 0:
            raise ValueError("max_workers must be 1 or more")
        if initializer is not None and not callable(initializer):
            raise TypeError("the initializer is not callable")
        self._allow_pickle = allow_pickle
        options = {"allow_pickle": allow_pickle, "bytes_max": bytes_max}
        context = mp_context or multiprocessing.get_context("spawn")
        self._state = _State(max_workers, context, initializer, tuple(initargs), options)
        weakref.finalize(self, self._state.end, False)
        _executors.add(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "concurrent.futures.Future[Any]":
        """Sends fn(*args, **kwargs) to a worker. What it is given has been copied when it leaves the list of pending calls: do not
        change arrays before the future runs or is done.

        Raises UnsupportedType for a function without a name at the top of a module, RuntimeError after `shutdown`,
        BrokenProcessPool after a worker died. What cannot be sent is the future's exception.
        """
        return self._state.submit(_name_of(fn, self._allow_pickle), args, kwargs)

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1, **options: Any
    ) -> Iterator[Any]:
        """As `Executor.map` of concurrent.futures; `chunksize` calls travel together."""
        if chunksize < 1:
            raise ValueError("chunksize must be 1 or more")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout, **options)
        name, calls = _name_of(fn, self._allow_pickle), zip(*iterables)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        answers = super().map(_run_chunk, itertools.repeat(name), chunks, timeout=timeout, **options)
        return _flat(answers)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. Those that were taken are done, or, unless they run already, cancelled. `wait`: until all workers
        have ended."""
        self._state.end(cancel_futures)
        if wait:
            self._state.join()
        _executors.discard(self)

    def __repr__(self) -> str:
        return f"<memlift.Executor, {len(self._state.processes)} of at most {self._state.workers} workers>"


def _flat(chunks: Iterator[list[Any]]) -> Iterator[Any]:
    for chunk in chunks:
        chunk.reverse()
        while chunk:
            yield chunk.pop()
