# SPDX-License-Identifier: Apache-2.0 OR MIT
"""CPython's own tests of process pools, queues and pools, zlib and gzip, run against memlift's.

Goal    what fails is exactly what is listed here, with its reason
Method  the test package of an interpreter that came with one (`tools/setup suites` finds it, and fails where there is none), in a process
        of its own: `cpython_suite.py`. Names are those of 3.13
"""

import json
import pathlib
import subprocess
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).parents[3]
PROGRAM = pathlib.Path(__file__).with_name("cpython_suite.py")

PRIVATE = "looks at private attributes of the standard library's class"
ALONE = "wants one value to break the pool; ours fails that future alone"
OTHER = "runs a program that makes the standard library's own executor, which is skipped there"
AT_ONCE = "wants put to return and a thread to print why the item was lost; ours raises it from put"
NAMED = "wants what __reduce__ raises; ours is NotPicklableError, which names the type and has that as its cause"
CLASS = "wants the private class _RemoteTraceback itself; ours has the same text"
EXPECTED = {
    "futures": {
        "ProcessPoolExecutorTest.test_killed_child": PRIVATE,
        "ProcessPoolExecutorTest.test_traceback": CLASS,
        "ProcessPoolExecutorTest.test_saturation": PRIVATE,
        "ProcessPoolExecutorTest.test_idle_process_reuse_one": PRIVATE,
        "ProcessPoolExecutorTest.test_idle_process_reuse_multiple": PRIVATE,
        "ProcessPoolExecutorTest.test_max_tasks_per_child": PRIVATE,
        "ProcessPoolExecutorTest.test_max_tasks_per_child_defaults_to_spawn_context": PRIVATE,
        "FailingInitializerTest.test_initializer": PRIVATE,
        "ProcessPoolShutdownTest.test_processes_terminate": PRIVATE,
        "ProcessPoolShutdownTest.test_hang_gh83386": OTHER,
        "ExecutorDeadlockTest.test_error_at_task_unpickle": ALONE,
        "ExecutorDeadlockTest.test_exit_at_task_unpickle": ALONE,
        "ExecutorDeadlockTest.test_error_during_result_unpickle_in_result_handler": ALONE,
        "ExecutorDeadlockTest.test_exit_during_result_unpickle_in_result_handler": ALONE,
        "ExecutorDeadlockTest.test_shutdown_deadlock_pickle": PRIVATE,
    },
    "zlib": {},
    "multiprocessing": {
        "TestQueue.test_queue_feeder_donot_stop_onexc": AT_ONCE,
        "TestPool.test_map_unplicklable": NAMED,
        "TestPoolWorkerLifetime.test_pool_worker_lifetime": PRIVATE,
    },
}
# Those that look at nothing private under some start method pass there.
MAY_PASS = {
    "futures": {
        "fork": {"ProcessPoolExecutorTest.test_max_tasks_per_child"},
        "spawn": set(EXPECTED["futures"]),
        "forkserver": set(EXPECTED["futures"]),
    },
    "multiprocessing": {},
    "zlib": {},
}
MUST_RUN = {"futures": 40, "multiprocessing": 60, "zlib": 120}
"""Fewer mean that the suite was not found where it was."""


@pytest.fixture(scope="session")
def interpreter():
    """A Python that came with CPython's tests, and has numpy."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this build of memlift is for Python without a GIL, and the interpreter that came with the suites has one")
    found = subprocess.run([ROOT / "tools/setup", "suites"], capture_output=True, text=True)
    assert found.returncode == 0, f"CPython's suites cannot run:\n{found.stderr}"
    return found.stdout.strip()


SLOW = pytest.mark.soak


RUNS = [
    *[(suite, "fork") for suite in EXPECTED],
    *[pytest.param(suite, method, marks=SLOW) for suite in ("futures", "multiprocessing") for method in ("spawn", "forkserver")],
]


@pytest.mark.parametrize(("suite", "method"), RUNS)
def test_a_suite_of_cpython(interpreter, suite, method):
    done = subprocess.run([interpreter, str(PROGRAM), suite, method], capture_output=True, text=True, timeout=1200)
    assert done.stdout, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert len(outcome["run"]) > MUST_RUN[suite]
    unexpected = {name: text for name, text in outcome["failed"].items() if name not in EXPECTED[suite]}
    assert not unexpected, "\n".join(f"{name}\n{text}" for name, text in unexpected.items())
    passed = set(outcome["run"]) - set(outcome["failed"]) - set(outcome["skipped"])
    assert passed & EXPECTED[suite].keys() <= MAY_PASS[suite].get(method, set()), "take it from the list of failures"
