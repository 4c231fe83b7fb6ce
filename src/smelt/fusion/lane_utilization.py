"""Predict idle vector lanes, and lanes with strided accesses, in the blocks of a stream.

Vectors run along the axis of most contiguous accesses. If that axis is short, or the block is, most
lanes are idle, and arrays that are contiguous along another axis are accessed with a cache line per
lane.
"""

from __future__ import annotations

from smelt.fusion.bitsets import bits
from smelt.fusion.cost import SHORT_ROW_LANE_NS, TRANSPOSED_LANE_NS
from smelt.fusion.cost_model import CostModel
from smelt.fusion.region import Position, Region
from smelt.fusion.schedule_model import ScheduleModel


class LaneUse:
    """The vector lanes in blocks of `block` positions of a region's axis `a`."""

    def __init__(self, model: CostModel, region: Region, a: int, block: int) -> None:
        self.model, self.region, self.a, self.block = model, region, a, block
        self.order = ScheduleModel(model.units, region, model.extents, model.tiling)
        self.along = f"a{self.order.vector.bit_length() - 1}"
        """The axis that vectors run along."""

    def lane_overhead(self, task_elements: int) -> float:
        """Return the lanes per lane that has an element, without contractions.

        `task_elements` are the elements of the axis that a task holds at once.
        """
        if self.order.has_contractions or self.order.lane_axis:
            return 1.0
        size, lanes = max(task_elements, 1), self.model.lanes
        return -(-size // lanes) * lanes / size

    def transposed_ns(self, passes: int) -> float:
        """Return the nanoseconds of elements that lanes load or store with a cache line each."""
        if self.order.has_contractions:
            return 0.0  # packing transposes operands anyway
        model, region = self.model, self.region
        if self.order.lane_axis:  # lanes run along the streamed axis: tasks take one position of it
            return (
                SHORT_ROW_LANE_NS
                * passes
                * sum(
                    self.order.volume(mask | region.grid)
                    for v, positions in region.loads.items()
                    for position, mask in zip(positions, region.load_masks[v], strict=True)
                    if self.a in position[:-1]
                )
            )
        loaded = sum(
            self.order.volume(mask)
            for v, positions in region.loads.items()
            for position, mask in zip(positions, region.load_masks[v], strict=True)
            if self._is_far(position)
        )
        stored = [u for u in bits(region.stored) if self._is_far(region.positions[u][0])]
        return TRANSPOSED_LANE_NS * (loaded * passes + sum(model.elements[u] for u in stored))

    def _is_far(self, position: Position) -> bool:
        """Return whether each lane accesses a cache line of its own.

        Vectors run along another axis than the position's last, or each block has too few positions
        of that one to fill a vector.
        """
        order = self.order
        if not order.vector >> self.a & 1 or self.block >= self.model.lanes:
            return order.is_transposed(position)
        others = self.region.all_axes & ~self.region.grid & ~order.vector
        other_terms = [t for t in position if isinstance(t, int) and t >= 0 and others >> t & 1]
        return position[-1:] == (self.a,) and bool(other_terms)
