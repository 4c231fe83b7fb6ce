"""Products over windows that another one has line by line while it packs what is made of them.

    P[y,x,m] = sum of f(S[y,x,c]) * W[c,m] over c                 packs lines of f(S)
    S[y,x,c] = sum of X[y + u, x + v, c] * D[c,u,v] over u, v     computed line by line for that

The code generator does so for products that follow windows where their images lie with channels
last (`smelt.codegen.llvm.schedule.depthwise_separable`, which this foresees): each line of results
stays in fast memory, and none is computed twice.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from smelt.blocks import HOSTED_PLACES, HOSTED_TASKS
from smelt.fusion.bitsets import bits
from smelt.fusion.contraction_cost import sides_of
from smelt.fusion.region import Region, axis_numbers
from smelt.fusion.trace import Term
from smelt.fusion.units import Units
from smelt.types.dtype import f32, f64

LINES = 2
"""Axes of places that a packed image has, at most."""


def hosted(units: Units, region: Region) -> tuple[int, int]:
    """The product of a region that has all others of it line by line, and these as a mask; -1 and 0
    where there is none."""
    none = -1, 0
    if len(region.ended) < 2 or region.peeked or region.scanned:
        return none
    *inner, host = sorted(region.ended)
    unit, over, mask = units.unit(host), region.ended[host], sum(1 << u for u in inner)
    made, beside = _readers(units, region, mask, host)
    sides = sides_of(region, unit)
    if sides is None or beside & region.stored or over.bit_count() != 1:
        return none
    image = [any(made >> e.producer & 1 for e in factor) for factor in unit.factors]
    if image.count(True) != 1:
        return none
    k = image.index(True)
    places, columns = sides[k] & ~sides[1 - k], sides[1 - k] & ~sides[k] & ~region.grid
    lasts = [region.places[u][0][-1:] for u in bits(region.stored)]
    types = [units.values[u].type.dtype for u in region.ended]
    wide = all(units.values[e.producer].type.dtype.itemsize >= f32.itemsize for e in unit.edges)
    if (
        wide
        and all(t in (f32, f64) for t in types)
        and all(last and _axes(last[0]) & columns for last in lasts)
        and all(_is_stencil(units, region, u, over, places) for u in inner)
    ):
        return host, mask
    return none


def lines_of(lines: int, width: int) -> int:
    """Lines of an image that one task takes at most, for the sake of other tasks."""
    return -(-lines // max(min(lines * width // HOSTED_PLACES, HOSTED_TASKS), 1))


def _readers(units: Units, region: Region, products: int, host: int) -> tuple[int, int]:
    """What is made of some products, and what is so without another one between."""
    made = beside = products
    for u in sorted(region.masks):
        made |= bool(units.operands[u] & made) << u
        beside |= bool(u != host and units.operands[u] & beside) << u
    return made, beside


def _is_stencil(units: Units, region: Region, u: int, channels: int, places: int) -> bool:
    """Whether a product slides windows over an array that lies along `channels`, as its weights do
    too, and sums along these windows alone: along two other axes of an image, or all `places`."""
    unit, over = units.unit(u), region.ended[u]
    sides = sides_of(region, unit)
    if sides is None or len(region.places[u]) > 1:
        return False
    for k, factor in enumerate(unit.factors):
        stored = len(factor) == 1 and not region.members >> factor[0].producer & 1
        if not stored or sides[1 - k] & ~region.grid != channels:
            continue
        for place in region.loads[factor[0].producer]:
            terms = [_axes(t) for t in place]
            windows = [t for t in terms if t & over]
            along = reduce(or_, (t & ~over for t in windows), 0)
            slides = reduce(or_, windows, 0) & over == over and all(t & ~over for t in windows)
            known = along == places or along.bit_count() == LINES
            if slides and known and len(windows) == along.bit_count() and terms[-1] == channels:
                return True
    return False


def _axes(term: Term) -> int:
    """The axes of a term as a mask."""
    return sum(1 << a for a in axis_numbers(term) if a >= 0)


__all__ = ["hosted", "lines_of"]
