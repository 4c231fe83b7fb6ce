"""Choose the vector axis of a nest whose memory layout differs from the contractions' results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm.access.memory import FARTHEST_STEP
from smelt.codegen.llvm.loopir.items import Access, Item, Phase, Reduction
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of

if TYPE_CHECKING:
    from smelt.codegen.llvm.schedule.build_nests import Nest


def memory_axis(nest: Nest, v: str) -> str | None:
    """Return the stride-1 axis of memory for a nest that reduces or stores what it loads.

    All its accesses must be strided along `v`, and nothing else that it reads may vary along both
    axes: the layout of contraction results does not matter to it then.
    """
    inside = {*nest.items}
    others = [a for i in (*nest.items, *nest.reductions) for a in i.args if a not in inside]
    others += [s.value for s in nest.stores if s.value not in inside]
    if nest.state_updates or nest.saves:
        return None
    loads = [i.payload.offset for i in nest.items if isinstance(i.payload, Access) and v in i.axes]
    stored = [s.access.offset for s in nest.stores]
    if not loads or any(coefficient(x, v) in (0, 1) for x in loads + stored):
        return None
    both = [x.axes for x in others if v in x.axes]
    return next(
        (
            a
            for a in nest.order
            if _is_contiguous(loads, stored, a) and not any(a in axes for axes in both)
        ),
        None,
    )


def _is_contiguous(loads: Sequence[Index], stored: Sequence[Index], a: str) -> bool:
    """Return whether an axis is contiguous in all stores, and has short strides in all loads."""
    steps = [coefficient(x, a) for x in loads]
    if not all(coefficient(x, a) == 1 for x in stored):
        return False
    has_short_strides = all(isinstance(n, int) and 0 < n <= FARTHEST_STEP for n in steps)
    return has_short_strides and (bool(stored) or set(steps) == {1})


def results_axis(nest: Nest, v: str) -> str | None:
    """Return the stride-1 axis of all stores, for a nest that only stores scratch values.

    The values are contiguous along `v` in scratch, and no memory access along `v` varies along the
    returned axis: gathering from a few rows of scratch beats scattering to as many rows of memory.
    """
    if not nest.stores or nest.reductions or nest.state_updates or nest.saves:
        return None
    stored = [s.access.offset for s in nest.stores]
    loads = [i.payload.offset for i in nest.items if isinstance(i.payload, Access)]
    along = [x for x in stored + loads if coefficient(x, v) == 1]
    return next(
        (
            a
            for a in nest.order
            if all(coefficient(x, a) == 1 for x in stored)
            and not any(a in axes_of(x) for x in along)
        ),
        None,
    )


def carried_axis(nest: Nest, v: str, phase: Phase, lane_axes: Mapping[Item, str]) -> str | None:
    """Return the vector axis of the contractions that a nest's states accumulate.

    None unless it is one axis other than `v`.  `lane_axes` maps each contraction to the vector axis
    of its result.
    """
    states = [x.state for x in nest.state_updates]
    if nest.stores or nest.reductions or nest.saves or not states:
        return None
    values = [x.value for x in phase.state_updates if x.state in states]
    axes = {lane_axes[i] for value in values for i in (value, *value.args) if i in lane_axes}
    return axes.pop() if len(axes) == 1 and axes <= {*nest.order} - {v} else None


def reduced_axes(reduction: Item) -> set[str]:
    """Return the axes that a reduction reduces."""
    assert isinstance(reduction.payload, Reduction)
    return set(reduction.payload.over)


def innermost_axes(nest: Nest, v: str | None) -> list[str]:
    """Return the axes to run innermost, outer to inner.

    Those ended by the reductions that end the vector axis, if any do; the more reductions end an
    axis, the further in it is.
    """
    overs = [reduced_axes(f) for f in nest.reductions]
    overs = [o for o in overs if v in o] or overs
    axes = [a for a in nest.order if any(a in o for o in overs)]
    return sorted(axes, key=lambda a: sum(a in o for o in overs))


def scan_axes(of: Nest | Phase) -> set[str]:
    """Return the axes of scans: they are walked in order from the first position."""
    scans = [i.payload for i in of.items if i.kind == "scan"]
    return {a for s in scans if isinstance(s, Reduction) for a in s.over}


__all__ = [
    "carried_axis",
    "innermost_axes",
    "memory_axis",
    "reduced_axes",
    "results_axis",
    "scan_axes",
]
