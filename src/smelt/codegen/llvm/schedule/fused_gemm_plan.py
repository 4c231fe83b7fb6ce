"""The plan of a GEMM whose epilogue is fused: its form, its tile, its blocks and its arrays.

`smelt.codegen.llvm.schedule.fused_gemm` chooses the plans of a phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from smelt.codegen.llvm.loopir.items import Dot, Item, Phase
from smelt.codegen.llvm.nests.product_plan import (
    IN_PLACE,
    LEFT_PART,
    OUTPUT_STAGE_PART,
    RIGHT_PART,
    SUMS_PART,
    Driver,
    PlanDefaults,
    PlanNotes,
    ScratchArray,
    Tile,
    packed_panels,
)
from smelt.codegen.llvm.schedule.operands import is_transposed_load, plain_load
from smelt.kernel.product_cost import MANY
from smelt.machine.blocks import (
    ISSUE_BOUND,
    K_BLOCKED,
    L2_BYTES,
    LEFT_IN_PLACE,
    ONE_PASS,
    PREPACKED_RIGHT,
    ROW_MULTIPLE,
    ROWS,
    SMALL_M,
    SMALL_M_SWAPPED,
    TASKS,
    TSMM,
    UNPACKED,
    GemmBlocking,
    ceiling,
    even_block,
    wide_blocks,
)
from smelt.python.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.expr import Index, add, axes_of, floordiv, maximum, minimum, mul, product


def k_blocked_task(
    rows: Index,
    columns: Index,
    positions: Index,
    itemsize: int,
    tile: int,
    tasks: int,
    *,
    direct: bool,
    roomy: bool = False,
    panels: bool = False,
    products: int = 1,
    long: bool = False,
    l2_bytes: int = L2_BYTES,
) -> tuple[Index, Index]:
    """Return the rows and columns of a task of a K-blocked contraction.

    Blocks of about the same size; `positions` are the independent positions of the result.  There
    must be `tasks` tasks before one takes more than `ROWS` rows.  The accumulators of several
    `products` share a task's memory: fewer columns each.  A smaller L2 has smaller blocks.

    >>> k_blocked_task(1024, 1024, 1 << 20, 4, 32, 4, direct=False)
    (288, 352)
    >>> k_blocked_task(1024, 1024, 1 << 20, 4, 32, 4, direct=False, long=True)
    (528, 512)
    >>> k_blocked_task(512, 512, 1 << 18, 4, 32, 8, direct=False, long=True)
    (144, 256)
    >>> k_blocked_task(1024, 1024, 1 << 20, 4, 16, 4, direct=False, l2_bytes=512 << 10)
    (192, 256)
    """
    blocking = PREPACKED_RIGHT if panels else LEFT_IN_PLACE if roomy else K_BLOCKED
    doubles_rows = direct and blocking is K_BLOCKED
    words, max_rows, max_columns = itemsize // 4, blocking.mc << doubles_rows, blocking.nc
    # Blocks of both operands and of the sums grow with the product of two sides.
    part = min(1.0, l2_bytes / L2_BYTES) ** 0.5
    max_rows, max_columns = int(max_rows * part), int(max_columns * part)
    fitting: Index = max(max_columns // (words * products), tile)
    if long and not (direct and panels):
        # Packed blocks are shared, as long as enough tasks are left.
        max_rows = max(max_rows, ISSUE_BOUND.mc)
        limit = max(ISSUE_BOUND.nc // (words * products), tile)
        fitting = maximum(fitting, minimum(limit, floordiv(positions, tasks * ROWS)))
    task_columns = mul(tile, ceiling(even_block(columns, ceiling(columns, fitting)), tile))
    limit = max(max_rows // words // ROW_MULTIPLE * ROW_MULTIPLE, ROW_MULTIPLE)
    task_rows = minimum(limit, maximum(floordiv(positions, mul(tasks, task_columns)), ROWS))
    blocks = ceiling(rows, task_rows)
    return mul(ROW_MULTIPLE, ceiling(even_block(rows, blocks), ROW_MULTIPLE)), task_columns


def small_m_columns(columns: Index, rows: Index, positions: Index, tasks: int, step: int) -> Index:
    """Return the columns of a task of a small-M contraction, a multiple of `step`.

    Every task packs all of its few rows, so there are no more than `tasks` tasks.  `positions` are
    the independent positions of the result.

    >>> from smelt.types.expr import evaluate, size
    >>> taken = small_m_columns(size("n"), size("m"), mul(size("m"), size("n")), 4, 48)
    >>> [int(evaluate(taken, {"m": 64, "n": n})) for n in (30, 768, 3000)]
    [48, 192, 768]
    """
    fair = floordiv(positions, mul(maximum(rows, 16), tasks))
    most = mul(step, maximum(ceiling(fair, step), 2))
    even = even_block(columns, ceiling(columns, most))
    return mul(step, maximum(ceiling(even, step), 1))


FusedVariant = Literal["tall_skinny", "panels", "k_blocked", "small_m"]
"""Variants of a kernel's code whose products are planned so."""
FusedForm = FusedVariant | Literal["small_m_swapped"]
"""How a task takes its operands (`smelt.codegen.llvm.schedule.fused_gemm`)."""


