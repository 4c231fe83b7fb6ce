"""Sets of units that look alike have one verdict: the layers of a network are judged once.

Two sets are alike if their units, in order, do the same work along axes of the same sizes, read one
another and values from outside in the same way, and are written alike; and if those outside values
are as large and rest at the same level of memory.  Then everything that the model says about one
set holds for the other, with other numbers.  What sizes are called does not matter, unless an index
expression names them.

>>> from smelt.fusion.bitsets import Hints
>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> from smelt.target import Target
>>> units = Units(
...     parse('''graph f(x: f32[n], y: f32[n]) {
...   v0 = exp(x)
...   v1 = mul(v0, y)
...   v2 = exp(v1)
...   v3 = mul(v2, y)
...   return v3
... }''')
... )
>>> alike = Alike(units, Model(units, Target.for_isa("avx2"), Hints(n=1000)))
>>> one, other = alike.look(0b1100, 0b1000), alike.look(0b110000, 0b100000)
>>> one.form == other.form, one.values, other.values
(True, [0, 2, 1, 3], [3, 4, 1, 5])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import bits
from smelt.fusion.cost import Model
from smelt.fusion.region import Place, Places, Region
from smelt.fusion.units import Unit, Units, is_free
from smelt.graph.ir import Node
from smelt.types.expr import Atom, Expr, Index, atoms, rebuild, value

T = TypeVar("T")


@dataclass(slots=True)
class Look:
    """What a set of units looks like."""

    form: tuple[int, ...]
    """Equal for sets that look alike."""
    values: list[int]
    """Its units and the values that it reads, in order of appearance."""
    extents: list[int]
    """The extents of its axes, in order of appearance; empty if they must be the very same."""

    def here(self, other: Look, v: int) -> int:
        """What a value of this set is called in one that looks alike."""
        return other.values[self.values.index(v)]


class Alike:
    """Tells whether sets of units of one graph look alike."""

    def __init__(self, units: Units, model: Model) -> None:
        self.units, self.model = units, model
        self.known: dict[tuple[Any, ...], int] = {}
        self.outer = [self._outer(v) for v in range(len(units.values))]
        """For each value, what it is to a kernel that reads it."""
        self.inner = [-1] * len(units.inputs) + [self._inner(unit) for unit in units.units]
        """For each unit, what it is to the kernel that computes it."""
        self.axes = [-1] * len(units.inputs) + [self._number(u.axes, "") for u in units.units]
        """For each unit, a number for the extents of its axes."""
        self.shapes = [self._number(*node.type.shape) for node in units.values]
        """For each value, a number for its shape."""
        self.producers: list[tuple[int, ...]] = [()] * len(units.inputs)
        self.producers += [tuple([e.producer for e in unit.edges]) for unit in units.units]
        self.strict = self.none = 0
        """Units whose reads name their axes' extents; units that no other is like."""
        for unit in units.units:
            if unit.joins or unit.is_library:
                self.none |= 1 << unit.number
            elif not all(e.simple for e in unit.edges):
                self.strict |= 1 << unit.number

    def _number(self, *key: Any) -> int:
        return self.known.setdefault(key, len(self.known))

    def _outer(self, v: int) -> int:
        model = self.model
        return self._number(
            model.nbytes[v], model.itemsize[v], model.home[v], v in self.units.loose
        )

    def _inner(self, unit: Unit) -> int:
        u, found = unit.number, unit.trace
        return self._number(
            self.outer[u],
            self.model.step_ns[u],
            unit.rank,
            unit.along,
            found.cost,
            found.size,
            found.dots,
            found.guards,
            found.positional,
            tuple([e.terms for e in unit.edges]),
            found.picks,
            _spelled(unit.node),
        )

    def look(self, members: int, stored: int) -> Look | None:
        """What a set of units looks like; None if it is like no other."""
        if members & self.none:
            return None
        inner, outer, axes, producers = self.inner, self.outer, self.axes, self.producers
        lies = self.shapes
        strict = bool(members & self.strict)
        places: dict[int, int] = {}
        shapes: dict[int, int] = {}
        extents: dict[int, int] = {}
        form: list[int] = [strict]
        for u in bits(members):
            form.append(~inner[u] if stored >> u & 1 else inner[u])
            place = shapes.get(axes[u])
            if place is None:
                shapes[axes[u]] = len(shapes)
                self._spell(u, extents, form, strict)
            else:
                form.append(place)
            for v in producers[u]:
                place = places.get(v)
                if place is None:
                    place = places[v] = len(places)
                    form += (place, outer[v])
                    if strict:
                        form.append(lies[v])
                else:
                    form.append(place)
            places[u] = len(places)
        return Look(tuple(form), list(places), [] if strict else list(extents))

    def alone(self, u: int) -> tuple[int, ...]:
        """What a unit that maps whole values looks like by itself."""
        return (self.inner[u], *[self.outer[v] for v in bits(self.units.operands[u])])

    def _spell(self, u: int, extents: dict[int, int], form: list[int], strict: bool) -> None:
        """Adds the extents of a unit's axes to a form."""
        form.append(-1)
        for e in self.units.unit(u).axes:
            place = extents.get(e)
            if place is None:
                place = extents[e] = len(extents)
                form += (place, e if strict or e == self.units.one else -self.model.extents[e])
            else:
                form.append(place)


def _spelled(node: Node) -> tuple[Any, ...]:
    """An operator and the constants that it is applied to: what a carried fold is derived from.
    Of views only the kind counts; their index maps are in the reads."""
    below = [_spelled(x) for x in node.inputs if is_free(x)]
    return (type(node.op) if node.op.is_view else node.op, *below)


def renamed(region: Region, one: Look, other: Look) -> Region:
    """The region of a set that looks like `other`, from that of a set that looks like `one`."""
    values = dict(zip(one.values, other.values, strict=True))
    extents = dict(zip(one.extents, other.extents, strict=True))

    def keys(found: Mapping[int, T]) -> dict[int, T]:
        return {values[k]: value for k, value in found.items()}

    def places(found: Places) -> Places:
        if picks:
            found = {k: [_named(p, picks) for p in v] for k, v in found.items()}
        return keys(found)

    picks = {name: _of(name, values) for name in region.picks}
    members = sum([1 << values[u] for u in bits(region.members)])
    stored = sum([1 << values[u] for u in bits(region.stored)])
    return Region(
        members,
        stored,
        [extents[e] for e in region.axes] if extents else region.axes,
        places(region.places),
        keys(region.masks),
        places(region.loads),
        keys(region.load_masks),
        keys(region.ended),
        keys(region.levels),
        region.grid,
        region.folded,
        region.scanned,
        region.flat,
        region.even,
        region.work,
        region.fault,
        values[region.at] if region.at >= 0 else -1,
        keys(region.ends),
        keys(region.peeked),
        region.packing,
        {picks[name]: axes for name, axes in region.picks.items()},
    )


def _of(name: str, values: Mapping[int, int]) -> str:
    """What a position that data decide is called at another unit (as `region` names them)."""
    word, unit, nth = name.split(".")
    return f"{word}.{values[int(unit)]}.{nth}"


def _named(place: Place, picks: Mapping[str, str]) -> Place:
    """A place with other names for positions that data decide."""

    def leaf(atom: Atom) -> Index:
        if atom.kind == "value":
            return value(picks[atom.name], atom.extent)
        return Expr((((atom,), 1),))

    return tuple(
        [
            rebuild(t, leaf)
            if isinstance(t, Expr) and any(a.kind == "value" for a in atoms(t))
            else t
            for t in place
        ]
    )
