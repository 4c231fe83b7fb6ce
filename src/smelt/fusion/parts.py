"""Axes along which the results of parts can be joined, as `smelt.lower.roles` will split them."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.fusion.region import Region
from smelt.fusion.sets import bits
from smelt.fusion.units import Units
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.types.dtype import f64


def joining(units: Units, region: Region) -> Iterator[int]:
    """The folded axes that may be in parts: places are joined along their only axis, and not beside
    sums of doubles, which merge the errors that they carry where they are alone."""
    places = [u for u in region.ended if units.unit(u).trace.positional]
    if places and any(_carries_errors(units, u) for u in region.ended):
        return
    for a in bits(region.folded):
        if all(region.ended[u] == 1 << a for u in places if region.ended[u] >> a & 1):
            yield a


def _carries_errors(units: Units, u: int) -> bool:
    summed = units.unit(u).trace.combine == COMBINES[SUM_OF_PRODUCTS[0]].scalar
    return summed and units.values[u].type.dtype == f64
