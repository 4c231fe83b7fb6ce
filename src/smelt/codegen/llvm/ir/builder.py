"""The builder: each instruction becomes a line at the builder's place as it is asked for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, overload

from smelt.codegen.llvm.ir.types import (
    Constant,
    FunctionType,
    IntType,
    PointerType,
    Type,
    Value,
    VectorType,
    VoidType,
)
from smelt.codegen.llvm.ir.values import (
    Block,
    Function,
    InsertElement,
    Instruction,
    Module,
    Phi,
    ShuffleVector,
)

_I1, _I32 = IntType(1), IntType(32)
_POINTER, _VOID = PointerType(), VoidType()
_COMPARED = {">": "gt", "<": "lt", "==": "eq", "!=": "ne", ">=": "ge", "<=": "le"}
_SIGNED = {sign: name if sign in "==!=" else f"s{name}" for sign, name in _COMPARED.items()}
_UNSIGNED = {sign: name if sign in "==!=" else f"u{name}" for sign, name in _COMPARED.items()}
_LIKELY = 99
"""Weight of the way that is taken nearly always; the other one's is 1."""

Made = TypeVar("Made", bound=Instruction)


class IRBuilder:
    """Writes at the end of a block, or for a while before the end of a function's first one.

    Raises TypeError where operands' types differ that LLVM wants equal."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._at: int | None = None
        """Where in the block instructions are put; None: behind all others."""

    # ---- places ----------------------------------------------------------------------------------

    @property
    def function(self) -> Function:
        """The function that is written."""
        return self.block.function

    @property
    def module(self) -> Module:
        """The module of the function that is written."""
        return self.block.function.module

    def position_at_end(self, block: Block) -> None:
        """What follows stands at the end of `block`."""
        self.block = block
        self._at = None

    def append_basic_block(self, name: str = "block") -> Block:
        """A new block of the function; the builder stays where it is."""
        return self.block.function.append_basic_block(name)

    def goto_entry_block(self) -> AbstractContextManager[None]:
        """At the end of the function's first block, before what leaves it."""
        return self.goto_block(self.function.blocks[0])

    @contextmanager
    def goto_block(self, block: Block, *, first: bool = False) -> Generator[None]:
        """At the end of a block, before what leaves it, or at its head."""
        kept = self.block, self._at
        self.block = block
        self._at = 0 if first else None if block.terminator is None else -1
        try:
            yield
        finally:
            self.block, self._at = kept

    def _insert(self, made: Made) -> Made:
        if self._at is None:
            self.block.instructions.append(made)
        else:
            self.block.instructions.insert(self._at, made)
        return made

    def _give(self, kind: Type, text: str, form: type[Made] = Instruction) -> Made:
        """An instruction that gives a value."""
        function = self.block.function
        function.count += 1
        ref = f"%.{function.count}"
        return self._insert(form(kind, ref, f"{ref} = {text}"))

    def _do(self, text: str) -> Instruction:
        """An instruction that gives none."""
        return self._insert(Instruction(_VOID, "", text))

    def _end(self, text: str) -> Instruction:
        """What leaves the block."""
        if self.block.terminator is not None:
            raise ValueError(f"block {self.block.name} is left already")
        self.block.terminator = made = self._do(text)
        return made

    # ---- control flow ----------------------------------------------------------------------------

    def branch(self, target: Block) -> None:
        """Goes on in `target`."""
        self._end(f"br label {target.ref}")

    def cbranch(self, condition: Value, yes: Block, no: Block) -> Instruction:
        """Goes on in one of two blocks."""
        return self._end(f"br i1 {condition.ref}, label {yes.ref}, label {no.ref}")

    def ret_void(self) -> None:
        """Leaves the function."""
        self._end("ret void")

    def ret(self, value: Value) -> None:
        """Leaves the function with a value."""
        self._end(f"ret {value.type.text} {value.ref}")

    @contextmanager
    def if_then(self, condition: Value, likely: bool | None = None) -> Generator[Block]:
        """What is written inside runs where `condition` holds; gives the block behind it."""
        inside, behind = self.append_basic_block("if"), self.append_basic_block("endif")
        self._weighed(self.cbranch(condition, inside, behind), likely)
        with self._branch(inside, behind):
            yield behind
        self.position_at_end(behind)

    @contextmanager
    def if_else(
        self, condition: Value, likely: bool | None = None
    ) -> Generator[tuple[AbstractContextManager[Block], AbstractContextManager[Block]]]:
        """Two contexts: for where `condition` holds, and for where it does not."""
        yes, no = self.append_basic_block("if"), self.append_basic_block("else")
        behind = self.append_basic_block("endif")
        self._weighed(self.cbranch(condition, yes, no), likely)
        yield self._branch(yes, behind), self._branch(no, behind)
        self.position_at_end(behind)

    @contextmanager
    def _branch(self, inside: Block, behind: Block) -> Generator[Block]:
        self.position_at_end(inside)
        yield behind
        if self.block.terminator is None:
            self.branch(behind)

    def _weighed(self, branch: Instruction, likely: bool | None) -> None:
        if likely is not None:
            weights = (_LIKELY, 1) if likely else (1, _LIKELY)
            node = self.module.add_metadata(["branch_weights", *map(_I32, weights)])
            branch.set_metadata("prof", node)

    @overload
    def phi(self, kind: Type) -> Phi: ...
    @overload
    def phi(self, kind: Type, form: type[Made]) -> Made: ...
    def phi(self, kind: Type, form: type[Any] = Phi) -> Any:
        """A value that depends on where one comes from."""
        return self._give(kind, f"phi {kind.text}", form)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """One of two values, lane by lane where the condition has lanes."""
        kind = _same(yes, no)
        return self._give(
            kind,
            f"select {condition.type.text} {condition.ref}, "
            f"{kind.text} {yes.ref}, {kind.text} {no.ref}",
        )

    # ---- arithmetic ------------------------------------------------------------------------------

    def _binary(self, operation: str, a: Value, b: Value) -> Value:
        kind = a.type
        if b.type is not kind:
            raise _unlike(a, b)
        return self._give(kind, f"{operation} {kind.text} {a.ref}, {b.ref}")

    def add(self, a: Value, b: Value) -> Value:
        """Integers' sum."""
        return self._binary("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Integers' difference."""
        return self._binary("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Integers' product."""
        return self._binary("mul", a, b)

    def sdiv(self, a: Value, b: Value) -> Value:
        """Quotient of integers with sign, rounded to zero."""
        return self._binary("sdiv", a, b)

    def udiv(self, a: Value, b: Value) -> Value:
        """Quotient of integers without sign."""
        return self._binary("udiv", a, b)

    def srem(self, a: Value, b: Value) -> Value:
        """What `sdiv` leaves over."""
        return self._binary("srem", a, b)

    def urem(self, a: Value, b: Value) -> Value:
        """What `udiv` leaves over."""
        return self._binary("urem", a, b)

    def fadd(self, a: Value, b: Value) -> Value:
        """Floats' sum."""
        return self._binary("fadd", a, b)

    def fsub(self, a: Value, b: Value) -> Value:
        """Floats' difference."""
        return self._binary("fsub", a, b)

    def fmul(self, a: Value, b: Value) -> Value:
        """Floats' product."""
        return self._binary("fmul", a, b)

    def fdiv(self, a: Value, b: Value) -> Value:
        """Floats' quotient."""
        return self._binary("fdiv", a, b)

    def shl(self, a: Value, b: Value) -> Value:
        """Bits moved up."""
        return self._binary("shl", a, b)

    def lshr(self, a: Value, b: Value) -> Value:
        """Bits moved down, zeros behind them."""
        return self._binary("lshr", a, b)

    def ashr(self, a: Value, b: Value) -> Value:
        """Bits moved down, signs behind them."""
        return self._binary("ashr", a, b)

    def and_(self, a: Value, b: Value) -> Value:
        """Bits that both have."""
        return self._binary("and", a, b)

    def or_(self, a: Value, b: Value) -> Value:
        """Bits that one of them has."""
        return self._binary("or", a, b)

    def xor(self, a: Value, b: Value) -> Value:
        """Bits that only one of them has."""
        return self._binary("xor", a, b)

    def not_(self, a: Value) -> Value:
        """The other bits."""
        kind = a.type
        ones = f"splat ({kind.element.text} -1)" if isinstance(kind, VectorType) else "-1"
        return self._give(kind, f"xor {kind.text} {a.ref}, {ones}")

    def neg(self, a: Value) -> Value:
        """An integer with the other sign."""
        return self._give(a.type, f"sub {a.type.text} {a.type.null}, {a.ref}")

    def fneg(self, a: Value) -> Value:
        """A float with the other sign."""
        return self._give(a.type, f"fneg {a.type.text} {a.ref}")

    # ---- comparisons -----------------------------------------------------------------------------

    def _compare(self, how: str, a: Value, b: Value) -> Value:
        kind = _same(a, b)
        found = VectorType(_I1, kind.count) if isinstance(kind, VectorType) else _I1
        return self._give(found, f"{how} {kind.text} {a.ref}, {b.ref}")

    def icmp_signed(self, sign: str, a: Value, b: Value) -> Value:
        """Whether integers with sign compare as one of == != < <= > >= says."""
        return self._compare(f"icmp {_SIGNED[sign]}", a, b)

    def icmp_unsigned(self, sign: str, a: Value, b: Value) -> Value:
        """The same of integers without sign."""
        return self._compare(f"icmp {_UNSIGNED[sign]}", a, b)

    def fcmp_ordered(self, sign: str, a: Value, b: Value) -> Value:
        """The same of floats; false where one is NaN.  Also "ord": whether none is."""
        return self._compare(f"fcmp {'o' + _COMPARED[sign] if sign in _COMPARED else sign}", a, b)

    def fcmp_unordered(self, sign: str, a: Value, b: Value) -> Value:
        """The same of floats; true where one is NaN.  Also "uno": whether one is."""
        return self._compare(f"fcmp {'u' + _COMPARED[sign] if sign in _COMPARED else sign}", a, b)

    # ---- conversions -----------------------------------------------------------------------------

    def _cast(self, operation: str, a: Value, kind: Type) -> Value:
        if a.type is kind:
            return a
        return self._give(kind, f"{operation} {a.type.text} {a.ref} to {kind.text}")

    def trunc(self, a: Value, kind: Type) -> Value:
        """An integer's lower bits."""
        return self._cast("trunc", a, kind)

    def zext(self, a: Value, kind: Type) -> Value:
        """An integer without sign in more bits."""
        return self._cast("zext", a, kind)

    def sext(self, a: Value, kind: Type) -> Value:
        """An integer with sign in more bits."""
        return self._cast("sext", a, kind)

    def fptrunc(self, a: Value, kind: Type) -> Value:
        """A float rounded to fewer bits."""
        return self._cast("fptrunc", a, kind)

    def fpext(self, a: Value, kind: Type) -> Value:
        """A float in more bits."""
        return self._cast("fpext", a, kind)

    def fptosi(self, a: Value, kind: Type) -> Value:
        """A float rounded to an integer with sign, towards zero."""
        return self._cast("fptosi", a, kind)

    def fptoui(self, a: Value, kind: Type) -> Value:
        """A float rounded to an integer without sign, towards zero."""
        return self._cast("fptoui", a, kind)

    def sitofp(self, a: Value, kind: Type) -> Value:
        """The nearest float of an integer with sign."""
        return self._cast("sitofp", a, kind)

    def uitofp(self, a: Value, kind: Type) -> Value:
        """The nearest float of an integer without sign."""
        return self._cast("uitofp", a, kind)

    def bitcast(self, a: Value, kind: Type) -> Value:
        """The same bits as another type."""
        return self._cast("bitcast", a, kind)

    def ptrtoint(self, a: Value, kind: Type) -> Value:
        """An address as a number."""
        return self._cast("ptrtoint", a, kind)

    # ---- memory ----------------------------------------------------------------------------------

    def alloca(self, kind: Type, size: Value | None = None) -> Value:
        """Room on the stack for one of a type, or for `size` of them: its address."""
        many = "" if size is None else f", {size.type.text} {size.ref}"
        return self._give(_POINTER, f"alloca {kind.text}{many}")

    def load(self, place: Value, *, typ: Type, align: int | None = None, name: str = "") -> Value:
        """What lies at an address, a multiple of `align` bytes (None: of the type's own), called
        `name` for those who read."""
        aligned = "" if align is None else f", align {align}"
        text = f"load {typ.text}, ptr {place.ref}{aligned}"
        if not name:
            return self._give(typ, text)
        ref = f'%"{self.function.own(name)}"'
        return self._insert(Instruction(typ, ref, f"{ref} = {text}"))

    def store(self, value: Value, place: Value, *, align: int | None = None) -> Instruction:
        """Puts a value to an address, a multiple of `align` bytes (None: of the type's own)."""
        aligned = "" if align is None else f", align {align}"
        return self._do(f"store {value.type.text} {value.ref}, ptr {place.ref}{aligned}")

    def gep(self, base: Value, indices: Sequence[Value], *, source_etype: Type) -> Value:
        """The address so many elements behind another; a vector of them where one is given."""
        at = ", ".join(f"{i.type.text} {i.ref}" for i in indices)
        kind = base.type
        for i in indices:
            if isinstance(i.type, VectorType):
                kind = VectorType(_POINTER, i.type.count)
        text = f"getelementptr {source_etype.text}, {base.type.text} {base.ref}, {at}"
        return self._give(kind, text)

    def fence(self, ordering: str) -> None:
        """Orders what is read and written before and behind."""
        self._do(f"fence {ordering}")

    # ---- calls -----------------------------------------------------------------------------------

    def call(self, function: Function, args: Sequence[Value]) -> Value:
        """What a function gives."""
        return self._call(function.ref, function.function_type, args)

    def call_at(self, place: Value, kind: FunctionType, args: Sequence[Value]) -> Value:
        """What the function of a type at an address gives."""
        return self._call(place.ref, kind, args)

    def asm(
        self,
        kind: FunctionType,
        text: str,
        constraint: str,
        args: Sequence[Value],
        side_effect: bool,
    ) -> Value:
        """What instructions of the processor give, in the words of its assembler."""
        effect = "sideeffect " if side_effect else ""
        return self._call(f'asm {effect}"{text}", "{constraint}"', kind, args)

    def _call(self, callee: str, kind: FunctionType, args: Sequence[Value]) -> Value:
        for value, wanted in zip(args, kind.args, strict=True):
            if value.type is not wanted:
                raise TypeError(f"{callee} takes {wanted}, not {value}")
        given = ", ".join([f"{a.type.text} {a.ref}" for a in args])
        text = f"call {kind.return_type.text} {callee}({given})"
        return self._do(text) if kind.return_type is _VOID else self._give(kind.return_type, text)

    # ---- lanes -----------------------------------------------------------------------------------

    def extract_element(self, vector: Value, at: Value) -> Value:
        """One lane."""
        text = f"extractelement {vector.type.text} {vector.ref}, {at.type.text} {at.ref}"
        return self._give(vector.type.element, text)

    def insert_element(self, vector: Value, value: Value, at: Value) -> InsertElement:
        """A vector with another value in one lane."""
        if value.type is not vector.type.element:
            raise _unlike(vector, value)
        made = self._give(vector.type, f"insertelement {vector}, {value}, {at}", InsertElement)
        made.operands = vector, value, at
        return made

    def shuffle_vector(self, a: Value, b: Value, lanes: Constant) -> ShuffleVector:
        """Lanes of two vectors by their numbers, the second one's behind the first one's."""
        element: Any = _same(a, b).element
        kind = VectorType(element, lanes.type.count)
        made = self._give(kind, f"shufflevector {a}, {b}, {lanes}", ShuffleVector)
        made.operands = a, b, lanes
        return made


def _same(a: Value, b: Value) -> Any:
    """The type of both."""
    if a.type is not b.type:
        raise _unlike(a, b)
    return a.type


def _unlike(a: Value, b: Value) -> TypeError:
    return TypeError(f"operands' types differ: {a} and {b}")
