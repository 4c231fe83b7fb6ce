"""Store the sums of a register tile: rows of vectors at a given row stride.

    target = TileTarget(address, row_stride, dtype)
    target.addresses(b, tile)                                 of all of a tile's vectors
    store_tile(m, c, tile, totals, addresses, masks, last)    there, or where final sums go

Partial sums of a block of k wait in scratch for the next block.  Sums of the last block may be
stored in the output instead, rounded to its type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import PTR, element_address, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.register_tile import Tile
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.machine.blocks import REGISTER_RUN
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bf16, i16, i32
from smelt.types.expr import Index

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

    `base` is the address of the task's first output, `strides` its strides along the row axes in
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


def strided_rows(
    b: ir.IRBuilder, first: Value, stride: Value, count: int, dtype: DType
) -> list[Value]:
    """Return the addresses of rows at a constant stride, in elements."""
    return [element_address(b, first, b.mul(number(i), stride), dtype) for i in range(count)]


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
    """Store a tile's sums at `places` in scratch, or in the output.

    `last` is the condition of the latter, and the tile's destination there.
    """
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


Masks: TypeAlias = Sequence[Value | None]


def add_previous_blocks(
    m: LLVMMachine,
    places: list[Value],
    dtype: DType,
    totals: list[Value],
    unless: Value | None,
    masks: Masks = (),
) -> list[Value]:
    """Return sums plus the partial sums of earlier blocks, loaded from `places`.

    Where `unless` holds (the first block) sums are returned unchanged.  `masks` apply to the loads.
    """
    is_later = ir.IntType(1)(1) if unless is None else m.builder.not_(unless)
    return m.builder.either(is_later, lambda: _add_stored(m, places, dtype, totals, masks), totals)


def fits_one_run(positions: Index, dtype: DType) -> bool:
    """Return whether so many positions may be summed in one run; integer sums are exact."""
    return not dtype.is_float or (isinstance(positions, int) and positions <= REGISTER_RUN)


def sum_in_runs(
    m: LLVMMachine,
    dtype: DType,
    span: tuple[Value, Value],
    count: int,
    sum_run: Callable[[tuple[Value, Value]], list[Value]],
    most: int = REGISTER_RUN,
) -> list[Value]:
    """Return `count` vectors of sums over a span, added up from short runs.

    `sum_run` emits the sums of a run of at most `most` positions.  Totals wait on the stack between
    runs if a run needs all registers.
    """
    b, (low, high), before = m.builder, span, m.builder.block
    in_registers = 2 * count + 4 <= m.target.registers
    places = [] if in_registers else _on_stack(m, dtype, count)
    run, more, done = map(b.append_basic_block, ("run", "more", "done"))
    b.branch(run)
    b.position_at_end(run)
    at, phis = b.phi(I64), [b.phi(m.raw_type(dtype)) for _ in range(count if in_registers else 0)]
    end = b.add(at, number(most))
    has_more = b.icmp_signed("<", end, high)
    totals = sum_run((at, b.select(has_more, end, high)))
    if in_registers:
        totals = [m.add(x, y) for x, y in zip(phis, totals, strict=True)]
    else:
        totals = add_previous_blocks(m, places, dtype, totals, b.icmp_signed("==", at, low))
    b.cbranch(has_more, more, done)
    b.position_at_end(more)
    for place, total in zip(places, totals, strict=False):
        store_vector(m, place, total, dtype, None)
    b.branch(run)
    at.add_incoming(low, before)
    at.add_incoming(end, more)
    for phi, total in zip(phis, totals, strict=False):
        phi.add_incoming(m.const(dtype, 0), before)
        phi.add_incoming(total, more)
    b.position_at_end(done)
    return totals


def _on_stack(m: LLVMMachine, dtype: DType, count: int) -> list[Value]:
    """Return stack slots for so many vectors, which LLVM cannot promote to registers."""
    b, kind = m.builder, m.raw_type(dtype)
    with b.goto_entry_block():
        place = b.alloca(ir.ArrayType(kind, count))
        place = b.asm(ir.FunctionType(PTR, [PTR]), "", "=r,0", [place], False)
    return [element_address(b, place, number(k * kind.count), dtype) for k in range(count)]


def _add_stored(
    m: LLVMMachine, places: list[Value], dtype: DType, totals: list[Value], masks: Masks
) -> list[Value]:
    """Return sums plus those at `places`; constants are initial zeros and add nothing."""
    earlier = [
        load_vector(m, p, dtype, mask)
        for p, mask in zip(places, masks or [None] * len(places), strict=True)
    ]
    if all(isinstance(x, ir.Constant) for x in totals):
        return earlier
    return [m.add(x, y) for x, y in zip(earlier, totals, strict=True)]
