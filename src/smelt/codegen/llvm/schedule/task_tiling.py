"""Choose how the grid of a phase is divided into tasks (grid tiling).

A task is what one call of the phase's loop nests computes; threads share the tasks of a phase.  Its
block has to be large enough to amortise packing and loop overhead, and small enough for the caches
and for the number of threads.  Plans of contractions choose their own rows and columns.  Otherwise
tasks take long runs along the vector axis, square tiles if an array is transposed, and several
short rows.  The rows and blocks of streams are fitted to cache sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from smelt.codegen.llvm.access.vector_axis import (
    find_transpose_axis,
    lanes_of,
    single_position_axes,
)
from smelt.codegen.llvm.loopir.compute_at import window_task_blocks, window_task_rows
from smelt.codegen.llvm.loopir.items import BlockEdge, Item, Load, Phase, Reduce, Scan, Visit
from smelt.codegen.llvm.loopir.rewrite import Draft
from smelt.codegen.llvm.nests.contraction import Contraction, Products
from smelt.codegen.llvm.schedule.contract import product_block
from smelt.codegen.llvm.schedule.mask_ranges import depends_on_rows, is_searched, row_group_streams
from smelt.loop.passes.group_loads import FARTHEST_STEP
from smelt.machine.blocks import (
    BLOCK,
    FULL_WIDTH,
    STREAM_BYTES,
    STREAM_ROWS,
    SUM_BYTES,
    TASKS,
    rows_per_task,
)
from smelt.machine.blocks import reduction_columns as columns_of
from smelt.machine.target import CACHE_SHARE, Target
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, coefficient, floordiv, maximum, minimum, mul, product

MAX_GATHER_ROWS = 8
"""Maximum times as many rows if a gather serves all rows of a task."""
MIN_TRANSPOSE_SIDE = 64
"""Smallest side of the tiles in which arrays and operands are transposed.

Full cache lines of results and runs of them; rows at power-of-two distances share cache sets, so
larger tiles would cause conflicts.
"""


@dataclass(frozen=True, slots=True)
class TaskBlocks:
    """The division of a grid into tasks."""

    block: dict[str, Index]
    """Axes that tasks take in blocks, with the number of positions."""
    max_extents: dict[str, Index]
    """Most positions of these axes that a task has."""
    transpose_axis: str | None
    """The axis that forms square tiles for transposition with the vector axis."""
    rows: frozenset[str]
    """The axis along which a task takes several rows that reductions end."""


def task_blocks(phase: Phase, products: Products, vector: str | None, target: Target) -> TaskBlocks:
    """Divide the grid of a phase with these plans, given its vector axis."""
    grid = set(phase.grid) - single_position_axes(phase)
    has_reductions = any(isinstance(i, Reduce) for i in phase.items)
    vector_block = reduction_columns(phase, target) if has_reductions else BLOCK
    block: dict[str, Index] = {}
    if vector in grid and vector is not None:
        block[vector] = vector_block
    for c in products.packed:
        block |= c.blocks(phase)
    rows = {c.m for c in products.blocked}
    for c in products.blocked:
        if c.m is None and c.n in rows:
            continue  # one column besides a contraction of these rows
        cut = product_block(c, phase, products.blocked, target)
        if phase.regions() and not c.is_gemv:
            cut = stream_task_rows(phase, products.blocked, target), cut[1]
        for a, n in zip((c.m, c.n), cut, strict=True):
            if a in grid and a is not None:
                block[a] = minimum(n, block[a]) if a in block and a != vector else n
    plain = block and not (products or phase.regions() or phase.window_positions)
    transpose_axis = find_transpose_axis(phase, vector) if plain else None
    if vector is not None and transpose_axis is not None:
        side = transpose_side(lanes_of(phase, target))
        block = {transpose_axis: side, vector: side}
    elif vector is not None and plain and not has_reductions:
        for outer in [a for a in phase.grid if a in grid and a != vector][-1:]:
            block[outer] = _rows_per_task(phase, vector, outer)
    if phase.window_positions:
        block |= _window_blocks(phase, products)
    rows = frozenset[str]()
    ended = has_reductions or any(isinstance(i, Scan) for i in phase.items)
    if vector is not None and ended and not (block or products or phase.regions() or phase.cut):
        # Rows that reductions end: the next ones are computed while one waits for its last sum.
        rows = frozenset([a for a in phase.grid if a in grid][-1:])
        row_length = product(n for a, n in phase.axes.items() if a not in phase.grid)
        block |= dict.fromkeys(rows, rows_per_task(row_length))
    return TaskBlocks(block, _max_extents(phase, products, block), transpose_axis, rows)


def _max_extents(phase: Phase, products: Products, block: dict[str, Index]) -> dict[str, Index]:
    """Return the most positions that a task has of each blocked axis.

    No more than there are of a contraction's rows and columns, since every task of a batch of small
    ones clears all accumulators.
    """
    extents = dict(block)
    for c in products.blocked:
        for a in {c.m, c.n} & block.keys() - {None}:
            assert a is not None
            n = phase.axes[a]
            if isinstance(n, int) or (c.is_gemv and a == c.n):
                extents[a] = minimum(n, extents[a])
    return extents


def _rows_per_task(phase: Phase, vector: str, outer: str) -> Index:
    """Return the rows of a task: more if it gathers once for all of them."""
    rows = rows_per_task(phase.axes[vector])
    if not any(is_gather(i, vector) and outer not in i.axes for i in phase.items):
        return rows
    positions = product(phase.axes[a] for a in phase.grid)
    return mul(rows, maximum(minimum(floordiv(positions, TASKS * BLOCK), MAX_GATHER_ROWS), 1))


def is_gather(item: Item, vector: str | None) -> TypeGuard[Load]:
    """Return whether a load's lanes are far apart."""
    if not isinstance(item, Load) or vector not in item.axes or item.access.limits or item.args:
        return False
    access = item.access
    if access.positions:
        return False
    step = coefficient(access.offset, vector or "")
    return step is not None and not (isinstance(step, int) and abs(step) <= FARTHEST_STEP)


def _window_blocks(phase: Phase, products: Products) -> dict[str, Index]:
    """Return the task blocks of contractions that windows read at shared positions."""
    sizes = [c.item.dtype.itemsize for c in products.values()]
    blocks = window_task_blocks(phase, max(sizes, default=4))
    # Of packed plans with windows, only channels-first convolutions have rows of their own.
    rows = {c.m for c in products.packed if c.m is not None} & {*phase.grid}
    return blocks | dict.fromkeys(sorted(rows), window_task_rows(phase))


def transpose_side(lanes: int) -> int:
    """Return the side of a transposed tile: full vectors, at least two."""
    return max(MIN_TRANSPOSE_SIDE, 2 * lanes)


# ---- streams -------------------------------------------------------------------------------------


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
    return min(max(fitting // FULL_WIDTH.rows, 1) * FULL_WIDTH.rows, 2 * STREAM_ROWS)
