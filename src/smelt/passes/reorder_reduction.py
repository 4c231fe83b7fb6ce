"""Products sum in the order in which their operands lie.

An axis that is summed over may be several in one: the heads and their columns, say, where a product
takes what all heads give.  Any order of the parts is the same sum, and whoever wrote the product
had no reason to choose one that memory does not have; einsum, for one, takes them by the names of
their axes.  In the order of memory rows are read along themselves, elsewhere element by element.
An operand whose rows do not end in the sum does not mind; where two mind and differ, the order
stays.

    permute(x, [m,d,h]), permute(w, [d,h,n]) over (d h)  ->  x, permute(w, [h,d,n]) over (h d)
"""

from __future__ import annotations

from typing import NamedTuple

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.contract import Contract, Terms, bare_axis
from smelt.ops.view import Permute, Reshape, merged_dims
from smelt.types.expr import axes_of
from smelt.types.tensor import Shape

__all__ = ["ordered"]


def ordered(graph: Graph) -> Graph:
    """Sums over merged axes take their parts in the order of memory.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         ordered(
    ...             parse('''graph f(x: f32[m,4,8], w: f32[n,4,8]) {
    ...   a = permute(x) {perm=(0,2,1)}
    ...   b = reshape(a) {shape=(m,32)}
    ...   c = permute(w) {perm=(0,2,1)}
    ...   d = reshape(c) {shape=(n,32)}
    ...   y = contract(b, d) {spec="m,k; n,k -> m,n"}
    ...   return y
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[m,4,8], w: f32[n,4,8]) {
      v0 = reshape(x) {shape=(m, 32)} : f32[m,32]
      v1 = reshape(w) {shape=(n, 32)} : f32[n,32]
      v2 = contract(v0, v1) {spec="m,k; n,k -> m,n"} : f32[m,n]
      return v2
    }
    """
    return rebuild(graph, _as_it_lies)


class _Merged(NamedTuple):
    """A dimension that a reshape made of several ones."""

    view: Node
    """The reshape."""
    base: Node
    """What lies in memory."""
    perm: tuple[int, ...]
    """How the dimensions of that stand before they are merged."""
    parts: tuple[int, ...]
    """Which of those are merged: places in `perm`."""

    def extents(self) -> Shape:
        return tuple(self.base.type.shape[self.perm[p]] for p in self.parts)

    def order(self) -> tuple[int, ...]:
        """The parts as they lie."""
        return tuple(sorted(range(len(self.parts)), key=lambda k: self.perm[self.parts[k]]))

    def minds(self) -> bool:
        """Whether rows of memory end in one of the parts."""
        real = [d for d, n in enumerate(self.base.type.shape) if n != 1]
        return real[-1] in [self.perm[p] for p in self.parts]

    def merged(self, order: tuple[int, ...]) -> Node:
        """The same with the parts in another order."""
        perm = list(self.perm)
        for place, k in zip(self.parts, order, strict=True):
            perm[place] = self.perm[self.parts[k]]
        x = self.base
        if perm != sorted(perm):
            x = build.apply(Permute(tuple(perm)), x, origin=self.view.origin)
        return build.apply(self.view.op, x, origin=self.view.origin)


def _as_it_lies(node: Node) -> Node:
    op = node.op
    if not isinstance(op, Contract):
        return node
    operands = list(node.inputs)
    for name in op.summed():
        sides = [
            _merged(x, terms, name) for x, terms in zip(operands, (op.left, op.right), strict=True)
        ]
        found = [s for s in sides if s is not None]
        if len(found) != 2 or found[0].extents() != found[1].extents():
            continue
        orders = {s.order() for s in found if s.minds()}
        if len(orders) == 1 and (order := orders.pop()) != tuple(range(len(order))):
            operands = [s.merged(order) for s in found]
    if all(a is b for a, b in zip(operands, node.inputs, strict=True)):
        return node
    return build.apply(op, *operands, origin=node.origin)


def _merged(x: Node, terms: Terms, name: str) -> _Merged | None:
    """The dimension that an axis is, if it stands by itself, once, and has several parts."""
    at = [a for a, term in enumerate(terms) if name in axes_of(term)]
    if len(at) != 1 or bare_axis(terms[at[0]]) != name or not isinstance(x.op, Reshape):
        return None
    (before,) = x.inputs
    group = merged_dims(before.type.shape, x.type.shape, at[0])
    parts = tuple(d for d in group or () if before.type.shape[d] != 1)
    if len(parts) < 2:
        return None
    if isinstance(before.op, Permute):
        return _Merged(x, before.inputs[0], before.op.perm, parts)
    return _Merged(x, before, tuple(range(before.type.rank)), parts)
