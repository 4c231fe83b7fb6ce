"""Views move towards the inputs, through elementwise operators that nobody else reads.

A view of an input is an index map of the kernel that reads it, and views that meet are composed.
Moving a view costs nothing where its operand has no other reader: no element is computed twice,
and a slice computes fewer.

Arrays that were joined and then reshaped (the gradients of queries, keys and values, stacked, are
rows of one product) are joined as late: each part is viewed by itself, its positions without the
divisions and remainders that tell where the parts of the whole begin.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts, users
from smelt.ops.elementwise import Cast, Map
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Flip, Permute, Reshape, Slice
from smelt.passes.compose import lifted, settle, unit_reshape
from smelt.types.expr import Index, floordiv, mul, product
from smelt.types.tensor import Shape

Uses = dict[Node, int]


def views(graph: Graph) -> Graph:
    """Slice, flip, permute and reshape move in front of elementwise operators.

    All but slices move only if they reach inputs, numbers or other views: beneath a reduction or a
    contraction they would tear its epilogue off.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         views(
    ...             parse('''graph f(x: f32[n,4], b: f32[4]) {
    ...   a = add(x, b)
    ...   y = exp(a)
    ...   t = permute(y) {perm=(1, 0)}
    ...   return t
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,4], b: f32[4]) {
      v0 = permute(x) {perm=(1, 0)} : f32[4,n]
      v1 = reshape(b) {shape=(4, 1)} : f32[4,1]
      v2 = add(v0, v1) : f32[4,n]
      v3 = exp(v2) : f32[4,n]
      return v3
    }
    """
    counts = use_counts(graph)
    uses: Uses = {}
    joins = _reshaped(graph)

    def change(node: Node, old: Node) -> Node:
        new = _moved(node, uses) if type(node.op) in _MOVES else node
        new = _apart(new, old, joins) if new is node and joins else new
        uses[new] = counts[old]
        return new

    return rebuild_from(graph, change)


def _moved(node: Node, uses: Uses) -> Node:
    """The view of an elementwise operator as that operator on views; else the node itself."""
    (x,) = node.inputs
    if not _movable(x, uses) or not (isinstance(node.op, Slice) or _reaches_inputs(x, uses)):
        return node
    move = _MOVES[type(node.op)]
    operands: list[Node] = []
    for operand in x.inputs:
        seen = operand if not operand.type.shape else move(node, x, operand)
        if seen is None:
            return node
        operands.append(_moved(seen, uses) if type(seen.op) in _MOVES else seen)
    moved = build.apply(x.op, *operands, origin=x.origin)
    # Dimensions of 1 in front that no operand has any more: the view stays where it is.
    return moved if moved.type == node.type else node


def _reshaped(graph: Graph) -> set[Node]:
    """What was joined, and then is read through reshapes alone, turned before or not."""
    found = {x for x in graph.nodes() if isinstance(x.op, Concat)}
    if not found:
        return found
    readers, outputs = users(graph), set(graph.outputs)

    def alone(x: Node, turned: bool) -> bool:
        return x not in outputs and all(
            isinstance(y.op, Reshape)
            or (not turned and isinstance(y.op, Permute) and alone(y, turned=True))
            for y in readers[x]
        )

    return {x for x in found if alone(x, turned=False)}


def _apart(node: Node, old: Node, joins: Container[Node]) -> Node:
    """A reshape of joined parts as joined reshapes, where each part fills whole rows of it."""
    if not isinstance(node.op, Reshape):
        return node
    perm, join, before = None, node.inputs[0], old.inputs[0]
    if isinstance(join.op, Permute):
        perm, join, before = join.op, join.inputs[0], before.inputs[0] if before.inputs else before
    if before not in joins or not isinstance(join.op, Concat):
        return node
    a = join.op.axis if perm is None else perm.perm.index(join.op.axis)
    parts = join.inputs if perm is None else [_view(node, perm, x) for x in join.inputs]
    shape, source = node.type.shape, node.inputs[0].type.shape
    axis = _same_start(product(source[:a]), shape)
    if axis is None:
        return node
    row = product(shape[axis + 1 :])
    found: list[Node] = []
    for x in parts:
        whole = mul(x.type.shape[a], product(source[a + 1 :]))
        width = floordiv(whole, row) if row != 0 else 0
        if mul(width, row) != whole:
            return node
        found.append(_view(node, Reshape((*shape[:axis], width, *shape[axis + 1 :])), x))
    if all(isinstance(x.op, Permute) for x in found):  # they are joined and turned
        return node
    new = _view(node, Concat(axis), *found)
    return new if new.type == node.type else node


def _same_start(count: Index, shape: Shape) -> int | None:
    """The last axis before which there are as many elements as `count`."""
    return next((a for a in reversed(range(len(shape))) if product(shape[:a]) == count), None)


def _movable(x: Node, uses: Uses) -> bool:
    return isinstance(x.op, (Map, Cast)) and uses.get(x) == 1 and bool(x.type.shape)


def _reaches_inputs(x: Node, uses: Uses) -> bool:
    """Whether all operands are sources and views, behind more operators that views may pass."""
    return all(
        z.op.is_source
        or z.op.is_view
        or not z.type.shape
        or (_movable(z, uses) and _reaches_inputs(z, uses))
        for z in x.inputs
    )


# Each move gives the view of one operand z of x that the view `node` of x amounts to: z may have
# fewer dimensions than x, and dimensions of 1 where x has more.


def sliced(node: Node, x: Node, z: Node) -> Node:
    """The part of an operand z of x that the slice `node` of x amounts to."""
    op = node.op
    assert isinstance(op, Slice)
    lead = x.type.rank - z.type.rank
    picks = [
        (0, 1, 1)
        if n == 1 and x.type.shape[lead + a] != 1
        else (op.starts[lead + a], op.sizes[lead + a], op.steps[lead + a])
        for a, n in enumerate(z.type.shape)
    ]
    box = Slice(tuple(p[0] for p in picks), tuple(p[1] for p in picks), tuple(p[2] for p in picks))
    return _view(node, box, z)


def _flip(node: Node, x: Node, z: Node) -> Node | None:
    op = node.op
    assert isinstance(op, Flip)
    lead = x.type.rank - z.type.rank
    axes = tuple(a - lead for a in op.axes if a >= lead and z.type.shape[a - lead] != 1)
    return _view(node, Flip(axes), z) if axes else z


def _permute(node: Node, x: Node, z: Node) -> Node | None:
    return _view(node, node.op, lifted(z, x.type.rank))


def _reshape(node: Node, x: Node, z: Node) -> Node | None:
    shape = node.type.shape
    if z.type.shape == x.type.shape:
        return _view(node, Reshape(shape), z)
    return unit_reshape(z, x.type.shape, shape)


_MOVES: dict[type[TensorOp], Callable[[Node, Node, Node], Node | None]] = {
    Flip: _flip,
    Permute: _permute,
    Reshape: _reshape,
    Slice: sliced,
}


def _view(node: Node, op: TensorOp, *z: Node) -> Node:
    return settle(build.apply(op, *z, origin=node.origin))
