"""The backward slice of values, and its cost."""

from __future__ import annotations

from collections.abc import Collection

from smelt.codegen.llvm.loopir.items import Apply, Item, Load, Phase
from smelt.ops.scalar import SCALARS


def backward_slice(phase: Phase, roots: list[Item], ends: Collection[Item]) -> list[Item]:
    """Return what some values depend on, in order; the slice stops at `ends`."""
    slice_items, pending = set[Item](), list(roots)
    while pending:
        item = pending.pop()
        if item not in slice_items:
            slice_items.add(item)
            position_names = item.access.positions if isinstance(item, Load) else ()
            pending += [phase.positions[name] for name in position_names]
            pending += () if item in ends else item.args
    return [i for i in phase.items if i in slice_items]


def cost_of(items: list[Item]) -> float:
    """Return the cycles for one vector of the scalar operators among items."""
    return sum(SCALARS[i.op].cost for i in items if isinstance(i, Apply))


__all__ = ["backward_slice", "cost_of"]
