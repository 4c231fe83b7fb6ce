"""Build the schedules of GEMMs with fused epilogues: a nest for each, the last with the
epilogue."""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.llvm.instructions.indexing import is_repeated
from smelt.codegen.llvm.loopir.clone import backward_slice
from smelt.codegen.llvm.loopir.items import Item, Phase, accesses_of
from smelt.codegen.llvm.nests.contraction import Products
from smelt.codegen.llvm.nests.nest import Nest, Schedule
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
    *before, after = (_nest(phase, c) for c in products)
    last, items = products[-1], epilogue_items(phase, [c.item for c in products])
    nests = (*before, replace(after, stores=phase.stores, items=tuple(items)))
    block = last.blocks(phase)
    local_axes = {last.m, last.n, *(c.k for c in products)}
    local = {a: block.get(a, n) for a, n in phase.axes.items() if a in local_axes}
    plans = Products(packed={c.item: c for c in products})
    return Schedule(phase, last.tile.lanes, plans, block, local, nests, {})


def _nest(phase: Phase, c: FusedGemmPlan) -> Nest:
    """Return the nest of a contraction, with the nests that pack its operands."""
    order = (c.n, c.m) if c.swapped else (c.m, c.n)
    left = _packing_nest(phase, c.left, c.left_order(), "left")
    right = _packing_nest(phase, c.right, c.right_order(), "right")
    transposed = tuple(i for i in right.items if is_transposed_load(i, c.n, c.k))
    loads = accesses_of(right.items)
    has_strides = all(coefficient(a.offset, c.n) is not None for a in loads)
    is_padded = any(c.n in axes_of(e) for a in loads for e, _ in a.limits)
    gathers = any(_has_shared_gathers(a.offset, c) for a in loads)
    # Bounds are tested and gathers cached once for all k.
    turns = not transposed and has_strides and (is_padded or gathers)
    right_order = right.order[::-1] if turns else right.order
    right = replace(right, transposed=transposed, order=right_order)
    if c.blocks_k:
        outer, inner = left.order
        rows = tuple(i for i in left.items if is_transposed_load(i, inner, outer))
        left = replace(left, transposed=rows)
    return Nest(0, order, order[-1], product=c, packs=(left, right))


def _packing_nest(phase: Phase, operand: Item, order: tuple[str, ...], side: str) -> Nest:
    items = tuple(backward_slice(phase, [operand], ()))
    return Nest(0, order, order[-1], saves=(operand,), items=items, packed=side)


def _has_shared_gathers(offset: Index, c: FusedGemmPlan) -> bool:
    """Return whether lanes are strided along the columns, and k repeats them."""
    return coefficient(offset, c.n) not in (0, 1) and is_repeated(offset, c.k)
