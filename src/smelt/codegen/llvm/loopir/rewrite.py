"""Rewrite phases: replace items and what depends on them, insert items, change axes.

Phases and items are frozen, so an item that changes takes all that depend on it along:

    rebuild(phase, change)                 the phase with each item changed
    draft = Draft(phase)                   many small changes, one after another:
    draft.insert(user, item)               an item just before its user
    draft.replace(old, new)                an item in another one's place
    draft.phase, draft.latest(old)         the result, and what an item of `phase` became
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from smelt.codegen.llvm.loopir.items import (
    Item,
    Phase,
    Reach,
    Region,
    StateRead,
    StateUpdate,
    StoreItem,
    StreamState,
    Visit,
)
from smelt.types.dtype import DType
from smelt.types.expr import Index

Same = TypeVar("Same", bound=Item)


def rebuild(
    phase: Phase,
    change: Callable[[Item, Item], Item] = lambda _, item: item,
    *,
    state: Callable[[StreamState], StreamState] = lambda state: state,
    visit: Callable[[Visit], Visit] = lambda visit: visit,
) -> Phase:
    """Return a phase with every item, state and visit changed, and their users.

    `change` is given each item, and the same with its operands changed.
    """
    return _Rebuilder(change, state, visit).phase(phase)


class _Rebuilder:
    """What has been rebuilt, by what it was."""

    def __init__(
        self,
        change: Callable[[Item, Item], Item],
        state: Callable[[StreamState], StreamState] = lambda state: state,
        visit: Callable[[Visit], Visit] = lambda visit: visit,
        items: Mapping[Item, Item] | None = None,
    ) -> None:
        self._change, self._state, self._visit = change, state, visit
        self.items: dict[Item, Item] = {**(items or {})}
        self._states: dict[StreamState, StreamState] = {}
        self._regions: dict[Region, Region] = {}

    def phase(self, phase: Phase) -> Phase:
        """Rebuild all of a phase."""
        for item in phase.items:
            self.items[item] = self._change(item, self._with_operands(item))
        return replace(
            phase,
            items=tuple(self.items[i] for i in phase.items),
            stores=tuple(map(self._store, phase.stores)),
            positions={n: self._item(i) for n, i in phase.positions.items()},
            segments=tuple(map(self._region, phase.segments)),
            state_updates=tuple(
                StateUpdate(self._of_state(s.state), self._item(s.value), s.time)
                for s in phase.state_updates
            ),
            widened=frozenset(map(self._item, phase.widened)),
        )

    def _item(self, item: Item) -> Item:
        return self.items.get(item, item)

    def _optional(self, item: Item | None) -> Item | None:
        return None if item is None else self.items.get(item, item)

    def _with_operands(self, item: Item) -> Item:
        """Return an item with its operands and its state changed.

        Itself if they are the same.
        """
        if any(a in self.items and self.items[a] is not a for a in item.args):
            item = replace(item, args=tuple(map(self._item, item.args)))
        if isinstance(item, StateRead):
            state = self._of_state(item.state)
            return item if state is item.state else replace(item, state=state)
        return item

    def _store(self, s: StoreItem) -> StoreItem:
        value, where = self._item(s.value), self._optional(s.where)
        return s if value is s.value and where is s.where else replace(s, value=value, where=where)

    def _of_state(self, state: StreamState) -> StreamState:
        if state not in self._states:
            changed, region = self._state(state), self._region(state.region)
            self._states[state] = (
                changed if region is changed.region else replace(changed, region=region)
            )
        return self._states[state]

    def _region(self, region: Region | None) -> Region | None:
        if region is None:
            return None
        if region not in self._regions:
            self._regions[region] = self._changed_region(region)
        return self._regions[region]

    def _changed_region(self, region: Region) -> Region:
        parent, where = self._region(region.parent), self._optional(region.where)
        visits, bounds = (tuple(map(self._of_visit, x)) for x in (region.visits, region.bounds))
        before = (region.parent, region.where, *region.visits, *region.bounds)
        after = (parent, where, *visits, *bounds)
        same = all(x is y for x, y in zip(before, after, strict=True))
        return region if same else Region(parent, visits, where, bounds)

    def _of_visit(self, visit: Visit) -> Visit:
        changed = self._visit(visit)
        start, stop = self._optional(visit.start), self._optional(visit.stop)
        same = start is visit.start and stop is visit.stop
        return changed if same else replace(changed, start=start, stop=stop)


class Draft:
    """A phase that is being rewritten."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._items = [*phase.items]
        self._latest: dict[Item, Item] = {}

    @property
    def phase(self) -> Phase:
        """The phase as it has been rewritten until now."""
        if len(self._items) != len(self._phase.items):
            self._phase = replace(self._phase, items=tuple(self._items))
        return self._phase

    @property
    def axes(self) -> Mapping[str, Index]:
        """The axes of the phase."""
        return self._phase.axes

    def latest(self, item: Same) -> Same:
        """Return what an item has become, while that is of the same kind."""
        while item in self._latest:
            item = cast(Same, self._latest[item])
        return item

    def insert(self, user: Item, item: Same) -> Same:
        """Insert an item just before its user, and return it."""
        self._items.insert(self._items.index(user), item)
        return item

    def replace(self, old: Item, new: Same) -> Same:
        """Put an item in another one's place, and rebuild what depends on that."""
        rebuilder = _Rebuilder(lambda _, item: item, items={old: new})
        self._adopt(rebuilder.phase(self._without(old, new)), rebuilder)
        return new

    def rebuild(self, *, visit: Callable[[Visit], Visit]) -> None:
        """Change every visit, and all that refers to it."""
        rebuilder = _Rebuilder(lambda _, item: item, visit=visit)
        self._adopt(rebuilder.phase(self.phase), rebuilder)

    def _adopt(self, phase: Phase, rebuilder: _Rebuilder) -> None:
        self._phase, self._items = phase, [*phase.items]
        self._latest |= {x: y for x, y in rebuilder.items.items() if x is not y}

    def _without(self, old: Item, new: Item) -> Phase:
        """Return the phase with `new` in the place of `old`, whose users are unchanged."""
        items = tuple(new if i is old else i for i in self.phase.items)
        return replace(self.phase, items=items)

    def remove(self, item: Item) -> None:
        """Remove an item that nothing reads any more."""
        self._items.remove(item)

    def add_axis(self, base: str, extent: Index) -> str:
        """Add an axis inside every task, and return its name."""
        name, k = base, 1
        while name in self._phase.axes:
            name, k = f"{base}{k}", k + 1
        self._phase = replace(self._phase, axes={**self._phase.axes, name: extent})
        return name

    def add_window(self, axis: str, reach: Reach) -> None:
        """Record which positions windows reach along a new axis."""
        windows = {**self._phase.window_positions, axis: reach}
        self._phase = replace(self._phase, window_positions=windows)

    def name_position(self, name: str, item: Item) -> None:
        """Record the item that a computed position is."""
        self._phase = replace(self._phase, positions={**self._phase.positions, name: item})

    def alias(self, name: str, buffer: str, dtype: DType) -> None:
        """Record a second name of an array, whose elements are read as another type."""
        aliases, dtypes = self._phase.aliases, self._phase.dtypes
        self._phase = replace(
            self._phase, aliases={**aliases, name: buffer}, dtypes={**dtypes, name: dtype}
        )

    def widen(self, item: Item) -> None:
        """Record an item that is float64 only because accumulators are."""
        self._phase = replace(self._phase, widened=self._phase.widened | {item})
