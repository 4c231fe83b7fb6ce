"""Small groups of channels that lie last: their axis and that of what each has become one.

A convolution in groups has an axis of groups, which image, weights and results share, and one of
what each group has, which is the weights' own.  Where that one is short and results lie along it, a
vector is filled by several groups:

    out[y, x, g, o] = sum over u, v, c of w[g, o, u, v, c] * x[y + u, x + v, g*C + c]      is
    out[y, x, n]    = sum over u, v, c of w[n, u, v, c] * x[y + u, x + v, n//O*C + c]

which is a stencil, whose image has an element for each lane.  Where a group has as many channels
as results, lanes may be mixed instead: x[.., n] is read, and lane n takes what n//O*O + c has.
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.codegen.llvm.loopir.clone import folds, indices, reached
from smelt.codegen.llvm.loopir.collapse_axes import put_axes
from smelt.codegen.llvm.loopir.items import Access, Folding, Item, Phase
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of, axis, floordiv, mod, mul, substitute


def join_groups(phase: Phase, dots: list[Item], stored: str | None, most: int) -> bool:
    """Joins the axis of groups with the `stored` one, where all of some products have both, and
    `most` positions along the stored one or fewer."""
    each = phase.axes.get(stored or "")
    if stored is None or phase.places or not isinstance(each, int) or each > most:
        return False
    groups = {_groups(phase, i, stored, each) for i in dots}
    (group, *more) = groups
    if more or group is None or not {group, stored} <= {*phase.grid}:
        return False
    folds = [i.payload.over for i in phase.items if isinstance(i.payload, Folding)]
    if any({group, stored} & {*over} for over in folds):
        return False
    extent = mul(phase.axes[group], each)
    whole = axis(stored, extent)
    for item in phase.items:
        if group in item.axes:
            item.axes |= {stored}
    put_axes(phase, {group: floordiv(whole, each), stored: mod(whole, each)}, drop=(group,))
    phase.axes[stored] = extent
    phase.lanes = stored if phase.lanes == group else phase.lanes
    return True


def _groups(phase: Phase, item: Item, stored: str, each: int) -> str | None:
    """The axis of groups of a product: what it shares with both operands, and what all results have
    right outside of the stored axis, which only one operand has."""
    first, second = (x.axes for x in item.args)
    if (stored in first) == (stored in second):
        return None
    for a in phase.axes:
        if a in first & second & item.axes and all(
            coefficient(s.access.offset, a) == each and coefficient(s.access.offset, stored) == 1
            for s in phase.stores
            if {a, stored} & {*axes_of(s.access.offset)}
        ):
            return a
    return None


def mixed(phase: Phase, item: Item, n: str, over: Iterable[str]) -> tuple[str, int]:
    """A summed axis along which an item has, for each position along n, what n's neighbours in a
    group of so many have: x[.., n//4*4 + c]; and how many."""
    for a in over:
        each = phase.axes[a]
        if not isinstance(each, int) or folds(item, {a, n}):
            continue
        turn = mod(axis(n, phase.axes[n]), each)
        if all(_is_mixed(x, a, n, turn) for x in reached(item, {a, n})):
            return a, each
    return "", 1


def _is_mixed(x: Item, a: str, n: str, turn: Index) -> bool:
    """Whether what is read at a in a group is what n reads where that is its turn."""
    if not isinstance(x.payload, Access):
        return bool(x.args) and not indices(x.payload)
    offset, limits = x.payload.offset, indices(x.payload)[1:]
    here = coefficient(substitute(offset, {a: turn}), n)
    fixed = not any({a, n} & {*axes_of(e)} for e in limits) and not x.payload.positions
    return fixed and here is not None and here == coefficient(offset, a)


__all__ = ["join_groups", "mixed"]
