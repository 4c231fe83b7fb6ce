"""Packs pairs of weights that lie as far apart as a window has taps.

Weights w[m,c,u,v] of pairs of channels, tap by tap, are two runs in memory and one in scratch:

    memory   w[m,c,..]    a0 a1 a2 .. a8   w[m,c + 1,..]    b0 b1 b2 .. b8
    scratch               a0 b0 a1 b1 .. a8 b8

Each run is read as a vector; those are stored whole, and what one has beyond its run is overwritten
by the next pair's.  A row's part of a block is too short for the processor to foresee the next
row's, so that is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import PACKED_AHEAD
from smelt.codegen.llvm.instructions.dot_product import paired
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.conv_plan import PITCH, ConvPlan
from smelt.codegen.llvm.scratch.workspace import LEFT_PART
from smelt.types.affine import coefficient
from smelt.types.dtype import i32
from smelt.types.expr import axes_of, floordiv, sub, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
BIT = ir.IntType(1)


def lies_by_taps(c: ConvPlan) -> tuple[Access, Access] | None:
    """The loads of the left operand's pairs, if each is two runs of taps one behind the other."""
    if not c.apart_taps or c.left.kind != "unit" or len(c.left.args) != 2:
        return None
    one, other = (x.payload for x in c.left.args)
    if not isinstance(one, Access) or not isinstance(other, Access) or one.positions:
        return None
    plain = not one.limits and sub(other.offset, one.offset) == c.taps
    plain &= len(other.limits) <= 1  # where there is no second channel
    steps = [coefficient(one.offset, a) for a in (c.m, c.depth, c.flat)]
    lies = steps[0] is not None and not axes_of(steps[0]) and steps[1:] == [2 * c.taps, 1]
    return (one, other) if plain and lies else None


class TapsPacker:
    """One block of such an operand in the task that `home` is emitting."""

    def __init__(
        self, home: NestEmitter, nest: Nest, c: ConvPlan, loads: tuple[Access, Access]
    ) -> None:
        self.home, self.b, self.c = home, home.b, c
        self.access, self.ends = loads[0], loads[1].limits
        self.top = home.open(nest, Scope(home.top))
        self.machine = LLVMMachine(self.b, c.tile.lanes, home.home.target)
        self.dtype = home.home.dtypes[self.access.buffer]

    def run(self) -> None:
        """Packs the block row by row."""
        b, c, home = self.b, self.c, self.home
        first, last = home.ranges[c.m]
        low, high = home.ranges[c.depth]
        apart = home.index(coefficient(self.access.offset, c.m) or 0, self.top)
        ahead = b.mul(apart, number(PACKED_AHEAD))
        still = dict.fromkeys((c.m, c.depth, c.flat), 0)
        origin = home.index(substitute(self.access.offset, still), self.top)
        origin = b.add(origin, b.mul(low, number(2 * c.taps)))
        whole = high
        for _, extent in self.ends:
            pairs = home.index(floordiv(extent, 2), self.top)
            whole = b.select(b.icmp_signed("<", pairs, high), pairs, high)

        def row(m: Value) -> None:
            start = element_address(
                b, home.home.buffers[self.access.buffer], b.add(origin, b.mul(m, apart)), self.dtype
            )
            to = b.mul(b.sub(m, first), number(PITCH))
            to = element_address(b, home.storage.at[c.item, LEFT_PART], to, i32)

            def pair(k: Value, alone: bool) -> None:
                k = b.sub(k, low)
                at = element_address(b, start, b.mul(k, number(2 * c.taps)), self.dtype)
                prefetch(b, element_address(b, at, ahead, self.dtype))
                self._pair(at, element_address(b, to, b.mul(k, number(c.taps)), i32), alone)

            home.loop(low, whole, 1, lambda k: pair(k, False))
            if whole is not high:
                home.loop(whole, high, 1, lambda k: pair(k, True))

        home.loop(first, last, 1, row)

    def _pair(self, at: Value, to: Value, alone: bool) -> None:
        """All taps of a pair, or of a channel that has none beside it."""
        b, m, taps, lanes = self.b, self.machine, self.c.taps, self.c.tile.lanes
        for j in range(0, taps, lanes):
            mask = ir.Constant(ir.VectorType(BIT, lanes), [j + i < taps for i in range(lanes)])
            runs = [
                load_vector(
                    m, element_address(b, at, number(j + run), self.dtype), self.dtype, mask
                )
                for run in ((0,) if alone else (0, taps))
            ]
            runs += [m.const(self.c.item.dtype, 0)] * alone
            place = element_address(b, to, number(j), i32)
            store_vector(m, place, paired(m, runs), i32, None)


__all__ = ["TapsPacker", "lies_by_taps"]
