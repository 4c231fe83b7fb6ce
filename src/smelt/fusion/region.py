"""A set of units as one kernel: where each is computed, along which axes, behind which folds.

Lowering pulls values back from the outputs and gives axes their roles; this module foresees the
outcome without building anything, so that the search can ask about thousands of sets.  A *place* is
the position at which a unit is computed, in axes of the region: an axis number for each dimension,
`STILL`, or an index expression.

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

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import lru_cache
from itertools import combinations
from typing import TypeAlias

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import bits, find
from smelt.fusion.plan import Cluster
from smelt.fusion.range_outputs import stored_parts
from smelt.fusion.space import regrouped
from smelt.fusion.trace import Term
from smelt.fusion.units import STILL, Edge, Unit, Units
from smelt.fusion.window_recompute import Window, windows_of
from smelt.ops.contract import bare_axis
from smelt.types.affine import coefficient
from smelt.types.dtype import f32, f64
from smelt.types.expr import Atom, Expr, Index, atoms, axes_of, axis, product, rebuild, value

Place: TypeAlias = tuple[Term, ...]
Places: TypeAlias = dict[int, list[Place]]
Masks: TypeAlias = dict[int, list[int]]


@dataclass(slots=True, eq=False)
class Region:
    """What `look` finds.  Sets of units, values and axes are bit masks."""

    members: int
    stored: int
    axes: list[int] = field(default_factory=list[int])
    """Extent numbers (of `Units.extents`) of the axes."""
    places: Places = field(default_factory=dict[int, list[Place]])
    """Where each unit is computed; readers come before what they read."""
    masks: Masks = field(default_factory=dict[int, list[int]])
    """The axes of each of these places."""
    loads: Places = field(default_factory=dict[int, list[Place]])
    """Values from outside and where they are read."""
    load_masks: Masks = field(default_factory=dict[int, list[int]])
    ended: dict[int, int] = field(default_factory=dict[int, int])
    """Axes that each fold ends."""
    levels: dict[int, int] = field(default_factory=dict[int, int])
    """How many folds lie one behind the other, up to and with a unit; empty if there are none."""
    grid: int = 0
    """Axes that every result has and no fold ends."""
    folded: int = 0
    scanned: int = 0
    flat: bool = False
    """Every unit is computed once, at positions of one and the same space."""
    even: bool = False
    """Flat, and at every position of it: nothing is broadcast inside."""
    work: float = -1.0
    """Nanoseconds of arithmetic on one core; -1 until the model has counted."""
    fault: str | None = None  # the reason for which this is no kernel
    at: int = -1  # the unit that the fault is about
    ends: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """The same axes as `ended` in the order in which a fold ends them, where it stands first."""
    peeked: dict[int, list[Window]] = field(default_factory=dict[int, "list[Window]"])
    """The windows through which folds read each product that is computed once for each place."""
    packing: float = 0.0
    """The part of `work` that packs operands of products again."""
    picks: dict[str, int] = field(default_factory=dict[str, int])
    """The axes of each position that data decide."""
    parts: dict[int, int] = field(default_factory=dict[int, int])
    """Results that are ranges of a unit, stored at its places."""

    @property
    def all_axes(self) -> int:
        return (1 << len(self.axes)) - 1

    def refuse(self, reason: str, unit: int) -> Region:
        """This region with a fault."""
        self.fault, self.at = reason, unit
        return self


MOST_READS = 256
"""Reads that a unit may be written out with at its places, and half of those of a whole kernel at
places behind its units' first: short sums behind one another multiply them, neighbours add up."""


def look(
    units: Units, members: int, stored: int, walked: Mapping[int, tuple[int, ...]] | None = None
) -> Region:
    """The region of units `members`, of which `stored` are written.

    `walked` gives stored units another shape to be walked under, as extent numbers: a result
    [n, c] whose folds live in [n, g, c//g] is computed group by group and written as it lies.
    """
    return _Pull(units, Region(members, stored), walked or {}).run()


def region_of(units: Units, cluster: Cluster) -> Region:
    """The region of a cluster of a finished plan, walked as the plan says."""
    members = sum(1 << units.number[node] for node in cluster.nodes if units.is_unit(node))
    stored = [units.number[node] for node in cluster.outputs]
    walked = {
        u: tuple(map(units.extent_number, shape))
        for u, node, shape in zip(stored, cluster.outputs, cluster.shapes)
        if shape != node.type.shape
    }
    return look(units, members, sum(1 << u for u in stored), walked)


