# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a collection's values are to Python: bytes, text, or numpy's numbers and records of one length."""

from typing import Any

import numpy as np

from memlift.errors import BadArgument, UnsupportedValue

__all__ = ["Values"]


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
                raise BadArgument(f"value={kind!r}: bytes, str, or a numpy dtype ('i8', 'f8', 'V240')") from None
            if self.dtype.hasobject or self.dtype.itemsize == 0:
                raise BadArgument(f"value={kind!r}: a dtype of a fixed length without Python objects")
            self.name = str(self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of every value; 0: each has its own."""
        return 0 if self.dtype is None else self.dtype.itemsize

    def pack(self, value: Any) -> Any:
        """As it lies in memory."""
        if self.dtype is not None:
            try:
                packed = np.asarray(value, self.dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise UnsupportedValue(f"{value!r} is no {self.name}: {error}") from None
            if packed.shape != ():
                raise UnsupportedValue(f"{value!r} is an array: this collection's values are one {self.name} each")
            return packed.tobytes()
        if self.name == "str":
            if not isinstance(value, str):
                raise UnsupportedValue(f"{value!r} is no str, as this collection's values are")
            return value.encode()
        if isinstance(value, str):
            raise UnsupportedValue("a str where bytes are wanted: make the collection with value=str, or encode it")
        return bytes(value)

    def unpack(self, data: Any) -> Any:
        """As Python has it."""
        if self.dtype is not None:
            if len(data) != self.dtype.itemsize:
                raise UnsupportedValue(f"a value of {len(data)} bytes is no {self.name}: it was put in as something else")
            value = np.frombuffer(data, self.dtype)[0]
            return value.item() if self.dtype.kind in "iufbc" else value
        return bytes(data).decode() if self.name == "str" else bytes(data)
