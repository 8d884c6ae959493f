# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.Pool` in the place of multiprocessing.Pool.

Goal    the interface and behaviour of multiprocessing.Pool (CPython's own tests: `test_cpython_suites.py`); arrays in place; a worker that
        dies costs the call that it had, and nothing hangs
Method  real workers, killed for real
"""

import concurrent.futures
import gc
import itertools
import multiprocessing
import multiprocessing.pool
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import frees_at_once

import memlift

METHODS = ["fork", "spawn", "forkserver"]
# Workers that are replaced are forked beside the pool's threads, as in multiprocessing.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def double(array):
    return array * 2


def add(a, b):
    return a + b


def pid(_=None):
    return os.getpid()


def fail(text):
    raise ValueError(text, 7)


def fail_if_odd(n):
    if n % 2:
        raise ValueError(n)
    return n


def kill_self(_=None):
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(seconds):
    time.sleep(seconds)
    return seconds


def unsendable(_):
    return threading.Lock()


def exit_with(code):
    os._exit(code)


def fail_to_start():
    raise RuntimeError("no licence")


def exit_unless(path):
    """Ends the first worker that gets here, and no later one."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    kill_self()


def large(n):
    return np.full(30_000 + n % 7, n)


@pytest.fixture(scope="module")
def pool():
    with memlift.Pool(2) as pool:
        yield pool


@pytest.mark.parametrize("method", METHODS)
def test_arrays_go_and_come(method):
    arrays = [np.arange(50_000.0) + i for i in range(9)]
    with memlift.Pool(2, context=multiprocessing.get_context(method)) as pool:
        for answers in (
            pool.map(double, arrays),
            pool.map(double, arrays, chunksize=4),
            pool.starmap(double, [(array,) for array in arrays]),
            list(pool.imap(double, iter(arrays))),
            list(pool.imap(double, iter(arrays), chunksize=2)),
            sorted(pool.imap_unordered(double, arrays), key=lambda array: array[0]),
            [pool.apply_async(double, (array,)).get(60) for array in arrays],
            [pool.apply(double, kwds={"array": array}) for array in arrays],
        ):
            for answer, array in zip(answers, arrays, strict=True):
                np.testing.assert_array_equal(answer, array * 2)
                assert answer.flags.writeable


def test_the_interface_is_that_of_multiprocessing(pool):
    names = {name for name in dir(multiprocessing.pool.Pool) if not name.startswith("_")} - {"Process"}
    ours = {name for name in vars(memlift.Pool) if not name.startswith("_")}
    assert names <= ours, "none is inherited"
    theirs = {name for name in dir(multiprocessing.pool.AsyncResult) if not name.startswith("_")}
    assert theirs <= set(dir(pool.apply_async(add, (1, 2))))
    assert isinstance(pool, multiprocessing.pool.Pool), "programs ask"
    assert len({process.pid for process in pool._pool}) == 2
    with pytest.raises(NotImplementedError):
        pool.__reduce__()


def test_exceptions_arrive_as_themselves(pool):
    with pytest.raises(ValueError) as failed:
        pool.apply(fail, ("no luck",))
    assert failed.value.args == ("no luck", 7) and "in fail" in str(failed.value.__cause__)
    with pytest.raises(ValueError):
        pool.map(fail_if_odd, range(10), chunksize=3)
    results = pool.imap(fail_if_odd, range(4))
    assert next(results) == 0
    with pytest.raises(ValueError):
        next(results)
    assert next(results) == 2
    result = pool.apply_async(fail, ("x",))
    result.wait(60)
    assert result.ready() and not result.successful()


def test_what_cannot_be_sent_fails_its_call_alone(pool):
    # A function, an argument, a result.
    with pytest.raises(memlift.UnsupportedTypeError, match="top of a module"):
        pool.apply(lambda: 0)
    with pytest.raises(memlift.UnsupportedTypeError, match="lock"):
        pool.apply(double, (threading.Lock(),))
    with pytest.raises(multiprocessing.pool.MaybeEncodingError) as failed:
        pool.apply(unsendable, (1,))
    assert "lock" in failed.value.value and isinstance(failed.value.__cause__, memlift.UnsupportedTypeError)
    assert pool.apply(add, (1, 2)) == 3


def test_callbacks_are_called_once_and_may_raise(pool):
    told = []
    pool.apply_async(add, (1, 2), callback=told.append, error_callback=fail).wait(60)
    pool.apply_async(fail, ("x",), callback=fail, error_callback=told.append).wait(60)
    pool.map_async(double, [1, 2, 3], chunksize=1, callback=told.append).wait(60)
    assert told[0] == 3 and isinstance(told[1], ValueError) and told[2] == [2, 4, 6]
    assert pool.apply_async(add, (1, 2), callback=fail).get(60) == 3, "a callback that raises costs nothing else"
    assert pool.apply_async(add, (1, 2), callback=lambda _: exit(3)).get(60) == 3
    assert pool.apply(add, (1, 2)) == 3


def test_an_iterable_is_taken_from_as_it_is_needed(pool):
    taken = []

    def endless():
        for i in itertools.count():
            taken.append(i)
            yield i

    with memlift.Pool(2) as own:
        assert list(itertools.islice(own.imap(double, endless()), 20)) == [2 * i for i in range(20)]
        slow = own.imap(wait_for, (taken.append(i) or 0.01 for i in range(100_000)))
        next(slow)
        assert len(taken) < 50_000

    def broken():
        yield 1
        raise LookupError("no more")

    for chunksize in (1, 3):
        results = pool.imap(double, broken(), chunksize)
        with pytest.raises(LookupError):
            list(results)
    # A call in the midst of another's iterable: nobody waits for the other.
    gate = threading.Event()
    held = pool.imap(double, iter(lambda: gate.wait(60) and 1, 1))
    assert pool.apply(add, (1, 2)) == 3
    gate.set()
    assert list(held) == []


def test_timeouts(pool):
    with pytest.raises(multiprocessing.TimeoutError):
        pool.apply_async(wait_for, (0.5,)).get(0.01)
    results = pool.imap_unordered(wait_for, [0.5])
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(0.01)
    assert results.next(60) == 0.5
    with pytest.raises(StopIteration):
        results.next()


def test_close_lets_everything_finish():
    pool = memlift.Pool(2)
    late = pool.map_async(wait_for, [0.1] * 6, chunksize=1)
    results = pool.imap(double, range(200))
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pool.close()
    for use in (pool.apply, pool.map, pool.imap, pool.map_async):
        with pytest.raises(ValueError, match="not running"):
            use(double, [1])
    pool.join()
    assert late.get(0) == [0.1] * 6 and list(results) == [2 * i for i in range(200)]


def test_terminate_leaves_nobody_waiting():
    pool = memlift.Pool(2)
    never = pool.map_async(wait_for, [3600] * 50, chunksize=1)
    results = pool.imap(wait_for, itertools.repeat(3600))
    time.sleep(0.1)
    workers = [process.pid for process in pool._pool]
    pool.terminate()
    pool.join()
    with pytest.raises(memlift.ClosedError, match="terminated"):
        never.get(60)
    with pytest.raises(memlift.ClosedError):
        list(results)
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_a_worker_that_dies_costs_its_call_and_no_more():
    with memlift.Pool(2) as pool:
        for _ in range(5):
            others = pool.map_async(wait_for, [0.01] * 20, chunksize=1)
            with pytest.raises(memlift.PeerDiedError, match="SIGKILL.*out of memory"):
                pool.apply(kill_self)
            with pytest.raises(memlift.PeerDiedError, match="exit code 3"):
                pool.apply(exit_with, (3,))
            assert others.get(60) == [0.01] * 20
        assert pool.map(double, range(10)) == [2 * i for i in range(10)]
        assert len(pool._pool) == 2
        idle = pool._pool[0].pid
        os.kill(idle, signal.SIGKILL)
        while idle in [process.pid for process in pool._pool]:
            time.sleep(0.01)
        assert idle not in pool.map(pid, range(20), chunksize=1)


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_cannot_begin_end_the_pool(method, tmp_path):
    context = multiprocessing.get_context(method)
    for initializer, initargs, why in (
        (fail_to_start, (), "no licence"),
        (exit_with, (3,), "exit code 3"),
        (kill_self, (), "SIGKILL"),
    ):
        with memlift.Pool(2, initializer, initargs, context=context) as pool:
            results = pool.map_async(double, range(10), chunksize=1)
            with pytest.raises(concurrent.futures.BrokenExecutor, match=f"(?s){why}.*new Pool|new Pool.*{why}"):
                results.get(60)
            with pytest.raises(concurrent.futures.BrokenExecutor):
                pool.apply(double, (1,))
    # One that was killed as it began is replaced.
    with memlift.Pool(2, exit_unless, (str(tmp_path / "once"),), context=context) as pool:
        assert pool.map(double, range(10), chunksize=1) == [2 * i for i in range(10)]


def test_workers_are_replaced_after_their_calls():
    for method in METHODS:
        with memlift.Pool(2, maxtasksperchild=2, context=multiprocessing.get_context(method)) as pool:
            pids = pool.map(pid, range(10), chunksize=1)
            assert max(pids.count(one) for one in pids) <= 2


@frees_at_once
def test_results_keep_their_pool():
    result = memlift.Pool(1).apply_async(wait_for, (0.2,))
    gc.collect()
    assert result.get(60) == 0.2
    results = memlift.Pool(1).imap(double, [1, 2])
    gc.collect()
    assert list(results) == [2, 4]
    with pytest.warns(ResourceWarning, match="unclosed"):
        pool = memlift.Pool(1)
        workers, gone = pool._pool, weakref.ref(pool)
        del pool
        gc.collect()
    assert gone() is None
    workers[0].join(60)
    assert workers[0].exitcode is not None


@frees_at_once
def test_nothing_of_the_arguments_and_results_is_kept(pool):
    kept = pool._workers
    pool.map(large, range(20), chunksize=1)
    list(pool.imap_unordered(large, range(20)))
    gc.collect()
    assert kept.results.stats()["viewed_bytes"] == 0 and not kept.futures and not kept.pending
    answers = pool.map(large, range(4), chunksize=1)
    assert kept.results.stats()["reading"] == 4, "the arrays lie in the queue's memory"
    del answers


PROGRAM = """
    import multiprocessing, os, signal, sys, time
    import memlift

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[1])
        pool = memlift.Pool(2)
        print(pool.apply(os.getpid), flush=True)
        {end}
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", ["never = pool.map_async(time.sleep, [3600] * 20)", "it = pool.imap(time.sleep, iter(lambda: 3600, 1))", "pass"])
def test_a_program_that_forgets_its_pool_ends(method, end, tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM).format(end=end))
    done = subprocess.run([sys.executable, tmp_path / "program.py", method], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip().isdigit(), done.stderr
    assert "Traceback" not in done.stderr


def make_and_forget(make):
    global forgotten
    forgotten = make(1)
    assert (forgotten.apply(pid) if make is memlift.Pool else forgotten.submit(pid).result(60)) != os.getpid()


@pytest.mark.parametrize("make", [memlift.Pool, memlift.Executor], ids=["pool", "executor"])
@pytest.mark.parametrize("method", METHODS)
def test_a_child_of_multiprocessing_that_forgets_its_pool_ends(make, method):
    child = multiprocessing.get_context(method).Process(target=make_and_forget, args=(make,))
    child.start()
    child.join(60)
    ended = child.exitcode
    child.kill()
    assert ended == 0


IMPORTED_LATER = """
import os
import {before}
import memlift

forgotten = memlift.{make}(1)
pid = forgotten.apply(os.getpid) if {make!r} == "Pool" else forgotten.submit(os.getpid).result(60)
print(pid != os.getpid())
"""


@pytest.mark.parametrize("make", ["Pool", "Executor"])
@pytest.mark.parametrize("before", ["multiprocessing.util", "concurrent.futures.process", "weakref"])
def test_a_program_that_forgets_its_pool_ends_whatever_it_imported_before(make, before):
    program = IMPORTED_LATER.format(make=make, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


FORKED = """
import atexit, gc, os
import memlift

owner = memlift.{make}(1)
pid = (lambda: owner.apply(os.getpid)) if {make!r} == "Pool" else (lambda: owner.submit(os.getpid).result(60))
first = pid()
child = os.fork()
if child == 0:
    code = 9
    try:
        if {leave!r} == "collect":
            del owner, pid
            gc.collect()
        else:
            atexit._run_exitfuncs()
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
assert first == pid()
owner.terminate() if {make!r} == "Pool" else owner.shutdown()
"""


@pytest.mark.parametrize("make", ["Pool", "Executor"])
@pytest.mark.parametrize("leave", ["exit", "collect"])
def test_a_forked_child_ends_nothing_of_its_parents(make, leave):
    """The child has the object: its end there, and the end of the child's program, are not the parent's."""
    # A program of its own: what runs at its child's exit ends every daemonic process that multiprocessing knows, such as pytest's server.
    subprocess.run([sys.executable, "-c", FORKED.format(make=make, leave=leave)], check=True, timeout=120)


@pytest.mark.soak
def test_soak_kills_of_workers():
    """Workers are killed at random moments; each call ends, as it should or with PeerDiedError, and the pool goes on."""
    kills, draw = int(os.environ.get("MEMLIFT_KILLS", "10000")), random.Random(1)
    with memlift.Pool(3) as pool:
        killed = failed = 0
        while killed < kills:
            results = [pool.apply_async(large, (n,)) for n in range(12)]
            time.sleep(draw.random() * 0.006)
            victim = draw.choice(pool._pool)
            try:
                victim.kill()
                killed += 1
            except ProcessLookupError:
                pass  # it was killed before
            for n, result in enumerate(results):
                try:
                    value = result.get(60)
                except memlift.PeerDiedError:
                    failed += 1
                else:
                    assert len(value) == 30_000 + n % 7 and (value == n).all()
                value = None
        assert pool.map(double, range(10)) == [2 * i for i in range(10)]
        assert failed <= killed * 12
        print(f"{killed} workers killed, {failed} calls failed")


FORKED_UNDER_THE_LOCK = """
import gc, os, threading
import memlift

owner = memlift.{make}(1)
pid = (lambda: owner.apply(os.getpid)) if {make!r} == "Pool" else (lambda: owner.submit(os.getpid).result(60))
pid()
held, go_on = threading.Event(), threading.Event()

def hold():
    with owner._workers.lock:
        held.set()
        go_on.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    code = 9
    try:
        for call in (pid, lambda: list(owner.imap(abs, [1])) if {make!r} == "Pool" else pid()):
            try:
                call()
            except RuntimeError as error:
                assert "forked" in str(error), error
            else:
                raise AssertionError("it took a call")
        owner.terminate() if {make!r} == "Pool" else owner.shutdown()
        del owner, pid
        gc.collect()
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
go_on.set()
assert pid() != os.getpid()
owner.terminate() if {make!r} == "Pool" else owner.shutdown()
"""


@pytest.mark.parametrize("make", ["Pool", "Executor"])
def test_a_forked_child_waits_for_no_lock_of_its_parent(make):
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED_UNDER_THE_LOCK.format(make=make)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
