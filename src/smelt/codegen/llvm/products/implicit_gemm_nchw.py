"""Emit implicit-GEMM convolution with channels first (NCHW), by an indirection table.

The left operand (the filter) is multiplied in place, if it is contiguous along the reduction and
full tiles cover its rows; otherwise its block is packed row by row.  Of the right operand (the
input) every pixel which the task's columns reach is packed once.  For each position of the
reduction a table holds the offset from an output column to the element it is multiplied with; so a
register tile reads consecutive columns at `table[k] + column`.  Packings are ordinary loop nests.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product as positions

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, number, opaque
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.nests.environment import Environment, PackedArray
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART, TABLE_PART, Tile
from smelt.codegen.llvm.products.microkernel import (
    TileTarget,
    add_previous_blocks,
    broadcast_each,
    for_each_tile,
    load_row,
    multiply_add,
    outline_function,
    rank_one_update,
    reduction_loop,
    row_offset,
    strip_mine_axis,
)
from smelt.codegen.llvm.products.move_elements import clear_elements, pack_filter_pairs, pair_loads
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.schedule.conv_plan import LEFT_PITCH, MAX_TAPS, ConvPlan
from smelt.codegen.llvm.schedule.operands import StridedOperand, plain_load
from smelt.machine.target import Target
from smelt.types.dtype import i64
from smelt.types.expr import coefficient

Value = ir.Value
ROW_VECTORS = (1, 2, 4)
"""Vectors per row for which loops are emitted; with more, tests are a small part."""


class ImplicitGemmNchw(Packer):
    """Emits one NCHW convolution of the task that `env` is emitting."""

    def __init__(self, env: Environment, nest: Nest, c: ConvPlan) -> None:
        super().__init__(env, c.item)
        self.nest, self.c = nest, c
        self.left_table = number(0)
        self.packed_left_strides = {
            c.m: number(LEFT_PITCH),
            c.depth: number(c.taps),
            c.flat: number(1),
        }

    def partitionable_axes(self, nest: Nest) -> Collection[str]:
        """Return the axes which may be partitioned: the channels of the input."""
        return (self.c.depth,) if nest.packed == "right" else ()

    def packed_array(self, nest: Nest) -> PackedArray:
        """Return where loops pack an operand: pixels in whole vectors, if their rows are short.

        What a vector has past the end of its row is overwritten by the next row.
        """
        packed = self.rows_of(nest)
        if nest.packed == "left":
            return packed
        longest, lanes = self.env.s.phase.axes[nest.order[-1]], self.env.s.lanes
        vectors = -(-longest // lanes) if isinstance(longest, int) else 0
        counts = (vectors,) if 0 < vectors <= ROW_VECTORS[-1] else ROW_VECTORS
        return replace(packed, row_vectors=counts)

    def run(self) -> None:
        """Emit the complete convolution of this task, into its scratch array."""
        env, c = self.env, self.c
        self.packed_right_strides = self.dense_strides(c.right_order(), c.packed(env.s.local))
        self.row = number(1)
        for a in c.axes[1:]:
            self.row = self.b.mul(self.row, env.extent(c.item, a))
        self._table()
        with env.narrowed(self.widened(c.columns)):
            if c.depth:
                low, high = env.ranges[c.depth]
                with self.b.if_then(self.b.icmp_signed(">=", low, high)):
                    self._clear()
                strip_mine_axis(env, c.depth, c.block, lambda: self._block(low))
            else:
                self._reduction_block(number(0), number(1), ir.IntType(1)(1))

    def _block(self, first: Value) -> None:
        """Emit a block of channels, which are counted from the first one of the task."""
        at, end = self.env.ranges[self.c.depth]
        self._reduction_block(at, end, self.b.icmp_signed("==", at, first))

    def _reduction_block(self, low: Value, high: Value, first: Value) -> None:
        """Emit one block of the reduction: pack both operands and multiply."""
        env, c, taps = self.env, self.c, number(self.c.taps)
        ranges = dict(env.ranges)
        if c.flat != c.depth and not c.packs_by_tap:
            ranges[c.flat] = self.b.mul(low, taps), self.b.mul(high, taps)
        left, right = self.nest.packs
        with env.within(ranges=ranges):
            self._locate_left(left)
            # The range of input pixels, even where these are the columns.
            with env.narrowed({k.axis: ranges[k.position_axis] for k in c.columns}):
                self.pack(right)
            self._tiles(self.b.mul(self.b.sub(high, low), taps), first)

    def _locate_left(self, nest: Nest) -> None:
        """Locate this block of the left operand, in place or packed, and its row stride.

        It is read in place where full tiles cover its rows.
        """
        b, c, env = self.b, self.c, self.env
        packed = self.at(LEFT_PART, number(0)), number(LEFT_PITCH)
        access = plain_load(c.left)
        if access is None or not (c.is_left_contiguous or c.strided_left):
            loads = pair_loads(c)
            if loads is not None:
                pack_filter_pairs(env, c, loads)
            else:
                self.pack(nest)
            self.left, self.row_step = packed
            return
        low, high = env.ranges[c.m]
        rows = b.sub(high, low)
        is_even = b.icmp_signed("==", b.urem(rows, number(c.even)), number(0))
        is_full = b.and_(is_even, b.icmp_signed(">=", rows, number(c.tail_rows)))
        with b.if_then(b.not_(is_full)):
            self.pack(nest)
        step = c.strided_left.row if c.strided_left else coefficient(access.offset, c.m) or 0
        row_stride = env.index(step, env.top)
        if c.strided_left:
            start = env.ranges[c.depth][0] if c.depth else number(0)
            before = b.mul(start, self._depth_step(c.strided_left))
            start = b.add(env.index(c.strided_left.start, env.top), before)
            table = b.select(is_full, number(MAX_TAPS), number(2 * MAX_TAPS))
            self.left_table = self._table_at(table)
        else:
            start = b.add(env.origin(access, nest.order, env.top), env.ranges[c.flat][0])
        at = b.add(start, b.mul(low, row_stride))
        in_place = element_address(b, env.frame.buffers[access.buffer], at, c.unit)
        self.left = b.select(is_full, in_place, packed[0])
        self.row_step = b.select(is_full, row_stride, packed[1])

    def _depth_step(self, dealt: StridedOperand) -> Value:
        """Return the distance of neighbours along `depth`."""
        return self.env.index(dealt.steps[0], self.env.top) if self.c.depth else number(0)

    # ---- before the first block ------------------------------------------------------------------

    def _clear(self) -> None:
        """Store zeros: the sums of an empty reduction."""
        low, high = self.env.ranges[self.c.m]
        count = self.b.mul(self.b.sub(high, low), self.row)
        to, lanes = self.at(0, number(0)), self.env.s.lanes
        clear_elements(self.env, to, count, lanes, self.c.item.dtype)

    def _table(self) -> None:
        """Store the offset from a column, for each position of a block of the reduction.

        With `strided_left` the second part of the table holds offsets of its elements read in
        place, the third those of packed ones.
        """
        b, c, env = self.b, self.c, self.env
        taps = [*positions(*map(range, c.extents))]
        depth_stride = self.packed_right_strides[c.depth] if c.depth else number(0)
        right = [self.window_offset(c.columns, c.others, at) for at in taps]
        parts = [(depth_stride, right)]
        if c.strided_left:
            steps = [env.index(n, env.top) for n in c.strided_left.steps]
            depth_stride = steps.pop(0) if c.depth else number(0)
            parts += [
                (depth_stride, [row_offset(b, steps, [*map(number, at)]) for at in taps]),
                (number(c.taps), [number(j) for j in range(c.taps)]),
            ]

        def store_entries(position: Value) -> None:
            first = b.mul(position, number(c.taps))
            for part, (stride, offsets) in enumerate(parts):
                start, to = b.mul(position, stride), b.add(first, number(part * MAX_TAPS))
                for j, offset in enumerate(offsets):
                    b.store(b.add(start, offset), self._table_at(b.add(to, number(j))))

        env.loop(number(0), number(c.block if c.depth else 1), 1, store_entries)

    def _table_at(self, k: Value) -> Value:
        return element_address(self.b, self.env.storage.at[self.c.item, TABLE_PART], k, i64)

    # ---- tiles -----------------------------------------------------------------------------------

    def _tiles(self, depth: Value, first: Value) -> None:
        """Emit every register tile of the packed blocks."""
        b, env, c = self.b, self.env, self.c
        low, high = env.ranges[c.m]
        rows = b.sub(high, low)
        sizes = [b.sub(end, start) for start, end in (env.ranges[k.axis] for k in c.columns)]
        columns = sizes[-1]
        for size, k in zip(sizes[:-1], c.columns, strict=False):
            step = self.packed_right_strides[k.position_axis]
            columns = b.add(columns, b.mul(b.sub(size, number(1)), step))

        def put(tile: Tile, row: Value, column: Value) -> None:
            self._tile(tile, row, column, depth, first)

        for_each_tile(env, c.tile, c.tail_rows, rows, columns, put)

    def _tile(self, tile: Tile, row: Value, column: Value, depth: Value, first: Value) -> None:
        """Call a tile: acc[rows, columns] += left[rows, depth] * right[table[depth] + columns]."""
        b, item = self.b, self.c.item
        to = self.at(0, b.add(b.mul(row, self.row), column))
        left = element_address(b, self.left, b.mul(row, self.row_step), self.c.unit)
        right = self.at(RIGHT_PART, column)
        table = self.env.storage.at[item, TABLE_PART]
        dealt = self.c.strided_left is not None
        function = tile_function(b.module, item, tile, self.env.frame.target, dealt=dealt)
        more = [self.left_table] if dealt else []
        b.call(function, [to, self.row, left, self.row_step, right, table, depth, first, *more])


PTR = ir.PointerType()
TILE_ARGS = (PTR, I64, PTR, I64, PTR, PTR, I64, ir.IntType(1))


def tile_function(
    module: ir.Module, item: Item, tile: Tile, target: Target, *, dealt: bool = False
) -> ir.Function:
    """Return the function of a register tile.

    With `strided_left` the tile reads the left operand through a table as well.
    """
    kinds = f"{item.args[0].dtype}.{item.dtype}"
    name = f"tile.{kinds}.{tile.rows}x{tile.columns}{'.dealt' if dealt else ''}"
    kind = ir.FunctionType(ir.VoidType(), [*TILE_ARGS, PTR] if dealt else [*TILE_ARGS])
    return outline_function(module, name, kind, lambda f: _fill(f, tile, item, target))


def _fill(f: ir.Function, tile: Tile, item: Item, target: Target) -> None:
    """Emit sums[i, v] += left[i*row_stride + k] * right[table[k] + v], for k < depth.

    Sums start from 0 where `fresh`.  With a table for the left operand it reads left[i*row_stride +
    walk[k]].
    """
    to, stride, left, row_stride, right, table, depth, fresh, *walk = f.args
    dtype, unit = item.dtype, item.args[0].dtype
    b = ir.IRBuilder(f.append_basic_block("entry"))
    m = LLVMMachine(b, tile.lanes, target)
    places = TileTarget(to, stride, dtype).addresses(b, tile)
    count = len(places)

    def load_entry(of: Value, k: Value) -> Value:
        return b.load(element_address(b, of, k, i64), typ=I64)

    def step(k: Value, carried: list[Value], _: int) -> list[Value]:
        right_row = element_address(b, right, load_entry(table, k), unit)
        right_vectors = load_row(m, right_row, unit, tile.vectors)
        column = element_address(b, left, carried[count] if walk else k, unit)
        steps = (b.mul(row_stride, number(i)) for i in range(tile.rows))
        rows = (element_address(b, column, step, unit) for step in steps)
        weights = broadcast_each(m, rows, unit)
        sums = rank_one_update(multiply_add(m, item), weights, right_vectors, carried[:count])
        return sums + [load_entry(at, b.add(k, number(1))) for at in walk]

    begin: list[Value] = [m.const(dtype, 0)] * count
    # Loaded one iteration ahead: else LLVM spills sums. Opaque: else LLVM merges it with those.
    begin += [opaque(b, b.load(at, typ=I64)) for at in walk]
    sums = reduction_loop(b, (number(0), depth), 1, step, begin)[:count]
    for place, x in zip(places, add_previous_blocks(m, places, dtype, sums, fresh), strict=True):
        store_vector(m, place, x, dtype, None)
    b.ret_void()
