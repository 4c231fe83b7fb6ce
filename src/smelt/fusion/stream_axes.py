"""Find axes of a region worth streaming, and derive what a stream carries.

>>> from smelt.fusion.region import build_region
>>> from smelt.graph.text import parse
>>> units = Units(
...     parse('''graph f(x: f32[n,m]) {
...   v0 = reduce.max(x) {axes=(1,)}
...   v1 = reshape(v0) {shape=(n,1)}
...   v2 = sub(x, v1)
...   return v2
... }''')
... )
>>> region = build_region(units, 0b110, 0b100)
>>> derive_stream(units, region, 1) is derive_stream(units, region, 1)
True
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import field
from math import prod

from smelt import knobs
from smelt.fusion.bitsets import bits
from smelt.fusion.cascade.analyse import Cascade, analyse
from smelt.fusion.cascade.block_sparsity import VisitRange
from smelt.fusion.cascade.collect import Collected, collect
from smelt.fusion.cascade.term import Term
from smelt.fusion.cost_model import CostModel
from smelt.fusion.region import Region
from smelt.fusion.units import Units
from smelt.python.dataclass import dataclass


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


@dataclass(frozen=True, slots=True, eq=False)
class DerivedStream:
    """The terms of a region with a streamed axis, and the treatment of its reductions."""

    region: Region
    """The region it was derived for; its positions identify regions of the same units."""
    collected: Collected
    cascade: Cascade
    all_terms: tuple[Term, ...]
    """All terms of both; later questions create more."""
    visit_cache: dict[Hashable, VisitRange] = field(default_factory=dict[Hashable, VisitRange])
    """Visited ranges, by the blocks of the states and the fixed axes."""


def derive_stream(units: Units, region: Region, a: int) -> DerivedStream:
    """Return what is computed along axis number `a` of a region. Raises NotCollected."""
    rounding = knobs.ROUNDING.get()
    key = region.members, region.stored, a, rounding
    cached = units.stream_cache.get(key)
    if isinstance(cached, DerivedStream) and cached.region.positions is region.positions:
        return cached
    collected = collect(units, region, a, rounding)
    cascade = analyse(collected.terms, collected.roots.values(), f"a{a}")
    stream = DerivedStream(region, collected, cascade, tuple(collected.terms.interned.values()))
    units.stream_cache[key] = stream
    return stream


@dataclass(frozen=True, slots=True)
class CarriedReduction:
    """The treatment of a reduction that reads another one over the same axis."""

    reduction: int
    reads: int
    reason: str
    how: str


_HOW = {
    "hoist": "what is read is applied once, at the end",
    "static": "taken from a fixed element, and shifted at the end",
    "dynamic": "what was summed is rescaled at every change",
    "monotone": "the function is applied to the last value alone",
}


def carried_reductions(model: CostModel, region: Region, axis: int) -> Iterator[CarriedReduction]:
    """Iterate over the dependencies between reductions of a streamed axis."""
    stream = derive_stream(model.units, region, axis)
    collected, cascade = stream.collected, stream.cascade
    for reduction, treatment in cascade.treatments.items():
        for read in treatment.reads:
            is_recomputed = treatment.action == "recompute"
            reason = "visited-again" if is_recomputed else "carried"
            explanation = treatment.blocker if is_recomputed else _HOW[treatment.treatment_of(read)]
            if reduction in collected.units and read in collected.units:
                yield CarriedReduction(
                    collected.units[reduction], collected.units[read], reason, explanation
                )
