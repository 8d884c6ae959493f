# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Executor` in the place of ProcessPoolExecutor.

Goal    the interface and behaviour of concurrent.futures; arrays in place; a worker that dies is told of, nothing hangs
Method  real workers, killed for real
"""

import collections
import concurrent.futures
import dataclasses
import functools
import math
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import memlift

_state = {}


def double(array, add=0):
    return array * 2 + add


def change(array):
    array += 1
    return array


def fail(text):
    raise ValueError(text, 7)


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} {b}")


def fail_oddly():
    raise Odd(1, 2)


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(seconds):
    time.sleep(seconds)
    return seconds


def prepare(value):
    _state["value"] = value


def prepared():
    return _state["value"]


def fail_to_start():
    raise RuntimeError("no licence")


def unsendable():
    return object()


def add(a, b):
    return a + b


def pid():
    return os.getpid()


def pid_and_value():
    time.sleep(0.01)
    return os.getpid(), _state["value"]


def put_into(value):
    _state["value"].put(value)


@pytest.fixture(scope="module")
def executor():
    with memlift.Executor(2) as executor:
        yield executor


def test_arrays_go_and_come(executor):
    array = np.arange(200_000.0)
    answer = executor.submit(double, array, add=1).result(60)
    np.testing.assert_array_equal(answer, array * 2 + 1)
    assert answer.flags.writeable
    np.testing.assert_array_equal(executor.submit(change, array).result(60), array + 1)
    assert array[0] == 0, "the worker changed its own"


def test_map(executor):
    assert list(executor.map(add, range(10), range(10, 20))) == list(range(10, 30, 2))
    assert list(executor.map(math.sqrt, range(20), chunksize=7)) == [math.sqrt(n) for n in range(20)]
    assert list(executor.map(double, [])) == []
    with pytest.raises(ValueError):
        executor.map(double, [1], chunksize=0)
    with pytest.raises(concurrent.futures.TimeoutError):
        list(executor.map(wait_for, [0.5], timeout=0.01))


def test_functions_of_all_kinds(executor):
    assert executor.submit(functools.partial(add, 1), 2).result(60) == 3
    assert executor.submit(functools.partial(add, b=5), 2).result(60) == 7
    assert executor.submit(np.sum, np.arange(10)).result(60) == 45
    for local in (lambda: 0, executor.submit, print.__call__):
        with pytest.raises(memlift.UnsupportedTypeError, match="top of a module"):
            executor.submit(local)


def test_an_exception_comes_with_the_workers_traceback(executor):
    with pytest.raises(ValueError) as failed:
        executor.submit(fail, "no luck").result(60)
    assert failed.value.args == ("no luck", 7)
    assert "in fail" in str(failed.value.__cause__) and 'raise ValueError(text, 7)' in str(failed.value.__cause__)
    with pytest.raises(memlift.RemoteError, match="Odd: 1 2"):
        executor.submit(fail_oddly).result(60)
    assert isinstance(executor.submit(fail, "x").exception(60), ValueError)


@dataclasses.dataclass
class Detailed(Exception):
    code: int
    field: str = "x"

    def __reduce__(self):
        return Detailed, (self.code, self.field)


class Stated(Exception):
    def __init__(self, text):
        super().__init__(f"said {text}")
        self.text = text

    def __reduce__(self):
        return Stated, (self.text,), {"more": [1, np.arange(3)]}


def raise_this(error):
    raise error


def raise_by_name(name):
    if name == "file":
        open("/nonexistent/a\udcff")
    if name == "noted":
        error = KeyError("k", 1)
        error.add_note("a note")
        error.attribute = {"a": (1, 2)}
        raise error
    if name == "text":
        b"\xff".decode()
    if name == "detailed":
        raise Detailed(7, "y")
    if name == "stated":
        raise Stated("this")
    if name == "import":
        raise ImportError("no", name="n", path="p")
    inner = ValueError("one")
    inner.add_note("inner note")
    raise ExceptionGroup("several", [inner, ExceptionGroup("more", [OSError(2, "no", "f"), Detailed(1)])])


def outline(error):
    """All that an exception is, for comparing."""
    members = [outline(member) for member in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    told = {name: getattr(error, name, None) for name in ("errno", "filename", "code", "field", "text", "name", "path", "start", "object")}
    attributes = {name: repr(value) for name, value in vars(error).items()}
    return type(error), str(error), str(error.args), told, attributes, members


@pytest.mark.parametrize("name", ["file", "noted", "text", "detailed", "stated", "import", "group"])
def test_exceptions_arrive_as_themselves(executor, name):
    with pytest.raises(BaseException) as here:
        raise_by_name(name)
    there = executor.submit(raise_by_name, name).exception(60)
    if name == "stated":
        here.value.more = [1, np.arange(3)]
    assert outline(there) == outline(here.value)
    assert "in raise_by_name" in str(there.__cause__)


def test_what_cannot_be_sent_is_the_futures_exception(executor):
    with pytest.raises(memlift.UnsupportedTypeError, match="allow_pickle=True"):
        executor.submit(double, object()).result(60)
    with pytest.raises(memlift.UnsupportedTypeError, match="allow_pickle=True"):
        executor.submit(unsendable).result(60)
    assert executor.submit(add, 1, 1).result(60) == 2


def test_all_of_concurrent_futures_works_with_it(executor):
    futures = [executor.submit(double, np.full(1000, i)) for i in range(20)]
    done = concurrent.futures.wait(futures, timeout=60)
    assert not done.not_done
    assert sorted(int(f.result()[0]) for f in concurrent.futures.as_completed(futures)) == list(range(0, 40, 2))
    called = threading.Event()
    executor.submit(add, 1, 2).add_done_callback(lambda future: called.set())
    assert called.wait(60)


def leave(*_):
    raise SystemExit(3)


class Interrupts:
    """Cannot be sent: whoever tries is interrupted."""

    def __reduce__(self):
        raise KeyboardInterrupt


def test_no_thread_of_the_executor_ends_by_what_a_user_raises():
    with memlift.Executor(1, allow_pickle=True) as executor:
        first = executor.submit(wait_for, 0.1)
        first.add_done_callback(leave)
        # The last ones are sent by the thread that collects.
        futures = [executor.submit(wait_for, 0.01) for _ in range(4)] + [executor.submit(add, Interrupts(), 1), executor.submit(add, 1, 2)]
        futures[-1].add_done_callback(leave)
        theirs = executor.submit(add, 2, 3)
        theirs.set_result("somebody else's")
        assert first.result(60) == 0.1 and [future.result(60) for future in futures[:4]] == [0.01] * 4
        assert type(futures[4].exception(60)) is KeyboardInterrupt and futures[5].result(60) == 3
        assert executor.submit(add, 3, 4).result(60) == 7 and theirs.result() == "somebody else's"


def test_pending_calls_can_be_cancelled():
    with memlift.Executor(1) as executor:
        futures = [executor.submit(wait_for, 0.2) for _ in range(6)]
        assert futures[-1].cancel() and futures[-1].cancelled()
        assert not futures[0].cancel()
        executor.shutdown(wait=False, cancel_futures=True)
        assert futures[0].result(60) == 0.2
        assert any(future.cancelled() for future in futures[:-1])
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(add, 1, 1)


def test_an_initializer_and_a_queue():
    queue = memlift.Queue()
    with memlift.Executor(1, initializer=prepare, initargs=(queue,)) as executor:
        executor.submit(put_into, np.arange(3)).result(60)
        np.testing.assert_array_equal(queue.get(timeout=60), np.arange(3))
    with memlift.Executor(1, initializer=fail_to_start) as executor:
        with pytest.raises(concurrent.futures.BrokenExecutor, match="no licence"):
            executor.submit(add, 1, 1).result(60)


def test_workers_start_as_they_are_needed():
    with memlift.Executor(8) as executor:
        assert executor.submit(pid).result(60) != os.getpid()
        assert "1 of at most 8" in repr(executor)
    with pytest.raises(ValueError):
        memlift.Executor(0)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_are_replaced(method):
    context = multiprocessing.get_context(method)
    with memlift.Executor(2, context, max_tasks_per_child=3, initializer=prepare, initargs=(7,)) as executor:
        pids = [future.result(60) for future in [executor.submit(pid_and_value) for _ in range(8)]]
        assert all(value == 7 for _, value in pids)
        counts = collections.Counter(pid for pid, _ in pids)
        assert max(counts.values()) <= 3 and len(counts) >= 3
        assert executor.submit(add, 1, 1).result(60) == 2
    with memlift.Executor(1, max_tasks_per_child=1) as executor:
        assert len({executor.submit(pid).result(60) for _ in range(3)}) == 3
        assert executor._workers.context.get_start_method() == "spawn"
        dying = executor.submit(kill_self)
        with pytest.raises(concurrent.futures.BrokenExecutor, match="SIGKILL"):
            dying.result(60)
    for wrong, error in ((0, ValueError), ("3", TypeError)):
        with pytest.raises(error):
            memlift.Executor(1, max_tasks_per_child=wrong)
    with pytest.raises(ValueError, match="fork"):
        memlift.Executor(1, multiprocessing.get_context("fork"), max_tasks_per_child=1)


HERE = """
import multiprocessing, sys
import memlift
def here(x): return multiprocessing.get_start_method(), x + 1
if __name__ == "__main__":
    {before}
    with memlift.Executor(2) as executor:
        print(executor.submit(here, 1).result(60), executor._workers.context.get_start_method())
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", None])
@pytest.mark.parametrize("way", ["file", "command", "stdin"])
def test_the_programs_start_method_is_honoured(method, way, tmp_path):
    if way != "file" and (method or multiprocessing.get_start_method()) != "fork":
        pytest.skip("such a process cannot read a program that is no file")
    text = HERE.format(before="pass" if method is None else f"multiprocessing.set_start_method({method!r})")
    (tmp_path / "program.py").write_text(text)
    command = {"file": [str(tmp_path / "program.py")], "command": ["-c", text], "stdin": ["-"]}[way]
    done = subprocess.run([sys.executable, *command], input=text, capture_output=True, text=True, timeout=120)
    expected = method or multiprocessing.get_start_method()
    assert done.stdout.split() == [f"('{expected}',", "2)", expected], done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_other_start_methods(method):
    with memlift.Executor(1, multiprocessing.get_context(method)) as executor:
        np.testing.assert_array_equal(executor.submit(double, np.arange(5000)).result(60), np.arange(5000) * 2)


