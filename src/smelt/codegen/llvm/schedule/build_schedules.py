"""Build the schedules of a phase, split into phases that share only loads (loop fission).

    q[m, n] = x @ a          one phase over the grid m, n
    k[m, p] = f(x @ b)       another one over the grid m, p

Contractions of one input form one kernel, because it is then read once from memory; but each is
tiled best on its own, along its own columns as well, and tasks that run one after the other find
the input in cache.  An output that overwrites an operand is never split from other readers of it:
such an operand is read for no other result.

    y[i, n] = select(i % 2 < 1, a[i//2, n], b[i//2, n])      one phase over the grid i, n
    z[n] = c[n]                                              another one over the grid n

A small output would keep the axes that it lacks out of the grid of a large one: tasks would walk
them, and what is selected by position along them would be kept for all positions at once.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.llvm.instructions.indexing import is_repeated
from smelt.codegen.llvm.loopir.items import (
    Item,
    Operation,
    Phase,
    Reduction,
    StoreItem,
    accesses_of,
    over_axes,
)
from smelt.codegen.llvm.loopir.rewrite import backward_slice
from smelt.codegen.llvm.loops.collapse_short_rows import is_map
from smelt.codegen.llvm.nests.contraction import Products
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.fused_gemm import FusedGemmPlan, epilogue_items, fused_gemm_plans
from smelt.codegen.llvm.schedule.operands import is_transposed_load
from smelt.kernel.artifact import Variant
from smelt.machine.target import Target
from smelt.ops.scalar import SCALARS
from smelt.types.expr import Index, axes_of, coefficient, product

MAX_SHARED_CYCLES = 5.0
"""Maximum cycles for one vector of what outputs may have in common to be split: no function."""
MIN_SIZE_RATIO = 4
"""An output with at least this many times fewer elements than another gets a phase of its own.

The inputs that it shares are still in cache.
"""


def split_disjoint(phase: Phase) -> list[Phase]:
    """Split a phase into groups of outputs that share no reduction.

    The groups are in the order of their first stores.
    """
    if phase.regions() or phase.cut or phase.state_updates or phase.window_positions:
        return [phase]
    groups: list[tuple[set[Item], list[StoreItem]]] = []
    for s in phase.stores:
        reductions = {i for i in _slice(phase, [s]) if isinstance(i, Reduction)}
        overlapping = [g for g in groups if not reductions.isdisjoint(g[0])]
        groups = [g for g in groups if g not in overlapping]
        groups.append(
            (
                reductions.union(*(g[0] for g in overlapping)),
                [*(x for g in overlapping for x in g[1]), s],
            )
        )
    if len(groups) < 2 or not all(reductions for reductions, _ in groups):
        return [phase]
    return [_restrict(phase, stores, number) for number, (_, stores) in enumerate(groups)]


def split_small_outputs(phase: Phase) -> list[Phase]:
    """Split off a map's small outputs, whose axes are a subset of a larger output's.

    They come first; all others remain together, last.  Costly values in common are not duplicated.
    """
    if not is_map(phase) or phase.positions or len(phase.stores) < 2:
        return [phase]
    needs = {s: {*_slice(phase, [s])} for s in phase.stores}

    def is_beside(small: StoreItem, large: StoreItem) -> bool:
        more = product(phase.axes[a] for a in large.axes - small.axes)
        return small.axes < large.axes and isinstance(more, int) and more >= MIN_SIZE_RATIO

    def is_small(s: StoreItem) -> bool:
        others = [o for o in phase.stores if o is not s]
        has_larger = any(is_beside(s, o) for o in others)
        return has_larger and not any(
            _cost(needs[s] & needs[o]) > MAX_SHARED_CYCLES for o in others
        )

    small = [s for s in phase.stores if is_small(s)]
    parts = [[s] for s in small] + [[s for s in phase.stores if s not in small]]
    return (
        [_restrict(phase, stores, number) for number, stores in enumerate(parts)]
        if small
        else [phase]
    )


def _cost(items: set[Item]) -> float:
    """Return the cycles for one vector of items."""
    return sum(SCALARS[i.op].cost for i in items if isinstance(i, Operation) and i.axes)


def _slice(phase: Phase, stores: list[StoreItem]) -> list[Item]:
    """Return what some stores depend on, including their addresses."""
    roots = [x for s in stores for x in (s.value, s.where) if x is not None]
    roots += [phase.positions[name] for s in stores for name in s.access.positions]
    return backward_slice(phase, roots, ())


def _restrict(phase: Phase, stores: list[StoreItem], number: int) -> Phase:
    """Return a phase with some of the stores, and what they need.

    Their axes are independent, since no reduction ends them.
    """
    items = _slice(phase, stores)
    axes = frozenset[str]().union(*(i.axes for i in items), *(s.axes for s in stores))
    reduced = {a for i in items for a in over_axes(i)}
    grid = frozenset.intersection(*(s.axes for s in stores)) - reduced
    remaining = {a: n for a, n in phase.axes.items() if a in axes}
    return replace(
        phase,
        name=f"{phase.name}.{number}",
        axes=remaining,
        items=tuple(items),
        stores=tuple(stores),
        grid=tuple(a for a in remaining if a in grid),
    )


# ---- schedules of all parts ----------------------------------------------------------------------


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
