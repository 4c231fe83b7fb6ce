"""List the variants of a fused GEMM: the sizes at which each is possible, and what it costs.

Which one a call takes follows from the predicted cycles (`smelt.kernel.product_cost`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from smelt.codegen.llvm.instructions.dot_product import choose_dot_instruction
from smelt.codegen.llvm.loopir.items import Phase
from smelt.codegen.llvm.schedule.contract import is_satisfiable
from smelt.codegen.llvm.schedule.fused_gemm import fused_gemm_plans, has_large_cache, is_strided
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedGemmPlan, FusedVariant
from smelt.codegen.llvm.schedule.product_cost import fused_gemm_cost
from smelt.kernel.artifact import Candidate, SizeLimits
from smelt.machine.blocks import GEMV, LONG_SUM, ONE_PASS, SMALL_M_SWAPPED, TSMM, UNPACKED
from smelt.machine.target import Target
from smelt.types.expr import Index, add, mul, sub

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
