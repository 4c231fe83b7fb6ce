"""A set of units as one kernel: where each is computed, along which axes, in how many sweeps.

Lowering pulls values back from the outputs and gives axes their roles; this module foresees the
outcome without building anything, so that the search can ask about thousands of sets.  A *place* is
the position at which a unit is computed, in axes of the region: an axis number for each dimension,
`STILL`, or an index expression.

>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m]) {
...   v0 = reduce.max(x) {axes=(1,)}
...   v1 = reshape(v0) {shape=(n,1)}
...   v2 = sub(x, v1)
...   return v2
... }''')
>>> region = look(Units(graph), 0b110, 0b100)
>>> region.places[2], region.places[1], region.levels, region.fault
([(0, 1)], [(0,)], {1: 1, 2: 1}, None)
>>> region.grid, region.ended
(1, {1: 2})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from smelt.fusion.sets import bits
from smelt.fusion.space import regrouped
from smelt.fusion.trace import Term
from smelt.fusion.units import STILL, Edge, Unit, Units
from smelt.ops.contract import bare_axis
from smelt.types.expr import Atom, Expr, Index, atoms, axis, rebuild, value

Place: TypeAlias = tuple[Term, ...]


@dataclass(slots=True)
class Region:
    """What `look` finds.  Sets of units, values and axes are bit masks."""

    members: int
    stored: int
    axes: list[int] = field(default_factory=list[int])
    """Extent numbers (of `Units.extents`) of the axes."""
    places: dict[int, list[Place]] = field(default_factory=dict[int, list[Place]])
    loads: dict[int, list[Place]] = field(default_factory=dict[int, list[Place]])
    """Values from outside and where they are read."""
    masks: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """For each unit and each of its places, the axes it varies along."""
    load_masks: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """The axes of each place in `loads`."""
    ended: dict[int, int] = field(default_factory=dict[int, int])
    """Axes that each fold ends."""
    levels: dict[int, int] = field(default_factory=dict[int, int])
    """How many folds lie one behind the other, up to and with a unit."""
    grid: int = 0
    scanned: int = 0
    fault: str | None = None
    """The reason for which this is no kernel."""
    at: int = -1
    """The unit that the fault is about."""

    @property
    def folded(self) -> int:
        """Axes that some fold ends."""
        found = 0
        for mask in self.ended.values():
            found |= mask
        return found

    @property
    def all_axes(self) -> int:
        return (1 << len(self.axes)) - 1

    def refuse(self, reason: str, unit: int) -> Region:
        """This region with a fault."""
        self.fault, self.at = reason, unit
        return self


def look(
    units: Units, members: int, stored: int, walked: Mapping[int, tuple[int, ...]] | None = None
) -> Region:
    """The region of units `members`, of which `stored` are written.

    `walked` gives stored units another shape to be walked under, as extent numbers: a result
    [n, c] whose folds live in [n, g, c//g] is computed group by group and written as it lies.
    """
    return _Pull(units, Region(members, stored), walked or {}).run()


class _Pull:
    """Pulls values back from the stored units."""

    def __init__(
        self, units: Units, region: Region, walked: Mapping[int, tuple[int, ...]]
    ) -> None:  # fmt: skip
        self.units, self.region, self.walked = units, region, walked
        self.origins: list[int] = []
        self.classes: dict[int, int] | None = None
        self.picks: dict[str, int] = {}
        self.expr_masks: dict[Expr, int] = {}

    def run(self) -> Region:
        region = self.region
        for u in bits(region.stored):
            place = self._own_place(self.units.unit(u))
            region.places.setdefault(u, []).append(place)
        for u in reversed(list(bits(region.members))):
            places = region.places.get(u)
            if places is None:
                continue  # nobody in the region needs it
            for place in places:
                self._follow(self.units.unit(u), place)
        self._levels()
        return self._judge()

    # ---- axes ----------------------------------------------------------------------------------

    def _own_place(self, unit: Unit) -> Place:
        used = 0
        place: list[Term] = []
        shape = self.walked.get(unit.number)
        for d, extent in enumerate(shape or unit.axes[: unit.rank]):
            if extent == self.units.one:
                place.append(STILL)
                continue
            a = self._axis(extent, used, unit.number * 32 + d)
            used |= 1 << a
            place.append(a)
        return tuple(place) if shape is None else self._regrouped(unit, shape, place)

    def _regrouped(self, unit: Unit, shape: tuple[int, ...], place: list[Term]) -> Place:
        """Where a unit is computed when it is walked under another shape."""
        extents = self.units.extents
        own = tuple(extents[e] for e in unit.axes[: unit.rank])
        at = tuple(map(self._index, place))
        found = regrouped(tuple(extents[e] for e in shape), own, at)
        return tuple(self._term(e, dim) for e, dim in zip(found, own, strict=True))

    def _axis(self, extent: int, used: int, key: int) -> int:
        """An axis of an extent that is not used yet: of the same class if there are several."""
        axes = self.region.axes
        free = [a for a, e in enumerate(axes) if e == extent and not used >> a & 1]
        if not free:
            axes.append(extent)
            self.origins.append(key)
            return len(axes) - 1
        if len(free) > 1:
            if self.classes is None:
                self.classes = self._classes()
            kind = _find(self.classes, key)
            for a in free:
                if _find(self.classes, self.origins[a]) == kind:
                    return a
        return free[0]

    def _classes(self) -> dict[int, int]:
        """Which dimensions are the same axis by the edges inside the region (union-find)."""
        parent: dict[int, int] = {}
        for u in bits(self.region.members):
            for edge in self.units.unit(u).edges:
                for d, term in enumerate(edge.terms):
                    if isinstance(term, int) and term >= 0:
                        a, b = _find(parent, u * 32 + term), _find(parent, edge.producer * 32 + d)
                        parent[b] = a
        return parent

    # ---- places --------------------------------------------------------------------------------

    def _follow(self, unit: Unit, place: Place) -> None:
        region = self.region
        used = self.mask(place)
        region.masks.setdefault(unit.number, []).append(used)
        if unit.ended:
            ended = 0
            more: list[Term] = []
            for k in range(unit.rank, len(unit.axes)):
                a = self._axis(unit.axes[k], used | ended, unit.number * 32 + k)
                ended |= 1 << a
                more.append(a)
            region.ended[unit.number] = region.ended.get(unit.number, 0) | ended
            place = (*place, *more)
        for edge in unit.edges:
            if edge.simple:
                found = tuple([place[t] if t >= 0 else STILL for t in edge.terms])  # type: ignore[index,operator]
            else:
                found = self._through(unit, edge, place)
            v = edge.producer
            if region.members >> v & 1:
                known = region.places.setdefault(v, [])
                if found not in known:
                    known.append(found)
            else:
                known = region.loads.setdefault(v, [])
                if found not in known:
                    known.append(found)
                    region.load_masks.setdefault(v, []).append(self.mask(found))

    def _through(self, unit: Unit, edge: Edge, place: Place) -> Place:
        """The place that an edge with index expressions reads."""

        def leaf(atom: Atom) -> Index:
            if atom.kind == "axis":
                return self._index(place[int(atom.name[1:])])
            if atom.kind == "value":
                return self._pick(unit, atom, place)
            return Expr((((atom,), 1),))

        shape = self.units.values[edge.producer].type.shape
        found: list[Term] = []
        for term, dim in zip(edge.terms, shape, strict=True):
            if isinstance(term, int):
                found.append(place[term] if term >= 0 else STILL)
            else:
                found.append(self._term(rebuild(term, leaf), dim))
        return tuple(found)

    def _index(self, term: Term) -> Index:
        if isinstance(term, Expr):
            return term
        return 0 if term == STILL else axis(f"a{term}", self.units.extents[self.region.axes[term]])

    def _term(self, e: Index, dim: Index) -> Term:
        if isinstance(e, int):
            return STILL if e == 0 else Expr((((), e),))
        name = bare_axis(e)
        if name is not None and self.units.extents[self.region.axes[int(name[1:])]] == dim:
            return int(name[1:])
        return e

    def _pick(self, unit: Unit, atom: Atom, place: Place) -> Index:
        """A position that the data decides, under a name of its own for each place."""
        axes = dict(unit.trace.picks)[atom.name]
        mask = self.mask(tuple(place[a] for a in axes))
        nth = self.region.places[unit.number].index(place[: unit.rank])
        name = f"{atom.name}.{unit.number}.{nth}"
        self.picks[name] = mask
        return value(name, atom.extent)

    def mask(self, place: Place) -> int:
        """The axes that a place depends on."""
        found = 0
        for term in place:
            if not isinstance(term, int):
                found |= self._expr_mask(term)
            elif term >= 0:
                found |= 1 << term
        return found

    def _expr_mask(self, e: Expr) -> int:
        known = self.expr_masks.get(e)
        if known is None:
            known = 0
            for atom in atoms(e):
                if atom.kind == "axis":
                    known |= 1 << int(atom.name[1:])
                elif atom.kind == "value":
                    known |= self.picks[atom.name]
            self.expr_masks[e] = known
        return known

    # ---- verdict -------------------------------------------------------------------------------

    def _levels(self) -> None:
        levels = self.region.levels
        members = self.region.members
        for u in reversed(self.region.masks):  # operands before readers
            unit = self.units.unit(u)
            below = 0
            for edge in unit.edges:
                if members >> edge.producer & 1:  # needed, hence seen
                    below = max(below, levels[edge.producer])
            levels[u] = below + bool(unit.ended)

    def _judge(self) -> Region:
        """Finds the grid, or the fault."""
        region = self.region
        for u, places in region.places.items():
            unit = self.units.unit(u)
            if not unit.ended and unit.along < 0:
                continue
            if len(places) > 1 or any(not isinstance(t, int) for t in places[0]):
                return region.refuse("reduction-crossing", u)
            if unit.along >= 0:
                along = places[0][unit.along]
                assert isinstance(along, int)
                region.scanned |= 1 << along if along >= 0 else 0
                if along < 0 or region.scanned != 1 << along:
                    return region.refuse("reduction-crossing", u)
        common = region.all_axes
        walked: list[int] = []
        for u in bits(region.stored):
            own = region.masks[u][0]
            common &= own
            walked.append(self._walked(u))
        region.grid = common & ~region.folded & ~region.scanned
        for k, mask in enumerate(walked):
            for other in walked[:k]:
                if not mask & other and mask | other:
                    return region.refuse("different-axes", list(bits(region.stored))[k])
        return region

    def _walked(self, u: int) -> int:
        """Axes that computing a stored unit visits: its own and those that end below it."""
        region = self.region
        found = region.masks[u][0]
        seen = 0
        pending = [u]
        while pending:
            k = pending.pop()
            if seen >> k & 1:
                continue
            seen |= 1 << k
            found |= region.ended.get(k, 0)
            pending += [e.producer for e in self.units.unit(k).edges
                        if region.members >> e.producer & 1]  # fmt: skip
        return found


def _find(parent: dict[int, int], key: int) -> int:
    root = key
    while (above := parent.get(root, root)) != root:
        root = above
    while key != root:
        parent[key], key = root, parent.get(key, root)
    return root
