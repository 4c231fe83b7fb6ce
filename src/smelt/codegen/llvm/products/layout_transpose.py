"""Convert images between NCHW and NHWC while packing, and sums back when storing.

Vectors of an NCHW image run along its rows.  Those of as many channels as a vector has lanes form a
tile which is transposed in registers: its columns are pixels with contiguous channels, as packed.
Sums are NHWC too, and are transposed back tile by tile, without regard to image rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.product_plan import RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.scratch.transpose import transpose

if TYPE_CHECKING:
    from smelt.codegen.llvm.products.implicit_gemm_nhwc import ImplicitGemmNhwc

Value = ir.Value


def pack_nchw(packer: ImplicitGemmNhwc, nest: Nest) -> None:
    """Pack a block of an NCHW image, row by row.

    What a tile has past the end of its row is overwritten by the next one; there is room behind the
    last.
    """
    b, home, c, lanes = packer.b, packer.home, packer.c, packer.c.tile.lanes
    *outer, depth, last = nest.order
    packer.starts = {a: home.ranges[a][0] for a in nest.order}
    column = c.columns[-1]
    local_size, size = home.s.local[column.axis], home.s.phase.axes[column.axis]
    row_length = 0  # known remainder, where all tasks have rows of one length
    if (
        isinstance(local_size, int)
        and isinstance(size, int)
        and local_size
        and size % local_size == 0
    ):
        row_length = (local_size + column.halo) * (column.step if c.few_channels else 1)
    piece = _Piece(packer, nest)

    def loops(scope: Scope, inner_axes: list[str], done: int) -> None:
        if inner_axes:
            home.loop(*home.ranges[inner_axes[0]], 1, lambda at: step(scope, inner_axes, at, done))
            return
        home.loop(*home.ranges[depth], c.few_channels or lanes, lambda k: pieces(scope, k))

    def step(scope: Scope, inner_axes: list[str], at: Value, done: int) -> None:
        inner = Scope(scope, {inner_axes[0]: at})
        home.enter(inner, done + 1)
        loops(inner, inner_axes[1:], done + 1)

    def pieces(scope: Scope, k: Value) -> None:
        low, high = home.ranges[last]
        vectors_end = b.add(low, b.and_(b.sub(high, low), number(-lanes)))
        home.loop(low, vectors_end, lanes, lambda at: piece.put(scope, k, at, None, lanes))
        home.loop(
            vectors_end,
            high,
            lanes,
            lambda at: piece.put(
                scope,
                k,
                at,
                b.icmp_signed("<", iota(lanes), splat(b, b.sub(high, at), lanes)),
                row_length % lanes or lanes,
            ),
        )

    loops(home.open(nest, Scope(home.top)), [*outer], 0)


class _Piece:
    """Packs a vector of pixels of an image row."""

    def __init__(self, packer: ImplicitGemmNhwc, nest: Nest) -> None:
        self.packer, self.nest, self.c = packer, nest, packer.c
        self.home, self.b, self.lanes = packer.home, packer.b, packer.c.tile.lanes
        self.depth, self.last = nest.order[-2:]
        self.m = LLVMMachine(self.b, self.lanes, self.home.home.target)

    def put(self, scope: Scope, k: Value, at: Value, mask: Value | None, count: int) -> None:
        """Pack channels from k on of `count` pixels."""
        if self.c.few_channels:
            self._interleave_channels(
                scope, at, self._rows(scope, (k, at), mask, self.c.few_channels)
            )
            return
        for i, pixel in enumerate(transpose(self.b, self._rows(scope, (k, at), mask, self.lanes))):
            place = Scope(scope, {self.depth: k, self.last: self.b.add(at, number(i))})
            if i < count:
                self._store(self.packer.offset(self.nest, place), pixel)

    def _store(self, offset: Value, value: Value) -> None:
        store_vector(self.m, self.packer.at(RIGHT_PART, offset), value, self.c.unit, None)

    def _rows(
        self, scope: Scope, at: tuple[Value, Value], mask: Value | None, count: int
    ) -> list[Value]:
        """Load vectors along the row, of `count` channels; the last channel is repeated."""
        b, home, (k, place), rows = self.b, self.home, at, list[Value]()
        end = b.sub(home.ranges[self.depth][1], number(1))
        for i in range(count):
            channel_index = b.add(k, number(i))
            channel_index = b.select(b.icmp_signed("<", channel_index, end), channel_index, end)
            channel = Scope(scope, {self.depth: channel_index})
            home.enter(channel, len(self.nest.order) - 1)
            inner = Scope(
                channel, {self.last: place}, lanes=Lanes(self.last, place, self.lanes, mask)
            )
            home.enter(inner, len(self.nest.order))
            rows.append(home.get(self.c.right, inner, True))
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


def store_nchw(packer: ImplicitGemmNhwc) -> None:
    """Store the sums of a block, transposed from NHWC to NCHW."""
    b, home, c, lanes = packer.b, packer.home, packer.c, packer.c.tile.lanes
    m, dtype = LLVMMachine(b, lanes, home.home.target), c.item.dtype
    base, strides = home.direct.transposed_layout(c)
    columns = [k.axis for k in c.columns]
    spans = {a: b.sub(high, low) for a in (c.n, *columns) for low, high in (home.ranges[a],)}
    row_length = spans[columns[-1]]
    if home.direct.rows_are_contiguous(c):
        row_length = b.mul(spans[columns[-2]], packer.rows[-2])
        row_length = b.udiv(row_length, packer.rows[-1])
        columns.pop(-2)

    has_full_tiles = packer.is_multiple(c.n, lanes)

    def tile(n: Value, source: Value, to: Value, at: Value, is_full: bool) -> None:
        rows = [
            load_vector(
                m,
                packer.at(
                    SUMS_PART, b.add(b.add(source, n), b.mul(b.add(at, number(k)), packer.rows[-1]))
                ),
                dtype,
                None,
            )
            for k in range(lanes)
        ]
        end = spans[c.n]
        inside = b.icmp_signed("<", iota(lanes), splat(b, b.sub(row_length, at), lanes))
        for k, row in enumerate(transpose(b, rows)):
            channel = b.add(n, number(k))
            mask: Value | None = None if is_full else inside
            if not has_full_tiles:
                is_channel = splat(b, b.icmp_signed("<", channel, end), lanes)
                mask = is_channel if mask is None else b.and_(mask, is_channel)
            place = b.add(b.add(to, at), b.mul(channel, strides[c.n]))
            store_vector(m, element_address(b, base, place, dtype), row, dtype, mask)

    def loops(inner_axes: list[str], n: Value, source: Value, to: Value) -> None:
        if len(inner_axes) > 1:
            step = packer.rows[[k.axis for k in c.columns].index(inner_axes[0])]
            home.loop(
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
        home.loop(number(0), middle, lanes, lambda at: tile(n, source, to, at, True))
        home.loop(middle, row_length, lanes, lambda at: tile(n, source, to, at, False))

    home.loop(number(0), spans[c.n], lanes, lambda n: loops(columns, n, number(0), number(0)))


__all__ = ["pack_nchw", "store_nchw"]
