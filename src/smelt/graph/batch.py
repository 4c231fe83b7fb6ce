"""Batch a graph: compute it for each element of a new first dimension of some inputs.

There is one rule per operator, and none for functions: an operator on batched operands becomes one
on operands of one more dimension.  Values that no batched input reaches stay as they are.  An
operator without a rule runs in a loop over the batch.

>>> from smelt.graph.text import parse, text
>>> graph = parse('''graph f(x: f32[n], w: f32[n,m]) {
...   v0 = contract(x, w) {spec="k; k,m -> m"}
...   v1 = reduce.sum(v0) {axes=(0,)}
...   return v1
... }''')
>>> print(text(batch_graph(graph, (True, False), 5)))
graph f(x: f32[5,n], w: f32[n,m]) {
  v0 = contract(x, w) {spec="batch,k; k,m -> batch,m"} : f32[5,m]
  v1 = reduce.sum(v0) {axes=(1,)} : f32[5]
  return v1
}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, Loop
from smelt.graph.walk import all_size_names
from smelt.ops.contract import Contract
from smelt.ops.create import Iota
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import (
    Concat,
    Expand,
    Flip,
    Pad,
    Permute,
    Reshape,
    Shear,
    Slice,
    Stop,
    Window,
)
from smelt.python.origin import Origin
from smelt.types.dtype import bool_, i64
from smelt.types.expr import Index, axes_of, axis, size
from smelt.types.tensor import Shape, TensorType, broadcast_shapes

Emit = Callable[[TensorOp, tuple[Node, ...], "Origin | None"], Node]
Batched = tuple[Node, bool]
"""A value, and whether its first dimension is the batch."""


def _apply(op: TensorOp, inputs: tuple[Node, ...], origin: Origin | None) -> Node:
    return build.apply(op, *inputs, origin=origin)


def batch_graph(graph: Graph, batched: Sequence[bool], count: Index) -> Graph:
    """Return the graph with a first dimension of `count` at the inputs that are `batched`.

    All of its outputs have that dimension.
    """
    batch = Batch(count)
    inputs = [
        batch.input(x) if is_batched else x
        for x, is_batched in zip(graph.inputs, batched, strict=True)
    ]
    results = batch.run(graph, list(zip(inputs, batched, strict=True)))
    outputs = tuple(
        batch.whole(y, x.type.shape) for y, x in zip(results, graph.outputs, strict=True)
    )
    return Graph(graph.name, tuple(inputs), outputs)


class Batch:
    """Computes graphs for a batch of `count` elements; `emit` makes a node."""

    def __init__(self, count: Index, emit: Emit = _apply) -> None:
        self.count = count
        self.emit = emit
        self.origin: Origin | None = None

    def input(self, x: Node) -> Node:
        """Return an input like `x` with the batch as its first dimension."""
        label = getattr(x.op, "label", "x")
        return build.input(label, TensorType(x.type.dtype, (self.count, *x.type.shape)))

    def run(self, graph: Graph, inputs: Sequence[Batched]) -> list[Batched]:
        """Return the outputs of a graph on these inputs, each with whether it is batched."""
        values: dict[Node, Batched] = dict(zip(graph.inputs, inputs, strict=True))
        for node in graph.nodes():
            if node not in values:
                self.origin = node.origin
                values[node] = self._node(node, [values[x] for x in node.inputs])
        return [values[x] for x in graph.outputs]

    def apply(self, op: TensorOp, *inputs: Node) -> Node:
        """Emit an operator."""
        return self.emit(op, inputs, self.origin)

    def whole(self, x: Batched, shape: Shape) -> Node:
        """Return a value with the batch as its first dimension, repeated if it has none.

        `shape` is that of one element.
        """
        value, is_batched = x
        return value if is_batched else self.apply(Expand((self.count, *shape)), value)

    def aligned(self, x: Batched, shape: Shape, rank: int) -> Node:
        """Insert dimensions of 1 after the batch, up to a rank of the elements."""
        value, is_batched = x
        if not is_batched or len(shape) == rank:
            return value
        ones = (1,) * (rank - len(shape))
        return self.apply(Reshape((self.count, *ones, *shape)), value)

    def _node(self, node: Node, inputs: list[Batched]) -> Batched:
        if not any(is_batched for _, is_batched in inputs):
            return self.emit(node.op, tuple(x for x, _ in inputs), node.origin), False
        rule = _RULES.get(type(node.op), _one_by_one)
        return rule(self, node.op, node, inputs), True


Rule = Callable[[Batch, Any, Node, list[Batched]], Node]


def _elementwise(b: Batch, op: TensorOp, node: Node, inputs: list[Batched]) -> Node:
    rank = node.type.rank
    return b.apply(
        op,
        *(b.aligned(x, old.type.shape, rank) for x, old in zip(inputs, node.inputs, strict=True)),
    )


def _reduce(b: Batch, op: Reduce, node: Node, inputs: list[Batched]) -> Node:
    return b.apply(replace(op, axes=tuple(a + 1 for a in op.axes)), inputs[0][0])


def _axis(b: Batch, op: Any, node: Node, inputs: list[Batched]) -> Node:
    return b.apply(replace(op, axis=op.axis + 1), inputs[0][0])


def _shape(b: Batch, op: Reshape, node: Node, inputs: list[Batched]) -> Node:
    return b.apply(Reshape((b.count, *op.shape)), inputs[0][0])


def _expand(b: Batch, op: Expand, node: Node, inputs: list[Batched]) -> Node:
    x = b.aligned(inputs[0], node.inputs[0].type.shape, len(op.shape))
    return b.apply(Expand((b.count, *op.shape)), x)


def _permute(b: Batch, op: Permute, node: Node, inputs: list[Batched]) -> Node:
    return b.apply(Permute((0, *(p + 1 for p in op.perm))), inputs[0][0])


def _flip(b: Batch, op: Flip, node: Node, inputs: list[Batched]) -> Node:
    return b.apply(Flip(tuple(a + 1 for a in op.axes)), inputs[0][0])


def _slice(b: Batch, op: Slice, node: Node, inputs: list[Batched]) -> Node:
    op = Slice((0, *op.starts), (b.count, *op.sizes), (1, *op.steps))
    return b.apply(op, inputs[0][0])


def _pad(b: Batch, op: Pad, node: Node, inputs: list[Batched]) -> Node:
    return b.apply(Pad((0, *op.low), (0, *op.high), op.value), inputs[0][0])


def _shear(b: Batch, op: Shear, node: Node, inputs: list[Batched]) -> Node:
    return b.apply(Shear((b.count, *op.shape), op.axis + 1, op.dilation), inputs[0][0])


def _concat(b: Batch, op: Concat, node: Node, inputs: list[Batched]) -> Node:
    parts = (b.whole(x, old.type.shape) for x, old in zip(inputs, node.inputs, strict=True))
    return b.apply(Concat(op.axis + 1), *parts)


def _contract(b: Batch, op: Contract, node: Node, inputs: list[Batched]) -> Node:
    taken = {a for e in (*op.left, *op.right) if not isinstance(e, int) for a in axes_of(e)}
    name = "batch"
    while name in taken or name in op.out:
        name += "_"
    sides = [
        (axis(name, 0), *terms) if is_batched else terms
        for terms, (_, is_batched) in zip((op.left, op.right), inputs, strict=True)
    ]
    op = replace(op, left=sides[0], right=sides[1], out=(name, *op.out), packed=False)
    return b.apply(op, *(x for x, _ in inputs))


def _gather(b: Batch, op: Gather, node: Node, inputs: list[Batched]) -> Node:
    """Gather at the batch's own positions: its dimension goes where positions are indexed."""
    (x, has_batch), *index = inputs
    if not any(is_batched for _, is_batched in index):
        return b.apply(Gather(op.first + 1), x, *(j for j, _ in index))
    positions = _positions(b, node.inputs[1:], index)
    rank = node.inputs[0].type.rank
    if has_batch:
        lead = range(1, op.first + 1)
        x = _permuted(b, x, (*lead, 0, *range(op.first + 1, rank + 1)))
        middle = max(len(j.type.shape) for j in node.inputs[1:])
        count = b.apply(Iota((b.count, *[1] * middle), 0, i64))
        positions = [count, *positions]
    result = b.apply(Gather(op.first), x, *positions)
    others = (k for k in range(node.type.rank + 1) if k != op.first)
    return _permuted(b, result, (op.first, *others))


