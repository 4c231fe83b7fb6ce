"""What lanes of vectors do within a visit of a stream: stay empty, or move elements one by one.

A visit takes a block of the streamed axis.  Vectors run along the axis that most memory is walked
along; where that one is short, be it that the block is, most lanes have nothing to do, and what
lies along it is taken from a line of its own for each lane.
"""

from __future__ import annotations

from smelt.fusion.bitsets import bits
from smelt.fusion.cost import FAR_NS, STEP_NS, Model
from smelt.fusion.region import Place, Region
from smelt.fusion.schedule_model import Sweeps


class Visits:
    """The lanes in visits of `block` positions of a region's axis `a`."""

    def __init__(self, model: Model, region: Region, a: int, block: int) -> None:
        self.model, self.region, self.a, self.block = model, region, a, block
        self.order = Sweeps(model.units, region, model.extents)
        self.along = f"a{self.order.vector.bit_length() - 1}"
        """The axis that vectors run along."""

    def emptiness(self, held: int) -> float:
        """Lanes for each one that has an element, where a task holds so many elements of the axis
        at once and no product blocks it."""
        if self.order.packs or self.order.apart:
            return 1.0
        size, lanes = max(held, 1), self.model.lanes
        return -(-size // lanes) * lanes / size

    def far_ns(self, sweeps: int) -> float:
        """For elements that lanes take from lines of their own in all sweeps, or put there."""
        if self.order.packs:
            return 0.0  # other operands are turned while they are packed
        model, region = self.model, self.region
        if self.order.apart:  # tasks take one position of it: lanes run along the streamed axis
            return (
                STEP_NS
                * sweeps
                * sum(
                    self.order.volume(mask | region.grid)
                    for v, places in region.loads.items()
                    for place, mask in zip(places, region.load_masks[v], strict=True)
                    if self.a in place[:-1]
                )
            )
        taken = sum(
            self.order.volume(mask)
            for v, places in region.loads.items()
            for place, mask in zip(places, region.load_masks[v], strict=True)
            if self._is_far(place)
        )
        put = [u for u in bits(region.stored) if self._is_far(region.places[u][0])]
        return FAR_NS * (taken * sweeps + sum(model.elements[u] for u in put))

    def _is_far(self, place: Place) -> bool:
        """Whether lanes move elements of lines of their own: they run along another axis than the
        place's last, be it that each visit takes too few of those to fill a vector."""
        order = self.order
        if not order.vector >> self.a & 1 or self.block >= self.model.lanes:
            return order.is_far(place)
        others = self.region.all_axes & ~self.region.grid & ~order.vector
        beside = [t for t in place if isinstance(t, int) and t >= 0 and others >> t & 1]
        return place[-1:] == (self.a,) and bool(beside)
