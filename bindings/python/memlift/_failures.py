# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Exceptions of a worker as plain data, and back.

- **Flow** `take_apart(error)` in the worker ─▶ plain data ─▶ `put_together(data)` in the process that called
- **Rule** an exception arrives as itself, with its arguments, attributes, notes and the exceptions of a group, or as RemoteError with
  the worker's traceback: never as something else
- **Rule** only classes of exceptions that this process has loaded are made, by their own constructor. Where pickles are allowed, the
  module of a class is imported
"""

import functools
import importlib
import pickle
import sys
import traceback
from typing import Any

from memlift import _native
from memlift._values import describe
from memlift.errors import RemoteError

_DEPTH_MAX = 50
"""Groups inside groups."""


def _class_name(cls: type) -> tuple[str, str]:
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return module, cls.__qualname__


def _text(error: BaseException) -> str:
    """The traceback as text that can always be sent."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:
        text = describe(error)
    return text.encode("utf-8", "backslashreplace").decode()


def take_apart(error: BaseException, allow_pickle: bool) -> tuple[str, str, Any]:
    """Returns the class's name, the traceback, and the exception as plain data; or None for that, if it cannot be sent."""
    try:
        apart = _apart(error, 0)
        _native._check(apart, False)
    except BaseException:
        apart = None
    if apart is None and allow_pickle:
        try:
            apart = ("pickle", pickle.dumps(error, 5))
        except BaseException:
            apart = None
    return ":".join(_class_name(type(error))), _text(error), apart


def _apart(error: BaseException, depth: int) -> Any:
    cls = type(error)
    made, arguments, *state = error.__reduce_ex__(4)
    if made is not cls or len(state) > 1 or depth > _DEPTH_MAX:
        raise TypeError("made by something else than its class")
    members = None
    if isinstance(error, BaseExceptionGroup):
        members = [_apart(member, depth + 1) for member in error.exceptions]
        arguments = arguments[:1]
    told = None if error.args == arguments or members is not None else error.args
    return "class", _class_name(cls), tuple(arguments), told, state[0] if state else None, members


def put_together(failure: tuple[str, str, Any], allow_pickle: bool) -> BaseException:
    """Returns the exception that a worker told of, if this process has its class; else RemoteError."""
    name, text, apart = failure
    try:
        error = _together(apart, allow_pickle)
    except BaseException:
        error = RemoteError(name.partition(":")[2], text)
    from multiprocessing.pool import RemoteTraceback

    error.__cause__ = RemoteTraceback(f'\n"""\n{text}"""')
    return error


def unsent(error: BaseException, shown: str) -> BaseException:
    """Returns what multiprocessing's pools raise for a result that cannot be sent; `error` says why, and is its cause."""
    from multiprocessing.pool import MaybeEncodingError

    made = MaybeEncodingError(error, None)
    made.value, made.args = shown, (made.exc, shown)
    made.__cause__ = error
    return made


def _together(apart: Any, allow_pickle: bool) -> BaseException:
    if apart[0] == "pickle" and allow_pickle:
        error = pickle.loads(apart[1])
        if not isinstance(error, BaseException):
            raise TypeError("no exception")
        return error
    _, (module, path), arguments, told, state, members = apart
    home = importlib.import_module(module) if allow_pickle else sys.modules[module]
    cls = functools.reduce(getattr, path.split("."), home)
    if not (isinstance(cls, type) and issubclass(cls, BaseException)):
        raise TypeError("no class of exceptions")
    if members is not None:
        arguments = (*arguments, [_together(member, allow_pickle) for member in members])
    error = cls(*arguments)
    if type(error) is not cls:
        raise TypeError("of another class")
    if told is not None:
        error.args = told
    if state is not None:
        error.__setstate__(state)
    return error
