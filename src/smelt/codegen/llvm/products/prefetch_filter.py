"""Prefetch the next filter panel of an NHWC convolution, shared among the tiles.

A panel is one run per tap, each as long as a block of channels: too short for hardware prefetchers.
The first tile would wait for memory which the others, multiplying the same panel, leave idle.  So
each tile prefetches its share of every run of the next panel:

    share = Share(row, rows, height)               of a tile among all rows, or
    share = WHOLE.among(b, y, count)               of an image row among so many
    args = part(b, c, panel, depth, share)         where it begins, and lines per position
    ask(b, begin, rate, k)                         in the tile, for each k of a tap
    ask_at_once(b, begin, rate, depth)             for all of a tap which is skipped
"""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import prefetch
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.products.tile_loops import reduction_loop
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.dataclass import dataclass

Value = ir.Value
FRACTION = 16
"""Fraction bits of the number of lines per position."""
PREFETCH_TYPES = (ir.PointerType(), I64)
"""Types of a tile's prefetch arguments."""
I8 = ir.IntType(8)


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a tile: `own` pieces from the nth on, of all `pieces`."""

    nth: Value
    pieces: Value
    own: int = 1

    def split(self, b: ir.IRBuilder, nth: Value, count: Value) -> Share:
        """Return the share of the nth of `count` image rows which divide this one."""
        return Share(b.add(b.mul(self.nth, count), nth), b.mul(self.pieces, count))


ALL_TILES = Share(number(0), number(1))


def prefetch_args(
    b: ir.IRBuilder, c: NhwcConvPlan, panel: Value, depth: Value, share: Share
) -> list[Value]:
    """Return a tile's share of each run: address in the first, and rate.

    The rate is in lines per position, fixed point.
    """
    lines = max(c.tile.columns * c.unit.itemsize // CACHE_LINE, 1)
    rate = b.udiv(number(lines << FRACTION), share.pieces)
    before = b.lshr(b.mul(b.mul(rate, share.nth), depth), number(FRACTION))
    begin = b.gep(panel, [b.mul(before, number(CACHE_LINE))], source_etype=I8)
    return [begin, b.mul(rate, number(share.own))]


def prefetch_at(b: ir.IRBuilder, begin: Value, rate: Value, k: Value) -> None:
    """Prefetch the line which falls to a position."""
    line = b.lshr(b.mul(k, rate), number(FRACTION))
    prefetch(b, b.gep(begin, [b.mul(line, number(CACHE_LINE))], source_etype=I8))


def prefetch_all(b: ir.IRBuilder, begin: Value, rate: Value, depth: Value) -> None:
    """Prefetch all lines which fall to `depth` positions."""
    count = b.lshr(b.add(b.mul(depth, rate), number((1 << FRACTION) - 1)), number(FRACTION))

    def prefetch_line(k: Value, _: list[Value], __: int) -> list[Value]:
        prefetch(b, b.gep(begin, [b.mul(k, number(CACHE_LINE))], source_etype=I8))
        return []

    reduction_loop(b, (number(0), count), 1, prefetch_line, [])


__all__ = ["ALL_TILES", "PREFETCH_TYPES", "Share", "prefetch_all", "prefetch_args", "prefetch_at"]
