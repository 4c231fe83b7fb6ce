"""Where the sums of a register tile go: rows of vectors that stand a number of elements apart.

    spot = Spot(address, apart, dtype)
    spot.places(b, tile)                              addresses of all of a tile's vectors
    put(m, tile, totals, spot, masks, last)           stores them there, or where the last ones go

Sums of a block of summed positions wait in scratch for those of the next one.  Those of the last
block may go where results are stored instead, rounded to the type of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.products.block_sums import Masks
from smelt.codegen.llvm.schedule.contract import Contraction, Tile
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.dataclass import dataclass
from smelt.types.dtype import DType, bf16, i16, i32

Value = ir.Value


@dataclass
class Spot:
    """Where a tile's first sum goes, elements from row to row, and the type of what is there."""

    address: Value
    apart: Value
    dtype: DType

    def places(self, b: ir.IRBuilder, tile: Tile) -> list[Value]:
        """The addresses of a tile's vectors, row by row."""
        found: list[Value] = []
        for i in range(tile.rows):
            line = element_address(b, self.address, b.mul(self.apart, number(i)), self.dtype)
            found += [
                element_address(b, line, number(v * tile.lanes), self.dtype)
                for v in range(tile.vectors)
            ]
        return found


@dataclass
class Last:
    """Where the sums of a product's last block go that are rounded as they are stored: the first
    one of a task, elements from one row to the next along each of their axes, and whether so."""

    base: Value
    apart: list[Value]
    dtype: DType
    holds: Value

    def at(
        self, b: ir.IRBuilder, row: Sequence[Value], column: Value, last: Value | None
    ) -> tuple[Value, Spot]:
        """Whether a tile's sums go there, and where its first one does; the block is the `last`."""
        assert last is not None
        place = b.add(far(b, self.apart, row), column)
        spot = Spot(element_address(b, self.base, place, self.dtype), self.apart[-1], self.dtype)
        return b.and_(self.holds, last), spot


def far(b: ir.IRBuilder, steps: Sequence[Value], row: Sequence[Value]) -> Value:
    """How far off a row is, with a step along each of its axes."""
    found = number(0)
    for step, at in zip(steps[-len(row) :], row, strict=True):
        found = b.add(found, b.mul(at, step))
    return found


def put(
    m: LLVMMachine,
    c: Contraction | NhwcConvPlan | DepthwisePlan,
    tile: Tile,
    totals: Sequence[Value],
    places: Sequence[Value],
    masks: Masks = (),
    last: tuple[Value, Spot] | None = None,
) -> None:
    """Stores a tile's sums of a product at its places in scratch; or, where the first of `last`
    holds, at its spot."""
    b = m.builder

    def store(places: Sequence[Value], values: Sequence[Value], dtype: DType) -> None:
        for k, (place, value) in enumerate(zip(places, values, strict=True)):
            store_vector(m, place, value, dtype, masks[k] if masks else None)

    if last is None:
        store(places, totals, c.item.dtype)
        return
    holds, spot = last
    with b.if_else(holds) as (there, here):
        with there:
            if spot.dtype == bf16 and c.unit == i32:  # products of pairs flush subnormals too
                store(spot.places(b, tile), [m.to_bfloat(x) for x in totals], i16)
            else:
                store(spot.places(b, tile), totals, spot.dtype)
        with here:
            store(places, totals, c.item.dtype)


__all__ = ["Last", "Spot", "far", "put"]