def _positions(b: Batch, old: Sequence[Node], index: Sequence[Batched]) -> list[Node]:
    rank = max(j.type.rank for j in old)
    return [b.aligned(j, o.type.shape, rank) for j, o in zip(index, old, strict=True)]


def _permuted(b: Batch, x: Node, perm: tuple[int, ...]) -> Node:
    return x if perm == tuple(range(len(perm))) else b.apply(Permute(perm), x)


def _scatter(b: Batch, op: Scatter, node: Node, inputs: list[Batched]) -> Node:
    x, updates, *index = inputs
    old_x, old_updates, *old_index = node.inputs
    middle = max(j.type.rank for j in old_index)
    count = b.apply(Iota((b.count, *[1] * middle), 0, i64))
    positions = broadcast_shapes(*(j.type.shape for j in old_index))
    shape = (*positions, *old_x.type.shape[len(index) :])
    value = b.aligned(updates, old_updates.type.shape, len(shape))
    return b.apply(
        op,
        b.whole(x, old_x.type.shape),
        b.apply(Expand((b.count, *shape)), value),
        count,
        *_positions(b, old_index, index),
    )


def _one_by_one(b: Batch, op: TensorOp, node: Node, inputs: list[Batched]) -> Node:
    """Run an operator in a loop over the batch."""
    names = all_size_names(Graph("sizes", (), (node,)))
    old = [build.input(f"x{k}", x.type) for k, x in enumerate(node.inputs)]
    result = Node(op, tuple(old), node.type, node.origin)
    slices = [k for k, (_, is_batched) in enumerate(inputs) if is_batched]
    others = [k for k in range(len(inputs)) if k not in slices]
    order = [*slices, *others]
    body = Body(Graph("each", tuple(old[k] for k in order), (result,)))
    sizes = tuple(size(n) for n in names)
    loop = Loop(0, len(slices), (b.count,), False, 0, names, sizes, body)
    return b.apply(loop, *(inputs[k][0] for k in order))


