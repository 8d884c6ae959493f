# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Arrays and scalars of numpy beyond the plain ones: their exact dtype and class, as plain data.

- **Flow** `plain(dtype)` names what the native part sends by itself; `reduce_array`, `reduce_scalar` describe everything else
- **Rule** the class and the dtype that arrive are those that were sent; otherwise `reduce_*` raises UnsupportedTypeError
- **Layout** docs/formats/values.md, "dtypes"
- **Not here** the memory of the elements: it travels as an array of void elements of the same size, copied once
"""

import math
import re
from typing import Any

import numpy as np

from memlift.errors import UnsupportedTypeError

_PLAIN = re.compile(r"[<>|=][biufcmMSUV][0-9]+(\[[0-9]*[a-zA-Z]+\])?")
_LIMIT = 1 << 16
"""Elements without bytes that an array may have, and fields of a record."""


def plain(dtype: Any) -> str | None:
    """Returns numpy's type string if it says all about `dtype`; else None."""
    if dtype.hasobject or dtype.metadata is not None or dtype.names is not None or dtype.subdtype is not None:
        return None
    return dtype.str if _is_named(dtype) else None


def _is_named(dtype: Any) -> bool:
    """Returns true if numpy makes the same dtype, but for metadata, of the type string."""
    try:
        same = np.dtype(dtype.str) if _PLAIN.fullmatch(dtype.str) else None
    except TypeError:
        return False
    return same is not None and (same.num, same.type) == (dtype.num, dtype.type) and same == dtype


def _refused(dtype: Any, why: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"cannot send an array of dtype {dtype}: {why}")


def describe(dtype: Any) -> Any:
    """Returns plain data from which `make` builds the same dtype, with its metadata, titles, offsets and alignment.

    Raises UnsupportedTypeError for dtypes with Python objects inside, and for those of libraries other than numpy and ml_dtypes.
    """
    if dtype.hasobject:
        raise _refused(
            dtype,
            "its elements are Python objects; convert it to an array of bool, integer, float or complex, or to a list, or pass "
            "allow_pickle=True",
        )
    if dtype.metadata is not None:
        return "metadata", _describe_bare(dtype), dict(dtype.metadata)
    return _describe_bare(dtype)


