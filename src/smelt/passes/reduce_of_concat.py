"""A fold over what was concatenated is made of folds over the parts.

A row of scores to which a number was appended (an attention sink, the positive pair of a
contrastive loss) is one array to its softmax, which would have to be written and read again.
Maximum and sum of such a row follow from those of its parts; then nothing reads the whole row any
more, and each part is folded where it is made.  The sums of parts are added in the type that a fold
accumulates in, hence no rounding is added; a sum that is not carried in a wider type than its
elements' is left alone.  So is a row that something wants whole, and one without a product among
its parts, which is not worth two folds.

    max(concat(x @ w, c) over n)  ->  maximum(max(x @ w over n), max(c over n))
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, users
from smelt.ops.contract import Contract
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce, accumulator
from smelt.ops.view import Concat, Slice
from smelt.passes.nest_reductions import elementwise
from smelt.types.expr import Index, add

MOST = 4
"""Parts of which a fold is made at most."""


def joined(graph: Graph) -> Graph:
    """Folds over products with something beside them become folds over each, and their sum.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         joined(
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
    concats = {x for x in graph.nodes() if isinstance(x.op, Concat) and _is_worth_it(x)}
    if not concats:
        return graph
    readers, outputs, parts = users(graph), set(graph.outputs), _Parts()

    def change(node: Node, old: Node) -> Node:
        if isinstance(node.op, Reduce):
            for found in _joins(old, concats):
                if not _is_wanted(found, readers, outputs):
                    return _taken_apart(node, found, parts)
        return node

    return rebuild_from(graph, change)


class _Join(NamedTuple):
    """What was concatenated behind the operand of a fold, and along which axis, from the end."""

    concat: Node
    axis: int


def _is_worth_it(concat: Node) -> bool:
    """Whether there are few parts, with a product among them."""
    return len(concat.inputs) <= MOST and any(
        isinstance(x.op, Contract) for part in concat.inputs for x in elementwise(part)
    )


def _joins(fold: Node, concats: Container[Node]) -> Iterator[_Join]:
    """What a fold reads that was concatenated along an axis of its own."""
    (x,) = fold.inputs
    assert isinstance(fold.op, Reduce)
    for a in fold.op.axes if not fold.op.row.positional else ():
        for y in _along(x, a - x.type.rank):
            if (
                y in concats
                and isinstance(y.op, Concat)
                and y.op.axis == y.type.rank + a - x.type.rank
            ):
                yield _Join(y, a - x.type.rank)


def _along(x: Node, a: int) -> Iterator[Node]:
    """What a value is made of element by element along an axis, which is counted from the end."""
    seen: set[Node] = {x}
    pending = [x]
    while pending:
        y = pending.pop()
        yield y
        for z in y.inputs if isinstance(y.op, (Map, Cast)) else ():
            if z not in seen and z.type.rank >= -a and z.type.shape[a] != 1:
                seen.add(z)
                pending.append(z)


def _is_wanted(join: _Join, readers: Mapping[Node, Sequence[Node]], outputs: set[Node]) -> bool:
    """Whether something reads whole rows of what was concatenated, or made of it, but to fold
    them."""
    seen: set[Node] = {join.concat}
    pending = [join.concat]
    while pending:
        x = pending.pop()
        if x in outputs:
            return True
        for y in readers[x]:
            if isinstance(y.op, Reduce):
                if x.type.rank + join.axis in y.op.axes and not y.op.row.positional:
                    continue
                return True
            if isinstance(y.op, Slice) and y.type.shape[join.axis] != x.type.shape[join.axis]:
                continue
            if not isinstance(y.op, (Map, Cast)):
                return True
            if y not in seen:
                seen.add(y)
                pending.append(y)
    return False


def _taken_apart(node: Node, join: _Join, parts: _Parts) -> Node:
    """The fold as one of folds over the parts."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Reduce)
    wide = accumulator(op.row, node.type.dtype)
    if wide == x.type.dtype and x.type.dtype.is_float and not op.row.idempotent:
        return node
    folds: list[Node] = []
    start: Index = 0
    for piece in join.concat.inputs:
        width = piece.type.shape[join.axis]
        part = build.cast(parts.of(x, join.axis, start, width), wide)
        folds.append(build.apply(op, part, origin=node.origin))
        start = add(start, width)
    whole = reduce(lambda y, z: build.map(op.row.scalar, y, z, origin=node.origin), folds)
    return build.cast(whole, node.type.dtype)


class _Parts:
    """Parts of values along an axis that is counted from the end, each made once."""

    def __init__(self) -> None:
        self.known: dict[tuple[Node, int, Index, Index], Node] = {}

    def of(self, x: Node, a: int, start: Index, width: Index) -> Node:
        """`width` positions from `start` on; all of a value that has one position or none."""
        if x.type.rank < -a or x.type.shape[a] == 1:
            return x
        key = x, a, start, width
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._made(x, a, start, width)
        return found

    def _made(self, x: Node, a: int, start: Index, width: Index) -> Node:
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
        box = Slice(tuple(starts), tuple(sizes), (1,) * x.type.rank)
        return build.apply(box, x, origin=x.origin)
