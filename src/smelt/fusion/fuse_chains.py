"""Fuse elementwise chains before the search: values that are read only at their own position.

Fusing such a value saves writing and reading it, costs nothing at its readers' position, and cannot
create a cycle because nothing else reads it. Doing this first keeps the search small: what remains
are values with readers at several positions, and reductions whose results are broadcast.

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

MAX_STREAMS = 12
"""Maximum arrays that a chain reads before the cost model evaluates every further join."""
MAX_SIZE = 200.0
"""Maximum scalar operations of a chain before the cost model evaluates every further join."""


class _Space:
    """The positions shared by a chain: its last unit's, or a reduction's."""

    __slots__ = ("home", "walked")

    def __init__(self, unit: Unit, home: int, one: int) -> None:
        self.home = home
        self.walked = {k for k, e in enumerate(unit.axes) if e != one}


def chains(units: Units, nbytes: Sequence[int], alone: int = 0, last: int = 0) -> dict[int, int]:
    """Return sets of units that belong together, by the number of their last unit.

    Units of the mask `alone` share no set, those of `last` none with what reads them.
    """
    spaces: dict[int, _Space] = {}
    positions: dict[int, tuple[int, ...]] = {}
    sets: dict[int, int] = {}
    size: dict[int, float] = {}
    reads: dict[int, int] = {}
    for unit in reversed(units.units):
        u = unit.number
        is_barrier = unit.is_library or unit.is_scatter or unit.scan_axis >= 0
        is_barrier |= bool((units.users[u] | 1 << u) & alone) or bool(last >> u & 1)
        shared = None if is_barrier else _common_position(units, unit, spaces, positions)
        if shared is not None and _has_larger_reader(units, unit, nbytes):
            shared = None
        home = u if shared is None else shared[0].home
        if shared is not None:
            members = sets[home] | 1 << u
            operands = (reads[home] | units.operands[u]) & ~members
            if operands.bit_count() > MAX_STREAMS or size[home] + units.size[u] > MAX_SIZE:
                shared, home = None, u
            else:
                sets[home], reads[home] = members, operands
                size[home] += units.size[u]
        if shared is None:
            sets[u], reads[u], size[u] = 1 << u, units.operands[u], units.size[u]
        if shared is None or unit.is_reduction:
            spaces[u], positions[u] = _Space(unit, home, units.one), tuple(range(len(unit.axes)))
        else:
            spaces[u], positions[u] = shared
    return dict(sorted(sets.items()))


def _common_position(
    units: Units, unit: Unit, spaces: dict[int, _Space], positions: dict[int, tuple[int, ...]]
) -> tuple[_Space, tuple[int, ...]] | None:
    """Return the common space and position of all readers, None if they differ."""
    u = unit.number
    if units.outputs >> u & 1:
        return None
    space: _Space | None = None
    common: tuple[int, ...] | None = None
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
            reader_position = positions[c]
            reader_index = tuple(
                [reader_position[t] if isinstance(t, int) and t >= 0 else -1 for t in edge.terms]
            )
            if common is not None and reader_index != common:
                return None
            common = reader_index
    if space is None or common is None or {t for t in common if t >= 0} != space.walked:
        return None
    return space, common


def _has_larger_reader(units: Units, unit: Unit, nbytes: Sequence[int]) -> bool:
    """Return whether a larger unit reads it that several others read.

    Then storing the unit may be better.
    """
    return any(
        units.users[c].bit_count() > 1 and nbytes[c] > nbytes[unit.number]
        for c in bits(units.users[unit.number])
    )
