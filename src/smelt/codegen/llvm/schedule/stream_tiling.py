"""How many rows or positions of a stream a task takes at once, by what its caches hold."""

from __future__ import annotations

from collections.abc import Iterable

from smelt.blocks import STREAM_BYTES, STREAM_ROWS, SUM_BYTES, WHOLE_ROWS
from smelt.blocks import fold_columns as columns_of
from smelt.codegen.llvm.loopir.items import Access, Edge, Phase
from smelt.codegen.llvm.schedule.contract import Contraction
from smelt.codegen.llvm.schedule.mask_ranges import follows, is_searched, rows_in_bands
from smelt.target import CACHE_SHARE, Target

LEAST_ROW = 1024
"""Positions of a streamed row that a block has at least: what a fold's end costs is spread."""


def fit_rows(phase: Phase, vector: str | None) -> None:
    """Streams along rows take blocks that the first cache holds from the first nest to the last;
    smaller ones would only cost more ends of folds.  They are the same on every machine, because
    the order in which sums are added up follows from them."""
    for visit in [r.visits[0] for r in phase.regions() if len(r.visits) == 1]:
        if visit.axis == vector and visit.size is not None and visit.size > LEAST_ROW:
            read = {
                i.payload.buffer: i.dtype.itemsize
                for i in phase.items
                if isinstance(i.payload, Access) and vector in i.axes
            }
            fitting = STREAM_BYTES // max(sum(read.values()), 1)
            visit.size = min(visit.size, max(fitting // LEAST_ROW, 1) * LEAST_ROW)


def fold_columns(phase: Phase, target: Target) -> int:
    """Neighbouring columns that one task folds.  Where the rows are split over tasks, there are
    tasks enough: then as many as the first cache holds sums of, so that rows are read in long
    runs, or whole."""
    sums = sum(i.kind == "fold" for i in phase.items)
    least = columns_of(sums)
    if not phase.cut:
        return least
    fitting = target.l1_bytes // 2 // (SUM_BYTES * sums)
    return max(1 << fitting.bit_length() >> 1, least)


def streamed_rows(phase: Phase, products: Iterable[object], target: Target) -> int:
    """Rows for which a stream packs its operands anew: as many as L2 holds a block of, where that
    is multiplied where it lies.  Where it stops at the last of them, they are taken in bands, or
    else fewer, and fewer still where it starts at the first as well: what all of them see is wider
    than what one does.  Half as many where each few rows look for what they see in all that the
    task's rows do."""
    blocked = [c for c in products if isinstance(c, Contraction)]
    bytes_of_row = max((c.direct * c.item.dtype.itemsize for c in blocked), default=0)
    visits = [v for r in phase.regions() for v in r.visits]
    if not any(rows_in_bands(phase, blocked)):
        if any(follows(v.start, phase.grid) and follows(v.stop, phase.grid) for v in visits):
            return STREAM_ROWS // 3
        if any(isinstance(i.payload, Edge) for i in phase.items):
            return STREAM_ROWS // 2
    if not bytes_of_row:
        return STREAM_ROWS
    fitting = int(CACHE_SHARE * target.l2_bytes) // bytes_of_row
    if any(is_searched(end, v.axis) for v in visits for end in (v.start, v.stop)):
        fitting //= 2
    return min(max(fitting // WHOLE_ROWS, 1) * WHOLE_ROWS, 2 * STREAM_ROWS)
