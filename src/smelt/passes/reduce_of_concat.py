"""Split reductions of concatenated arrays into reductions of the pieces.

A softmax over a row of scores with a number appended (an attention sink, the positive pair of a
contrastive loss) would have to write and read that row again.  But its maximum and sum follow from
those of the pieces, so nothing reads the concatenated row any more, and each piece is reduced where
it is computed.  Sums of pieces are added in the accumulator type, so no rounding is added; a sum
whose accumulator is no wider than its elements is left alone.  So is a row that something reads as
a whole, and one without a contraction among its pieces, which does not pay.

    max(concat(x @ w, c) over n)  ->  maximum(max(x @ w over n), max(c over n))
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import reachable, rebuild_from, users
from smelt.ops.contract import Contract
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce, accumulator
from smelt.ops.view import Concat, Slice
from smelt.passes.nest_reductions import elementwise_sources
from smelt.types.expr import Index, add

MAX_JOINED_PARTS = 4
"""Maximum number of pieces that a reduction is split into."""


def split_concat_reductions(graph: Graph) -> Graph:
    """Reduce concatenated pieces separately, and combine the results.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         split_concat_reductions(
    ...             parse('''graph f(x: f32[n,k], w: f32[k,c], b: f32[n,1]) {
    ...   z = contract(x, w) {spec="n,k; k,c -> n,c"}
    ...   r = concat(z, b) {axis=1}
    ...   a = abs(r)
    ...   m = reduce.max(a) {axes=(1,)}
    ...   return m
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,k], w: f32[k,c], b: f32[n,1]) {
      v0 = contract(x, w) {spec="n,k; k,c -> n,c"} : f32[n,c]
      v1 = abs(v0) : f32[n,c]
      v2 = reduce.max(v1) {axes=(1,)} : f32[n]
      v3 = abs(b) : f32[n,1]
      v4 = reduce.max(v3) {axes=(1,)} : f32[n]
      v5 = max(v2, v4) : f32[n]
      return v5
    }
    """
    concats = {x for x in graph.nodes() if isinstance(x.op, Concat) and _pays(x)}
    if not concats:
        return graph
    readers, outputs, slices = users(graph), set(graph.outputs), _Slices()

    def change(node: Node, old: Node) -> Node:
        if isinstance(node.op, Reduce):
            for concat_axis in _concats_along_axes(old, concats):
                if not _is_read_whole(concat_axis, readers, outputs):
                    return _split(node, concat_axis, slices)
        return node

    return rebuild_from(graph, change)


class _ConcatAxis(NamedTuple):
    """A concatenation behind a reduction's operand, and its axis, counted from the end."""

    concat: Node
    axis: int


def _pays(concat: Node) -> bool:
    """Whether there are few pieces, with a contraction among them."""
    return len(concat.inputs) <= MAX_JOINED_PARTS and any(
        isinstance(x.op, Contract) for part in concat.inputs for x in elementwise_sources(part)
    )


def _concats_along_axes(reduction: Node, concats: Container[Node]) -> Iterator[_ConcatAxis]:
    """Yield concatenations behind a reduction's operand along one of its axes."""
    (x,) = reduction.inputs
    assert isinstance(reduction.op, Reduce)
    for a in reduction.op.axes if not reduction.op.row.positional else ():
        for y in _sources_along(x, a - x.type.rank):
            if (
                y in concats
                and isinstance(y.op, Concat)
                and y.op.axis == y.type.rank + a - x.type.rank
            ):
                yield _ConcatAxis(y, a - x.type.rank)


def _sources_along(x: Node, a: int) -> Iterator[Node]:
    """Yield what a value reads elementwise along an axis, counted from the end."""

    def operands(y: Node) -> list[Node]:
        read = y.inputs if isinstance(y.op, (Map, Cast)) else ()
        return [z for z in read if z.type.rank >= -a and z.type.shape[a] != 1]

    return reachable([x], operands)


def _is_read_whole(
    concat_axis: _ConcatAxis, readers: Mapping[Node, Sequence[Node]], outputs: set[Node]
) -> bool:
    """Whether something other than reductions reads whole concatenated rows.

    Values computed elementwise from them count too.
    """
    seen: set[Node] = {concat_axis.concat}
    pending = [concat_axis.concat]
    while pending:
        x = pending.pop()
        if x in outputs:
            return True
        for y in readers[x]:
            if isinstance(y.op, Reduce):
                if x.type.rank + concat_axis.axis in y.op.axes and not y.op.row.positional:
                    continue
                return True
            if (
                isinstance(y.op, Slice)
                and y.type.shape[concat_axis.axis] != x.type.shape[concat_axis.axis]
            ):
                continue
            if not isinstance(y.op, (Map, Cast)):
                return True
            if y not in seen:
                seen.add(y)
                pending.append(y)
    return False


def _split(node: Node, concat_axis: _ConcatAxis, slices: _Slices) -> Node:
    """Combine reductions of the pieces into the reduction of the whole."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Reduce)
    accumulator_type = accumulator(op.row, node.type.dtype)
    if accumulator_type == x.type.dtype and x.type.dtype.is_float and not op.row.idempotent:
        return node
    partials: list[Node] = []
    start: Index = 0
    for piece in concat_axis.concat.inputs:
        width = piece.type.shape[concat_axis.axis]
        operand = build.cast(slices.of(x, concat_axis.axis, start, width), accumulator_type)
        partials.append(build.apply(op, operand, origin=node.origin))
        start = add(start, width)
    total = reduce(lambda y, z: build.map(op.row.scalar, y, z, origin=node.origin), partials)
    return build.cast(total, node.type.dtype)


class _Slices:
    """Slices of values along an axis counted from the end, each built once."""

    def __init__(self) -> None:
        self.known: dict[tuple[Node, int, Index, Index], Node] = {}

    def of(self, x: Node, a: int, start: Index, width: Index) -> Node:
        """Slice `width` positions from `start`.

        A value without the axis, or with extent 1 along it, is returned as it is.
        """
        if x.type.rank < -a or x.type.shape[a] == 1:
            return x
        key = x, a, start, width
        part = self.known.get(key)
        if part is None:
            part = self.known[key] = self._build(x, a, start, width)
        return part

    def _build(self, x: Node, a: int, start: Index, width: Index) -> Node:
        if isinstance(x.op, (Map, Cast)):
            operands = [self.of(z, a, start, width) for z in x.inputs]
            return build.apply(x.op, *operands, origin=x.origin)
        if isinstance(x.op, Concat) and x.op.axis == x.type.rank + a:
            at: Index = 0
            for part in x.inputs:
                if (at, part.type.shape[a]) == (start, width):
                    return part
                at = add(at, part.type.shape[a])
        starts: list[Index] = [0] * x.type.rank
        sizes = list(x.type.shape)
        starts[a], sizes[a] = start, width
        region = Slice(tuple(starts), tuple(sizes), (1,) * x.type.rank)
        return build.apply(region, x, origin=x.origin)
