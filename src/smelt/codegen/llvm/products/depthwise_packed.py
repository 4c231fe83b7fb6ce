"""Emit depthwise convolution with packed operands, and columns of outputs in registers.

A tile computes some positions along one axis for a vector of another.  Each row of the packed input
is read once for all outputs of the tile which need it.  A loop walks the taps along the other axes,
for which a table holds the offset from an output to each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.products.depthwise_microkernel import ENTRIES, PackedTile, tile_function
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.products.tile_sums import row_offset
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.schedule.product_plan import LEFT_PART, RIGHT_PART, TABLE_PART
from smelt.types.dtype import DType, i64

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
RowPosition: TypeAlias = dict[str, Value]
"""A position along each of some axes."""


class DepthwisePacked(Packer):
    """Emits one depthwise convolution of the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: DepthwisePlan) -> None:
        super().__init__(home, c.item)
        self.nest, self.c = nest, c

    def run(self) -> None:
        """Emit the complete convolution of this task, into its scratch array."""
        self.pack_operands()
        self.full_tiles()

    def pack_operands(self) -> None:
        """Emit what precedes the tiles: pack the operands."""
        home, c = self.home, self.c
        self.packed_right_strides = self.dense_strides(c.right_order(), c.packed(home.s.local))
        self.to, self.results = self.places()
        self.next_runs = home.direct.rounded_output(c)
        tap_stride = (
            home.home.index(home.storage.extent(c.item, c.lane))
            if c.has_lane_weights
            else number(1)
        )
        self.packed_left_strides = {c.flat: tap_stride, c.lane: number(1)}
        self._table()
        ranges = dict(home.ranges)
        home.ranges[c.flat] = (number(0), home.home.index(home.s.phase.axes[c.flat]))
        left, right = self.nest.packs
        self.pack(left)
        self.widen_ranges(c.columns)
        self.pack_lines(right)
        home.ranges = ranges

    def places(self) -> tuple[Value, dict[str, Value]]:
        """Return where tiles write, and the strides along all axes but the lanes'."""
        to, strides = self.home.direct.image_layout(self.c)
        return to, dict(zip((k.axis for k in self.c.columns[:-1]), strides, strict=True))

    def pack_lines(self, nest: Nest) -> None:
        """Pack the input."""
        self.pack(nest)

    def _table(self) -> None:
        """Store a table entry for each position of the reduction but those along the tile."""
        c = self.c
        reduced = [a for a in c.over if a != c.mixing_axis]
        for j, at in enumerate(self.outer_taps()):
            self.write_entry(
                j, at, self.window_offset(c.columns, reduced, [at[a] for a in reduced])
            )

    def outer_taps(self) -> list[dict[str, int]]:
        """Return positions of the reduction along all axes, with the first one along the tile."""
        c = self.c
        return [dict(zip(c.over, _position(first, c.extents), strict=True)) for first, *_ in c.taps]

    def write_entry(self, j: int, at: dict[str, int], *read: Value) -> None:
        """Store a table entry: weight offset, lane of a channel group, input offsets."""
        b, c = self.b, self.c
        weights = b.mul(self.packed_left_strides[c.flat], number(c.taps[j][0]))
        base = self.home.storage.at[c.item, TABLE_PART]
        for k, value in enumerate((weights, number(at.get(c.mixing_axis, 0)), *read)):
            b.store(value, element_address(b, base, number(ENTRIES * j + k), i64))

    def full_tiles(self) -> None:
        """Emit every tile of the task."""
        home, c, b = self.home, self.c, self.b
        sizes = self.sizes()

        def loops(outer: list[WindowAxis], row: RowPosition, right: Value) -> None:
            if not outer:
                home.loop(
                    number(0),
                    sizes[c.lane],
                    c.tile.lanes,
                    lambda at: self._column(at, row, b.add(right, at), sizes[c.tile_axis.axis]),
                )
                return
            first, *inner = outer
            home.loop(
                number(0),
                sizes[first.axis],
                1,
                lambda at: loops(
                    inner,
                    {**row, first.axis: at},
                    b.add(right, b.mul(at, self.packed_right_strides[first.position_axis])),
                ),
            )

        loops(self.rows(), {}, number(0))

    def rows(self) -> list[WindowAxis]:
        """Return the output axes which tiles do not cover, outermost first."""
        return [k for k in self.c.columns[:-1] if k is not self.c.tile_axis]

    def sizes(self) -> RowPosition:
        """Return the number of the task's outputs along each axis."""
        ranges = self.home.ranges
        return {k.axis: self.b.sub(*ranges[k.axis][::-1]) for k in self.c.columns}

    def weights(self, lane: Value) -> list[Value]:
        """Return the address of a vector's weights, and elements between taps."""
        c = self.c
        first, second = c.taps[0][0], c.taps[0][-1]
        rise = number((second - first) // max(c.tile_axis.taps - 1, 1))
        left = self.at(LEFT_PART, lane if c.has_lane_weights else number(0))
        return [left, self.b.mul(self.packed_left_strides[c.flat], rise)]

    def _column(self, at: Value, outer: RowPosition, right: Value, size: Value) -> None:
        """Emit all tiles of one vector."""
        b, c = self.b, self.c
        step = self.packed_right_strides[c.tile_axis.position_axis]
        plane = (
            self.packed_right_strides[c.tile_axis.remainder_axis]
            if c.tile_axis.remainder_axis
            else number(0)
        )
        weights, table = self.weights(at), self.home.storage.at[c.item, TABLE_PART]

        def tile(y: Value, height: int) -> None:
            self.tile(
                height,
                {**outer, c.tile_axis.axis: y},
                at,
                [*weights, table, self.at(RIGHT_PART, b.add(right, b.mul(y, step))), step, plane],
            )

        self.for_each_height(size, tile)

    def for_each_height(self, size: Value, tile: Callable[[Value, int], None]) -> None:
        """Emit `tile(position, height)` for all tiles over `size` outputs, tallest first.

        The lowest tiles overlap earlier ones rather than reach past the end.
        """
        b, done, heights = self.b, number(0), self.c.heights()
        for height in heights:
            remainder = b.srem(b.sub(size, done), number(height))
            is_lowest = height == heights[-1]
            end = size if is_lowest else b.sub(size, remainder)
            self.home.loop(
                done,
                end,
                height,
                lambda y, height=height, is_lowest=is_lowest: tile(
                    self._clamp_start(y, size, height) if is_lowest else y, height
                ),
            )
            done = end

    def _clamp_start(self, y: Value, size: Value, height: int) -> Value:
        """Move the beginning of a tile so that it ends inside the task."""
        b, last_start = self.b, self.b.sub(size, number(height))
        last_start = b.select(b.icmp_signed("<", last_start, number(0)), number(0), last_start)
        return b.select(b.icmp_signed("<", last_start, y), last_start, y)

    def tile(self, height: int, row: RowPosition, lane: Value, operands: list[Value]) -> None:
        """Call the function of a tile whose sums begin at a position."""
        b, c, tall = self.b, self.c, self.c.tile_axis.axis
        order = [k.axis for k in c.columns[:-1]]
        rows = [row[a] for a in order]
        to = b.add(row_offset(b, [self.results[a] for a in order], rows), lane)
        args, short = [element_address(b, self.to, to, c.item.dtype), self.results[tall]], None
        if (later := self.next_runs) is not None:
            offset = b.add(row_offset(b, later.strides, rows), lane)
            args += [element_address(b, later.base, offset, later.dtype)]
            args += [later.strides[order.index(tall)], later.enabled]
            short = later.dtype
        b.call(self.function(height, short), [*args, *operands])

    def function(self, height: int, short: DType | None) -> ir.Function:
        """Return the tile function of a height; its sums may be stored as `short`."""
        target = self.home.home.target
        return tile_function(self.b.module, PackedTile, height, target, short, self.c)


def _position(number: int, extents: Sequence[int]) -> list[int]:
    """Return the position along several axes for a row-major index."""
    position: list[int] = []
    for n in extents[::-1]:
        number, at = divmod(number, n)
        position.insert(0, at)
    return position


__all__ = ["DepthwisePacked", "RowPosition"]
