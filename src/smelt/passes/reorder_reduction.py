"""Reorder merged reduction axes of contractions into memory order.

A reduction axis may be several merged ones: heads and their columns, say, where a projection reads
the output of all heads.  Any order of them gives the same sum, and the author had no reason to
choose the one in memory; einsum, for example, orders axes by name.  In memory order rows are read
contiguously, in any other element by element.  An operand whose rows do not end in a reduction axis
reads equally fast in any order; if both operands have a preference and differ, the order stays.

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


def reorder_reductions(graph: Graph) -> Graph:
    """Sum over merged axes in the order in which their parts are stored.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         reorder_reductions(
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
    return rebuild(graph, _in_memory_order)


class _MergedDim(NamedTuple):
    """A dimension that a reshape merged from several ones."""

    view: Node
    """The reshape."""
    base: Node
    """The stored value."""
    perm: tuple[int, ...]
    """Permutation of its dimensions before the merge."""
    parts: tuple[int, ...]
    """The merged dimensions, as positions in `perm`."""

    def extents(self) -> Shape:
        return tuple(self.base.type.shape[self.perm[p]] for p in self.parts)

    def order(self) -> tuple[int, ...]:
        """Return the parts in memory order."""
        return tuple(sorted(range(len(self.parts)), key=lambda k: self.perm[self.parts[k]]))

    def minds(self) -> bool:
        """Whether rows in memory end in one of the parts."""
        non_unit = [d for d, n in enumerate(self.base.type.shape) if n != 1]
        return non_unit[-1] in [self.perm[p] for p in self.parts]

    def merged(self, order: tuple[int, ...]) -> Node:
        """Merge the parts in another order."""
        perm = list(self.perm)
        for position, k in zip(self.parts, order, strict=True):
            perm[position] = self.perm[self.parts[k]]
        x = self.base
        if perm != sorted(perm):
            x = build.apply(Permute(tuple(perm)), x, origin=self.view.origin)
        return build.apply(self.view.op, x, origin=self.view.origin)


def _in_memory_order(node: Node) -> Node:
    op = node.op
    if not isinstance(op, Contract):
        return node
    operands = list(node.inputs)
    for name in op.reduction_axes():
        sides = [
            _merged_dim(x, terms, name)
            for x, terms in zip(operands, (op.left, op.right), strict=True)
        ]
        merges = [s for s in sides if s is not None]
        if len(merges) != 2 or merges[0].extents() != merges[1].extents():
            continue
        orders = {s.order() for s in merges if s.minds()}
        if len(orders) == 1 and (order := orders.pop()) != tuple(range(len(order))):
            operands = [s.merged(order) for s in merges]
    if all(a is b for a, b in zip(operands, node.inputs, strict=True)):
        return node
    return build.apply(op, *operands, origin=node.origin)


def _merged_dim(x: Node, terms: Terms, name: str) -> _MergedDim | None:
    """Return the merged dimension that a reduction axis indexes by itself, or None."""
    dims = [a for a, term in enumerate(terms) if name in axes_of(term)]
    if len(dims) != 1 or bare_axis(terms[dims[0]]) != name or not isinstance(x.op, Reshape):
        return None
    (unmerged,) = x.inputs
    group = merged_dims(unmerged.type.shape, x.type.shape, dims[0])
    parts = tuple(d for d in group or () if unmerged.type.shape[d] != 1)
    if len(parts) < 2:
        return None
    if isinstance(unmerged.op, Permute):
        return _MergedDim(x, unmerged.inputs[0], unmerged.op.perm, parts)
    return _MergedDim(x, unmerged, tuple(range(unmerged.type.rank)), parts)
