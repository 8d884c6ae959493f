# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One value never breaks an executor: what cannot be sent or read of a call, a result or an exception is that future's alone.

Method  every kind of trouble in every place, with and without pickles; after each, another call of the same worker is answered
"""

import dataclasses
import os
import sys
import threading

import numpy as np
import pytest

import memlift


@dataclasses.dataclass
class Unregistered:
    a: int = 1


class Raises:
    """Raises when it is taken apart or put together."""

    def __init__(self, error, when):
        self.error, self.when = error, when

    def __reduce__(self):
        if self.when == "put":
            raise self.error
        return _raise, (self.error,)


class Endless:
    """Pickle goes down for ever."""

    def __reduce__(self):
        return Endless, (Endless(),)


class Silent(Exception):
    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__


class Unmade(Exception):
    """Cannot be made of its arguments."""

    def __init__(self, a, b):
        super().__init__(a)


class Unreduced(Exception):
    def __reduce__(self):
        raise KeyboardInterrupt


class Strange(Exception):
    """Stands for something else."""

    def __reduce__(self):
        return print, ("never",)


def _raise(error):
    raise error


def nested():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


TROUBLES = {
    "unregistered": Unregistered,
    "lock": threading.Lock,
    "lambda": lambda: (lambda: 1),
    "object": object,
    "objects": lambda: np.array([object()]),
    "endless": Endless,
    "nested": nested,
    "memory": lambda: Raises(MemoryError("none"), "put"),
    "exit": lambda: Raises(SystemExit(3), "put"),
    "value": lambda: Raises(ValueError("no"), "put"),
    "exit when read": lambda: Raises(SystemExit(3), "get"),
    "interrupt when read": lambda: Raises(KeyboardInterrupt(), "get"),
    "value when read": lambda: Raises(ValueError("no"), "get"),
    "silent when read": lambda: Raises(Silent(), "get"),
    "huge": lambda: np.broadcast_to(np.zeros(1), (1 << 40,)),
}
EXCEPTIONS = {
    "lock inside": lambda: ValueError("text", threading.Lock()),
    "silent": Silent,
    "unmade": lambda: Unmade(1, 2),
    "unreduced": Unreduced,
    "strange": Strange,
    "local": lambda: type("Local", (Exception,), {})("x"),
    "surrogate": lambda: ValueError("\udcff", b"\xff".decode("utf-8", "surrogateescape")),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "base": lambda: BaseException("x"),
    "ring": lambda: ring(),
    "group": lambda: BaseExceptionGroup("all", [Unmade(1, 2), Silent()]),
    "deep": lambda: deep_group(),
}


def ring():
    error = ValueError("ring")
    error.args = (error,)
    return error


def deep_group():
    error = ValueError("x")
    for _ in range(2000):
        error = ExceptionGroup("g", [error])
    return error


def square(x):
    return x * x


def take(value):
    return 1


def give(name):
    return TROUBLES[name]()


def throw(name):
    raise EXCEPTIONS[name]()


@pytest.fixture(scope="module", params=[False, True], ids=["data", "pickle"])
def executor(request):
    with memlift.Executor(1, allow_pickle=request.param, bytes_max=64 << 20) as executor:
        assert executor.submit(square, 3).result(120) == 9
        yield executor


def fails_alone(executor, function, argument):
    before, future, after = executor.submit(square, 4), executor.submit(function, argument), executor.submit(square, 5)
    error = future.exception(120)
    assert before.result(120) == 16 and after.result(120) == 25
    return error


@pytest.mark.parametrize("name", TROUBLES)
def test_an_argument(executor, name):
    error = fails_alone(executor, take, TROUBLES[name]())
    assert error is not None or executor._allow_pickle and name in ("unregistered", "object", "objects")


@pytest.mark.parametrize("name", TROUBLES)
def test_a_result(executor, name):
    error = fails_alone(executor, give, name)
    assert error is not None or executor._allow_pickle and name in ("unregistered", "object", "objects")


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception(executor, name):
    error = fails_alone(executor, throw, name)
    assert type(error) in (type(EXCEPTIONS[name]()), memlift.RemoteError)
    if type(error) is memlift.RemoteError:
        assert "in throw" in str(error), "its traceback came"
    assert "in throw" in error.__cause__.tb


def throw_of_a_module():
    import wave

    raise wave.Error("of a module that the caller has not loaded")


def test_an_exception_of_a_module_that_was_not_loaded(executor):
    """Its module is imported only where pickles are allowed."""
    loaded = sys.modules.pop("wave", None)
    try:
        error = executor.submit(throw_of_a_module).exception(120)
        assert type(error).__qualname__ == ("Error" if executor._allow_pickle else "RemoteError")
        assert "has not loaded" in str(error) and ("wave" in sys.modules) == executor._allow_pickle
    finally:
        if loaded is not None:
            sys.modules["wave"] = loaded


@pytest.mark.parametrize("names", [[list(TROUBLES), list(EXCEPTIONS)]])
def test_many_at_once(executor, names):
    troubles, exceptions = names
    futures = []
    for _ in range(5):
        futures += [executor.submit(give, name) for name in troubles] + [executor.submit(throw, name) for name in exceptions]
        good = executor.submit(square, 6)
    assert all(future.exception(120) is not None or executor._allow_pickle for future in futures)
    assert good.result(120) == 36


def pid():
    return os.getpid()


def test_it_was_one_worker_all_the_time(executor):
    assert executor.submit(pid).result(120) == executor._workers.processes[0].pid
    assert len(executor._workers.processes) == 1
