"""Plan GEMMs with fused epilogues: tall-skinny, wide, K-blocked and small-M.

A tall-skinny product (TSMM; many rows, few columns and reduced positions) is limited by memory, so
what counts is the overhead around its multiply-adds: packed blocks, sums that go through scratch,
loops over rows of a few elements.  Here some rows are taken at once, their sums stay in registers
over all of k, and what reads them is computed there, row by row, before it is stored; only the
small right operand is packed, once for each task:

    for 8 rows i:     for k:  sums[i] += left[i, k] * packed[k, n..]
                      for i:  y[i, n..] = f(sums[i], ..)

- *Panels*: more columns, and enough rows to pay for packing.  A task takes some of both; what it
  packs stays in L2, in panels as wide as a tile that are read from begin to end.
- *K-blocked*: the left operand has to be packed too, or too many positions are reduced for
  one pass.  A task takes the reduced positions block by block, with the sums in scratch.
- *Small M*: each panel is packed by the tile that multiplies it first
  (`smelt.codegen.llvm.products.fused_gemm_packing`).  If the right operand is contiguous along the
  reduction, the left one is packed, and operands are swapped
  (`smelt.codegen.llvm.products.small_m_swapped`).

Several products of the same rows and columns that are read together are taken together: the sums of
all but the last one are *kept* in scratch, those of some rows or of a whole task, and the epilogue
of the last one reads them there.

A plan has a form, a tile, blocks and arrays; `fused_gemm_plans` chooses those of a phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from smelt.codegen.llvm.loopir.items import Dot, Item, Load, Phase, Reduction
from smelt.codegen.llvm.loopir.rewrite import backward_slice, cost_of
from smelt.codegen.llvm.loopir.store_ranges import stored_range
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
    register_tile,
)
from smelt.codegen.llvm.schedule.contract import stored_axis
from smelt.codegen.llvm.schedule.operands import (
    is_prepacked,
    is_transposed_load,
    panel_step,
    plain_load,
)
from smelt.kernel.artifact import MANY
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
from smelt.machine.target import CACHE_SHARE, Target
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32, f64, i32
from smelt.types.expr import (
    Index,
    add,
    axes_of,
    coefficient,
    floordiv,
    maximum,
    minimum,
    mul,
    product,
)


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


# ---- which plans apply ---------------------------------------------------------------------------


TALL_TILE_ROWS = 8
"""Maximum rows of a tall tile: 16 sums fill two pipes twice, and a remainder is few single rows."""
MAX_EPILOGUE_CYCLES = 6.0
"""Maximum cycles for one vector of an epilogue that is unrolled for every row of a tile.

