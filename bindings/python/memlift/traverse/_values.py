# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a collection's values are to Python: bytes, text, or numpy's numbers and records of one length."""

from typing import Any

import numpy as np

from memlift.errors import BadArgumentError, UnsupportedValueError

__all__ = ["Values", "converted", "is_mixed", "raw"]


def _is_same_moment(given: np.ndarray[Any, Any], packed: np.ndarray[Any, Any]) -> bool:
    """True if times are the same in another unit. Whole numbers are numbers of the unit."""
    kind, was = packed.dtype.kind, given.dtype.kind
    if was in "iu":
        return True
    if was == "O":
        # Python's own times have microseconds.
        given = given.astype(f"{kind}8[us]")
    elif was == "U":
        given = given.astype(f"{kind}8")
    if given.dtype.kind != kind:
        return False
    if np.datetime_data(given.dtype)[0] == "generic":
        return True
    nowhere = np.isnat(given) & np.isnat(packed)
    return bool((nowhere | (packed.astype(given.dtype) == given)).all())


def _is_unchanged(given: np.ndarray[Any, Any], packed: np.ndarray[Any, Any]) -> bool:
    """True if nothing of `given` is lost in `packed`. Floats of fewer bits are rounded: that is what whoever chose them asked for."""
    kind, was = packed.dtype.kind, given.dtype.kind
    if given.dtype == packed.dtype:
        return True
    if kind in "Mm":
        return _is_same_moment(given, packed)
    if packed.dtype.names is not None:
        same = given.dtype.names is not None and len(given.dtype.names) == len(packed.dtype.names)
        pairs = zip(given.dtype.names, packed.dtype.names, strict=True) if same else ()
        return same and all(_is_unchanged(given[old], packed[new]) for old, new in pairs)
    if kind in "biu" and was in "biu":
        return bool(((packed.astype(given.dtype) == given) & ((packed < 0) == (given < 0))).all())
    if kind in "biu" and was == "f":
        limits = (0, 1) if kind == "b" else (np.iinfo(packed.dtype).min, np.iinfo(packed.dtype).max)
        fits = (given >= float(limits[0])) & (given < float(limits[1] + 1)) & (np.trunc(given) == given)
        return bool(fits.all())
    if kind in "fc" and was == "b":
        return True
    if kind in "fc" and was in "iu":
        exact = 1 << (np.finfo(packed.dtype).nmant + 1)
        wide = given[(given > exact) | (given < -exact)]
        return all(int(float(np.array(number, packed.dtype).real)) == int(number) for number in wide.ravel())
    if kind in "fc" and was in "fc" and (kind == "c" or was == "f"):
        return not bool((np.isinf(packed) & ~np.isinf(given)).any())
    if kind == "U" and was == "U":
        return given.dtype.itemsize <= packed.dtype.itemsize
    return kind in "SV" and was in "SV" and given.dtype.itemsize <= packed.dtype.itemsize


def is_mixed(listed: Any, array: np.ndarray[Any, Any]) -> bool:
    """True if numpy has made floats of what were not all floats: some whole numbers may have changed."""
    return array.dtype.kind == "f" and not all(isinstance(one, float | np.floating) for one in listed)


