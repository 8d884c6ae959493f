# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Values that are more than plain data: how they are taken apart to be sent, and put together from what came.

- **Flow** reduce(value) ─▶ (kind, plain value) … the other process … restore(kind, plain value) ─▶ value
- **Rule** the type that arrives is the type that was sent, by exact class. What has no exact encoding is pickled where that is
  allowed, and refused otherwise
- **Rule** nothing that came may choose code to run: a dataclass is made only if this process has registered it, a pickle is read
  only where it was allowed on both sides
- **Not here** plain data, arrays of plain types: the native part has them. `_dtypes`, `_tensors`, `_frames`, `_arrow` have the libraries
"""

import dataclasses
import functools
import pickle
from typing import Any, TypeVar

import numpy as np

from memlift import _arrow, _dtypes, _frames, _native, _tensors
from memlift._kind import END, Arguments, End
from memlift._kind import Kind as _Kind
from memlift.errors import CorruptMessageError, NotPicklableError, UnsupportedTypeError

_Class = TypeVar("_Class", bound=type)
_classes: dict[str, type] = {}


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}".replace("__mp_main__:", "__main__:")


def register(cls: _Class) -> _Class:
    """Lets this process receive instances of a dataclass. Use it as a decorator where the class is defined:

        @memlift.register
        @dataclasses.dataclass
        class Batch:
            images: np.ndarray
            labels: np.ndarray

    Only the fields travel. The receiver makes an instance without calling `__init__` or `__post_init__`. Classes are told
    apart by module and name; in a script that spawns, `__main__` stands for `__mp_main__`.

    Raises TypeError for what is not a dataclass.
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"{cls!r} is not a dataclass: put @dataclasses.dataclass below @memlift.register")
    _classes[_name(cls)] = cls
    return cls


def _unsupported(value: Any, advice: str) -> UnsupportedTypeError:
    cls = type(value)
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return UnsupportedTypeError(f"cannot send an object of type {module}{cls.__qualname__}: {advice}")


def within(value: Any, error: BaseException) -> BaseException:
    """The error of a part of `value`, with the name of what holds it: its user may not know that part.

    Of parts within parts, the outermost and the innermost are named.
    """
    if type(error) is not UnsupportedTypeError:
        return error
    refused = "a part of it is refused: "
    return _unsupported(value, refused + str(error).rpartition(refused)[2].removeprefix("cannot send "))


def reduce(value: Any, allow_pickle: bool) -> tuple[str, Any]:
    """What stands for `value`: a kind and plain data. An empty kind: the data is the value. Of Arrow: the buffers of a stream.

    Raises UnsupportedTypeError, which names the type and says what to do.
    """
    if type(value) is _Kind:
        return value.kind, value.value
    if value is END:
        return "end", None
    if type(value) is pickle.PickleBuffer:
        raise _unsupported(value, "a memoryview would arrive; send bytes() or numpy.frombuffer() of it")
    _tensors.refuse_device(value)
    try:
        return _exact(value, allow_pickle)
    except UnsupportedTypeError:
        if not allow_pickle:
            raise
    return pickled(value)


def _exact(value: Any, allow_pickle: bool) -> tuple[str, Any]:
    cls = type(value)
    if issubclass(cls, np.generic):
        return _dtypes.reduce_scalar(value)
    if issubclass(cls, np.ndarray):
        if cls is np.memmap and not allow_pickle:
            _tensors.changes(value, "a numpy array", "numpy.asarray() of it", stacklevel=4)
            return "", np.asarray(value)
        return _dtypes.reduce_array(value)
    if dataclasses.is_dataclass(cls):
        return _dataclass(value, allow_pickle)
    library = cls.__module__.partition(".")[0]
    if library == "pandas":
        return _frames.reduce(value, allow_pickle)
    made = _arrow.reduce(value) if library == "pyarrow" or _is_arrow(cls) else _tensors.reduce(value, allow_pickle)
    if made is not None:
        return made
    if hasattr(cls, "__array__"):
        if not allow_pickle and _holds_nothing(value):
            _tensors.changes(value, "a numpy array", "numpy.asarray() of it", stacklevel=4)
            return "", np.asarray(value)
        raise _unsupported(
            value, "only its bare array would arrive; send numpy.asarray() of it and what else it has, or pass allow_pickle=True"
        )
    raise _unsupported(
        value, "make it of numbers, text, bytes, lists, dicts, arrays or dataclasses of these, or pass allow_pickle=True"
    )


def _is_arrow(cls: type) -> bool:
    """Returns true for a subclass of pyarrow's arrays, such as the array of a registered extension type."""
    return any(base.__module__ == "pyarrow.lib" for base in cls.__mro__)


def _dataclass(value: Any, allow_pickle: bool) -> tuple[str, Any]:
    """The fields, if they are all that the object has."""
    cls, name = type(value), _name(type(value))
    registered = _classes.get(name)
    if allow_pickle and registered is not cls:
        raise _unsupported(value, "put @memlift.register above the class")
    if registered is not None and registered is not cls:
        raise _unsupported(
            value, "another class of this name was registered after it, and would arrive; make the object anew, or rename one of the classes"
        )
    try:
        object.__new__(cls)
    except TypeError:
        raise _unsupported(value, "it is a dataclass and something else, and only its fields would arrive; pass allow_pickle=True") from None
    fields = [field.name for field in dataclasses.fields(cls)]
    more = [name for name in _attributes(value) if name not in fields and not _is_derived(cls, name)]
    if more:
        raise _unsupported(value, f"its attribute {more[0]!r} is not a field and would be lost; make it a field, or pass allow_pickle=True")
    try:
        return "dataclass", (name, {field: getattr(value, field) for field in fields})
    except AttributeError as error:
        raise _unsupported(value, f"a field has no value ({error}); set it, or pass allow_pickle=True") from error


