"""Emit depthwise convolution (NHWC) which reads the input in place and packs only the filter.

With channels last, a vector of a pixel's channels is contiguous.  For each row of outputs a table
holds the addresses of the input rows which its windows reach.  A row of the padding is a shared row
of zeros; so is a pixel outside its row, which tiles test for where they may have one:

    at -1: zeros    0: x[y, 0, c:]    1: x[y, 1, c:]    ...

Rows are walked tile by tile, and each tile along the channels, as the image is stored.  Hardware
prefetchers do not predict this order, so tiles prefetch the next input row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.products.depthwise_microkernel import (
    PTR,
    DepthwiseTile,
    Reader,
    tile_function,
)
from smelt.codegen.llvm.products.depthwise_packed import DepthwisePacked, RowPosition
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.depthwise import TILE_HEIGHTS, DepthwisePlan
from smelt.codegen.llvm.schedule.product_plan import RIGHT_PART, TABLE_PART
from smelt.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index, add, mod, mul, nonnegative, sub

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


@dataclass(frozen=True, slots=True)
class RowEnds:
    """The pixels along its rows which a tile knows to be inside the image."""

    dtype: DType
    """Element type in memory."""
    first: int
    """The first pixel inside."""
    most_beyond: int | None
    """Upper bound on how many last pixels of a row may be outside, if known."""
    masked: bool
    """Whether vectors may have lanes past the last channel."""

    def may_be_outside(self, place: int, places: int, more: int) -> bool:
        """Return whether a tile's pixel may be outside; `extra_operands` may exceed the last."""
        return (
            place < self.first
            or self.most_beyond is None
            or place >= places - self.most_beyond - more
        )


def _at_most(count: Index, c: WindowAxis) -> int | None:
    """Return a constant upper bound on a number of pixels outside, or None."""
    return next(
        (n for n in range(c.taps * c.dilation + c.step) if nonnegative(sub(n, count))), None
    )


