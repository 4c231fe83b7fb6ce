"""Parse values and index expressions, inferring types.

The types of bare literals come from their context (`smelt.kernel.text_print`), so a parsed
value is either typed or waits, as `Bare`, until its context is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Final, TypeAlias

import numpy as np

from smelt.errors import SmeltError
from smelt.kernel import ir
from smelt.kernel.env import Env, dtype_of
from smelt.kernel.text_lex import MAX_NESTING, Cursor, Token
from smelt.kernel.text_print import (
    BINARY,
    EXTREMES,
    LEVELS,
    RENAME,
    RESERVED,
    UNARY,
    Flexible,
    bare_type,
    operand_types,
)
from smelt.kernel.walk import children
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types import dtype as dtypes
from smelt.types import expr
from smelt.types.dtype import DType, bool_, i32
from smelt.types.expr import Index
from smelt.types.text import too_large, too_large_product

DTYPES: Final = {d.name: d for d in dtypes.DTYPES}
_EXTREMES: Final = {"min": expr.minimum, "max": expr.maximum}


@dataclass(frozen=True, slots=True)
class Bare:
    """Number or index whose type follows from its context."""

    number: float | int | None
    index: Index | None
    token: Token

    @property
    def kind(self) -> Flexible:
        return "number" if self.index is None else "index"


@dataclass(frozen=True, slots=True)
class Typed:
    """Value of known type."""

    value: ir.Value
    dtype: DType


Piece: TypeAlias = Bare | Typed


@dataclass
class Names:
    """Meaning of the names of a kernel while it is parsed."""

    env: Env
    extents: dict[str, Index]
    """Extents of the axes declared or used so far."""
    sizes: set[str]
    parts: dict[str, Index] = field(default_factory=dict)
    """Part axes and their numbers of parts."""
    hoisted: list[ir.Statement] = field(default_factory=list)
    """Positions computed in place by an index expression."""

    def axis(self, name: str) -> Index | None:
        """Return the index of an axis, or None; an unbound size names its own axis."""
        if name in self.parts and name not in self.extents:
            return expr.axis(name, self.parts[name])
        if name not in self.extents:
            if name not in self.sizes or name in RESERVED:
                return None
            self.extents[name] = expr.size(name)
        return expr.axis(name, self.extents[name])

    def index(self, name: str) -> Index | None:
        """Return what a bare name means in an index: an axis or a computed position."""
        bound = self.env.names.get(name)
        if bound is not None:
            return None if bound.index is None else expr.value(name, bound.index)
        return self.axis(name)


class IndexReader:
    """Parser of index expressions: sums and products of integers, sizes, axes, positions."""

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.c, self.names = cursor, names

    def size_expression(self) -> Index:
        """Parse an expression where a bare name is a size: shapes, extents, facts."""
        return self._sum(self._size)

    def index_expression(self, dimension: Index | None = None) -> Index:
        """Parse an expression where a bare name is an axis or a position.

        `size(n)` is a size. `dimension` is the extent of the indexed dimension, for positions
        computed in place.
        """
        return self._sum(lambda: self._axis_or_position(dimension))

    def _sum(self, leaf: Callable[[], Index]) -> Index:
        negative = self.c.accept("-")
        total = self._product(leaf)
        total = expr.mul(total, -1) if negative else total
        while self.c.at("+", "-"):
            mark = self.c.take()
            step = expr.add if mark.text == "+" else expr.sub
            total = self._within_limits(step(total, self._product(leaf)), mark)
        return total

    def _within_limits(self, e: Index, token: Token) -> Index:
        """Return an expression, or fail if it is too large."""
        reason = too_large(e)
        if reason:
            self.c.fail(f"{reason} expected", token)
        return e

    def _product(self, leaf: Callable[[], Index]) -> Index:
        total = self._factor(leaf)
        while self.c.at("*", "//", "%"):
            mark = self.c.take()
            right = self._factor(leaf)
            if mark.text != "*" and right == 0:
                self.c.fail("division by zero", mark)
            reason = too_large_product(total, right) if mark.text == "*" else ""
            if reason:
                self.c.fail(f"{reason} expected", mark)
            step = {"*": expr.mul, "//": expr.floordiv, "%": expr.mod}[mark.text]
            total = self._within_limits(step(total, right), mark)
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
        if self.c.at(*_EXTREMES) and self.c.lookahead(1).text == "(":
            mark = self.c.take()
            self.c.expect("(")
            left = self._sum(leaf)
            self.c.expect(",")
            right = self._sum(leaf)
            self.c.expect(")")
            return self._within_limits(_EXTREMES[mark.text](left, right), mark)
        if self.c.at("size") and self.c.lookahead(1).text == "(":
            return self.named_size()
        return leaf()

    def named_size(self) -> Index:
        """Parse `size(n)`."""
        self.c.take()
        self.c.expect("(")
        size = self._size()
        self.c.expect(")")
        return size

    def _size(self) -> Index:
        token = self.c.token
        name = self.c.name("a size")
        if token.text in RESERVED:
            self.c.fail(f"{name!r} cannot name a size", token)
        self.names.sizes.add(name)
        return expr.size(name)

    def _axis_or_position(self, dimension: Index | None) -> Index:
        token, following = self.c.token, self.c.lookahead(1)
        if token.kind == "name" and following.text == "[" and following.adjacent:
            if dimension is None:
                self.c.fail("a computed position has no place here", token)
            return self._computed(dimension)
        name = self.c.name("an axis, a position, a size or a whole number")
        index = self.names.index(name)
        if index is None:
            self.c.fail(
                f"{name!r} is neither an axis nor a position (a size reads size({name}))", token
            )
        return index

    def _computed(self, dimension: Index) -> Index:
        """Parse `table[ids[t], d]`: the inner load becomes a hoisted position."""
        value = ValueReader(self.c, self.names).load()
        k = len(self.names.env.names) + len(self.names.hoisted)
        name = f"{value.param}_{k}"
        statement = ir.Position(name, value, dimension)
        self.names.env.bind(statement)
        self.names.hoisted.append(statement)
        return expr.value(name, dimension)


class ValueReader:
    """Operator-precedence parser of values."""

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.c, self.names = cursor, names
        self.in_condition = False

    @property
    def env(self) -> Env:
        return self.names.env

    def value(self, expected: DType | None = None) -> Typed:
        """Parse a value; literals at its top level become `expected`."""
        return self.check_depth(self.resolve_type(self.conditional(expected), expected))

    def value_tight(self) -> Typed:
        """Parse a value without a trailing condition."""
        return self.check_depth(self.resolve_type(self.operand(LEVELS["if"] + 1), None))

    def check_depth(self, typed: Typed) -> Typed:
        """Return the value, or fail if it is too deep for recursive passes."""
        level, depth = [typed.value], 0
        while level:
            level, depth = [child for v in level for child in children(v)], depth + 1
            if depth > 4 * MAX_NESTING:
                self.c.fail("a value of so many operators has to be cut in pieces with names")
        return typed

    def resolve_type(self, piece: Piece, expected: DType | None) -> Typed:
        """Give a parsed piece its type."""
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
            is_integer = math.isfinite(number) and number == int(number)
            if dtype == bool_ or not is_integer:
                self.c.fail(f"{piece.token.text} is not {dtype.name}", piece.token)
            info = np.iinfo(dtype.numpy)
            if not info.min <= number <= info.max:
                self.c.fail(f"{piece.token.text} does not fit {dtype.name}", piece.token)
        return Typed(ir.Const(number, dtype), dtype.compute)

    def conditional(self, expected: DType | None = None) -> Piece:
        """Parse `a if c else b`, or anything that binds tighter."""
        first = self.operand(LEVELS["if"] + 1)
        if not self.c.accept("if"):
            return first
        return self.finish_conditional(first, self.condition(), expected)

    def condition(self) -> Typed:
        """Parse the condition between `if` and `else`; its loads do not take that `else`."""
        outer, self.in_condition = self.in_condition, True
        typed = self.value_tight()
        self.in_condition = outer
        return typed

    def _bracketed(self) -> Piece:
        """Parse a value in round brackets, after the opening one."""
        outer, self.in_condition = self.in_condition, False
        piece = self.conditional()
        self.in_condition = outer
        return piece

    def finish_conditional(
        self, first: Piece, condition: Typed, expected: DType | None = None
    ) -> Typed:
        """Parse the `else` of a conditional value and return the conditional."""
        self.c.expect("else")
        first_dtype = first.dtype if isinstance(first, Typed) else expected
        second = self.conditional(first_dtype)
        dtype = (
            second.dtype if isinstance(second, Typed) and isinstance(first, Bare) else first_dtype
        )
        value, other = self.resolve_type(first, dtype), self.resolve_type(second, dtype)
        return Typed(ir.If(condition.value, value.value, other.value), value.dtype)

    def operand(self, level: int) -> Piece:
        """Parse a value that binds at least as tightly as `level`."""
        left = self.unary()
        while self.c.token.kind == "mark" and self.c.token.text in BINARY:
            mark = self.c.token
            binding = LEVELS[mark.text]
            if binding < level:
                break
            self.c.take()
            left = self.apply(BINARY[mark.text], [left, self.operand(binding + 1)], mark)
            if binding == LEVELS["<"] and self.c.at("==", "!=", "<", "<=", ">", ">="):
                self.c.fail("comparisons do not chain: use brackets and &")
        return left

    def unary(self) -> Piece:
        mark = self.c.token
        if mark.kind != "mark" or mark.text not in UNARY:
            return self.primary()
        self.c.take()
        inner = self.unary()
        if mark.text == "-" and isinstance(inner, Bare) and inner.number is not None:
            text = f"-{inner.token.text}"
            return Bare(-inner.number, None, Token("number", text, mark.offset))
        return self.apply(UNARY[mark.text], [inner], mark)

    def apply(self, op: str, pieces: list[Piece], token: Token) -> Typed:
        """Apply a scalar operator, giving untyped operands their types."""
        types = operand_types(
            op, tuple(p.dtype if isinstance(p, Typed) else p.kind for p in pieces)
        )
        if types is None:
            row = SCALARS[op]
            self.c.fail(f"{op} takes {row.arity} operands, not {len(pieces)}", token)
        args = [self.resolve_type(p, t) for p, t in zip(pieces, types, strict=True)]
        try:
            dtype = SCALARS[op].result(*(a.dtype for a in args))
        except SmeltError as error:
            self.c.fail(error.message, token)
        return Typed(ir.Apply(op, tuple(a.value for a in args)), dtype)

    # ---- primaries -----------------------------------------------------------------------------

    def primary(self) -> Piece:
        token, following = self.c.token, self.c.lookahead(1)
        if token.kind == "number":
            self.c.take()
            return Bare(_literal(token.text), None, token)
        if self.c.accept("("):
            inner = self._bracketed()
            self.c.expect(")")
            return inner
        if token.kind != "name":
            self.c.fail(f"a value expected, found {self.c.token_text()}")
        if following.text == "[" and following.adjacent:
            load = self.load()
            return Typed(load, self.env.param(load.param).dtype.compute)
        if following.text == "(":
            return self.call()
        if following.text == "'" and following.adjacent:
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
        """Parse `x[r,c]`, optionally followed by `else 0`."""
        token = self.c.take()
        param = self.env.params.get(token.text)
        if param is None:
            self.c.fail(f"{token.text!r} is not a parameter", token)
        index = self.brackets(param)
        if self.in_condition or not (self.c.at("else") and _is_literal(self.c)):
            return ir.Load(param.name, index)
        self.c.take()
        other = self.resolve_type(self.unary(), param.dtype.compute).value
        assert isinstance(other, ir.Const)
        return ir.Load(param.name, index, other)

    def brackets(self, param: ir.Param) -> tuple[Index, ...]:
        """Parse the index of a load or a store."""
        token = self.c.expect("[")
        extents, reader = iter(param.shape), IndexReader(self.c, self.names)
        index = self.c.until("]", read=lambda: reader.index_expression(next(extents, None)))
        self.c.take()
        if len(index) != len(param.shape):
            rank = len(param.shape)
            self.c.fail(f"{param.name} has {rank} dimensions, not {len(index)}", token)
        return tuple(index)

    def call(self) -> Piece:
        """Parse a call: conversion, reduction, index or scalar operator."""
        token = self.c.token
        name = token.text
        if name == "size":
            return Bare(None, IndexReader(self.c, self.names).named_size(), token)
        self.c.take()
        self.c.expect("(")
        if name == "index":
            piece: Piece = Bare(None, IndexReader(self.c, self.names).index_expression(), token)
        elif name in EXTREMES:
            piece = self._extreme(*EXTREMES[name])
        elif name == "partial":
            piece = Typed(ir.Partial(self.resolve_type(self._bracketed(), None).value), bool_)
        elif name in DTYPES:
            piece = self._conversion(DTYPES[name])
        elif name == RENAME:
            piece = self._renamed()
        else:
            piece = self._function(name, token)
        self.c.expect(")")
        return piece

    def _extreme(self, of_axis: bool, largest: bool) -> Typed:
        token = self.c.token
        if of_axis and self.names.axis(token.text) is None:
            self.c.fail(f"{token.text!r} is not an axis", token)
        typed = self.resolve_type(self._bracketed(), dtypes.i64 if of_axis else None)
        return Typed(ir.Extreme(typed.value, largest), typed.dtype)

    def _conversion(self, dtype: DType) -> Typed:
        inner = self._bracketed()
        if isinstance(inner, Bare):
            return self._as_type(inner, dtype)
        return Typed(ir.Cast(inner.value, dtype), dtype.compute)

    def _renamed(self) -> Typed:
        arg = self.resolve_type(self._bracketed(), None)
        self.c.expect(",")
        old = self._axis()
        self.c.expect("to")
        return Typed(ir.Rename(arg.value, old, self._axis()), arg.dtype)

    def _function(self, name: str, token: Token) -> Typed:
        if name not in SCALARS and name not in COMBINES and name != "dot":
            self.c.fail(f"{name!r} is not a function", token)
        pieces: list[Piece] = []
        while not self.c.at(")"):
            if pieces:
                self.c.expect(",")
            pieces.append(self._bracketed())
            if self.c.at("over", "along"):
                return self._reduction(name, pieces, token)
        if name not in SCALARS:
            self.c.fail(f"'over' and the axes that {name} ends are missing")
        return self.apply(name, pieces, token)

    def _reduction(self, name: str, pieces: list[Piece], token: Token) -> Typed:
        word = self.c.take().text
        axes = self.c.listed(self._axis)
        dtype_written = DTYPES.get(self.c.take().text) if self.c.accept("as") else None
        if name == "dot" and word == "over":
            if len(pieces) != 2:
                self.c.fail(f"dot takes 2 values, not {len(pieces)}", token)
            product = self.apply("mul", pieces, token)
            assert isinstance(product.value, ir.Apply)
            left, right = product.value.args
            dtype = dtype_written or self._result("sum", dtype_of(left, self.env), token)
            return Typed(ir.Dot(left, right, tuple(axes), dtype), dtype.compute)
        if name not in COMBINES or len(pieces) != 1:
            self.c.fail(f"{name} does not reduce {len(pieces)} values {word} axes", token)
        arg = self.resolve_type(pieces[0], None)
        dtype = dtype_written or self._result(name, arg.dtype, token)
        if word == "over":
            return Typed(ir.Reduce(name, arg.value, tuple(axes), dtype), dtype.compute)
        if len(axes) != 1:
            self.c.fail("a scan goes along one axis", token)
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
            self.c.fail(f"{name!r} is not an axis", token)
        return name


def _literal(text: str) -> float | int:
    return int(text) if text.isdigit() else float(text)


def _is_literal(cursor: Cursor) -> bool:
    """Return whether the `else` at the cursor is part of a load: a literal follows."""
    place = 2 if cursor.lookahead(1).text == "-" else 1
    token, following = cursor.lookahead(place), cursor.lookahead(place + 1)
    if token.kind == "number" or token.text in ("inf", "nan", "none", "true", "false"):
        return following.text not in ("[", "(", "'") or not following.adjacent
    return token.text in DTYPES and following.text == "("