@memlift.register
@dataclasses.dataclass
class Adder:
    n: int

    def add(self, x):
        return self.n + x

    @classmethod
    def make(cls, n):
        return cls(n)

    @staticmethod
    def twice(x):
        return 2 * x

    def __call__(self, x):
        return self.n * x


class Special(Adder):
    pass


def test_methods_and_builtins(executor):
    for function, arguments in (
        (Adder(3).add, (4,)), (Adder.make, (5,)), (Special.make, (5,)), (Adder.twice, (4,)), (Adder.add, (Adder(1), 2)), (Adder(3), (5,)),
        ("a-b".split, ("-",)), (str.upper, ("x",)), (int.from_bytes, (b"ab", "big")), (dict.fromkeys, ([1, 2],)), (len, ([1],)),
        (math.sqrt, (4,)), (operator.add, (1, 2)), (operator.itemgetter(1, 0), ([1, 2],)), (operator.attrgetter("n"), (Adder(1),)),
        (operator.methodcaller("add", 2), (Adder(1),)), (operator.methodcaller("split", "-", maxsplit=1), ("a-b-c",)), ([3, 1].count, (3,)),
        (np.add, (1, 2)), (np.arange(3).sum, ()), (functools.partial(Adder(3).add, 4), ()), (object.__eq__, (1, 1)),
    ):  # fmt: skip
        if function == Special.make:
            with pytest.raises(memlift.UnsupportedTypeError, match="Special"):
                executor.submit(function, *arguments).result(60)
            continue
        there = executor.submit(function, *arguments).result(60)
        assert there == function(*arguments) or there is NotImplemented or function is object.__eq__


