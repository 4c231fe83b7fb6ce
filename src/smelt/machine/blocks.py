"""Block sizes shared by the planner, lowering and code generation.

The planner predicts the schedule that a kernel will get, so both sides must use the same block
sizes. Unless a name or its description says otherwise, a size is a number of positions of an axis.
Products are matrix products C[m, n] = A[m, k] B[k, n]: A is the left operand, B the right one, and
k the reduction ("summed") axis; the blocking follows Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication" (2008).

>>> from smelt.machine import blocks
>>> blocks.product_rows(256 * 256, 4), blocks.product_rows(4096 * 4096, 4)
(144, 504)
>>> blocks.full_width_rows(4096, 256, 4), blocks.full_width_rows(4096, 4096, 4)
(240, 48)
>>> blocks.unreduced_rows(4096, 4), blocks.unreduced_rows(512, 4)
(128, 64)
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, add, floordiv, maximum, minimum, mul, sub, terms_of

BLOCK = 2048
"""Positions of the vector axis per task, when that axis is a grid axis."""
REDUCTION_COLUMNS, MIN_COLUMNS = 512, 32
"""Maximum and minimum columns per task when every column is reduced: rows are read in long runs."""
SUM_BYTES = 8
"""Bytes of one accumulator of a sum."""


@dataclass(frozen=True, slots=True)
class AcrossRows:
    """When vectors of a reduction run across rows instead of along them."""

    row_elements: int = 8
    """Maximum length of a reduced row. Empty lanes and the horizontal reduction of a short row cost
    more than reading across rows."""
    run_elements: int = 32
    """Maximum elements of adjacent rows: beyond, each lane reads a cache line of its own."""
    columns: int = 4
    """Maximum columns of a reduction for which vectors run along the rows all the same. With more,
    gathering each lane from a line of its own costs more than lanes that stay empty."""
    min_rows: int = 64
    split_rows: int = 256
    """Rows of a split axis that are processed together: their values stay in the L1 cache."""


ACROSS_ROWS = AcrossRows()

PARTS = 64
"""Maximum parts of a split axis: enough for any thread count, few enough to merge at once."""
PART_ROWS = 64
"""Minimum positions per part of a split axis, while there are enough: each part writes partial
results that are read again."""
PART_WORK = 1 << 10
"""Minimum elements that a part reduces, while there are enough: they have to outweigh starting it.
"""
PRODUCT_PARTS, LONG_SUM = 16, 1 << 15
"""Split-K: maximum parts of a product's reduction axis, and its minimum length. A part's work must
outweigh storing and merging its partial results."""
CUT_SCORE = 0.5
"""Weight of an axis that a task has only a part of, in the choice of the vector axis."""
STREAM_VISITS = 16
"""Minimum blocks of a streamed axis for splitting it into parts, each with states of its own."""
STREAM_BYTES = 1 << 14
"""Bytes of a streamed row per visit: they fit the L1 cache of any machine with the lines being
prefetched."""
MIN_TASKS = 8
"""Minimum independent tasks: with fewer a reduction is split.  Products by matrix instructions
(AMX) and independent products that share a task are cut into this many tasks before blocks grow."""
SPLIT_ABOVE = 1 << 15
"""Maximum elements of a reduction for which one thread is faster than a split."""


def reduction_columns(sums: int) -> int:
    """Return the neighbouring columns that a task reduces with `sums` accumulators each.

    All accumulators stay in the L1 cache, with room for what is read.

    >>> reduction_columns(1), reduction_columns(8), reduction_columns(50)
    (512, 256, 32)
    """
    fitting = STREAM_BYTES // (SUM_BYTES * max(sums, 1))
    return min(max(1 << fitting.bit_length() >> 1, MIN_COLUMNS), REDUCTION_COLUMNS)


ROW_BLOCK = 8192
"""Elements of streamed rows per visit: they stay in the L1 cache from one reduction to the next."""
UNROLL_RESULTS = 16
"""Maximum positions of a result axis that is unrolled: each position has vectors of its own, and
common subexpressions are computed once."""
STREAM_COLUMNS, COLUMN_BLOCK = 1024, 64
"""Neighbouring columns that one task of a stream reduces, and the rows that it visits at once."""
CONTRACTED_BLOCK, PRODUCED_BLOCK = (64, 512), (192, 256)
"""Rows per task of a stream, and streamed elements per visit: where a contraction reduces over the
streamed elements, and where a contraction produces them (running-shift in
`docs/derivations.md`)."""
STREAM_ROW_BLOCK = 192
"""Row block inside a stream's task: whole register tiles and vectors; the block's intermediates
stay in the L2 cache."""
STREAM_ELEMENTS, MIN_STREAM_ROWS = 1 << 18, 64
"""Maximum elements of a value that a visit of a stream makes where it makes whole rows, and the
minimum rows per visit: such values live in or near the L2 cache, and all rows of a visit share
the packed operands."""

HEIGHT = 24
"""Rows of a product per task are a multiple of this: the register tiles' heights divide it, and
lower tiles take the remainder."""
ROWS = 144
"""Minimum rows of a product per task."""
ROW_BYTES = 2048
"""Maximum bytes of a column of a product's block: more rows share a packed panel."""
TASKS = 16
"""Tasks that the positions of a result are cut into before blocks grow."""
MATRIX_ROWS, MIN_MATRIX, MATRIX_HEIGHT = 512, 128, 32
"""Products by matrix instructions (AMX): maximum and minimum rows per task, and their multiple.
Tiles of other heights would need another tile configuration."""
MATRIX_STEP, MATRIX_DEPTH = 16, 384
"""Matrix instructions: 32-bit units of k per instruction and row, and maximum units of one k block.
Two row tiles of that depth fill the L1 cache, which beats accumulators in memory."""


