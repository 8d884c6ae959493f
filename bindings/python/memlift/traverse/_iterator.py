# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A restricted Python function as a walk's program: `@iterator`.

    @iterator
    def find(node: Node, scratch: Find):
        if node.key == scratch.key:
            scratch.value = node.value
            return done()
        if node.next == 0:
            return missing()
        return go_on(node.next)

Flow    source ─▶ syntax tree ─▶ what each variable is (`_source`) ─▶ BPF bytecode (`_compile`) ─▶ the verifier
Allowed numbers of 64 bits, which wrap; + - * // % & | ^ << >>, comparisons, and, or, not; variables; fields of the two structs,
        node's to be read only; if, while, for … in range(…), break, continue; constants from outside; return of a verdict
Order   a function that is not of this subset is refused with its line and the reason; one that is can still be refused by the
        verifier, whose reason then comes with the line of the instruction
Not here safety: nothing rests on this file
"""

from collections.abc import Callable
from typing import Any

from memlift import _native
from memlift.errors import BadProgramError
from memlift.traverse._compile import Writer
from memlift.traverse._source import Source

__all__ = ["Iterator", "iterator"]


class Iterator:
    """A walk's program, made from a Python function. Its clients' `walk` takes it, and fields of its scratchpad by name."""

    def __init__(self, function: Callable[..., Any], name: str | None, scratch_bytes: int) -> None:
        self.function = function
        self.name = name or function.__name__
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function
        source = Source(function)
        self.node, self.scratch = source.structs()
        if self.scratch.size() > scratch_bytes:
            scratch_bytes = -(-self.scratch.size() // 8) * 8
        writer = Writer(source, self.node, self.scratch)
        code = writer.write()
        try:
            self.program = _native.WalkProgram(self.name, code.bytes(), scratch_bytes)
        except BadProgramError as error:
            line = code.line_of(error.at) if error.at is not None else None
            raise source.error(line, writer.named(str(error))) from None

    @property
    def bytecode(self) -> bytes:
        """Its instructions."""
        return self.program.bytecode

    def listing(self) -> str:
        """Its instructions as text."""
        return self.program.listing()

    def pack(self, **fields: Any) -> bytes:
        """A scratchpad to start with."""
        return self.scratch.pack(**fields)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise BadProgramError(f"{self.name} runs at the nodes: client.walk({self.name}, address, field=value)")

    def __repr__(self) -> str:
        first, size = self.program.window
        return f"<memlift.traverse.Iterator {self.name}: {len(self.bytecode) // 8} instructions, window {first}..{first + size}>"


def iterator(
    function: Callable[..., Any] | None = None, *, name: str | None = None, scratch_bytes: int = 1024
) -> Any:
    """Makes a walk's program of a function (node: a Struct, scratch: a Struct) that returns a verdict.

    scratch_bytes  of the scratchpad, if the struct needs fewer (at most 4096)

    Raises BadProgramError, which names the line and the reason.
    """
    if function is None:
        return lambda function: Iterator(function, name, scratch_bytes)
    return Iterator(function, name, scratch_bytes)
