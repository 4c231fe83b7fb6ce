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
  (`smelt.codegen.llvm.products.small_m`).  If the right operand is contiguous along the reduction,
  the left one is packed, and operands are swapped (`smelt.codegen.llvm.products.small_m_swapped`).

Several products of the same rows and columns that are read together are taken together: the sums of
all but the last one are *kept* in scratch, those of some rows or of a whole task, and the epilogue
of the last one reads them there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from smelt.blocks import (
    DEEP,
    DEEP_COLUMNS,
    DEEP_EVEN,
    DEEP_PITCH,
    DEEP_ROWS,
    FEW_ACROSS,
    FEW_DEEP,
    FEW_PITCH,
    L2_BYTES,
    LONG_COLUMNS,
    LONG_DEEP,
    LONG_PITCH,
    LONG_ROWS,
    LONG_SUM,
    PANEL_COLUMNS,
    PANEL_ROWS,
    ROOMY_COLUMNS,
    ROOMY_DEPTH,
    ROOMY_ROWS,
    ROWS,
    SMALL,
    SWAPPED_COLUMNS,
    SWAPPED_PACKED_BYTES,
    SWAPPED_PITCH,
    TALL_BYTES,
    TALL_COLUMNS,
    TALL_DEPTH,
    TALL_ROWS,
    TALL_SINGLE,
    TALL_STAGED,
    THIN,
    TRANSPOSED_LEFT_ELEMENTS,
    WIDE_COLUMNS,
    WIDE_DEPTH,
    WIDE_PANEL,
    WIDE_STAGED,
    ceiling,
    even_block,
    wide_blocks,
)
from smelt.codegen.llvm.instructions.dot_product import choose_dot_instruction
from smelt.codegen.llvm.loopir.clone import REDUCTION_KINDS
from smelt.codegen.llvm.loopir.items import Access, Item, Phase, Reduction
from smelt.codegen.llvm.loopir.store_ranges import stored_range
from smelt.codegen.llvm.schedule.backward_slice import backward_slice, cost_of
from smelt.codegen.llvm.schedule.contract import stored_axis
from smelt.codegen.llvm.schedule.operands import (
    is_prepacked,
    is_transposed_load,
    panel_step,
    plain_load,
)
from smelt.codegen.llvm.schedule.plan_notes import IN_PLACE, PlanNotes, packed_panels
from smelt.codegen.llvm.schedule.product_plan import (
    LEFT_PART,
    OUTPUT_STAGE_PART,
    RIGHT_PART,
    SUMS_PART,
    Driver,
    PlainPacking,
    ScratchArray,
    tile_cycles,
)
from smelt.codegen.llvm.schedule.register_tile import Tile, register_tile
from smelt.dataclass import dataclass
from smelt.kernel.artifact import SizeLimits, Variant
from smelt.target import CACHE_SHARE, Target
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, f32, f64, i32
from smelt.types.expr import Index, add, axes_of, floordiv, maximum, minimum, mul, product, sub


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
    words, max_rows, max_columns = itemsize // 4, DEEP_ROWS * (2 if direct else 1), DEEP_COLUMNS
    if roomy or panels:
        max_rows, max_columns = (
            (PANEL_ROWS, PANEL_COLUMNS) if panels else (ROOMY_ROWS, ROOMY_COLUMNS)
        )
    # Blocks of both operands and of the sums grow with the product of two sides.
    part = min(1.0, l2_bytes / L2_BYTES) ** 0.5
    max_rows, max_columns = int(max_rows * part), int(max_columns * part)
    fitting: Index = max(max_columns // (words * products), tile)
    if long and not (direct and panels):
        # Packed blocks are shared, as long as enough tasks are left.
        max_rows = max(max_rows, LONG_ROWS)
        limit = max(LONG_COLUMNS // (words * products), tile)
        fitting = maximum(fitting, minimum(limit, floordiv(positions, tasks * ROWS)))
    task_columns = mul(tile, ceiling(even_block(columns, ceiling(columns, fitting)), tile))
    limit = max(max_rows // words // DEEP_EVEN * DEEP_EVEN, DEEP_EVEN)
    task_rows = minimum(limit, maximum(floordiv(positions, mul(tasks, task_columns)), ROWS))
    blocks = ceiling(rows, task_rows)
    return mul(DEEP_EVEN, ceiling(even_block(rows, blocks), DEEP_EVEN)), task_columns


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


MIN_PANEL_ROWS = 49
"""Rows from which packing short contiguous rows of the right operand in panels beats reading them
in place.

In place, the last vector of each row is partial.
"""
MAX_TRANSPOSED_K_RATIO = 3
"""Largest ratio of reduced positions to rows for which the right operand is transposed.

Beyond it, the operands are swapped, which takes the sums through scratch.
"""
MAX_SWAPPED_ROWS = 96
"""Most rows of several products whose operands are swapped."""
TALL_TILE_ROWS = 8
"""Most rows of a tall tile: 16 sums fill two pipes twice, and a remainder is few single rows."""
MAX_EPILOGUE_CYCLES = 6.0
"""Most cycles for one vector of an epilogue that is unrolled for every row of a tile.

And of what each task of few rows recomputes of the left operand.
"""


@dataclass(frozen=True, slots=True)
class TallSkinnyPlan(PlainPacking):
    """Plan of a GEMM with fused epilogue: its operands, its axes, and its tile."""

    item: Item
    left: Item
    right: Item
    m: str
    n: str
    k: str
    tile: Tile
    direct: bool
    """Whether the left operand is multiplied in place."""
    gathers_rows: bool
    """Whether the rows of a left operand in place are gathered by computed positions."""
    dense: bool
    """Whether every output's rows are contiguous without gaps, and complete in one task."""
    stores_sums: bool
    """Whether sums go to scratch before they are read."""
    wide: bool = False
    """Whether a task takes only some of the columns, whose operand it packs in panels of a tile."""
    k_blocked: bool = False
    """Whether a task takes the reduced positions block by block, with the sums in scratch."""
    small_m: bool = False
    """Whether all rows are taken panel by panel, too few to pack panels beforehand."""
    packs_transposed: bool = False
    """Whether the left operand is packed by vectors across its rows."""
    prepacked: bool = False
    """Whether the right operand is prepacked in panels as wide as the tile: at [n//w, k, n%w]."""
    large_blocks: bool = False
    """Whether a K-blocked plan that packs only the right operand takes larger blocks, which fit
    L2."""
    swapped: bool = False
    """Whether the operands of a small-M plan are swapped: `m` is the axis of the result's
    columns."""
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
    def by_tiles(self) -> bool:
        """Whether each tile's rows are packed just before it, not all in advance."""
        return self.issue_bound and not (self.direct or self.packs_transposed or self.others)

    @property
    def depth(self) -> int:
        """Reduced positions of one K block."""
        if self.small_m:
            return FEW_DEEP
        return ROOMY_DEPTH if self.large_blocks else LONG_DEEP if self.issue_bound else DEEP

    @property
    def pitch(self) -> int:
        """Elements between packed rows of a K block."""
        return FEW_PITCH if self.small_m else LONG_PITCH if self.issue_bound else DEEP_PITCH

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
        if self.k_blocked:
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
    def unit(self) -> DType:
        """The element type of packed operands in scratch."""
        return self.item.dtype

    @property
    def reads_past_end(self) -> bool:
        """False: what tiles read behind the last column is cleared panel by panel."""
        return False

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axis of the result's rows."""
        return (self.m,)

    @property
    def driver(self) -> Driver:
        """The loops around its register tiles."""
        if self.small_m:
            return "small_m_swapped" if self.swapped else "small_m"
        return "k_blocked" if self.k_blocked else "tall_skinny"

    @property
    def result_axis(self) -> str:
        """The axis along which the result is contiguous in scratch."""
        return self.n

    @property
    def rows_per_pass(self) -> int:
        """Rows that are taken together."""
        whole_tiles = TALL_STAGED // self.tile.rows * self.tile.rows
        return SMALL if self.small_m else WIDE_STAGED if self.wide else whole_tiles

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

    def cycles(self, points: Index, rows: Index) -> Index:
        """Return the cycles of so many multiply-adds."""
        return tile_cycles(points, self.tile)

    def scratch_extent(self, axis: str, local: dict[str, Index]) -> Index:
        """Return the scratch extent along an axis of the result: a task's positions."""
        return local[axis]

    def arrays(self, phase: Phase, local: dict[str, Index]) -> Iterator[ScratchArray]:
        """Yield the arrays in scratch: packed operands, sums, rows that wait for their output."""
        m, n, k = (local[a] for a in (self.m, self.n, self.k))
        tile, dtype, packs_rows = self.tile, self.item.dtype, self.leader is None
        overhang = tile.lanes * tile.columns  # transposed tiles may reach so far
        if self.k_blocked:
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
            yield ScratchArray(SUMS_PART, mul(rows, SWAPPED_PITCH), dtype)
        else:
            yield from self._one_pass_arrays(phase, n, overhang)

    def _one_pass_arrays(self, phase: Phase, n: Index, overhang: int) -> Iterator[ScratchArray]:
        """Yield the arrays of a product whose sums stay in registers over all of k."""
        dtype, rows = self.item.dtype, self.rows_per_pass
        wide_panel = WIDE_PANEL // dtype.itemsize + overhang
        panel = wide_panel if self.wide else TALL_DEPTH * TALL_COLUMNS
        yield ScratchArray(RIGHT_PART, panel, dtype)
        if not self.direct:
            yield ScratchArray(LEFT_PART, rows * TALL_DEPTH, dtype)
        if self.stores_sums:
            columns = add(n, self.tile.columns) if self.wide else TALL_COLUMNS
            yield ScratchArray(SUMS_PART, mul(rows, columns), dtype)
        for j, s in enumerate(phase.stores if self.dense else ()):
            yield ScratchArray(OUTPUT_STAGE_PART + j, rows * TALL_COLUMNS, s.value.dtype)

    def summed(self, phase: Phase) -> Index:
        """Return the reduced positions of all products."""
        positions = phase.axes[self.k]
        for _, k in self.others:
            positions = add(positions, phase.axes[k])
        return positions

    def blocks(self, phase: Phase) -> dict[str, Index]:
        """Return the rows and columns of one task."""
        size = self.item.dtype.itemsize
        result_positions = product(phase.axes[a] for a in phase.axes if a in self.item.axes)
        m, n = (phase.axes[a] for a in (self.m, self.n))
        depth = self.summed(phase)
        if self.swapped:
            columns_per_task = small_m_columns(m, n, result_positions, self.tasks, SWAPPED_COLUMNS)
            return {self.m: columns_per_task, self.n: SMALL}
        if self.small_m:
            columns_per_task = small_m_columns(
                n, m, result_positions, self.tasks, self.tile.columns
            )
            max_columns = (
                FEW_ACROSS // (1 + len(self.others)) // self.tile.columns * self.tile.columns
            )
            return {
                self.m: SMALL,
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
                if self.k_blocked
                else wide_blocks(
                    m, n, depth, result_positions, size, self.tile.columns, self.l2_bytes
                )
            )
            return {self.m: rows, self.n: columns}
        # 16 rather than 1, which is optimised away: sizes are assumed to be at least 1, but an
        # empty reduction has size 0.
        fitting = floordiv(TALL_BYTES // size, maximum(depth, 16))
        return {self.m: minimum(maximum(fitting, TALL_STAGED), TALL_ROWS), self.n: TALL_COLUMNS}


def tall_skinny_plans(
    phase: Phase, target: Target, form: Variant = "tall_skinny"
) -> tuple[TallSkinnyPlan, ...]:
    """Plan the contractions of a phase if everything else in it is scalar operators.

    One, or several of the same rows and columns that do not read one another, the last of which all
    outputs depend on.  Empty otherwise.
    """
    dots = [i for i in phase.items if i.kind in REDUCTION_KINDS]
    if (
        phase.regions()
        or phase.cut
        or phase.state_updates
        or not all(i.kind == "dot" for i in dots)
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


def _leader(c: TallSkinnyPlan, before: list[TallSkinnyPlan]) -> Item | None:
    """Return the first product that packs the rows of this one, while it needs them.

    K-blocked products take their blocks in turns then, which pays where packing dominates.
    """
    if not c.small_m and (c.direct or not c.issue_bound):
        return None
    return next((o.item for o in before if (o.rows, o.k) == (c.rows, c.k)), None)


def _have_same_axes(plans: list[TallSkinnyPlan], phase: Phase) -> bool:
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
    phase: Phase, target: Target, form: Variant, item: Item, dots: list[Item]
) -> TallSkinnyPlan | None:
    """Plan one of the contractions of such a phase, or return None."""
    n = stored_axis(phase)
    assert isinstance(item.payload, Reduction)
    left, right = item.args if n in item.args[1].axes else item.args[::-1]
    row_axes = [a for a in phase.axes if a in item.axes and a not in right.axes]
    if n not in right.axes or n in left.axes or len(item.payload.over) != 1:
        return None
    if not row_axes or (form == "tall_skinny" and len(row_axes) > 1):
        return None
    m, (k,) = row_axes[-1], item.payload.over
    grid, other_stores = {*phase.grid}, [s for s in phase.stores if s.axes != item.axes]
    conditional = [s for s in phase.stores if s.where]
    other_stores += [s for s in conditional if (r := stored_range(s)) is None or r.axis != n]
    if n is None or other_stores or not item.axes <= grid or k in grid:
        return None
    if item.dtype not in (f32, f64, i32):
        return None
    steps = [coefficient(s.access.offset, m) for s in phase.stores]
    wide, lanes = (
        form in ("panels", "k_blocked", "small_m"),
        target.vector_bytes // item.dtype.itemsize,
    )
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
        swapped &= not isinstance(columns, int) or columns > TALL_COLUMNS
    if swapped:
        left, right, m, n = right, left, n, m
    access, picked = left.payload, _gathers_rows(left, item, (m, n, k), phase)
    direct = picked or _is_strided(left, item, (m, k), phase)
    if form == "small_m" and (picked or not swapped):
        # A copy has a constant row pitch, which leaves registers to the tile.
        direct = picked = False
    if form == "k_blocked" or swapped:
        direct = direct and isinstance(access, Access) and coefficient(access.offset, k) == 1
    copied = form == "k_blocked" and direct and not _fits_cache(left, m, item, tile.rows, target)
    if copied:
        direct = picked = False
    deep = form == "k_blocked" or (form == "small_m" and not swapped)
    panels = form == "k_blocked" and _is_prepacked(right, item, (k, n), tile.columns, phase)
    return TallSkinnyPlan(
        item,
        left,
        right,
        m,
        n,
        k,
        tile,
        direct=direct,
        gathers_rows=picked,
        wide=wide,
        swapped=swapped,
        prepacked=panels,
        large_blocks=form == "k_blocked" and direct and not panels and _has_large_cache(target),
        dense=not wide and not conditional and all(s == phase.axes[n] for s in steps),
        stores_sums=cost_of(epilogue_items(phase, dots)) > MAX_EPILOGUE_CYCLES,
        k_blocked=deep,
        small_m=form == "small_m",
        tasks=target.gemm_tasks,
        l2_bytes=target.l2_bytes,
        issue_bound=form == "k_blocked" and target.is_issue_bound,
        copies_left=copied,
        packs_transposed=deep
        and not direct
        and any(is_transposed_load(i, k, m, lanes) for i in backward_slice(phase, [left], ())),
    )


def tall_variants(phase: Phase, target: Target) -> Iterator[tuple[Variant, SizeLimits]]:
    """Yield the variant for few columns and reduced positions, if the phase allows it.

    For fewer rows operands are multiplied in place.
    """
    plans = tall_skinny_plans(phase, target)
    if not plans:
        return
    m, n, k = phase.axes[plans[0].m], phase.axes[plans[0].n], plans[0].summed(phase)
    grouped = _uses_groups(plans, phase, target)
    # Partial vectors cost nothing only where there are mask registers.
    max_gemv_rows = SMALL if target.facts.has_mask_registers and not grouped else THIN
    limits = (
        (n, TALL_COLUMNS),
        (k, TALL_SINGLE if grouped else TALL_DEPTH),
        (sub(max_gemv_rows + 1, m), 0),
    )
    if _is_satisfiable(limits):
        yield "tall_skinny", limits


def small_m_variants(phase: Phase, target: Target) -> Iterator[tuple[Variant, SizeLimits]]:
    """Yield the variant for few rows, whose right operand is packed on first use."""
    plans = tall_skinny_plans(phase, target, "small_m")
    if not plans or _uses_groups(plans, phase, target):
        return
    first = plans[0]
    m, n = (phase.axes[a] for a in (first.m, first.n))
    if first.swapped:
        m, n = n, m
        packed_elements = mul(m, _packed_positions(plans, phase))
        k_limits: SizeLimits = (
            (packed_elements, SWAPPED_PACKED_BYTES // first.item.dtype.itemsize),
        )
    else:
        # For longer sums there would be more blocks than positions in a block.
        k_limits = tuple(dict.fromkeys((phase.axes[c.k], LONG_SUM) for c in plans))
    # Every task recomputes the rows.
    cheap = cost_of(backward_slice(phase, [c.rows for c in plans], ())) <= MAX_EPILOGUE_CYCLES
    panel = max(THIN + 1, first.tile.columns)
    rows = MAX_SWAPPED_ROWS if first.swapped and len(plans) > 1 else SMALL
    limits = (m, rows), (sub(THIN + 1, m), 0), (sub(panel, n), 0), *k_limits
    if _is_satisfiable(limits) and cheap:
        yield "small_m", limits


def _packed_positions(plans: Collection[TallSkinnyPlan], phase: Phase) -> Index:
    """Return the reduced positions of the operands that some products pack for a row."""
    positions: Index = 0
    for c in plans:
        positions = add(positions, phase.axes[c.k] if c.leader is None else 0)
    return positions


def wide_variants(phase: Phase, target: Target) -> Iterator[tuple[Variant, SizeLimits]]:
    """Yield the variants of a GEMM for more columns or longer sums.

    They pack the right operand for many rows.  "panels": one pass over all reduced positions, if
    the left operand's rows are multiplied in place; else, for many columns, "k_blocked".
    """
    plans = tall_skinny_plans(phase, target, "k_blocked")
    if not plans or _uses_groups(plans, phase, target):
        return
    m, n = phase.axes[plans[0].m], phase.axes[plans[0].n]
    rows, columns = (sub(SMALL + 1, m), 0), (sub(TALL_COLUMNS + 1, n), 0)
    wide_limits = (rows, (sub(WIDE_COLUMNS, n), 0), *_one_pass_limits(plans, phase))
    if _has_large_cache(target):  # one pass only if panels stay in L1
        line = plans[0].tile.columns * plans[0].item.dtype.itemsize
        wide_limits = *wide_limits, (plans[0].summed(phase), target.l1_bytes // line)
    is_wide = (
        _is_satisfiable(wide_limits)
        and _are_left_in_place(plans, phase)
        and not any(c.prepacked for c in plans)
    )
    variants: list[tuple[Variant, SizeLimits]] = [("panels", wide_limits)] if is_wide else []
    if _is_satisfiable((rows, columns)):
        variants.append(("k_blocked", (rows, columns)))
    # If rows of a tile may conflict in the L1 cache, packing copies of them is better.
    yield from variants if target.l1_ways >= plans[0].tile.rows else reversed(variants)


def _has_large_cache(target: Target) -> bool:
    """Return whether L2 holds the panels and sums of larger blocks."""
    return CACHE_SHARE * target.l2_bytes >= 4 * ROOMY_COLUMNS * (ROOMY_DEPTH + ROOMY_ROWS)


def panel_variants(phase: Phase, target: Target) -> Iterator[tuple[Variant, SizeLimits]]:
    """Yield the wide variant for fewer rows, where other variants are no better.

    These would pack the right operand too, or do worse: for a right operand that is computed, that
    is transposed for sums that are not long, or whose rows are short where there are more than few
    rows.  If the left operand is packed too, yield the tall variant.
    """
    plans = tall_skinny_plans(phase, target, "panels")
    if len(plans) != 1 or _uses_groups(plans, phase, target):
        return
    (plan,) = plans
    m, n, k = (phase.axes[a] for a in (plan.m, plan.n, plan.k))
    limits = (m, SMALL), (sub(THIN + 1, m), 0), (sub(THIN + 1, n), 0)
    if not _are_left_in_place(plans, phase):
        limits = *limits, (n, TALL_COLUMNS), (k, TALL_DEPTH)
        if (
            plan.right_pitch() is None
            and _is_satisfiable(limits)
            and tall_skinny_plans(phase, target)
        ):
            yield "tall_skinny", limits
        return
    limits = *limits, *_one_pass_limits(plans, phase)
    if plan.right_pitch() is not None:
        limits = *limits, (sub(MIN_PANEL_ROWS, m), 0), (n, TALL_COLUMNS)
    elif is_transposed_load(plan.right, plan.n, plan.k):
        limits = *limits, (sub(k, mul(MAX_TRANSPOSED_K_RATIO, m)), 0)
    if _is_satisfiable(limits):
        yield "panels", limits


def _one_pass_limits(plans: Collection[TallSkinnyPlan], phase: Phase) -> SizeLimits:
    """Return the limits for reduced positions, and rows times these, of one pass."""
    (first, *_), m = plans, phase.axes[next(iter(plans)).m]
    elements = (mul(m, phase.axes[c.k]) for c in plans if not (c.direct or c.copies_left))
    return (first.summed(phase), WIDE_DEPTH), *(
        (e, TRANSPOSED_LEFT_ELEMENTS) for e in dict.fromkeys(elements)
    )


def _are_left_in_place(plans: Collection[TallSkinnyPlan], phase: Phase) -> bool:
    """Return whether the rows of all left operands can be multiplied in place."""
    return all(
        c.gathers_rows or c.copies_left or _is_strided(c.left, c.item, (c.m, c.k), phase)
        for c in plans
    )


def _uses_groups(plans: tuple[TallSkinnyPlan, ...], phase: Phase, target: Target) -> bool:
    """Return whether factors are packed in groups, or matrix instructions are used."""
    return any(
        choose_dot_instruction(c.item, c.left, c.right, phase.dtypes, target, matrices=True)
        is not None
        for c in plans
    )


def _is_satisfiable(limits: SizeLimits) -> bool:
    """Return whether any sizes are within some limits."""
    return not any(isinstance(e, int) and e > most for e, most in limits)


def epilogue_items(phase: Phase, products: Collection[Item]) -> list[Item]:
    """Return what the outputs depend on, in order, from some products on: the epilogue."""
    roots = [s.value for s in phase.stores]
    roots += [phase.positions[name] for s in phase.stores for name in s.access.positions]
    return backward_slice(phase, roots, products)


def _is_strided(left: Item, item: Item, axes: tuple[str, str], phase: Phase) -> bool:
    """Return whether an operand is a plain load with fixed strides."""
    access = left.payload
    if left.kind != "load" or not isinstance(access, Access) or plain_load(left) is None:
        return False
    if access.positions or phase.dtypes[access.buffer] != item.dtype:
        return False
    steps = [coefficient(access.offset, a) for a in axes]
    return all(s is not None and not axes_of(s) for s in steps)


def _is_prepacked(right: Item, item: Item, axes: tuple[str, str], width: int, phase: Phase) -> bool:
    """Return whether an operand is in panels exactly as wide as a tile."""
    access = plain_load(right)
    if access is None or not is_prepacked(right, item, None, axes, width, phase):
        return False
    return panel_step(access, axes[0], 1) == width


def _fits_cache(left: Item, m: str, item: Item, rows: int, target: Target) -> bool:
    """Return whether L1 holds a tile's rows of an operand in place."""
    access = left.payload
    pitch = coefficient(access.offset, m) if isinstance(access, Access) else None
    pitch_bytes = pitch * item.dtype.itemsize if isinstance(pitch, int) and pitch else None
    return target.fits_l1_sets(rows, pitch_bytes)


def _gathers_rows(left: Item, item: Item, axes: tuple[str, str, str], phase: Phase) -> bool:
    """Return whether an operand is contiguous rows of an array at cheap computed positions."""
    access, (_, n, k) = left.payload, axes
    if left.kind != "load" or not isinstance(access, Access) or access.limits:
        return False
    positions = [phase.positions[name] for name in access.positions]
    is_contiguous = (
        all({n, k}.isdisjoint(i.axes) for i in positions) and coefficient(access.offset, k) == 1
    )
    slice_items = backward_slice(phase, positions, ())
    is_cheap = (
        is_contiguous
        and not any(i.kind in REDUCTION_KINDS for i in slice_items)
        and cost_of(slice_items) <= MAX_EPILOGUE_CYCLES
    )
    return bool(positions) and is_cheap and phase.dtypes[access.buffer] == item.dtype


def _is_contiguous_along_k(phase: Phase, x: Item, n: str, k: str) -> bool:
    """Return whether all loads of an operand are contiguous along the reduction.

    Loads without both k and the column axis `n` do not matter.
    """
    loads = [i for i in backward_slice(phase, [x], ()) if i.kind == "load" and {n, k} <= i.axes]
    return bool(loads) and all(is_transposed_load(i, n, k) for i in loads)


def _has_steady_strides(phase: Phase, x: Item, m: str, k: str) -> bool:
    """Return whether all loads of an operand have strides along m or k.

    Otherwise each lane of a panel would gather its own element.
    """
    loads = [i for i in backward_slice(phase, [x], ()) if {m, k} <= i.axes]
    offsets = [i.payload.offset for i in loads if isinstance(i.payload, Access)]
    return all(any(coefficient(e, a) is not None for a in (m, k)) for e in offsets)