And of what each task of few rows recomputes of the left operand.
"""


def fused_gemm_plans(
    phase: Phase, target: Target, form: FusedVariant = "tall_skinny"
) -> tuple[FusedGemmPlan, ...]:
    """Plan the contractions of a phase if everything else in it is scalar operators.

    One, or several of the same rows and columns that do not read one another, the last of which all
    outputs depend on.  Empty otherwise.
    """
    dots = [i for i in phase.items if isinstance(i, Dot)]
    if (
        phase.regions()
        or phase.cut
        or phase.state_updates
        or len(dots) < sum(isinstance(i, Reduction) for i in phase.items)
    ):
        return ()
    plans = [_plan(phase, target, form, i, dots) for i in dots]
    complete = [c for c in plans if c is not None]
    several = len(dots) > 1
    if len(complete) != len(dots) or (several and not _have_same_axes(complete, phase)):
        return ()
    final = len(complete) - 1
    return (
        tuple(
            replace(
                c,
                others=tuple((o.item, o.k) for o in complete if o is not c),
                keeps_sums=n < final,
                stores_sums=c.stores_sums or n < final,
                dense=c.dense and n == final,
                leader=_leader(c, complete[:n]),
            )
            for n, c in enumerate(complete)
        )
        if several
        else tuple(complete)
    )


def _leader(c: FusedGemmPlan, before: list[FusedGemmPlan]) -> Item | None:
    """Return the first product that packs the rows of this one, while it needs them.

    K-blocked products take their blocks in turns then, which pays where packing dominates.
    """
    if not c.small_m and (c.direct or not c.issue_bound):
        return None
    return next((o.item for o in before if (o.rows, o.k) == (c.rows, c.k)), None)


def _have_same_axes(plans: list[FusedGemmPlan], phase: Phase) -> bool:
    """Return whether products have the same axes and type, and none depends on another."""
    first, dots = plans[0], {c.item for c in plans}
    independent = all(dots.isdisjoint(backward_slice(phase, [c.left, c.right], ())) for c in plans)
    return independent and all(
        (c.m, c.n, c.item.axes, c.item.dtype, c.swapped)
        == (first.m, first.n, first.item.axes, first.item.dtype, first.swapped)
        for c in plans
    )


def _tall_tile(target: Target, lanes: int) -> Tile:
    """Return the register tile for a right operand in L1: rows that a remainder repeats are few."""
    tile = register_tile(target, lanes)
    return replace(tile, rows=min(tile.rows, TALL_TILE_ROWS))


def _plan(
    phase: Phase, target: Target, form: FusedVariant, item: Dot, dots: Sequence[Reduction]
) -> FusedGemmPlan | None:
    """Plan one of the contractions of such a phase, or return None."""
    n = stored_axis(phase)
    left, right = item.args if n in item.args[1].axes else item.args[::-1]
    row_axes = [a for a in phase.axes if a in item.axes and a not in right.axes]
    if n not in right.axes or n in left.axes or len(item.over) != 1:
        return None
    if not row_axes or (form == "tall_skinny" and len(row_axes) > 1):
        return None
    m, (k,) = row_axes[-1], item.over
    grid, other_stores = {*phase.grid}, [s for s in phase.stores if s.axes != item.axes]
    conditional = [s for s in phase.stores if s.where]
    other_stores += [s for s in conditional if (r := stored_range(s)) is None or r.axis != n]
    if n is None or other_stores or not item.axes <= grid or k in grid:
        return None
    if item.dtype not in (f32, f64, i32):
        return None
    steps = [coefficient(s.access.offset, m) for s in phase.stores]
    wide, lanes = form != "tall_skinny", target.vector_bytes // item.dtype.itemsize
    # Panels come from L2, so that more rows reuse what is read of them.
    tile = register_tile(target, lanes) if wide else _tall_tile(target, lanes)
    swapped = (
        form == "small_m"
        and _is_contiguous_along_k(phase, right, n, k)
        and _has_steady_strides(phase, left, m, k)
    )
    swapped &= not conditional
    if item.axes - left.axes - {n}:  # a batch would pack the rows anew for each of its positions
        columns = phase.axes[n]
        swapped &= not isinstance(columns, int) or columns > TSMM.columns
    if swapped:
        left, right, m, n = right, left, n, m
    picked = _gathers_rows(left, item, (m, n, k), phase)
    direct = picked or is_strided(left, item, (m, k), phase)
    if form == "small_m" and (picked or not swapped):
        # A copy has a constant row pitch, which leaves registers to the tile.
        direct = picked = False
    if form == "k_blocked" or swapped:
        direct = direct and isinstance(left, Load) and coefficient(left.access.offset, k) == 1
    copied = form == "k_blocked" and direct and not _fits_cache(left, m, item, tile.rows, target)
    if copied:
        direct = picked = False
    plan_form: FusedForm = "small_m_swapped" if swapped else form
    deep = plan_form in ("k_blocked", "small_m")
    panels = form == "k_blocked" and _is_prepacked(right, item, (k, n), tile.columns, phase)
    return FusedGemmPlan(
        item,
        left,
        right,
        m,
        n,
        k,
        tile,
        plan_form,
        direct=direct,
        gathers_rows=picked,
        prepacked=panels,
        large_blocks=form == "k_blocked" and direct and not panels and has_large_cache(target),
        dense=not wide and not conditional and all(s == phase.axes[n] for s in steps),
        stores_sums=cost_of(epilogue_items(phase, dots)) > MAX_EPILOGUE_CYCLES,
        tasks=target.gemm_tasks,
        l2_bytes=target.l2_bytes,
        issue_bound=form == "k_blocked" and target.is_issue_bound,
        copies_left=copied,
        packs_transposed=deep
        and not direct
        and any(is_transposed_load(i, k, m, lanes) for i in backward_slice(phase, [left], ())),
    )


def epilogue_items(phase: Phase, products: Collection[Item]) -> list[Item]:
    """Return what the outputs depend on, in order, from some products on: the epilogue."""
    roots = [s.value for s in phase.stores]
    roots += [phase.positions[name] for s in phase.stores for name in s.access.positions]
    return backward_slice(phase, roots, products)


def has_large_cache(target: Target) -> bool:
    """Return whether L2 holds the panels and sums of larger blocks."""
    return CACHE_SHARE * target.l2_bytes >= 4 * LEFT_IN_PLACE.nc * (
        LEFT_IN_PLACE.kc + LEFT_IN_PLACE.mc
    )


def is_strided(left: Item, item: Dot, axes: tuple[str, str], phase: Phase) -> bool:
    """Return whether an operand is a plain load with fixed strides."""
    if not isinstance(left, Load) or plain_load(left) is None:
        return False
    access = left.access
    if access.positions or phase.dtypes[access.buffer] != item.dtype:
        return False
    steps = [coefficient(access.offset, a) for a in axes]
    return all(s is not None and not axes_of(s) for s in steps)


def _is_prepacked(right: Item, item: Dot, axes: tuple[str, str], width: int, phase: Phase) -> bool:
    """Return whether an operand is in panels exactly as wide as a tile."""
    access = plain_load(right)
    if access is None or not is_prepacked(right, item, None, axes, width, phase):
        return False
    return panel_step(access, axes[0], 1) == width


def _fits_cache(left: Item, m: str, item: Dot, rows: int, target: Target) -> bool:
    """Return whether L1 holds a tile's rows of an operand in place."""
    pitch = coefficient(left.access.offset, m) if isinstance(left, Load) else None
    pitch_bytes = pitch * item.dtype.itemsize if isinstance(pitch, int) and pitch else None
    return target.fits_l1_sets(rows, pitch_bytes)