class DepthwiseInPlace(DepthwisePacked):
    """Emits one depthwise convolution read in place, in the task of `home`."""

    def __init__(self, home: NestEmitter, nest: Nest, c: DepthwisePlan) -> None:
        super().__init__(home, nest, c)
        assert c.rows_in_place is not None
        self.right_rows, axes = c.rows_in_place, home.s.phase.axes
        self.outer = self.rows()
        tall, limits = c.tile_axis, dict(zip(c.columns, c.rows_in_place.bounds, strict=False))
        self.axis_limits = limits
        last = add(mul(sub(axes[tall.axis], 1), tall.step), (tall.taps - 1) * tall.dilation + 1)
        excess = [sub(last, sub(extent, low)) for low, extent in limits[tall]]
        bounds = [n for e in excess if (n := _at_most(e, c.tile_axis)) is not None]
        self.ends = RowEnds(
            home.home.dtypes[c.rows_in_place.buffer],
            max((-low for low, _ in limits[tall]), default=0),
            max(bounds, default=0) if len(bounds) == len(excess) else None,
            mod(axes[c.lane], c.tile.lanes) != 0,
        )

    def run(self) -> None:
        """Emit everything, unless a pointwise product emits it row by row."""
        if not self.c.fused_lanes:
            super().run()

    def pack_lines(self, nest: Nest) -> None:
        """Clear the row of zeros which replaces rows outside the image."""
        c, dtype = self.c, self.c.item.dtype
        m = LLVMMachine(self.b, c.tile.lanes, self.home.home.target)
        self.home.loop(
            number(0),
            self.sizes()[c.lane],
            c.tile.lanes,
            lambda at: store_vector(m, self.at(RIGHT_PART, at), m.const(dtype, 0), dtype, None),
        )

    def _table(self) -> None:
        """Do nothing: each row of outputs has its own table."""

    def full_tiles(self) -> None:
        """Emit every tile of the task, row by row."""

        def loops(outer: Sequence[WindowAxis], row: RowPosition) -> None:
            if not outer:
                self._row_table(row)
                self._row(row)
                return
            size = self.sizes()[outer[0].axis]
            self.home.loop(
                number(0), size, 1, lambda at: loops(outer[1:], {**row, outer[0].axis: at})
            )

        loops(self.outer, {})

    def _row_table(self, row: RowPosition) -> None:
        """Store the addresses of the input rows which a row of outputs reaches."""
        home, b, c = self.home, self.b, self.c
        steps = dict(
            zip(c.columns, (home.home.index(n) for n in self.right_rows.steps), strict=False)
        )
        start = b.add(home.index(self.right_rows.start, home.top), home.ranges[c.lane][0])
        start = b.add(start, b.mul(steps[c.tile_axis], number(self.ends.first)))
        outside = b.ptrtoint(self.at(RIGHT_PART, number(0)), I64)
        base, dtype = home.home.buffers[self.right_rows.buffer], self.ends.dtype
        for j, at in enumerate(self.outer_taps()):
            place, inside = start, ir.IntType(1)(1)
            for k in self.outer:
                position = b.mul(b.add(home.ranges[k.axis][0], row[k.axis]), number(k.step))
                position = b.add(position, number(at[k.tap] * k.dilation))
                place = b.add(place, b.mul(position, steps[k]))
                for low, extent in self.axis_limits[k]:
                    within = b.icmp_unsigned(
                        "<", b.add(position, number(low)), home.home.index(extent)
                    )
                    inside = b.and_(inside, within)
            address = b.ptrtoint(element_address(b, base, place, dtype), I64)
            step = b.select(inside, steps[c.tile_axis], number(0))
            self.write_entry(j, at, b.select(inside, address, outside), step)

    def _row(self, row: RowPosition) -> None:
        """Emit all tiles of a row of outputs."""
        home, b, c, sizes = self.home, self.b, self.c, self.sizes()
        low, high = home.ranges[c.tile_axis.axis]
        last = b.mul(b.sub(high, number(1)), number(c.tile_axis.step))
        last = b.add(last, number((c.tile_axis.taps - 1) * c.tile_axis.dilation + 1))
        for offset, extent in self.axis_limits[c.tile_axis]:
            end = b.sub(home.home.index(extent), number(offset))
            last = b.select(b.icmp_signed("<", end, last), end, last)
        count = b.sub(last, number(self.ends.first))
        count = b.select(b.icmp_signed("<", count, number(0)), number(0), count)
        table = home.storage.at[c.item, TABLE_PART]
        nearest = (self.outer or [c.tile_axis])[-1]
        next_row = home.home.index(self.right_rows.steps[c.columns.index(nearest)])

        def tile(y: Value, height: int) -> None:
            place = b.mul(b.add(low, y), number(c.tile_axis.step))
            place = b.sub(place, number(self.ends.first))
            home.loop(
                number(0),
                sizes[c.lane],
                c.tile.lanes,
                lambda at: self.tile(
                    height,
                    {**row, c.tile_axis.axis: y},
                    at,
                    [
                        *self.weights(at),
                        table,
                        self.at(RIGHT_PART, at),
                        place,
                        count,
                        at,
                        b.sub(sizes[c.lane], at),
                        next_row,
                        *self.extra_operands(at),
                    ],
                ),
            )

        self.for_each_height(sizes[c.tile_axis.axis], tile)

    def extra_operands(self, lane: Value) -> list[Value]:
        """Return further arguments of a tile whose vectors begin at a channel."""
        return []

    def function(self, height: int, short: DType | None) -> ir.Function:
        kind, names = self.tile_kind()
        target = self.home.home.target
        return tile_function(self.b.module, kind, height, target, short, self.c, *names)

    def tile_kind(self) -> tuple[type[InPlaceTile], list[str]]:
        """Return the tile class, and strings which complete its functions' names."""
        ends = self.ends
        names = [str(x) for x in (ends.dtype, ends.first, ends.most_beyond, ends.masked)]
        return type("LyingTile", (InPlaceTile,), {"ends": ends}), names


class InPlaceTile(DepthwiseTile):
    """A tile which reads rows in place.

    The table holds the address of each row's first pixel inside, and the distance of its
    neighbours.
    """

    name = "stencil.lying"
    operands = (PTR, I64, I64, I64, I64, I64)
    read = (PTR, I64)
    prefetches = True
    ends: RowEnds

    def mask(self) -> Value | None:
        """Return the mask of lanes which have a channel, or None if all have."""
        if not self.ends.masked:
            return None
        left, lanes = self.extra_args[4], self.c.tile.lanes
        return self.b.icmp_signed("<", iota(lanes), splat(self.b, left, lanes))

    def reader(self, entry: Sequence[Value], newest: bool) -> Reader:
        b, c, ends = self.b, self.c, self.ends
        outside, place, count, lane, _, next_row, *_ = self.extra_args
        _, first_pixel, step = entry
        mask = self.mask()
        first = element_address(b, first_pixel, b.add(lane, b.mul(step, place)), ends.dtype)
        places = (
            (self.height - 1) * c.tile_axis.step + (c.tile_axis.taps - 1) * c.tile_axis.dilation + 1
        )
        more = (TILE_HEIGHTS[-1] - 1) * c.tile_axis.step if self.height == TILE_HEIGHTS[-1] else 0

        def read(phase: int, at: int) -> Value:
            k = at * c.tile_axis.step + phase
            address = element_address(b, first, b.mul(step, number(k)), ends.dtype)
            if ends.may_be_outside(k, places, more):
                inside = b.icmp_unsigned("<", b.add(place, number(k)), count)
                address = b.select(inside, address, outside)
            if newest:
                prefetch(b, element_address(b, address, next_row, ends.dtype), near=True)
            return load_vector(self.m, address, ends.dtype, mask)

        return read


__all__ = ["DepthwiseInPlace"]
