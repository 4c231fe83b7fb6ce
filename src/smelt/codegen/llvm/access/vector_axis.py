"""Choose a phase's vector axis, and an axis along which to transpose strided loads."""

from __future__ import annotations

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Access, Item, Phase, unvarying_axes
from smelt.loop.passes.group_loads import FARTHEST_STEP
from smelt.machine.blocks import ACROSS_ROWS, CUT_SCORE
from smelt.machine.target import Target
from smelt.types.expr import Index, atoms, axes_of, coefficient

TRANSPOSABLE_KINDS = (ssa.Const, ssa.IndexValue, ssa.Load, ssa.Apply, ssa.Cast, ssa.KPair)
"""Kinds of items in a phase whose loads may be transposed
(`smelt.codegen.llvm.instructions.transpose`)."""
STORE_WEIGHT = 6.0
"""Loads that weigh as much as one store there: scattered stores cost more than a transposition."""


def candidates(phase: Phase) -> set[str]:
    """Return the axes that vectors may run along.

    Those of some value (an unrolled reduction leaves none along its axes), except axes that number
    parts, that a stream visits one position at a time, or that bounds of streams depend on.
    """
    still = {a for r in phase.regions() for a in unvarying_axes(r)}
    used = frozenset[str]().union(*(i.axes for i in phase.items), *(s.axes for s in phase.stores))
    return set(used) - part_numbers(phase) - still - single_position_axes(phase)


def single_position_axes(phase: Phase) -> set[str]:
    """Return the axes along which a task takes a single position.

    Bounds of streams depend on them.
    """
    return {a for guide, _ in phase.stream_bounds() for a in guide.axes}


def find_transpose_axis(phase: Phase, vector: str | None) -> str | None:
    """Return a grid axis along which some strided load should be transposed, or None.

    See `load_transpose_axis`; `vector` is the vector axis.
    """
    for item in phase.items:
        axis = load_transpose_axis(item, phase, vector)
        if axis is not None:
            return axis
    return None


def load_transpose_axis(item: Item, phase: Phase, vector: str | None) -> str | None:
    """Return a stride-1 grid axis of a load that is strided along `vector`.

    Such a load is transposed tile by tile.  None for other loads.
    """
    if vector is None or not isinstance(item, ssa.Load) or item.access.limits:
        return None
    access = item.access
    if vector not in item.axes or item.args or coefficient(access.offset, vector) in (None, 0, 1):
        return None
    for a in phase.grid:
        if a != vector and a in item.axes and coefficient(access.offset, a) == 1:
            return a
    return None


def is_transposable(access: Access, axes: tuple[str, str]) -> bool:
    """Return whether a load's bounds checks allow transposing it tile by tile.

    All of them have to be affine along both axes of a tile.
    """
    if any(a.kind == "value" for pair in access.limits for e in pair for a in atoms(e)):
        return False
    return all(
        coefficient(e, a) is not None and a not in axes_of(n)
        for e, n in access.limits
        for a in axes
    )


def part_numbers(phase: Phase) -> set[str]:
    """Return the axes that number the parts of another one."""
    visits = [v for r in phase.regions() for v in r.visits]
    parts = {v.part[0] for v in visits if v.part is not None}
    return parts | {number for number, _ in phase.cut.values()}


def is_irregular(item: Item, vector: str | None) -> bool:
    """Return whether a load's lanes have no fixed stride: repeated, or permuted."""
    if not isinstance(item, ssa.Load) or vector not in item.axes or item.args or item.access.limits:
        return False
    return coefficient(item.access.offset, vector or "") is None


def choose_vector_axis(phase: Phase, among: set[str]) -> str | None:
    """Return the axis that the kernel requires, else the one with most stride-1 accesses."""
    if phase.lanes in among:
        return phase.lanes
    best: tuple[float, str] | None = None
    excluded = _left_out(phase, among)
    parts = part_numbers(phase)
    stored = STORE_WEIGHT if all(isinstance(i, TRANSPOSABLE_KINDS) for i in phase.items) else 1.5
    for a in phase.axes:
        if a not in among or a in excluded:
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
    """Return the value of running along an array with a stride.

    Small strides are read as full vectors and shuffled.
    """
    if step in (0, 1):
        return 2.0 * int(step == 1)
    is_small = isinstance(step, int) and abs(step) <= FARTHEST_STEP and not write
    return 1.0 if is_small else -1.0


def _left_out(phase: Phase, among: set[str]) -> set[str]:
    """Return short axes that would make bad vector axes, if there is a longer one.

    Something that is computed for each position of the longer axis does not vary along them, so
    that each of its vectors would hold one number; or elements are gathered along them.
    """
    short = {
        a for a in among if isinstance(n := phase.axes[a], int) and n <= ACROSS_ROWS.row_elements
    }
    longer = among - short
    axes_of_longer = [i.axes for i in phase.items if isinstance(i, ssa.Apply) and i.axes & longer]
    picked = {
        a
        for i in phase.items
        if isinstance(i, ssa.Load) and i.axes & longer
        for argument in i.args
        for a in argument.axes
    }
    return {a for a in short if a in picked or any(a not in axes for axes in axes_of_longer)}


def _accesses(phase: Phase) -> list[tuple[Access, frozenset[str], bool]]:
    loads = [(i.access, i.axes, False) for i in phase.items if isinstance(i, ssa.Load)]
    return loads + [(s.access, s.axes, True) for s in phase.stores]


def lanes_of(phase: Phase, target: Target) -> int:
    """Return the lanes of a vector for a phase.

    By the widest floating-point (else integer) type of the values with most axes; sums that are
    carried in float64 do not count.
    """
    kinds = (ssa.Load, ssa.Apply, ssa.Cast)
    values = [i for i in phase.items if isinstance(i, kinds) and i not in phase.widened]
    most = max((len(i.axes) for i in values), default=0)
    dtypes = [i.dtype for i in values if len(i.axes) == most]
    floats = [d.bits for d in dtypes if d.is_float]
    others = [d.bits for d in dtypes if d.is_integer]
    widest = max(floats or others or [32])
    return max(target.vector_bytes * 8 // max(widest, 8), 2)