def _gathers_rows(left: Item, item: Dot, axes: tuple[str, str, str], phase: Phase) -> bool:
    """Return whether an operand is contiguous rows of an array at cheap computed positions."""
    if not isinstance(left, Load) or left.access.limits:
        return False
    access, (_, n, k) = left.access, axes
    positions = [phase.positions[name] for name in access.positions]
    is_contiguous = (
        all({n, k}.isdisjoint(i.axes) for i in positions) and coefficient(access.offset, k) == 1
    )
    slice_items = backward_slice(phase, positions, ())
    is_cheap = (
        is_contiguous
        and not any(isinstance(i, Reduction) for i in slice_items)
        and cost_of(slice_items) <= MAX_EPILOGUE_CYCLES
    )
    return bool(positions) and is_cheap and phase.dtypes[access.buffer] == item.dtype


def _is_contiguous_along_k(phase: Phase, x: Item, n: str, k: str) -> bool:
    """Return whether all loads of an operand are contiguous along the reduction.

    Loads without both k and the column axis `n` do not matter.
    """
    loads = [i for i in backward_slice(phase, [x], ()) if isinstance(i, Load) and {n, k} <= i.axes]
    return bool(loads) and all(is_transposed_load(i, n, k) for i in loads)


def _has_steady_strides(phase: Phase, x: Item, m: str, k: str) -> bool:
    """Return whether all loads of an operand have strides along m or k.

    Otherwise each lane of a panel would gather its own element.
    """
    loads = [i for i in backward_slice(phase, [x], ()) if {m, k} <= i.axes]
    offsets = [i.access.offset for i in loads if isinstance(i, Load)]
    return all(any(coefficient(e, a) is not None for a in (m, k)) for e in offsets)
