"""Split and merge nested reductions so that they fit streaming kernels.

The KL divergence of two heads is one sum over all tokens and all words.  Its terms depend on
reductions over the words of each token (a softmax), so only a token's own part of the sum can be
accumulated in the pass over its words; a single sum over everything would force the logits into
memory.  Therefore the axes that were reduced before are reduced first, the others after.  The value
in between has the reduction's accumulator type, so no rounding is added; a sum whose accumulator is
no wider than its elements is left alone.

    sum(f(z[r,c], max(z over c)) over r, c)  ->  sum(sum(f(..) over c) over r)

Other reductions of reductions become one if nothing else reads the inner result, which would
otherwise have to be stored.  A sum in between is then not rounded, which is within what its order
may change; half types are left alone.  So are products of floats: in another order they may leave
the range of their type.

    sum(sum(z[r,c] over c) over r)  ->  sum(z[r,c] over r, c)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import reachable, rebuild, rebuild_from, users
from smelt.ops.contract import Contract
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce, accumulator
from smelt.ops.view import Expand, Reshape
from smelt.types.tensor import Shape


def nest_reductions(graph: Graph) -> Graph:
    """Split reductions over a contraction's elements, so that axes reduced before come first.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         nest_reductions(
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
    return rebuild(graph, _nest)


def merge_reductions(graph: Graph) -> Graph:
    """Merge nested reductions of one kind whose inner result nothing else reads."""
    readers, outputs = users(graph), set(graph.outputs)

    def change(node: Node, old: Node) -> Node:
        single_reader = isinstance(old.op, Reduce) and len(readers[old.inputs[0]]) == 1
        return _merge(node) if single_reader and old.inputs[0] not in outputs else node

    return rebuild_from(graph, change)


def _merge(node: Node) -> Node:
    """Merge a reduction of a reduction, unless `nest_reductions` would split it again."""
    op, inner = node.op, node.inputs[0]
    assert isinstance(op, Reduce)
    if not isinstance(inner.op, Reduce) or inner.op.combine != op.combine or op.row.positional:
        return node
    (x,), dtype, row = inner.inputs, node.type.dtype, op.row
    if {x.type.dtype, inner.type.dtype} != {dtype}:
        return node
    if dtype.is_float and (dtype.bits < 32 or not (row.idempotent or row.compensated)):
        return node
    remaining = [a for a in range(x.type.rank) if a not in inner.op.axes]
    axes = tuple(sorted((*inner.op.axes, *(remaining[a] for a in op.axes))))
    if _reduced_axes(x, axes) is not None:
        return node
    return build.apply(Reduce(op.combine, axes), x, origin=node.origin)


def _nest(node: Node) -> Node:
    op = node.op
    if not isinstance(op, Reduce) or len(op.axes) < 2 or op.row.positional:
        return node
    (x,) = node.inputs
    inner_axes = _reduced_axes(x, op.axes)
    if inner_axes is None:
        return node
    accumulator_type = accumulator(op.row, node.type.dtype)
    if accumulator_type == x.type.dtype and x.type.dtype.is_float and not op.row.idempotent:
        return node
    outer_axes = tuple(a for a in op.axes if a not in inner_axes)
    shifted_axes = tuple(a - sum(b < a for b in inner_axes) for a in outer_axes)
    inner = build.apply(
        Reduce(op.combine, inner_axes), build.cast(x, accumulator_type), origin=node.origin
    )
    outer = build.apply(Reduce(op.combine, shifted_axes), inner, origin=node.origin)
    return build.cast(outer, node.type.dtype)


def _reduced_axes(x: Node, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return those of `axes` along which a contraction behind `x` was reduced before, or None."""
    contractions = dict.fromkeys(y for y in elementwise_sources(x) if isinstance(y.op, Contract))
    if not contractions:
        return None
    for y in elementwise_sources(x):
        if not isinstance(y.op, Reduce) or not set(y.op.axes) < set(axes):
            continue
        (z,) = y.inputs
        if z.type.shape == x.type.shape and any(m in contractions for m in elementwise_sources(z)):
            return y.op.axes
    return None


def elementwise_sources(x: Node) -> Iterator[Node]:
    """Yield the values that `x` reads elementwise or by broadcast, reductions included."""

    def operands(y: Node) -> Iterable[Node]:
        is_elementwise = isinstance(y.op, (Map, Cast, Expand)) or _is_unit_reshape(y)
        return y.inputs if is_elementwise else ()

    return reachable([x], operands)


def _is_unit_reshape(x: Node) -> bool:
    """Whether a view only adds or drops dimensions of 1."""
    return isinstance(x.op, Reshape) and _non_unit(x.type.shape) == _non_unit(
        x.inputs[0].type.shape
    )


def _non_unit(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)
