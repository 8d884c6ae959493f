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
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import queue as queues
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Any

from memlift._failures import put_together, take_apart
from memlift._functions import function_of, name_of
from memlift._values import describe
from memlift.errors import Error, PoolFull
from memlift.queue import Queue

__all__ = ["Executor"]

_states: "weakref.WeakSet[_State]" = weakref.WeakSet()
"""Their threads keep them until all calls are done, also those of an executor that is gone."""


@atexit.register
def _end_all() -> None:
    for state in list(_states):
        if state.pid == os.getpid():  # a forked child has the object, but not its processes
            state.end(False)
            state.join()


# Marks of what lies in the queues, beside a number: of a call, or of a process.
_CALL, _DONE, _FAILED, _NOT_STARTED, _RETIRED, _DIED, _END = range(7)


def _run_chunk(name: Any, chunk: list[tuple[Any, ...]]) -> list[Any]:
    function = function_of(name)
    return [function(*arguments) for arguments in chunk]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> Any:
    name, arguments, keywords = call
    return function_of(name)(*arguments, **keywords)


def _fail(results: Queue, number: int, error: BaseException) -> None:
    """Tells of a failure, whatever the exception is like and however little memory there is."""
    failure = take_apart(error, results._allow_pickle)
    name, text, _ = failure
    # Without the exception itself, then with what takes no memory of the queue.
    for told in (failure, (name[-200:], text[-2000:], None)):
        try:
            return results.put_call(number, _FAILED, told)
        except BaseException:
            continue
    results.put_call(number, _FAILED, (name[-40:], text[-40:], None))


def _work(calls: Queue, results: Queue, initializer: Any, initargs: tuple[Any, ...], calls_max: int | None) -> None:
    """Body of a worker."""
    threading.Thread(target=_end_with_parent, name="memlift-parent", daemon=True).start()
    if initializer is not None:
        try:
            initializer(*initargs)
        except BaseException as error:
            results.put_call(os.getpid(), _NOT_STARTED, take_apart(error, False)[1])
            signal.pause()  # its end would be told of before its reason; it is ended by who reads that
    for _ in itertools.count() if calls_max is None else range(calls_max):
        call = value = None  # what lies in the queues is given back before the next wait
        number, mark, call, failed = calls.get_call()
        if mark == _END:
            return
        try:
            if failed is not None:
                raise failed
            value = _run(call)
            call = None
            results.put_call(number, _DONE, value)
        except BaseException as error:
            call = value = None
            _fail(results, number, error)
            error.__traceback__ = None
        failed = None
    results.put_call(os.getpid(), _RETIRED, None)


