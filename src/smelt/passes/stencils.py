"""Choose which short windowed contractions pack their operands instead of being unrolled.

A contraction of few terms, as of a depthwise convolution, can be unrolled into scalar operators,
and is then fused like any other expression.  That reads the operand and the weights once per term,
which is free where both are read contiguously.  But a computed operand would be recomputed for each
term that an element is in, and weights with a stride would be gathered lane by lane; such
contractions stay, and pack both operands once.  Where each element is in few terms (strided
windows), computing it again is cheaper than packing, unless tiles read it in place.  Contractions
also stay if their rows are too short for a vector, so that vectors may run across rows.

A GPU packs nothing. There, contractions without windows stay from a few terms on: each term that is
unrolled has a load and a register of every thread, and what an operand is computed from is computed
for each term again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.machine.tiling import CPU_TILING, Tiling
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.view import Window
from smelt.passes.propagate_layouts import memory_order
from smelt.types.expr import Index, axes_of, coefficient


def mark_packed_stencils(graph: Graph, tiling: Tiling = CPU_TILING) -> Graph:
    """Mark short contractions that are not unrolled, which pack their operands.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         mark_packed_stencils(
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
    if not tiling.packs_stencils:
        return rebuild(graph, partial(_mark_long, most=tiling.max_unrolled_terms))
    return rebuild(graph, partial(_mark, tiling=tiling))


def _mark(node: Node, *, tiling: Tiling) -> Node:
    op = node.op
    if not isinstance(op, Contract) or op.packed or len(op.reduction_axes()) < _MIN_WINDOW_AXES:
        return node
    extents = op.axis_extents(*(x.type for x in node.inputs))
    if not op.is_short(tuple(extents[a] for a in op.reduction_axes())):
        return node
    sides = list(zip((op.left, op.right), node.inputs, strict=True))
    reused = [_is_reused(op, extents, *s) for s in sides]
    computed = any(
        _is_computed(x) and is_reused for x, is_reused in zip(node.inputs, reused, strict=True)
    )
    # If elements of the operand are in few terms each, strided weights are gathered once for many
    # of these, unless tiles read the operand in place.
    strided_operand = any(
        _is_strided(op, *s)
        and (reused[1 - k] or not reused[k] or _is_read_in_place(op, *sides[1 - k]))
        for k, s in enumerate(sides)
    )
    itemsize = node.inputs[0].type.dtype.itemsize
    short_rows = _has_short_rows(op, extents, tiling.stencil_row_bytes // itemsize) and all(
        not _is_computed(x) or _is_from_contraction(x) for x in node.inputs
    )
    if not computed and not short_rows and not strided_operand:
        return node
    return build.apply(replace(op, packed=True), *node.inputs, origin=node.origin)


def _mark_long(node: Node, *, most: int | None) -> Node:
    """Mark a sum without windows of more products than a machine unrolls."""
    op = node.op
    if most is None or not isinstance(op, Contract) or op.packed:
        return node
    extents = op.axis_extents(*(x.type for x in node.inputs))
    counts = tuple(extents[a] for a in op.reduction_axes())
    has_windows = any(bare_axis(t) is None for t in (*op.left, *op.right))
    if not op.is_short(counts) or has_windows or any(map(_is_windowed, node.inputs)):
        return node
    terms = prod(n for n in counts if isinstance(n, int))
    if terms <= most:
        return node
    return build.apply(replace(op, packed=True), *node.inputs, origin=node.origin)


_MIN_WINDOW_AXES = 2
"""Minimum number of reduction axes: along a single one, adjacent results share vectors."""
_MAX_RECOMPUTES = 4
"""Maximum terms per element for which recomputing the operand is cheaper than packing."""


def _is_reused(op: Contract, extents: dict[str, Index], terms: tuple[Index, ...], x: Node) -> bool:
    """Whether an element is in more terms than it pays to recompute.

    Its terms are the taps of the window, divided by the steps of windows.  An operand that lacks an
    axis of the result is reused along all of that axis.
    """
    if not {*op.out} <= {a for t in terms for a in axes_of(t)}:
        return True
    strides = 1
    for term in terms:
        for a in op.out:
            stride = coefficient(term, a)
            strides *= abs(stride) if isinstance(stride, int) and stride else 1
    while x.op.is_view:
        if isinstance(x.op, Window):
            strides *= x.op.step
        x = x.inputs[0]
    return (
        prod(n for a in op.reduction_axes() if isinstance(n := extents[a], int))
        > _MAX_RECOMPUTES * strides
    )


def _has_short_rows(op: Contract, extents: dict[str, Index], most: int) -> bool:
    """Whether result rows have `most` elements or fewer and both operands share an outer axis.

    A contraction can then run its vectors across rows, along that axis (as of channels).
    """
    row_length = extents[op.out[-1]]
    if not isinstance(row_length, int) or row_length > most:
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


def _is_windowed(x: Node) -> bool:
    """Whether an operand has an element at several positions, by a view of its windows."""
    while x.op.is_view and not isinstance(x.op, Window):
        (x, *_) = x.inputs
    return isinstance(x.op, Window)


def _is_from_contraction(x: Node) -> bool:
    """Whether an operand derives from a contraction, whose kernel stores it."""
    while x.inputs and not isinstance(x.op, Contract):
        x = x.inputs[0]
    return bool(x.inputs)


def _is_read_in_place(op: Contract, terms: tuple[Index, ...], x: Node) -> bool:
    """Whether a stored operand is contiguous along the last result axis, which has no window."""
    window_axes = {a for t in terms for a in axes_of(t) if len(axes_of(t)) > 1}
    stored = not _is_computed(x) or _is_from_contraction(x)
    return stored and not _is_strided(op, terms, x) and op.out[-1] not in window_axes


def _is_strided(op: Contract, terms: tuple[Index, ...], x: Node) -> bool:
    """Whether an operand is strided along the last axis of the result.

    Adjacent elements then have a stride > 1 in it.
    """
    last = op.out[-1:]
    dims = [d for d in memory_order(x) if {*last} & {*axes_of(terms[d])}]
    return bool(dims) and dims[-1] != memory_order(x)[-1]
