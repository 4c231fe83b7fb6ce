"""Pack filter weights in channel pairs, for dot-product instructions tap by tap.

Weights w[m,c,u,v] of a pair of channels are two runs in memory and one in scratch:

    memory   w[m,c,..]    a0 a1 a2 .. a8   w[m,c + 1,..]    b0 b1 b2 .. b8
    scratch               a0 b0 a1 b1 .. a8 b8

Each run is loaded as a vector; vectors are stored whole, and what one has past its run is
overwritten by the next pair.  A row's part of a block is too short for hardware prefetchers to
continue in the next row, so that is prefetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import PACK_PREFETCH_ROWS
from smelt.codegen.llvm.instructions.dot_product import pack_pairs
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.conv_plan import LEFT_PITCH, ConvPlan
from smelt.codegen.llvm.schedule.product_plan import LEFT_PART
from smelt.types.affine import coefficient
from smelt.types.dtype import i32
from smelt.types.expr import axes_of, floordiv, sub, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
BIT = ir.IntType(1)


def pair_loads(c: ConvPlan) -> tuple[Access, Access] | None:
    """Return the loads of the left operand's pairs, if both are contiguous runs of taps."""
    if not c.packs_by_tap or c.left.kind != "unit" or len(c.left.args) != 2:
        return None
    first_load, second_load = (x.payload for x in c.left.args)
    if (
        not isinstance(first_load, Access)
        or not isinstance(second_load, Access)
        or first_load.positions
    ):
        return None
    plain = not first_load.limits and sub(second_load.offset, first_load.offset) == c.taps
    plain &= len(second_load.limits) <= 1  # its bound: the last channel may have no partner
    steps = [coefficient(first_load.offset, a) for a in (c.m, c.depth, c.flat)]
    lies = steps[0] is not None and not axes_of(steps[0]) and steps[1:] == [2 * c.taps, 1]
    return (first_load, second_load) if plain and lies else None


class FilterPairPacker:
    """Packs one block of such a filter in the task that `home` is emitting."""

    def __init__(
        self, home: NestEmitter, nest: Nest, c: ConvPlan, loads: tuple[Access, Access]
    ) -> None:
        self.home, self.b, self.c = home, home.b, c
        self.access, self.ends = loads[0], loads[1].limits
        self.top = home.open(nest, Scope(home.top))
        self.machine = LLVMMachine(self.b, c.tile.lanes, home.home.target)
        self.dtype = home.home.dtypes[self.access.buffer]

    def run(self) -> None:
        """Pack the block row by row."""
        b, c, home = self.b, self.c, self.home
        first, last = home.ranges[c.m]
        low, high = home.ranges[c.depth]
        row_stride = home.index(coefficient(self.access.offset, c.m) or 0, self.top)
        prefetch_distance = b.mul(row_stride, number(PACK_PREFETCH_ROWS))
        zeros = dict.fromkeys((c.m, c.depth, c.flat), 0)
        origin = home.index(substitute(self.access.offset, zeros), self.top)
        origin = b.add(origin, b.mul(low, number(2 * c.taps)))
        pairs_end = high
        for _, extent in self.ends:
            pairs = home.index(floordiv(extent, 2), self.top)
            pairs_end = b.select(b.icmp_signed("<", pairs, high), pairs, high)

        def row(m: Value) -> None:
            start = element_address(
                b,
                home.home.buffers[self.access.buffer],
                b.add(origin, b.mul(m, row_stride)),
                self.dtype,
            )
            to = b.mul(b.sub(m, first), number(LEFT_PITCH))
            to = element_address(b, home.storage.at[c.item, LEFT_PART], to, i32)

            def pair(k: Value, is_single: bool) -> None:
                k = b.sub(k, low)
                at = element_address(b, start, b.mul(k, number(2 * c.taps)), self.dtype)
                prefetch(b, element_address(b, at, prefetch_distance, self.dtype))
                self._pair(at, element_address(b, to, b.mul(k, number(c.taps)), i32), is_single)

            home.loop(low, pairs_end, 1, lambda k: pair(k, False))
            if pairs_end is not high:
                home.loop(pairs_end, high, 1, lambda k: pair(k, True))

        home.loop(first, last, 1, row)

    def _pair(self, at: Value, to: Value, is_single: bool) -> None:
        """Pack all taps of a pair, or of a last channel without partner."""
        b, m, taps, lanes = self.b, self.machine, self.c.taps, self.c.tile.lanes
        for j in range(0, taps, lanes):
            mask = ir.Constant(ir.VectorType(BIT, lanes), [j + i < taps for i in range(lanes)])
            runs = [
                load_vector(
                    m, element_address(b, at, number(j + run), self.dtype), self.dtype, mask
                )
                for run in ((0,) if is_single else (0, taps))
            ]
            runs += [m.const(self.c.item.dtype, 0)] * is_single
            place = element_address(b, to, number(j), i32)
            store_vector(m, place, pack_pairs(m, runs), i32, None)


__all__ = ["FilterPairPacker", "pair_loads"]