def _describe_bare(dtype: Any) -> Any:
    if dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        return (
            "fields",
            tuple(dtype.names),
            [describe(field[0]) for field in fields],
            tuple(field[1] for field in fields),
            tuple(field[2] if len(field) > 2 else None for field in fields),
            dtype.itemsize,
            dtype.isalignedstruct,
            _record_class(dtype),
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return "sub", describe(base), tuple(shape)
    if _is_named(dtype):
        return dtype.str
    if dtype.type.__module__ == "ml_dtypes" and np.dtype(dtype.type) == dtype:
        return "ml_dtypes", dtype.type.__name__
    if dtype.char in "qQ" and np.dtype(dtype.char).num == dtype.num:
        return "char", dtype.char, dtype.byteorder
    raise _refused(dtype, "memlift knows the dtypes of numpy and ml_dtypes only; convert it with .astype(), or pass allow_pickle=True")


def _record_class(dtype: Any) -> bool:
    if dtype.type is np.record:
        return True
    if dtype.type is np.void:
        return False
    raise _refused(dtype, f"its elements are of class {dtype.type.__name__}; pass allow_pickle=True")


def make(described: Any) -> Any:
    """Returns the dtype that `describe` described. Raises ValueError or TypeError for anything else."""
    if type(described) is str:
        if not _PLAIN.fullmatch(described):
            raise ValueError("a dtype of another kind")
        return np.dtype(described)
    kind, *rest = described
    if kind == "metadata":
        base, metadata = rest
        if type(metadata) is not dict:
            raise ValueError("metadata that is no dict")
        return np.dtype(make(base), metadata=metadata)
    if kind == "fields":
        return _make_fields(*rest)
    if kind == "sub":
        base, shape = rest
        return np.dtype((make(base), _shape(shape)))
    if kind == "ml_dtypes":
        return _ml_dtype(*rest)
    if kind == "char" and rest[0] in ("q", "Q"):
        return np.dtype(rest[0]).newbyteorder(rest[1])
    raise ValueError("a dtype of another kind")


def _make_fields(names: Any, formats: Any, offsets: Any, titles: Any, itemsize: Any, aligned: Any, record: Any) -> Any:
    if not len(names) == len(formats) == len(offsets) == len(titles) <= _LIMIT:
        raise ValueError("fields that do not fit each other")
    titles = list(titles)
    layout: dict[str, Any] = {"names": list(names), "formats": [make(one) for one in formats], "offsets": list(offsets)}
    if any(title is not None for title in titles):
        layout["titles"] = titles
    dtype = np.dtype({**layout, "itemsize": itemsize}, align=bool(aligned))
    if tuple(dtype.fields[name][1] for name in dtype.names) != tuple(offsets):
        raise ValueError("offsets that numpy moved")
    return np.dtype((np.record, dtype)) if record else dtype


def _ml_dtype(name: Any) -> Any:
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedTypeError(f"an array of {name} came, but ml_dtypes is not installed here: pip install ml_dtypes") from None
    scalar = getattr(ml_dtypes, name, None)
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        raise UnsupportedTypeError(f"an array of {name} came, which the ml_dtypes installed here does not have: update it")
    return np.dtype(scalar)


def _shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is not tuple or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise ValueError("a shape that is none")
    return shape


def _elements(array: Any) -> Any:
    """Returns the same memory as void elements; of elements without bytes, the shape."""
    size = array.dtype.itemsize
    return array.view(np.dtype(("V", size))) if size else tuple(array.shape)


def _from_elements(described: Any, elements: Any) -> Any:
    dtype = make(described)
    if dtype.hasobject:
        raise ValueError("elements that are objects")
    if not dtype.itemsize:
        if math.prod(_shape(elements)) > _LIMIT:
            raise ValueError("more elements of no bytes than anybody needs")
        return np.empty(elements, dtype)
    if type(elements) is not np.ndarray or elements.dtype != np.dtype(("V", dtype.itemsize)):
        raise ValueError("elements of another size")
    return elements.view(dtype)


def _base(array: Any) -> Any:
    """Returns a view of class ndarray, whatever methods the subclass has replaced."""
    return np.ndarray.view(array, np.ndarray)


def reduce_array(array: Any) -> tuple[str, Any]:
    """Returns kind and plain data of an array of exactly one of numpy's own classes. Raises UnsupportedTypeError for others."""
    cls = type(array)
    if cls is np.ndarray:
        return "array", (describe(array.dtype), _elements(array))
    if cls is np.ma.MaskedArray:
        return "masked", _masked(array)
    if array is np.ma.masked:
        return "masked.constant", None
    if cls is np.matrix or cls is np.recarray:
        describe(array.dtype)
        return cls.__name__, _base(array)
    raise UnsupportedTypeError(
        f"cannot send an object of type {cls.__module__}.{cls.__qualname__}: only its bare array would arrive; send "
        "numpy.asarray() of it and what else it has, or pass allow_pickle=True"
    )


def _masked(array: Any) -> dict[str, Any]:
    if array.baseclass is not np.ndarray or vars(array).get("_optinfo"):
        raise UnsupportedTypeError(
            f"cannot send a masked array over {array.baseclass.__name__}: send .data and .mask, or pass allow_pickle=True"
        )
    describe(array.dtype)
    fill = vars(array).get("_fill_value")
    return {
        "data": _base(array),
        "mask": None if array.mask is np.ma.nomask else _base(np.ma.getmaskarray(array)),
        "fill": None if fill is None else np.asarray(fill),
        "hard": bool(array.hardmask),
    }


def reduce_scalar(value: Any) -> tuple[str, Any]:
    """Returns kind and plain data of a numpy scalar; "scalar" stands for one whose type string says all."""
    dtype = value.dtype
    if type(value) is not dtype.type:
        raise UnsupportedTypeError(
            f"cannot send an object of type {type(value).__name__}: it is a subclass of {dtype.type.__name__}; pass allow_pickle=True"
        )
    if dtype.kind in "SU":
        # Their dtype is their length. numpy's own conversions drop zeros at the end.
        if dtype.kind == "U":
            return "array.str", str.__getitem__(value, slice(None))
        return "array.bytes", bytes.__getitem__(value, slice(None))
    if dtype.kind != "V" and plain(dtype) is not None:
        return "scalar", value
    return "array.item", (describe(dtype), _elements(np.asarray(value)))


def _make_masked(value: Any, _: bool) -> Any:
    data, mask = value["data"], value["mask"]
    if type(data) is not np.ndarray or not (mask is None or type(mask) is np.ndarray and mask.shape == data.shape):
        raise ValueError("a mask of another shape")
    made = np.ma.MaskedArray(data, mask=np.ma.nomask if mask is None else mask, hard_mask=value["hard"])
    if value["fill"] is not None:
        made.fill_value = value["fill"][()]
    return made


def _make_item(value: Any, _: bool) -> Any:
    return _from_elements(value[0], value[1].copy() if type(value[1]) is np.ndarray else value[1])[()]


def _make_view(cls: type) -> Any:
    def make_view(value: Any, _: bool) -> Any:
        if type(value) is not np.ndarray:
            raise ValueError("no array")
        return value.view(cls)

    return make_view


MAKERS = {
    "array": lambda value, _: _from_elements(*value),
    "array.item": _make_item,
    "array.str": lambda value, _: np.str_(value),
    "array.bytes": lambda value, _: np.bytes_(value),
    "masked": _make_masked,
    "masked.constant": lambda value, _: np.ma.masked,
    "matrix": _make_view(np.matrix),
    "recarray": _make_view(np.recarray),
}
