"""Forward stored values to slices of a select by indices (store-to-load forwarding).

Writing into an array is recorded as a select: the new elements at the indices that are written, the
old ones elsewhere.  A loop that writes a row and reads it in the next iteration slices such
selects, each nested in the next.  If the slice lies at known positions, the side that it comes from
is known at compile time.  Otherwise every read would remain a select over all writes so far, and a
loop of n iterations a program of O(n²) operators.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from smelt.graph import build
from smelt.graph.interp import Array
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.create import Iota
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Expand, Slice
from smelt.passes.compose import simplify_view
from smelt.types.tensor import Shape

Box: TypeAlias = tuple[tuple[int, int, int], ...]
"""First position, count and step of a slice along each dimension."""
Known: TypeAlias = dict[tuple[Node, Box], Array | None]

MAX_MASK_ELEMENTS = 4096
"""Maximum number of elements of a mask that are evaluated at compile time."""


def forward_select(graph: Graph) -> Graph:
    """Replace slices of selects by indices with slices of the selected side.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         forward_select(
    ...             parse('''graph f(x: f32[5,n], y: f32[n]) {
    ...   i = iota() {shape=(5, 1), axis=0, dtype=i64}
    ...   m = eq(i, 2:i64)
    ...   z = select(m, y, x)
    ...   r = slice(z) {starts=(1, 0), sizes=(1, n), steps=(1, 1)}
    ...   return r
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[5,n], y: f32[n]) {
      v0 = slice(x) {starts=(1, 0), sizes=(1, n), steps=(1, 1)} : f32[1,n]
      return v0
    }
    """
    cache: Known = {}
    with np.errstate(all="ignore"):
        return rebuild(graph, lambda node: _forward(node, cache))


def _forward(node: Node, cache: Known) -> Node:
    """Replace a slice of a select by a slice of the selected side, repeatedly."""
    op = node.op
    while isinstance(op, Slice):
        (x,) = node.inputs
        if not isinstance(x.op, Map) or not x.op.row.is_select:
            break
        mask, *sides = x.inputs
        box = _box(op, x.type.shape, mask.type.shape)
        mask_values = None if box is None else _evaluate(mask, box, cache)
        if (
            mask_values is None
            or mask_values.size == 0
            or (mask_values.any() and not mask_values.all())
        ):
            break
        z = sides[0] if mask_values.all() else sides[1]
        if z.type.dtype != x.type.dtype:
            break
        if z.type.shape != x.type.shape:
            return _slice_broadcast(node, op, x, z)
        node = build.apply(op, z, origin=node.origin)
    return node


def _slice_broadcast(node: Node, op: Slice, x: Node, z: Node) -> Node:
    """Slice an operand that is broadcast to the shape of the select."""
    expanded = build.apply(Expand(x.type.shape), z, origin=x.origin)
    return simplify_view(build.apply(op, expanded, origin=node.origin))


def _box(op: Slice, shape: Shape, operand_shape: Shape) -> Box | None:
    """Return the part of a (broadcast) operand that a slice takes, or None.

    None if its bounds are not known numbers, or if it has more than `MAX_MASK_ELEMENTS` elements.
    """
    ranges: list[tuple[int, int, int]] = []
    lead = len(shape) - len(operand_shape)
    for a, n in enumerate(operand_shape, lead):
        start, size = op.starts[a], op.sizes[a]
        if n == 1:
            start, size = 0, 1
        if not isinstance(start, int) or not isinstance(size, int):
            return None
        ranges.append((start, size, op.steps[a]))
    return tuple(ranges) if math.prod(size for _, size, _ in ranges) <= MAX_MASK_ELEMENTS else None


def _evaluate(x: Node, box: Box, cache: Known) -> Array | None:
    """Return elements of a value that indices and numbers alone determine, or None."""
    key = x, box
    if key not in cache:
        cache[key] = _evaluate_uncached(x, box, cache)
    return cache[key]


def _evaluate_uncached(x: Node, box: Box, cache: Known) -> Array | None:
    op = x.op
    if isinstance(op, Iota):
        start, size, step = box[op.axis]
        positions = (start + step * np.arange(size)).astype(op.dtype.numpy)
        return positions.reshape([size if a == op.axis else 1 for a in range(len(box))])
    if not isinstance(op, (Map, Cast)):
        number = build.splat(x)
        return None if number is None else number.op.reference({})
    operands: list[Array] = []
    for z in x.inputs:
        lead = len(box) - z.type.rank
        operand_box = [(0, 1, 1) if n == 1 else box[a] for a, n in enumerate(z.type.shape, lead)]
        values = _evaluate(z, tuple(operand_box), cache)
        if values is None:
            return None
        operands.append(values)
    return np.asarray(op.reference({}, *operands))
