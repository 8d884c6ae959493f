# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes BPF instructions, and remembers which line of the source each comes from.

Flow    `load`, `store`, `alu`, `branch`, `jump`, `exit` ─▶ instructions with labels ─▶ `bytes`
Source  RFC 9669; the encoding is that of docs/formats/walk.md. What a program may do is the verifier's business
"""

import struct as _pack

from memlift.errors import BadProgramError

__all__ = ["COMPARE", "NODE", "NOT", "OPERATION", "SCRATCH", "SIGNED", "STACK", "WALK", "Bytecode", "fits"]

NODE, SCRATCH, WALK, STACK = 1, 2, 3, 10

OPERATION = {
    "+": 0x00, "-": 0x10, "*": 0x20, "//": 0x30, "|": 0x40, "&": 0x50, "<<": 0x60, ">>": 0x70, "%": 0x90, "^": 0xA0,
    "mov": 0xB0, ">>s": 0xC0,
}  # fmt: skip
COMPARE = {
    "==": 0x10, ">": 0x20, ">=": 0x30, "&": 0x40, "!=": 0x50, "s>": 0x60, "s>=": 0x70, "<": 0xA0, "<=": 0xB0,
    "s<": 0xC0, "s<=": 0xD0,
}  # fmt: skip
NOT = {"==": "!=", "!=": "==", ">": "<=", ">=": "<", "<": ">=", "<=": ">"}
SIGNED = {">": "s>", ">=": "s>=", "<": "s<", "<=": "s<=", "==": "==", "!=": "!="}
_SIZE = {4: 0x00, 2: 0x08, 1: 0x10, 8: 0x18}


def fits(value: int) -> bool:
    """Whether an instruction's immediate can be the value."""
    return -(1 << 31) <= value < 1 << 31


class Bytecode:
    """Instructions, as they come."""

    def __init__(self) -> None:
        self.line = 0
        self._code: list[bytes] = []
        self._lines: list[int] = []
        self._jumps: list[tuple[int, int]] = []
        self._labels: list[int | None] = []

    def _put(self, opcode: int, target: int, source: int, offset: int = 0, immediate: int = 0) -> None:
        self._code.append(_pack.pack("<BBhi", opcode, target | source << 4, offset, immediate))
        self._lines.append(self.line)

    def constant(self, target: int, value: int) -> None:
        """target = value, of 64 bits."""
        value &= (1 << 64) - 1
        signed = value - (1 << 64) if value >> 63 else value
        if fits(signed):
            self._put(0x07 | OPERATION["mov"], target, 0, 0, signed)
            return
        low, high = _pack.unpack("<ii", _pack.pack("<Q", value))
        self._put(0x18, target, 0, 0, low)
        self._put(0x00, 0, 0, 0, high)

    def alu(self, operation: str, target: int, source: int) -> None:
        """target = target operation source, both registers."""
        self._put(0x07 | 0x08 | OPERATION[operation], target, source)

    def alu_constant(self, operation: str, target: int, value: int) -> None:
        """The same with a constant that fits."""
        self._put(0x07 | OPERATION[operation], target, 0, 0, value)

    def negate(self, target: int) -> None:
        """target = -target."""
        self._put(0x87, target, 0)

    def load(self, target: int, base: int, offset: int, size: int, signed: bool = False) -> None:
        """target = *(base + offset)."""
        mode = 0x80 if signed and size < 8 else 0x60
        self._put(0x01 | mode | _SIZE[size], target, base, self._offset(offset))

    def store(self, base: int, offset: int, size: int, source: int) -> None:
        """*(base + offset) = source."""
        self._put(0x03 | 0x60 | _SIZE[size], base, source, self._offset(offset))

    def store_constant(self, base: int, offset: int, size: int, value: int) -> None:
        """*(base + offset) = value, which fits."""
        self._put(0x02 | 0x60 | _SIZE[size], base, 0, self._offset(offset), value)

    def _offset(self, offset: int) -> int:
        if not -(1 << 15) <= offset < 1 << 15:
            raise BadProgramError(f"line {self.line}: an offset of {offset} bytes: no window or scratchpad is that large")
        return offset

    def label(self) -> int:
        """A place to jump to, bound later."""
        self._labels.append(None)
        return len(self._labels) - 1

    def bind(self, label: int) -> None:
        """The label is here."""
        self._labels[label] = len(self._code)

    def jump(self, label: int) -> None:
        """Goes on at a label."""
        self._jumps.append((len(self._code), label))
        self._put(0x05, 0, 0)

    def branch(self, comparison: str, left: int, right: int, label: int) -> None:
        """Goes on at a label if two registers compare so."""
        self._jumps.append((len(self._code), label))
        self._put(0x05 | 0x08 | COMPARE[comparison], left, right)

    def branch_constant(self, comparison: str, left: int, value: int, label: int) -> None:
        """The same with a constant that fits."""
        self._jumps.append((len(self._code), label))
        self._put(0x05 | COMPARE[comparison], left, 0, 0, value)

    def exit(self, verdict: int) -> None:
        """Returns a verdict."""
        self.constant(0, verdict)
        self._put(0x95, 0, 0)

    def line_of(self, place: int) -> int | None:
        """The line that an instruction comes from."""
        return self._lines[place] if 0 <= place < len(self._lines) else None

    def bytes(self) -> bytes:
        """All of it."""
        code = list(self._code)
        for index, label in self._jumps:
            to = self._labels[label]
            assert to is not None, "every label is bound"
            far = to - index - 1
            if not -(1 << 15) <= far < 1 << 15:
                raise BadProgramError("the function is too long: a jump over more than 32767 instructions")
            code[index] = code[index][:2] + _pack.pack("<h", far) + code[index][4:]
        return b"".join(code)