class _Pull:
    """Pulls values back from the stored units."""

    def __init__(self, units: Units, region: Region, walked: Mapping[int, tuple[int, ...]]) -> None:
        self.units, self.region, self.walked = units, region, walked
        self.origins: list[int] = []
        self.classes: dict[int, int] | None = None
        self.own: dict[int, int] | None = None
        self.beside: set[tuple[int, int]] = set()
        """Classes of axes that some member has beside one another, both ways."""
        self.square = region.members & units.square
        picked = region.members & units.picked  # under names that say other axes in other regions
        self.known_masks: dict[Place, int] = {} if picked else units.masks
        self.expressed = units.expressed
        self.odd = 0
        """Units that are computed at several places, or at one with index expressions."""
        self.seen: set[tuple[int, Place]] = set()
        """The places of units and loads that are known: in chains of shifts there are hundreds."""

    def run(self) -> Region:
        region, units = self.region, self.units
        if not self.walked:
            region.parts = stored_parts(units, region.members, region.stored)
        for u in bits(region.stored):
            place = self._own_place(units.unit(region.parts.get(u, u)))
            region.places[u] = [place]
            if (whole := region.parts.get(u)) is not None:
                region.places[whole] = [place]
                self.seen.add((whole, place))
            self.seen.add((u, place))
            if place in self.expressed:
                self.odd |= 1 << u
        left, again = region.members, 0
        while left:
            u = left.bit_length() - 1
            left ^= 1 << u
            places = region.places.get(u)
            if places is not None:  # else nobody in the region needs it
                unit = units.unit(u)
                again += (len(places) - 1) * len(unit.edges)
                if len(places) > 1 and max(again / 2, len(places) * len(unit.edges)) > MOST_READS:
                    return region.refuse("code-size", u)
                if self.odd >> u & 1 and units.folds >> u & 1 and not self._is_once(unit):
                    return region.refuse("reduction-crossing", u)
                region.masks[u] = []
                for place in places:
                    if u in region.parts:  # it is stored where the whole is computed
                        region.masks[u].append(self.mask(place))
                    else:
                        self._follow(unit, place)
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
            a = self._axis(extent, used, unit.number * 32 + d, own=shape is None)
            used |= 1 << a
            place.append(a)
        return tuple(place) if shape is None else self._regrouped(unit, shape, place)

    def _regrouped(self, unit: Unit, shape: tuple[int, ...], place: list[Term]) -> Place:
        """Where a unit is computed when it is walked under another shape."""
        key = (unit.number, shape, *place)
        found = self.units.regrouped.get(key)
        if found is None:
            extents = self.units.extents
            own = tuple(extents[e] for e in unit.axes[: unit.rank])
            at = tuple(map(self._index, place))
            flat = regrouped(tuple(extents[e] for e in shape), own, at)
            found = tuple(self._term(e, dim) for e, dim in zip(flat, own, strict=True))
            self.units.regrouped[key] = found
        return self._noted(found)

    def _noted(self, place: Place) -> Place:
        """`place`, remembered if it has index expressions."""
        for t in place:
            if not isinstance(t, int):
                self.expressed.add(place)
                break
        return place

    def _axis(self, extent: int, used: int, key: int, *, own: bool = True) -> int:
        """An axis of an extent that is not used yet: of the same class if there are several."""
        axes = self.region.axes
        free = [a for a, e in enumerate(axes) if e == extent and not used >> a & 1]
        if free and self.square and own:
            free = self._apart(free, key)
        if not free:
            axes.append(extent)
            self.origins.append(key)
            return len(axes) - 1
        if len(free) > 1:
            if self.classes is None:
                self.classes = self._classes(self.units.everything)
            kind = find(self.classes, key)
            for a in free:
                if find(self.classes, self.origins[a]) == kind:
                    return a
        return free[0]

    def _apart(self, free: list[int], key: int) -> list[int]:
        """Of some axes those of the same class by the edges between members, if there are; else
        those that no member has beside it: as many queries as keys are two axes still."""
        if self.own is None:
            made = sum(1 << u for u in bits(self.region.members) if self.units.unit(u).edges)
            self.own = self._classes(made)  # what is made of nothing ties no axes together
            for u in bits(self.square):
                same = combinations(enumerate(self.units.unit(u).axes), 2)
                pairs = [(u * 32 + d, u * 32 + k) for (d, e), (k, n) in same if e == n]
                for one, other in pairs:
                    a, b = find(self.own, one), find(self.own, other)
                    self.beside |= {(a, b), (b, a)}
        kind = find(self.own, key)
        kinds = {a: find(self.own, self.origins[a]) for a in free}
        alike = [a for a in free if kinds[a] == kind]
        return alike or [a for a in free if (kinds[a], kind) not in self.beside]

    def _classes(self, producers: int) -> dict[int, int]:
        """Which dimensions are the same axis by the edges from `producers` to members
        (union-find)."""
        parent: dict[int, int] = {}
        ties = self.units.ties
        for u in bits(self.region.members):
            for v, pairs in ties[u]:
                if producers >> v & 1:
                    for one, other in pairs:
                        a, b = find(parent, one), find(parent, other)
                        if a != b:
                            parent[b] = a
        return parent

    # ---- places --------------------------------------------------------------------------------

    def _follow(self, unit: Unit, place: Place) -> None:
        region = self.region
        used = self.mask(place)
        region.masks[unit.number].append(used)
        full = place
        if unit.is_fold:
            ended = 0
            more: list[Term] = []
            for k in range(unit.rank, len(unit.axes)):
                a = self._axis(unit.axes[k], used | ended, unit.number * 32 + k)
                ended |= 1 << a
                more.append(a)
            region.ended[unit.number] = region.ended.get(unit.number, 0) | ended
            region.ends.setdefault(unit.number, tuple([a for a in more if isinstance(a, int)]))
            full = (*place, *more)
        members, places, loads, seen = region.members, region.places, region.loads, self.seen
        for edge in unit.edges:
            if edge.same:
                found = place
            elif edge.simple:
                plain: tuple[int, ...] = edge.terms  # type: ignore[assignment]
                found = tuple([full[t] if t >= 0 else STILL for t in plain])
                if place in self.expressed:
                    self._noted(found)
            else:
                found = self._noted(self._through(unit, edge, full))
            v = edge.producer
            count = len(seen)
            seen.add((v, found))
            if len(seen) == count:
                continue
            if members >> v & 1:
                known = places.setdefault(v, [])
                known.append(found)
                if len(known) > 1 or found in self.expressed:
                    self.odd |= 1 << v
                continue
            loads.setdefault(v, []).append(found)
            region.load_masks.setdefault(v, []).append(self.mask(found))

    def _through(self, unit: Unit, edge: Edge, place: Place) -> Place:
        """The place that an edge with index expressions reads."""
        axes, shape = self.region.axes, self.units.values[edge.producer].type.shape
        key = (edge.terms, shape, place, *[axes[a] for a in bits(self.mask(place))])
        found = None if unit.trace.picks else self.units.rewritten.get(key)
        if found is None:
            found = tuple(
                [
                    self._term(rebuild(term, self._leaf(unit, place)), dim)
                    if isinstance(term, Expr)
                    else place[term]
                    if term >= 0
                    else STILL
                    for term, dim in zip(edge.terms, shape, strict=True)
                ]
            )
            if not unit.trace.picks:  # whose positions have a name for each place
                self.units.rewritten[key] = found
        return found

    def _leaf(self, unit: Unit, place: Place) -> Callable[[Atom], Index]:
        """What each variable of an edge's expression stands for at a place."""

        def leaf(atom: Atom) -> Index:
            if atom.kind == "axis":
                return self._index(place[int(atom.name[1:])])
            if atom.kind == "value":
                return self._pick(unit, atom, place)
            return Expr((((atom,), 1),))

        return leaf

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
        nth = self.region.places[unit.number].index(place[: unit.rank])
        name = f"{atom.name}.{unit.number}.{nth}"
        self.region.picks[name] = self.mask(tuple(place[a] for a in axes))
        return value(name, atom.extent)

    def mask(self, place: Place) -> int:
        """The axes that a place depends on."""
        found = self.known_masks.get(place)
        if found is None:
            found = 0
            for term in place:
                if not isinstance(term, int):
                    found |= self._expr_mask(term)
                elif term >= 0:
                    found |= 1 << term
            self.known_masks[place] = found
        return found

    def _expr_mask(self, e: Expr) -> int:
        found = 0
        for atom in atoms(e):
            if atom.kind == "axis":
                found |= 1 << int(atom.name[1:])
            elif atom.kind == "value":
                found |= self.region.picks[atom.name]
        return found

    # ---- verdict -------------------------------------------------------------------------------

    def _levels(self) -> None:
        region = self.region
        if not region.ended:
            return
        levels = region.levels
        for u in reversed(region.masks):  # operands before readers
            unit = self.units.unit(u)
            below = 0
            for edge in unit.edges:
                below = max(below, levels.get(edge.producer, 0))
            levels[u] = below + unit.is_fold
        for mask in region.ended.values():
            region.folded |= mask

    def _dear_folds(self) -> list[int]:
        """Contractions if there are any, since nothing else counts beside them; else all folds."""
        ended = self.region.ended
        return [u for u in ended if self.units.unit(u).trace.dots] or list(ended)

    def _judge(self) -> Region:
        """Finds the grid, or the fault."""
        region = self.region
        joined = region.members & self.units.joined
        if joined & (joined - 1) or (joined and joined != region.stored):
            return region.refuse("scatter-root", joined.bit_length() - 1)
        for u in bits(region.members & self.units.folds):
            unit = self.units.unit(u)
            if unit.along >= 0 and u in region.places:
                along = region.places[u][0][unit.along]
                if not isinstance(along, int) or along < 0:  # one of its elements is read
                    return region.refuse("reduction-crossing", u)
                region.scanned |= 1 << along
                if region.scanned.bit_count() != 1:
                    return region.refuse("reduction-crossing", u)
        common = region.all_axes
        every = 0
        for u in bits(region.stored):
            common &= region.masks[u][0]
            every |= region.masks[u][0]
        for u in self._dear_folds():  # they would be done again along axes that they lack
            common &= region.masks[u][0] | region.ended[u]
        region.grid = common & ~region.folded & ~region.scanned
        region.flat = not self.odd and not region.ended and region.grid == region.all_axes
        region.even = region.flat and all(m == [region.grid] for m in region.masks.values())
        return region if common == every else self._related()

    def _is_once(self, unit: Unit) -> bool:
        """Whether a fold at a place with index expressions is computed once for each result: the
        expressions put the region's axes together, and take none apart."""
        (place, *others) = self.region.places[unit.number]
        if others or unit.along >= 0:
            return False
        if unit.trace.dots and self._is_peeked(unit, place):
            return True
        extents = self.units.extents
        walked = product(extents[self.region.axes[a]] for a in bits(self.mask(place)))
        if unit.trace.dots and not self._is_blocked(place):
            return False
        elements = self.units.values[unit.number].type.elements
        return walked == elements or _keeps_apart(place)

    def _is_peeked(self, unit: Unit, place: Place) -> bool:
        """Whether folds read a product through windows, which no other product looks through."""
        units, region = self.units, self.region
        taps = barred = 0
        for u, ended in region.ended.items():
            if units.unit(u).trace.dots:
                barred |= ended
            else:
                taps |= ended
        found = windows_of(place, taps & ~barred, lambda a: units.extents[region.axes[a]])
        if not found or units.values[unit.number].type.dtype.compute not in (f32, f64):
            return False
        region.peeked[unit.number] = found
        return True

    def _is_blocked(self, place: Place) -> bool:
        """Whether a product may be blocked along the axes of a place: they are its readers' own,
        and none is taken apart."""
        ended = 0
        for mask in self.region.ended.values():
            ended |= mask
        parts = [a for t in place if not isinstance(t, int) for a in atoms(t)]
        return not self.mask(place) & ended and all(a.kind not in ("//", "%") for a in parts)

    def _related(self) -> Region:
        """Results over different axes must meet in the axes that computing them walks."""
        region = self.region
        walked: dict[int, int] = {}
        for u in reversed(region.masks):
            found = region.masks[u][0] | region.ended.get(u, 0)
            for edge in self.units.unit(u).edges:
                found |= walked.get(edge.producer, 0)
            walked[u] = found
        seen: list[int] = []
        for u in bits(region.stored):
            for other in seen:
                if not walked[u] & other and walked[u] | other:
                    return region.refuse("different-axes", u)
            seen.append(walked[u])
        return region


def _keeps_apart(place: Place) -> bool:
    """Whether each position has a place of its own, as where a part of a value is read: every term
    moves along an axis that no other one has."""
    seen = set[int]()
    for term in place:
        axes = () if term == STILL else axis_numbers(term)
        step = coefficient(term, f"a{axes[0]}") if isinstance(term, Expr) and axes else 1
        if len(axes) > 1 or seen & {*axes} or not isinstance(step, int) or step == 0:
            return False
        seen.update(axes)
    return True


@lru_cache(maxsize=4096)
def axis_numbers(term: Term) -> tuple[int, ...]:
    """The axes of a term; those that stand still are told as such."""
    return (term,) if isinstance(term, int) else tuple(int(name[1:]) for name in axes_of(term))
