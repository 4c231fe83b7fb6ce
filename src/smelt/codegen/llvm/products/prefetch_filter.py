"""The weights that follow, for which the tiles of a product over windows ask memory.

A panel is several runs, one for each tap, of which each is as long as a block of the sum is deep:
too short for the processor to foresee.  The first tile would wait for memory while those after it,
which multiply the same panel, leave it idle.  So each of them asks for its share of every run of
the panel that follows:

    share = Share(row, rows, height)               of a tile among all rows, or
    share = WHOLE.among(b, y, count)               of a line among so many
    args = part(b, c, panel, depth, share)         where it begins, and its lines for each position
    ask(b, begin, rate, k)                         in the tile, for each k of a tap
    ask_at_once(b, begin, rate, depth)             for all of a tap that is left out
"""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import prefetch
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.products.tile_loops import rounds
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.dataclass import dataclass

Value = ir.Value
FRACTION = 16
"""Bits behind the point of how many lines are asked for with each summed position."""
PART = (ir.PointerType(), I64)
"""The arguments of a tile that say what it asks for."""
I8 = ir.IntType(8)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a tile: that of so many pieces from the nth one on, of all that there are."""

    nth: Value
    pieces: Value
    own: int = 1

    def among(self, b: ir.IRBuilder, nth: Value, count: Value) -> Share:
        """The part of one of so many lines that share this one."""
        return Share(b.add(b.mul(self.nth, count), nth), b.mul(self.pieces, count))


WHOLE = Share(number(0), number(1))


def part(b: ir.IRBuilder, c: NhwcConvPlan, panel: Value, depth: Value, share: Share) -> list[Value]:
    """Where a tile's part of a run begins, relative to the first tap's, and the lines of it that
    fall to each position."""
    lines = max(c.tile.columns * c.unit.itemsize // LINE, 1)
    rate = b.udiv(number(lines << FRACTION), share.pieces)
    before = b.lshr(b.mul(b.mul(rate, share.nth), depth), number(FRACTION))
    begin = b.gep(panel, [b.mul(before, number(LINE))], source_etype=I8)
    return [begin, b.mul(rate, number(share.own))]


def ask(b: ir.IRBuilder, begin: Value, rate: Value, k: Value) -> None:
    """Asks for the line that falls to a position."""
    line = b.lshr(b.mul(k, rate), number(FRACTION))
    prefetch(b, b.gep(begin, [b.mul(line, number(LINE))], source_etype=I8))


def ask_at_once(b: ir.IRBuilder, begin: Value, rate: Value, depth: Value) -> None:
    """Asks for all lines that fall to so many positions."""
    count = b.lshr(b.add(b.mul(depth, rate), number((1 << FRACTION) - 1)), number(FRACTION))

    def one(k: Value, _: list[Value], __: int) -> list[Value]:
        prefetch(b, b.gep(begin, [b.mul(k, number(LINE))], source_etype=I8))
        return []

    rounds(b, (number(0), count), 1, one, [])


__all__ = ["PART", "WHOLE", "Share", "ask", "ask_at_once", "part"]
