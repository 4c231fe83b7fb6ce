"""Axes that join the results of parts, as `smelt.lower.assign_axes` will split them."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.fusion.units import Units


def joining(units: Units, region: Region) -> Iterator[int]:
    """The folded axes that may be in parts: places are joined along their first axis."""
    places = [u for u in region.ended if units.unit(u).trace.positional]
    for a in bits(region.folded):
        if all(region.ends[u][0] == a for u in places if region.ended[u] >> a & 1):
            yield a


def awaited(units: Units, region: Region, split: int) -> int:
    """The members that folds over a split axis wait for. Every part computes them itself: what
    lacks that axis, such as the sum that a row is centred by, as often as there are parts."""
    pending = [u for u, over in region.ended.items() if over & split]
    found = 0
    while pending:
        fresh = units.operands[pending.pop()] & region.members & ~found
        found |= fresh
        pending += bits(fresh)
    return found
