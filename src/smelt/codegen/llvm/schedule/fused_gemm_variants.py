"""Choose the sizes at which each variant of a fused GEMM serves a kernel best.

Each function yields the variants that it knows, best first, with limits on sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from smelt.blocks import (
    LONG_SUM,
    SMALL,
    SWAPPED_PACKED_BYTES,
    TALL_COLUMNS,
    TALL_DEPTH,
    TALL_SINGLE,
    THIN,
    TRANSPOSED_LEFT_ELEMENTS,
    WIDE_COLUMNS,
    WIDE_DEPTH,
)
from smelt.codegen.llvm.instructions.dot_product import choose_dot_instruction
from smelt.codegen.llvm.loopir.items import Phase
from smelt.codegen.llvm.schedule.backward_slice import backward_slice, cost_of
from smelt.codegen.llvm.schedule.fused_gemm import (
    MAX_EPILOGUE_CYCLES,
    fused_gemm_plans,
    has_large_cache,
    is_strided,
)
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedGemmPlan
from smelt.codegen.llvm.schedule.operands import (
    is_transposed_load,
)
from smelt.kernel.artifact import SizeLimits, Variant
from smelt.target import Target
from smelt.types.expr import Index, add, mul, sub

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


def tall_variants(phase: Phase, target: Target) -> Iterator[tuple[Variant, SizeLimits]]:
    """Yield the variant for few columns and reduced positions, if the phase allows it.

    For fewer rows operands are multiplied in place.
    """
    plans = fused_gemm_plans(phase, target)
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
    plans = fused_gemm_plans(phase, target, "small_m")
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


def _packed_positions(plans: Collection[FusedGemmPlan], phase: Phase) -> Index:
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
    plans = fused_gemm_plans(phase, target, "k_blocked")
    if not plans or _uses_groups(plans, phase, target):
        return
    m, n = phase.axes[plans[0].m], phase.axes[plans[0].n]
    rows, columns = (sub(SMALL + 1, m), 0), (sub(TALL_COLUMNS + 1, n), 0)
    wide_limits = (rows, (sub(WIDE_COLUMNS, n), 0), *_one_pass_limits(plans, phase))
    if has_large_cache(target):  # one pass only if panels stay in L1
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


def panel_variants(phase: Phase, target: Target) -> Iterator[tuple[Variant, SizeLimits]]:
    """Yield the wide variant for fewer rows, where other variants are no better.

    These would pack the right operand too, or do worse: for a right operand that is computed, that
    is transposed for sums that are not long, or whose rows are short where there are more than few
    rows.  If the left operand is packed too, yield the tall variant.
    """
    plans = fused_gemm_plans(phase, target, "panels")
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
            and fused_gemm_plans(phase, target)
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


def _one_pass_limits(plans: Collection[FusedGemmPlan], phase: Phase) -> SizeLimits:
    """Return the limits for reduced positions, and rows times these, of one pass."""
    (first, *_), m = plans, phase.axes[next(iter(plans)).m]
    elements = (mul(m, phase.axes[c.k]) for c in plans if not (c.direct or c.copies_left))
    return (first.summed(phase), WIDE_DEPTH), *(
        (e, TRANSPOSED_LEFT_ELEMENTS) for e in dict.fromkeys(elements)
    )


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


def _is_satisfiable(limits: SizeLimits) -> bool:
    """Return whether any sizes are within some limits."""
    return not any(isinstance(e, int) and e > most for e, most in limits)