@dataclass(frozen=True, slots=True)
class FullWidthBlocking:
    """Block sizes of a product where one task takes all columns."""

    rows: int = 48
    """Minimum rows per task."""
    panel_bytes: int = 1 << 18
    """Bytes of a panel of more full-width rows: it stays in L2 with what is packed, which all of
    them share."""
    column_bytes: int = 512
    """Maximum bytes of a column of several products in one task whose rows are not reduced: these
    results need not stay in L2 completely, and every task packs all operands."""


FULL_WIDTH = FullWidthBlocking()
STREAM_ROWS = 192
"""Minimum rows per task where the columns are streamed and their operands packed block by block."""
COLUMNS = 256
"""Columns of a product that are packed together, and that one task takes where possible."""
DEPTH = 256
"""k block: summed positions that are packed together; a block of each operand stays in L2."""
RUN = 256
"""Products that are accumulated one after another. A longer sum adds up the sums of such runs: a
single chain of additions of equal sign may accumulate its rounding errors in one direction."""
REGISTER_RUN = 384
"""As `RUN`, where a tile holds its accumulators in registers over the whole k axis: joining runs
costs more there than at block boundaries."""
AXPY_RUN = 512
"""As `RUN`, for the axpy form of a GEMV: the sums of a run are an array of their own, which is
cleared and added to the total."""

WINDOW_ROWS = 192
"""Rows per task of a product over windows (implicit GEMM)."""
WINDOW_COLUMNS = 512
"""Columns of 4 bytes per task of a product over windows, approximately: whole image rows."""

FUSED_DEPTHWISE_TASKS, FUSED_DEPTHWISE_PIXELS = 2, 64
"""Depthwise convolution fused into the packer of a pointwise one: minimum tasks, and minimum pixels
per task."""

HALO = 8
"""Minimum rows of a product per task for each row that its neighbour recomputes, where windows are
reduced over them."""


@dataclass(frozen=True, slots=True)
class GemvBlocking:
    """Block sizes of GEMV and skinny products, which read the larger operand in place."""

    rows: int = 16
    """Maximum rows, all of which one task takes."""
    matrix_rows: int = 6
    """As `rows`, where matrix instructions multiply packed operands."""
    columns: int = 2080
    """Maximum columns per task: long runs of each row.  No power of two, so that rows of
    accumulators do not compete for the same cache sets."""
    tasks: int = 4
    """Tasks that fewer columns than `columns` for each are cut into."""
    min_columns: int = 272
    """Minimum columns of a task: rows of a kilobyte are still long runs."""
    dot_rows: int = 64
    """As `columns`, where the larger operand is contiguous along k: long rows, a few at a time."""
    depth: int = 2048
    """k block, whose packed small operand stays in L1 and L2."""
    row_depth: int = 4096
    """k block of a single row, which reads longer runs of the other operand."""


