"""What follows from positions and sizes alone is known while compiling, however large it is.

Masks are made of positions: `iota` compared with itself moved, differences between neighbours, runs
that are counted, tables read at every position.  Where sizes are symbols, or arrays large, nothing
of that can be computed beforehand, but most of it is a linear expression of positions:

    i = iota [n]                     p
    j = concat(i[:1] - 1, i)         p - 1      (the first part is what the second continues)
    d = j[1:] - j[:n]                1
    d != 1                           false      so no document ends anywhere, and the mask is causal

A value that is the same everywhere, or a size, becomes that; a choice that is the same everywhere
is what is chosen.  Only integers of 64 bits count, as long as no size that a call can have makes
them overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import reduce
from typing import NoReturn, TypeAlias

import numpy as np

from smelt.dataclass import dataclass
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.unify import is_size
from smelt.graph.walk import rebuild
from smelt.ops.combine import Combine
from smelt.ops.create import SizeOf
from smelt.ops.elementwise import Map
from smelt.ops.index import Gather
from smelt.ops.scalar import SCALARS
from smelt.ops.spec_scalar import ScalarOp
from smelt.ops.view import Concat, Expand
from smelt.passes.compose import splat
from smelt.types.dtype import DType, i64
from smelt.types.expr import (
    Expr,
    Index,
    add,
    axes_of,
    axis,
    bounds,
    mul,
    product,
    size,
    sizes_of,
    sub,
    substitute,
    terms_of,
)
from smelt.types.tensor import TensorType

__all__ = ["positions"]

Value: TypeAlias = Index | bool
"""An element as an expression of its positions p0, p1, .., or a truth value."""

LARGEST = 1 << 12
"""Largest coefficient: sizes are below 2**48, and a sum of few such terms below 2**63."""
TERMS = 6


def positions(graph: Graph) -> Graph:
    """Integers and truth values that follow from positions become numbers.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         positions(
    ...             parse('''graph f(x: f32[n]) {
    ...   i = iota() {shape=(n,), axis=0, dtype=i64}
    ...   m = ge(i, 0:i64)
    ...   y = select(m, x, 0.0:f32)
    ...   return y
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n]) {
      return x
    }
    """
    known: dict[Node, Value] = {}

    def change(node: Node) -> Node:
        new = _chosen(node, known)
        if new not in known and (found := _value(new, known)) is not None:
            known[new] = found
            new = _written(new, found)
            known[new] = found
        return new

    return rebuild(graph, change)


def _chosen(node: Node, known: Mapping[Node, Value]) -> Node:
    """The side that a choice takes everywhere."""
    if not isinstance(node.op, Map) or not node.op.row.chooses:
        return node
    test, *sides = node.inputs
    found = known.get(test)
    if not isinstance(found, bool):
        return node
    side = sides[0 if found else 1]
    if side.type.shape == node.type.shape:
        return side
    return build.apply(Expand(node.type.shape), side, origin=node.origin)


def _written(node: Node, value: Value) -> Node:
    """The node as one number repeated, if it is one."""
    if splat(node) or node.op.is_source or not _alike(value):
        return node
    dtype, origin = node.type.dtype, node.origin
    if isinstance(value, Expr):
        number = build.apply(SizeOf(value, dtype), origin=origin)
    else:
        number = build.constant(value, dtype, origin)
    if not node.type.shape:
        return number
    return build.apply(Expand(node.type.shape), number, origin=origin)


def _value(node: Node, known: Mapping[Node, Value]) -> Value | None:
    """An element of a node at positions p0, p1, .., if it follows from them alone."""
    if node.type.dtype.kind != "bool" and node.type.dtype != i64:
        return None
    if isinstance(node.op, Gather) and _alike(table := known.get(node.inputs[0])):
        return table
    if not node.op.fusible or any(x not in known for x in node.inputs):
        return None
    at = tuple(axis(f"p{k}", n) for k, n in enumerate(node.type.shape))
    definer = _Definer(node.type)
    try:
        if isinstance(node.op, Concat):
            return _joined(node, [known[x] for x in node.inputs])
        given = [_Known(x.type, known[x]) for x in node.inputs]
        found: Value = node.op.define(definer, at, *given)
        return found if isinstance(found, bool) else _small(found)
    except _UnknownError:
        return None


def _alike(value: Value | None) -> bool:
    """Whether all elements are the same."""
    return isinstance(value, bool) or (value is not None and not axes_of(value))


def _joined(node: Node, values: list[Value]) -> Value | None:
    """Parts of which each continues the same expression; a part of one element is a number."""
    assert isinstance(node.op, Concat)
    a, name = node.op.axis, f"p{node.op.axis}"
    begin: Index = 0
    whole: Value | None = None
    alone: list[tuple[Index, Value]] = []
    for x, value in zip(node.inputs, values, strict=True):
        n = x.type.shape[a]
        if isinstance(value, bool):
            moved: Value = value
        else:
            at = sub(axis(name, node.type.shape[a]), begin)
            moved = substitute(value, {name: at})
        if n == 1:
            alone.append((begin, moved))
        elif whole is None:
            whole = moved
        elif whole != moved:
            return None
        begin = add(begin, n)
    for place, value in alone:
        if _put(whole, name, place) != _put(value, name, place):
            return None
    return whole


def _put(value: Value | None, name: str, place: Index) -> Value | None:
    """What a value is at one place."""
    if isinstance(value, bool) or value is None:
        return value
    return substitute(value, {name: place})


class _UnknownError(Exception):
    """A value does not follow from positions, as far as can be seen."""


@dataclass(frozen=True, slots=True)
class _Known:
    """An operand whose elements are known."""

    type: TensorType
    value: Value

    def at(self, *index: Index) -> Value:
        """The element at a position."""
        if isinstance(self.value, bool):
            return self.value
        return substitute(self.value, {f"p{k}": i for k, i in enumerate(index)})


@dataclass(slots=True)
class _Definer:
    """What an operator's definition makes of expressions."""

    type: TensorType
    """Of the whole value: where it has an element, its dimensions are 1 or more."""
    inner: int = field(default=0)

    def apply(self, op: ScalarOp, *args: Value) -> Value:
        if op.chooses and isinstance(args[0], bool):
            return args[1 if args[0] else 2]
        truths = [a for a in args if isinstance(a, bool)]
        if len(truths) == len(args):
            found = op.numpy(*map(np.bool_, truths))
            return bool(found) if found.dtype == bool else self.unknown()
        numbers = [a for a in args if not isinstance(a, bool)]
        if op.chooses or truths:
            return self.unknown()
        if op.linear:
            terms = (mul(a, c) for a, c in zip(numbers, op.linear, strict=True))
            return _small(reduce(add, terms))
        if op.powers and set(op.powers) == {1}:
            return _small(product(numbers))
        return self._compared(op, *numbers) if op.rule.result == "bool" else self.unknown()

    def _compared(self, op: ScalarOp, *args: Index) -> bool:
        """What a test says of two numbers, which depends on the sign of their difference alone."""
        if len(args) != 2:
            return self.unknown()
        gap = sub(*args)
        less = mul(gap, -1)
        ruled = {
            -1: self.least(gap, 0),
            0: self.least(gap, 1) or self.least(less, 1),
            1: self.least(less, 0),
        }
        signs = [s for s, out in ruled.items() if not out]
        found = {bool(op.numpy(np.int64(s), np.int64(0))) for s in signs}
        return found.pop() if len(found) == 1 else self.unknown()

    def cast(self, value: Value, dtype: DType) -> Value:
        if dtype.kind == "bool":
            return bool(value) if isinstance(value, int) else self.unknown()
        return int(value) if isinstance(value, bool) else value

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        if dtype.kind == "bool":
            return bool(value)
        return _small(value) if isinstance(value, int) else self.unknown()

    def index(self, position: Index, dtype: DType) -> Value:
        return _small(position)

    def position(self, value: Value, extent: Index) -> Index:
        """Inside for sure: a place outside would be read elsewhere."""
        if isinstance(value, bool) or not self._within(value, extent):
            return self.unknown()
        return value

    def reduce(
        self,
        combine: Combine,
        dtype: DType,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], Value],
    ) -> Value:
        """What is the same at all positions; of none, a sum is 0 and a fold of truth values is what
        it begins with."""
        value = body(tuple(self._fresh(n) for n in extents))
        if self._varies(value):
            return self.unknown()
        if isinstance(value, bool):
            return value if value is combine.unit(dtype) else self.unknown()
        return _small(mul(value, product(extents))) if _adds(combine) else self.unknown()

    def scan(
        self,
        combine: Combine,
        dtype: DType,
        extent: Index,
        at: Index,
        body: Callable[[Index], Value],
    ) -> Value:
        value = body(self._fresh(extent))
        if self._varies(value) or isinstance(value, bool) or not _adds(combine):
            return self.unknown()
        return _small(mul(value, add(at, 1)))

    def join(
        self,
        how: str,
        first: Value,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], tuple[tuple[tuple[Value, Index], ...], Value]],
    ) -> Value:
        return self.unknown()

    def inside(
        self, limits: tuple[tuple[Index, Index], ...], value: Callable[[], Value], other: Value
    ) -> Value:
        if all(self._within(e, n) for e, n in limits):
            return value()
        if any(self.least(mul(e, -1), 1) or self.least(sub(e, n), 0) for e, n in limits):
            return other
        return other if value() == other else self.unknown()

    def _within(self, e: Index, extent: Index) -> bool:
        return self.least(e, 0) and self.least(sub(sub(extent, 1), e), 0)

    def dot(
        self,
        dtype: DType,
        extents: tuple[Index, ...],
        body: Callable[[tuple[Index, ...]], tuple[Value, Value]],
    ) -> Value:
        return self.unknown()

    def unknown(self) -> NoReturn:
        raise _UnknownError

    def least(self, value: Index, least: int) -> bool:
        """Whether a number is so much for sure, wherever the value has an element.  Sizes may be 0
        unless one of its dimensions is one of them."""
        span = bounds(sub(value, least))
        if span is None:
            return False
        more = {n: add(size(n), 1) for d in self.type.shape if is_size(d) for n in sizes_of(d)}
        low = substitute(span[0], more, "size")
        return all(c >= 0 and all(a.kind == "size" for a in m) for m, c in terms_of(low))

    def _fresh(self, extent: Index) -> Index:
        self.inner += 1
        return axis(f"q{self.inner}", extent)

    def _varies(self, value: Value) -> bool:
        return not isinstance(value, bool) and any(n[0] == "q" for n in axes_of(value))


def _small(e: Index) -> Index:
    """A linear expression that cannot overflow."""
    terms = terms_of(e)
    linear = all(len(m) <= 1 and all(a.kind in ("size", "axis") for a in m) for m, _ in terms)
    if len(terms) > TERMS or not linear or any(abs(c) > LARGEST for m, c in terms if m):
        raise _UnknownError
    if any(abs(c) >= 1 << 61 for m, c in terms if not m):
        raise _UnknownError
    return e


def _adds(combine: Combine) -> bool:
    """Whether a fold is a sum of what it takes."""
    return not combine.positional and SCALARS[combine.scalar].linear == (1, 1)
