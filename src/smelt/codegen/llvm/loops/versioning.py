"""Version a nest by a block-uniform condition, like whether a mask applies.

    s = select(n <= m, t, -inf) if last(n) > first(m) else t

The condition has one truth value for a whole block, so it is tested before the loops, not in them:
each version computes what its answer requires, and nothing else.
"""

from __future__ import annotations

from smelt.codegen.llvm.loopir.items import Item, Operation, Position, UniformSelect
from smelt.codegen.llvm.nests.nest import Nest
from smelt.ops.combine import CHOICE


def version_condition(nest: Nest) -> Item | None:
    """Return the condition by which a nest has two versions: the first one with dependents.

    It varies in none of the nest's loops, which may walk several positions of the grid.
    """
    if not nest.order:
        return None
    conditions = (i.args[0] for i in nest.items if isinstance(i, UniformSelect))
    return next((c for c in conditions if c.axes.isdisjoint(nest.order)), None)


def is_select(item: Item) -> bool:
    """Return whether an item selects between two others by its first operand."""
    return isinstance(item, Operation) and item.op == CHOICE


def live_items(nest: Nest, taken: dict[Item, bool]) -> list[Item]:
    """Return the items that a nest's roots need, given the answers of some conditions."""
    items, live = set(nest.items), set[Item]()
    pending = [a for f in nest.reductions for a in f.args] + [*nest.saves, *nest.scalars]
    pending += [x for s in nest.stores for x in (s.value, s.where) if x is not None]
    pending += [s.value for s in nest.state_updates]
    position_names = {n for s in nest.stores for n in s.access.positions}
    while pending or position_names:
        pending += [i for i in items if isinstance(i, Position) and i.name in position_names]
        position_names = set[str]()
        while pending:
            item = pending.pop()
            if item in live or item not in items:
                continue
            live.add(item)
            if is_select(item) and item.args[0] in taken:
                pending.append(item.args[1 if taken[item.args[0]] else 2])
            else:
                pending += item.args
    return [i for i in nest.items if i in live]