def test_pickles_where_they_are_allowed():
    with memlift.Executor(1, allow_pickle=True) as executor:
        assert executor.submit(len, range(5)).result(60) == 5
        assert executor.submit("a-b".split, "-").result(60) == ["a", "b"]


def test_a_worker_that_dies_breaks_the_executor():
    with memlift.Executor(2) as executor:
        waiting = [executor.submit(wait_for, 30) for _ in range(4)]
        victim = executor.submit(kill_self)
        waiting[0].cancel()
        os.kill(executor._workers.processes[0].pid, signal.SIGKILL)
        for future in [*waiting, victim]:
            with pytest.raises(concurrent.futures.BrokenExecutor, match="SIGKILL.*out of memory.*new Executor"):
                future.result(60)
        with pytest.raises(concurrent.futures.BrokenExecutor):
            executor.submit(add, 1, 1)
    with memlift.Executor(1) as executor:
        with pytest.raises(concurrent.futures.BrokenExecutor, match="exit code 3"):
            executor.submit(os._exit, 3).result(60)


@pytest.mark.parametrize("started", [0, 1])
def test_threads_or_processes_that_cannot_start_break_the_executor(monkeypatch, started):
    start, count = threading.Thread.start, iter(range(100))

    def refuse(thread):
        if next(count) >= started:
            raise RuntimeError("can't start new thread")
        start(thread)

    context = multiprocessing.get_context("spawn")
    with memlift.Executor(2, context) as executor:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(concurrent.futures.BrokenExecutor, match="can't start new thread"):
            executor.submit(add, 1, 1)
        monkeypatch.undo()
        with pytest.raises(concurrent.futures.BrokenExecutor, match="can't start new thread"):
            executor.submit(add, 1, 1)


SCRIPT = """
    import os, signal, sys, time
    import memlift

    if __name__ == "__main__":
        executor = memlift.Executor(1)
        future = executor.submit(os.getpid)
        print(future.result(60), flush=True)
        {end}
"""


def run(end):
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(SCRIPT).format(end=end)], stdout=subprocess.PIPE, text=True)


def test_workers_end_with_a_killed_parent():
    parent = run("executor.submit(time.sleep, 600); time.sleep(0.2); os.kill(os.getpid(), signal.SIGKILL)")
    worker = int(parent.stdout.readline())
    handle = os.pidfd_open(worker)
    try:
        assert parent.wait(60) == -signal.SIGKILL
        import select

        assert select.select([handle], [], [], 60)[0], "the worker outlived its parent"
    finally:
        os.close(handle)
        parent.stdout.close()


def test_a_program_that_forgets_shutdown_ends():
    parent = run("late = executor.submit(time.sleep, 0.1)")
    assert parent.communicate(timeout=60)[0].strip().isdigit()
    assert parent.returncode == 0