# ---- loops -------------------------------------------------------------------------------------


def _loop(b: Batch, op: Loop, node: Node, inputs: list[Batched]) -> Node:
    """Run a loop whose step is batched; carries are, if any step makes them so."""
    flags = _batched_operands(op, [is_batched for _, is_batched in inputs])
    masked = not op.length and flags[0]
    if masked:  # some elements go on while others have stopped: all carries differ then
        flags = [k < op.carries or is_batched for k, is_batched in enumerate(flags)]
    name = "b"
    while name in op.names:
        name += "_"
    inner = Batch(size(name))
    graph = op.body.graph
    new = [
        inner.input(x) if is_batched else x
        for x, is_batched in zip(graph.inputs, flags, strict=True)
    ]
    results = inner.run(graph, list(zip(new, flags, strict=True)))
    outputs = [
        inner.whole(y, x.type.shape) if k >= op.carries or flags[k] else y[0]
        for k, (y, x) in enumerate(zip(results, graph.outputs, strict=True))
    ]
    operands = [
        _operand(b, op, k, x, flags[k], node.inputs[k].type.shape) for k, x in enumerate(inputs)
    ]
    carries = op.carries
    if masked:
        outputs = _masked(inner, outputs, new, carries)
        goes_on = build.input("any", TensorType(bool_))
        new, carries = [goes_on, *new], carries + 1
        operands = [b.apply(Reduce("any", (0,)), operands[0]), *operands]
    body = Body(Graph(graph.name, tuple(new), tuple(outputs)), op.body.checks)
    names, sizes = (*op.names, name), (*op.sizes, b.count)
    which = op.which + (carries - op.carries)
    if op.which >= op.results:  # stacked carries come after all results
        which = len(outputs) + (carries - op.carries) + op.which - op.results
    loop = Loop(carries, op.slices, op.length, op.reverse, which, names, sizes, body)
    result = b.apply(loop, *operands)
    saved = op.which - op.results
    if op.which < op.carries:
        return result if flags[op.which] else b.whole((result, False), node.type.shape)
    if saved >= 0 and not flags[saved]:
        return b.whole((result, False), node.type.shape)
    return _permuted(b, result, (1, 0, *range(2, node.type.rank + 1)))


def _batched_operands(op: Loop, operands: list[bool]) -> list[bool]:
    """Return which operands are batched, with carries that become so in a step."""
    graph, flags = op.body.graph, list(operands)
    while True:
        reached = dict(zip(graph.inputs, flags, strict=True))
        for node in graph.nodes():
            reached.setdefault(node, any(reached[x] for x in node.inputs))
        new = [
            is_batched or (k < op.carries and reached[graph.outputs[k]])
            for k, is_batched in enumerate(flags)
        ]
        if new == flags:
            return flags
        flags = new


def _operand(b: Batch, op: Loop, k: int, x: Batched, is_batched: bool, shape: Shape) -> Node:
    value, has_batch = x
    if not is_batched:
        return value
    if op.carries <= k < op.carries + op.slices:  # slices are taken along the first dimension
        return _permuted(b, value, (1, 0, *range(2, len(shape) + 1)))
    return b.whole((value, has_batch), shape)


def _masked(b: Batch, outputs: list[Node], inputs: list[Node], carries: int) -> list[Node]:
    """Return the next carries of elements that go on, the old ones of others."""
    going = inputs[0]
    new: list[Node] = []
    for old, after in zip(inputs[:carries], outputs, strict=True):
        mask = going
        if after.type.rank > 1:
            mask = b.apply(Reshape((b.count, *[1] * (after.type.rank - 1))), going)
        new.append(b.apply(Map("select"), mask, after, old))
    return [b.apply(Reduce("any", (0,)), new[0]), *new]


_RULES: dict[type[TensorOp], Rule] = {
    Map: _elementwise,
    Cast: _elementwise,
    Stop: _elementwise,
    Reduce: _reduce,
    Scan: _axis,
    Window: _axis,
    Reshape: _shape,
    Expand: _expand,
    Permute: _permute,
    Flip: _flip,
    Slice: _slice,
    Pad: _pad,
    Shear: _shear,
    Concat: _concat,
    Contract: _contract,
    Gather: _gather,
    Scatter: _scatter,
    Loop: _loop,
}
