# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What an ordered map's keys are to Python: a tree has numbers from 0 to 2^64-1, and each kind of key is in the order of its own.

    u8  numbers from 0 to 2^64-1                  as they are
    i8  numbers from -2^63 to 2^63-1              plus 2^63
    f8  floats, -0.0 as 0.0, nan refused          IEEE bits: all inverted of a negative one, else the sign alone
    Sn  byte strings of at most n bytes, n ≤ 8    big-endian, zeros behind; a zero at their end is refused

Order   a < b exactly where their numbers are: a range of keys is a range of numbers
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from memlift.errors import BadArgumentError, UnsupportedValueError
from memlift.traverse._values import is_mixed

__all__ = ["LAST", "Keys"]

LAST = (1 << 64) - 1
_SIGN = 1 << 63
_NAMES = {int: "u8", "int": "u8", "u8": "u8", "uint64": "u8", "i8": "i8", "int64": "i8", float: "f8", "f8": "f8", "float64": "f8"}
_MOST_BYTES = 8
_MOST_STEPS = 1 << 20


class Keys:
    """Between Python's keys and a tree's numbers.

    kind  int or "u8"; "i8"; float or "f8"; "S1" to "S8"
    """

    def __init__(self, kind: Any = "u8") -> None:
        name = kind.str.lstrip("<>=|") if isinstance(kind, np.dtype) else kind
        name = _NAMES.get(name, name) if isinstance(name, str | type) else name
        self.bytes = int(name[1:]) if isinstance(name, str) and name[:1] == "S" and name[1:].isdigit() else 0
        if name not in ("u8", "i8", "f8") and not 1 <= self.bytes <= _MOST_BYTES:
            raise BadArgumentError(
                f"key={kind!r}: keys of an ordered map are 'u8', 'i8', 'f8', or byte strings 'S1' to 'S8'; a HashMap takes bytes and "
                "str of up to 128 bytes"
            )
        self.name: str = name
        self.first: Any = {"u8": 0, "i8": -_SIGN, "f8": -math.inf}.get(name, b"")
        self.last: Any = {"u8": LAST, "i8": _SIGN - 1, "f8": math.inf}.get(name, b"\xff" * self.bytes)

    def pack(self, key: Any) -> int:
        """The number of a key."""
        if self.bytes:
            return self._pack_bytes(key)
        whole = isinstance(key, int | np.integer)
        if isinstance(key, bool | np.bool_) or not (whole or (self.name == "f8" and isinstance(key, float | np.floating))):
            raise UnsupportedValueError(f"{key!r} is no key of this map: {self._wanted()}")
        if self.name == "f8":
            number = float(key)
            if math.isnan(number) or (whole and int(number) != int(key)):
                raise UnsupportedValueError(f"key {key!r}: no float is equal to it")
            return int(_of_floats(np.array([number]))[0])
        number = int(key)
        if not self.first <= number <= self.last:
            raise UnsupportedValueError(f"key {number}: {self._wanted()}")
        return number + _SIGN if self.name == "i8" else number

    def _pack_bytes(self, key: Any) -> int:
        if not isinstance(key, bytes | bytearray | memoryview):
            raise UnsupportedValueError(f"{key!r} is no key of this map: {self._wanted()}")
        data = bytes(key)
        if len(data) > self.bytes or data.endswith(b"\0"):
            raise UnsupportedValueError(f"key {data!r}: {self._wanted()}")
        return int.from_bytes(data.ljust(_MOST_BYTES, b"\0"), "big")

    def _wanted(self) -> str:
        if self.bytes:
            return f"its keys are byte strings of at most {self.bytes} bytes without a zero at their end"
        return {
            "u8": "its keys are numbers from 0 to 2^64-1; make the map with key='i8' or key='f8' for others",
            "i8": "its keys are numbers from -2^63 to 2^63-1",
        }.get(self.name, "its keys are floats")

    def unpack(self, number: int) -> Any:
        """The key of a number."""
        if self.bytes:
            return int(number).to_bytes(_MOST_BYTES, "big").rstrip(b"\0")
        return self.unpack_array(np.array([number], np.uint64))[0].item()

    def pack_array(self, keys: Any) -> np.ndarray[Any, Any]:
        """The numbers of an array of keys, as u64 in memory order; without a copy where they are that."""
        array = np.asarray(keys)
        kind = array.dtype.kind
        listed = None if isinstance(keys, np.ndarray) else list(keys)
        mixed = listed is not None and is_mixed(listed, array)
        if self.bytes or mixed or kind == "O" or (kind == "f" and self.name != "f8") or (kind not in "iuf" and array.size):
            return np.array([self.pack(key) for key in (array.ravel().tolist() if listed is None else listed)], np.uint64)
        if self.name == "f8":
            floats = array.astype(np.float64)
            wrong = np.isnan(floats) if kind == "f" else floats.astype(object) != array.astype(object)
            if wrong.any():
                self.pack(array[wrong][0])
            return _of_floats(floats)
        # Only the other kind of whole numbers has some that do not fit.
        if array.size and kind + self.name == "iu8":
            self.pack(int(array.min()))
        elif array.size and kind + self.name == "ui8":
            self.pack(int(array.max()))
        numbers = np.ascontiguousarray(array).astype("<u8", copy=False)
        return numbers ^ np.uint64(_SIGN) if self.name == "i8" else numbers

    def unpack_array(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The keys of numbers: a view of them where those are the keys."""
        if self.name == "u8":
            return numbers
        if self.name == "i8":
            return (numbers ^ np.uint64(_SIGN)).view(np.int64)
        if self.bytes:
            return numbers.astype(">u8").view(f"S{_MOST_BYTES}").astype(f"S{self.bytes}")
        negative = numbers < np.uint64(_SIGN)
        return np.where(negative, ~numbers, numbers ^ np.uint64(_SIGN)).view(np.float64)

    def steps(self, first: Any, last: Any, width: Any) -> np.ndarray[Any, Any]:
        """Keys that are numbers from `first` to `last`, `width` apart."""
        begin, end = self.unpack(self.pack(first)), self.unpack(self.pack(last))
        whole = isinstance(width, int | np.integer) and not isinstance(width, bool)
        if not (whole or (self.name == "f8" and isinstance(width, float | np.floating))) or not width > 0 or math.isinf(width):
            raise BadArgumentError(f"width={width!r}: how far keys of this map are apart in a part, more than 0")
        if begin > end:
            raise BadArgumentError(f"a range from {first} to {last}: there is nothing in it")
        if self.name == "f8" and not (math.isfinite(begin) and math.isfinite(end)):
            raise BadArgumentError("a range of parts of equal width has two finite ends")
        count = int((end - begin) // (float(width) if self.name == "f8" else int(width))) + 1
        if count > _MOST_STEPS:
            raise BadArgumentError(f"{count} parts: {_MOST_STEPS} at most, take a larger width")
        if self.name == "f8":
            starts = begin + np.arange(count) * float(width)
            return starts[starts <= end]
        return np.array([begin + index * int(width) for index in range(count)], np.uint64 if self.name == "u8" else np.int64)

    @staticmethod
    def of_array(keys: np.ndarray[Any, Any]) -> "Keys":
        """What these keys are, by their type: floats, whole numbers of which some are negative, or others."""
        if keys.dtype.kind == "f":
            return Keys("f8")
        if keys.dtype.kind == "i" and keys.size and int(keys.min()) < 0:
            return Keys("i8")
        return Keys()

    @staticmethod
    def of_pairs(keys: Iterable[Any]) -> "Keys":
        """As `of_array`, of objects."""
        kind = "u8"
        for key in keys:
            if isinstance(key, float | np.floating):
                return Keys("f8")
            if isinstance(key, int | np.integer) and key < 0:
                kind = "i8"
        return Keys(kind)


def _of_floats(floats: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers of floats; -0.0 is 0.0."""
    bits = (floats + 0.0).astype("<f8", copy=False).view("<u8")
    return np.where(bits >> np.uint64(63) != 0, ~bits, bits | np.uint64(_SIGN))
