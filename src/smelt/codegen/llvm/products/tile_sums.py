"""Store the sums of a register tile: rows of vectors at a given row stride.

    spot = Spot(address, apart, dtype)
    spot.places(b, tile)                              addresses of all of a tile's vectors
    put(m, tile, totals, spot, masks, last)           stores them there, or where the last ones go

Partial sums of a block of k wait in scratch for the next block.  Sums of the last block may be
stored in the output instead, rounded to its type.
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
class TileTarget:
    """Destination of a tile: address of the first sum, elements between rows, element type."""

    address: Value
    row_stride: Value
    dtype: DType

    def addresses(self, b: ir.IRBuilder, tile: Tile) -> list[Value]:
        """Return the addresses of a tile's vectors, row by row."""
        addresses: list[Value] = []
        for i in range(tile.rows):
            row_address = element_address(
                b, self.address, b.mul(self.row_stride, number(i)), self.dtype
            )
            addresses += [
                element_address(b, row_address, number(v * tile.lanes), self.dtype)
                for v in range(tile.vectors)
            ]
        return addresses


@dataclass
class RoundedOutput:
    """Destination of final sums which are rounded as they are stored.

    `base` is the address of the task's first output, `row_stride` its strides along the row axes in
    elements, and `enabled` whether this destination is used (i1).
    """

    base: Value
    strides: list[Value]
    dtype: DType
    enabled: Value

    def target(
        self, b: ir.IRBuilder, row: Sequence[Value], column: Value, last: Value | None
    ) -> tuple[Value, TileTarget]:
        """Return whether a tile's sums go to the output (i1), and its destination there.

        `last` says whether this is the last block of k.
        """
        assert last is not None
        place = b.add(row_offset(b, self.strides, row), column)
        spot = TileTarget(
            element_address(b, self.base, place, self.dtype), self.strides[-1], self.dtype
        )
        return b.and_(self.enabled, last), spot


def row_offset(b: ir.IRBuilder, steps: Sequence[Value], row: Sequence[Value]) -> Value:
    """Return the offset of a row, given its index and stride along each axis."""
    total = number(0)
    for step, at in zip(steps[-len(row) :], row, strict=True):
        total = b.add(total, b.mul(at, step))
    return total


def store_tile(
    m: LLVMMachine,
    c: Contraction | NhwcConvPlan | DepthwisePlan,
    tile: Tile,
    totals: Sequence[Value],
    places: Sequence[Value],
    masks: Masks = (),
    last: tuple[Value, TileTarget] | None = None,
) -> None:
    """Store a tile's sums at `addresses` in scratch, or at their final spot.

    `last` is the condition of the latter, and the spot."""
    b = m.builder

    def store(places: Sequence[Value], values: Sequence[Value], dtype: DType) -> None:
        for k, (place, value) in enumerate(zip(places, values, strict=True)):
            store_vector(m, place, value, dtype, masks[k] if masks else None)

    if last is None:
        store(places, totals, c.item.dtype)
        return
    holds, spot = last
    with b.if_else(holds) as (to_output, to_scratch):
        with to_output:
            if spot.dtype == bf16 and c.unit == i32:  # pair products flush subnormals as well
                store(spot.addresses(b, tile), [m.to_bfloat(x) for x in totals], i16)
            else:
                store(spot.addresses(b, tile), totals, spot.dtype)
        with to_scratch:
            store(places, totals, c.item.dtype)


__all__ = ["RoundedOutput", "TileTarget", "row_offset", "store_tile"]
