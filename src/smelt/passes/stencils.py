"""Short sums over windows keep their operand packed where writing them out would cost.

A sum of few products, as of a depthwise convolution, can be written out as operators of its own
and is then fused like any other.  That reads the operand and the weights once for each product: it
costs nothing where both are read as they lie.  An operand that is computed would be computed
again for each product that an element is in, and weights whose neighbours lie apart would be picked
lane by lane; these sums stay contractions, which pack both once.  An element that is in few
products, as where windows step over their places, is read sooner than it is packed, unless tiles
read it where it lies.  Sums stay contractions, too, whose lines fill no vectors that may run across
them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.contract import Contract
from smelt.ops.view import Window
from smelt.passes.propagate_layouts import memory_order
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of

__all__ = ["stencils"]


def stencils(graph: Graph) -> Graph:
    """Sums over windows of what is computed are marked: they are not written out.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         stencils(
    ...             parse('''graph f(x: f32[c,h,w], k: f32[c,3,3]) {
    ...   v0 = exp(x)
    ...   v1 = window(v0) {axis=1, extent=3}
    ...   v2 = window(v1) {axis=2, extent=3}
    ...   v3 = contract(v2, k) {spec="c,h,w,u,v; c,u,v -> c,h,w"}
    ...   return v3
    ... }''')
    ...         )
    ...     ).split("{")[-1]
    ... )
    spec="c,h,w,u,v; c,u,v -> c,h,w", packed=true} : f32[c,h - 2,w - 2]
      return v3
    }
    """
    return rebuild(graph, _marked)


def _marked(node: Node) -> Node:
    op = node.op
    if not isinstance(op, Contract) or op.packed or len(op.summed()) < _AXES:
        return node
    extents = op.axis_extents(*(x.type for x in node.inputs))
    if not op.is_short(tuple(extents[a] for a in op.summed())):
        return node
    sides = list(zip((op.left, op.right), node.inputs, strict=True))
    often = [_often(op, extents, *s) for s in sides]
    computed = any(_is_computed(x) and many for x, many in zip(node.inputs, often, strict=True))
    # Beside an element that is in few products weights are picked once for many of these, unless
    # tiles read the operand where it lies.
    apart = any(
        _lies_apart(op, *s) and (often[1 - k] or not often[k] or _lies_open(op, *sides[1 - k]))
        for k, s in enumerate(sides)
    )
    short = _is_narrow(op, extents, node.inputs[0].type.dtype.itemsize) and all(
        not _is_computed(x) or _is_product(x) for x in node.inputs
    )
    if not computed and not short and not apart:
        return node
    return build.apply(replace(op, packed=True), *node.inputs, origin=node.origin)


_AXES = 2
"""Axes of a window at least: along one, neighbouring products are in the same vectors."""
_SHORT = 64
"""Bytes of a line, at most, that is sooner computed across lines: a vector's, more or less."""
_READS = 4
"""Products that an element of the operand is in and is rather computed again for than packed."""


def _often(op: Contract, extents: dict[str, Index], terms: tuple[Index, ...], x: Node) -> bool:
    """Whether an element is in more than a few products: all taps of the window, less those that
    its steps pass over.  What lacks an axis of the result is read all along that axis."""
    if not {*op.out} <= {a for t in terms for a in axes_of(t)}:
        return True
    steps = 1
    for term in terms:
        for a in op.out:
            step = coefficient(term, a)
            steps *= abs(step) if isinstance(step, int) and step else 1
    while x.op.is_view:
        if isinstance(x.op, Window):
            steps *= x.op.step
        x = x.inputs[0]
    return prod(n for a in op.summed() if isinstance(n := extents[a], int)) > _READS * steps


def _is_narrow(op: Contract, extents: dict[str, Index], itemsize: int) -> bool:
    """Whether lines of results are known to fill no vectors, and a contraction could have these run
    across the lines: along another axis of both operands, as of channels."""
    line = extents[op.out[-1]]
    if not isinstance(line, int) or line * itemsize > _SHORT:
        return False
    left, right = ({a for t in terms for a in axes_of(t)} for terms in (op.left, op.right))
    return bool({*op.out[:-1]} & left & right)


def _is_computed(x: Node) -> bool:
    """Whether an operand is neither an input nor a view of one."""
    while x.op.is_view:
        (x, *more) = x.inputs
        if more:
            return True
    return not x.op.is_source


def _is_product(x: Node) -> bool:
    """Whether an operand is made of a contraction, whose kernel stores it."""
    while x.inputs and not isinstance(x.op, Contract):
        x = x.inputs[0]
    return bool(x.inputs)


def _lies_open(op: Contract, terms: tuple[Index, ...], x: Node) -> bool:
    """Whether an operand is an array, or what a contraction's kernel stores as one, that lies along
    the last axis of the result, which no window slides along."""
    slid = {a for t in terms for a in axes_of(t) if len(axes_of(t)) > 1}
    stored = not _is_computed(x) or _is_product(x)
    return stored and not _lies_apart(op, terms, x) and op.out[-1] not in slid


def _lies_apart(op: Contract, terms: tuple[Index, ...], x: Node) -> bool:
    """Whether neighbours along the last axis of the result lie apart in an operand."""
    last = op.out[-1:]
    along = [d for d in memory_order(x) if {*last} & {*axes_of(terms[d])}]
    return bool(along) and along[-1] != memory_order(x)[-1]
