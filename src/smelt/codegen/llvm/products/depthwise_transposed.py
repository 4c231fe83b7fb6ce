"""Emit depthwise convolution over short rows, vectorised over channels by transposes.

The packed input is first cleared, padding included, if there is any.  Then each row inside the
image is read in tiles, one vector per channel, which are transposed in registers; their columns are
stored pixel by pixel.  Sums are in the same layout, and are transposed back tile by tile, without
regard to rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.products.depthwise_packed import DepthwisePacked
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.schedule.product_plan import RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.types.expr import product

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


class DepthwiseTransposed(DepthwisePacked):
    """Emits one depthwise convolution over transposed rows, in the task of `home`."""

    def __init__(self, home: NestEmitter, nest: Nest, c: DepthwisePlan) -> None:
        super().__init__(home, nest, c)
        assert c.transposed_rows is not None
        self.right_rows, self.lanes = c.transposed_rows, c.tile.lanes
        self.m = LLVMMachine(self.b, self.lanes, home.home.target)

    def run(self) -> None:
        """Emit the convolution, then transpose its sums back."""
        super().run()
        self._store_transposed()

    def places(self) -> tuple[Value, dict[str, Value]]:
        """Return where tiles write, and strides of the transposed sums."""
        axes = tuple(k.axis for k in self.c.columns)
        extents = [*(self.home.s.local[a] for a in axes[:-1]), self.lanes]
        return self.home.storage.at[self.item, SUMS_PART], self.dense_strides(axes, extents)

    # ---- the operand -----------------------------------------------------------------------------

    def pack_lines(self, nest: Nest) -> None:
        """Pack the input, transposing tiles of it."""
        home, b, c, rows_in_place = self.home, self.b, self.c, self.right_rows
        if any(rows_in_place.bounds):
            self._clear()
        low, high = home.ranges[c.lane]
        start = b.add(
            home.index(rows_in_place.start, home.top),
            b.mul(low, home.home.index(rows_in_place.lane_stride)),
        )
        last = b.sub(b.sub(high, low), number(1))  # lanes past the last channel repeat it
        channel_offsets = [
            b.mul(
                b.select(b.icmp_signed("<", number(k), last), number(k), last),
                home.home.index(rows_in_place.lane_stride),
            )
            for k in range(self.lanes)
        ]
        self._pack_rows(0, start, number(0), channel_offsets)

    def _clear(self) -> None:
        """Clear the packed input."""
        zero = self.m.const(self.c.item.dtype, 0)
        count = self.home.home.index(product(self.c.packed(self.home.s.local)))
        self.home.loop(
            number(0),
            count,
            self.lanes,
            lambda at: store_vector(self.m, self.at(RIGHT_PART, at), zero, self.c.item.dtype, None),
        )

    def _span(self, k: int) -> tuple[Value, Value]:
        """Return the range of input positions along an axis which are inside the image."""
        b, c = self.b, self.c.columns[k]
        low, high = self.home.ranges[c.axis]
        first = b.mul(low, number(c.step))
        reach = (c.taps - 1) * c.dilation + 1 - c.step
        end = b.add(b.mul(high, number(c.step)), number(reach))
        for before, extent in self.right_rows.bounds[k]:
            begin = number(-before)
            first = b.select(b.icmp_signed("<", first, begin), begin, first)
            image_end = b.sub(self.home.home.index(extent), number(before))
            end = b.select(b.icmp_signed("<", image_end, end), image_end, end)
        return first, end

    def _packed_offset(self, c: WindowAxis, at: Value) -> Value:
        """Return the packed offset of an input position along an axis, in elements."""
        b = self.b
        position = b.sub(at, b.mul(self.home.ranges[c.axis][0], number(c.step)))
        if c.step == 1:
            return b.mul(position, self.packed_right_strides[c.position_axis])
        quotient, phase = b.udiv(position, number(c.step)), b.urem(position, number(c.step))
        return b.add(
            b.mul(quotient, self.packed_right_strides[c.position_axis]),
            b.mul(phase, self.packed_right_strides[c.remainder_axis]),
        )

    def _pack_rows(self, k: int, start: Value, to: Value, channel_offsets: list[Value]) -> None:
        """Pack all rows inside the image, looping over the axes from the k-th on."""
        b, home, c = self.b, self.home, self.c.columns[k]
        first, end = self._span(k)
        if k < len(self.c.columns) - 2:
            step = home.home.index(self.right_rows.steps[k])
            home.loop(
                first,
                end,
                1,
                lambda at: self._pack_rows(
                    k + 1,
                    b.add(start, b.mul(at, step)),
                    b.add(to, self._packed_offset(c, at)),
                    channel_offsets,
                ),
            )
            return
        half = self.lanes // 2
        is_short = b.icmp_signed("<=", b.sub(end, first), number(half))

        def pack_row(count: int) -> None:
            home.loop(
                first,
                end,
                count,
                lambda at: self._store_pixels(
                    to, at, end, self._load_pixels(start, at, end, channel_offsets, count)
                ),
            )

        with b.if_else(is_short) as (short, long):
            with short:
                pack_row(half)
            with long:
                pack_row(self.lanes)

    def _load_pixels(
        self, start: Value, at: Value, end: Value, channel_offsets: list[Value], count: int
    ) -> list[Value]:
        """Return `count` pixels of a row, from `at` on, as vectors of channels.

        They are the columns of a full tile, or of two half tiles side by side, which takes half as
        long.
        """
        b, home = self.b, self.home
        dtype = home.home.dtypes[self.right_rows.buffer]
        left = b.sub(end, at)
        mask = b.icmp_signed("<", iota(count), splat(b, left, count))
        m = LLVMMachine(b, count, home.home.target)
        base = element_address(
            b, home.home.buffers[self.right_rows.buffer], b.add(start, at), dtype
        )
        rows = [
            load_vector(m, element_address(b, base, offset, dtype), dtype, mask)
            for offset in channel_offsets
        ]
        if count == self.lanes:
            return transpose(b, rows)
        both = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [*range(self.lanes)])
        return transpose(
            b, [b.shuffle_vector(rows[k], rows[k + count], both) for k in range(count)], halves=2
        )

    def _store_pixels(self, to: Value, at: Value, end: Value, columns: list[Value]) -> None:
        """Store consecutive pixels of a row.

        Rows come in the order of their packed positions, so zeros stored past the end of one are
        overwritten by the next; not so with strides, which split pixels by phase: there they go to
        a spare element.
        """
        b, c, dtype = self.b, self.c.columns[-2], self.c.item.dtype
        spare = self.home.home.index(product(self.c.packed(self.home.s.local)))
        for k, column in enumerate(columns):
            offset = b.add(to, self._packed_offset(c, b.add(at, number(k))))
            if any(x.step > 1 for x in self.c.columns):
                inside = b.icmp_signed("<", b.add(at, number(k)), end)
                offset = b.select(inside, offset, spare)
            store_vector(self.m, self.at(RIGHT_PART, offset), column, dtype, None)

    # ---- the results -----------------------------------------------------------------------------

    def _store_transposed(self) -> None:
        """Store the sums, transposed from pixel-major to channel-major."""
        home, b, c, dtype = self.home, self.b, self.c, self.c.item.dtype
        outer, *inner = c.columns[:-1]
        low, high = home.ranges[outer.axis]
        plane_size = home.home.index(product(home.s.local[k.axis] for k in inner))
        channel_size = home.home.index(product(home.s.local[k.axis] for k in c.columns[:-1]))
        places = b.mul(b.sub(high, low), plane_size)

        def tile(at: Value) -> None:
            rows = [
                load_vector(
                    self.m,
                    self.at(SUMS_PART, b.mul(b.add(at, number(k)), number(self.lanes))),
                    dtype,
                    None,
                )
                for k in range(self.lanes)
            ]
            mask = b.icmp_signed("<", iota(self.lanes), splat(b, b.sub(places, at), self.lanes))
            for k, row in enumerate(transpose(b, rows)):
                address = self.at(0, b.add(b.mul(number(k), channel_size), at))
                store_vector(self.m, address, row, dtype, mask)

        home.loop(number(0), places, self.lanes, tile)


__all__ = ["DepthwiseTransposed"]