GEMV = GemvBlocking()

CHUNK_ROWS = 48
"""Multiple of the rows of a chunk, where a chunk has more: whole register tiles."""


@dataclass(frozen=True, slots=True)
class TsmmBlocking:
    """Block sizes of a tall-skinny product (TSMM): the work around the multiply-adds dominates."""

    columns: int = 128
    depth: int = 256
    """Maximum k."""
    dot_depth: int = 32
    """Maximum k where dot-product instructions would apply, which need packing."""
    rows: int = 2048
    left_bytes: int = 1 << 17
    """Maximum bytes of a task's left operand, of `rows` at most: they stay in L2."""
    staged_rows: int = 32
    """Rows that are stored together."""
    panel_rows: int = 48
    """As `staged_rows`, for a packed product with a fused epilogue ("panels"): whole tiles."""


TSMM = TsmmBlocking()


@dataclass(frozen=True, slots=True)
class OnePassBlocking:
    """Block sizes of a product with a fused epilogue that reduces k in one pass."""

    depth: int = 4096
    """Maximum k."""
    panel_bytes: int = 1 << 19
    """Maximum bytes of the right operand that a task packs: they stay in L2, in panels of several
    cache lines."""
    columns: int = 1024
    """Maximum columns per task where results are many.  With small k the traffic of the epilogue
    dominates, and wants long runs."""
    rows: int = 512
    """Minimum rows for which a task packs its operand, unless that leaves fewer than `tasks`."""
    tasks: int = 4
    min_rows: int = 192
    """Minimum rows even then."""


ONE_PASS = OnePassBlocking()
TILE_COLUMNS = 32
"""Columns of a register tile for which planners predict blocks."""
L2_BYTES = 1 << 20
"""The L2 cache for which blocks of packed products are given; a smaller one has smaller blocks."""


@dataclass(frozen=True, slots=True)
class GemmBlocking:
    """Block sizes of a GEMM: `mc` x `nc` results per task at most, `kc` terms at a time.

    Sizes are in float32 elements, for an L2 cache of `L2_BYTES`.  `pitch` is the elements between
    packed rows: no power of two, which would overuse some cache sets.  0: not the row's to decide.
    """

    mc: int
    nc: int
    kc: int = 0
    pitch: int = 0


ROW_MULTIPLE = 48
"""Multiple of the rows of a task: whole tiles, and whole vectors of packed rows."""
K_BLOCKED = GemmBlocking(288, 384, 192, 208)
"""Packed operands and accumulators take 1 MiB together; smaller blocks would pack data from L3 or
memory more often."""
ISSUE_BOUND = GemmBlocking(1056, 512, 256, 272)
"""Where instruction issue is the bottleneck (`Target.starts_few`) and packing is expensive. The
packed right operand, which every row of tiles reads again, takes half of 1 MiB of L2; accumulators,
which a tile reads once, may come from L3."""
LEFT_IN_PLACE = GemmBlocking(672, 256, 512)
"""Where the left operand is multiplied in place and L2 has room for the packed operand and the
accumulators: larger blocks pack less often."""
PREPACKED_RIGHT = GemmBlocking(192, 256)
"""Where the right operand is prepacked in panels: nothing is packed that more rows would share, and
all stays in L2 with the panels being prefetched."""
UNPACKED = GemmBlocking(192, 192, 384)
"""Maximum sizes of a small product, which reads its operands in place."""
SMALL_M = GemmBlocking(UNPACKED.mc, 768, 96, 112)
"""A small-M product: panels stay in L1 with the rows of a tile, accumulators in L2."""

PREPACKED = 1 << 22
"""Maximum elements of an operand that is packed once per call for all tasks: it takes that much
memory and has to stay in the last-level cache."""


@dataclass(frozen=True, slots=True)
class SwappedBlocking:
    """Block sizes of a small-M product with swapped operands: the columns of C are its rows."""

    columns: int = 48
    """Columns that are read together: whole tiles and whole vectors."""
    pitch: int = 64
    """Elements between rows of accumulators, of which a tile's last vectors use more."""
    packed_bytes: int = 1 << 20
    """Maximum bytes of the operand that every task packs: it stays in L2."""


