"""Decide which axis of a kernel is split, and where each lane takes a row.

Planner and lowering ask the same questions, so that a price is that of the kernel that will be:
the planner about a region (`smelt.fusion.schedule_model`), lowering about the statements of its
cluster (`smelt.lower.assign_axes`).  Sets of axes are bit masks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import NamedTuple

from smelt.machine.tiling import ReducedAxis, Tiling, split_axis
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, product


class Step(NamedTuple):
    """A value or a store: what it reads, and the axes over which it is computed."""

    value: Hashable
    """Its name, None of a store."""
    operands: Sequence[Hashable]
    axes: int
    over: int = 0
    """Those that it reduces."""
    merged: int = 0
    """Those of `over` of whose parts the results can be merged."""
    compensated: bool = False
    """Whether it carries its rounding errors."""


@dataclass(frozen=True, eq=False)
class IterationSpace:
    """The axes of a kernel, what is read along them, and its reductions."""

    tiling: Tiling
    volume: Callable[[int], int]
    """The positions of a set of axes, at the sizes of the hints."""
    grid: Sequence[int]
    """The independent axes, outer to inner."""
    reads: Sequence[Sequence[int | None]]
    """For each read, the axes along which each dimension varies; None at a constant position."""
    steps: Sequence[Step]
    """What is computed, operands before their readers."""
    extents: Sequence[Index]
    reduced: int
    """The axes that reductions end, and those of scans."""

    @cached_property
    def reductions(self) -> list[Step]:
        """The reductions; one whose result is read at several positions counts once."""
        return list({step.value: step for step in self.steps if step.over}.values())

    def one_pass(self) -> int:
        """Return the axes along which nothing waits for a reduction over them.

        The reductions can also be merged, so that one pass over parts of such an axis suffices.
        """
        excluded = reduced = 0
        waits: dict[Hashable, int] = {}
        for step in self.steps:
            late = reduce(or_, [waits.get(v, 0) for v in step.operands], 0)
            excluded |= late & step.axes | step.over & ~step.merged
            reduced |= step.over
            waits[step.value] = late | step.over
        return reduced & ~excluded

    @cached_property
    def fastest(self) -> int:
        """The axes of the last dimension of the arrays of highest rank.

        Arrays of lower rank (one number per row, say) do not decide how rows are read.
        """
        varying = [[axes for axes in read if axes is not None] for read in self.reads]
        rank = max(map(len, varying), default=0)
        return reduce(or_, [axes[-1] for axes in varying if rank and len(axes) == rank], 0)

    @cached_property
    def independent(self) -> int:
        """The axes of the grid as a mask."""
        return sum(1 << a for a in self.grid)

    def lane_axis(self) -> int:
        """Return the grid axis of which each lane takes a short row; -1 for none."""
        long = [a for a in self.grid if self.volume(1 << a) >= self.tiling.min_lane_rows]
        return long[-1] if long and self._has_short_rows(long[-1], self.independent) else -1

    def _has_short_rows(self, lanes: int, grid: int = 0) -> bool:
        """Return whether rows are short and many, so that each lane takes a row.

        A row is an axis that reductions end, or one of a few results.
        """
        rows, tiling = self.fastest, self.tiling
        if not self.reduced or not rows or rows >> lanes & 1 or rows & ~(self.reduced | grid):
            return False
        if self.volume(1 << lanes) < tiling.min_lane_rows:
            return False
        if not rows & ~self.reduced and self.inner_elements(lanes) > tiling.short_run:
            return False
        short = (self.volume(1 << a) <= tiling.short_row for a in _members(rows))
        return all(short)

    def _has_few_columns(self, reduced: int) -> bool:
        """Return whether columns are too few to fill vectors, and reduced rows many."""
        columns = self._inside_of(reduced)
        if not columns or columns & self.reduced:
            return False
        many = self.volume(1 << reduced) >= self.tiling.min_lane_rows
        return many and self.volume(columns) <= self.tiling.few_columns

    def _inside_of(self, axis: int) -> int:
        """Return the axes that arrays vary along at inner dimensions after an axis."""
        inner = 0
        for read in self.reads:
            dims = [axes or 0 for axes in read]
            first = next((k for k, axes in enumerate(dims) if axes >> axis & 1), len(dims))
            inner |= reduce(or_, dims[first:], 0)
        return inner & ~(1 << axis)

    def inner_elements(self, axis: int) -> int:
        """Return the number of array elements per position of an axis."""
        return self.volume(self._inside_of(axis))

    def rows_per_step(self, axis: int) -> int | None:
        """Return how many positions of a split axis to process per step.

        None means a whole part. Otherwise vectors run along the split axis: either each lane first
        reduces a short row of its own, or there are few columns to reduce. Not for float64 sums
        after a row reduction: they carry their errors along the whole part.
        """
        split = [r for r in self.reductions if r.over >> axis & 1]
        rows = len(split) < len(self.reductions)
        if any(r.over != 1 << axis or (rows and r.compensated) for r in split):
            return None
        applies = self._has_short_rows(axis) if rows else self._has_few_columns(axis)
        return self.tiling.short_rows if applies else None

    def split(self) -> int:
        """Return the axis to split into parts; -1 for none.

        It is reduced in one pass, where the grid is too small and the work is worth it.
        """
        positions, tiling = self.volume(self.independent), self.tiling
        columns = [self.volume(1 << a) for a in self.grid if self.fastest >> a & 1]
        # Vectors run along one of these columns, and a task processes a block of it.
        width = tiling.reduction_columns(len(self.reductions))
        tasks = [positions // max(n, 1) * -(-n // width) for n in columns] or [positions]
        if max(tasks) >= tiling.min_tasks or not (candidates := _members(self.one_pass())):
            return -1
        axes = [
            ReducedAxis(self.volume(1 << a), self._depth(a), bool(self.fastest >> a & 1))
            for a in candidates
        ]
        best = candidates[split_axis(axes, tiling)]
        work = self.volume(1 << best | self.visited_with(best)) * max(positions, 1)
        least_rows = 2 * tiling.min_part_rows if self._is_column_by_column(best) else 1
        is_worth_it = work >= tiling.split_elements and self.volume(1 << best) >= least_rows
        return best if is_worth_it else -1

    def _is_column_by_column(self, axis: int) -> bool:
        """Return whether each part has one result per column, and nothing else is reduced.

        Parts of few rows would then write and read back as much as they reduce.
        """
        return not self.fastest >> axis & 1 and all(r.over == 1 << axis for r in self.reductions)

    def _depth(self, axis: int) -> int:
        """Return the first dimension of a read that varies along an axis; 0 is slowest."""
        dims = (
            k for read in self.reads for k, axes in enumerate(read) if axes and axes >> axis & 1
        )
        return min(dims, default=0)

    def visited_with(self, axis: int) -> int:
        """Return the other axes, but for the grid's, of what is computed along an axis.

        Axes of other values do not count: the sums of several arrays have nothing in common.
        """
        together = reduce(
            or_, [s.axes for s in self.steps if s.axes >> axis & 1 and s.value is not None], 0
        )
        return together & ~self.independent & ~(1 << axis)

    def parts(self, axis: int, rows: int | None) -> Index:
        """Return the number of parts of a split axis.

        Parts get enough rows (`rows_per_step`) where they have results for many columns, else
        enough elements.
        """
        extent, tiling = self.extents[axis], self.tiling
        if self.fastest & self.independent or self._is_column_by_column(axis):
            return tiling.split_parts(extent, max(rows or 1, tiling.min_part_rows))
        elements = product(self.extents[a] for a in _members(self.visited_with(axis)))
        return tiling.reduction_parts(extent, elements)


def _members(axes: int) -> list[int]:
    return [a for a in range(axes.bit_length()) if axes >> a & 1]