@dataclass(frozen=True, slots=True)
class FusedGemmPlan(PlanDefaults):
    """Plan of a GEMM with fused epilogue: its operands, its axes, and its tile."""

    item: Dot
    left: Item
    right: Item
    m: str
    n: str
    k: str
    tile: Tile
    form: FusedForm
    direct: bool
    """Whether the left operand is multiplied in place."""
    gathers_rows: bool
    """Whether the rows of a left operand in place are gathered by computed positions."""
    dense: bool
    """Whether every output's rows are contiguous without gaps, and complete in one task."""
    stores_sums: bool
    """Whether sums go to scratch before they are read."""
    packs_transposed: bool = False
    """Whether the left operand is packed by vectors across its rows."""
    prepacked: bool = False
    """Whether the right operand is prepacked in panels as wide as the tile: at [n//w, k, n%w]."""
    large_blocks: bool = False
    """Whether a K-blocked plan that packs only the right operand takes larger blocks, which fit
    L2."""
    tasks: int = 1
    """Tasks to split a K-blocked or swapped plan into before each takes more."""
    l2_bytes: int = L2_BYTES
    """The L2 cache that holds a task's blocks."""
    keeps_sums: bool = False
    """Whether its sums stay in scratch for the epilogue of the last product."""
    others: tuple[tuple[Item, str], ...] = ()
    """The other products of the same rows and columns, with their reduced axes."""
    issue_bound: bool = False
    """Whether a K-blocked plan is limited by instruction issue rather than multiply-adds."""
    copies_left: bool = False
    """Whether left rows that could be multiplied in place are packed all the same.

    In place, those of a tile may conflict in the L1 cache.
    """
    leader: Item | None = None
    """Of several products, the first that packs the same rows, if this one reads what that
    packs."""

    @property
    def wide(self) -> bool:
        """Whether a task takes some columns, whose operand it packs in panels of a tile."""
        return self.form != "tall_skinny"

    @property
    def blocks_k(self) -> bool:
        """Whether a task takes the reduced positions block by block, with the sums in scratch."""
        return self.form in ("k_blocked", "small_m")

    @property
    def small_m(self) -> bool:
        """Whether all rows are taken panel by panel, too few to pack panels beforehand."""
        return self.form in ("small_m", "small_m_swapped")

    @property
    def swapped(self) -> bool:
        """Whether operands are swapped: `m` is the axis of the result's columns."""
        return self.form == "small_m_swapped"

    @property
    def by_tiles(self) -> bool:
        """Whether each tile's rows are packed just before it, not all in advance."""
        return self.issue_bound and not (self.direct or self.packs_transposed or self.others)

    @property
    def depth(self) -> int:
        """Reduced positions of one K block."""
        if self.small_m:
            return SMALL_M.kc
        return LEFT_IN_PLACE.kc if self.large_blocks else self._packed_blocking.kc

    @property
    def pitch(self) -> int:
        """Elements between packed rows of a K block."""
        return SMALL_M.pitch if self.small_m else self._packed_blocking.pitch

    @property
    def _packed_blocking(self) -> GemmBlocking:
        return ISSUE_BOUND if self.issue_bound else K_BLOCKED

    def notes(self) -> PlanNotes:
        """Return the policies of this plan in words."""
        left = IN_PLACE if self.direct else "packed in rows"
        if self.gathers_rows:
            left += ", rows by computed positions"
        elif self.packs_transposed:
            left = f"packed in strips of {self.tile.lanes} rows"
        transposed = is_transposed_load(self.right, self.n, self.k)
        right = "packed in rows"
        if self.wide:
            right = packed_panels(self.tile.columns, transposed=transposed)
        if self.prepacked:
            right = "in panels already"
        elif self.small_m and not self.swapped:
            right += ", by the tiles that multiply them first"
        sums = "in registers"
        if self.blocks_k:
            sums += f", in scratch between blocks of {self.depth} positions"
        if self.keeps_sums:
            sums += ", kept for the epilogue of the last product"
        else:
            sums += "; the epilogue reads " + ("scratch" if self.stores_sums else "registers")
        return PlanNotes(f"{self.m} x {self.n} over {self.k}", left, right, sums)

    @property
    def axes(self) -> tuple[str, ...]:
        """The result's axes, outer to inner."""
        return (self.m, self.n)

    @property
    def reads_past_end(self) -> bool:
        """False: what tiles read behind the last column is cleared panel by panel."""
        return False

    @property
    def driver(self) -> Driver:
        """The loops around its register tiles."""
        return "small_m_swapped" if self.form == "small_m_swapped" else "fused"

    @property
    def rows_per_pass(self) -> int:
        """Rows that are taken together."""
        whole_tiles = TSMM.staged_rows // self.tile.rows * self.tile.rows
        return UNPACKED.mc if self.small_m else TSMM.panel_rows if self.wide else whole_tiles

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of the tile, and of the tiles for remainders."""
        full = self.tile.rows
        if self.small_m:
            return (full, 2 * full // 3, full // 3, 1)
        return (full, full // 3, 1) if self.wide else (full, 1)

    @property
    def rows(self) -> Item:
        """The operand that has the result's rows."""
        return self.right if self.swapped else self.left

    outer = ()
    """Reduced axes besides `k`: none."""

    def right_pitch(self) -> Index | None:
        """Return the elements between rows of a right operand that is contiguous along n.

        None if it is not, or if it is computed.
        """
        access = plain_load(self.right)
        if access is None or access.positions or coefficient(access.offset, self.n) != 1:
            return None
        pitch = coefficient(access.offset, self.k)
        return None if pitch is None or axes_of(pitch) else pitch

    def left_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the left operand."""
        return (self.k, self.m) if self.packs_transposed else (self.m, self.k)

    def right_order(self) -> tuple[str, ...]:
        """Return the loops of the nest that packs the right operand."""
        return (self.k, self.n)

    def scratch_extent(self, axis: str, local: Mapping[str, Index]) -> Index:
        """Return the scratch extent along an axis of the result: a task's positions."""
        return local[axis]

    def arrays(self, phase: Phase, local: Mapping[str, Index]) -> Iterator[ScratchArray]:
        """Yield the arrays in scratch: packed operands, sums, rows that wait for their output."""
        m, n, k = (local[a] for a in (self.m, self.n, self.k))
        tile, dtype, packs_rows = self.tile, self.item.dtype, self.leader is None
        overhang = tile.lanes * tile.columns  # transposed tiles may reach so far
        if self.blocks_k:
            columns = add(n, tile.columns - 1)
            rows = add(m, tile.lanes - 1)
            if not self.prepacked:
                yield ScratchArray(RIGHT_PART, add(mul(columns, self.depth), overhang), dtype)
            if not self.direct and packs_rows:
                packed_rows = tile.rows + 1 if self.by_tiles else rows
                yield ScratchArray(LEFT_PART, mul(packed_rows, self.pitch), dtype)
            yield ScratchArray(SUMS_PART, mul(rows, columns), dtype)
        elif self.swapped:
            rows = add(n, tile.columns - 1)
            if packs_rows:
                yield ScratchArray(RIGHT_PART, add(mul(rows, k), overhang), dtype)
            if not self.direct:
                yield ScratchArray(LEFT_PART, add(mul(tile.rows, k), overhang), dtype)
            yield ScratchArray(SUMS_PART, mul(rows, SMALL_M_SWAPPED.pitch), dtype)
        else:
            yield from self._one_pass_arrays(phase, n, overhang)

    def _one_pass_arrays(self, phase: Phase, n: Index, overhang: int) -> Iterator[ScratchArray]:
        """Yield the arrays of a product whose sums stay in registers over all of k."""
        dtype, rows = self.item.dtype, self.rows_per_pass
        wide_panel = ONE_PASS.panel_bytes // dtype.itemsize + overhang
        panel = wide_panel if self.wide else TSMM.depth * TSMM.columns
        yield ScratchArray(RIGHT_PART, panel, dtype)
        if not self.direct:
            yield ScratchArray(LEFT_PART, rows * TSMM.depth, dtype)
        if self.stores_sums:
            columns = add(n, self.tile.columns) if self.wide else TSMM.columns
            yield ScratchArray(SUMS_PART, mul(rows, columns), dtype)
        for j, s in enumerate(phase.stores if self.dense else ()):
            yield ScratchArray(OUTPUT_STAGE_PART + j, rows * TSMM.columns, s.value.dtype)

    def summed(self, phase: Phase) -> Index:
        """Return the reduced positions of all products."""
        positions = phase.axes[self.k]
        for _, k in self.others:
            positions = add(positions, phase.axes[k])
        return positions

    def task_limits(self) -> tuple[int, tuple[int, int], tuple[int, int], int]:
        """Return how many tasks there are, and their least and most rows and columns.

        Last the elements of a packed panel.  For predictions: `blocks` has the exact sizes.
        """
        size, tile = self.item.dtype.itemsize, self.tile.columns
        products = 1 + len(self.others)
        if self.swapped:
            return self.tasks, (SMALL_M_SWAPPED.columns, MANY), (UNPACKED.mc, UNPACKED.mc), MANY
        if self.small_m:
            return (
                self.tasks,
                (UNPACKED.mc, UNPACKED.mc),
                (tile, max(SMALL_M.nc // products, tile)),
                MANY,
            )
        if self.blocks_k:
            rows, columns = K_BLOCKED.mc * (2 if self.direct else 1), K_BLOCKED.nc
            if self.prepacked or self.large_blocks:
                rows, columns = LEFT_IN_PLACE.mc, LEFT_IN_PLACE.nc
            elif self.issue_bound:
                rows, columns = ISSUE_BOUND.mc, ISSUE_BOUND.nc
            part, words = min(1.0, self.l2_bytes / L2_BYTES) ** 0.5, size // 4
            rows, columns = (int(n * part) // words for n in (rows, columns // products))
            return self.tasks, (ROWS, max(rows, ROWS)), (columns, columns), MANY
        if self.wide:
            panel = min(ONE_PASS.panel_bytes, self.l2_bytes // 2) // (size * products)
            return (TASKS, (ONE_PASS.min_rows, TSMM.rows), (TSMM.columns, ONE_PASS.columns), panel)
        return (TASKS, (TSMM.rows, TSMM.rows), (TSMM.columns, TSMM.columns), MANY)

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """Return the rows and columns of one task."""
        size = self.item.dtype.itemsize
        result_positions = product(phase.axes[a] for a in phase.axes if a in self.item.axes)
        m, n = (phase.axes[a] for a in (self.m, self.n))
        depth = self.summed(phase)
        if self.swapped:
            columns_per_task = small_m_columns(
                m, n, result_positions, self.tasks, SMALL_M_SWAPPED.columns
            )
            return {self.m: columns_per_task, self.n: UNPACKED.mc}
        if self.small_m:
            columns_per_task = small_m_columns(
                n, m, result_positions, self.tasks, self.tile.columns
            )
            max_columns = (
                SMALL_M.nc // (1 + len(self.others)) // self.tile.columns * self.tile.columns
            )
            return {
                self.m: UNPACKED.mc,
                self.n: minimum(columns_per_task, max(max_columns, self.tile.columns)),
            }
        if self.wide:
            rows, columns = (
                k_blocked_task(
                    m,
                    n,
                    result_positions,
                    size,
                    self.tile.columns,
                    self.tasks,
                    direct=self.direct,
                    roomy=self.large_blocks,
                    panels=self.prepacked,
                    products=1 + len(self.others),
                    long=self.issue_bound,
                    l2_bytes=self.l2_bytes,
                )
                if self.blocks_k
                else wide_blocks(
                    m, n, depth, result_positions, size, self.tile.columns, self.l2_bytes
                )
            )
            return {self.m: rows, self.n: columns}
        # 16 rather than 1, which is optimised away: sizes are assumed to be at least 1, but an
        # empty reduction has size 0.
        fitting = floordiv(TSMM.left_bytes // size, maximum(depth, 16))
        return {
            self.m: minimum(maximum(fitting, TSMM.staged_rows), TSMM.rows),
            self.n: TSMM.columns,
        }
