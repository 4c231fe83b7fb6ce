"""A graph that repeats elements as late as it can.

Whether a program repeats a row for its batch before it computes with it, or not, makes another
graph of the same meaning; and a batch of one hides which of both it did.  Here an `expand` moves
behind what reads it, and goes where operands stand above each other anyway.

>>> from smelt.graph.text import parse, text
>>> graph = parse('''graph f(x: f32[b, n], t: i64[1, n], w: f32[8]) {
...   v0 = expand(t) {shape=(b, n)}
...   v1 = gather(w, v0) {first=0}
...   v2 = add(x, v1)
...   return v2
... }''')
>>> print(text(late(graph)[0]))
graph f(x: f32[b,n], t: i64[1,n], w: f32[8]) {
  v0 = gather(w, t) {first=0} : f32[1,n]
  v1 = add(x, v0) : f32[b,n]
  return v1
}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Iota
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import (
    Concat,
    Expand,
    Flip,
    Pad,
    Permute,
    Reshape,
    Slice,
    Stop,
    split_groups,
)
from smelt.types.expr import positive
from smelt.types.tensor import Shape

__all__ = ["late"]


def late(graph: Graph) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph, and what its nodes became: with 1 for dimensions along which they only repeat."""
    walk = _Walk()
    for node in graph.nodes():
        inputs = tuple([walk.once[x] for x in node.inputs])
        if type(node.op) in _REPEATS or any(x.type != y.type for x, y in zip(inputs, node.inputs)):
            walk.once[node] = _RULES.get(type(node.op), _whole)(walk, node)
        else:
            same = all(x is y for x, y in zip(inputs, node.inputs))
            walk.once[node] = node if same else Node(node.op, inputs, node.type, node.origin)
    outputs = tuple([walk.whole(x) for x in graph.outputs])
    return replace(graph, outputs=outputs), walk.once


class _Walk:
    """What nodes are before they are repeated.

    Dimensions stand as those of the node, counted from the end; each is that of the node, or 1."""

    def __init__(self) -> None:
        self.once: dict[Node, Node] = {}
        self._whole: dict[Node, Node] = {}

    def whole(self, node: Node) -> Node:
        """A node with all of its elements."""
        found = self._whole.get(node)
        if found is None:
            found = self._whole[node] = self.along(node, range(node.type.rank))
        return found

    def along(self, node: Node, axes: Collection[int]) -> Node:
        """A node with all of its dimensions, those along `axes` whole."""
        once, shape = self.once[node], node.type.shape
        wanted = tuple([shape[a] if a in axes else d for a, d in enumerate(self.shape(node))])
        if once.type.shape == wanted:
            return once
        if wanted == shape and isinstance(node.op, Expand) and node.inputs[0] is once:
            return node
        if len(once.type.shape) < len(wanted) and wanted == self.shape(node):
            return build.apply(Reshape(wanted), once, origin=node.origin)
        return build.apply(Expand(wanted), once, origin=node.origin)

    def shape(self, node: Node) -> Shape:
        """All dimensions of a node before it is repeated."""
        once = self.once[node].type.shape
        return (*(1,) * (node.type.rank - len(once)), *once)

    def repeats(self, node: Node) -> set[int]:
        """The dimensions along which a node repeats elements."""
        pairs = zip(self.shape(node), node.type.shape, strict=True)
        return {a for a, (d, n) in enumerate(pairs) if d != n}


def _made(node: Node, op: TensorOp, *inputs: Node) -> Node:
    return build.apply(op, *inputs, origin=node.origin)


def _whole(w: _Walk, node: Node) -> Node:
    return _made(node, node.op, *map(w.whole, node.inputs))


def _map(w: _Walk, node: Node) -> Node:
    return _made(node, node.op, *[w.once[x] for x in node.inputs])


def _expand(w: _Walk, node: Node) -> Node:
    """What there may be none of is no element that is repeated."""
    once = w.once[node.inputs[0]]
    rank, shape = node.type.rank, once.type.shape
    given = (*(1,) * (rank - len(shape)), *shape)
    wanted = tuple([n if d == 1 and not positive(n) else d for d, n in zip(given, node.type.shape)])
    if wanted == given:
        return once
    return _made(node, Expand(wanted), once)


