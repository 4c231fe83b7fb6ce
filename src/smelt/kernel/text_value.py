"""Reader of values and index expressions, which finds types on the way.

The types of bare numbers come from what stands beside them (`smelt.kernel.text_grammar`), so a
value is either typed already or waits, as `Bare`, for the place where it goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Final, TypeAlias

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import SmeltError
from smelt.kernel import ir
from smelt.kernel.env import Env, dtype_of
from smelt.kernel.text_grammar import (
    BINARY,
    EXTREMES,
    LEVELS,
    RESERVED,
    UNARY,
    Flexible,
    bare_type,
    operand_types,
)
from smelt.kernel.text_lex import DEEPEST, Cursor, Token
from smelt.kernel.walk import children
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.types import dtype as dtypes
from smelt.types import expr
from smelt.types.dtype import DType, bool_, i32
from smelt.types.expr import Index

DTYPES: Final = {d.name: d for d in dtypes.DTYPES}
_EXTREMES: Final = {"min": expr.minimum, "max": expr.maximum}


@dataclass(frozen=True, slots=True)
class Bare:
    """A number or an index whose type follows from its surroundings."""

    number: float | int | None
    index: Index | None
    token: Token

    @property
    def kind(self) -> Flexible:
        return "number" if self.index is None else "index"


@dataclass(frozen=True, slots=True)
class Typed:
    """A value of known type."""

    value: ir.Value
    dtype: DType


Piece: TypeAlias = Bare | Typed


@dataclass
class Names:
    """What the names of a kernel mean while it is read."""

    env: Env
    extents: dict[str, Index]
    """Extents of the axes that were declared or met so far."""
    sizes: set[str]
    parts: dict[str, Index] = field(default_factory=dict)
    """Split axes and how many parts they have."""
    hoisted: list[ir.Statement] = field(default_factory=list)
    """Positions that an index expression computed in place."""

    def axis(self, name: str) -> Index | None:
        """The index of an axis; a size that nothing else is called by names its own axis."""
        if name in self.parts and name not in self.extents:
            return expr.axis(name, self.parts[name])
        if name not in self.extents:
            if name not in self.sizes or name in RESERVED:
                return None
            self.extents[name] = expr.size(name)
        return expr.axis(name, self.extents[name])

    def index(self, name: str) -> Index | None:
        """What a bare name means in an index expression: an axis or a computed position."""
        bound = self.env.names.get(name)
        if bound is not None:
            return None if bound.index is None else expr.value(name, bound.index)
        return self.axis(name)


class IndexReader:
    """Sums and products of integers, sizes, axes and positions."""

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.c, self.names = cursor, names

    def sizes_only(self) -> Index:
        """An expression where a bare name is a size: shapes, extents, facts."""
        return self._sum(self._size)

    def anywhere(self, dimension: Index | None = None) -> Index:
        """An expression where a bare name is an axis or a position and `size(n)` is a size.

        `dimension` is the extent of what it indexes, for positions computed in place.
        """
        return self._sum(lambda: self._place(dimension))

    def _sum(self, leaf: Callable[[], Index]) -> Index:
        negative = self.c.accept("-")
        total = self._product(leaf)
        total = expr.mul(total, -1) if negative else total
        while self.c.at("+", "-"):
            step = expr.add if self.c.take().text == "+" else expr.sub
            total = step(total, self._product(leaf))
        return total

    def _product(self, leaf: Callable[[], Index]) -> Index:
        total = self._factor(leaf)
        while self.c.at("*", "//", "%"):
            mark = self.c.take()
            right = self._factor(leaf)
            if mark.text != "*" and right == 0:
                self.c.fail("division by zero", mark)
            step = {"*": expr.mul, "//": expr.floordiv, "%": expr.mod}[mark.text]
            total = step(total, right)
        return total

    def _factor(self, leaf: Callable[[], Index]) -> Index:
        if self.c.accept("("):
            inner = self._sum(leaf)
            self.c.expect(")")
            return inner
        if self.c.accept("-"):
            return expr.mul(self._factor(leaf), -1)
        if self.c.token.kind == "number":
            return self.c.number("a whole number")
        if self.c.at(*_EXTREMES) and self.c.ahead(1).text == "(":
            extreme = _EXTREMES[self.c.take().text]
            self.c.expect("(")
            left = self._sum(leaf)
            self.c.expect(",")
            right = self._sum(leaf)
            self.c.expect(")")
            return extreme(left, right)
        if self.c.at("size") and self.c.ahead(1).text == "(":
            return self.named_size()
        return leaf()

    def named_size(self) -> Index:
        """`size(n)`"""
        self.c.take()
        self.c.expect("(")
        found = self._size()
        self.c.expect(")")
        return found

    def _size(self) -> Index:
        token = self.c.token
        name = self.c.name("a size")
        if token.text in RESERVED:
            self.c.fail(f"{name!r} cannot name a size", token)
        self.names.sizes.add(name)
        return expr.size(name)

    def _place(self, dimension: Index | None) -> Index:
        token, following = self.c.token, self.c.ahead(1)
        if token.kind == "name" and following.text == "[" and following.touching:
            if dimension is None:
                self.c.fail("a computed position has no place here", token)
            return self._computed(dimension)
        name = self.c.name("an axis, a position, a size or a whole number")
        found = self.names.index(name)
        if found is None:
            self.c.fail(f"{name!r} is no axis and no position (a size reads size({name}))", token)
        return found

    def _computed(self, dimension: Index) -> Index:
        """`table[ids[t], d]`: the inner load becomes a position of its own."""
        value = ValueReader(self.c, self.names).load()
        k = len(self.names.env.names) + len(self.names.hoisted)
        name = f"{value.param}_{k}"
        statement = ir.Position(name, value, dimension)
        self.names.env.bind(statement)
        self.names.hoisted.append(statement)
        return expr.value(name, dimension)


class ValueReader:
    """Values with operators, by precedence."""

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.c, self.names = cursor, names
        self.in_condition = False

    @property
    def env(self) -> Env:
        return self.names.env

    def value(self, expected: DType | None = None) -> Typed:
        """A value; bare numbers at its top become `expected`."""
        return self.shallow(self.settle(self.conditional(expected), expected))

    def value_tight(self) -> Typed:
        """A value without a condition behind it."""
        return self.shallow(self.settle(self.operand(LEVELS["if"] + 1), None))

    def shallow(self, found: Typed) -> Typed:
        """The value, unless it is so deep that walking it would run out of stack."""
        level, deep = [found.value], 0
        while level:
            level, deep = [child for v in level for child in children(v)], deep + 1
            if deep > 4 * DEEPEST:
                self.c.fail("a value of so many operators has to be cut in pieces with names")
        return found

    def settle(self, piece: Piece, expected: DType | None) -> Typed:
        """A piece with its type."""
        if isinstance(piece, Typed):
            return piece
        dtype = bare_type(piece.kind, expected)
        return self._as_type(piece, dtype)

    def _as_type(self, piece: Bare, dtype: DType) -> Typed:
        if piece.index is not None:
            return Typed(ir.IndexValue(piece.index, dtype), dtype.compute)
        number = piece.number
        assert number is not None
        if not dtype.is_float:
            whole = math.isfinite(number) and number == int(number)
            if dtype == bool_ or not whole:
                self.c.fail(f"{piece.token.text} is no {dtype.name}", piece.token)
            info = np.iinfo(dtype.numpy)
            if not info.min <= number <= info.max:
                self.c.fail(f"{piece.token.text} does not fit {dtype.name}", piece.token)
        return Typed(ir.Const(number, dtype), dtype.compute)

    def conditional(self, expected: DType | None = None) -> Piece:
        """`a if c else b`, or what binds tighter."""
        first = self.operand(LEVELS["if"] + 1)
        if not self.c.accept("if"):
            return first
        return self.chosen(first, self.condition(), expected)

    def condition(self) -> Typed:
        """What stands between `if` and `else`: loads in it leave that `else` alone."""
        outer, self.in_condition = self.in_condition, True
        found = self.value_tight()
        self.in_condition = outer
        return found

    def _closed(self) -> Piece:
        """A value in round brackets, whose first is behind us."""
        outer, self.in_condition = self.in_condition, False
        found = self.conditional()
        self.in_condition = outer
        return found

    def chosen(self, first: Piece, condition: Typed, expected: DType | None = None) -> Typed:
        """The `else` of a conditional value, and the whole."""
        self.c.expect("else")
        own = first.dtype if isinstance(first, Typed) else expected
        second = self.conditional(own)
        wanted = second.dtype if isinstance(second, Typed) and isinstance(first, Bare) else own
        value, other = self.settle(first, wanted), self.settle(second, wanted)
        return Typed(ir.If(condition.value, value.value, other.value), value.dtype)

    def operand(self, level: int) -> Piece:
        """A value that binds at least as tightly as `level`."""
        left = self.prefixed()
        while self.c.token.kind == "mark" and self.c.token.text in BINARY:
            mark = self.c.token
            own = LEVELS[mark.text]
            if own < level:
                break
            self.c.take()
            left = self.apply(BINARY[mark.text], [left, self.operand(own + 1)], mark)
            if own == LEVELS["<"] and self.c.at("==", "!=", "<", "<=", ">", ">="):
                self.c.fail("comparisons do not chain: use brackets and &")
        return left

    def prefixed(self) -> Piece:
        mark = self.c.token
        if mark.kind != "mark" or mark.text not in UNARY:
            return self.primary()
        self.c.take()
        inner = self.prefixed()
        if mark.text == "-" and isinstance(inner, Bare) and inner.number is not None:
            text = f"-{inner.token.text}"
            return Bare(-inner.number, None, Token("number", text, mark.offset))
        return self.apply(UNARY[mark.text], [inner], mark)

    def apply(self, op: str, pieces: list[Piece], token: Token) -> Typed:
        """A scalar operator, with bare operands given their types."""
        types = operand_types(
            op, tuple(p.dtype if isinstance(p, Typed) else p.kind for p in pieces)
        )
        if types is None:
            row = SCALARS[op]
            self.c.fail(f"{op} takes {row.arity} operands, not {len(pieces)}", token)
        args = [self.settle(p, t) for p, t in zip(pieces, types, strict=True)]
        try:
            dtype = SCALARS[op].result(*(a.dtype for a in args))
        except SmeltError as error:
            self.c.fail(error.message, token)
        return Typed(ir.Apply(op, tuple(a.value for a in args)), dtype)

    # ---- what needs no brackets ----------------------------------------------------------------

    def primary(self) -> Piece:
        token, following = self.c.token, self.c.ahead(1)
        if token.kind == "number":
            self.c.take()
            return Bare(_literal(token.text), None, token)
        if self.c.accept("("):
            inner = self._closed()
            self.c.expect(")")
            return inner
        if token.kind != "name":
            self.c.fail(f"a value expected, found {self.c.shown()}")
        if following.text == "[" and following.touching:
            found = self.load()
            return Typed(found, self.env.param(found.param).dtype.compute)
        if following.text == "(":
            return self.call()
        if following.text == "'" and following.touching:
            return self._new_state()
        return self._name()

    def _name(self) -> Piece:
        token = self.c.take()
        name = token.text
        if name in ("inf", "nan"):
            return Bare(math.inf if name == "inf" else math.nan, None, token)
        if name in ("true", "false"):
            return Typed(ir.Const(name == "true", bool_), bool_)
        if name == "none":
            return Typed(ir.Const(ir.NO_EXPONENT, i32), i32)
        bound = self.env.names.get(name)
        if bound is not None and bound.index is None:
            return Typed(ir.Ref(name), bound.dtype)
        index = self.names.index(name)
        if index is None:
            self.c.fail(f"{name!r} has no value here", token)
        return Bare(None, index, token)

    def _new_state(self) -> Typed:
        token = self.c.take()
        self.c.expect("'")
        bound = self.env.new.get(token.text)
        if bound is None:
            self.c.fail(f"{token.text}' has no value yet", token)
        return Typed(ir.Ref(token.text, next=True), bound.dtype)

    def load(self) -> ir.Load:
        """`x[r,c]`, perhaps with `else 0`."""
        token = self.c.take()
        param = self.env.params.get(token.text)
        if param is None:
            self.c.fail(f"{token.text!r} is no parameter", token)
        index = self.brackets(param)
        if self.in_condition or not (self.c.at("else") and _is_literal(self.c)):
            return ir.Load(param.name, index)
        self.c.take()
        other = self.settle(self.prefixed(), param.dtype.compute).value
        assert isinstance(other, ir.Const)
        return ir.Load(param.name, index, other)

    def brackets(self, param: ir.Param) -> tuple[Index, ...]:
        """The index of a load or a store."""
        token = self.c.expect("[")
        index: list[Index] = []
        while not self.c.at("]"):
            if index:
                self.c.expect(",")
            whole = param.shape[len(index)] if len(index) < len(param.shape) else None
            index.append(IndexReader(self.c, self.names).anywhere(whole))
        self.c.take()
        if len(index) != len(param.shape):
            rank = len(param.shape)
            self.c.fail(f"{param.name} has {rank} dimensions, not {len(index)}", token)
        return tuple(index)

    def call(self) -> Piece:
        """A function: conversion, fold, index or scalar operator."""
        token = self.c.token
        name = token.text
        if name == "size":
            return Bare(None, IndexReader(self.c, self.names).named_size(), token)
        self.c.take()
        self.c.expect("(")
        if name == "index":
            found: Piece = Bare(None, IndexReader(self.c, self.names).anywhere(), token)
        elif name in EXTREMES:
            found = self._extreme(*EXTREMES[name])
        elif name == "partial":
            found = Typed(ir.Partial(self.settle(self._closed(), None).value), bool_)
        elif name in DTYPES:
            found = self._conversion(DTYPES[name])
        else:
            found = self._function(name, token)
        self.c.expect(")")
        return found

    def _extreme(self, of_axis: bool, largest: bool) -> Typed:
        token = self.c.token
        if of_axis and self.names.axis(token.text) is None:
            self.c.fail(f"{token.text!r} is no axis", token)
        found = self.settle(self._closed(), dtypes.i64 if of_axis else None)
        return Typed(ir.Extreme(found.value, largest), found.dtype)

    def _conversion(self, dtype: DType) -> Typed:
        inner = self._closed()
        if isinstance(inner, Bare):
            return self._as_type(inner, dtype)
        return Typed(ir.Cast(inner.value, dtype), dtype.compute)

    def _function(self, name: str, token: Token) -> Typed:
        if name not in SCALARS and name not in COMBINES and name != "dot":
            self.c.fail(f"{name!r} is no function", token)
        pieces: list[Piece] = []
        while not self.c.at(")"):
            if pieces:
                self.c.expect(",")
            pieces.append(self._closed())
            if self.c.at("over", "along"):
                return self._fold(name, pieces, token)
        if name not in SCALARS:
            self.c.fail(f"'over' and the axes that {name} ends are missing")
        return self.apply(name, pieces, token)

    def _fold(self, name: str, pieces: list[Piece], token: Token) -> Typed:
        word = self.c.take().text
        axes = [self._axis()]
        while self.c.accept(","):
            axes.append(self._axis())
        wanted = DTYPES.get(self.c.take().text) if self.c.accept("as") else None
        if name == "dot" and word == "over":
            if len(pieces) != 2:
                self.c.fail(f"dot takes 2 values, not {len(pieces)}", token)
            product = self.apply("mul", pieces, token)
            assert isinstance(product.value, ir.Apply)
            left, right = product.value.args
            dtype = wanted or self._result("sum", dtype_of(left, self.env), token)
            return Typed(ir.Dot(left, right, tuple(axes), dtype), dtype.compute)
        if name not in COMBINES or len(pieces) != 1:
            self.c.fail(f"{name} does not fold {len(pieces)} values {word} axes", token)
        arg = self.settle(pieces[0], None)
        dtype = wanted or self._result(name, arg.dtype, token)
        if word == "over":
            return Typed(ir.Reduce(name, arg.value, tuple(axes), dtype), dtype.compute)
        if len(axes) != 1:
            self.c.fail("a running fold goes along one axis", token)
        return Typed(ir.Scan(name, arg.value, axes[0], dtype), dtype.compute)

    def _result(self, combine: str, dtype: DType, token: Token) -> DType:
        try:
            return COMBINES[combine].result(dtype)
        except SmeltError as error:
            self.c.fail(error.message, token)

    def _axis(self) -> str:
        token = self.c.token
        name = self.c.name("an axis")
        if name in self.env.names or self.names.axis(name) is None:
            self.c.fail(f"{name!r} is no axis", token)
        return name


def _literal(text: str) -> float | int:
    return int(text) if text.isdigit() else float(text)


def _is_literal(cursor: Cursor) -> bool:
    """Whether what follows the `else` at hand is a number, so that it belongs to the load."""
    place = 2 if cursor.ahead(1).text == "-" else 1
    token, following = cursor.ahead(place), cursor.ahead(place + 1)
    if token.kind == "number" or token.text in ("inf", "nan", "none", "true", "false"):
        return following.text not in ("[", "(", "'") or not following.touching
    return token.text in DTYPES and following.text == "("
