"""What values are computed from, and what that costs."""

from __future__ import annotations

from collections.abc import Collection

from smelt.codegen.llvm.loopir.items import Access, Item, Phase
from smelt.ops.scalar import SCALARS


def needed(phase: Phase, roots: list[Item], ends: Collection[Item]) -> list[Item]:
    """What some values are computed from, in order; of `ends` only these."""
    wanted, pending = set[Item](), list(roots)
    while pending:
        item = pending.pop()
        if item not in wanted:
            wanted.add(item)
            named = item.payload.positions if isinstance(item.payload, Access) else ()
            pending += [phase.positions[name] for name in named]
            pending += () if item in ends else item.args
    return [i for i in phase.items if i in wanted]


def cost_of(items: list[Item]) -> float:
    """Cycles a vector of some operators."""
    applied = (i.payload for i in items if i.kind == "apply")
    return sum(SCALARS[name].cost for name in applied if isinstance(name, str))


__all__ = ["cost_of", "needed"]
