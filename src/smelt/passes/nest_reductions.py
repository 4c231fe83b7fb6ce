"""A fold over several axes becomes two where part of the axes was folded before.

The divergence of two heads is one sum over all tokens and all words.  But the numbers that are
summed wait for folds over the words of a token, so that only a token's own part of the sum can be
carried along while its words are visited; a sum over everything would force the logits into memory.
Folds that carry are what streams are made of: the axes that were folded before come first, the
others after.  The value in between has the type that the fold accumulates in, hence no rounding is
added; a sum that is not carried in a wider type than its elements' is left alone.

    sum(f(z[r,c], max(z over c)) over r, c)  ->  sum(sum(f(..) over c) over r)

Other folds of folds, of which nothing else reads the inner one, become one: what it leaves would
have to be kept until the last of its elements was folded.  A sum in between is not rounded then,
which is within what its order may change; but halves stay as they are.  So do products of floats:
in another order they may leave the range of their type.

    sum(sum(z[r,c] over c) over r)  ->  sum(z[r,c] over r, c)
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild, rebuild_from, users
from smelt.ops.contract import Contract
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce, accumulator
from smelt.ops.view import Expand, Reshape
from smelt.types.tensor import Shape


def nested(graph: Graph) -> Graph:
    """Folds of what a product made end first the axes that were folded before.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         nested(
    ...             parse('''graph f(x: f32[n,k], w: f32[k,c]) {
    ...   z = contract(x, w) {spec="n,k; k,c -> n,c"}
    ...   m = reduce.max(z) {axes=(1,)}
    ...   r = reshape(m) {shape=(n,1)}
    ...   d = sub(z, r)
    ...   s = reduce.sum(d) {axes=(0,1)}
    ...   return s
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,k], w: f32[k,c]) {
      v0 = contract(x, w) {spec="n,k; k,c -> n,c"} : f32[n,c]
      v1 = reduce.max(v0) {axes=(1,)} : f32[n]
      v2 = reshape(v1) {shape=(n, 1)} : f32[n,1]
      v3 = sub(v0, v2) : f32[n,c]
      v4 = cast(v3) {dtype=f64} : f64[n,c]
      v5 = reduce.sum(v4) {axes=(1,)} : f64[n]
      v6 = reduce.sum(v5) {axes=(0,)} : f64[]
      v7 = cast(v6) {dtype=f32} : f32[]
      return v7
    }
    """
    return rebuild(graph, _taken_apart)


def merged(graph: Graph) -> Graph:
    """Folds of folds of the same kind, which nothing else reads, as one."""
    readers, outputs = users(graph), set(graph.outputs)

    def change(node: Node, old: Node) -> Node:
        alone = isinstance(old.op, Reduce) and len(readers[old.inputs[0]]) == 1
        return _made_one(node) if alone and old.inputs[0] not in outputs else node

    return rebuild_from(graph, change)


def _made_one(node: Node) -> Node:
    """A fold of a fold of the same kind as one, unless that would be taken apart again."""
    op, inner = node.op, node.inputs[0]
    assert isinstance(op, Reduce)
    if not isinstance(inner.op, Reduce) or inner.op.combine != op.combine or op.row.positional:
        return node
    (x,), dtype, row = inner.inputs, node.type.dtype, op.row
    if {x.type.dtype, inner.type.dtype} != {dtype}:
        return node
    if dtype.is_float and (dtype.bits < 32 or not (row.idempotent or row.compensated)):
        return node
    left = [a for a in range(x.type.rank) if a not in inner.op.axes]
    axes = tuple(sorted((*inner.op.axes, *(left[a] for a in op.axes))))
    if _folded_before(x, axes) is not None:
        return node
    return build.apply(Reduce(op.combine, axes), x, origin=node.origin)


def _taken_apart(node: Node) -> Node:
    op = node.op
    if not isinstance(op, Reduce) or len(op.axes) < 2 or op.row.positional:
        return node
    (x,) = node.inputs
    before = _folded_before(x, op.axes)
    if before is None:
        return node
    wide = accumulator(op.row, node.type.dtype)
    if wide == x.type.dtype and x.type.dtype.is_float and not op.row.idempotent:
        return node
    rest = tuple(a for a in op.axes if a not in before)
    kept = tuple(a - sum(b < a for b in before) for a in rest)
    inner = build.apply(Reduce(op.combine, before), build.cast(x, wide), origin=node.origin)
    outer = build.apply(Reduce(op.combine, kept), inner, origin=node.origin)
    return build.cast(outer, node.type.dtype)


def _folded_before(x: Node, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Some of the axes, along which what a product made has been folded for `x`."""
    made = dict.fromkeys(y for y in elementwise(x) if isinstance(y.op, Contract))
    if not made:
        return None
    for y in elementwise(x):
        if not isinstance(y.op, Reduce) or not set(y.op.axes) < set(axes):
            continue
        (z,) = y.inputs
        if z.type.shape == x.type.shape and any(m in made for m in elementwise(z)):
            return y.op.axes
    return None


def elementwise(x: Node) -> Iterator[Node]:
    """What a value is made of, element by element and by broadcasting, folds along its way too."""
    seen: set[Node] = {x}
    pending = [x]
    while pending:
        y = pending.pop()
        yield y
        through = isinstance(y.op, (Map, Cast, Expand)) or _widens(y)
        for z in y.inputs if through else ():
            if z not in seen:
                seen.add(z)
                pending.append(z)


def _widens(x: Node) -> bool:
    """Whether a view only adds or drops dimensions of 1."""
    return isinstance(x.op, Reshape) and _real(x.type.shape) == _real(x.inputs[0].type.shape)


def _real(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)
