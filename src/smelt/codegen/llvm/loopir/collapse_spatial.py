"""Collapse the two spatial axes of an image into one, even under padding.

The columns of a 1x1 convolution are the positions of an image.  If all that is read and stored
there is contiguous over both spatial axes, as for a depthwise convolution with "same" padding, they
become one axis p, and bounds checks use the row p//w and the position in the row p%w:

    S[y,x] = sum of X[y + u, x + v] * D[u,v]    is    S[p] = sum of X[p + u*w + v] * D[u,v]
                                                      where p//w + u and p%w + v are inside

Register tiles are full then, wherever rows end.
"""

from __future__ import annotations

from itertools import permutations

from smelt.codegen.llvm.loopir.collapse_axes import is_bound, substitute_axes
from smelt.codegen.llvm.loopir.items import Access, Item, Phase
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of, axis, floordiv, mod, mul, substitute


def collapse_spatial(phase: Phase) -> Phase:
    """Collapse pairs of spatial axes which one operand of each contraction has, where all accesses
    allow it."""
    dots = [i for i in phase.items if i.kind == "dot"]
    if not dots or phase.regions() or phase.cut or phase.window_positions or phase.state_updates:
        return phase
    for a, b in permutations(phase.axes, 2):
        if (
            {a, b} <= phase.axes.keys()
            and all(_are_columns(i, a, b) for i in dots)
            and _is_contiguous(phase, a, b)
        ):
            _collapse(phase, a, b)
    return phase


def _are_columns(dot: Item, a: str, b: str) -> bool:
    """Return whether a and b are columns of a contraction: axes of one operand alone."""
    return any(
        {a, b} <= x.axes and {a, b}.isdisjoint(y.axes) for x, y in (dot.args, dot.args[::-1])
    )


def _is_contiguous(phase: Phase, a: str, b: str) -> bool:
    """Return whether every access is contiguous over a and b.

    At least one bounds check must depend on them, and none may be of anything but padding.
    """
    if not {a, b} <= {*phase.grid} or is_bound(phase, a) or is_bound(phase, b):
        return False
    padded = False
    for item in phase.items:
        access = item.payload
        if isinstance(access, Access):
            if not all(_is_padding_check(e, n, a, b) for e, n in access.limits):
                return False
            padded |= any({a, b} & {*axes_of(e)} for e, _ in access.limits)
        elif item.axes & {a, b} and item.kind not in ("apply", "cast", "dot", "const"):
            return False
    loads = [(i.payload.offset, i.axes) for i in phase.items if isinstance(i.payload, Access)]
    stores = [(s.access.offset, s.axes) for s in phase.stores]
    inner = phase.axes[b]
    return padded and all(
        (a in axes) == (b in axes) and (a not in axes or _rows_are_adjacent(offset, a, b, inner))
        for offset, axes in (*loads, *stores)
    )


def _rows_are_adjacent(offset: Index, a: str, b: str, inner: Index) -> bool:
    """Return whether the rows of an array follow one another without a gap."""
    return coefficient(offset, b) == 1 and coefficient(offset, a) == inner


def _is_padding_check(e: Index, n: Index, a: str, b: str) -> bool:
    """Return whether a bounds check is of padding alone, or of neither axis.

    That is an axis plus a constant.  Checks of windows that slide along other axes are excluded:
    there each input position serves several sums, and is packed once for all.
    """
    if {a, b} & {*axes_of(n)}:
        return False
    axes = {a, b} & {*axes_of(e)}
    return not axes or (len(axes_of(e)) == 1 and coefficient(e, axes.pop()) == 1)


def _collapse(phase: Phase, a: str, b: str) -> None:
    """Replace axis b by a*extent(b) + b, and remove axis a."""
    inner, extent = phase.axes[b], mul(phase.axes[a], phase.axes[b])
    position = axis(b, extent)
    parts: dict[str, Index] = {a: floordiv(position, inner), b: mod(position, inner)}
    limits_of = {i: i.payload.limits for i in phase.items if isinstance(i.payload, Access)}
    phase.lanes = b if phase.lanes == a else phase.lanes
    substitute_axes(phase, {a: 0, b: position}, drop=(a,))
    for item, limits in limits_of.items():
        access = item.payload
        assert isinstance(access, Access)
        checks = tuple((substitute(e, parts), n) for e, n in limits)
        item.payload = Access(access.buffer, access.offset, checks, access.other)
    phase.axes[b] = extent


__all__ = ["collapse_spatial"]
