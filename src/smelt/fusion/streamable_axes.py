"""The axes of a region that may be streamed, and whether it is worth to ask what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from smelt.blocks import WIDE_TAKEN
from smelt.fusion.bitsets import bits
from smelt.fusion.cost import Cost, Model
from smelt.fusion.region import Region

WORTH = 0.06
"""Part of a kernel's time that later sweeps must take for a stream, which saves them, to be asked
about: deriving one takes longer than everything else in planning."""


def worth_asking(model: Model, region: Region, cost: Cost) -> bool:
    """Whether streaming may win over a schedule that is legal: its rows do not stay in fast memory,
    or a contraction takes what another one made, and blocks that a mask rules out can be skipped.
    """
    again = cost.sweeps + cost.scratch + cost.partials
    if model.target.level(cost.row_bytes, 1) not in ("l1", "l2") and again > WORTH * cost.burden:
        return True
    products = [u for u in region.ended if model.units.unit(u).trace.dots]
    made = 0
    for u in products:
        made |= region.masks[u][0]
    takers = region.ended if is_masked(model, region) else products
    return any(region.ended[u] & made and region.levels[u] > 1 for u in takers)


def is_masked(model: Model, region: Region) -> bool:
    """Whether anything in a region is a condition."""
    found = model.units.conditions
    return bool(found) and not (found.isdisjoint(region.loads) and found.isdisjoint(region.masks))


def has_products(model: Model, region: Region) -> bool:
    """Whether any of its folds is a contraction."""
    return any(model.units.unit(u).trace.dots for u in region.ended)


def streamable(model: Model, region: Region) -> Iterator[int]:
    """The axes that may be streamed.  Of those that the same folds end, where no product does, the
    one furthest out in memory that has few enough elements at each position: visits walk long runs,
    one after the other."""
    found = _cascaded(model, region)
    if has_products(model, region):
        yield from bits(found)
        return
    ended: dict[frozenset[int], list[int]] = {}
    for a in bits(found):
        ended.setdefault(frozenset(u for u, e in region.ended.items() if e >> a & 1), []).append(a)
    local = region.all_axes & ~region.grid
    whole = prod(model.extents[region.axes[a]] for a in bits(local))
    for axes in ended.values():
        extents = {a: model.extents[region.axes[a]] for a in axes}
        best = sorted(axes, key=lambda a: (extents[a] == 1, _depth(region, a)))
        yield next((a for a in best if whole // extents[a] <= WIDE_TAKEN), best[-1])


def _depth(region: Region, a: int) -> int:
    """How far in an axis stands in the arrays that it walks; the slowest is 0."""
    places = [p for found in region.loads.values() for p in found]
    return min((p.index(a) for p in places if a in p), default=0)


def _cascaded(model: Model, region: Region) -> int:
    """The folded axes along which something waits for another fold: not those that only end in
    contractions of what is there from the start, as a product's own axis does."""
    found = rows = 0
    for u, level in region.levels.items():
        ended = region.ended.get(u, 0)
        if level > 1 or not model.units.unit(u).trace.dots:
            rows |= ended
        if level > (u in region.ended):
            found |= ended
            found |= region.masks[u][0] if region.stored >> u & 1 else 0
    return found & rows
