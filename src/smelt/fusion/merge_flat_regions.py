"""Two flat regions as one, found from what crosses between them alone.

A flat region computes every unit once at the positions of one space.  If one reads the other at its
own positions, the two spaces are one up to the order of axes, and nothing has to be pulled back
again: loads and stores are put together, and work adds up.

>>> from smelt.fusion.region import look
>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> units = Units(
...     parse('''graph f(x: f32[n,m], y: f32[m,n]) {
...   v0 = exp(x)
...   v1 = permute(v0) {perm=(1, 0)}
...   v2 = mul(v1, y)
...   return v2
... }''')
... )
>>> found = join_flat(look(units, 0b100, 0b100), look(units, 0b1000, 0b1000), 0b1000)
>>> found.loads, found.loads == look(units, 0b1100, 0b1000).loads
({1: [(0, 1)], 0: [(1, 0)]}, True)
"""

from __future__ import annotations

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Place, Region


def join_flat(one: Region, other: Region, stored: int) -> Region | None:
    """The region of two flat ones together, found from what crosses between them alone.

    `other` may read `one`, the other way round, or neither (siblings).  None if the two spaces are
    not seen to be the same, or if anything else is out of the ordinary: then `look` knows.  Only
    stored units have places in the result.
    """
    turn = _turn(one, other)
    again = one.members & other.members
    if turn is None or (again and not (one.even and other.even)):
        return None
    found = Region(one.members | other.members, stored, list(other.axes))
    for region, moves in ((other, None), (one, turn)):
        for u in bits(region.stored & stored):
            if u not in found.places:
                (place,) = region.places[u]
                found.places[u] = [_moved(place, moves)]
                found.masks[u] = [found.all_axes]
        if not _add_loads(found, region, moves):
            return None
    found.picks = one.picks | other.picks
    found.grid, found.flat, found.even = found.all_axes, True, one.even and other.even
    return found


def _turn(one: Region, other: Region) -> tuple[int, ...] | None:
    """For each axis of `one`, the axis of `other` that it is."""
    if len(one.axes) != len(other.axes):
        return None
    turn: tuple[int, ...] | None = None
    values = [v for v in other.loads if one.stored >> v & 1]
    pairs = [(one.places[v], other.loads[v]) for v in values]
    pairs += [(one.loads[v], other.places[v]) for v in one.loads if other.stored >> v & 1]
    for mine, theirs in pairs:
        found = _match(mine, theirs, len(one.axes))
        if found is None or (turn is not None and found != turn):
            return None
        turn = found
    if turn is None:
        for v, mine in one.loads.items():
            theirs = other.loads.get(v)
            found = None if theirs is None else _match(mine, theirs, len(one.axes))
            if found is not None:
                return found
    return turn


def _match(mine: list[Place], theirs: list[Place], rank: int) -> tuple[int, ...] | None:
    """The renaming of axes that makes one place another, if it covers all axes."""
    if len(mine) != 1 or len(theirs) != 1:
        return None
    turn = [-1] * rank
    for a, b in zip(mine[0], theirs[0], strict=True):
        if not isinstance(a, int) or not isinstance(b, int) or (a < 0) != (b < 0):
            return None
        if a >= 0:
            turn[a] = b
    return tuple(turn) if sorted(turn) == list(range(rank)) else None


def _moved(place: Place, turn: tuple[int, ...] | None) -> Place:
    if turn is None:
        return place
    return tuple([turn[t] if isinstance(t, int) and t >= 0 else t for t in place])


def _add_loads(found: Region, region: Region, turn: tuple[int, ...] | None) -> bool:
    """Adds the loads of a part, with its axes renamed; False if they cannot be."""
    still = turn is None or turn == tuple(range(len(turn)))
    for v, places in region.loads.items():
        if found.members >> v & 1:
            continue
        if not still and any(not isinstance(t, int) for p in places for t in p):
            return False
        known = found.loads.setdefault(v, [])
        masks = found.load_masks.setdefault(v, [])
        for place, mask in zip(places, region.load_masks[v], strict=True):
            moved = place if still else _moved(place, turn)
            if moved not in known:
                known.append(moved)
                masks.append(mask if still else _mask(moved))
    return True


def _mask(place: Place) -> int:
    found = 0
    for t in place:
        if isinstance(t, int) and t >= 0:
            found |= 1 << t
    return found