def _attributes(value: Any) -> list[str]:
    """The names of all attributes that the object itself has."""
    names = list(getattr(value, "__dict__", ()))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{base.__name__.lstrip('_')}{slot}" if private else slot
            if slot not in ("__dict__", "__weakref__") and hasattr(value, name):
                names.append(name)
    return names


def is_more_than_buffer(value: Any) -> bool:
    """Returns true if something would be lost of an object of which only the buffer is sent."""
    return bool(_attributes(value)) or any(getattr(value, "dim_names", ()))


def _holds_nothing(value: Any) -> bool:
    """Returns true if the object is its class and no more, so that nothing is lost beside what its methods give."""
    try:
        object.__new__(type(value))
    except TypeError:
        return False
    return not _attributes(value)


def _is_derived(cls: type, name: str) -> bool:
    """Returns true for what the receiver computes anew when it is asked for."""
    return name == "__orig_class__" or isinstance(getattr(cls, name, None), functools.cached_property)


def arguments(positional: tuple[Any, ...], named: dict[str, Any] | None) -> _Kind:
    """What stands for several arguments of one call; the receiver accepts it only as a whole request."""
    return _Kind("arguments", (positional, named or {}))


def _make_arguments(value: Any, _: bool) -> Arguments:
    positional, named = value
    if type(positional) is not tuple or type(named) is not dict or any(type(name) is not str for name in named):
        raise ValueError("arguments that are none")
    return Arguments(positional, named)


def _make_end(value: Any, _: bool) -> End:
    if value is not None:
        raise ValueError("an end that is more")
    return END


def pickled(value: Any) -> tuple[str, Any]:
    """Kind and data of a pickle, whose large buffers stay where they are until they are copied.

    Raises NotPicklableError for what pickle refuses.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except MemoryError:
        raise
    except Exception as error:
        raise NotPicklableError(*_unsupported(value, f"pickle refuses it ({describe(error)})").args) from error
    return "pickle", [data, [np.frombuffer(raw, np.uint8) if raw.nbytes else b"" for raw in (buffer.raw() for buffer in buffers)]]


def describe(error: BaseException) -> str:
    """Class and text of an exception, whatever its own code does."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException as failed:
        return f"{type(error).__name__}, whose text cannot be made ({type(failed).__name__})"


def restore(kind: str, value: Any, allow_pickle: bool) -> Any:
    """The value of a kind. Raises CorruptMessageError for what `reduce` cannot have made."""
    try:
        make = _MAKERS[kind]
    except KeyError:
        raise CorruptMessageError(f"the message is with a value of kind {kind!r}: nothing of it was used") from None
    try:
        return make(value, allow_pickle)
    except (CorruptMessageError, UnsupportedTypeError, MemoryError):
        raise
    except Exception as error:
        raise CorruptMessageError(f"the message is with a broken {kind} ({describe(error)})") from error


def put_into(came: Any, out: Any) -> Any:
    """Copies what came into memory of the caller's: an array of its type and shape, or a buffer as long as its bytes or longer.

    Gives `out`, or the number of bytes. Raises ValueError when it does not fit, TypeError when it is neither bytes nor array.
    """
    if isinstance(came, (bytes, bytearray)):
        came = np.frombuffer(came, np.uint8)
    if isinstance(came, np.generic):
        came = np.asarray(came)
    if not isinstance(came, np.ndarray):
        raise TypeError(f"what came is of type {type(came).__name__}: out takes bytes and arrays")
    if isinstance(out, np.ndarray):
        if out.shape != came.shape or out.dtype != came.dtype:
            raise ValueError(f"what came is {came.dtype}{list(came.shape)}, out is {out.dtype}{list(out.shape)}: make out like it")
        np.copyto(out, came)
        return out
    target = memoryview(out).cast("B")
    if len(target) < came.nbytes:
        raise ValueError(f"what came has {came.nbytes} bytes, out {len(target)}: make out longer")
    target[: came.nbytes] = came.reshape(-1).view(np.uint8)
    return came.nbytes


def _make_dataclass(value: Any, _: bool) -> Any:
    name, fields = value
    cls = _classes.get(name)
    if cls is None:
        raise UnsupportedTypeError(
            f"a dataclass {name} came, which this process has not registered: import its module, and put @memlift.register "
            "above the class"
        )
    if type(fields) is not dict or set(fields) != {field.name for field in dataclasses.fields(cls)}:
        raise ValueError(f"fields that are not those of {name}")
    made = object.__new__(cls)
    for field, content in fields.items():
        object.__setattr__(made, field, content)
    return made


def _make_pickle(value: Any, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise UnsupportedTypeError("a pickle came, which may run any code: pass allow_pickle=True here too if you trust its sender")
    data, buffers = value
    try:
        return pickle.loads(data, buffers=buffers)
    except (pickle.UnpicklingError, EOFError, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedTypeError(
            f"a pickle came of which this process cannot make the object ({describe(error)}): import here what its class needs, or give "
            "the class a __reduce__ whose arguments its constructor takes"
        ) from error


_MAKERS = {
    "arguments": _make_arguments,
    "dataclass": _make_dataclass,
    "end": _make_end,
    "pickle": _make_pickle,
    "ref": lambda value, _: _native.Ref(value),
    **_arrow.MAKERS,
    **_dtypes.MAKERS,
    **_frames.MAKERS,
    **_tensors.MAKERS,
}