class _State:
    """All of an executor but its handle, so that the threads do not keep the handle alive."""

    def __init__(
        self, workers: int, context: BaseContext, initializer: Any, initargs: Any, calls_max: int | None, options: dict[str, Any]
    ) -> None:
        # Code of arguments runs under the lock, and may end up here again: a finalizer, or a `__reduce__` that submits.
        self.lock = threading.RLock()
        self.workers, self.context, self.pid = workers, context, os.getpid()
        self.start = (initializer, initargs, calls_max)
        self.allow_pickle = options["allow_pickle"]
        self.calls, self.results = Queue(**options), Queue(**options)
        self.pending: collections.deque[tuple[int, Any, Any, Any]] = collections.deque()
        self.futures: dict[int, concurrent.futures.Future[Any]] = {}
        self.inside: set[int] = set()
        self.numbers = itertools.count()
        self.processes: list[Any] = []
        self.retired: list[Any] = []
        self.ending = False
        self.dismissed = False
        self.broken: str | None = None
        self.threads: list[threading.Thread] = []
        self.woken, self.wake = multiprocessing.connection.Pipe(duplex=False)
        _states.add(self)

    def begin_threads(self) -> None:
        for body in (self.collect, self.watch):
            thread = threading.Thread(target=body, name=f"memlift-executor-{body.__name__}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def submit(self, name: Any, arguments: Any, keywords: Any) -> "concurrent.futures.Future[Any]":
        """Takes a call. Raises BrokenProcessPool, RuntimeError."""
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
                self.start_worker_or_give_up()
                if self.broken is not None:
                    raise BrokenProcessPool(self.broken)
            self.fill()
        return future

    def start_worker_or_give_up(self) -> None:
        try:
            self.start_worker()
        except Exception as error:
            self.give_up(f"a worker could not be started ({describe(error)}): make a new Executor when there is room for one")

    def start_worker(self) -> None:
        process = self.context.Process(target=_work, args=(self.calls, self.results, *self.start))  # type: ignore[attr-defined]
        with _known_threads(1 + len(self.threads)):
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
                self.calls.put_call(number, _CALL, call[1:], block=False)
                self.inside.add(number)
            except queues.Full:
                if self.inside:
                    self.pending.appendleft(call)
                    break
                del self.futures[number]
                future.set_exception(
                    PoolFull("the executor's memory is full of arrays that its workers keep: copy what they keep, or raise bytes_max")
                )
            except BaseException as error:
                # Whatever it was, it is this call's alone.
                self.futures.pop(number, None)
                future.set_exception(error)
                if isinstance(error, KeyboardInterrupt):
                    raise
        if self.ending and not self.futures and not self.dismissed:
            self.dismiss()

    def dismiss(self) -> None:
        self.dismissed = True
        for _ in self.processes:
            self.calls.put_call(0, _END, None)
        self.results.put_call(0, _END, None)

    def collect(self) -> None:
        while True:
            try:
                number, mark, value, failed = self.results.get_call()
            except Error as error:
                self.give_up(f"the queue of results broke ({error}): make a new Executor")
                return
            if mark == _END:
                return
            if mark in (_DONE, _FAILED):
                self.settle(number, mark, value, failed)
            elif mark == _NOT_STARTED:
                self.give_up(f"the initializer failed in worker {number}: mend it and make a new Executor\n{value}")
            elif mark == _RETIRED:
                self.replace(number)
            elif mark == _DIED:
                # Behind everything that the worker had still told.
                self.bury(number)
            del value, failed

    def settle(self, number: int, mark: int, value: Any, failed: BaseException | None) -> None:
        """Gives a future its result, or what it failed with: in the worker, or as its result was read."""
        with self.lock:
            future = self.futures.pop(number, None)
            self.inside.discard(number)
            self.fill()
        if future is None:
            return
        if failed is not None:
            future.set_exception(failed)
        elif mark == _DONE:
            future.set_result(value)
        else:
            future.set_exception(put_together(value, self.allow_pickle))

    def replace(self, pid: int) -> None:
        """A worker has done as many calls as it may: starts another, if there is anything to do."""
        with self.lock:
            retired = [process for process in self.processes if process.pid == pid]
            self.processes = [process for process in self.processes if process.pid != pid]
            self.retired += retired
            if self.futures and not self.dismissed:
                self.start_worker_or_give_up()

    def bury(self, pid: int) -> None:
        """A worker is dead. If it had not said that it would end, it takes the executor with it."""
        with self.lock:
            dead = [] if self.dismissed else [process for process in self.processes if process.pid == pid]
        # A later process may have the same number.
        if dead and multiprocessing.connection.wait([dead[0].sentinel], 0):
            dead[0].join()
            self.give_up(_epitaph(dead[0]))

    def watch(self) -> None:
        told: set[Any] = set()
        while True:
            with self.lock:
                processes = [process for process in [*self.processes, *self.retired] if process not in told]
                if self.dismissed and not processes:
                    return
            ready = multiprocessing.connection.wait([self.woken, *(process.sentinel for process in processes)])
            if self.woken in ready and self.woken.recv_bytes() == b"e":
                return
            for process in processes:
                if process.sentinel in ready:
                    told.add(process)
                    self.results.put_call(process.pid, _DIED, None)
            with self.lock:
                gone = [process for process in self.retired if process in told]
                self.retired = [process for process in self.retired if process not in told]
            for process in gone:
                process.join()
                told.discard(process)

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
        self.results.put_call(0, _END, None)

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
        """Waits until all workers have ended, and the threads with them."""
        collector, watcher = self.threads[:1], self.threads[1:]
        for thread in collector:
            if thread is not threading.current_thread():
                thread.join()
        for process in [*self.processes, *self.retired]:
            process.join()
        try:
            self.wake.send_bytes(b"e")
        except OSError:
            pass
        for thread in watcher:
            if thread is not threading.current_thread():
                thread.join()


@contextlib.contextmanager
def _known_threads(known: int) -> Iterator[None]:
    """No warning of a fork beside other threads, if there are none but those of executors, which a fork does not harm."""
    with warnings.catch_warnings():
        if threading.active_count() <= known:
            warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        yield


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
        self._allow_pickle = allow_pickle
        options = {"allow_pickle": allow_pickle, "bytes_max": bytes_max}
        self._state = _State(max_workers, mp_context, initializer, tuple(initargs), max_tasks_per_child, options)
        weakref.finalize(self, self._state.end, False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "concurrent.futures.Future[Any]":
        """Sends fn(*args, **kwargs) to a worker. What it is given has been copied when it leaves the list of pending calls: do not
        change arrays before the future runs or is done.

        Raises UnsupportedType for a function without a name at the top of a module, RuntimeError after `shutdown`,
        BrokenProcessPool after a worker died. What cannot be sent is the future's exception.
        """
        return self._state.submit(name_of(fn, self._allow_pickle), args, kwargs)

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1, **options: Any
    ) -> Iterator[Any]:
        """As `Executor.map` of concurrent.futures; `chunksize` calls travel together."""
        if chunksize < 1:
            raise ValueError("chunksize must be 1 or more")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout, **options)
        name, calls = name_of(fn, self._allow_pickle), zip(*iterables)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        answers = super().map(_run_chunk, itertools.repeat(name), chunks, timeout=timeout, **options)
        return _flat(answers)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls. Those that were taken are done, or, unless they run already, cancelled. `wait`: until all workers
        have ended."""
        self._state.end(cancel_futures)
        if wait:
            self._state.join()

    def __repr__(self) -> str:
        return f"<memlift.Executor, {len(self._state.processes)} of at most {self._state.workers} workers>"


def _flat(chunks: Iterator[list[Any]]) -> Iterator[Any]:
    for chunk in chunks:
        chunk.reverse()
        while chunk:
            yield chunk.pop()
