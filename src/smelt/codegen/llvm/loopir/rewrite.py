"""Rewrite phases: replace, insert and clone items, change axes, remove what is dead.

Phases and items are frozen, so an item that changes takes all that depend on it along:

    rebuild(phase, change)                   the phase with each item changed
    draft = Draft(phase)                     many small changes, one after another:
    draft.insert(user, item)                 an item just before its user
    draft.replace(old, new)                  an item in another one's place
    draft.phase, draft.latest(old)           the result, and what an item of `phase` became
    Cloner(draft, user, {"u": 0}).of(item)   the item at u = 0, inserted before `user`

Clones are the same computation at another position: the image of a convolution is packed by input
position instead of by (output, tap), and a small reduction is unrolled into one clone of its
element for each position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar, cast

from smelt.codegen.llvm.loopir import items as ssa
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
from smelt.graph.walk import reachable
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import replace
from smelt.types.dtype import DType, f64
from smelt.types.expr import Index, dependent_axes, substitute
from smelt.types.expr import value as value_of

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


# ---- clones and slices ---------------------------------------------------------------------------


class Cloner:
    """Clones values with axes replaced, inserting the clones just before `user`.

    `at` maps axes to what replaces them.  `limits` are bounds checks that are added to cloned loads
    which vary along an axis: axis -> (index, extent).
    """

    def __init__(
        self,
        draft: Draft,
        user: Item,
        at: Mapping[str, Index],
        limits: Mapping[str, tuple[Index, Index]] | None = None,
    ) -> None:
        self.draft, self.user, self.at, self.limits = draft, user, at, limits or {}
        self.clones: dict[Item, Item] = {}
        self.names: dict[str, Index] = {}

    def of(self, item: Item) -> Item:
        """Return the clone of a value, or the value itself if nothing is replaced."""
        if not item.axes & self.at.keys():
            return item
        clone = self.clones.get(item)
        if clone is None and isinstance(item, ssa.Scan):
            (along,) = item.over
            at = self.at.get(along)
            assert isinstance(at, int), "a scan has a value at each of its positions"
            clone = self.clones[item] = self._unroll_scan(item, along, at)
        if clone is None:
            args = tuple(self.of(a) for a in item.args)
            changed = self.changed(item)
            axes = ssa.union_of_axes(args)
            if isinstance(changed, ssa.WindowRead):
                axes -= {a for a, _ in changed.at}
            axes = axes.union(*map(self._axes, changed.indices))
            if isinstance(changed, ssa.Reduction):
                assert self.at.keys().isdisjoint(changed.over), "a reduction has all of its axes"
                axes -= {*changed.over}
            clone = replace(changed, args=args, axes=axes)
            if isinstance(clone, ssa.Position):
                self.draft.name_position(clone.name, clone)
            self.clones[item] = self.draft.insert(self.user, clone)
        return clone

    def _unroll_scan(self, scan: ssa.Scan, along: str, last: int) -> Item:
        """Unroll a scan up to position `last` of its axis.

        Sums of floats are carried in float64, as in the loop.
        """
        (arg,), row = scan.args, scan.row
        dtype = f64 if row.wide and scan.dtype.is_float else scan.dtype
        positions = [{**self.at, along: k} for k in range(last + 1)]
        total, *terms = [
            self._cast(Cloner(self.draft, self.user, at).of(arg), dtype) for at in positions
        ]
        for term in terms:
            total = insert_before(
                self.draft, self.user, ssa.apply(row.scalar, (total, term), dtype)
            )
        return self._cast(total, scan.dtype)

    def _cast(self, item: Item, dtype: DType) -> Item:
        if item.dtype == dtype:
            return item
        return insert_before(self.draft, self.user, ssa.cast(item, dtype))

    def _axes(self, e: Index) -> frozenset[str]:
        return dependent_axes((e,), lambda name: self.draft.phase.positions[name].axes)

    def _substitute(self, e: Index) -> Index:
        return substitute(substitute(e, self.at), self.names, "value")

    def changed(self, item: Item) -> Item:
        """Return an item with axes and computed positions replaced, of the same operands."""
        changed = item.map_indices(self._substitute)
        if isinstance(changed, ssa.Load):
            limits = [pair for a, pair in self.limits.items() if a in item.axes]
            access = replace(changed.access, limits=(*changed.access.limits, *limits))
            return replace(changed, access=access)
        if isinstance(changed, ssa.Position):
            return replace(changed, name=self._position_name(changed))
        return changed

    def _position_name(self, position: ssa.Position) -> str:
        name = f"{position.name}.at"
        while name in self.draft.phase.positions:
            name += "'"
        self.names[position.name] = value_of(name, position.extent)
        return name


def insert_before(draft: Draft, user: Item, item: Item) -> Item:
    """Insert a new item just before `user`, in its segment, and return it."""
    item = draft.insert(user, replace(item, time=user.time))
    if item.dtype == f64 != user.dtype:
        draft.widen(item)
    return item


def dependencies(root: Item, axes: set[str]) -> Iterator[Item]:
    """Yield `root` and its transitive arguments, if they vary along some of `axes`."""

    def varying(items: Iterable[Item]) -> Iterable[Item]:
        return (i for i in items if i.axes & axes)

    return reachable(varying([root]), lambda item: varying(item.args))


def depends_on_reduction(root: Item, axes: set[str]) -> bool:
    """Return whether a value depends on a reduction along some axes.

    Scans, states of streams and bounds of blocks count too: none of them can be cloned at other
    positions.
    """
    return any(
        isinstance(i, (ssa.Reduction, ssa.StateRead, ssa.BlockEdge))
        for i in dependencies(root, axes)
    )


def merge_equal_items(phase: Phase) -> Phase:
    """Merge equal items (common subexpression elimination)."""
    canonical: dict[object, Item] = {}

    def first_equal(_: Item, item: Item) -> Item:
        return canonical.setdefault(item.key, item)

    merged = rebuild(phase, first_equal)
    return replace(merged, items=tuple(dict.fromkeys(merged.items)))


def prune(phase: Phase) -> Phase:
    """Remove dead items and updates of states that nothing reads."""
    while True:
        live = {*reachable(phase.roots(), lambda item: item.args)}
        read = {i.state for i in live if isinstance(i, ssa.StateRead)}
        updates = tuple(s for s in phase.state_updates if s.state in read)
        if len(updates) == len(phase.state_updates):
            return replace(phase, items=tuple(i for i in phase.items if i in live))
        phase = replace(phase, state_updates=updates)


def backward_slice(phase: Phase, roots: list[Item], ends: Collection[Item]) -> list[Item]:
    """Return what some values depend on, in order; the slice stops at `ends`."""

    def operands(item: Item) -> Iterable[Item]:
        names = item.access.positions if isinstance(item, ssa.Load) else ()
        return (*(phase.positions[n] for n in names), *(() if item in ends else item.args))

    slice_items = {*reachable(roots, operands)}
    return [i for i in phase.items if i in slice_items]


def cost_of(items: list[Item]) -> float:
    """Return the cycles for one vector of the scalar operators among items."""
    return sum(SCALARS[i.op].cost for i in items if isinstance(i, ssa.Apply))
