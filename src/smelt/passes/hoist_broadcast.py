"""Hoist broadcasts out of contractions: compute repeated products once, and repeat the result.

Grouped-query attention (GQA) often repeats keys for the heads that share them, and merges the heads
with other axes.  All of these heads get the same products, but the views that repeat and merge hide
it, also from the planner, which would count the work of all heads.  Rounding does not change: each
sum stays as it is.  Rows that repeat in only one operand are left: without them, the readers'
kernels could not hold the contraction.

    contract(expand(x, [h,m,k]), expand(w, [h,k,n]))  ->  expand(contract(x, w), [h,m,n])
"""

from __future__ import annotations

from typing import NamedTuple

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.contract import Contract, Terms, bare_axis
from smelt.ops.view import Expand, Permute, Reshape, merged_dims
from smelt.types.expr import Index, axes_of, product
from smelt.types.tensor import Shape


class Factor(NamedTuple):
    """A factor of a dimension's extent; a reshape merges several of them."""

    extent: Index
    repeated: bool
    """Whether all positions along it hold the same elements."""


Factors = tuple[Factor, ...]


def hoist_broadcast(graph: Graph) -> Graph:
    """Compute contractions once along axes of the result where both operands repeat.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         hoist_broadcast(
    ...             parse('''graph f(x: f32[m,k], w: f32[k,n]) {
    ...   a = expand(x) {shape=(h,m,k)}
    ...   b = expand(w) {shape=(h,k,n)}
    ...   y = contract(a, b) {spec="h,m,k; h,k,n -> h,m,n"}
    ...   return y
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[m,k], w: f32[k,n]) {
      v0 = expand(x) {shape=(1, m, k)} : f32[1,m,k]
      v1 = expand(w) {shape=(1, k, n)} : f32[1,k,n]
      v2 = contract(v0, v1) {spec="h,m,k; h,k,n -> h,m,n"} : f32[1,m,n]
      v3 = expand(v2) {shape=(h, m, n)} : f32[h,m,n]
      return v3
    }
    """
    return rebuild(graph, _hoist)


def _hoist(node: Node) -> Node:
    op = node.op
    if not isinstance(op, Contract):
        return node
    sides = list(zip((op.left, op.right), node.inputs, strict=True))
    repeated: dict[str, Factors] = {}
    for name in op.out:
        is_bare = all(len(_bare_dims(terms, name)) == 1 == _uses(terms, name) for terms, _ in sides)
        if not is_bare or name in dict(op.extents):
            continue
        per_side = [dim_factors(x, a) for terms, x in sides for a in _bare_dims(terms, name)]
        if len({tuple(f.extent for f in fs) for fs in per_side}) != 1:
            continue  # merged from different factors
        merged = tuple(Factor(fs[0].extent, all(f.repeated for f in fs)) for fs in zip(*per_side))
        if any(f.repeated for f in merged):
            repeated[name] = merged
    if not repeated:
        return node
    operands: list[Node] = []
    for terms, x in sides:
        for name, dims in repeated.items():
            for a in _bare_dims(terms, name):
                x = drop_repeats(x, a, dims)
        operands.append(x)
    result = build.apply(op, *operands, origin=node.origin)
    return _expand_result(result, node, [repeated.get(name) for name in op.out])


def _bare_dims(terms: Terms, name: str) -> list[int]:
    return [a for a, term in enumerate(terms) if bare_axis(term) == name]


def _uses(terms: Terms, name: str) -> int:
    """Count the terms that have an axis, alone or in a sum."""
    return sum(name in axes_of(t) for t in terms)


def _expand_result(hoisted: Node, node: Node, repeated_dims: list[Factors | None]) -> Node:
    """Broadcast a hoisted result to the shape of the original."""
    hoisted_shape: list[Index] = []
    full_shape: list[Index] = []
    for n, dims in zip(node.type.shape, repeated_dims, strict=True):
        for f in dims or (Factor(n, False),):
            hoisted_shape.append(1 if f.repeated else f.extent)
            full_shape.append(f.extent)
    reshaped = _reshaped(hoisted, tuple(hoisted_shape))
    return _reshaped(
        build.apply(Expand(tuple(full_shape)), reshaped, origin=node.origin), node.type.shape
    )


def _reshaped(x: Node, shape: Shape) -> Node:
    return x if x.type.shape == shape else build.apply(Reshape(shape), x, origin=x.origin)


def dim_factors(x: Node, a: int) -> Factors:
    """Return the factors of a dimension that views reveal, outermost first."""
    n = x.type.shape[a]
    if isinstance(x.op, Permute):
        return dim_factors(x.inputs[0], x.op.perm[a])
    if isinstance(x.op, Expand):
        (y,) = x.inputs
        inner = a - (x.type.rank - y.type.rank)
        if n != 1 and (inner < 0 or y.type.shape[inner] == 1):
            return (Factor(n, True),)
        return () if n == 1 else dim_factors(y, inner)
    if isinstance(x.op, Reshape):
        group = merged_dims(x.inputs[0].type.shape, x.type.shape, a)
        if group is not None:
            return tuple(f for b in group for f in dim_factors(x.inputs[0], b))
    return () if n == 1 else (Factor(n, False),)


def drop_repeats(x: Node, a: int, dims: Factors) -> Node:
    """Keep one position along each repeated factor (of `dims`) of dimension `a`."""
    if not any(f.repeated for f in dims):
        return x
    shape = _replace_dim(x.type.shape, a, product([f.extent for f in dims if not f.repeated]))
    if isinstance(x.op, Permute):
        return build.apply(x.op, drop_repeats(x.inputs[0], x.op.perm[a], dims), origin=x.origin)
    if isinstance(x.op, Expand):
        (y,) = x.inputs
        inner = a - (x.type.rank - y.type.rank)
        if inner >= 0 and y.type.shape[inner] != 1:
            y = drop_repeats(y, inner, dims)
        return build.apply(Expand(shape), y, origin=x.origin)
    assert isinstance(x.op, Reshape)
    y, at = x.inputs[0], 0
    for b in merged_dims(x.inputs[0].type.shape, x.type.shape, a) or ():
        count = len(dim_factors(y, b))
        inner, at = dims[at : at + count], at + count
        y = drop_repeats(y, b, inner)
    return build.apply(Reshape(shape), y, origin=x.origin)


def _replace_dim(shape: Shape, a: int, n: Index) -> Shape:
    return (*shape[:a], n, *shape[a + 1 :])
