"""Predict the vector axis, unrolled axes, and the number of split parts.

For short rows each lane takes a row of its own; the decision is that of `smelt.lower.assign_axes`,
from a region instead of statements. A few rows or columns of results are unrolled as in
`smelt.codegen.llvm.loops.unroll_columns`.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.fusion.trace import Term
from smelt.ops.contract import bare_axis
from smelt.types.expr import evaluate

if TYPE_CHECKING:
    from smelt.fusion.schedule_model import ScheduleModel


def lanes_axis(schedule: ScheduleModel) -> int:
    """Return the grid axis along which each lane takes a short row, as a mask.

    0 if rows are long, or too few. `schedule_model.ScheduleModel.vector` is the vector axis
    otherwise.
    """
    region, sizes = schedule.region, schedule.sizes
    if (
        not region.reduced_axes
        or region.scanned
        or not schedule.vector & (region.all_reduced | region.grid)
    ):
        return 0
    if sizes[schedule.vector.bit_length() - 1] > schedule.tiling.short_row:
        return 0
    position = region.positions[region.stored.bit_length() - 1][0]
    grid_terms = [t for t in position if isinstance(t, int) and t >= 0 and region.grid >> t & 1]
    long_axes = [t for t in grid_terms if sizes[t] >= schedule.tiling.min_lane_rows]
    if not long_axes or schedule.vector >> long_axes[-1] & 1:
        return 0
    is_reduced = schedule.vector & region.all_reduced & ~region.grid
    is_strided = (
        is_reduced
        and schedule.volume(_inside_of(region, long_axes[-1])) > schedule.tiling.short_run
    )
    return 0 if is_strided else 1 << long_axes[-1]


def parts_for(schedule: ScheduleModel, axis: int) -> int:
    """Return into how many parts an axis would be split."""
    region, size = schedule.region, schedule.sizes[axis]
    positions = [p for loaded in region.loads.values() for p in loaded if p]
    contiguous = sum(1 << a for a in {contiguous_axis(p[-1]) for p in positions} if a >= 0)
    is_outer = not contiguous >> axis & 1 and all(
        over == 1 << axis for over in region.reduced_axes.values()
    )
    if is_outer or contiguous & region.grid:
        return int(evaluate(schedule.tiling.split_parts(size), {}))
    row_elements = elements_per_position(schedule, axis)
    return int(evaluate(schedule.tiling.reduction_parts(size, row_elements), {}))


def elements_per_position(schedule: ScheduleModel, axis: int) -> int:
    """Return how many elements are visited per position of a reduction axis.

    Axes of the grid are not counted.
    """
    region = schedule.region
    together = [
        m | region.reduced_axes.get(u, 0) for u, masks in region.masks.items() for m in masks
    ]
    visited = reduce(or_, [axes for axes in together if axes >> axis & 1], 0)
    return schedule.volume(visited & schedule.local & ~(1 << axis))


def unrolled_axis(schedule: ScheduleModel) -> int:
    """Return the axis that an elementwise kernel unrolls besides the vector axis, as a mask.

    All results have it. 0 if there is none.
    """
    region = schedule.region
    if region.reduced_axes or region.scanned or region.grid != region.all_axes:
        return 0
    for a in bits(region.grid & ~schedule.vector):
        n = schedule.units.extents[region.axes[a]]
        if isinstance(n, int) and 1 < n <= schedule.tiling.unroll_results:
            return 1 << a
    return 0


@lru_cache(maxsize=4096)
def contiguous_axis(term: Term) -> int:
    """Return the contiguous axis of a last dimension, -1 for none or several.

    A remainder (%) of a longer axis counts as that axis.
    """
    if isinstance(term, int):
        return term
    while len(term.terms) == 1 and term.terms[0][1] == 1 and len(term.terms[0][0]) == 1:
        (atom,) = term.terms[0][0]
        if atom.kind != "%" or isinstance(atom.args[0], int):
            break
        term = atom.args[0]
    name = bare_axis(term)
    return -1 if name is None else int(name[1:])


def _inside_of(region: Region, axis: int) -> int:
    """Return the axes that are further inside than another one in some array."""
    axes = 0
    for position in (p for positions in region.loads.values() for p in positions):
        if axis in position:
            inner = position[position.index(axis) + 1 :]
            axes |= sum(1 << t for t in {*inner} if isinstance(t, int) and t >= 0)
    return axes


def vote(score: list[float], position: tuple[Term, ...], mask: int, weight: float) -> None:
    """Count an access for its stride-1 axis, and against its other axes."""
    contiguous = contiguous_axis(position[-1]) if position else -1
    weight *= 64.0 ** mask.bit_count()
    for a in bits(mask):
        score[a] += 2 * weight if contiguous == a else -weight
