"""Rewrite sums of zero-padded arrays that cover disjoint parts as a concatenation.

The gradient of an array that was sliced (into queries, keys and values of one projection, or the
halves of a rotary embedding) is the sum of each slice's gradient, padded with zeros.  Every reader
would read all of them for every element, and add zeros.

    pad(x) at [0, n) + pad(y) at [n, n + m)  ->  concat(x + 0, y + 0)

Adding zero keeps the result bit for bit: the sum turns -0 into +0 as well.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.create import Constant
from smelt.ops.elementwise import Map
from smelt.ops.view import Concat, Pad, Permute
from smelt.types.expr import Index, add

SUM = COMBINES[SUM_OF_PRODUCTS[0]].scalar
"""The scalar operator of addition."""


class _PaddedPart(NamedTuple):
    """An array padded with zeros along one axis, and the padding on both sides."""

    axis: int
    low: Index
    node: Node
    high: Index

    @property
    def end(self) -> Index:
        return add(self.low, self.node.type.shape[self.axis])


def fold_pad_add(graph: Graph) -> Graph:
    """Concatenate arrays that are padded with zeros around disjoint ranges, instead of adding them.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         fold_pad_add(
    ...             parse('''graph f(x: i32[n,k], y: i32[m,k]) {
    ...   a = pad(x) {low=(0, 0), high=(m, 0), value=0}
    ...   b = pad(y) {low=(n, 0), high=(0, 0), value=0}
    ...   r = add(a, b)
    ...   return r
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: i32[n,k], y: i32[m,k]) {
      v0 = concat(x, y) {axis=0} : i32[m + n,k]
      return v0
    }
    """
    return rebuild(graph, _concat_parts)


def _concat_parts(node: Node) -> Node:
    """Return the sum of two adjacent parts as their concatenation, padded as far as needed."""
    if not (isinstance(node.op, Map) and node.op.scalar == SUM):
        return node
    views = {x.op for x in node.inputs}
    if len(views) == 1 and isinstance(view := views.pop(), Permute):  # padding moved below it
        inner = build.apply(node.op, *(x.inputs[0] for x in node.inputs), origin=node.origin)
        result = _concat_parts(inner)
        return node if result is inner else build.apply(view, result, origin=node.origin)
    first, second = (_padded_part(x) for x in node.inputs)
    if first is None or second is None or first.axis != second.axis:
        return node
    if any(x.type != node.type for x in node.inputs):
        return node
    if first.end != second.low:
        first, second = second, first
    if first.end != second.low:
        return node
    a = first.axis
    pieces = [_plus_zero(x) for side in (first, second) for x in _pieces(side.node, a)]
    result = build.apply(Concat(a), *pieces, origin=node.origin)
    low, high = (
        tuple(n if k == a else 0 for k in range(node.type.rank)) for n in (first.low, second.high)
    )
    if any(n != 0 for n in (*low, *high)):
        zero = 0.0 if node.type.dtype.is_float else 0
        result = build.apply(Pad(low, high, zero), result, origin=node.origin)
    return result if result.type == node.type else node


def _padded_part(x: Node) -> _PaddedPart | None:
    """Return the part inside zero padding along one axis, or None."""
    if not isinstance(x.op, Pad) or not _is_zero(x.op.value):
        return None
    sides = list(zip(x.op.low, x.op.high, strict=True))
    axes = [a for a, side in enumerate(sides) if side != (0, 0)]
    if len(axes) != 1:
        return None
    (a,) = axes
    return _PaddedPart(a, sides[a][0], x.inputs[0], sides[a][1])


def _pieces(x: Node, a: int) -> tuple[Node, ...]:
    """Return the parts that were already concatenated along an axis."""
    return x.inputs if isinstance(x.op, Concat) and x.op.axis == a else (x,)


def _plus_zero(x: Node) -> Node:
    """Add zero to an array of floats, unless that was done before."""
    if not x.type.dtype.is_float:
        return x
    if isinstance(x.op, Map) and x.op.scalar == SUM:
        other = x.inputs[1].op
        if isinstance(other, Constant) and _is_zero(other.value):
            return x
    return build.map(SUM, x, build.constant(0.0, x.type.dtype))


def _is_zero(value: float | int | bool) -> bool:
    """Whether a number is +0."""
    return value == 0 and math.copysign(1, value) > 0
