# SPDX-License-Identifier: Apache-2.0 OR MIT
"""An iterator's tree to bytecode.

Flow    statements, each saying whether what follows is reached ─▶ expressions into registers ─▶ branches to labels
Layout  r1 node, r2 scratchpad, r3 walk; r6 to r9 the first four variables, the others on the stack; r0 and r4 values on the way,
        r5 what comes back from around the stack
Order   an index that is not known to be inside is compared first; outside, the walk ends
"""

import ast
import operator
import re

from memlift.errors import BadProgramError
from memlift.traverse._bytecode import NODE, NOT, SCRATCH, SIGNED, STACK, WALK, Bytecode, fits
from memlift.traverse._source import BINARY, Kinds, Source
from memlift.traverse._struct import Array, Field, Number, Struct
from memlift.traverse._verdict import Verdict, compare_swap, emit, fetch_add, go_on

__all__ = ["Writer"]

_GUARD = 0x83
_FREE = (0, 4)  # for values on the way; 5 is for what has to go around the stack
_AROUND = 5
_VARIABLES = (6, 7, 8, 9)
_HOLDS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class Writer:
    """Turns the tree into instructions."""

    def __init__(self, source: Source, node: type[Struct], scratch: type[Struct]) -> None:
        self.source = source
        self.kinds = Kinds(source, node, scratch)
        self.code = Bytecode()
        self.places: dict[str, tuple[str, int]] = {}
        self.depth = 0
        self.bounds: dict[str, tuple[int, int]] = {}
        self.counting: set[str] = set()
        self.loops: list[tuple[int, int]] = []
        self.guard: int | None = None
        for index, name in enumerate(self.kinds.variables):
            if index < len(_VARIABLES):
                self.places[name] = ("register", _VARIABLES[index])
            else:
                self.places[name] = ("stack", self._slot())

    def named(self, text: str) -> str:
        """A message of the verifier with the names of variables beside those of registers."""
        for name, (where, number) in self.places.items():
            if where == "register":
                text = re.sub(rf"\br{number}\b", f"r{number} (`{name}`)", text)
        return text

    def error(self, where: ast.AST, reason: str) -> BadProgramError:
        return self.source.error(getattr(where, "lineno", None), reason)

    def _slot(self) -> int:
        self.depth += 8
        if self.depth > 512:
            raise BadProgramError(f"{self.source.function.__name__}: more than 64 variables and values on the way")
        return -self.depth

    def write(self) -> Bytecode:
        """All of it."""
        body = self.source.tree.body
        if self._block(body):
            raise self.error(body[-1], "a way through the function ends here without a verdict: return one")
        if self.guard is not None:
            self.code.bind(self.guard)
            self.code.exit(_GUARD)
        return self.code

    # Statements; each says whether what follows can be reached.

    def _block(self, statements: list[ast.stmt]) -> bool:
        reached = True
        for statement in statements:
            if not reached:
                raise self.error(statement, "this is never reached")
            self.code.line = statement.lineno
            reached = self._statement(statement)
        return reached

    def _statement(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Return():
                self._return(statement)
                return False
            case ast.Assign(targets=[target]):
                self._assign(target, statement.value)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign(statement.target, value)
            case ast.AugAssign():
                read = ast.copy_location(_reading(statement.target), statement)
                together = ast.BinOp(left=read, op=statement.op, right=statement.value)
                self._assign(statement.target, ast.copy_location(together, statement))
            case ast.If():
                return self._if(statement)
            case ast.While():
                return self._while(statement)
            case ast.For():
                self._for(statement)
            case ast.Break() | ast.Continue():
                head, behind = self.loops[-1]
                self.code.jump(behind if isinstance(statement, ast.Break) else head)
                return False
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call() as call) if isinstance(self.source.value(call.func), Verdict):
                raise self.error(statement, f"write `return {ast.unparse(call)}`")
            case _:
                what = type(statement).__name__.lower()
                raise self.error(statement, f"an iterator has no `{what}`: see memlift.traverse.iterator for what it has")
        return True

    def _return(self, statement: ast.Return) -> None:
        call = statement.value
        verdict = self.source.value(call.func) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or not isinstance(verdict, Verdict):
            raise self.error(
                statement,
                "return a verdict: done(), missing(), retry(), go_on(address), emit(field, next), "
                "compare_swap(address, expected, new) or fetch_add(address, addend)",
            )
        given = dict(zip(verdict.parameters, call.args, strict=False))
        given.update({keyword.arg or "**": keyword.value for keyword in call.keywords})
        optional = {"bytes"} if verdict is emit else set()
        missing_ones = [name for name in verdict.parameters if name not in given and name not in optional]
        if len(call.args) > len(verdict.parameters) or missing_ones or not set(given) <= set(verdict.parameters):
            raise self.error(statement, f"the verdict is {verdict!r}")
        if verdict is go_on:
            self._tell(0, given["address"])
            self.code.exit(0)
        elif verdict is emit:
            self._emit(given, statement)
        elif verdict is compare_swap:
            self.code.store_constant(WALK, 8, 8, 1)
            for offset, name in ((16, "address"), (24, "expected"), (32, "new")):
                self._tell(offset, given[name])
            self.code.exit(3)
        elif verdict is fetch_add:
            self.code.store_constant(WALK, 8, 8, 2)
            for offset, name in ((16, "address"), (24, "addend")):
                self._tell(offset, given[name])
            self.code.exit(3)
        else:
            self.code.exit({"done": 1, "retry": 4, "missing": 5}[verdict.name])

    def _emit(self, given: dict[str, ast.expr], statement: ast.stmt) -> None:
        found = self.kinds.field(given["what"])
        if found is not None:
            name, field = found
            if name != self.source.scratch_name:
                raise self.error(statement, "only the scratchpad can be emitted: copy the field there first")
            self.code.store_constant(WALK, 40, 4, field.offset)
            if "bytes" in given:
                self._tell(44, given["bytes"], 4)
            else:
                self.code.store_constant(WALK, 44, 4, field.bytes)
        elif "bytes" in given:
            self._tell(40, given["what"], 4)
            self._tell(44, given["bytes"], 4)
        else:
            raise self.error(statement, "emit(scratch.field, next), or emit(offset, next, bytes)")
        self._tell(0, given["next"])
        self.code.exit(2)

    def _tell(self, offset: int, value: ast.expr, size: int = 8) -> None:
        self._put(WALK, offset, size, value)

    def _put(self, base: int, offset: int, size: int, value: ast.expr) -> None:
        constant = self.kinds.constant(value)
        if constant is not None and fits(_wrapped(constant)):
            self.code.store_constant(base, offset, size, _wrapped(constant))
            return
        self.code.store(base, offset, size, self._any(value, _FREE))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            if target.id in self.counting:
                raise self.error(target, f"{target.id} counts the loop: change another variable")
            self.bounds.pop(target.id, None)
            self._set(target.id, value)
            return
        place = target.value if isinstance(target, ast.Subscript) else target
        found = self.kinds.field(place)
        if found is None:
            raise self.error(target, f"`{ast.unparse(target)}` cannot be assigned: a variable or a field of the scratchpad can")
        name, field = found
        if name != self.source.scratch_name:
            raise self.error(
                target, f"{name} is read only: to change it return compare_swap(address, …) or fetch_add(address, …)"
            )
        if isinstance(target, ast.Subscript):
            element, index = self._element(target, field)
            if index is not None:
                self._put(SCRATCH, field.offset + index * element.bytes, element.bytes, value)
                return
            held = self._slot()
            self.code.store(STACK, held, 8, self._any(value, _FREE))
            self._address(target, field, 0, (4,))
            self.code.load(4, STACK, held, 8)
            self.code.store(0, field.offset, element.bytes, 4)
            self.depth -= 8
            return
        if isinstance(field.type, Array):
            raise self.error(target, f"{ast.unparse(target)} has {field.type.count} numbers: assign to one of them")
        self._put(SCRATCH, field.offset, field.bytes, value)

    def _set(self, name: str, value: ast.expr) -> None:
        where, number = self.places[name]
        if where == "stack":
            self._put(STACK, number, 8, value)
            return
        reads = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        if name not in reads:
            self._into(value, number, _FREE)
            return
        first = isinstance(value, ast.BinOp) and isinstance(value.left, ast.Name) and value.left.id == name
        if first and isinstance(value, ast.BinOp):
            later = {node.id for node in ast.walk(value.right) if isinstance(node, ast.Name)}
            if name not in later:
                self._into(value, number, _FREE)
                return
        self._into(value, 0, _FREE[1:])
        self.code.alu("mov", number, 0)

    def _if(self, statement: ast.If) -> bool:
        then, other, behind = self.code.label(), self.code.label(), self.code.label()
        self._branch(statement.test, then, other, _FREE)
        self.code.bind(then)
        before = dict(self.bounds)
        reached = self._block(statement.body)
        if statement.orelse and reached:
            self.code.jump(behind)
        self.code.bind(other)
        after, self.bounds = self.bounds, before
        reached_too = self._block(statement.orelse) if statement.orelse else True
        self.bounds = {name: bound for name, bound in self.bounds.items() if after.get(name) == bound}
        self.code.bind(behind)
        return reached or reached_too

    def _while(self, statement: ast.While) -> bool:
        if statement.orelse:
            raise self.error(statement, "an iterator has no `else` of a loop")
        self._forget(statement.body)
        head, body, behind = self.code.label(), self.code.label(), self.code.label()
        self.code.bind(head)
        endless = self.kinds.constant(statement.test)
        if not endless:
            self._branch(statement.test, body, behind, _FREE)
        self.code.bind(body)
        self.loops.append((head, behind))
        if self._block(statement.body):
            self.code.jump(head)
        self.loops.pop()
        self.code.bind(behind)
        leaves = any(isinstance(node, ast.Break) for node in _own(statement.body))
        return not endless or leaves

    def _for(self, statement: ast.For) -> None:
        call = statement.iter
        plain = isinstance(call, ast.Call) and self.source.value(call.func) is range and not call.keywords
        if not plain or not isinstance(statement.target, ast.Name) or statement.orelse:
            raise self.error(statement, "a loop is `for name in range(…)`, or `while`; without `else`")
        assert isinstance(call, ast.Call)
        if not 1 <= len(call.args) <= 3:
            raise self.error(statement, "range has one to three numbers")
        zero = ast.copy_location(ast.Constant(0), statement)
        start, stop = (zero, call.args[0]) if len(call.args) == 1 else (call.args[0], call.args[1])
        step = self.kinds.constant(call.args[2]) if len(call.args) == 3 else 1
        if step is None or step < 1:
            raise self.error(statement, "the step of a range is a constant greater than 0")
        end = self.kinds.constant(stop)
        if end is None and not (isinstance(stop, ast.Name) and stop.id in self.places):
            raise self.error(statement, "the end of a range is a constant or a variable: assign it to one first")
        name = statement.target.id
        if name in self.counting:
            raise self.error(statement, f"{name} counts another loop already")
        self._forget([statement])
        self._set(name, start)
        first = self.kinds.constant(start)
        if first is not None and end is not None and first >= 0:
            self.bounds[name] = (first, end - 1)
        head, step_at, body, behind = (self.code.label() for _ in range(4))
        self.code.bind(head)
        variable = ast.copy_location(ast.Name(name, ast.Load()), statement)
        test = ast.Compare(left=variable, ops=[ast.Lt()], comparators=[stop])
        self._branch(ast.copy_location(test, statement), body, behind, _FREE)
        self.code.bind(body)
        self.loops.append((step_at, behind))
        self.counting.add(name)
        self._block(statement.body)
        self.counting.discard(name)
        self.loops.pop()
        self.bounds.pop(name, None)
        self.code.bind(step_at)
        self.code.line = statement.lineno
        more = ast.BinOp(left=variable, op=ast.Add(), right=ast.copy_location(ast.Constant(step), statement))
        self._set(name, ast.copy_location(more, statement))
        self.code.jump(head)
        self.code.bind(behind)

    def _forget(self, statements: list[ast.stmt]) -> None:
        """What is assigned in a loop is not known at its head."""
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    self.bounds.pop(node.id, None)

    # Expressions. `free` are registers that may be overwritten.

    def _any(self, value: ast.expr, free: tuple[int, ...]) -> int:
        """The value in a register: its variable's, or the first free one."""
        if isinstance(value, ast.Name) and self.places.get(value.id, ("", 0))[0] == "register":
            return self.places[value.id][1]
        self._into(value, free[0], free[1:])
        return free[0]

    def _into(self, value: ast.expr, target: int, free: tuple[int, ...]) -> None:
        """target = value; `target` is not read before it is written."""
        constant = self.kinds.constant(value)
        if constant is not None:
            if not -(1 << 63) <= constant < 1 << 64:
                raise self.error(value, f"{constant} is no number of 64 bits")
            self.code.constant(target, constant)
            return
        match value:
            case ast.Name():
                self._variable(value, target)
            case ast.Attribute():
                self._read(value, target)
            case ast.Subscript():
                self._read_element(value, target, free)
            case ast.BinOp():
                self._binary(value, target, free)
            case ast.UnaryOp(op=ast.USub()):
                self._into(value.operand, target, free)
                self.code.negate(target)
            case ast.UnaryOp(op=ast.Invert()):
                self._into(value.operand, target, free)
                self.code.alu_constant("^", target, -1)
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                self._truth(value, target, free)
            case ast.IfExp():
                then, other, behind = self.code.label(), self.code.label(), self.code.label()
                self._branch(value.test, then, other, (target, *free))
                self.code.bind(then)
                self._into(value.body, target, free)
                self.code.jump(behind)
                self.code.bind(other)
                self._into(value.orelse, target, free)
                self.code.bind(behind)
            case ast.Call():
                self._cast(value, target, free)
            case _:
                raise self.error(value, f"`{ast.unparse(value)}` is nothing that an iterator can compute")

    def _variable(self, value: ast.Name, target: int) -> None:
        if value.id not in self.places:
            known = self.source.value(value)
            if value.id in self.kinds.structs:
                reason = f"{value.id} is read field by field"
            elif known is None:
                reason = f"{value.id} is not known: it is neither assigned here nor a number outside"
            else:
                reason = f"{value.id} is a {type(known).__name__}: only whole numbers can come from outside"
            raise self.error(value, reason)
        where, number = self.places[value.id]
        if where == "stack":
            self.code.load(target, STACK, number, 8)
        elif number != target:
            self.code.alu("mov", target, number)

    def _base(self, name: str) -> int:
        return NODE if name == self.source.node_name else SCRATCH

    def _read(self, value: ast.Attribute, target: int) -> None:
        found = self.kinds.field(value)
        if found is None:
            raise self.error(value, f"`{ast.unparse(value)}` is neither a field of a parameter nor a number from outside")
        name, field = found
        if isinstance(field.type, Array):
            raise self.error(value, f"{ast.unparse(value)} has {field.type.count} numbers: say which, [index]")
        self.code.load(target, self._base(name), field.offset, field.type.bytes, field.type.signed)

    def _element(self, value: ast.Subscript, field: Field) -> tuple[Number, int | None]:
        """The type of an array's element, and its index if that is a constant."""
        if not isinstance(field.type, Array):
            raise self.error(value, f"{ast.unparse(value.value)} is one number, not an array")
        index = self.kinds.constant(value.slice)
        if index is not None and not 0 <= index < field.type.count:
            raise self.error(value, f"index {index}: {ast.unparse(value.value)} has {field.type.count} numbers, from 0 on")
        return field.type.element, index

    def _address(self, value: ast.Subscript, field: Field, target: int, free: tuple[int, ...]) -> None:
        """target = where the element is, less the field's offset. An index outside ends the walk."""
        element, _ = self._element(value, field)
        assert isinstance(field.type, Array)
        found = self.kinds.field(value.value)
        assert found is not None
        self._into(value.slice, target, free)
        inside = isinstance(value.slice, ast.Name) and self.bounds.get(value.slice.id, (0, 1 << 64))[1] < field.type.count
        if not inside:
            if self.guard is None:
                self.guard = self.code.label()
            self.code.branch_constant(">=", target, field.type.count, self.guard)
        if element.bytes > 1:
            self.code.alu_constant("<<", target, element.bytes.bit_length() - 1)
        self.code.alu("+", target, self._base(found[0]))

    def _read_element(self, value: ast.Subscript, target: int, free: tuple[int, ...]) -> None:
        found = self.kinds.field(value.value)
        if found is None:
            raise self.error(value, f"`{ast.unparse(value.value)}` is no array of a parameter")
        name, field = found
        element, index = self._element(value, field)
        if index is not None:
            offset = field.offset + index * element.bytes
            self.code.load(target, self._base(name), offset, element.bytes, element.signed)
            return
        self._address(value, field, target, free)
        self.code.load(target, target, field.offset, element.bytes, element.signed)

    def _right(self, left: ast.expr | None, right: ast.expr, target: int, free: tuple[int, ...]) -> int | None:
        """The right operand in a register, with the left one in `target`; None: it is a constant that fits."""
        constant = self.kinds.constant(right)
        if constant is not None and fits(_wrapped(constant)):
            if left is not None:
                self._into(left, target, free)
            return None
        if isinstance(right, ast.Name) and self.places.get(right.id, ("", 0))[0] == "register":
            if left is not None:
                self._into(left, target, free)
            return self.places[right.id][1]
        if free:
            if left is not None:
                self._into(left, target, free)
            self._into(right, free[0], free[1:])
            return free[0]
        # No register is free: the left operand goes around the stack.
        held = self._slot()
        if left is not None:
            self._into(left, target, free)
        self.code.store(STACK, held, 8, target)
        self._into(right, target, free)
        self.code.alu("mov", _AROUND, target)
        self.code.load(target, STACK, held, 8)
        self.depth -= 8
        return _AROUND

    def _binary(self, value: ast.BinOp, target: int, free: tuple[int, ...]) -> None:
        operation = BINARY.get(type(value.op))
        if operation is None:
            raise self.error(value, "an iterator computes with + - * // % & | ^ << >>")
        signed = self.kinds.kind(value) == "signed"
        if signed and operation in ("//", "%"):
            raise self.error(value, f"`{operation}` of numbers with a sign rounds differently in Python and here: use u64(…)")
        if operation == ">>" and signed:
            operation = ">>s"
        constant = self.kinds.constant(value.right)
        if operation in ("<<", ">>", ">>s") and constant is not None and not 0 <= constant < 64:
            raise self.error(value, f"a shift by {constant}: 0 to 63")
        if operation in ("//", "%") and constant == 0:
            raise self.error(value, "a division by 0")
        right = self._right(value.left, value.right, target, free)
        if right is None:
            assert constant is not None
            self.code.alu_constant(operation, target, _wrapped(constant))
        else:
            self.code.alu(operation, target, right)

    def _cast(self, value: ast.Call, target: int, free: tuple[int, ...]) -> None:
        number = self.kinds.cast(value)
        if number is None:
            raise self.error(
                value, f"`{ast.unparse(value)}`: an iterator calls nothing but u8(…) to i64(…), range, and returns verdicts"
            )
        self._into(value.args[0], target, free)
        if number.bytes < 8:
            shift = 64 - 8 * number.bytes
            self.code.alu_constant("<<", target, shift)
            self.code.alu_constant(">>s" if number.signed else ">>", target, shift)

    def _truth(self, value: ast.expr, target: int, free: tuple[int, ...]) -> None:
        yes, no, behind = self.code.label(), self.code.label(), self.code.label()
        self._branch(value, yes, no, (target, *free))
        self.code.bind(yes)
        self.code.constant(target, 1)
        self.code.jump(behind)
        self.code.bind(no)
        self.code.constant(target, 0)
        self.code.bind(behind)

    def _branch(self, test: ast.expr, yes: int, no: int, free: tuple[int, ...]) -> None:
        """Goes to `yes` or `no`; `yes` is bound next."""
        match test:
            case ast.BoolOp(op=ast.And()):
                for part in test.values[:-1]:
                    more = self.code.label()
                    self._branch(part, more, no, free)
                    self.code.bind(more)
                self._branch(test.values[-1], yes, no, free)
            case ast.BoolOp():
                for part in test.values[:-1]:
                    less = self.code.label()
                    on = self.code.label()
                    self._branch(part, on, less, free)
                    self.code.bind(on)
                    self.code.jump(yes)
                    self.code.bind(less)
                self._branch(test.values[-1], yes, no, free)
            case ast.UnaryOp(op=ast.Not()):
                inside = self.code.label()
                self._branch(test.operand, inside, yes, free)
                self.code.bind(inside)
                self.code.jump(no)
            case ast.Compare(ops=[op], comparators=[right]):
                self._compare(test, test.left, op, right, no, free)
            case ast.Compare():
                pairs = zip([test.left, *test.comparators], test.ops, test.comparators, strict=False)
                for left, op, right in pairs:
                    if right is not test.comparators[-1] and not isinstance(right, ast.Name | ast.Constant):
                        raise self.error(test, f"`{ast.unparse(right)}` would be read twice: assign it to a variable first")
                    self._compare(test, left, op, right, no, free)
            case _:
                constant = self.kinds.constant(test)
                if constant is not None:
                    if not constant:
                        self.code.jump(no)
                    return
                self.code.branch_constant("==", self._any(test, free), 0, no)

    def _compare(self, test: ast.Compare, left: ast.expr, op: ast.cmpop, right: ast.expr, no: int, free: tuple[int, ...]) -> None:
        comparison = _COMPARISONS.get(type(op))
        if comparison is None:
            raise self.error(test, "an iterator compares with == != < <= > >=")
        numbers = [self.kinds.constant(side) for side in (left, right)]
        if numbers[0] is not None and numbers[1] is not None:
            # Both are known here, with their signs.
            if not _HOLDS[comparison](numbers[0], numbers[1]):
                self.code.jump(no)
            return
        kind = self.kinds.both(self.kinds.kind(left), self.kinds.kind(right), test)
        negative = [side for side, number in zip((left, right), numbers, strict=True) if number is not None and number < 0]
        if negative and kind != "signed" and comparison not in ("==", "!="):
            text = ast.unparse(negative[0])
            raise self.error(test, f"{text} is below 0, and the other side has no sign: say i64(…) of it, or compare with another number")
        unless = SIGNED[NOT[comparison]] if kind == "signed" else NOT[comparison]
        register = self._any(left, free)
        held = register == free[0]
        other = self._right(None, right, register, free[1:] if held else free)
        if other is None:
            constant = self.kinds.constant(right)
            assert constant is not None
            self.code.branch_constant(unless, register, _wrapped(constant), no)
        else:
            self.code.branch(unless, register, other, no)


def _wrapped(constant: int) -> int:
    """As a signed number of 64 bits."""
    constant &= (1 << 64) - 1
    return constant - (1 << 64) if constant >> 63 else constant


def _reading(target: ast.expr) -> ast.expr:
    """The same place, read."""
    copy = ast.parse(ast.unparse(target), mode="eval").body
    for node in ast.walk(copy):
        if hasattr(node, "lineno"):
            ast.copy_location(node, target)
    return copy


def _own(statements: list[ast.stmt]) -> list[ast.AST]:
    """Nodes of a loop's body that are not another loop's."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, ast.While | ast.For):
            waiting.extend(ast.iter_child_nodes(node))
    return found
