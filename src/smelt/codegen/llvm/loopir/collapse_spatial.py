"""Lines of a product's columns become one axis, though margins tell them apart.

Columns of a 1x1 convolution are the places of an image.  Where all that is read and stored there
lies in one run over all lines, as a depthwise convolution with margins as wide as its windows does,
the two axes of places become one, p, and what is outside of the image is asked of its line and of
its place in that:

    S[y,x] = sum of X[y + u, x + v] * D[u,v]    is    S[p] = sum of X[p + u*w + v] * D[u,v]
                                                      where p//w + u and p%w + v are inside

Tiles are full then, wherever lines end.
"""

from __future__ import annotations

from itertools import permutations

from smelt.codegen.llvm.loopir.collapse_axes import is_bound, put_axes
from smelt.codegen.llvm.loopir.items import Access, Item, Phase
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of, axis, floordiv, mod, mul, substitute


def over_lines(phase: Phase) -> Phase:
    """Joins the axes of lines that one operand of each product has, where everything allows it."""
    dots = [i for i in phase.items if i.kind == "dot"]
    if not dots or phase.regions() or phase.cut or phase.places or phase.settings:
        return phase
    for a, b in permutations(phase.axes, 2):
        if (
            {a, b} <= phase.axes.keys()
            and all(_walks(i, a, b) for i in dots)
            and _is_one_run(phase, a, b)
        ):
            _join(phase, a, b)
    return phase


def _walks(dot: Item, a: str, b: str) -> bool:
    """Whether two axes walk the columns of a product: those of one operand alone."""
    return any(
        {a, b} <= x.axes and {a, b}.isdisjoint(y.axes) for x, y in (dot.args, dot.args[::-1])
    )


def _is_one_run(phase: Phase, a: str, b: str) -> bool:
    """Whether all that is read and stored lies as one run over a and b, if lines are told apart by
    margins at all, and by nothing but these."""
    if not {a, b} <= {*phase.grid} or is_bound(phase, a) or is_bound(phase, b):
        return False
    told = False
    for item in phase.items:
        access = item.payload
        if isinstance(access, Access):
            if not all(_is_margin(e, n, a, b) for e, n in access.limits):
                return False
            told |= any({a, b} & {*axes_of(e)} for e, _ in access.limits)
        elif item.axes & {a, b} and item.kind not in ("apply", "cast", "dot", "const"):
            return False
    read = [(i.payload.offset, i.axes) for i in phase.items if isinstance(i.payload, Access)]
    stored = [(s.access.offset, s.axes) for s in phase.stores]
    inner = phase.axes[b]
    return told and all(
        (a in axes) == (b in axes) and (a not in axes or _follows(offset, a, b, inner))
        for offset, axes in (*read, *stored)
    )


def _follows(offset: Index, a: str, b: str, inner: Index) -> bool:
    """Whether a place follows the last one of the line before without a gap."""
    return coefficient(offset, b) == 1 and coefficient(offset, a) == inner


def _is_margin(e: Index, n: Index, a: str, b: str) -> bool:
    """Whether a test is of neither axis, or of one of them and a number from it: of windows that
    slide along others, each place serves several sums, and is packed once for all."""
    if {a, b} & {*axes_of(n)}:
        return False
    own = {a, b} & {*axes_of(e)}
    return not own or (len(axes_of(e)) == 1 and coefficient(e, own.pop()) == 1)


def _join(phase: Phase, a: str, b: str) -> None:
    """Axis b becomes a*extent(b) + b, and axis a goes."""
    inner, extent = phase.axes[b], mul(phase.axes[a], phase.axes[b])
    place = axis(b, extent)
    told: dict[str, Index] = {a: floordiv(place, inner), b: mod(place, inner)}
    kept = {i: i.payload.limits for i in phase.items if isinstance(i.payload, Access)}
    phase.lanes = b if phase.lanes == a else phase.lanes
    put_axes(phase, {a: 0, b: place}, drop=(a,))
    for item, limits in kept.items():
        access = item.payload
        assert isinstance(access, Access)
        moved = tuple((substitute(e, told), n) for e, n in limits)
        item.payload = Access(access.buffer, access.offset, moved, access.other)
    phase.axes[b] = extent


__all__ = ["over_lines"]
