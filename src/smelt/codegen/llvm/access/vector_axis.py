"""Which axis vectors run along, and which one some load runs along instead."""

from __future__ import annotations

from smelt.blocks import CUT_SCORE, SHORT_ROW
from smelt.codegen.llvm.access.memory import FARTHEST_STEP
from smelt.codegen.llvm.loopir.items import Access, Item, Phase, still_axes
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.expr import Index, atoms, axes_of

TURNABLE = ("const", "index", "load", "apply", "cast", "unit")
"""What a phase is made of whose loads may be turned (`smelt.codegen.llvm.scratch.transpose`)."""
STORED = 6.0
"""Loads against which one store counts there: lanes that are stored far apart take ten times as
long as a tile that is turned."""


def candidates(phase: Phase) -> set[str]:
    """Axes that vectors may run along: those of some value (a fold that is written out leaves none
    along its axes), but not what numbers parts, nor what a stream holds still, nor what tells where
    a stream stops."""
    still = {a for r in phase.regions() for a in still_axes(r)}
    used = frozenset[str]().union(*(i.axes for i in phase.items), *(s.axes for s in phase.stores))
    return set(used) - part_numbers(phase) - still - pinned(phase)


def pinned(phase: Phase) -> set[str]:
    """Axes along which tasks take one position, because a stream stops elsewhere in the next."""
    return {a for guide, _ in phase.guides() for a in guide.axes}


def across_axis(phase: Phase, vector: str | None) -> str | None:
    """A grid axis that some load walks in unit steps while it jumps along the vector axis."""
    for item in phase.items:
        found = turned_axis(item, phase, vector)
        if found is not None:
            return found
    return None


def turned_axis(item: Item, phase: Phase, vector: str | None) -> str | None:
    """A grid axis that a load walks in unit steps while it jumps along the vector axis."""
    access = item.payload
    if vector is None or not isinstance(access, Access) or access.limits:
        return None
    if vector not in item.axes or item.args or coefficient(access.offset, vector) in (None, 0, 1):
        return None
    for a in phase.grid:
        if a != vector and a in item.axes and coefficient(access.offset, a) == 1:
            return a
    return None


def is_turnable(access: Access, axes: tuple[str, str]) -> bool:
    """Whether the limits of a load, if it has any, are linear along both axes of a square."""
    if any(a.kind == "value" for pair in access.limits for e in pair for a in atoms(e)):
        return False
    return all(
        coefficient(e, a) is not None and a not in axes_of(n)
        for e, n in access.limits
        for a in axes
    )


def part_numbers(phase: Phase) -> set[str]:
    """Axes that number the parts of another one."""
    visits = [v for r in phase.regions() for v in r.visits]
    parts = {v.part[0] for v in visits if v.part is not None}
    return parts | {number for number, _ in phase.cut.values()}


def picks(item: Item, vector: str | None) -> bool:
    """Whether a load's lanes are neither side by side nor in steps: repeated, or picked."""
    access = item.payload
    if not isinstance(access, Access) or vector not in item.axes or access.limits or item.args:
        return False
    return coefficient(access.offset, vector or "") is None


def vector_axis(phase: Phase, among: set[str]) -> str | None:
    """The axis that the kernel asks for, else that along which most memory is walked in unit
    steps."""
    if phase.lanes in among:
        return phase.lanes
    best: tuple[float, str] | None = None
    few = _left_out(phase, among)
    parts = part_numbers(phase)
    stored = STORED if all(i.kind in TURNABLE for i in phase.items) else 1.5
    for a in phase.axes:
        if a not in among or a in few:
            continue
        score = 0.0
        for access, axes, write in _accesses(phase):
            if a in axes:
                weight = 64.0 ** len(axes - parts) * (stored if write else 1.0)
                score += weight * _worth(coefficient(access.offset, a), write)
        if a in phase.cut and score > 0:
            score *= CUT_SCORE
        if best is None or score >= best[0]:
            best = (score, a)
    return best[1] if best else None


def _worth(step: Index | None, write: bool) -> float:
    """How good it is to run along an array in such steps: of short ones whole vectors are read, and
    the lanes picked from them."""
    if step in (0, 1):
        return 2.0 * int(step == 1)
    near = isinstance(step, int) and abs(step) <= FARTHEST_STEP and not write
    return 1.0 if near else -1.0


def _left_out(phase: Phase, among: set[str]) -> set[str]:
    """Axes of a few positions along which something does not vary that is computed for each
    position of a longer one, where each of its vectors would hold one number, or along which
    elements are picked."""
    few = {a for a in among if isinstance(n := phase.axes[a], int) and n <= SHORT_ROW}
    longer = among - few
    alone = [i.axes for i in phase.items if i.kind == "apply" and i.axes & longer]
    picked = {
        a
        for i in phase.items
        if isinstance(i.payload, Access) and i.axes & longer
        for place in i.args
        for a in place.axes
    }
    return {a for a in few if a in picked or any(a not in axes for axes in alone)}


def _accesses(phase: Phase) -> list[tuple[Access, frozenset[str], bool]]:
    found = [(i.payload, i.axes, False) for i in phase.items if isinstance(i.payload, Access)]
    return found + [(s.access, s.axes, True) for s in phase.stores]


def lanes_of(phase: Phase, target: Target) -> int:
    """Lanes of one vector: as many as the widest floating-point (else integer) type allows that is
    worked with where most work is; a carried sum in double precision does not count beside
    that."""
    kinds = ("load", "apply", "cast")
    found = [i for i in phase.items if i.kind in kinds and i not in phase.carried]
    most = max((len(i.axes) for i in found), default=0)
    worked = [i.dtype for i in found if len(i.axes) == most]
    floats = [d.bits for d in worked if d.is_float]
    others = [d.bits for d in worked if d.is_integer]
    widest = max(floats or others or [32])
    return max(target.vector_bytes * 8 // max(widest, 8), 2)
