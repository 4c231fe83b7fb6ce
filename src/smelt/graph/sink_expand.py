"""Sink `expand` below its readers, so that elements are repeated as late as possible.

Whether a program repeats a row for its batch before computing with it makes another graph of the
same meaning, and a batch of one hides which it did.  Here an `expand` moves behind its readers, and
disappears where operands broadcast anyway.

>>> from smelt.graph.text import parse, text
>>> graph = parse('''graph f(x: f32[b, n], t: i64[1, n], w: f32[8]) {
...   v0 = expand(t) {shape=(b, n)}
...   v1 = gather(w, v0) {first=0}
...   v2 = add(x, v1)
...   return v2
... }''')
>>> print(text(sink_expands(graph)[0]))
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


def sink_expands(graph: Graph) -> tuple[Graph, Mapping[Node, Node]]:
    """Return the graph with sunk expands, and the unrepeated form of each node.

    Dimensions along which a node only repeats are 1 in that form.
    """
    walk = _Walk()
    for node in graph.nodes():
        inputs = tuple([walk.once[x] for x in node.inputs])
        if type(node.op) in _REPEATS or any(x.type != y.type for x, y in zip(inputs, node.inputs)):
            walk.once[node] = _RULES.get(type(node.op), _expand_operands)(walk, node)
        else:
            unchanged = all(x is y for x, y in zip(inputs, node.inputs))
            walk.once[node] = node if unchanged else Node(node.op, inputs, node.type, node.origin)
    outputs = tuple([walk.whole(x) for x in graph.outputs])
    return replace(graph, outputs=outputs), walk.once


class _Walk:
    """The unrepeated form of each node.

    Its dimensions are aligned with the node's from the end; each is the node's, or 1.
    """

    def __init__(self) -> None:
        self.once: dict[Node, Node] = {}
        self._expanded: dict[Node, Node] = {}

    def whole(self, node: Node) -> Node:
        """Return a node with all of its elements."""
        expanded = self._expanded.get(node)
        if expanded is None:
            expanded = self._expanded[node] = self.along(node, range(node.type.rank))
        return expanded

    def along(self, node: Node, axes: Collection[int]) -> Node:
        """Return a node with all of its dimensions, those along `axes` at full extent."""
        once, shape = self.once[node], node.type.shape
        target = tuple([shape[a] if a in axes else d for a, d in enumerate(self.shape(node))])
        if once.type.shape == target:
            return once
        if target == shape and isinstance(node.op, Expand) and node.inputs[0] is once:
            return node
        if len(once.type.shape) < len(target) and target == self.shape(node):
            return build.apply(Reshape(target), once, origin=node.origin)
        return build.apply(Expand(target), once, origin=node.origin)

    def shape(self, node: Node) -> Shape:
        """Return all dimensions of a node before it is repeated."""
        once = self.once[node].type.shape
        return (*(1,) * (node.type.rank - len(once)), *once)

    def repeats(self, node: Node) -> set[int]:
        """Return the dimensions along which a node repeats elements."""
        pairs = zip(self.shape(node), node.type.shape, strict=True)
        return {a for a, (d, n) in enumerate(pairs) if d != n}


def _build(node: Node, op: TensorOp, *inputs: Node) -> Node:
    return build.apply(op, *inputs, origin=node.origin)


def _expand_operands(w: _Walk, node: Node) -> Node:
    return _build(node, node.op, *map(w.whole, node.inputs))


def _map(w: _Walk, node: Node) -> Node:
    return _build(node, node.op, *[w.once[x] for x in node.inputs])


def _expand(w: _Walk, node: Node) -> Node:
    """Drop an expand, except along dimensions that may be 0: nothing is not repeated."""
    once = w.once[node.inputs[0]]
    rank, shape = node.type.rank, once.type.shape
    aligned = (*(1,) * (rank - len(shape)), *shape)
    target = tuple(
        [n if d == 1 and not positive(n) else d for d, n in zip(aligned, node.type.shape)]
    )
    if target == aligned:
        return once
    return _build(node, Expand(target), once)


def _permute(w: _Walk, node: Node) -> Node:
    return _build(node, node.op, w.along(node.inputs[0], ()))


def _reshape(w: _Walk, node: Node) -> Node:
    """Reshape before repeating; dimensions grouped with others that do not repeat are expanded."""
    assert isinstance(node.op, Reshape)
    (x,) = node.inputs
    repeats, full_axes = w.repeats(x), set[int]()
    shape: list[Any] = []
    first = 0
    for old, new in split_groups(x.type.shape, node.op.shape):
        non_unit = {a for a, d in enumerate(old, first) if d != 1}
        is_repeated = bool(non_unit) and non_unit <= repeats
        full_axes |= set() if is_repeated else non_unit
        shape += [1] * len(new) if is_repeated else new
        first += len(old)
    return _build(node, replace(node.op, shape=tuple(shape)), w.along(x, full_axes))


def _slice(w: _Walk, node: Node) -> Node:
    assert isinstance(node.op, Slice)
    op, (x,) = node.op, node.inputs
    repeated = {a for a in w.repeats(x) if positive(op.sizes[a])}
    parts = zip(op.starts, op.sizes, op.steps, strict=True)
    ranges = [(0, 1, 1) if a in repeated else p for a, p in enumerate(parts)]
    starts, sizes, steps = (tuple(s) for s in zip(*ranges, strict=True))
    operand = w.along(x, {*range(x.type.rank)} - repeated)
    if not any(starts) and sizes == operand.type.shape and {*steps} <= {1}:
        return operand
    return _build(node, Slice(starts, sizes, steps), operand)


def _pad(w: _Walk, node: Node) -> Node:
    assert isinstance(node.op, Pad)
    sides = enumerate(zip(node.op.low, node.op.high, strict=True))
    return _build(node, node.op, w.along(node.inputs[0], [a for a, s in sides if s != (0, 0)]))


def _along_axes(w: _Walk, node: Node) -> Node:
    """Reduce, scan or flip an operand that is expanded along these axes."""
    assert isinstance(node.op, (Reduce, Scan, Flip))
    axes = (node.op.axis,) if isinstance(node.op, Scan) else node.op.axes
    return _build(node, node.op, w.along(node.inputs[0], axes))


def _concat(w: _Walk, node: Node) -> Node:
    assert isinstance(node.op, Concat)
    full_axes = {node.op.axis}
    for x in node.inputs:
        full_axes |= {*range(node.type.rank)} - w.repeats(x)
    return _build(node, node.op, *[w.along(x, full_axes) for x in node.inputs])


def _gather(w: _Walk, node: Node) -> Node:
    """Gather before repeating; along a repeated axis that an `iota` indexes, read the first row."""
    assert isinstance(node.op, Gather)
    first, (x, *index) = node.op.first, node.inputs
    full_axes = {*range(first, first + len(index))}
    rank = node.type.rank - x.type.rank + len(index)
    indices: list[Node] = []
    for a, at in enumerate(index, first):
        indices.append(w.once[at])
        op = at.op
        if w.shape(x)[a] == 1 and isinstance(op, Iota) and op.shape[op.axis] == x.type.shape[a]:
            full_axes.remove(a)
            indices[-1] = _build(at, replace(op, shape=(1,) * at.type.rank))
    if max(at.type.rank for at in indices) < rank:
        first_index = indices[0]
        shape = (*(1,) * (rank - first_index.type.rank), *first_index.type.shape)
        indices[0] = build.apply(Reshape(shape), first_index, origin=first_index.origin)
    return _build(node, node.op, w.along(x, full_axes), *indices)


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
"""Operators that may repeat elements although their operands do not."""
