"""Move views towards the inputs, through elementwise operators with one reader.

A view of an input is an index map in the kernel that reads it, and adjacent views are composed.
Moving a view is free where its operand has no other reader: no element is computed twice, and a
slice computes fewer.

A reshape of concatenated arrays (the stacked gradients of queries, keys and values, which are rows
of one matmul) moves to the pieces: each is indexed by itself, without the divisions and remainders
that would locate the pieces in the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts, users
from smelt.ops.elementwise import Cast, Map
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Flip, Permute, Reshape, Slice
from smelt.passes.compose import simplify_view, unit_reshape, with_rank
from smelt.types.expr import Index, floordiv, mul, product
from smelt.types.tensor import Shape

Uses = dict[Node, int]


def move_views(graph: Graph) -> Graph:
    """Move slice, flip, permute and reshape in front of elementwise operators.

    All but slices move only if they reach inputs, numbers or other views: below a reduction or a
    contraction they would separate it from its epilogue.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         move_views(
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
    joins = _reshaped_concats(graph)

    def change(node: Node, old: Node) -> Node:
        new = _move_view(node, uses) if type(node.op) in _OPERAND_VIEWS else node
        new = _reshape_pieces(new, old, joins) if new is node and joins else new
        uses[new] = counts[old]
        return new

    return rebuild_from(graph, change)


def _move_view(node: Node, uses: Uses) -> Node:
    """Apply an elementwise operator to views of its operands; return the node if impossible."""
    (x,) = node.inputs
    if not _is_movable(x, uses) or not (isinstance(node.op, Slice) or _reaches_inputs(x, uses)):
        return node
    move = _OPERAND_VIEWS[type(node.op)]
    operands: list[Node] = []
    for operand in x.inputs:
        viewed = operand if not operand.type.shape else move(node, x, operand)
        if viewed is None:
            return node
        operands.append(_move_view(viewed, uses) if type(viewed.op) in _OPERAND_VIEWS else viewed)
    result = build.apply(x.op, *operands, origin=x.origin)
    # If no operand has the leading dimensions of 1 any more, the view stays where it is.
    return result if result.type == node.type else node


def _reshaped_concats(graph: Graph) -> set[Node]:
    """Return concatenations that are read by reshapes alone, possibly permuted before."""
    concats = {x for x in graph.nodes() if isinstance(x.op, Concat)}
    if not concats:
        return concats
    readers, outputs = users(graph), set(graph.outputs)

    def only_reshaped(x: Node, permuted: bool) -> bool:
        return x not in outputs and all(
            isinstance(y.op, Reshape)
            or (not permuted and isinstance(y.op, Permute) and only_reshaped(y, permuted=True))
            for y in readers[x]
        )

    return {x for x in concats if only_reshaped(x, permuted=False)}


def _reshape_pieces(node: Node, old: Node, joins: Container[Node]) -> Node:
    """Reshape the pieces of a concatenation, where each fills whole rows of the new shape."""
    if not isinstance(node.op, Reshape):
        return node
    perm, join, prior = None, node.inputs[0], old.inputs[0]
    if isinstance(join.op, Permute):
        perm, join, prior = join.op, join.inputs[0], prior.inputs[0] if prior.inputs else prior
    if prior not in joins or not isinstance(join.op, Concat):
        return node
    a = join.op.axis if perm is None else perm.perm.index(join.op.axis)
    parts = join.inputs if perm is None else [_view(node, perm, x) for x in join.inputs]
    shape, source = node.type.shape, node.inputs[0].type.shape
    axis = _axis_at(product(source[:a]), shape)
    if axis is None:
        return node
    row = product(shape[axis + 1 :])
    pieces: list[Node] = []
    for x in parts:
        elements = mul(x.type.shape[a], product(source[a + 1 :]))
        width = floordiv(elements, row) if row != 0 else 0
        if mul(width, row) != elements:
            return node
        pieces.append(_view(node, Reshape((*shape[:axis], width, *shape[axis + 1 :])), x))
    if all(isinstance(x.op, Permute) for x in pieces):  # would be concatenated before the permute
        return node
    new = _view(node, Concat(axis), *pieces)
    return new if new.type == node.type else node


def _axis_at(count: Index, shape: Shape) -> int | None:
    """Return the last axis with `count` elements before it, or None."""
    return next((a for a in reversed(range(len(shape))) if product(shape[:a]) == count), None)


def _is_movable(x: Node, uses: Uses) -> bool:
    return isinstance(x.op, (Map, Cast)) and uses.get(x) == 1 and bool(x.type.shape)


def _reaches_inputs(x: Node, uses: Uses) -> bool:
    """Whether all operands are sources or views, possibly behind other movable operators."""
    return all(
        z.op.is_source
        or z.op.is_view
        or not z.type.shape
        or (_is_movable(z, uses) and _reaches_inputs(z, uses))
        for z in x.inputs
    )


# Each function returns the view of one operand z of x that corresponds to the view `node` of x.  By
# broadcasting, z may have fewer dimensions than x, and dimensions of 1 where x has more.


def slice_operand(node: Node, x: Node, z: Node) -> Node:
    """Slice an operand z of x as `node` slices x."""
    op = node.op
    assert isinstance(op, Slice)
    lead = x.type.rank - z.type.rank
    ranges = [
        (0, 1, 1)
        if n == 1 and x.type.shape[lead + a] != 1
        else (op.starts[lead + a], op.sizes[lead + a], op.steps[lead + a])
        for a, n in enumerate(z.type.shape)
    ]
    region = Slice(
        tuple(p[0] for p in ranges), tuple(p[1] for p in ranges), tuple(p[2] for p in ranges)
    )
    return _view(node, region, z)


def _flip(node: Node, x: Node, z: Node) -> Node | None:
    op = node.op
    assert isinstance(op, Flip)
    lead = x.type.rank - z.type.rank
    axes = tuple(a - lead for a in op.axes if a >= lead and z.type.shape[a - lead] != 1)
    return _view(node, Flip(axes), z) if axes else z


def _permute(node: Node, x: Node, z: Node) -> Node | None:
    return _view(node, node.op, with_rank(z, x.type.rank))


def _reshape(node: Node, x: Node, z: Node) -> Node | None:
    shape = node.type.shape
    if z.type.shape == x.type.shape:
        return _view(node, Reshape(shape), z)
    return unit_reshape(z, x.type.shape, shape)


_OPERAND_VIEWS: dict[type[TensorOp], Callable[[Node, Node, Node], Node | None]] = {
    Flip: _flip,
    Permute: _permute,
    Reshape: _reshape,
    Slice: slice_operand,
}


def _view(node: Node, op: TensorOp, *z: Node) -> Node:
    return simplify_view(build.apply(op, *z, origin=node.origin))
