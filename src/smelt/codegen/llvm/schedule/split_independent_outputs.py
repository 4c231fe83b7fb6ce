"""Split a phase into phases that share nothing but what they load (loop fission).

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

from smelt.codegen.llvm.loopir.clone import backward_slice
from smelt.codegen.llvm.loopir.items import Item, Operation, Phase, Reduction, StoreItem, over_axes
from smelt.codegen.llvm.loops.collapse_short_rows import is_map
from smelt.ops.scalar import SCALARS
from smelt.types.expr import product

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
