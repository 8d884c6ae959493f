# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The worker processes of an executor or a pool, and the calls on their way.

- **Flow** submit ─▶ pending ─▶ queue of calls ─▶ whichever worker is free ─▶ queue of results ─▶ collector thread ─▶ Future
- **Order** a call is pending, and can be cancelled, until it enters the queue of calls, which holds one more than there are workers. Each
  worker's death comes behind everything that it had told
- **Owner** this process starts the workers and hosts nothing: both queues are memory that all of them map. A worker ends when this
  process does, by whatever cause. One thread collects results, one sleeps until a worker dies; none polls
- **Rule** functions travel by name, arguments and results as values (memlift/_values.py). What cannot be sent or read of a call is that
  call's failure
- **Not here** what callers see: memlift/executor.py, memlift/pool.py
"""

import atexit
import collections
import concurrent.futures
import contextlib
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import queue as queues
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Any

from memlift._failures import put_together, take_apart, unsent
from memlift._functions import function_of
from memlift._values import describe
from memlift.errors import ClosedError, Error, PeerDiedError, PayloadPoolFullError
from memlift.queue import Queue

def _end(workers: "weakref.ref[Workers]") -> None:
    ends = workers()
    if ends is not None:
        ends.finish()
        ends.join()


_alive: "weakref.WeakSet[Workers]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends them while their threads may still run Python: multiprocessing's own end may come too late, where it was imported before memlift."""
    for workers in list(_alive):
        workers.at_exit()


# Marks of what lies in the queues, beside a number: of a call, or of a process.
_CALL, _BEGUN, _DONE, _FAILED, _UNSENT, _NOT_STARTED, _RETIRED, _DIED, _END = range(9)


_EXIT_PRIORITY = 15
"""As multiprocessing's pools have it."""

_SHOWN_MAX = 1000
"""Characters of a result that cannot be sent, in the error that says so."""


class _Calls(Queue[Any]):
    """A queue that remembers which call each worker has taken."""

    _ledger = "calls"


def run_chunk(name: Any, chunk: list[tuple[Any, ...]]) -> list[Any]:
    """Calls a function with each of several tuples of arguments."""
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


def _fail(results: Queue[Any], number: int, mark: int, error: BaseException, value: Any = None) -> None:
    """Tells of a failure, whatever the exception is like and however little memory there is."""
    name, text, apart = take_apart(error, results._allow_pickle)
    shown = _shown(value) if mark == _UNSENT else ""
    # Without the exception itself, then with what takes no memory of the queue.
    for told in ((name, text, apart, shown), (name[-200:], text[-2000:], None, shown[:200])):
        try:
            return results.put_call(number, mark, told)
        except BaseException:
            continue
    results.put_call(number, mark, (name[-40:], text[-40:], None, ""))


def _shown(value: Any) -> str:
    """Says what a value is that cannot be sent, as text that can."""
    try:
        text = repr(value)[:_SHOWN_MAX]
    except BaseException:
        text = f"<{type(value).__qualname__}>"
    return text.encode("utf-8", "backslashreplace").decode()


def _work(calls: Queue[Any], results: Queue[Any], initializer: Any, initargs: tuple[Any, ...], calls_max: int | None) -> None:
    """Body of a worker."""
    threading.Thread(target=_end_with_parent, name="memlift-parent", daemon=True).start()
    if initializer is not None:
        try:
            initializer(*initargs)
        except BaseException as error:
            results.put_call(os.getpid(), _NOT_STARTED, take_apart(error, False)[1])
            signal.pause()  # its end would be told of before its reason; it is ended by who reads that
    results.put_call(os.getpid(), _BEGUN, calls._identity())
    for _ in itertools.count() if calls_max is None else range(calls_max):
        call = value = None  # what lies in the queues is given back before the next wait
        number, mark, call, failed = calls.get_call()
        if mark == _END:
            return
        mark = _FAILED
        try:
            if failed is not None:
                raise failed
            value = _run(call)
            call, mark = None, _UNSENT
            results.put_call(number, _DONE, value)
        except BaseException as error:
            call = None
            _fail(results, number, mark, error, value)
            error.__traceback__ = None
        failed = None
        calls.settle_call()
    results.put_call(os.getpid(), _RETIRED, None)


