"""Build the schedules of GEMMs with fused epilogues: a nest for each, the last with the
epilogue."""

from __future__ import annotations

from smelt.codegen.llvm.instructions.indexing import is_repeated
from smelt.codegen.llvm.loopir.items import Phase, accesses_of
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.nests.products import Products
from smelt.codegen.llvm.schedule.backward_slice import backward_slice
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.fused_gemm import epilogue_items, fused_gemm_plans
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedGemmPlan
from smelt.codegen.llvm.schedule.operands import is_transposed_load
from smelt.codegen.llvm.schedule.split_independent_outputs import (
    split_disjoint,
    split_small_outputs,
)
from smelt.kernel.artifact import Variant
from smelt.machine.target import Target
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of


def build_schedules(phase: Phase, target: Target, form: Variant) -> list[Schedule]:
    """Return the schedules of a phase in a variant of its kernel, in order.

    In the variants of `smelt.codegen.llvm.schedule.fused_gemm`, each group of outputs that needs
    contractions of its own is split off; of a map, small outputs before the others.
    """
    if form in ("tall_skinny", "small_m", "panels", "k_blocked"):
        schedules = [_schedule(p, fused_gemm_plans(p, target, form)) for p in split_disjoint(phase)]
        complete = [s for s in schedules if s is not None]
        if len(complete) == len(schedules):
            return complete
    return [schedule(p, target, form) for p in split_small_outputs(phase)]


def _schedule(phase: Phase, products: tuple[FusedGemmPlan, ...]) -> Schedule | None:
    if not products:
        return None
    nests = [_nest(phase, c) for c in products]
    last = products[-1]
    nests[-1].stores, nests[-1].items = (
        [*phase.stores],
        epilogue_items(phase, [c.item for c in products]),
    )
    block = last.blocks(phase)
    local_axes = {last.m, last.n, *(c.k for c in products)}
    local = {a: block.get(a, n) for a, n in phase.axes.items() if a in local_axes}
    plans = Products(packed={c.item: c for c in products})
    return Schedule(phase, last.tile.lanes, plans, block, local, nests, {})


def _nest(phase: Phase, c: FusedGemmPlan) -> Nest:
    """Return the nest of a contraction, with the nests that pack its operands."""
    order = (c.n, c.m) if c.swapped else (c.m, c.n)
    left, right = (
        Nest(0, order, order[-1], saves=[x], items=backward_slice(phase, [x], ()), packed=side)
        for order, x, side in (
            (c.left_order(), c.left, "left"),
            (c.right_order(), c.right, "right"),
        )
    )
    right.transposed = [i for i in right.items if is_transposed_load(i, c.n, c.k)]
    loads = accesses_of(right.items)
    has_strides = all(coefficient(a.offset, c.n) is not None for a in loads)
    is_padded = any(c.n in axes_of(e) for a in loads for e, _ in a.limits)
    if (
        not right.transposed
        and has_strides
        and (is_padded or any(_has_shared_gathers(a.offset, c) for a in loads))
    ):
        # Bounds are tested and gathers cached once for all k.
        right.order = right.order[::-1]
    if c.k_blocked:
        outer, inner = left.order
        left.transposed = [i for i in left.items if is_transposed_load(i, inner, outer)]
    return Nest(0, order, order[-1], product=c, packs=(left, right))


def _has_shared_gathers(offset: Index, c: FusedGemmPlan) -> bool:
    """Return whether lanes are strided along the columns, and k repeats them."""
    return coefficient(offset, c.n) not in (0, 1) and is_repeated(offset, c.k)
