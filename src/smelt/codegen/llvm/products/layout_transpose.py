"""Convert images between NCHW and NHWC while packing, and sums back when storing.

Vectors of an NCHW image run along its rows.  Those of as many channels as a vector has lanes form a
tile which is transposed in registers: its columns are pixels with contiguous channels, as packed.
Sums are NHWC too, and are transposed back tile by tile, without regard to image rows.

    pack_nchw(packer, c, nest)         a block of an image, whatever it is computed from
    store_nchw(packer, c, rows)        sums of an implicit GEMM
    pack_pixel_rows(packer, c, rows)   an image in memory; its padding is cleared before
    store_channel_rows(packer, c)      sums of a depthwise convolution
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import lanes_before_end, lanes_if, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.input_tile import WindowAxis
from smelt.codegen.llvm.loopir.strided_input import StridedRows
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.products.direct_store import (
    rows_are_contiguous,
    transposed_layout,
)
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.types.dtype import DType
from smelt.types.expr import product

Value = ir.Value


def pack_nchw(packer: Packer, c: NhwcConvPlan, nest: Nest) -> None:
    """Pack a block of an NCHW image, row by row.

    What a tile has past the end of its row is overwritten by the next one; there is room behind the
    last.
    """
    b, env, lanes = packer.b, packer.env, c.tile.lanes
    *outer, depth, last = nest.order
    packer.count_from({a: env.ranges[a][0] for a in nest.order})
    piece = _Piece(packer, c, nest)

    def loops(scope: Scope, inner_axes: list[str], done: int) -> None:
        if inner_axes:
            env.loop(*env.ranges[inner_axes[0]], 1, lambda at: step(scope, inner_axes, at, done))
            return
        env.loop(*env.ranges[depth], c.few_channels or lanes, lambda k: pieces(scope, k))

    def step(scope: Scope, inner_axes: list[str], at: Value, done: int) -> None:
        inner = Scope(scope, {inner_axes[0]: at})
        env.enter(inner, done + 1)
        loops(inner, inner_axes[1:], done + 1)

    def pieces(scope: Scope, k: Value) -> None:
        low, high = env.ranges[last]
        vectors_end = b.add(low, b.and_(b.sub(high, low), number(-lanes)))
        env.loop(low, vectors_end, lanes, lambda at: piece.put(scope, k, at, None))
        env.loop(
            vectors_end,
            high,
            lanes,
            lambda at: piece.put(scope, k, at, lanes_before_end(b, b.sub(high, at), lanes)),
        )

    loops(env.open(nest, Scope(env.top)), [*outer], 0)


class _Piece:
    """Packs a vector of pixels of an image row."""

    def __init__(self, packer: Packer, c: NhwcConvPlan, nest: Nest) -> None:
        self.packer, self.nest, self.c = packer, nest, c
        self.env, self.b, self.lanes = packer.env, packer.b, c.tile.lanes
        self.depth, self.last = nest.order[-2:]
        self.m = LLVMMachine(self.b, self.lanes, self.env.frame.target)

    def put(self, scope: Scope, k: Value, at: Value, mask: Value | None) -> None:
        """Pack channels from k on of a vector of pixels."""
        if self.c.few_channels:
            self._interleave_channels(
                scope, at, self._rows(scope, (k, at), mask, self.c.few_channels)
            )
            return
        for i, pixel in enumerate(transpose(self.b, self._rows(scope, (k, at), mask, self.lanes))):
            place = Scope(scope, {self.depth: k, self.last: self.b.add(at, number(i))})
            self._store(self.packer.offset(self.nest, place), pixel)

    def _store(self, offset: Value, value: Value) -> None:
        store_vector(self.m, self.packer.at(RIGHT_PART, offset), value, self.c.unit, None)

    def _rows(
        self, scope: Scope, at: tuple[Value, Value], mask: Value | None, count: int
    ) -> list[Value]:
        """Load vectors along the row, of `count` channels; the last channel is repeated."""
        b, env, (k, place), rows = self.b, self.env, at, list[Value]()
        end = b.sub(env.ranges[self.depth][1], number(1))
        for i in range(count):
            channel_index = b.add(k, number(i))
            channel_index = b.select(b.icmp_signed("<", channel_index, end), channel_index, end)
            channel = Scope(scope, {self.depth: channel_index})
            env.enter(channel, len(self.nest.order) - 1)
            inner = Scope(
                channel, {self.last: place}, lanes=Lanes(self.last, place, self.lanes, mask)
            )
            env.enter(inner, len(self.nest.order))
            rows.append(env.get(self.c.right, inner, True))
        return rows

    def _interleave_channels(self, scope: Scope, at: Value, rows: list[Value]) -> None:
        """Interleave a few channels, pixel by pixel."""
        b, packer, lanes, channels = self.b, self.packer, self.lanes, self.c.few_channels
        offset = b.mul(b.sub(at, packer.starts[self.last]), number(channels))
        for a in self.nest.order[:-2]:
            offset = b.add(
                offset,
                b.mul(b.sub(scope.axis(a), packer.starts[a]), packer.packed_right_strides[a]),
            )
        for j in range(channels):
            sources, mixed = [divmod(j * lanes + i, channels) for i in range(lanes)], rows[0]
            for k in range(1, channels):
                lane_numbers = [
                    lanes + x if y == k else x if k == 1 else i for i, (x, y) in enumerate(sources)
                ]
                mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), lane_numbers)
                mixed = b.shuffle_vector(mixed, rows[k], mask)
            self._store(b.add(offset, number(j * lanes)), mixed)


def store_nchw(packer: Packer, c: NhwcConvPlan, rows: Sequence[Value]) -> None:
    """Store the sums of a block, transposed from NHWC to NCHW."""
    b, env, lanes = packer.b, packer.env, c.tile.lanes
    m, dtype = LLVMMachine(b, lanes, env.frame.target), c.item.dtype
    base, strides = transposed_layout(env, c)
    columns = [k.axis for k in c.columns]
    spans = {a: b.sub(high, low) for a in (c.n, *columns) for low, high in (env.ranges[a],)}
    row_length = spans[columns[-1]]
    if rows_are_contiguous(env, c):
        row_length = b.mul(spans[columns[-2]], rows[-2])
        row_length = b.udiv(row_length, rows[-1])
        columns.pop(-2)

    has_full_tiles = packer.is_multiple(c.n, lanes)

    def tile(n: Value, source: Value, to: Value, at: Value, is_full: bool) -> None:
        def sums(k: int) -> Value:
            pixel = b.mul(b.add(at, number(k)), rows[-1])
            return packer.at(SUMS_PART, b.add(b.add(source, n), pixel))

        def target(k: int, mask: ir.PrefixMask | None) -> tuple[Value, ir.PrefixMask | None]:
            channel = b.add(n, number(k))
            place = b.add(b.add(to, at), b.mul(channel, strides[c.n]))
            address = element_address(b, base, place, dtype)
            if has_full_tiles:
                return address, mask
            # A masked store without lanes is slow where memory is not mapped.
            is_channel = b.icmp_signed("<", channel, spans[c.n])
            pixels = lanes_before_end(b, number(lanes), lanes) if mask is None else mask
            return b.select(is_channel, address, base), lanes_if(b, is_channel, pixels)

        _store_transposed(m, dtype, sums, target, None if is_full else b.sub(row_length, at))

    def loops(inner_axes: list[str], n: Value, source: Value, to: Value) -> None:
        if len(inner_axes) > 1:
            step = rows[[k.axis for k in c.columns].index(inner_axes[0])]
            env.loop(
                number(0),
                spans[inner_axes[0]],
                1,
                lambda at: loops(
                    inner_axes[1:],
                    n,
                    b.add(source, b.mul(at, step)),
                    b.add(to, b.mul(at, strides[inner_axes[0]])),
                ),
            )
            return
        middle = b.and_(row_length, number(-lanes))
        env.loop(number(0), middle, lanes, lambda at: tile(n, source, to, at, True))
        env.loop(middle, row_length, lanes, lambda at: tile(n, source, to, at, False))

    env.loop(number(0), spans[c.n], lanes, lambda n: loops(columns, n, number(0), number(0)))


def store_channel_rows(packer: Packer, c: DepthwisePlan) -> None:
    """Store the sums of a depthwise convolution, transposed from NHWC to NCHW."""
    env, b, dtype = packer.env, packer.b, c.item.dtype
    m = LLVMMachine(b, c.tile.lanes, env.frame.target)
    outer, *inner = c.columns[:-1]
    low, high = env.ranges[outer.axis]
    plane_size = env.frame.index(product(env.s.local[k.axis] for k in inner))
    channel_size = env.frame.index(product(env.s.local[k.axis] for k in c.columns[:-1]))
    places, lanes = b.mul(b.sub(high, low), plane_size), c.tile.lanes

    def tile(at: Value) -> None:
        def sums(k: int) -> Value:
            return packer.at(SUMS_PART, b.mul(b.add(at, number(k)), number(lanes)))

        def target(k: int, mask: ir.PrefixMask | None) -> tuple[Value, ir.PrefixMask | None]:
            return packer.at(0, b.add(b.mul(number(k), channel_size), at)), mask

        _store_transposed(m, dtype, sums, target, b.sub(places, at))

    env.loop(number(0), places, lanes, tile)


def _store_transposed(
    m: LLVMMachine,
    dtype: DType,
    sums: Callable[[int], Value],
    target: Callable[[int, ir.PrefixMask | None], tuple[Value, ir.PrefixMask | None]],
    count: Value | None,
) -> None:
    """Transpose a tile: from the addresses of its pixels to those of its channels.

    `target` completes the mask of the first `count` pixels; None if all are inside.
    """
    assert m.lanes is not None
    rows = [load_vector(m, sums(k), dtype, None) for k in range(m.lanes)]
    inside = None if count is None else lanes_before_end(m.builder, count, m.lanes)
    for k, row in enumerate(transpose(m.builder, rows)):
        address, mask = target(k, inside)
        store_vector(m, address, row, dtype, mask)


def pack_pixel_rows(packer: Packer, c: DepthwisePlan, rows: StridedRows) -> None:
    """Pack the rows of an NCHW image which a depthwise convolution reads."""
    env, b = packer.env, packer.b
    low, high = env.ranges[c.lane]
    stride = env.frame.index(rows.lane_stride)
    start = b.add(env.index(rows.start, env.top), b.mul(low, stride))
    last = b.sub(b.sub(high, low), number(1))  # lanes past the last channel repeat it
    channels = [
        b.mul(b.select(b.icmp_signed("<", number(k), last), number(k), last), stride)
        for k in range(c.tile.lanes)
    ]
    _PixelRows(packer, c, rows, channels).loops(0, start, number(0))


class _PixelRows:
    """Transposes rows of pixels, tile by tile, from the given offsets of channels."""

    def __init__(
        self, packer: Packer, c: DepthwisePlan, rows: StridedRows, channels: Sequence[Value]
    ) -> None:
        self.packer, self.env, self.b, self.c = packer, packer.env, packer.b, c
        self.rows, self.channels, self.lanes = rows, channels, c.tile.lanes
        self.m = LLVMMachine(self.b, self.lanes, self.env.frame.target)
        self.dtype = self.env.frame.dtypes[rows.buffer]

    def loops(self, k: int, start: Value, to: Value) -> None:
        """Pack all rows inside the image, looping over the axes from the k-th on."""
        b, env, c = self.b, self.env, self.c.columns[k]
        first, end = self._span(k)
        if k < len(self.c.columns) - 2:
            step = env.frame.index(self.rows.steps[k])
            env.loop(
                first,
                end,
                1,
                lambda at: self.loops(
                    k + 1, b.add(start, b.mul(at, step)), b.add(to, self._packed_offset(c, at))
                ),
            )
            return
        env.loop(first, end, self.lanes, lambda at: self._put(to, start, at, end))

    def _span(self, k: int) -> tuple[Value, Value]:
        """Return the range of input positions along an axis which are inside the image."""
        b, c = self.b, self.c.columns[k]
        low, high = self.env.ranges[c.axis]
        first = b.mul(low, number(c.step))
        reach = (c.taps - 1) * c.dilation + 1 - c.step
        end = b.add(b.mul(high, number(c.step)), number(reach))
        for before, extent in self.rows.bounds[k]:
            begin = number(-before)
            first = b.select(b.icmp_signed("<", first, begin), begin, first)
            image_end = b.sub(self.env.frame.index(extent), number(before))
            end = b.select(b.icmp_signed("<", image_end, end), image_end, end)
        return first, end

    def _packed_offset(self, c: WindowAxis, at: Value) -> Value:
        """Return the packed offset of an input position along an axis, in elements."""
        b, strides = self.b, self.packer.packed_right_strides
        position = b.sub(at, b.mul(self.env.ranges[c.axis][0], number(c.step)))
        if c.step == 1:
            return b.mul(position, strides[c.position_axis])
        quotient, phase = b.udiv(position, number(c.step)), b.urem(position, number(c.step))
        return b.add(
            b.mul(quotient, strides[c.position_axis]), b.mul(phase, strides[c.remainder_axis])
        )

    def _put(self, to: Value, start: Value, at: Value, end: Value) -> None:
        """Pack a tile of pixels of a row, from `at` on.

        Rows come in the order of their packed positions, so zeros stored past the end of one are
        overwritten by the next; not so with strides, which split pixels by phase: there they go to
        a spare element.
        """
        b, packer, c, dtype = self.b, self.packer, self.c.columns[-2], self.c.item.dtype
        columns = self._columns(start, at, end)
        spare = self.env.frame.index(product(self.c.packed(self.env.s.local)))
        for k, column in enumerate(columns):
            pixel = b.add(at, number(k))
            offset = b.add(to, self._packed_offset(c, pixel))
            if any(x.step > 1 for x in self.c.columns):
                offset = b.select(b.icmp_signed("<", pixel, end), offset, spare)
            store_vector(self.m, packer.at(RIGHT_PART, offset), column, dtype, None)

    def _columns(self, start: Value, at: Value, end: Value) -> list[Value]:
        """Return the next pixels of a row, as vectors of channels."""
        b, mask = self.b, lanes_before_end(self.b, self.b.sub(end, at), self.lanes)
        image = self.env.frame.buffers[self.rows.buffer]
        base = element_address(b, image, b.add(start, at), self.dtype)
        places = (element_address(b, base, offset, self.dtype) for offset in self.channels)
        rows = [load_vector(self.m, place, self.dtype, mask) for place in places]
        return transpose(b, rows)


__all__ = ["pack_nchw", "pack_pixel_rows", "store_channel_rows", "store_nchw"]