class Workers:
    """All of an executor or a pool but its handle, so that the threads do not keep the handle alive.

    replaces  a worker that dies fails the call that it had, and another is started; otherwise it fails all
    """

    def __init__(
        self,
        count: int,
        context: BaseContext,
        initializer: Any,
        initargs: Any,
        calls_max: int | None,
        *,
        allow_pickle: bool,
        bytes_max: int | None,
        replaces: bool,
    ) -> None:
        # Code of arguments runs under the lock, and may end up here again: a finalizer, or a `__reduce__` that submits.
        self.lock = threading.RLock()
        self.room = threading.Condition(self.lock)
        self.count, self.context, self.pid = count, context, os.getpid()
        self.start = (initializer, initargs, calls_max)
        self.allow_pickle, self.replaces = allow_pickle, replaces
        self.again = f"make a new {'Pool' if replaces else 'Executor'}"
        self.calls: Queue[Any] = _Calls(allow_pickle=allow_pickle, bytes_max=bytes_max)
        self.results: Queue[Any] = Queue(allow_pickle=allow_pickle, bytes_max=bytes_max)
        self.pending: collections.deque[tuple[int, Any, Any, Any]] = collections.deque()
        self.futures: dict[int, concurrent.futures.Future[Any]] = {}
        self.inside: set[int] = set()
        self.numbers = itertools.count()
        self.processes: list[Any] = []
        self.retired: list[Any] = []
        self.identities: dict[int, int] = {}
        """Of the workers that have begun: what the queue of calls knows them by."""
        self.stillborn = 0
        """Workers that died before they had begun, since one did begin."""
        self.sources = 0
        """Threads that still have calls to submit."""
        self.ending = False
        self.dismissed = False
        self.broken: BaseException | None = None
        self.threads: list[threading.Thread] = []
        self.is_released = False
        self.woken, self.wake = multiprocessing.connection.Pipe(duplex=False)
        # At the end of this process, also where it is a child of multiprocessing (which has no atexit before Python 3.13), before that
        # waits for its children. The threads keep this object until then, also when its executor is gone.
        self.at_exit = multiprocessing.util.Finalize(None, _end, (weakref.ref(self),), exitpriority=_EXIT_PRIORITY)
        _alive.add(self)

    # Calls

    def submit(self, name: Any, arguments: Any, keywords: Any) -> "concurrent.futures.Future[Any]":
        """Takes a call. Raises what broke the workers, or RuntimeError after `end` and in a forked child."""
        self.check_process()
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self.lock:
            self.check()
            number = next(self.numbers)
            self.futures[number] = future
            self.pending.append((number, name, arguments, keywords))
            if len(self.processes) < min(self.count, len(self.futures)):
                self.start_worker_or_give_up()
                self.check()
            self.fill()
        return future

    def check_process(self) -> None:
        """Raises RuntimeError in a forked child, where another thread of its parent may hold the lock for ever."""
        if not self.is_ours():
            raise RuntimeError(f"the workers belong to process {self.pid}, which forked this one: {self.again}")

    def check(self) -> None:
        if self.broken is not None:
            raise type(self.broken)(*self.broken.args)
        if self.ending and not self.sources:
            raise RuntimeError(f"cannot schedule new futures after shutdown: {self.again}")

    def fill(self) -> None:
        """Lets pending calls enter the queue; with the lock."""
        while self.pending and len(self.inside) <= self.count:
            call = self.pending.popleft()
            number = call[0]
            future = self.futures[number]
            if number not in self.inside and not future.running() and not _begins(future):
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
                full = "the memory for calls is full of arrays that the workers keep: copy what they keep, or raise bytes_max"
                _tell(future, error=PayloadPoolFullError(full))
            except BaseException as error:
                # Whatever it was, it is this call's alone.
                self.futures.pop(number, None)
                _tell(future, error=error)
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
        self.room.notify_all()
        if self.ending and not self.futures and not self.sources and not self.dismissed:
            self.dismiss()

    def wait_for_room(self, pending_max: int) -> None:
        """Waits until few calls are pending, or the workers are gone."""
        with self.lock:
            self.room.wait_for(lambda: self.dismissed or len(self.pending) < pending_max)

    def collect(self) -> None:
        """Body of the thread that collects."""
        self.take_results()
        self.at_exit.cancel()

    def take_results(self) -> None:
        while True:
            try:
                number, mark, value, failed = self.results.get_call()
            except Error as error:
                self.give_up(BrokenProcessPool(f"the queue of results broke ({error}): {self.again}"))
                return
            if mark == _END:
                return
            if mark in (_DONE, _FAILED, _UNSENT):
                self.settle(number, mark, value, failed)
            elif mark == _BEGUN:
                self.identities[number], self.stillborn = value, 0
            elif mark == _NOT_STARTED:
                self.give_up(BrokenProcessPool(f"the initializer failed in worker {number}: mend it and {self.again}\n{value}"))
            elif mark == _RETIRED:
                self.replace(number)
            elif mark == _DIED:
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
            _tell(future, error=failed)
        elif mark == _DONE:
            _tell(future, value)
        else:
            error = put_together(value[:3], self.allow_pickle)
            _tell(future, error=unsent(error, value[3]) if mark == _UNSENT and self.replaces else error)

    # Processes

    def start_all(self) -> None:
        """Starts all workers now. What the first that cannot start raises, after the others have been ended."""
        try:
            for _ in range(self.count):
                self.start_worker()
            self.begin_threads()
        except BaseException:
            self.ending = self.dismissed = True
            for process in self.processes:
                process.terminate()
            self.results.put_call(0, _END, None)
            self.join()
            raise

    def start_worker(self) -> None:
        process = self.context.Process(target=_work, args=(self.calls, self.results, *self.start))  # type: ignore[attr-defined]
        if self.replaces:
            process.name = process.name.replace("Process", "PoolWorker")
        with _known_threads(1 + len(self.threads) + self.sources):
            process.start()
        self.processes.append(process)

    def start_worker_or_give_up(self) -> None:
        try:
            self.start_worker()
            self.begin_threads()
            self.wake.send_bytes(b"w")
        except Exception as error:
            room = " when there is room for one" if isinstance(error, OSError | MemoryError) else ""
            why = f"a worker could not be started ({describe(error)}): {self.again}{room}"
            self.give_up(BrokenProcessPool(why))

    def begin_threads(self) -> None:
        for body in () if self.threads else (self.collect, self.watch):
            thread = threading.Thread(target=body, name=f"memlift-workers-{body.__name__}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def replace(self, pid: int) -> None:
        """A worker has done as many calls as it may: starts another, if there is anything to do."""
        with self.lock:
            retired = [process for process in self.processes if process.pid == pid]
            self.processes = [process for process in self.processes if process.pid != pid]
            self.retired += retired
            self.identities.pop(pid, None)
            if (self.futures or self.replaces) and not self.dismissed:
                self.start_worker_or_give_up()

    def bury(self, pid: int) -> None:
        """A worker is dead that had not said that it would end."""
        with self.lock:
            dead = [] if self.dismissed else [process for process in self.processes if process.pid == pid]
        # A later process may have the same number.
        if not dead or not multiprocessing.connection.wait([dead[0].sentinel], 0):
            return
        dead[0].join()
        why = _epitaph(dead[0])
        identity = self.identities.pop(pid, None)
        if identity is None:
            self.stillborn += 1
        # One that ends by itself before it has begun, or one after the other, would do so again.
        if not self.replaces or identity is None and ((dead[0].exitcode or 0) >= 0 or self.stillborn > self.count + 2):
            self.give_up(BrokenProcessPool(f"{why}; then {self.again}"))
            return
        number = None if identity is None else self.calls.lost(identity)
        with self.lock:
            self.processes = [process for process in self.processes if process is not dead[0]]
            if not self.dismissed:
                self.start_worker_or_give_up()
        if number is not None:
            self.settle(number, _FAILED, None, PeerDiedError(why))

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
                told.intersection_update([*self.processes, *gone])
            for process in gone:
                process.join()
                told.discard(process)

    # The end

    def is_ours(self) -> bool:
        """Returns true in the process that started the workers. A forked child has the object, but not its processes."""
        return self.pid == os.getpid()

    def finish(self) -> None:
        """Ends the workers at the program's end: an executor's when its calls are done, a pool's now."""
        if self.replaces:
            self.give_up(ClosedError("the pool was terminated before this call was done: close and join it to wait for its calls"))
        else:
            self.end(False)

    def give_up(self, why: BaseException) -> None:
        """Fails everything and ends the workers."""
        if not self.is_ours():
            return
        with self.lock:
            if self.broken is not None:
                return
            self.broken, self.ending, self.dismissed = why, True, True
            futures = list(self.futures.values())
            self.futures.clear()
            self.pending.clear()
            self.inside.clear()
            processes = list(self.processes)
            self.room.notify_all()
        for future in futures:
            if not future.done():
                if future.running() or _begins(future):
                    _tell(future, error=type(why)(*why.args))
        for process in processes:
            process.terminate()
        self.results.put_call(0, _END, None)

    def end(self, cancel: bool) -> None:
        """Takes no more calls. Those that were taken are done; with `cancel`, those that are pending are cancelled."""
        if not self.is_ours():
            return
        with self.lock:
            self.ending = True
            while cancel and self.pending:
                self.futures.pop(self.pending.popleft()[0]).cancel()
            if not self.futures and not self.sources and not self.dismissed:
                self.dismiss()

    def dismiss(self) -> None:
        self.dismissed = True
        for _ in self.processes:
            self.calls.put_call(0, _END, None)
        self.results.put_call(0, _END, None)

    def join(self) -> None:
        """Waits until all workers have ended, and the threads with them."""
        if not self.is_ours():
            return
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
        self.let_go()

    def let_go(self) -> None:
        """Closes the pipe once the threads are gone: the traceback of an exception may keep this object for long."""
        with self.lock:
            if not self.is_released and not any(thread.is_alive() for thread in self.threads):
                self.is_released = True
                self.woken.close()
                self.wake.close()
                if not self.replaces:
                    self.processes.clear()
                    self.retired.clear()


def _begins(future: "concurrent.futures.Future[Any]") -> bool:
    """Notes that the call of a future begins; returns false if it was cancelled, or ended by somebody else."""
    return (future.cancelled() or not future.done()) and future.set_running_or_notify_cancel()


def _tell(future: "concurrent.futures.Future[Any]", value: Any = None, *, error: BaseException | None = None) -> None:
    """Ends a future. A callback of it that raises something like SystemExit ends no thread that others wait for."""
    try:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except concurrent.futures.InvalidStateError:
        pass  # somebody else has ended it
    except BaseException:
        logging.getLogger("concurrent.futures").exception("exception calling callback for %r", future)


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
    return f"worker process {process.pid} ended {how} before its work was done: {advice}"
