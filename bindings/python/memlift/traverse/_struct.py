# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What lies where in a node or a scratchpad: fields of whole numbers, by name.

    class Node(Struct):
        next: u64
        key: u64
        values: u32[6]         # node.values[i]
        before: u64 = at(-8)   # not behind the field above, but there

Layout  little endian; a field without `at` lies behind the one above it, at a multiple of its size, as a C compiler puts it
"""

import inspect
import struct as _pack
from types import SimpleNamespace
from typing import Any

from memlift.errors import BadProgramError

__all__ = ["Array", "Number", "Struct", "at", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]


class Number:
    """A whole number of 1, 2, 4 or 8 bytes. Inside an iterator, `u32(x)` keeps the low bits of x."""

    __slots__ = ("bytes", "signed")

    def __init__(self, bytes: int, signed: bool) -> None:
        self.bytes = bytes
        self.signed = signed

    def __getitem__(self, count: int) -> "Array":
        if not isinstance(count, int) or count < 1:
            raise BadProgramError(f"{self!r}[{count!r}]: an array has one element at least")
        return Array(self, count)

    def __call__(self, value: int) -> int:
        value &= (1 << 8 * self.bytes) - 1
        return value - (1 << 8 * self.bytes) if self.signed and value >> (8 * self.bytes - 1) else value

    def __repr__(self) -> str:
        return f"{'i' if self.signed else 'u'}{8 * self.bytes}"

    @property
    def _letter(self) -> str:
        letter = {1: "b", 2: "h", 4: "i", 8: "q"}[self.bytes]
        return letter if self.signed else letter.upper()


class Array:
    """Several numbers side by side."""

    __slots__ = ("count", "element")

    def __init__(self, element: Number, count: int) -> None:
        self.element = element
        self.count = count

    @property
    def bytes(self) -> int:
        return self.element.bytes * self.count

    def __repr__(self) -> str:
        return f"{self.element!r}[{self.count}]"


u8: Number = Number(1, False)
u16: Number = Number(2, False)
u32: Number = Number(4, False)
u64: Number = Number(8, False)
i8: Number = Number(1, True)
i16: Number = Number(2, True)
i32: Number = Number(4, True)
i64: Number = Number(8, True)


class at:
    """Says where a field is: so many bytes from the address that a walk is at (or from the scratchpad's start)."""

    __slots__ = ("offset",)

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Field:
    """A field, and where it is."""

    __slots__ = ("name", "offset", "type")

    def __init__(self, name: str, offset: int, type: Number | Array) -> None:
        self.name = name
        self.offset = offset
        self.type = type

    @property
    def bytes(self) -> int:
        return self.type.bytes

    def _format(self) -> str:
        if isinstance(self.type, Array):
            return f"<{self.type.count}{self.type.element._letter}"
        return f"<{self.type._letter}"


class Struct:
    """Base class of layouts. Its subclasses have no instances: `pack` gives bytes, `unpack` a namespace."""

    _fields: dict[str, Field] = {}
    _bytes = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        try:
            annotations = inspect.get_annotations(cls, eval_str=True)
        except NameError as error:
            raise BadProgramError(
                f"{cls.__name__}: {error}: write the types without quotes, and not under "
                "`from __future__ import annotations` inside a function"
            ) from None
        fields = dict(cls._fields)
        end = cls._bytes
        for name, type in annotations.items():
            if not isinstance(type, Number | Array):
                raise BadProgramError(f"{cls.__name__}.{name} is a {type!r}: use u8 to u64, i8 to i64, or u64[count]")
            size = type.element.bytes if isinstance(type, Array) else type.bytes
            place = cls.__dict__.get(name)
            if isinstance(place, at):
                offset = place.offset
            elif place is None:
                offset = -(-max(end, 0) // size) * size
            else:
                raise BadProgramError(f"{cls.__name__}.{name} = {place!r}: only at(offset) can stand there")
            fields[name] = Field(name, offset, type)
            end = offset + type.bytes
        cls._fields = fields
        cls._bytes = max([field.offset + field.bytes for field in fields.values()], default=0)

    @classmethod
    def offset(cls, name: str) -> int:
        """Where a field is."""
        return cls._fields[name].offset

    @classmethod
    def size(cls) -> int:
        """Bytes up to the end of the last field."""
        return cls._bytes

    @classmethod
    def pack(cls, **values: Any) -> bytes:
        """Bytes with these values, and zeros elsewhere."""
        packed = bytearray(cls._bytes)
        for name, value in values.items():
            field = cls._fields.get(name)
            if field is None:
                raise BadProgramError(f"{cls.__name__} has no field {name!r}: it has {', '.join(cls._fields)}")
            many = isinstance(field.type, Array)
            numbers = [int(number) for number in value] if many else [int(value)]
            if isinstance(field.type, Array):
                if len(numbers) > field.type.count:
                    raise BadProgramError(f"{cls.__name__}.{name}: {len(numbers)} numbers, {field.type.count} fit")
                numbers += [0] * (field.type.count - len(numbers))
            if field.offset < 0:
                raise BadProgramError(f"{cls.__name__}.{name} lies before the start")
            try:
                _pack.pack_into(field._format(), packed, field.offset, *numbers)
            except _pack.error as error:
                raise BadProgramError(f"{cls.__name__}.{name} = {value!r}: {error}") from None
        return bytes(packed)

    @classmethod
    def unpack(cls, data: Any) -> SimpleNamespace:
        """The fields of bytes; what is beyond their end is 0."""
        whole = bytes(data).ljust(cls._bytes, b"\0")
        values = SimpleNamespace()
        for field in cls._fields.values():
            if field.offset >= 0:
                numbers = _pack.unpack_from(field._format(), whole, field.offset)
                setattr(values, field.name, list(numbers) if isinstance(field.type, Array) else numbers[0])
        return values