def converted(given: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of this dtype that says what was given. Raises UnsupportedValueError where it cannot."""
    try:
        if dtype.names is not None and isinstance(given, tuple):
            # Field by field: as a whole, numpy would cut off what does not fit.
            if len(given) != len(dtype.names):
                raise ValueError(f"{len(given)} fields where there are {len(dtype.names)}")
            packed = np.zeros((), dtype)
            for name, part in zip(dtype.names, given, strict=True):
                packed[name] = converted(part, dtype[name])
            return packed
        if dtype.subdtype is not None:
            packed = converted(given, dtype.subdtype[0])
            return np.broadcast_to(packed, dtype.shape) if packed.shape == () else packed
        if isinstance(given, bytes | bytearray) and dtype.kind in "SV":
            # Zeros at the end of 'S' are not kept, and what is shorter than 'V' would get some.
            if (dtype.kind == "S" and given.endswith(b"\0")) or (dtype.kind == "V" and len(given) != dtype.itemsize):
                raise ValueError(f"it has {len(given)} bytes")
        original = np.asarray(given)
        with np.errstate(over="ignore", invalid="ignore"):
            packed = np.asarray(given, dtype)
        if original.dtype.kind == "O":
            # Whole numbers beyond 64 bits, or several kinds of things: numpy has converted each, or refused.
            unchanged = dtype.kind == "O" or all(
                _is_unchanged(np.asarray(one), np.asarray(one, dtype)) for one in original.ravel()
            )
        else:
            unchanged = _is_unchanged(original, packed)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnsupportedValueError(f"{given!r} is no {dtype}: {error}") from None
    if not unchanged:
        raise UnsupportedValueError(
            f"{given!r} does not fit {dtype} as it is: make the collection with another value type ('f8' for numbers with a fraction), "
            "or round it first"
        )
    return packed


def raw(value: Any, advice: str) -> bytes:
    """The bytes of a value that has bytes. Python's `bytes()` makes so many zeros of a number, and bytes of a list of small ones."""
    if not isinstance(value, np.generic) or isinstance(value, np.bytes_ | np.void):
        try:
            return memoryview(value).tobytes()
        except TypeError:
            pass
    raise UnsupportedValueError(f"{value!r} is no bytes: {advice}, or give bytes")


class Values:
    """Between Python's values and bytes.

    kind  bytes, str, or what numpy.dtype takes: "i8", "f8", "V240", [("a", "u4"), ("b", "f4")]
    """

    def __init__(self, kind: Any) -> None:
        self.dtype: np.dtype[Any] | None = None
        if kind is bytes or kind == "bytes":
            self.name = "bytes"
        elif kind is str or kind == "str":
            self.name = "str"
        else:
            try:
                self.dtype = np.dtype(kind).newbyteorder("<")
            except TypeError:
                raise BadArgumentError(f"value={kind!r}: bytes, str, or a numpy dtype ('i8', 'f8', 'V240')") from None
            if self.dtype.hasobject or self.dtype.itemsize == 0:
                raise BadArgumentError(f"value={kind!r}: a dtype of a fixed length without Python objects")
            self.name = str(self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of every value; 0: each has its own."""
        return 0 if self.dtype is None else self.dtype.itemsize

    def pack(self, value: Any) -> Any:
        """As it lies in memory."""
        if self.dtype is not None:
            packed = converted(value, self.dtype)
            if packed.shape != ():
                raise UnsupportedValueError(f"{value!r} is an array: this collection's values are one {self.name} each")
            return packed.tobytes()
        if self.name == "str":
            if not isinstance(value, str):
                raise UnsupportedValueError(f"{value!r} is no str, as this collection's values are")
            return value.encode()
        if isinstance(value, str):
            raise UnsupportedValueError("a str where bytes are wanted: make the collection with value=str, or encode it")
        return raw(value, "make the collection with another value type ('i8', 'f8', a dtype)")

    def pack_array(self, values: Any) -> np.ndarray[Any, Any]:
        """Values of one length side by side, in memory order; without a copy where they are that."""
        assert self.dtype is not None
        if isinstance(values, np.ndarray) or (self.dtype.kind in "iufbc" and not is_mixed(values, np.asarray(values))):
            packed = converted(values, self.dtype)
            if packed.ndim != 1:
                raise UnsupportedValueError(f"values of {packed.ndim} dimensions: this collection's values are one {self.name} each")
            return np.ascontiguousarray(packed)
        return np.frombuffer(b"".join(self.pack(value) for value in values), self.dtype)

    def unpack(self, data: Any) -> Any:
        """As Python has it."""
        if self.dtype is not None:
            if len(data) != self.dtype.itemsize:
                raise UnsupportedValueError(f"a value of {len(data)} bytes is no {self.name}: it was put in as something else")
            value = np.frombuffer(data, self.dtype)[0]
            return value.item() if self.dtype.kind in "iufbc" else value
        return bytes(data).decode() if self.name == "str" else bytes(data)
