"""List the variants of products, and what each costs: sizes where it is possible, and its work.

Each plan answers the same quantities (`smelt.kernel.artifact`): its tiles, what it packs and
for how many rows, and where its sums wait; predicted cycles choose the variant that a call takes.
The rates below are sixteenths of a cycle for a cache line.  They serve all plans and machines, but
come from one processor, with vectors of 32 and of 64 bytes: where another one differs in a rate,
its choice may be a few percent from the best.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import chain

from smelt.codegen.llvm.instructions.dot_product import choose_dot_instruction
from smelt.codegen.llvm.loopir.items import Item, Phase
from smelt.codegen.llvm.loopir.rewrite import backward_slice, cost_of
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.product_plan import tile_heights
from smelt.codegen.llvm.schedule.contract import is_satisfiable
from smelt.codegen.llvm.schedule.fused_gemm import (
    FusedGemmPlan,
    FusedVariant,
    epilogue_items,
    fused_gemm_plans,
    has_large_cache,
    is_strided,
)
from smelt.codegen.llvm.schedule.operands import is_transposed_load, plain_load
from smelt.kernel.artifact import LINE, PACK, SCRATCH, UNITS, Candidate, ProductCost, SizeLimits
from smelt.machine.blocks import (
    COLUMNS,
    DEPTH,
    GEMV,
    HEIGHT,
    LONG_SUM,
    ONE_PASS,
    ROW_BYTES,
    ROWS,
    SMALL_M_SWAPPED,
    TASKS,
    TSMM,
    UNPACKED,
)
from smelt.machine.target import CACHE_SHARE, Target
from smelt.types.expr import Index, add, axes_of, coefficient, mul, product, sizes_of, sub

FORMS: tuple[FusedVariant, ...] = ("tall_skinny", "panels", "small_m", "k_blocked")


def few_column_variants(phase: Phase, target: Target) -> Iterator[Candidate]:
    """Yield the variant for few columns and reduced positions, if the phase allows it.

    For fewer rows operands are multiplied in place.  It serves more columns where dot-product
    instructions would pack operands in groups for a few reduced positions.
    """
    plans = fused_gemm_plans(phase, target)
    if not plans:
        return
    m, n, k = phase.axes[plans[0].m], phase.axes[plans[0].n], plans[0].summed(phase)
    grouped = _uses_groups(plans, phase, target)
    # Partial vectors cost nothing only where there are mask registers.
    max_gemv_rows = UNPACKED.mc if target.facts.has_mask_registers and not grouped else GEMV.rows
    limits = (
        (n, TSMM.columns if grouped else GEMV.rows),
        (k, TSMM.dot_depth if grouped else TSMM.depth),
        (sub(max_gemv_rows + 1, m), 0),
    )
    if is_satisfiable(limits):
        yield Candidate("tall_skinny", limits)


def fused_variants(phase: Phase, target: Target) -> Iterator[Candidate]:
    """Yield the variants that are possible for more rows and columns, with what each costs."""
    for form in FORMS:
        plans = fused_gemm_plans(phase, target, form)
        if not plans or _uses_groups(plans, phase, target):
            continue
        first = plans[0]
        m, n = (phase.axes[a] for a in (first.m, first.n))
        limits = (
            (sub(GEMV.rows + 1, m), 0),
            (sub(GEMV.rows + 1, n), 0),
            *_limits(form, plans, phase, target),
        )
        if form == "panels" and any(c.prepacked for c in plans):
            continue
        if is_satisfiable(limits):
            costs = tuple(fused_gemm_cost(c, phase, target) for c in plans)
            yield Candidate(form, limits, costs)


def _limits(
    form: FusedVariant, plans: Collection[FusedGemmPlan], phase: Phase, target: Target
) -> SizeLimits:
    """Return the sizes for which the code of a variant is right and has room."""
    first, *_ = plans
    m, n, depth = phase.axes[first.m], phase.axes[first.n], first.summed(phase)
    if form == "tall_skinny":
        return (n, TSMM.columns), (depth, TSMM.depth)
    if form == "panels":
        most = ONE_PASS.depth if _are_left_in_place(plans, phase) else TSMM.depth
        if has_large_cache(target):  # one pass only if panels stay in L1
            most = min(most, target.l1_bytes // (first.tile.columns * first.item.dtype.itemsize))
        return ((depth, most),)
    if form == "k_blocked":
        prepacked = any(c.prepacked for c in plans)
        return ((sub(UNPACKED.mc + 1, m), 0), (sub(TSMM.columns + 1, n), 0)) if prepacked else ()
    if first.swapped:
        packed = mul(n, _packed_positions(plans, phase))
        return (n, UNPACKED.mc), (packed, SMALL_M_SWAPPED.packed_bytes // first.item.dtype.itemsize)
    # For longer sums there would be more blocks than positions in a block.
    k_limits = dict.fromkeys((phase.axes[c.k], LONG_SUM) for c in plans)
    return (m, UNPACKED.mc), (sub(first.tile.columns, n), 0), *k_limits


def _packed_positions(plans: Collection[FusedGemmPlan], phase: Phase) -> Index:
    """Return the reduced positions of the operands that some products pack for a row."""
    positions: Index = 0
    for c in plans:
        positions = add(positions, phase.axes[c.k] if c.leader is None else 0)
    return positions


def _are_left_in_place(plans: Collection[FusedGemmPlan], phase: Phase) -> bool:
    """Return whether the rows of all left operands can be multiplied in place."""
    return all(
        c.gathers_rows or c.copies_left or is_strided(c.left, c.item, (c.m, c.k), phase)
        for c in plans
    )


def _uses_groups(plans: tuple[FusedGemmPlan, ...], phase: Phase, target: Target) -> bool:
    """Return whether factors are packed in groups, or matrix instructions are used."""
    return any(
        choose_dot_instruction(c.item, c.left, c.right, phase.dtypes, target, matrices=True)
        is not None
        for c in plans
    )


TRANSPOSE, PACK_ROWS = 67, 80
"""Packing lines of a right operand that is contiguous along k, by transposes, and of the left one.
"""
PACK_ON_USE = 8
"""The same by the tile that multiplies the line first, which loads it anyway."""
SWAPPED_SUMS = 96
"""Sums that go through scratch to the epilogue and are transposed on their way."""
ROW_EPILOGUE = 80
"""What a long epilogue costs more, for each vector, row by row of a tile than in a loop of its own.
"""
START = {"tall_skinny": 500, "panels": 500, "k_blocked": 800, "small_m": 1200}
"""Cycles of what precedes the loops over tiles, besides that of a contraction."""
FAR_LEFT, FAR_LEFT_BLOCKS = 48, 160
"""Reading rows from L3 by a pass over k, and block by block."""
FAR_RUN, FAR_RESULTS = 160, 208
"""A run of a row that is packed from L3, and a line of results that tiles store there."""
FAR_RIGHT, FAR_RIGHT_BLOCKS = 60, 160
"""A line that is packed from L3, and one of a contraction, which prefetches none of the next block.
"""
UNPACKED_PANELS = 4
"""Right operands whose rows are at most this many panels long are not packed."""


def fused_gemm_cost(c: FusedGemmPlan, phase: Phase, target: Target) -> ProductCost:
    """Return what one of the products of a fused GEMM does."""
    dots = [c.item, *(i for i, _ in c.others)]
    epilogue, sums = 0, SCRATCH if c.keeps_sums else 0
    if not c.keeps_sums:
        epilogue = int(UNITS * cost_of(epilogue_items(phase, dots)))
        epilogue += ROW_EPILOGUE if c.stores_sums else 0
    packs_left = not c.direct and c.leader is None
    right = _packing(c.right, (c.n, c.k), phase, target)
    if c.form == "small_m" and c.right_pitch() is not None:
        right = PACK_ON_USE
    if c.swapped:
        right, sums = _computed(c.right, phase, target) + PACK_ROWS, SWAPPED_SUMS
        right *= c.leader is None
    tasks, task_rows, task_columns, panel_elements = c.task_limits()
    return replace(
        _cost_of_tiles(c, phase, target, left_in_place=c.direct),
        tasks=tasks,
        task_rows=task_rows,
        task_columns=task_columns,
        panel_elements=panel_elements,
        heights=(c.tile.rows,) if c.form in ("k_blocked", "small_m_swapped") else c.heights,
        has_narrow_tiles=c.form != "k_blocked",
        packed_right=0 if c.prepacked else right,
        packed_left=_computed(c.left, phase, target) + PACK_ROWS if packs_left else 0,
        sums=sums,
        depth=c.depth if c.blocks_k else 0,
        epilogue=epilogue,
        start=START["small_m" if c.small_m else c.form],
        far_left=FAR_LEFT_BLOCKS if c.form == "k_blocked" else FAR_LEFT,
        far_runs=FAR_RUN if right >= PACK else 0,
        far_right=0 if c.small_m else FAR_RIGHT,
    )


def contraction_cost(
    c: Contraction, phase: Phase, every: list[Contraction], epilogue: float, target: Target
) -> ProductCost:
    """Return what a blocked contraction does, whose epilogue is a loop of its own."""
    in_place, dots = c.reads_right_in_place(), [x.item for x in every]
    pitch = _pitch(c.right, c.k, c.n, phase) if in_place or c.is_right_in_rows() else 0
    is_last, left_in_place = c.item is dots[-1], c.reads_left_in_place()
    stored = all(s.value in dots for s in phase.stores)
    most_rows = ROW_BYTES // (c.item.dtype.itemsize * len(every)) // HEIGHT * HEIGHT
    return replace(
        _cost_of_tiles(c, phase, target, left_in_place=left_in_place),
        tasks=TASKS,
        task_rows=(ROWS, max(most_rows, ROWS)),
        task_columns=(COLUMNS, COLUMNS),
        heights=tile_heights(c.tile.rows),
        has_narrow_tiles=False,
        packed_right=0 if in_place else _packing(c.right, (c.n, c.k), phase, target),
        packed_left=0 if left_in_place else _computed(c.left, phase, target) + PACK_ROWS,
        sums=0 if stored else SCRATCH,
        depth=0 if c.kind == "small" and in_place else DEPTH,
        epilogue=int(UNITS * epilogue) if is_last else 0,
        right_pitch=pitch,
        short_pitch=UNPACKED_PANELS * c.tile.columns,
        far_left=FAR_LEFT,
        far_right=0 if in_place else FAR_RIGHT_BLOCKS,
        far_results=FAR_RESULTS if stored else 0,
    )


def _cost_of_tiles(
    c: FusedGemmPlan | Contraction, phase: Phase, target: Target, *, left_in_place: bool
) -> ProductCost:
    """Return what all products do: multiply tiles, perhaps of a left operand in place."""
    assert c.m is not None
    batch = (phase.axes[a] for a in phase.axes if a in c.item.axes and a not in (c.m, c.n))
    return ProductCost(
        phase.axes[c.m],
        phase.axes[c.n],
        phase.axes[c.k],
        batch=product(batch),
        lanes=c.tile.lanes,
        vectors=c.tile.vectors,
        itemsize=c.item.dtype.itemsize,
        left_pitch=_pitch(c.left, c.m, c.k, phase) if left_in_place else 0,
        left_step=_pitch(c.left, c.k, c.m, phase) if left_in_place else 0,
        l1_bytes=target.l1_bytes,
        l2_bytes=int(CACHE_SHARE * target.l2_bytes),
    )


def _packing(right: Item, axes: tuple[str, str], phase: Phase, target: Target) -> int:
    """Return the rate of packing a right operand with axes n and k."""
    loads = backward_slice(phase, [right], ())
    rate = TRANSPOSE if any(is_transposed_load(i, *axes) for i in loads) else PACK
    return rate + _computed(right, phase, target)


def _computed(x: Item, phase: Phase, target: Target) -> int:
    """Return the rate of computing the elements of an operand."""
    return int(UNITS * cost_of(backward_slice(phase, [x], ())) * LINE / target.vector_bytes)


def _pitch(x: Item, row: str, along: str, phase: Phase) -> Index:
    """Return the elements between rows of a plain operand; 0 if they are not contiguous.

    Strides are unknown when a variant is selected: rows count as dense then.
    """
    access = plain_load(x)
    if access is None or coefficient(access.offset, along) != 1:
        return 0
    pitch, size_names = (
        coefficient(access.offset, row),
        {*chain(*map(sizes_of, phase.axes.values()))},
    )
    if pitch is None or axes_of(pitch):
        return 0
    return pitch if size_names.issuperset(sizes_of(pitch)) else phase.axes[along]
