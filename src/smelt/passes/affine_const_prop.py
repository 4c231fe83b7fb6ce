"""Propagate affine functions of indices, so that masks and positions fold at compile time.

Masks are computed from positions: `iota` compared with a shifted copy of itself, differences
between neighbours, running counts, tables read at every position.  Ordinary constant folding fails
where sizes are symbols or arrays are large, but most of these values are affine in the element's
index:

    i = iota [n]                     p
    j = concat(i[:1] - 1, i)         p - 1      (the first piece continues the second)
    d = j[1:] - j[:n]                1
    d != 1                           false      so no document ends anywhere, and the mask is causal

A value that is the same at every index, or equal to a size, becomes that number; a select whose
mask is constant becomes the selected side.  Only booleans and 64-bit integers take part, and only
while no size that a call can have makes them overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import reduce
from typing import NoReturn, TypeAlias

import numpy as np

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.combine import Combine
from smelt.ops.create import SizeOf
from smelt.ops.elementwise import Map
from smelt.ops.index import Gather
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import Element, Indices, Limits, ScalarOp, Update
from smelt.ops.view import Concat, Expand
from smelt.python.dataclass import dataclass
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
    sub,
    substitute,
    symbol_of,
    terms_of,
)
from smelt.types.tensor import TensorType

Value: TypeAlias = Index | bool
"""An element as an expression of its index p0, p1, .., or a truth value."""

MAX_COEFFICIENT = 1 << 12
"""Largest coefficient: sizes are below 2**48, so a sum of `MAX_TERMS` such terms is below 2**63."""
MAX_TERMS = 6
"""Maximum number of terms of an expression that is propagated."""


def propagate_affine(graph: Graph) -> Graph:
    """Replace integers and booleans that depend on indices alone by numbers.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         propagate_affine(
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
    values: dict[Node, Value] = {}

    def change(node: Node) -> Node:
        new = _fold_select(node, values)
        if new not in values and (value := _value(new, values)) is not None:
            values[new] = value
            new = _as_constant(new, value)
            values[new] = value
        return new

    return rebuild(graph, change)


def _fold_select(node: Node, values: Mapping[Node, Value]) -> Node:
    """Replace a select whose mask is constant by the selected side."""
    if not isinstance(node.op, Map) or not node.op.row.is_select:
        return node
    test, *sides = node.inputs
    taken = values.get(test)
    if not isinstance(taken, bool):
        return node
    side = sides[0 if taken else 1]
    if side.type.shape == node.type.shape:
        return side
    return build.apply(Expand(node.type.shape), side, origin=node.origin)


def _as_constant(node: Node, value: Value) -> Node:
    """Replace a node by a broadcast number if its value is uniform."""
    if build.splat(node) or node.op.is_source or not _is_uniform(value):
        return node
    dtype, origin = node.type.dtype, node.origin
    if isinstance(value, Expr):
        number = build.apply(SizeOf(value, dtype), origin=origin)
    else:
        number = build.constant(value, dtype, origin)
    if not node.type.shape:
        return number
    return build.apply(Expand(node.type.shape), number, origin=origin)


def _value(node: Node, values: Mapping[Node, Value]) -> Value | None:
    """Return an element of a node as a function of its index, or None."""
    if node.type.dtype.kind != "bool" and node.type.dtype != i64:
        return None
    if isinstance(node.op, Gather) and _is_uniform(table := values.get(node.inputs[0])):
        return table
    if not node.op.fusible or any(x not in values for x in node.inputs):
        return None
    at = tuple(axis(f"p{k}", n) for k, n in enumerate(node.type.shape))
    definer = _AffineDefiner(node.type)
    try:
        if isinstance(node.op, Concat):
            return _concat(node, [values[x] for x in node.inputs])
        operands = [_AffineOperand(x.type, values[x]) for x in node.inputs]
        element: Value = node.op.define(definer, at, *operands)
        return element if isinstance(element, bool) else _checked(element)
    except _NotAffineError:
        return None


def _is_uniform(value: Value | None) -> bool:
    return isinstance(value, bool) or (value is not None and not axes_of(value))


def _concat(node: Node, values: list[Value]) -> Value | None:
    """Return the common expression of concatenated pieces, or None if they disagree.

    A piece of one element only has to agree with the others at its position.
    """
    assert isinstance(node.op, Concat)
    a, name = node.op.axis, f"p{node.op.axis}"
    begin: Index = 0
    common: Value | None = None
    single_pieces: list[tuple[Index, Value]] = []
    for x, value in zip(node.inputs, values, strict=True):
        n = x.type.shape[a]
        if isinstance(value, bool):
            shifted: Value = value
        else:
            at = sub(axis(name, node.type.shape[a]), begin)
            shifted = substitute(value, {name: at})
        if n == 1:
            single_pieces.append((begin, shifted))
        elif common is None:
            common = shifted
        elif common != shifted:
            return None
        begin = add(begin, n)
    for position, value in single_pieces:
        if _substituted(common, name, position) != _substituted(value, name, position):
            return None
    return common


def _substituted(value: Value | None, name: str, position: Index) -> Value | None:
    """Return a value at one position of axis `name`."""
    if isinstance(value, bool) or value is None:
        return value
    return substitute(value, {name: position})


class _NotAffineError(Exception):
    """Raised where a value cannot be shown to be an affine function of indices."""


@dataclass(frozen=True, slots=True)
class _AffineOperand:
    """Operand of `define` whose elements are affine functions of its index."""

    type: TensorType
    value: Value

    def at(self, *index: Index) -> Value:
        """The element at a position."""
        if isinstance(self.value, bool):
            return self.value
        return substitute(self.value, {f"p{k}": i for k, i in enumerate(index)})


@dataclass(slots=True)
class _AffineDefiner:
    """Evaluate an operator's definition on affine expressions."""

    type: TensorType
    """Type of the result: where it has an element, its dimensions are at least 1."""
    inner: int = field(default=0)
    """Number of inner axes q1, q2, .. in use."""

    def apply(self, op: ScalarOp, *args: Value) -> Value:
        if op.is_select and isinstance(args[0], bool):
            return args[1 if args[0] else 2]
        truths = [a for a in args if isinstance(a, bool)]
        if len(truths) == len(args):
            result = op.numpy(*map(np.bool_, truths))
            return bool(result) if result.dtype == bool else self.unknown()
        numbers = [a for a in args if not isinstance(a, bool)]
        if op.is_select or truths:
            return self.unknown()
        if op.linear:
            terms = (mul(a, c) for a, c in zip(numbers, op.linear, strict=True))
            return _checked(reduce(add, terms))
        if op.powers and set(op.powers) == {1}:
            return _checked(product(numbers))
        return self._compare(op, *numbers) if op.rule.result == "bool" else self.unknown()

    def _compare(self, op: ScalarOp, *args: Index) -> bool:
        """Evaluate a comparison if its result is certain: the sign of the difference decides."""
        if len(args) != 2:
            return self.unknown()
        difference = sub(*args)
        negated = mul(difference, -1)
        excluded = {
            -1: self.least(difference, 0),
            0: self.least(difference, 1) or self.least(negated, 1),
            1: self.least(negated, 0),
        }
        signs = [s for s, impossible in excluded.items() if not impossible]
        answers = {bool(op.numpy(np.int64(s), np.int64(0))) for s in signs}
        return answers.pop() if len(answers) == 1 else self.unknown()

    def cast(self, value: Value, dtype: DType) -> Value:
        if dtype.kind == "bool":
            return bool(value) if isinstance(value, int) else self.unknown()
        return int(value) if isinstance(value, bool) else value

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        if dtype.kind == "bool":
            return bool(value)
        return _checked(value) if isinstance(value, int) else self.unknown()

    def index(self, position: Index, dtype: DType) -> Value:
        return _checked(position)

    def position(self, value: Value, extent: Index) -> Index:
        """Return an index that is certainly in bounds.

        An index out of bounds would be read elsewhere.
        """
        if isinstance(value, bool) or not self._is_in_bounds(value, extent):
            return self.unknown()
        return value

    def reduce(
        self, combine: Combine, dtype: DType, extents: Indices, body: Element[Value]
    ) -> Value:
        """Reduce a value that is equal at all positions: a sum is n times the value.

        Over no positions a sum is 0 and a boolean reduction its identity, so a boolean must equal
        the identity.
        """
        value = body(tuple(self._new_axis(n) for n in extents))
        if self._has_inner_axis(value):
            return self.unknown()
        if isinstance(value, bool):
            return value if value is combine.unit(dtype) else self.unknown()
        return _checked(mul(value, product(extents))) if _is_sum(combine) else self.unknown()

    def scan(
        self,
        combine: Combine,
        dtype: DType,
        extent: Index,
        at: Index,
        body: Callable[[Index], Value],
    ) -> Value:
        value = body(self._new_axis(extent))
        if self._has_inner_axis(value) or isinstance(value, bool) or not _is_sum(combine):
            return self.unknown()
        return _checked(mul(value, add(at, 1)))

    def join(self, how: str, first: Value, extents: Indices, body: Update[Value]) -> Value:
        return self.unknown()

    def inside(self, limits: Limits, value: Callable[[], Value], other: Value) -> Value:
        if all(self._is_in_bounds(e, n) for e, n in limits):
            return value()
        if any(self.least(mul(e, -1), 1) or self.least(sub(e, n), 0) for e, n in limits):
            return other
        return other if value() == other else self.unknown()

    def _is_in_bounds(self, e: Index, extent: Index) -> bool:
        return self.least(e, 0) and self.least(sub(sub(extent, 1), e), 0)

    def dot(self, dtype: DType, extents: Indices, body: Element[tuple[Value, Value]]) -> Value:
        return self.unknown()

    def unknown(self) -> NoReturn:
        raise _NotAffineError

    def least(self, value: Index, least: int) -> bool:
        """Whether `value` >= `least` wherever the result has an element.

        Sizes may be 0, except those that are dimensions of the result.
        """
        limits = bounds(sub(value, least))
        if limits is None:
            return False
        positive_sizes = {
            n: add(size(n), 1) for d in self.type.shape if (n := symbol_of(d)) is not None
        }
        lower_bound = substitute(limits[0], positive_sizes, "size")
        return all(c >= 0 and all(a.kind == "size" for a in m) for m, c in terms_of(lower_bound))

    def _new_axis(self, extent: Index) -> Index:
        self.inner += 1
        return axis(f"q{self.inner}", extent)

    def _has_inner_axis(self, value: Value) -> bool:
        return not isinstance(value, bool) and any(n[0] == "q" for n in axes_of(value))


def _checked(e: Index) -> Index:
    """Return a linear expression that cannot overflow; raise `_NotAffineError` for others."""
    terms = terms_of(e)
    linear = all(len(m) <= 1 and all(a.kind in ("size", "axis") for a in m) for m, _ in terms)
    if len(terms) > MAX_TERMS or not linear or any(abs(c) > MAX_COEFFICIENT for m, c in terms if m):
        raise _NotAffineError
    if any(abs(c) >= 1 << 61 for m, c in terms if not m):
        raise _NotAffineError
    return e


def _is_sum(combine: Combine) -> bool:
    """Whether a reduction is a plain sum."""
    return not combine.positional and SCALARS[combine.scalar].linear == (1, 1)
