"""Products of operands that repeat along an axis are computed once, and their results repeat.

Keys and queries of one group that serve many heads are often repeated before they are multiplied,
and the heads are then merged with other axes.  Every head gets the same products; the views that
repeat and merge hide it, from the planner too, which would count the work of all heads.  No
rounding changes: each sum is what it was.  Rows of one operand alone that repeat are left: without
them the product would no longer be one that its readers' kernels can hold.

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
    """A part of a dimension: dimensions that a reshape merged are several in one."""

    extent: Index
    same: bool
    """Whether all positions hold the same."""


Factors = tuple[Factor, ...]


def same(graph: Graph) -> Graph:
    """Products leave out axes of their results along which both operands repeat.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         same(
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
    return rebuild(graph, _once)


def _once(node: Node) -> Node:
    op = node.op
    if not isinstance(op, Contract):
        return node
    sides = list(zip((op.left, op.right), node.inputs, strict=True))
    kept: dict[str, Factors] = {}
    for name in op.out:
        alone = all(len(_place(terms, name)) == 1 == _reads(terms, name) for terms, _ in sides)
        if not alone or name in dict(op.extents):
            continue
        found = [factors(x, a) for terms, x in sides for a in _place(terms, name)]
        if len({tuple(f.extent for f in fs) for fs in found}) != 1:
            continue  # merged of other parts
        merged = tuple(Factor(fs[0].extent, all(f.same for f in fs)) for fs in zip(*found))
        if any(f.same for f in merged):
            kept[name] = merged
    if not kept:
        return node
    operands: list[Node] = []
    for terms, x in sides:
        for name, wanted in kept.items():
            for a in _place(terms, name):
                x = without(x, a, wanted)
        operands.append(x)
    made = build.apply(op, *operands, origin=node.origin)
    return _repeated(made, node, [kept.get(name) for name in op.out])


def _place(terms: Terms, name: str) -> list[int]:
    return [a for a, term in enumerate(terms) if bare_axis(term) == name]


def _reads(terms: Terms, name: str) -> int:
    """How many terms have an axis, alone or in a sum."""
    return sum(name in axes_of(t) for t in terms)


def _repeated(made: Node, node: Node, parts: list[Factors | None]) -> Node:
    """What is left of a result, as all of it."""
    narrow: list[Index] = []
    wide: list[Index] = []
    for n, own in zip(node.type.shape, parts, strict=True):
        for f in own or (Factor(n, False),):
            narrow.append(1 if f.same else f.extent)
            wide.append(f.extent)
    found = _reshaped(made, tuple(narrow))
    return _reshaped(build.apply(Expand(tuple(wide)), found, origin=node.origin), node.type.shape)


def _reshaped(x: Node, shape: Shape) -> Node:
    return x if x.type.shape == shape else build.apply(Reshape(shape), x, origin=x.origin)


def factors(x: Node, a: int) -> Factors:
    """The parts of a dimension, as far as views show them."""
    n = x.type.shape[a]
    if isinstance(x.op, Permute):
        return factors(x.inputs[0], x.op.perm[a])
    if isinstance(x.op, Expand):
        (y,) = x.inputs
        own = a - (x.type.rank - y.type.rank)
        if n != 1 and (own < 0 or y.type.shape[own] == 1):
            return (Factor(n, True),)
        return () if n == 1 else factors(y, own)
    if isinstance(x.op, Reshape):
        group = merged_dims(x.inputs[0].type.shape, x.type.shape, a)
        if group is not None:
            return tuple(f for b in group for f in factors(x.inputs[0], b))
    return () if n == 1 else (Factor(n, False),)


def without(x: Node, a: int, wanted: Factors) -> Node:
    """A value of one position for each part of a dimension that is the same."""
    if not any(f.same for f in wanted):
        return x
    shape = _with(x.type.shape, a, product([f.extent for f in wanted if not f.same]))
    if isinstance(x.op, Permute):
        return build.apply(x.op, without(x.inputs[0], x.op.perm[a], wanted), origin=x.origin)
    if isinstance(x.op, Expand):
        (y,) = x.inputs
        own = a - (x.type.rank - y.type.rank)
        if own >= 0 and y.type.shape[own] != 1:
            y = without(y, own, wanted)
        return build.apply(Expand(shape), y, origin=x.origin)
    assert isinstance(x.op, Reshape)
    y, at = x.inputs[0], 0
    for b in merged_dims(x.inputs[0].type.shape, x.type.shape, a) or ():
        count = len(factors(y, b))
        own, at = wanted[at : at + count], at + count
        y = without(y, b, own)
    return build.apply(Reshape(shape), y, origin=x.origin)


def _with(shape: Shape, a: int, n: Index) -> Shape:
    return (*shape[:a], n, *shape[a + 1 :])
