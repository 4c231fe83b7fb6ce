"""Block sizes and numbers of tasks that the planner and lowering ask a machine for.

A kernel's grid, the parts of a split axis and the blocks of a stream depend on the machine: a CPU
takes blocks that its caches hold, a GPU needs many small programs. Whoever decides one of these is
handed a `Tiling` and asks it. The defaults are the answers for a CPU, whose own block sizes are
in `smelt.machine.blocks`; `smelt.backend.gpu` has those for GPUs.

>>> tiling = Tiling()
>>> tiling.split_parts(1000), tiling.reduction_parts(1000, 8), tiling.split_k_parts(1 << 16)
(15, 7, 16)
>>> tiling.reduction_columns(1), tiling.reduction_columns(50)
(512, 32)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod
from typing import Any, NamedTuple, TypeVar

from smelt.machine import blocks
from smelt.machine.image_costs import ImageCosts
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, floordiv, maximum, minimum, mul

__all__ = ["CPU_TILING", "ReducedAxis", "Tiling", "conflicting_product", "rows_axis", "split_axis"]

Product = TypeVar("Product")


@dataclass(frozen=True)
class Tiling:
    """The blocks and parts that suit a machine; the defaults are a CPU's.

    Unless a description says otherwise, a field is a number of positions of an axis.
    """

    min_tasks: int = blocks.MIN_TASKS
    """Minimum independent tasks; with fewer, a reduction is split."""
    split_elements: int = blocks.SPLIT_ABOVE
    """Maximum elements of a reduction that is not split."""
    max_parts: int = blocks.PARTS
    """Most parts of a split axis."""
    min_part_rows: int = blocks.PART_ROWS
    """Least positions per part of a split axis, while there are enough."""
    min_part_elements: int = blocks.PART_WORK
    """Least elements that a part reduces, while there are enough."""
    splits_longest: bool = False
    """Whether the longest of several reduced axes is split that are as slow in memory."""
    min_product_tasks: int = blocks.MIN_TASKS
    """As `min_tasks`, for the tiles of a product whose reduction axis could be split."""
    max_product_parts: int = blocks.PRODUCT_PARTS
    """Most parts of a product's reduction axis (split-K)."""
    min_split_k: int = blocks.LONG_SUM
    """Least length of such an axis."""
    part_score: float = blocks.CUT_SCORE
    """Weight of an axis that a task has only a part of, in the choice of the vector axis."""

    map_block: int = blocks.BLOCK
    """Positions of the vector axis per task, when that axis is a grid axis."""
    unroll_results: int = blocks.UNROLL_RESULTS
    """Most positions of a result axis that is unrolled."""

    short_row: int = blocks.ACROSS_ROWS.row_elements
    """Most elements of a reduced row for which vectors run across rows."""
    short_run: int = blocks.ACROSS_ROWS.run_elements
    """Most elements of adjacent short rows for which vectors run across rows."""
    few_columns: int = blocks.ACROSS_ROWS.columns
    """Most columns of a reduction for which vectors run along the rows."""
    min_lane_rows: int = blocks.ACROSS_ROWS.min_rows
    """Least rows for vectors across rows."""
    short_rows: int = blocks.ACROSS_ROWS.split_rows
    """Short rows of a split axis that are processed together."""
    row_bytes: int = blocks.STREAM_BYTES
    """Bytes of rows that a task processes together, one row per lane."""

    row_elements: int = blocks.ROW_BLOCK
    """Elements of a streamed row per visit."""
    stream_columns: int = blocks.STREAM_COLUMNS
    """Neighbouring columns that one task of a stream reduces."""
    column_rows: int = blocks.COLUMN_BLOCK
    """Rows that such a task visits at once."""
    contracted_block: tuple[int, int] = blocks.CONTRACTED_BLOCK
    """Rows per task and streamed elements per visit, where a contraction reduces the latter."""
    produced_block: tuple[int, int] = blocks.PRODUCED_BLOCK
    """As `contracted_block`, where a contraction produces the streamed elements."""
    stream_elements: int = blocks.STREAM_ELEMENTS
    """Most elements of a value that a visit of a stream makes, where it makes whole rows."""
    min_stream_rows: int = blocks.MIN_STREAM_ROWS
    """Least rows per visit of such a stream."""
    recurrence_columns: int = 64
    """Neighbouring elements whose carried values a task of a recurrence has in registers."""
    min_parallel_carry: int = 2048
    """Minimum elements of a carry for a step to take any operator: all processors have a part."""
    short_stream: int = 512
    """Positions of an axis that one or two blocks of a contraction cover without a stream."""
    short_consumed_stream: int = 112
    """As `short_stream`, where another contraction consumes what is computed along the axis.

    One block keeps that at hand as well. Reducing so few elements is faster than carrying states,
    unless the row exceeds fast memory.
    """
    max_stream_sums: int = 1024
    """Most columns whose sums a task of a stream keeps for its rows, to compute nothing twice."""
    min_stream_visits: int = blocks.STREAM_VISITS
    """Least blocks of a streamed axis for splitting it over the grid."""
    splits_stored_streams: bool = False
    """Whether a stream is split that stores results along its axis besides its states."""

    rounds_factors: bool = False
    """Whether factors of products of a half type are rounded to it, as matrix units have them."""
    recomputes_products: bool = False
    """Whether kernels may compute a value that exceeds every cache again, with its products.

    Matrix units do so faster than memory moves what they compute."""

    unpacked_product: tuple[int, int] = (blocks.UNPACKED.mc, blocks.UNPACKED.kc)
    """Most rows and columns, and most summed positions, of a product that packs no operand."""
    thin: int = blocks.GEMV.rows
    """Most rows of a skinny product, which are all in one task."""
    thin_dot_rows: int = blocks.GEMV.dot_rows
    """Columns per task of a skinny product whose larger operand is contiguous along the summed
    axis."""
    product_columns: int = blocks.COLUMNS
    """Columns of a product per task."""
    window_rows: int = blocks.WINDOW_ROWS
    """Rows per task of a product over windows."""
    fuses_depthwise: bool = True
    """Whether a pointwise product computes a depthwise one row by row in its own task."""
    scatter_part_width: int = blocks.SCATTER_PART_WIDTH
    """Elements of a row per part, where a scatter-reduced result's rows are split."""
    max_scatter_parts: int = blocks.SCATTER_PARTS
    """Most parts of such a row."""

    image_costs: ImageCosts | None = ImageCosts()
    """What the two orders of an image's axes cost; None keeps the order of the data."""
    packs_stencils: bool = True
    """Whether operands of short windowed contractions may be packed, instead of unrolling these."""
    max_unrolled_terms: int | None = None
    """Most products of a sum without windows that is unrolled; None leaves it to the operator."""
    stencil_row_bytes: int = 64
    """Most bytes of a stencil's row that vectors run across: about one vector."""
    min_gated_rows: int = 192
    """Least rows of a product of which two halves are combined that is computed as two.

    With fewer, it runs at the bandwidth of its weights, which are better read from end to end.
    """
    min_gated_columns: int = 64
    """Least columns of each half; narrower ones waste part of the register tiles."""

    least_late_bytes: int = 0
    """Minimum bytes left for later kernels for one to start as late as it may."""

    chunk_multiples: tuple[int, int] = (blocks.CHUNK_ROWS, blocks.DEPTH)
    """Multiples of the rows of a chunk, and of a longer one: `kernel.chunks.round_up_rows`."""

    # ---- reductions ----------------------------------------------------------------------------

    def reduction_columns(self, sums: int) -> int:
        """Return the neighbouring columns that a task reduces with `sums` accumulators each."""
        return blocks.reduction_columns(sums)

    def split_parts(self, extent: Index, rows: int | None = None) -> Index:
        """Return how many parts to split an axis into, of `rows` or more positions."""
        rows = self.min_part_rows if rows is None else rows
        return maximum(1, minimum(self.max_parts, floordiv(extent, rows)))

    def reduction_parts(self, extent: Index, width: Index) -> Index:
        """Return the parts of a reduction axis with `width` elements per position.

        Each part has one result.
        """
        most = min(self.max_parts, extent) if isinstance(extent, int) else self.max_parts
        work = mul(extent, width)
        return maximum(1, minimum(most, floordiv(work, self.min_part_elements)))

    def split_k_parts(self, extent: Index, tasks: int = 1) -> Index:
        """Return the split-K parts of a product's reduction axis, with `tasks` tiles of results."""
        most = self.max_product_parts
        return maximum(1, minimum(most, floordiv(extent, self.min_split_k // most)))

    def scatter_parts(self, rows: Index, width: Index, *, in_batches: bool) -> Index:
        """Return the parts of a scatter-reduced result's rows, which have `width` elements.

        Each part examines all positions, so that only long rows pay for several; batches are tasks
        by themselves.
        """
        parts = 1 if in_batches else floordiv(width, self.scatter_part_width)
        return maximum(minimum(parts, self.max_scatter_parts), 1)

    # ---- streams -------------------------------------------------------------------------------

    def stream_block(self, row_bytes: int, *, is_contracted: bool) -> tuple[int, int]:
        """Return the rows per task of a stream and its elements per visit.

        `is_contracted` says that a contraction reduces the latter, rather than produces them;
        `row_bytes` are those of the states of a row.
        """
        return self.contracted_block if is_contracted else self.produced_block

    def stream_task_rows(self, width: int) -> int:
        """Return the streamed rows of `width` elements per visit of a stream with contractions.

        A power of two below the usual block, so that calls of similar sizes share a kernel.
        """
        fit = self.stream_elements // max(width, 1)
        most = self.contracted_block[1]
        return min(most, max(1 << fit.bit_length() - 1 if fit else 0, self.min_stream_rows))

    def stream_block_rows(self, width: int) -> int:
        """Return the positions of `width` elements per visit of an axis without products.

        A power of two, so that calls of similar sizes share a kernel.
        """
        return max(1 << (self.row_elements // max(width, 1)).bit_length() >> 1, 1)

    def splits_stream(self, grid: Iterable[int], visits: int) -> bool:
        """Return whether to split a stream of `visits` blocks: the grid has few tasks."""
        return prod(grid) < self.min_tasks and visits >= self.min_stream_visits

    def stream_parts(self, blocks: Index, tasks: int) -> Index:
        """Return the parts of a split stream of `blocks` blocks, beside `tasks` without parts.

        A part for each block: merged in order they give the bits of a task that visits them all.
        """
        return blocks

    # ---- rows and products ---------------------------------------------------------------------

    def rows_per_task(self, columns: Index) -> Index:
        """Return the rows of `columns` positions that one task of an elementwise kernel takes."""
        return blocks.rows_per_task(columns)

    def thin_columns(self, columns: Index) -> Index:
        """Return the columns per task of a skinny product that reads rows along them."""
        return blocks.thin_columns(columns)

    def product_rows(
        self,
        rows: Index,
        columns: Index,
        positions: Index,
        itemsize: int,
        products: int = 1,
        *,
        cuts_columns: bool = True,
        is_reduced: bool = True,
        depth: int = 0,
    ) -> Index:
        """Return the rows per task of a product with `positions` independent results.

        `products` share a task, which takes all columns unless it `cuts_columns`; `is_reduced` says
        that rows or columns of theirs are reduced. With a fused epilogue sums are of `depth`.
        """
        if depth and cuts_columns:
            return blocks.fused_product_rows(rows, columns, depth, positions, itemsize)
        if cuts_columns:
            return blocks.product_rows(positions, itemsize, products)
        if is_reduced:
            return blocks.full_width_rows(positions, columns, itemsize, products)
        return blocks.unreduced_rows(positions, itemsize)

    def packs_product(self, sides: Sequence[int], depth: int) -> bool:
        """Return whether a product of so many rows and columns packs operands."""
        positions, max_depth = self.unpacked_product
        return min(sides) > self.thin and (max(sides) > positions or depth > max_depth)

    def splits_gated_product(self, rows: int, columns: int, itemsize: int) -> bool:
        """Return whether a product is computed as several, of `columns` or more each.

        They are combined elementwise. `itemsize` is that of an element of a factor.
        """
        return rows >= self.min_gated_rows and columns >= self.min_gated_columns

    def window_columns(self, itemsize: int) -> int:
        """Return the columns per task of a product over windows."""
        return blocks.window_columns(itemsize)

    def window_blocks(self, axes: Sequence[tuple[Index, int, int]], itemsize: int) -> list[Index]:
        """Return how many windows along each axis a product for them takes in one task.

        `axes` are inner to outer: the number of windows, their step, and the positions of each one.
        """
        return blocks.window_blocks(axes, self.window_columns(itemsize))

    def image_rows(self, lines: int, width: int) -> int:
        """Return the most image rows per task of a depthwise and a pointwise convolution."""
        tasks = min(lines * width // blocks.FUSED_DEPTHWISE_PIXELS, blocks.FUSED_DEPTHWISE_TASKS)
        return -(-lines // max(tasks, 1))


CPU_TILING = Tiling()
"""The blocks of every CPU: they do not depend on its caches, so that results do not either."""


def rows_axis(
    sides: Iterable[AbstractSet[str]], grid: Sequence[str], sizes: Mapping[str, int]
) -> str | None:
    """Return the axis of rows that a stream's tasks take in blocks, or None.

    `sides` holds, for each operand of each product, the axes that only this operand has. Among the
    axes of the sides that contain the grid's last such axis, the longest one at the first call's
    sizes is chosen, whatever the layout.

    >>> sizes = {"row": 1024, "group": 4, "column": 64}
    >>> rows_axis([{"row", "group"}, {"column"}], ["row", "group"], sizes)
    'row'
    """
    grid_sides = [on_grid for side in sides if (on_grid := [a for a in grid if a in side])]
    last = max((grid.index(side[-1]) for side in grid_sides), default=-1)
    candidates = [a for a in grid if any(a in side and grid[last] in side for side in grid_sides)]
    return max(reversed(candidates), key=lambda a: sizes[a], default=None)


def conflicting_product(
    products: Mapping[Product, tuple[AbstractSet[Any], AbstractSet[Any]]],
    grid: AbstractSet[Any],
    cut: AbstractSet[Any],
) -> Product | None:
    """Return a product with an axis that tasks block for another product, or None.

    `products` are those of a kernel: the axes of the result, and those that it is blocked by, of
    which tasks block the `grid`'s. They block the axes `cut` in any case.

    >>> scores, bias = ({"h", "m", "n"}, {"m", "n"}), ({"h", "m", "n"}, {"h", "n"})
    >>> conflicting_product({"scores": scores, "bias": bias}, {"h", "m"}, set())
    'scores'
    """
    blocked = grid & (cut | {a for _, own_axes in products.values() for a in own_axes})
    conflicts = (k for k, (axes, own_axes) in products.items() if axes & blocked - own_axes)
    return next(conflicts, None)


class ReducedAxis(NamedTuple):
    """An axis of reductions whose parts can be reduced separately and merged."""

    size: int
    depth: int
    """The first dimension of a load that varies along it; 0 is the slowest."""
    is_contiguous: bool
    """Whether it is the last dimension of an array of the highest rank."""


def split_axis(axes: Sequence[ReducedAxis], tiling: Tiling) -> int:
    """Return the index of the axis to split: the slowest that is long enough for all parts.

    Parts of a contiguous axis must be whole vectors, or cache lines are read twice. If no axis is
    long enough, it is the longest, of those that are not contiguous if there are any.

    >>> rows, columns = ReducedAxis(4096, 0, False), ReducedAxis(1 << 20, 1, True)
    >>> split_axis([columns, rows], CPU_TILING)
    1
    >>> split_axis([columns, rows._replace(size=4)], CPU_TILING)
    0
    """
    least = [tiling.max_parts * (tiling.min_lane_rows if a.is_contiguous else 1) for a in axes]
    long = [k for k, a in enumerate(axes) if a.size >= least[k]]
    if long:
        return min(long, key=lambda k: (axes[k].depth, -axes[k].size * tiling.splits_longest))
    strided = [k for k, a in enumerate(axes) if not a.is_contiguous] or range(len(axes))
    return max(strided, key=lambda k: axes[k].size)