SMALL_M_SWAPPED = SwappedBlocking()


def thin_columns(columns: Index) -> Index:
    """Return the columns per task of a skinny product that reads rows along them.

    >>> thin_columns(1024), thin_columns(4096), thin_columns(11008)
    (272, 1024, 2080)
    """
    return minimum(GEMV.columns, maximum(GEMV.min_columns, ceiling(columns, GEMV.tasks)))


def rows_per_task(columns: Index) -> Index:
    """Return the rows of `columns` positions that one task takes; long rows are few."""
    least = 16
    if not isinstance(columns, int):  # an open size may be 0, which factors of 16 do not say
        sure = sum(c for m, c in terms_of(columns) if all(a.kind == "size" for a in m))
        least = max(least, sure + 1)
    return maximum(1, floordiv(BLOCK, maximum(columns, least)))


def window_columns(itemsize: int) -> int:
    """Return the columns per task of a product over windows: equal bytes for all types."""
    return max(WINDOW_COLUMNS * 4 // max(itemsize, 1), 1)


def window_blocks(axes: Sequence[tuple[Index, int, int]], most: int) -> list[Index]:
    """Return how many windows along each axis one task takes, to hold about `most` positions.

    `axes` are inner to outer: the number of windows, their step, and the positions of each one.
    """
    width: Index = 1
    counts: list[Index] = []
    for windows, step, length in axes:
        if counts:
            least = max(-(-HALO * max(length - step, 0) // step), 1)
            fitting = maximum(floordiv(most, maximum(mul(width, step), 1)), least)
            pieces = ceiling(windows, fitting)
        else:
            pieces = ceiling(window_reach(windows, step, length), most)
        counts.append(ceiling(windows, maximum(pieces, 1)))
        width = mul(width, window_reach(counts[-1], step, length))
    return counts


def window_reach(windows: Index, step: int, length: int) -> Index:
    """Return the positions that neighbouring windows of `length` positions reach together."""
    return add(mul(sub(windows, 1), step), length)


def ceiling(n: Index, by: Index) -> Index:
    """Return n / by, rounded up."""
    return floordiv(add(n, sub(by, 1)), by)


def product_rows(positions: Index, itemsize: int, products: int = 1) -> Index:
    """Return the rows per task of a product whose result has `positions` independent positions.

    `products` products share a task, and their results share L2.
    """
    most = max(ROW_BYTES // (itemsize * products) // HEIGHT * HEIGHT, ROWS)
    wanted_rows = mul(HEIGHT, ceiling(positions, HEIGHT * TASKS * COLUMNS))
    return maximum(ROWS, minimum(most, wanted_rows))


def wide_blocks(
    rows: Index,
    columns: Index,
    depth: Index,
    positions: Index,
    itemsize: int,
    tile: int,
    l2_bytes: int = L2_BYTES,
) -> tuple[Index, Index]:
    """Return rows and columns per task of a product with one pass over k.

    The result has `positions` independent positions and a register tile `tile` columns. Blocks are
    of about equal size. The operand that a task packs takes at most half of L2.
    """
    # A size counts as 1 or more in expressions, and there may be no summed positions: hence 16.
    panel_bytes = min(ONE_PASS.panel_bytes, l2_bytes // 2)
    fitting = floordiv(panel_bytes // (itemsize * tile), maximum(depth, 16))
    run = maximum(
        TSMM.columns, minimum(ONE_PASS.columns, floordiv(positions, TASKS * ONE_PASS.min_rows))
    )
    most = minimum(mul(tile, maximum(fitting, 1)), run)
    across = mul(tile, maximum(ceiling(even_block(columns, ceiling(columns, most)), tile), 1))
    least = minimum(ONE_PASS.rows, floordiv(positions, mul(ONE_PASS.tasks, across)))
    more = floordiv(positions, mul(TASKS, across))
    block_rows = minimum(maximum(maximum(more, least), ONE_PASS.min_rows), TSMM.rows)
    blocks = minimum(ceiling(rows, block_rows), floordiv(rows, ONE_PASS.min_rows))
    return mul(HEIGHT, maximum(ceiling(even_block(rows, blocks), HEIGHT), 1)), across


def fused_product_rows(
    rows: Index, columns: Index, depth: int, positions: Index, itemsize: int
) -> Index:
    """Return the predicted rows per task of a product with a fused epilogue.

    With one pass over k, panels stay in L2 while all rows read them; longer sums are blocked by k.
    """
    if depth > ONE_PASS.depth:
        return even_block(rows, ceiling(rows, K_BLOCKED.mc))
    return wide_blocks(rows, columns, depth, positions, itemsize, TILE_COLUMNS)[0]


def even_block(size: Index, blocks: Index) -> Index:
    """Return the positions per block when `size` is split into `blocks` blocks (at least one)."""
    return ceiling(size, maximum(blocks, 1))


def tile_instruction_block(rows: Index, positions: Index) -> tuple[Index, Index]:
    """Return rows and columns per task of a product by matrix instructions (AMX).

    These are so fast that packing counts: blocks are whole pairs of tiles, and have twice as many
    columns, which share the packed rows, where there are many `positions`.

    >>> tile_instruction_block(256, 256 * 256), tile_instruction_block(1024, 1024 * 1024)
    ((128, 256), (256, 512))
    """
    across = mul(COLUMNS, maximum(1, minimum(2, floordiv(positions, 1 << 19))))
    fair = minimum(floordiv(positions, mul(MIN_TASKS, across)), MATRIX_ROWS)
    even = even_block(rows, ceiling(rows, maximum(fair, MIN_MATRIX)))
    return mul(MATRIX_HEIGHT, ceiling(even, MATRIX_HEIGHT)), across


def dot_instruction_block(
    rows: Index, positions: Index, tasks: int, *, in_place: bool
) -> tuple[Index, Index]:
    """Return rows and columns per task of a product by dot-product instructions (VNNI, bf16).

    Packing counts there too. There are about `tasks` tasks of equal size. Twice as many columns
    share the packed rows if sums are accumulated in the result (`in_place`) and not in a workspace
    in L2.

    >>> dot_instruction_block(1024, 1024 * 1024, 4, in_place=True)
    (528, 512)
    >>> dot_instruction_block(1024, 1024 * 1024, 4, in_place=False)
    (360, 256)
    >>> dot_instruction_block(256, 256 * 256, 4, in_place=True)
    (144, 256)
    """
    fair = floordiv(positions, tasks)
    wide = minimum(floordiv(fair, 2 * COLUMNS * MATRIX_ROWS), 1) if in_place else 0
    across = mul(COLUMNS, add(wide, 1))
    most = MATRIX_ROWS if in_place else ROW_BYTES // 4 // HEIGHT * HEIGHT
    least = maximum(minimum(floordiv(fair, across), most), ROWS)
    return mul(HEIGHT, ceiling(even_block(rows, ceiling(rows, least)), HEIGHT)), across


def full_width_rows(rows: Index, columns: Index, itemsize: int, products: int = 1) -> Index:
    """Return the rows per task of a product where a task takes all `columns`."""
    # A size counts as 1 or more in expressions, and there may be no columns: hence 16, not 1.
    fit = floordiv(FULL_WIDTH.panel_bytes // (HEIGHT * itemsize * products), maximum(columns, 16))
    fair_rows = minimum(fit, ceiling(rows, HEIGHT * TASKS))
    return mul(HEIGHT, maximum(FULL_WIDTH.rows // HEIGHT, fair_rows))


def unreduced_rows(rows: Index, itemsize: int) -> Index:
    """Return the rows per task of several products whose rows are not reduced."""
    most = floordiv(rows, 8 * MIN_TASKS)
    return mul(
        8, maximum(FULL_WIDTH.rows // 8, minimum(FULL_WIDTH.column_bytes // (8 * itemsize), most))
    )


# ---- scatter-reduce ------------------------------------------------------------------------------

SCATTER_PART_WIDTH = 16
"""Elements of a row per part, when the rows of a scatter-reduced result are split into parts.
Skipping an update that belongs to another part costs about as much as adding so many elements."""
SCATTER_PARTS = 8
"""Maximum parts of such a row."""
