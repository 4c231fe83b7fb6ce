"""Build LLVM IR: instructions are inserted as lines of text at the builder's position.

The interface is that of llvmlite's `IRBuilder`, which is several times slower
(`smelt.codegen.llvm.ir`): one method for each instruction, a position in a block, and helpers for
branches and loops.

Integer instructions whose operands are constants or neutral are folded: strides of constant extents
and offsets of unrolled loops are such products and sums; LLVM would read, number and remove a third
of all lines otherwise. Values and wrap-around are LLVM's. Vectors and floats are left to LLVM.

>>> from smelt.codegen.llvm.ir.values import IntType
>>> i64 = IntType(64)
>>> fold_binary("mul", i64(6), i64(7)).ref, fold_binary("udiv", i64(7), i64(0))
('42', None)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, TypeVar, overload

from smelt.codegen.llvm.ir.values import (
    Block,
    Constant,
    Function,
    FunctionType,
    InsertElement,
    Instruction,
    IntType,
    Module,
    Phi,
    PointerType,
    ShuffleVector,
    Type,
    Value,
    VectorType,
    VoidType,
)

_I1, _I32 = IntType(1), IntType(32)
_POINTER, _VOID = PointerType(), VoidType()
_PREDICATES = {">": "gt", "<": "lt", "==": "eq", "!=": "ne", ">=": "ge", "<=": "le"}
_SIGNED = {sign: name if sign in "==!=" else f"s{name}" for sign, name in _PREDICATES.items()}
_UNSIGNED = {sign: name if sign in "==!=" else f"u{name}" for sign, name in _PREDICATES.items()}
_LIKELY = 99
"""Branch weight of the likely side; that of the other is 1."""

InstructionT = TypeVar("InstructionT", bound=Instruction)


class IRBuilder:
    """Inserts instructions at the end of a block, or temporarily elsewhere (`goto_block`).

    Instructions without effects are folded and numbered: where an equal one dominates the position,
    its value is returned. Raises TypeError where the types of operands differ which LLVM requires
    to be equal.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._at: int | None = None
        """Index in the block where instructions are inserted; None at the end."""

    # ---- positions -------------------------------------------------------------------------------

    @property
    def function(self) -> Function:
        """Return the current function."""
        return self.block.function

    @property
    def module(self) -> Module:
        """Return the module of the current function."""
        return self.block.function.module

    def position_at_end(self, block: Block) -> None:
        """Insert following instructions at the end of `block`."""
        self.block = block
        self._at = None

    def append_basic_block(self, name: str = "block") -> Block:
        """Append a block to the function; the position does not change."""
        return self.block.function.append_basic_block(name)

    def goto_entry_block(self) -> AbstractContextManager[None]:
        """Insert at the end of the entry block within a `with`, before its terminator."""
        return self.goto_block(self.function.blocks[0])

    @contextmanager
    def goto_block(self, block: Block, *, first: bool = False) -> Generator[None]:
        """Insert within a `with` at a block's end, before its terminator, or at its head."""
        position = self.block, self._at
        self.block = block
        self._at = 0 if first else None if block.terminator is None else -1
        try:
            yield
        finally:
            self.block, self._at = position

    def _insert(self, instruction: InstructionT) -> InstructionT:
        if self._at is None:
            self.block.instructions.append(instruction)
        else:
            self.block.instructions.insert(self._at, instruction)
        return instruction

    def _emit_value(
        self, kind: Type, text: str, form: type[InstructionT] = Instruction
    ) -> InstructionT:
        ref = f"%.{self.block.function.new_number()}"
        return self._insert(form(kind, ref, f"{ref} = {text}"))

    def _number_value(
        self, kind: Type, text: str, form: type[InstructionT] = Instruction
    ) -> InstructionT:
        """Return the value of an instruction that depends on its operands alone."""
        if self._at == 0:  # before what the block has
            return self._emit_value(kind, text, form)
        block = self.block
        numbered = block.function.numbered
        existing: Any = numbered.get(text)
        if existing is not None and existing[1] in block.dominators:
            return existing[0]
        value = self._emit_value(kind, text, form)
        numbered[text] = value, block
        return value

    def _emit_effect(self, text: str) -> Instruction:
        """Insert an instruction without result."""
        return self._insert(Instruction(_VOID, "", text))

    def _terminate(self, text: str, *targets: Block) -> Instruction:
        """Insert the terminator of the block."""
        if self.block.terminator is not None:
            raise ValueError(f"block {self.block.name} is left already")
        return self.block.terminate(self._emit_effect(text), targets)

    # ---- control flow ----------------------------------------------------------------------------

    def branch(self, target: Block) -> None:
        """Branch to `target`."""
        self._terminate(f"br label {target.ref}", target)

    def cbranch(self, condition: Value, yes: Block, no: Block) -> Instruction:
        """Branch to one of two blocks, a constant condition to the one that it means."""
        truth = integer(condition)
        if truth is not None:
            target = yes if truth else no
            return self._terminate(f"br label {target.ref}", target)
        text = f"br i1 {condition.ref}, label {yes.ref}, label {no.ref}"
        return self._terminate(text, yes, no)

    def ret_void(self) -> None:
        """Return from the function."""
        self._terminate("ret void")

    def ret(self, value: Value) -> None:
        """Return a value from the function."""
        self._terminate(f"ret {value.type.text} {value.ref}")

    @contextmanager
    def if_then(self, condition: Value, likely: bool | None = None) -> Generator[Block]:
        """Emit the `with` body under a condition; yields the block after it."""
        inside, after = self.append_basic_block("if"), self.append_basic_block("endif")
        self._branch_likely(condition, inside, after, likely)
        with self._branch(inside, after):
            yield after
        self.position_at_end(after)

    @contextmanager
    def if_else(
        self, condition: Value, likely: bool | None = None
    ) -> Generator[tuple[AbstractContextManager[Block], AbstractContextManager[Block]]]:
        """Yield two contexts: for where `condition` holds, and for where it does not."""
        yes, no = self.append_basic_block("if"), self.append_basic_block("else")
        after = self.append_basic_block("endif")
        self._branch_likely(condition, yes, no, likely)
        yield self._branch(yes, after), self._branch(no, after)
        self.position_at_end(after)

    @contextmanager
    def _branch(self, inside: Block, after: Block) -> Generator[Block]:
        self.position_at_end(inside)
        yield after
        if self.block.terminator is None:
            self.branch(after)

    def either(
        self,
        condition: Value,
        yes: Callable[[], Sequence[Value] | None],
        no: Callable[[], Sequence[Value] | None] | Sequence[Value],
        likely: bool | None = None,
    ) -> list[Value]:
        """Emit one of two parts of code, whichever runs; return their values, merged.

        Instead of the second part there may be values that are known.
        """
        truth = integer(condition)
        if truth is not None:
            part = yes if truth else no
            return [*((part() if callable(part) else part) or ())]
        ends: list[tuple[Block, Sequence[Value]]] = []

        def emit(part: Callable[[], Sequence[Value] | None]) -> None:
            values = part() or ()
            ends.append((self.block, values))

        if not callable(no):
            ends.append((self.block, no))
            with self.if_then(condition, likely):
                emit(yes)
        else:
            with self.if_else(condition, likely) as (then, otherwise):
                with then:
                    emit(yes)
                with otherwise:
                    emit(no)
        merged = [self.phi(x.type) for x in ends[0][1]]
        for block, values in ends:
            for phi, value in zip(merged, values, strict=True):
                phi.add_incoming(value, block)
        return [*merged]

    def _branch_likely(self, condition: Value, yes: Block, no: Block, likely: bool | None) -> None:
        branch = self.cbranch(condition, yes, no)
        if likely is not None and len(self.block.targets) > 1:
            weights = (_LIKELY, 1) if likely else (1, _LIKELY)
            node = self.module.add_metadata(["branch_weights", *map(_I32, weights)])
            branch.set_metadata("prof", node)

    @overload
    def phi(self, kind: Type) -> Phi: ...
    @overload
    def phi(self, kind: Type, form: type[InstructionT]) -> InstructionT: ...
    def phi(self, kind: Type, form: type[Any] = Phi) -> Any:
        """Start a phi node: a value which depends on the predecessor block."""
        return self._emit_value(kind, f"phi {kind.text}", form)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """Select one of two values, lane by lane where the condition has lanes."""
        kind = _common_type(yes, no)
        truth = integer(condition)
        if truth is not None or yes is no:
            return yes if truth else no
        return self._number_value(
            kind,
            f"select {condition.type.text} {condition.ref}, "
            f"{kind.text} {yes.ref}, {kind.text} {no.ref}",
        )

    def minimum(self, a: Value, b: Value) -> Value:
        """Return the smaller one of two signed integers."""
        return self.select(self.icmp_signed("<", a, b), a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the larger one of two signed integers."""
        return self.select(self.icmp_signed("<", a, b), b, a)

    # ---- arithmetic ------------------------------------------------------------------------------

    def _binary(self, operation: str, a: Value, b: Value) -> Value:
        kind = a.type
        if b.type is not kind:
            raise _type_error(a, b)
        folded = fold_binary(operation, a, b)
        if folded is not None:
            return folded
        return self._number_value(kind, f"{operation} {kind.text} {a.ref}, {b.ref}")

    def add(self, a: Value, b: Value) -> Value:
        """Add integers."""
        return self._binary("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Subtract integers."""
        return self._binary("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Multiply integers."""
        return self._binary("mul", a, b)

    def sdiv(self, a: Value, b: Value) -> Value:
        """Divide signed integers, rounding towards zero."""
        return self._binary("sdiv", a, b)

    def udiv(self, a: Value, b: Value) -> Value:
        """Divide unsigned integers."""
        return self._binary("udiv", a, b)

    def srem(self, a: Value, b: Value) -> Value:
        """Return the remainder of `sdiv`."""
        return self._binary("srem", a, b)

    def urem(self, a: Value, b: Value) -> Value:
        """Return the remainder of `udiv`."""
        return self._binary("urem", a, b)

    def fadd(self, a: Value, b: Value) -> Value:
        """Add floats."""
        return self._binary("fadd", a, b)

    def fsub(self, a: Value, b: Value) -> Value:
        """Subtract floats."""
        return self._binary("fsub", a, b)

    def fmul(self, a: Value, b: Value) -> Value:
        """Multiply floats."""
        return self._binary("fmul", a, b)

    def fdiv(self, a: Value, b: Value) -> Value:
        """Divide floats."""
        return self._binary("fdiv", a, b)

    def shl(self, a: Value, b: Value) -> Value:
        """Shift bits left."""
        return self._binary("shl", a, b)

    def lshr(self, a: Value, b: Value) -> Value:
        """Shift bits right, filling with zeros."""
        return self._binary("lshr", a, b)

    def ashr(self, a: Value, b: Value) -> Value:
        """Shift bits right, filling with the sign."""
        return self._binary("ashr", a, b)

    def and_(self, a: Value, b: Value) -> Value:
        """Return the bitwise and."""
        return self._binary("and", a, b)

    def or_(self, a: Value, b: Value) -> Value:
        """Return the bitwise or."""
        return self._binary("or", a, b)

    def xor(self, a: Value, b: Value) -> Value:
        """Return the bitwise exclusive or."""
        return self._binary("xor", a, b)

    def not_(self, a: Value) -> Value:
        """Invert all bits."""
        kind = a.type
        number = integer(a)
        if number is not None:
            return kind(~number)
        ones = f"splat ({kind.element.text} -1)" if isinstance(kind, VectorType) else "-1"
        return self._number_value(kind, f"xor {kind.text} {a.ref}, {ones}")

    def neg(self, a: Value) -> Value:
        """Negate an integer."""
        return self._number_value(a.type, f"sub {a.type.text} {a.type.null}, {a.ref}")

    def fneg(self, a: Value) -> Value:
        """Negate a float."""
        return self._number_value(a.type, f"fneg {a.type.text} {a.ref}")

    # ---- comparisons -----------------------------------------------------------------------------

    def _compare(self, operation: str, a: Value, b: Value) -> Value:
        kind = _common_type(a, b)
        folded = fold_comparison(operation, a, b)
        if folded is not None:
            return folded
        result = VectorType(_I1, kind.count) if isinstance(kind, VectorType) else _I1
        return self._number_value(result, f"{operation} {kind.text} {a.ref}, {b.ref}")

    def icmp_signed(self, sign: str, a: Value, b: Value) -> Value:
        """Compare signed integers by one of == != < <= > >=."""
        return self._compare(f"icmp {_SIGNED[sign]}", a, b)

    def icmp_unsigned(self, sign: str, a: Value, b: Value) -> Value:
        """Compare unsigned integers by one of == != < <= > >=."""
        return self._compare(f"icmp {_UNSIGNED[sign]}", a, b)

    def fcmp_ordered(self, sign: str, a: Value, b: Value) -> Value:
        """Compare floats, false for NaN; "ord" tests that neither is NaN."""
        return self._compare(
            f"fcmp {'o' + _PREDICATES[sign] if sign in _PREDICATES else sign}", a, b
        )

    def fcmp_unordered(self, sign: str, a: Value, b: Value) -> Value:
        """Compare floats, true for NaN; "uno" tests whether one is NaN."""
        return self._compare(
            f"fcmp {'u' + _PREDICATES[sign] if sign in _PREDICATES else sign}", a, b
        )

    # ---- conversions -----------------------------------------------------------------------------

    def _cast(self, operation: str, a: Value, kind: Type) -> Value:
        if a.type is kind:
            return a
        folded = fold_extension(operation, a, kind)
        if folded is not None:
            return folded
        return self._number_value(kind, f"{operation} {a.type.text} {a.ref} to {kind.text}")

    def trunc(self, a: Value, kind: Type) -> Value:
        """Truncate an integer."""
        return self._cast("trunc", a, kind)

    def zext(self, a: Value, kind: Type) -> Value:
        """Extend an integer with zeros."""
        return self._cast("zext", a, kind)

    def sext(self, a: Value, kind: Type) -> Value:
        """Extend an integer with its sign."""
        return self._cast("sext", a, kind)

    def fptrunc(self, a: Value, kind: Type) -> Value:
        """Round a float to a shorter type."""
        return self._cast("fptrunc", a, kind)

    def fpext(self, a: Value, kind: Type) -> Value:
        """Extend a float to a longer type."""
        return self._cast("fpext", a, kind)

    def fptosi(self, a: Value, kind: Type) -> Value:
        """Convert a float to a signed integer, towards zero."""
        return self._cast("fptosi", a, kind)

    def fptoui(self, a: Value, kind: Type) -> Value:
        """Convert a float to an unsigned integer, towards zero."""
        return self._cast("fptoui", a, kind)

    def sitofp(self, a: Value, kind: Type) -> Value:
        """Convert a signed integer to the nearest float."""
        return self._cast("sitofp", a, kind)

    def uitofp(self, a: Value, kind: Type) -> Value:
        """Convert an unsigned integer to the nearest float."""
        return self._cast("uitofp", a, kind)

    def bitcast(self, a: Value, kind: Type) -> Value:
        """Reinterpret bits as another type."""
        return self._cast("bitcast", a, kind)

    def ptrtoint(self, a: Value, kind: Type) -> Value:
        """Convert an address to an integer."""
        return self._cast("ptrtoint", a, kind)

    # ---- memory ----------------------------------------------------------------------------------

    def alloca(self, kind: Type, size: Value | None = None) -> Value:
        """Reserve stack memory for one value of a type, or for `size`; return its address."""
        count = "" if size is None else f", {size.type.text} {size.ref}"
        return self._emit_value(_POINTER, f"alloca {kind.text}{count}")

    def load(self, place: Value, *, typ: Type, align: int | None = None, name: str = "") -> Value:
        """Load from an address.

        `align` is its alignment in bytes (None: that of the type); `name` names the result for
        readers of the text.
        """
        aligned = "" if align is None else f", align {align}"
        text = f"load {typ.text}, ptr {place.ref}{aligned}"
        if not name:
            return self._emit_value(typ, text)
        ref = f'%"{self.function.unique_name(name)}"'
        return self._insert(Instruction(typ, ref, f"{ref} = {text}"))

    def store(self, value: Value, place: Value, *, align: int | None = None) -> Instruction:
        """Store a value at an address, aligned to `align` bytes (None: that of the type)."""
        aligned = "" if align is None else f", align {align}"
        return self._emit_effect(f"store {value.type.text} {value.ref}, ptr {place.ref}{aligned}")

    def gep(self, base: Value, indices: Sequence[Value], *, source_etype: Type) -> Value:
        """Return the address some elements after another; vector indices give a vector."""
        if len(indices) == 1 and integer(indices[0]) == 0:
            return base
        at = ", ".join(f"{i.type.text} {i.ref}" for i in indices)
        kind = base.type
        for i in indices:
            if isinstance(i.type, VectorType):
                kind = VectorType(_POINTER, i.type.count)
        text = f"getelementptr {source_etype.text}, {base.type.text} {base.ref}, {at}"
        return self._number_value(kind, text)

    def fence(self, ordering: str) -> None:
        """Order memory accesses before and after."""
        self._emit_effect(f"fence {ordering}")

    # ---- calls -----------------------------------------------------------------------------------

    def call(self, function: Function, args: Sequence[Value]) -> Value:
        """Call a function."""
        return self._call(function.ref, function.function_type, args)

    def call_at(self, place: Value, kind: FunctionType, args: Sequence[Value]) -> Value:
        """Call the function of a type at an address."""
        return self._call(place.ref, kind, args)

    def asm(
        self,
        kind: FunctionType,
        text: str,
        constraint: str,
        args: Sequence[Value],
        side_effect: bool,
    ) -> Value:
        """Emit inline assembly with the given constraints."""
        effect = "sideeffect " if side_effect else ""
        return self._call(f'asm {effect}"{text}", "{constraint}"', kind, args)

    def _call(self, callee: str, kind: FunctionType, args: Sequence[Value]) -> Value:
        for value, expected in zip(args, kind.args, strict=True):
            if value.type is not expected:
                raise TypeError(f"{callee} takes {expected}, not {value}")
        arguments = ", ".join([f"{a.type.text} {a.ref}" for a in args])
        text = f"call {kind.return_type.text} {callee}({arguments})"
        return (
            self._emit_effect(text)
            if kind.return_type is _VOID
            else self._emit_value(kind.return_type, text)
        )

    # ---- lanes -----------------------------------------------------------------------------------

    def extract_element(self, vector: Value, at: Value) -> Value:
        """Return one lane."""
        text = f"extractelement {vector.type.text} {vector.ref}, {at.type.text} {at.ref}"
        return self._number_value(vector.type.element, text)

    def insert_element(self, vector: Value, value: Value, at: Value) -> InsertElement:
        """Replace the value of one lane."""
        if value.type is not vector.type.element:
            raise _type_error(vector, value)
        text = f"insertelement {vector}, {value}, {at}"
        return self._number_value(vector.type, text, InsertElement).reading(vector, value, at)

    def shuffle_vector(self, a: Value, b: Value, lanes: Constant) -> ShuffleVector:
        """Select lanes of two vectors by number; the second one's follow the first one's."""
        element: Any = _common_type(a, b).element
        kind = VectorType(element, lanes.type.count)
        text = f"shufflevector {a}, {b}, {lanes}"
        return self._number_value(kind, text, ShuffleVector).reading(a, b, lanes)


def _common_type(a: Value, b: Value) -> Any:
    if a.type is not b.type:
        raise _type_error(a, b)
    return a.type


def _type_error(a: Value, b: Value) -> TypeError:
    return TypeError(f"operands' types differ: {a} and {b}")


# ---- folding of constants ------------------------------------------------------------------------


_RIGHT_NEUTRAL = {
    **dict.fromkeys(("add", "sub", "or", "xor", "shl", "lshr", "ashr"), 0),
    **dict.fromkeys(("mul", "udiv", "sdiv"), 1),
    "and": -1,
}
"""Operation -> its right operand that returns the left one."""
_COMMUTATIVE = frozenset(("add", "mul", "and", "or", "xor"))
_ABSORBING = {"mul": 0, "and": 0, "or": -1}
"""Commutative operation -> the operand that is the result."""
_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
_DIVISIONS: dict[str, Callable[[int, int], int]] = {
    "udiv": operator.floordiv,
    "sdiv": operator.floordiv,
    "urem": operator.mod,
    "srem": operator.mod,
}
"""Operations that are folded for operands without sign."""
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "icmp eq": operator.eq,
    "icmp ne": operator.ne,
    "icmp slt": operator.lt,
    "icmp sle": operator.le,
    "icmp sgt": operator.gt,
    "icmp sge": operator.ge,
}


def integer(value: Value) -> int | None:
    """Return the number of a scalar integer constant, between -2^(width-1) and its opposite."""
    if not isinstance(value, Constant) or not isinstance(value.type, IntType):
        return None
    number = 0 if value.constant is None else value.constant
    return _wrapped(value.type.width, number) if isinstance(number, int) else None


def is_true(value: Value) -> bool:
    """Return whether a truth value is the constant true."""
    return integer(value) == -1


def is_false(value: Value) -> bool:
    """Return whether a truth value is the constant false."""
    return integer(value) == 0


def _wrapped(width: int, number: int) -> int:
    half = 1 << (width - 1)
    return ((number + half) & (2 * half - 1)) - half


@lru_cache(maxsize=4096)
def _constant(kind: Type, number: int) -> Constant:
    return Constant(kind, number)


def fold_binary(operation: str, a: Value, b: Value) -> Value | None:
    """Return the result of a binary operation that needs no instruction; None for another."""
    if not isinstance(a, Constant) and not isinstance(b, Constant):
        return None
    x, y = integer(a), integer(b)
    if x is None and y is None:
        return None
    kind: IntType = a.type
    if y is not None and _RIGHT_NEUTRAL.get(operation) == y:
        return a
    if operation in _COMMUTATIVE:
        if x is not None and _RIGHT_NEUTRAL[operation] == x:
            return b
        if operation in _ABSORBING and _ABSORBING[operation] in (x, y):
            return _constant(kind, _ABSORBING[operation])
    if x is None or y is None:
        return None
    if operation in _EXACT:
        return _constant(kind, _wrapped(kind.width, _EXACT[operation](x, y)))
    if operation in _DIVISIONS and x >= 0 and y > 0:
        return _constant(kind, _DIVISIONS[operation](x, y))
    return None


def fold_comparison(operation: str, a: Value, b: Value) -> Value | None:
    """Return the truth of a signed comparison of constants; None for another comparison."""
    compare = _COMPARISONS.get(operation)
    if compare is None or (x := integer(a)) is None or (y := integer(b)) is None:
        return None
    return _constant(IntType(1), int(compare(x, y)))


def fold_extension(operation: str, a: Value, kind: Type) -> Value | None:
    """Return a truncated or extended constant; None for another conversion."""
    x = integer(a)
    if x is None or operation not in ("trunc", "sext", "zext") or not isinstance(kind, IntType):
        return None
    if operation == "zext":
        x &= (1 << a.type.width) - 1
    return _constant(kind, _wrapped(kind.width, x))
