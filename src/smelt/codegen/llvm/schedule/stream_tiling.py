"""Choose by cache sizes how many rows or positions of streams tasks take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.codegen.llvm.loopir.items import BlockEdge, Load, Phase, Reduce, Visit
from smelt.codegen.llvm.loopir.rewrite import Draft
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.schedule.mask_ranges import depends_on_rows, is_searched, row_group_streams
from smelt.machine.blocks import STREAM_BYTES, STREAM_ROWS, SUM_BYTES, WHOLE_ROWS
from smelt.machine.blocks import reduction_columns as columns_of
from smelt.machine.target import CACHE_SHARE, Target

MIN_STREAM_BLOCK = 1024
"""Minimum positions of a streamed row's block, to spread the cost of ending its reductions."""


def fit_stream_blocks(draft: Draft, vector: str | None) -> None:
    """Limit stream blocks along rows, so that nests find them in L1.

    Smaller blocks would only end reductions more often.  The sizes are the same on every machine,
    because the order of summation depends on them.
    """
    long = {
        v
        for r in draft.phase.regions()
        for v in r.visits
        if len(r.visits) == 1 and v.axis == vector and (v.size or 0) > MIN_STREAM_BLOCK
    }
    if not long:
        return
    itemsizes = {
        i.access.buffer: i.dtype.itemsize
        for i in draft.phase.items
        if isinstance(i, Load) and vector in i.axes
    }
    fitting = STREAM_BYTES // max(sum(itemsizes.values()), 1)
    size = max(fitting // MIN_STREAM_BLOCK, 1) * MIN_STREAM_BLOCK

    def fit(visit: Visit) -> Visit:
        return replace(visit, size=min(visit.size or size, size)) if visit in long else visit

    draft.rebuild(visit=fit)


def reduction_columns(phase: Phase, target: Target) -> int:
    """Return how many neighbouring columns one task reduces.

    If the rows are split over tasks, there are enough tasks: then as many columns as L1 holds sums
    of, so that rows are read in long runs, or whole.
    """
    sums = sum(isinstance(i, Reduce) for i in phase.items)
    least = columns_of(sums)
    if not phase.cut:
        return least
    fitting = target.l1_bytes // 2 // (SUM_BYTES * sums)
    return max(1 << fitting.bit_length() >> 1, least)


def stream_task_rows(phase: Phase, products: Sequence[Contraction], target: Target) -> int:
    """Return the rows of a task for which a stream packs its operands anew.

    As many as L2 holds a block of, if that is multiplied in place.  If the stream's bounds depend
    on the rows and there are no row groups, fewer, and fewer still if both its start and its stop
    do, because all rows together need more columns than each of them.  Half as many if the bounds
    are computed by a reduction over the columns.
    """
    bytes_of_row = max((c.direct * c.item.dtype.itemsize for c in products), default=0)
    visits = [v for r in phase.regions() for v in r.visits]
    if not any(row_group_streams(phase, products)):
        if any(
            depends_on_rows(v.start, phase.grid) and depends_on_rows(v.stop, phase.grid)
            for v in visits
        ):
            return STREAM_ROWS // 3
        if any(isinstance(i, BlockEdge) for i in phase.items):
            return STREAM_ROWS // 2
    if not bytes_of_row:
        return STREAM_ROWS
    fitting = int(CACHE_SHARE * target.l2_bytes) // bytes_of_row
    if any(is_searched(end, v.axis) for v in visits for end in (v.start, v.stop)):
        fitting //= 2
    return min(max(fitting // WHOLE_ROWS, 1) * WHOLE_ROWS, 2 * STREAM_ROWS)
