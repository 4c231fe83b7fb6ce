"""Collapse short rows of a map into one axis, so that vectors cross row ends.

Vectors along rows of 3 are nearly empty.  If all results are contiguous, the axes of such rows and
the one around them become one axis k, of which they are quotients and remainders; what is read
along it is contiguous too, or periodic (`smelt.codegen.llvm.loopir.periodic_index`):

    y[n,j] = x[n,j] + b[j]    is    y[k] = x[k] + b[k%3]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.codegen.llvm.access.permute_gather import can_permute
from smelt.codegen.llvm.access.vector_axis import lanes_of
from smelt.codegen.llvm.loopir.collapse_axes import substitute_axes
from smelt.codegen.llvm.loopir.items import Apply, Cast, Const, IndexValue, Load, Phase, Scan
from smelt.codegen.llvm.loopir.periodic_index import MAX_PERIOD, find_period
from smelt.codegen.llvm.loopir.rewrite import rebuild
from smelt.loop.passes.group_loads import FARTHEST_STEP, dense_groups
from smelt.machine.target import Target
from smelt.types.expr import Index, axes_of, axis, coefficient, floordiv, mod, mul, substitute

MAP_KINDS = (Const, IndexValue, Load, Apply, Cast)
"""Kinds of items in a phase whose rows may be collapsed."""


def is_map(phase: Phase, *, scans: bool = False) -> bool:
    """Return whether a phase has only loads and scalar operators (and scans, if `scans`)."""
    kinds = (*MAP_KINDS, Scan) if scans else MAP_KINDS
    plain = all(isinstance(i, kinds) for i in phase.items) and not (phase.regions() or phase.cut)
    return plain and not (phase.window_positions or phase.state_updates)


def collapse_short_rows(phase: Phase, target: Target) -> Phase | None:
    """Collapse a map's short rows with the axis around them.

    None unless all accesses allow it.
    """
    lanes = lanes_of(phase, target)
    run = _contiguous_axes(phase) if can_permute(target, lanes) else []
    inner = phase.axes[run[-1]] if len(run) > 1 else lanes
    if not isinstance(inner, int) or inner >= lanes:
        return None
    values = _quotients(phase, run)
    accesses = [i.access for i in phase.items if isinstance(i, Load) and not i.access.limits]
    groups = dense_groups(
        (a.buffer, a.offset, coefficient(substitute(a.offset, values), run[-1])) for a in accesses
    )
    interleaved_offsets = {offset for _, offset in groups}
    if not all(
        e in interleaved_offsets or _is_readable((e, is_place), values, run[-1], lanes)
        for e, is_place in _indices(phase)
    ):
        return None
    return _collapse(phase, run, values)


def _contiguous_axes(phase: Phase) -> list[str]:
    """Return the axes, outer to inner, along which all results are contiguous.

    As far as the inner ones have a constant and short extent.
    """
    axes: list[str] = []
    length: Index = 1
    while isinstance(length, int) and length <= MAX_PERIOD:
        free = set(phase.grid).intersection(*(s.axes for s in phase.stores)) - set(axes)
        steps = {a: {coefficient(s.access.offset, a) for s in phase.stores} for a in free}
        following = [a for a in free if phase.axes[a] not in (0, 1) and steps[a] == {length}]
        if len(following) != 1:
            break
        axes = [*following, *axes]
        length = mul(length, phase.axes[following[0]])
    return axes


def _quotients(phase: Phase, run: list[str]) -> dict[str, Index]:
    """Return the axes as quotients and remainders of the collapsed one."""
    extent: Index = 1
    for a in run:
        extent = mul(extent, phase.axes[a])
    k = axis(run[-1], extent)
    values: dict[str, Index] = {}
    step: Index = 1
    for a in reversed(run):
        values[a] = floordiv(k, step) if a == run[0] else mod(floordiv(k, step), phase.axes[a])
        step = mul(step, phase.axes[a])
    return values


def _indices(phase: Phase) -> list[tuple[Index, bool]]:
    """Return every index expression, and whether it is an offset."""
    indices: list[tuple[Index, bool]] = []
    for item in phase.items:
        if isinstance(item, Load):
            indices.append((item.access.offset, True))
            indices += [(e, False) for e, _ in item.access.limits]
        elif isinstance(item, IndexValue):
            indices.append((item.index, False))
    return indices


def _is_readable(
    index: tuple[Index, bool], values: Mapping[str, Index], name: str, lanes: int
) -> bool:
    """Return whether an index has a small stride along the collapsed axis, or is periodic."""
    e, is_offset = index
    e = substitute(e, values)
    if name not in axes_of(e):
        return True
    step, period = coefficient(e, name), find_period(e, name)
    if isinstance(step, int) and abs(step) <= FARTHEST_STEP:
        return True
    return period is not None and (not is_offset or period.span(lanes) <= 2 * lanes)


def _collapse(phase: Phase, run: list[str], values: dict[str, Index]) -> Phase:
    """Replace the axes by the innermost one."""
    *outer, name = run
    extent: Index = 1
    for a in run:
        extent = mul(extent, phase.axes[a])
    along = rebuild(
        phase, lambda _, i: replace(i, axes=i.axes | {name}) if i.axes & {*outer} else i
    )
    return substitute_axes(along, values, {**{a: {} for a in outer}, name: {name: extent}})
