"""Find axes whose parts can be reduced separately, as `smelt.lower.assign_axes` splits them."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.fusion.units import Units


def splittable_axes(units: Units, region: Region) -> Iterator[int]:
    """Iterate over reduced axes that may be split into parts.

    Arg-reductions are merged along their first axis only.
    """
    positional = [u for u in region.reduced_axes if units.unit(u).trace.positional]
    for a in bits(region.all_reduced):
        if all(
            region.reduced_axis_order[u][0] == a
            for u in positional
            if region.reduced_axes[u] >> a & 1
        ):
            yield a


def members_before(units: Units, region: Region, split: int) -> int:
    """Return the members that reductions over a split axis depend on.

    Every part computes them itself. Those without that axis, such as the mean that a row is centred
    by, are computed once per part.
    """
    pending = [u for u, over in region.reduced_axes.items() if over & split]
    members = 0
    while pending:
        new = units.operands[pending.pop()] & region.members & ~members
        members |= new
        pending += bits(new)
    return members
