"""Estimate the cycles of a schedule, by which the run time cuts work into chunks."""

from __future__ import annotations

from smelt.codegen.llvm.access.vector_axis import part_numbers
from smelt.codegen.llvm.loopir.items import Apply, Item, Load, unvarying_axes
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.ops.scalar import SCALARS
from smelt.types.expr import Index, add, floordiv, mul, product


def cycles(s: Schedule) -> Index:
    """Return the cycles that one core spends on the whole phase: just enough to choose chunks."""
    total: Index = 0
    fixed = [
        n
        for a, n in s.phase.axes.items()
        if a in s.phase.grid and a not in s.local and a not in part_numbers(s.phase)
    ]
    for nest in s.nests:
        if nest.product is not None:
            c = nest.product
            axes = {*c.item.axes, *c.outer, c.k, *unvarying_axes(s.phase.segments[nest.time])}
            points = product(s.phase.axes[a] for a in s.phase.axes if a in axes)
            total = add(total, c.cycles(points, s.phase.axes[c.m] if c.m else 1))
            continue
        inner = [i for i in nest.items if nest.vector is None or nest.vector in i.axes]
        work = sum(_own_cost(i) for i in inner) + 2 * (
            len(nest.reductions) + len(nest.stores) + len(nest.state_updates)
        )
        still = unvarying_axes(s.phase.segments[nest.time])
        points = product((*fixed, *(s.phase.axes[a] for a in (*nest.order, *still))))
        lanes = s.lanes if nest.vector is not None else 1
        total = add(total, floordiv(mul(points, max(int(8 * work), 1)), 8 * lanes))
    return add(total, 50)


def _own_cost(item: Item) -> float:
    if isinstance(item, Apply):
        return SCALARS[item.op].cost
    return 6.0 if isinstance(item, Load) else 0.5
