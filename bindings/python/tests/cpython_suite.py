# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs CPython's own tests of process pools, of queues and pools, or of zlib and gzip, against memlift's; a program that `test_cpython_suites.py` starts.

- **Flow** `python cpython_suite.py futures|multiprocessing|zlib fork|spawn|forkserver` ─▶ the tests ─▶ one line of JSON: what was run, what failed
- **Method** the interpreter's own test package, unchanged: memlift's classes stand where the tests look for the standard library's.
  Processes that are spawned import this file, and find them there too
"""

import importlib
import json
import multiprocessing
import multiprocessing.pool
import sys
import unittest
import unittest.mock

import memlift


# Some tests put its name into programs.
class ProcessPoolExecutor(memlift.Executor):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_pickle=True, **kwargs)


class Queue(memlift.Queue):
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls, *args, allow_pickle=True, **kwargs)


class JoinableQueue(memlift.JoinableQueue):
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls, *args, allow_pickle=True, **kwargs)


class Pool(memlift.Pool):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_pickle=True, **kwargs)


FUTURES = ("test_process_pool", "test_wait", "test_as_completed", "test_init", "test_shutdown", "test_deadlock")
"""Modules of the package test.test_concurrent_futures; one module before 3.13."""

WITH_TYPES = ("TestProcess", "TestQueue", "TestPool", "TestPoolWorkerErrors", "TestPoolWorkerLifetime")
WITHOUT = ("TestInitializers", "TestStdinBadfiledescriptor")
LEAK = "TestPoolNotLeakOnFailure"
"""Classes of test._test_multiprocessing that make queues or pools."""


def futures(method):
    """Classes of tests by the name in the list of expected failures."""
    package = importlib.import_module("test.test_concurrent_futures")
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in FUTURES] if hasattr(package, "__path__") else [package]
    for module in modules:
        for name, found in vars(module).items():
            rest = name.removeprefix(f"ProcessPool{method.capitalize()}")
            if rest != name and not rest.startswith("server") and isinstance(found, type) and issubclass(found, unittest.TestCase):
                found.executor_type = ProcessPoolExecutor
                yield rest, found


def queues_and_pools(method):
    suite = importlib.import_module("test._test_multiprocessing")
    multiprocessing.Queue, multiprocessing.JoinableQueue, multiprocessing.Pool = Queue, JoinableQueue, Pool
    suite.ProcessesMixin.Queue, suite.ProcessesMixin.JoinableQueue = Queue, JoinableQueue
    suite.ProcessesMixin.Pool = Pool
    suite.install_tests_in_module_dict(globals(), method)
    for name in WITH_TYPES:
        yield name, globals()[f"WithProcesses{name}"]
    for name in WITHOUT:
        yield name, globals()[name]
    # Not for the others: managers have the standard library's pool by its name.
    yield LEAK, unittest.mock.patch("multiprocessing.pool.Pool", Pool)(globals()[LEAK])


def zlib_and_gzip(_):
    for name, ours in {"zlib": importlib.import_module("memlift.zlib"), "gzip": importlib.import_module("memlift.gzip")}.items():
        suite = importlib.import_module(f"test.test_{name}")
        setattr(suite, name, ours)
        for short, found in vars(suite).items():
            if isinstance(found, type) and issubclass(found, unittest.TestCase) and found.__module__ == suite.__name__:
                yield f"{name}.{short}", found


kind, method = sys.argv[1:3]
chosen = list({"futures": futures, "multiprocessing": queues_and_pools, "zlib": zlib_and_gzip}[kind](method))

if __name__ == "__main__":
    suite, names = unittest.TestSuite(), {}
    for short, found in chosen:
        for case in unittest.defaultTestLoader.loadTestsFromTestCase(found):
            names[case.id()] = f"{short}.{case.id().rpartition('.')[2]}"
            suite.addTest(case)
    outcome = unittest.TextTestRunner(verbosity=2, stream=sys.stderr).run(suite)
    failed = {names.get(case.id(), case.id()): text for case, text in outcome.failures + outcome.errors}
    skipped = {names.get(case.id(), case.id()): why for case, why in outcome.skipped}
    print("\n" + json.dumps({"run": sorted(names.values()), "failed": failed, "skipped": skipped}))
