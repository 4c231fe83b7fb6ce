"""A phase cut into phases that share nothing but what they read.

    q[m, n] = x @ a          one phase over the grid m, n
    k[m, p] = f(x @ b)       another one over the grid m, p

Products of one input beside one another are a kernel, because it is read once from memory; but each
is best cut into tasks of its own, along its own columns as well, and tasks that run one after the
other find the input in cache.  What overwrites an operand is never cut off from what else reads
that: such an operand is read for no other result.

    y[i, n] = select(i % 2 < 1, a[i//2, n], b[i//2, n])      one phase over the grid i, n
    z[n] = c[n]                                              another one over the grid n

A small result beside a large one would keep the axes that it lacks out of the grid of both: tasks
would walk them, and what is chosen by position along them be kept for all positions at once.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.llvm.loopir.clone import FOLDS
from smelt.codegen.llvm.loopir.items import Item, Phase, StoreItem
from smelt.codegen.llvm.loops.collapse_short_rows import is_map
from smelt.codegen.llvm.schedule.backward_slice import needed
from smelt.ops.scalar import SCALARS
from smelt.types.expr import product

CHEAP = 5.0
"""Cycles a vector of what results may have in common and be computed apart: no function."""
FEWER = 4
"""Times as few elements that a result has which is computed apart from larger ones: it finds in
memory what they read."""


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
        groups.append(
            (folds.union(*(g[0] for g in joined)), [*(x for g in joined for x in g[1]), s])
        )
    if len(groups) < 2 or not all(folds for folds, _ in groups):
        return [phase]
    return [_part(phase, stores, number) for number, (_, stores) in enumerate(groups)]


def without_small(phase: Phase) -> list[Phase]:
    """The phases of a map's small results, beside larger ones that have all of their axes and more,
    and of all others together, which come last.  What is dear in common is not computed twice."""
    if not is_map(phase) or phase.positions or len(phase.stores) < 2:
        return [phase]
    needs = {s: {*_needs(phase, [s])} for s in phase.stores}

    def is_beside(small: StoreItem, large: StoreItem) -> bool:
        more = product(phase.axes[a] for a in large.axes - small.axes)
        return small.axes < large.axes and isinstance(more, int) and more >= FEWER

    def is_small(s: StoreItem) -> bool:
        others = [o for o in phase.stores if o is not s]
        beside = any(is_beside(s, o) for o in others)
        return beside and not any(_work(needs[s] & needs[o]) > CHEAP for o in others)

    small = [s for s in phase.stores if is_small(s)]
    parts = [[s] for s in small] + [[s for s in phase.stores if s not in small]]
    return (
        [_of_its_own(_part(phase, stores, number)) for number, stores in enumerate(parts)]
        if small
        else [phase]
    )


def _of_its_own(phase: Phase) -> Phase:
    """A phase whose items no other one has: schedules change them."""
    new: dict[Item, Item] = {}
    for i in phase.items:
        args = tuple([new[a] for a in i.args])
        new[i] = Item(i.number, i.kind, i.payload, args, i.axes, i.dtype, i.time)
    stores = [replace(s, value=new[s.value], where=s.where and new[s.where]) for s in phase.stores]
    carried = {new[i] for i in phase.carried if i in new}
    return replace(phase, items=[*new.values()], stores=stores, carried=carried)


def _work(items: set[Item]) -> float:
    """Cycles a vector."""
    return sum(SCALARS[i.payload].cost for i in items if isinstance(i.payload, str) and i.axes)


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
        phase,
        name=f"{phase.name}.{number}",
        axes=own,
        items=items,
        stores=stores,
        grid=[a for a in own if a in grid],
    )


__all__ = ["disjoint", "without_small"]
