"""A phase cut into phases that share nothing but what they read.

    q[m, n] = x @ a          one phase over the grid m, n
    k[m, p] = f(x @ b)       another one over the grid m, p

Products of one input beside one another are a kernel, because it is read once from memory; but each
is best cut into tasks of its own, along its own columns as well, and tasks that run one after the
other find the input in cache.  What overwrites an operand is never cut off from what else reads
that: such an operand is read for no other result.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.llvm.schedule.tall import needed
from smelt.codegen.llvm.values.clone import FOLDS
from smelt.codegen.llvm.values.items import Item, Phase, StoreItem


def disjoint(phase: Phase) -> list[Phase]:
    """The phases of results that need no fold in common, in order of their first store; the phase
    itself where there is but one such group."""
    if phase.regions() or phase.cut or phase.settings or phase.places:
        return [phase]
    groups: list[tuple[set[Item], list[StoreItem]]] = []
    for s in phase.stores:
        folds = {i for i in _needs(phase, [s]) if i.kind in FOLDS}
        joined = [g for g in groups if not folds.isdisjoint(g[0])]
        groups = [g for g in groups if g not in joined]
        groups.append((folds.union(*(g[0] for g in joined)),
                       [*(x for g in joined for x in g[1]), s]))  # fmt: skip
    if len(groups) < 2 or not all(folds for folds, _ in groups):
        return [phase]
    return [_part(phase, stores, number) for number, (_, stores) in enumerate(groups)]


def _needs(phase: Phase, stores: list[StoreItem]) -> list[Item]:
    """What some stores are computed from, and where they go."""
    roots = [x for s in stores for x in (s.value, s.where) if x is not None]
    roots += [phase.positions[name] for s in stores for name in s.access.positions]
    return needed(phase, roots, ())


def _part(phase: Phase, stores: list[StoreItem], number: int) -> Phase:
    """Some stores with what they need: their places are independent, since no fold ends them."""
    items = _needs(phase, stores)
    axes = frozenset[str]().union(*(i.axes for i in items), *(s.axes for s in stores))
    ended = {a for i in items for a in getattr(i.payload, "over", ())}
    grid = frozenset.intersection(*(s.axes for s in stores)) - ended
    own = {a: n for a, n in phase.axes.items() if a in axes}
    return replace(
        phase, name=f"{phase.name}.{number}", axes=own, items=items, stores=stores,
        grid=[a for a in own if a in grid],
    )  # fmt: skip


__all__ = ["disjoint"]
