"""Find the axes of a region that are worth streaming."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from smelt.fusion.bitsets import bits
from smelt.fusion.cost_model import Cost, CostModel
from smelt.fusion.region import Region

MIN_REREAD_SHARE = 0.06
"""Minimum share of a kernel's time in rereads for which streaming is evaluated.

Deriving a stream takes longer than everything else in planning.
"""


def may_gain(model: CostModel, region: Region, cost: Cost) -> bool:
    """Return whether streaming may beat a legal schedule without it.

    That is so if rows exceed fast memory, or if a contraction consumes what another one produces,
    or a masked reduction does, whose blocks can be skipped.
    """
    reread_ns = cost.sweeps + cost.scratch + cost.partials
    if (
        not model.machine.is_near(cost.row_bytes)
        and reread_ns > MIN_REREAD_SHARE * cost.objective_ns
    ):
        return True
    products = [u for u in region.reduced_axes if model.units.unit(u).trace.dots]
    axes = 0
    for u in products:
        axes |= region.masks[u][0]
    consumers = region.reduced_axes if is_masked(model, region) else products
    return any(region.reduced_axes[u] & axes and region.levels[u] > 1 for u in consumers)


def is_masked(model: CostModel, region: Region) -> bool:
    """Return whether a region reads or computes any condition."""
    conditions = model.units.conditions
    return bool(conditions) and not (
        conditions.isdisjoint(region.loads) and conditions.isdisjoint(region.masks)
    )


def has_products(model: CostModel, region: Region) -> bool:
    """Return whether any of the reductions is a contraction."""
    return any(model.units.unit(u).trace.dots for u in region.reduced_axes)


def streamable(model: CostModel, region: Region) -> Iterator[int]:
    """Iterate over the axes that may be streamed.

    Without contractions, only one of the axes that the same reductions reduce: the outermost in
    memory that leaves few enough elements per position, so that blocks are long contiguous runs.
    """
    candidates = _cascade_axes(model, region)
    if has_products(model, region):
        yield from bits(candidates)
        return
    by_reductions: dict[frozenset[int], list[int]] = {}
    for a in bits(candidates):
        by_reductions.setdefault(
            frozenset(u for u, e in region.reduced_axes.items() if e >> a & 1), []
        ).append(a)
    local = region.all_axes & ~region.grid
    row_elements = prod(model.extents[region.axes[a]] for a in bits(local))
    for axes in by_reductions.values():
        extents = {a: model.extents[region.axes[a]] for a in axes}
        best = sorted(axes, key=lambda a: (extents[a] == 1, _depth(region, a)))
        yield next(
            (a for a in best if row_elements // extents[a] <= model.tiling.stream_elements),
            best[-1],
        )


def _depth(region: Region, a: int) -> int:
    """Return how far inside its arrays an axis is, 0 for the slowest."""
    places = [p for loaded in region.loads.values() for p in loaded]
    return min((p.index(a) for p in places if a in p), default=0)


def _cascade_axes(model: CostModel, region: Region) -> int:
    """Return the reduced axes along which something depends on another reduction.

    Not those that only contractions of loaded values reduce, such as a contraction's own axis.
    """
    dependent = row_axes = 0
    for u, level in region.levels.items():
        ended = region.reduced_axes.get(u, 0)
        if level > 1 or not model.units.unit(u).trace.dots:
            row_axes |= ended
        if level > (u in region.reduced_axes):
            dependent |= ended
            dependent |= region.masks[u][0] if region.stored >> u & 1 else 0
    return dependent & row_axes
