# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Functions as plain data: a name, or what they are made of.

- **Flow** `name_of(function)` ─▶ plain data ─▶ `function_of(data)` in the worker
- **Rule** a name is sent only if it leads back to the same function here
"""

import functools
import importlib
import operator
import types
from collections.abc import Callable
from typing import Any

from memlift import _native
from memlift.errors import UnsupportedTypeError

_MAKERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


def _resolve(name: str) -> Any:
    module, _, path = name.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _named(module: Any, path: Any, expected: Any) -> str | None:
    """Returns `module:path` if it leads to what is expected."""
    if not (isinstance(module, str) and isinstance(path, str)) or "<" in path:
        return None
    name = f"{module}:{path}"
    try:
        found = _resolve(name)
        return name if found is expected or isinstance(expected, types.MethodType | types.BuiltinMethodType) and found == expected else None
    except (ImportError, AttributeError, ValueError):
        return None


def _can_be_sent(value: Any, allow_pickle: bool) -> bool:
    try:
        _native._check(value, allow_pickle)
    except Exception:
        return False
    return True


def _of_class_or_object(function: Any, allow_pickle: bool) -> Any:
    """Returns what stands for a method: of a class by its name, of an object with the object."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType | types.ClassMethodDescriptorType):
        owner = function.__objclass__
    elif not isinstance(function, types.MethodType | types.BuiltinMethodType):
        return None
    if owner is None or isinstance(owner, types.ModuleType):
        return None
    try:
        if getattr(owner, name) != function:
            return None
    except AttributeError:
        return None
    if isinstance(owner, type):
        found = _named(owner.__module__, owner.__qualname__, owner)
        return None if found is None else ("method", ("name", found), name)
    return ("method", ("object", owner), name) if _can_be_sent(owner, allow_pickle) else None


def name_of(function: Any, allow_pickle: bool) -> Any:
    """What stands for a function. Raises UnsupportedTypeError."""
    if type(function) is functools.partial:
        return ("partial", name_of(function.func, allow_pickle), tuple(function.args), dict(function.keywords))
    path = getattr(function, "__qualname__", None)
    name = _named(getattr(function, "__module__", None), path, function)
    if name is not None:
        return name
    if type(function) in _MAKERS:
        cls, *arguments = function.__reduce__()
        if type(cls) is functools.partial:
            return ("made", f"operator:{type(function).__name__}", *arguments, dict(cls.keywords), list(cls.args))
        return ("made", f"operator:{cls.__name__}", *arguments, {}, [])
    made = _of_class_or_object(function, allow_pickle)
    if made is not None:
        return made
    is_object = not isinstance(path, str)
    if allow_pickle and (is_object or "<" not in path) or is_object and _can_be_sent(function, False):
        return ("object", function)
    advice = "pass allow_pickle=True, or define a function for it" if is_object and not allow_pickle else "define it"
    raise UnsupportedTypeError(
        f"cannot send {function!r}: workers find a function by its module and name; {advice} at the top of a module"
    )


def function_of(name: Any) -> Callable[..., Any]:
    """Returns the function that `name_of` named."""
    if isinstance(name, str):
        return _resolve(name)
    kind, *rest = name
    if kind == "partial":
        return functools.partial(function_of(rest[0]), *rest[1], **rest[2])
    if kind == "method":
        (by, owner), attribute = rest
        return getattr(_resolve(owner) if by == "name" else owner, attribute)
    if kind == "made":
        maker, arguments, keywords, first = rest
        return _resolve(maker)(*first, *arguments, **keywords)
    return rest[0]
