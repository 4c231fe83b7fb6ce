"""Merge the group axis of a channels-last grouped convolution with its output channels.

A grouped convolution has an axis of groups, shared by image, weights and results, and an axis of
output channels per group, which only the weights have.  If the latter is short and results are
contiguous along it, several groups fill a vector:

    out[y, x, g, o] = sum over u, v, c of w[g, o, u, v, c] * x[y + u, x + v, g*C + c]      is
    out[y, x, n]    = sum over u, v, c of w[n, u, v, c] * x[y + u, x + v, n//O*C + c]

This is a depthwise convolution whose image has an element for each lane.  If a group has as many
input as output channels, lanes may be permuted instead: x[.., n] is read, and lane n takes element
n//O*O + c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from smelt.codegen.llvm.loopir.collapse_axes import substitute_axes
from smelt.codegen.llvm.loopir.items import IndexValue, Item, Load, Phase, Reduction, WindowRead
from smelt.codegen.llvm.loopir.rewrite import dependencies, depends_on_reduction, rebuild
from smelt.types.expr import Index, axes_of, axis, coefficient, floordiv, mod, mul, substitute


def merge_groups(phase: Phase, dots: Sequence[Item], stored: str | None, most: int) -> Phase | None:
    """Merge the group axis of contractions into the `stored` axis.

    All of `dots` must have both axes, and the stored one at most `most` positions.  None if they
    do not.
    """
    each = phase.axes.get(stored or "")
    if stored is None or phase.window_positions or not isinstance(each, int) or each > most:
        return None
    groups = {_group_axis(phase, i, stored, each) for i in dots}
    (group, *more) = groups
    if more or group is None or not {group, stored} <= {*phase.grid}:
        return None
    reductions = [i.over for i in phase.items if isinstance(i, Reduction)]
    if any({group, stored} & {*over} for over in reductions):
        return None
    extent = mul(phase.axes[group], each)
    position = axis(stored, extent)
    both = rebuild(phase, lambda _, i: replace(i, axes=i.axes | {stored}) if group in i.axes else i)
    places = {group: floordiv(position, each), stored: mod(position, each)}
    return substitute_axes(both, places, {group: {}, stored: {stored: extent}})


def _group_axis(phase: Phase, item: Item, stored: str, each: int) -> str | None:
    """Return the group axis of a contraction.

    Both operands and the result have it, and all results have it directly outside of the stored
    axis.
    """
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


def find_mixing_axis(phase: Phase, item: Item, n: str, over: Iterable[str]) -> tuple[str, int]:
    """Return a reduced axis that permutes lanes along n within groups, and the group size.

    For each position along n, the item has there what n's neighbours in a group read: x[.., n//4*4
    + c].
    """
    for a in over:
        each = phase.axes[a]
        if not isinstance(each, int) or depends_on_reduction(item, {a, n}):
            continue
        lane_in_group = mod(axis(n, phase.axes[n]), each)
        if all(_permutes_lanes(x, a, n, lane_in_group) for x in dependencies(item, {a, n})):
            return a, each
    return "", 1


def _permutes_lanes(x: Item, a: str, n: str, lane_in_group: Index) -> bool:
    """Return whether reading a value at `a` is a permutation of lanes along `n`.

    Then position `a` of a group is what lane number `a` of the group reads.
    """
    if not isinstance(x, Load):
        return bool(x.args) and not isinstance(x, (IndexValue, WindowRead))
    offset, *limits = x.access.indices
    stride = coefficient(substitute(offset, {a: lane_in_group}), n)
    fixed = not any({a, n} & {*axes_of(e)} for e in limits) and not x.access.positions
    return fixed and stride is not None and stride == coefficient(offset, a)
