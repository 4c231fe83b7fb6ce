"""Joins that need no question: a value all of whose readers stand at its own position.

Such a value saves being written and read, costs nothing to compute in its readers' place, and can
close no cycle, because nobody else reads it.  Doing these first makes the search small: what is
left to it are values with readers in several places, and folds whose results are broadcast.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m]) {
...   v0 = exp(x)
...   v1 = mul(v0, v0)
...   v2 = reduce.sum(v1) {axes=(1,)}
...   v3 = sqrt(v2)
...   return v3
... }''')
>>> chains(Units(graph), [4, 4, 4, 1, 1])
{4: 30}
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.fusion.bitsets import bits
from smelt.fusion.units import Unit, Units

MOST_STREAMS = 12
"""Arrays that a chain may read before the model is asked about every further join."""
MOST_SIZE = 200.0
"""Scalar operations that a chain may hold before the model is asked."""


class _Space:
    """Positions that the units of one chain share: those of its last unit, or of a fold in it."""

    __slots__ = ("home", "walked")

    def __init__(self, unit: Unit, home: int, one: int) -> None:
        self.home = home
        self.walked = {k for k, e in enumerate(unit.axes) if e != one}


def chains(units: Units, nbytes: Sequence[int]) -> dict[int, int]:
    """Sets of units that belong together, by the number of their last unit."""
    spaces: dict[int, _Space] = {}
    places: dict[int, tuple[int, ...]] = {}
    sets: dict[int, int] = {}
    size: dict[int, float] = {}
    reads: dict[int, int] = {}
    for unit in reversed(units.units):
        u = unit.number
        ends = unit.is_library or unit.joins or unit.along >= 0
        found = None if ends else _joins(units, unit, spaces, places)
        if found is not None and _is_dearer(units, unit, nbytes):
            found = None
        home = u if found is None else found[0].home
        if found is not None:
            members = sets[home] | 1 << u
            both = (reads[home] | units.operands[u]) & ~members
            if both.bit_count() > MOST_STREAMS or size[home] + units.size[u] > MOST_SIZE:
                found, home = None, u
            else:
                sets[home], reads[home] = members, both
                size[home] += units.size[u]
        if found is None:
            sets[u], reads[u], size[u] = 1 << u, units.operands[u], units.size[u]
        if found is None or unit.is_fold:
            spaces[u], places[u] = _Space(unit, home, units.one), tuple(range(len(unit.axes)))
        else:
            spaces[u], places[u] = found
    return dict(sorted(sets.items()))


def _joins(
    units: Units, unit: Unit, spaces: dict[int, _Space], places: dict[int, tuple[int, ...]]
) -> tuple[_Space, tuple[int, ...]] | None:
    """The one space and the one position in it at which all readers of a unit stand."""
    u = unit.number
    if units.outputs >> u & 1:
        return None
    space: _Space | None = None
    place: tuple[int, ...] | None = None
    for c in bits(units.users[u]):
        reader = units.unit(c)
        if reader.is_library or (space is not None and spaces[c] is not space):
            return None
        space = spaces[c]
        for edge in reader.edges:
            if edge.producer != u:
                continue
            if not edge.simple:
                return None
            own = places[c]
            at = tuple([own[t] if isinstance(t, int) and t >= 0 else -1 for t in edge.terms])
            if place is not None and at != place:
                return None
            place = at
    if space is None or place is None or {t for t in place if t >= 0} != space.walked:
        return None
    return space, place


def _is_dearer(units: Units, unit: Unit, nbytes: Sequence[int]) -> bool:
    """Whether a reader that several others read is larger: then storing the unit may be better."""
    return any(
        units.users[c].bit_count() > 1 and nbytes[c] > nbytes[unit.number]
        for c in bits(units.users[unit.number])
    )
