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
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from smelt.codegen.llvm.loopir.clone import backward_slice, cost_of
from smelt.codegen.llvm.loopir.items import Dot, Item, Load, Phase, Reduction
from smelt.codegen.llvm.loopir.store_ranges import stored_range
from smelt.codegen.llvm.nests.product_plan import Tile, register_tile
from smelt.codegen.llvm.schedule.contract import stored_axis
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedForm, FusedGemmPlan, FusedVariant
from smelt.codegen.llvm.schedule.operands import (
    is_prepacked,
    is_transposed_load,
    panel_step,
    plain_load,
)
from smelt.machine.blocks import LEFT_IN_PLACE, TSMM
from smelt.machine.target import CACHE_SHARE, Target
from smelt.types.affine import coefficient
from smelt.types.dtype import f32, f64, i32
from smelt.types.expr import axes_of

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
