# SPDX-License-Identifier: Apache-2.0 OR MIT
"""An iterator's text before there is code: what its names mean, which variables it has, and whether with a sign.

Flow    `Source`: function ─▶ tree, structs, names from outside ─▶ `Kinds`: variables and expressions, constants folded
Order   a variable has one kind in the whole function; a number with a sign and one without do not meet
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Literal

from memlift.errors import BadProgramError
from memlift.traverse._struct import Array, Field, Number, Struct

__all__ = ["BINARY", "Kinds", "Source"]

_Kind = Literal["const", "unsigned", "signed"]
BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip


class Source:
    """A function's text, and what names in it mean."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        code = getattr(function, "__code__", None)
        if code is None:
            raise BadProgramError(f"{function!r} is no Python function")
        try:
            lines, first = inspect.getsourcelines(function)
        except OSError:
            raise BadProgramError(
                f"the source of {function.__name__} cannot be read: define it in a file or a notebook's cell"
            ) from None
        self.file = code.co_filename
        self.lines = lines
        self.first = first
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise BadProgramError(f"{function.__name__} is no plain function: no lambda, no async def")
        self.tree = tree
        closure = inspect.getclosurevars(function)
        self.names = {**closure.builtins, **closure.globals, **closure.nonlocals}

    def error(self, line: int | None, reason: str) -> BadProgramError:
        """What is wrong, and where."""
        if line is None:
            return BadProgramError(f"{self.function.__name__}: {reason}")
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        error = BadProgramError(f"{self.file}:{self.first + line - 1}: {reason}\n    {text}")
        error.line = self.first + line - 1
        return error

    def structs(self) -> tuple[type[Struct], type[Struct]]:
        """The layouts of the two parameters."""
        arguments = self.tree.args
        plain = arguments.posonlyargs + arguments.args
        extra = arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults
        wanted = "write (node: YourNode, scratch: YourScratchpad), both subclasses of Struct"
        if len(plain) != 2 or extra:
            raise self.error(self.tree.lineno, f"an iterator has two parameters: {wanted}")
        try:
            annotations = inspect.get_annotations(self.function, eval_str=True)
        except NameError as error:
            raise self.error(self.tree.lineno, f"{error}: {wanted}") from None
        found = [annotations.get(argument.arg) for argument in plain]
        for argument, kind in zip(plain, found, strict=True):
            if not (isinstance(kind, type) and issubclass(kind, Struct)):
                raise self.error(self.tree.lineno, f"{argument.arg} is a {kind!r}: {wanted}")
        self.node_name, self.scratch_name = (argument.arg for argument in plain)
        return found[0], found[1]  # type: ignore[return-value]

    def value(self, node: ast.expr) -> Any:
        """What a name from outside, or an attribute of one, is; None: not known."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.value(node.value)
            return None if base is None else getattr(base, node.attr, None)
        return None


class Kinds:
    """Which variables there are, whether with a sign, and what expressions are."""

    def __init__(self, source: Source, node: type[Struct], scratch: type[Struct]) -> None:
        self.source = source
        self.structs = {source.node_name: node, source.scratch_name: scratch}
        self.variables: dict[str, _Kind] = {}
        self.negative: set[str] = set()
        for _ in range(8):
            before = dict(self.variables)
            for statement in ast.walk(source.tree):
                self._assigned(statement)
            if before == self.variables:
                break
        for name, kind in self.variables.items():
            if kind == "const":
                self.variables[name] = "signed" if name in self.negative else "unsigned"

    def _assigned(self, statement: ast.AST) -> None:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            self._join(statement.targets[0].id, statement.value, statement)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            self._join(statement.target.id, statement.value, statement)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            self._join(statement.target.id, statement.value, statement)
        elif isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            for argument in getattr(statement.iter, "args", []):
                self._join(statement.target.id, argument, statement)

    def _join(self, name: str, value: ast.expr, where: ast.stmt) -> None:
        if name in self.structs:
            raise self.source.error(where.lineno, f"{name} is a parameter: use another name")
        self.variables.setdefault(name, "const")
        constant = self.constant(value)
        if constant is not None and constant < 0:
            self.negative.add(name)
        self.variables[name] = self.both(self.variables[name], self.kind(value), where)

    def both(self, a: _Kind, b: _Kind, where: ast.AST) -> _Kind:
        """What two numbers together are."""
        if a == b or b == "const":
            return a
        if a == "const":
            return b
        raise self.source.error(
            getattr(where, "lineno", None), "a number with a sign meets one without: say i64(…) or u64(…) of one of them"
        )

    def field(self, node: ast.expr) -> tuple[str, Field] | None:
        """The parameter and the field that an attribute of a parameter names."""
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            return None
        struct = self.structs.get(node.value.id)
        if struct is None:
            return None
        field = struct._fields.get(node.attr)
        if field is None:
            have = ", ".join(struct._fields)
            raise self.source.error(node.lineno, f"{struct.__name__} has no field {node.attr!r}: it has {have}")
        return node.value.id, field

    def constant(self, node: ast.expr) -> int | None:
        """The number that an expression always is, if it is one."""
        if isinstance(node, ast.Constant):
            return int(node.value) if isinstance(node.value, int) else None
        if isinstance(node, ast.Name | ast.Attribute):
            if isinstance(node, ast.Name) and (node.id in self.variables or node.id in self.structs):
                return None
            value = self.source.value(node)
            return int(value) if isinstance(value, int) else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
            value = self.constant(node.operand)
            return None if value is None else -value if isinstance(node.op, ast.USub) else ~value
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            a, b = self.constant(node.left), self.constant(node.right)
            if a is None or b is None:
                return None
            if isinstance(node.op, ast.LShift | ast.RShift) and not 0 <= b < 64:
                raise self.source.error(node.lineno, f"a shift by {b}: 0 to 63")
            try:
                return int(eval(f"a {BINARY[type(node.op)]} b", {"a": a, "b": b}))
            except ZeroDivisionError:
                raise self.source.error(node.lineno, "a division by 0") from None
        return None

    def cast(self, node: ast.expr) -> Number | None:
        """The type of `u32(x)` and its likes."""
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            value = self.source.value(node.func)
            return value if isinstance(value, Number) else None
        return None

    def kind(self, node: ast.expr) -> _Kind:
        """What an expression is."""
        if self.constant(node) is not None:
            return "const"
        cast = self.cast(node)
        if cast is not None:
            return "signed" if cast.signed else "unsigned"
        if isinstance(node, ast.Name):
            return self.variables.get(node.id, "const")
        if isinstance(node, ast.Subscript):
            node = node.value
        found = self.field(node)
        if found is not None:
            type = found[1].type
            number = type.element if isinstance(type, Array) else type
            return "signed" if number.signed else "unsigned"
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.LShift | ast.RShift):
                return self.kind(node.left)
            return self.both(self.kind(node.left), self.kind(node.right), node)
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            return self.kind(node.operand)
        if isinstance(node, ast.IfExp):
            return self.both(self.kind(node.body), self.kind(node.orelse), node)
        return "const"