def _permute(w: _Walk, node: Node) -> Node:
    return _made(node, node.op, w.along(node.inputs[0], ()))


def _reshape(w: _Walk, node: Node) -> Node:
    """Dimensions that are merged or split with others that are not repeated are whole."""
    assert isinstance(node.op, Reshape)
    (x,) = node.inputs
    repeats, needed = w.repeats(x), set[int]()
    shape: list[Any] = []
    first = 0
    for old, new in split_groups(x.type.shape, node.op.shape):
        real = {a for a, d in enumerate(old, first) if d != 1}
        once = bool(real) and real <= repeats
        needed |= set() if once else real
        shape += [1] * len(new) if once else new
        first += len(old)
    return _made(node, replace(node.op, shape=tuple(shape)), w.along(x, needed))


def _slice(w: _Walk, node: Node) -> Node:
    assert isinstance(node.op, Slice)
    op, (x,) = node.op, node.inputs
    once = {a for a in w.repeats(x) if positive(op.sizes[a])}
    parts = zip(op.starts, op.sizes, op.steps, strict=True)
    found = [(0, 1, 1) if a in once else p for a, p in enumerate(parts)]
    starts, sizes, steps = (tuple(s) for s in zip(*found, strict=True))
    given = w.along(x, {*range(x.type.rank)} - once)
    if not any(starts) and sizes == given.type.shape and {*steps} <= {1}:
        return given
    return _made(node, Slice(starts, sizes, steps), given)


def _pad(w: _Walk, node: Node) -> Node:
    assert isinstance(node.op, Pad)
    sides = enumerate(zip(node.op.low, node.op.high, strict=True))
    return _made(node, node.op, w.along(node.inputs[0], [a for a, s in sides if s != (0, 0)]))


def _along_axes(w: _Walk, node: Node) -> Node:
    """What folds, scans or turns round axes of one operand."""
    assert isinstance(node.op, (Reduce, Scan, Flip))
    axes = (node.op.axis,) if isinstance(node.op, Scan) else node.op.axes
    return _made(node, node.op, w.along(node.inputs[0], axes))


def _concat(w: _Walk, node: Node) -> Node:
    assert isinstance(node.op, Concat)
    needed = {node.op.axis}
    for x in node.inputs:
        needed |= {*range(node.type.rank)} - w.repeats(x)
    return _made(node, node.op, *[w.along(x, needed) for x in node.inputs])


def _gather(w: _Walk, node: Node) -> Node:
    """Of rows that are all the same the first will do, where positions count them."""
    assert isinstance(node.op, Gather)
    first, (x, *index) = node.op.first, node.inputs
    needed = {*range(first, first + len(index))}
    rank = node.type.rank - x.type.rank + len(index)
    found: list[Node] = []
    for a, at in enumerate(index, first):
        found.append(w.once[at])
        op = at.op
        if w.shape(x)[a] == 1 and isinstance(op, Iota) and op.shape[op.axis] == x.type.shape[a]:
            needed.remove(a)
            found[-1] = _made(at, replace(op, shape=(1,) * at.type.rank))
    if max(at.type.rank for at in found) < rank:
        one = found[0]
        shape = (*(1,) * (rank - one.type.rank), *one.type.shape)
        found[0] = build.apply(Reshape(shape), one, origin=one.origin)
    return _made(node, node.op, w.along(x, needed), *found)


_RULES: Mapping[type[TensorOp], Callable[[_Walk, Node], Node]] = {
    Map: _map,
    Cast: _map,
    Stop: _map,
    Expand: _expand,
    Permute: _permute,
    Reshape: _reshape,
    Slice: _slice,
    Pad: _pad,
    Reduce: _along_axes,
    Scan: _along_axes,
    Flip: _along_axes,
    Concat: _concat,
    Gather: _gather,
}
_REPEATS = (Expand, Gather)
"""What repeats elements, though its operands do not."""
