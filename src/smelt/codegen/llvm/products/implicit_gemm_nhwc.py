"""Emit implicit-GEMM convolution with channels last (NHWC), as an indirect GEMM.

The filter of one block of channels is packed into panels as wide as the register tile, tap by tap;
the input is packed pixel by pixel.  A tile takes neighbouring output pixels as its rows.  For each
tap a table holds the offset of the input pixels it reads and that of its weights; for each channel
the tile broadcasts one number of each pixel and multiplies a row of the panel.

Compare M. Dukhan, "The Indirect Convolution Algorithm", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product as positions
from typing import TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, store_vector
from smelt.codegen.llvm.instructions.counting import step_address
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.transpose import transpose
from smelt.codegen.llvm.nest_loops import NestBody
from smelt.codegen.llvm.nests.environment import Environment, PackedArray, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART, SUMS_PART, TABLE_PART, Tile
from smelt.codegen.llvm.products.depthwise_separable import fused_depthwise, pack_by_rows
from smelt.codegen.llvm.products.direct_store import (
    image_layout,
    rounded_output,
)
from smelt.codegen.llvm.products.microkernel import (
    TileTarget,
    add_previous_blocks,
    for_each_column_tile,
    for_each_tile,
    load_row,
    multiply_add,
    outline_function,
    rank_one_update,
    reduction_loop,
    row_offset,
    store_tile,
    strip_mine_axis,
)
from smelt.codegen.llvm.products.move_elements import TransposedFilterPacker, pack_nchw, store_nchw
from smelt.codegen.llvm.products.pack_rows import vector_loop
from smelt.codegen.llvm.products.packing import Packer, panel_offset
from smelt.codegen.llvm.products.prefetch import (
    ALL_TILES,
    PREFETCH_TYPES,
    Share,
    panel_share,
    prefetch_all,
    prefetch_at,
)
from smelt.codegen.llvm.products.skip_padding_taps import PaddingTaps
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan, contiguous_filters
from smelt.machine.target import Target
from smelt.types.dtype import DType, i64
from smelt.types.expr import coefficient, substitute

Value = ir.Value
BIT, I32 = ir.IntType(1), ir.IntType(32)
ENTRY_WORDS = 3
"""Words per entry of the indirection table: input offset, weight offset, pair mask."""
PTR = ir.PointerType()
BASE_ARGS = [PTR, I64, PTR, PTR, PTR, I64, BIT, I64, I64]
ROUNDED_ARGS = [PTR, I64, BIT]
"""Arguments for rounded final sums: address, row stride, and whether to use them."""


def tile_function(
    module: ir.Module, c: NhwcConvPlan, tile: Tile, target: Target, short: DType | None
) -> ir.Function:
    """Return the function of a register tile; its final sums may be stored as `short`."""
    name = f"nhwc.{c.unit}.{c.item.dtype}.{tile.rows}x{tile.columns}.{c.taps}x{c.block}"
    name += f".{c.few_channels}.{c.pitch}"
    name += f".{c.pairs}.{c.has_odd_end}" if c.pairs else ""
    name += ".asks" * c.prefetches_weights + (f".{short}" if short is not None else "")
    return outline_function(
        module, name, tile_type(c, short), lambda f: _Tile(f, c, tile, target).fill(short)
    )


def tile_type(c: NhwcConvPlan, short: DType | None) -> ir.FunctionType:
    """Return the function type which all tiles of a product share."""
    args = [
        *BASE_ARGS,
        *(PREFETCH_TYPES if c.prefetches_weights else ()),
        *(ROUNDED_ARGS if short is not None else ()),
    ]
    return ir.FunctionType(ir.VoidType(), args)


class _Tile:
    """Emits the tile of an indirect GEMM.

    sums[i, v] += image[table[t, 0] + i*pitch + k] * panel[table[t, 1] + k*columns + v], over all
    taps t and all k < depth.
    """

    def __init__(self, f: ir.Function, c: NhwcConvPlan, tile: Tile, target: Target) -> None:
        self.f, self.c, self.tile = f, c, tile
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, tile.lanes, target)
        self.scalar = LLVMMachine(self.b, None, target)

    def fill(self, short: DType | None) -> None:
        """Emit the function's body."""
        b, f, dtype = self.b, self.f, self.c.item.dtype
        to, stride, self.image, self.panel, table, depth, fresh, low, high, *spot = f.args
        self.table, self.depth = table, depth
        self.prefetch_base = self.panel
        if self.c.prefetches_weights:
            self.prefetch_base, self.rate, *spot = spot
        places = TileTarget(to, stride, dtype).addresses(b, self.tile)
        if self.c.prefetches_weights and self.c.image_rows is not None:
            for left in ((number(0), low), (high, number(self.c.steps))):
                reduction_loop(b, left, 1, lambda t, *_: self._prefetch_tap(table, t, depth), [])
        zeros = [self.m.const(dtype, 0)] * len(places)
        totals = reduction_loop(b, (low, high), 1, lambda t, sums, _: self._tap(t, sums), [*zeros])
        totals = add_previous_blocks(self.m, places, dtype, totals, fresh)
        last = None if short is None else (spot[2], TileTarget(spot[0], spot[1], short))
        store_tile(self.m, self.c, self.tile, totals, places, last=last)
        b.ret_void()

    def _prefetch_tap(self, table: Value, tap: Value, depth: Value) -> list[Value]:
        """Prefetch this tile's share of a tap which it skips."""
        b = self.b
        place = element_address(b, table, b.add(b.mul(tap, number(ENTRY_WORDS)), number(1)), i64)
        begin = element_address(b, self.prefetch_base, b.load(place, typ=I64), self.c.unit)
        prefetch_all(b, begin, self.rate, depth)
        return []

    def _tap(self, tap: Value, sums: Sequence[Value]) -> list[Value]:
        """Return the sums after all channels of one tap."""
        b, c = self.b, self.c
        entries = element_address(b, self.table, b.mul(tap, number(ENTRY_WORDS)), i64)
        pixel, weights, counts = (
            b.load(element_address(b, entries, number(k), i64), typ=I64) for k in range(ENTRY_WORDS)
        )
        if c.has_odd_end:  # else LLVM masks scalars, then broadcasts the result
            kind = ir.VectorType(I32, self.tile.lanes)
            counts = splat(b, b.trunc(counts, I32), self.tile.lanes)
            self.counts = b.asm(ir.FunctionType(kind, [kind]), "", "=v,0", [counts], False)
        image = element_address(b, self.image, pixel, c.image)
        panel = element_address(b, self.panel, weights, c.unit)
        if c.few_channels:
            return self._step(image, panel, number(0), sums)
        columns, kind = number(c.tile.columns), c.unit
        later = element_address(b, self.prefetch_base, weights, c.unit)

        def channel(k: Value, sums: list[Value], _: int) -> list[Value]:
            if c.prefetches_weights:
                prefetch_at(b, later, self.rate, k)
            return self._step(image, step_address(b, panel, k, columns, kind), k, sums)

        return reduction_loop(b, (number(0), self.depth), 1, channel, [*sums])

    def _broadcast(self, place: Value) -> Value:
        """Broadcast an input number, or a pair of which one may be masked."""
        b, c, lanes = self.b, self.c, self.tile.lanes
        if not c.pairs:
            return splat(b, load_scalar(self.scalar, place, c.unit, None), lanes)
        pair = splat(b, b.load(place, align=c.image.itemsize, typ=I32), lanes)
        return b.and_(pair, self.counts) if c.has_odd_end else pair

    def _step(
        self, input_address: Value, weights: Value, k: Value, sums: Sequence[Value]
    ) -> list[Value]:
        """Return the sums after channel k, whose weights are at an address."""
        b, c, tile, dtype = self.b, self.c, self.tile, self.c.unit
        across = load_row(self.m, weights, dtype, tile.vectors)
        first = element_address(b, input_address, k, c.image)
        places = (element_address(b, first, number(i * c.pitch), c.image) for i in range(tile.rows))
        pixels = map(self._broadcast, places)
        return rank_one_update(multiply_add(self.m, c.item), pixels, across, sums)


PACK_CHANNELS = 16
"""Channels whose filter weights are packed together.

All taps of a panel's columns then stay in L1, since consecutive taps share cache lines.
"""

BlockEnds: TypeAlias = tuple[Value, Value]
"""Whether a block of channels is the first, and whether the last (i1 each)."""
Begin: TypeAlias = Callable[[Value, int], None]
"""Emitted before the tiles of a column block: packs that many vectors of weights."""


class ImplicitGemmNhwc(Packer):
    """Emits one NHWC convolution of the task that `env` is emitting."""

    def __init__(self, env: Environment, nest: Nest, c: NhwcConvPlan) -> None:
        super().__init__(env, c.item)
        self.nest, self.c, self.image = nest, c, c.image
        self.depthwise = fused_depthwise(env, c.right)
        """Depthwise convolutions which produce the input, fused into its packing."""
        self.tap: Value = number(0)
        """Index of the tap whose weights are being packed."""
        self.firsts: dict[str, Value] = {}
        """Beginning of the filter block which is packed piece by piece."""
        self.padding: PaddingTaps | None = None
        self.filter_packer: TransposedFilterPacker | None = None

    def partitionable_axes(self, nest: Nest) -> Collection[str]:
        """Return the axes which may be partitioned: the channels of the input."""
        return (self.c.depth,) if nest.packed == "right" else ()

    def run(self) -> None:
        """Emit the complete convolution of this task, into its scratch array."""
        env, c, b = self.env, self.c, self.b
        self.packed_right_strides = self.dense_strides(c.packed_axes(), c.packed(env.s.local))
        last = c.columns[-1]
        if c.few_channels:
            self.packed_right_strides[last.position_axis] = number(c.pitch)
            self.packed_right_strides[last.remainder_axis] = number(c.few_channels)
        self.to, self.rows = image_layout(env, c, SUMS_PART if c.transposes_result else 0)
        self.rounded = rounded_output(env, c)
        self._table()
        if contiguous_filters(c) is not None:
            self.filter_packer = TransposedFilterPacker(env, c)
        low, high = env.ranges[c.depth]
        with b.if_then(b.icmp_signed(">=", low, high)):
            self._tiles(number(0), (BIT(1), BIT(1)), lambda *_: None)

        has_full_blocks = self.is_multiple(c.depth, c.block)  # packing loops need no remainder

        def block(at: Value) -> None:
            end = b.add(at, number(c.block))
            if not has_full_blocks:
                end = b.minimum(end, high)
            with env.narrowed({c.depth: (at, end)}):
                self._pack_both()
                ends = (b.icmp_signed("==", at, low), b.icmp_signed("==", end, high))
                begin = self.filter_packer.pack if self.filter_packer else lambda *_: None
                self._tiles(b.sub(end, at), ends, begin)

        def blocks() -> None:
            env.loop(low, high, c.block, block)

        if self.skips_padding():
            self.padding = PaddingTaps(env, c)
            self.padding.run_checked(blocks, self.to, self.rows)
        else:
            blocks()
        if c.transposes_result:
            store_nchw(self, c, self.rows)

    def skips_padding(self) -> bool:
        """Return whether taps which reach no row of the image are skipped."""
        c = self.c
        ends_rows = c.tiles_end_with_rows(self.env.s.local[c.columns[-1].axis])
        return c.image_rows is not None and ends_rows and self.rounded is None

    def _pack_both(self) -> None:
        """Pack the filter and the input of the current block of channels."""
        env, c = self.env, self.c
        left, right = self.nest.packs
        taps = {c.flat: (number(0), number(c.steps))} if c.flat else {}
        with env.narrowed(taps):
            self.firsts = {a: env.ranges[a][0] for a in c.left_order()}
            self._pack_filter(left)
            if c.few_channels:  # all elements of the row, from the first pixel to the last one
                low, high = env.ranges[c.columns[-1].axis]
                end = self.b.add(high, number(c.columns[-1].halo))
                each = number(c.columns[-1].step if c.transposes_image else c.pitch)
                taps = {c.row_axis: (self.b.mul(low, each), self.b.mul(end, each))}
            with env.narrowed(taps | self.widened(c.columns)):
                if self.depthwise:
                    pack_by_rows(self, right, self.depthwise, [k.axis for k in c.columns[:-1]])
                elif c.transposes_image:
                    pack_nchw(self, c, right)
                else:
                    self.pack(right)

    def _pack_filter(self, left: Nest) -> None:
        """Pack the filter of the current block of channels, unless its tiles do."""
        env, c = self.env, self.c
        if c.flat:
            strip_mine_axis(env, c.n, c.tile.columns, lambda: self.pack(left))
        elif not c.prepacked and self.filter_packer is None:
            strip_mine_axis(
                env,
                c.n,
                c.tile.columns,
                lambda: strip_mine_axis(
                    env,
                    c.depth,
                    PACK_CHANNELS,
                    lambda: self._pack_taps(left, c.others, number(0), Scope(env.top)),
                ),
            )

    def _pack_taps(
        self, left: Nest, inner_axes: tuple[str, ...], done: Value, scope: Scope
    ) -> None:
        """Pack the weights of all taps along `inner_axes`, below the position in `scope`."""
        env, c, b = self.env, self.c, self.b
        if not inner_axes:
            self.tap = done
            if c.transposes_weights:
                self._pack_transposed(left, scope)
            else:
                self.pack(left, scope)
            return
        name, *inner = inner_axes
        low, high = env.ranges[name]
        extent = number(c.extents[c.others.index(name)])
        env.loop(
            low,
            high,
            1,
            lambda at: self._pack_taps(
                left, tuple(inner), b.add(b.mul(done, extent), at), Scope(scope, {name: at})
            ),
        )

    def _pack_transposed(self, left: Nest, scope: Scope) -> None:
        """Pack pairs which are contiguous along the reduction, by tile transposes."""
        b, env, c, lanes = self.b, self.env, self.c, self.c.tile.lanes
        body, m = NestBody(env, left, lanes, scope=scope), LLVMMachine(b, lanes, env.frame.target)
        low, high = env.ranges[c.n]

        def columns(n: Value) -> None:
            rows = body.rows(n, count=lanes, end=high)

            def put(at: Value, mask: Value | None) -> None:
                vectors = [body.packed(row, at, mask) for row in rows]
                for t, column in enumerate(transpose(b, vectors)[: c.block]):
                    place = Scope(scope, {c.n: n, c.depth: b.add(at, number(t))})
                    to = self.at(LEFT_PART, self.offset(left, place))
                    store_vector(m, to, column, c.unit, None)

            vector_loop(env, env.ranges[c.depth], lanes, put)

        env.loop(low, high, lanes, columns)

    def packed_array(self, nest: Nest) -> PackedArray:
        """Return where loops pack an operand."""
        if nest.packed == "right":
            return super().packed_array(nest)
        b, c = self.b, self.c
        column = b.sub(self.env.ranges[c.n][0], self.firsts[c.n])
        panels = self.panels_of(nest, c.tile.columns, number(c.taps * c.block), column)
        tap = b.mul(self.tap, number(c.block * c.tile.columns))
        to = element_address(b, panels.address, tap, panels.dtype)
        return replace(panels, address=to, starts=self.firsts)

    def offset(self, nest: Nest, scope: Scope) -> Value:
        """Return where a packed vector goes; weights go to panels as wide as the tile."""
        if nest.packed == "right":
            return super().offset(nest, scope)
        b, c = self.b, self.c
        k, n = (b.sub(scope.axis(a), self.firsts[a]) for a in (c.flat or c.depth, c.n))
        k = b.add(b.mul(self.tap, number(c.block)), k)
        return panel_offset(b, c.tile.columns, number(c.taps * c.block), k, n)

    def _table(self) -> None:
        """Store the indirection table.

        An entry holds the offset of a tap's input pixel, that of its weights, and a mask for a pair
        of channels.  With few channels there is an entry for each channel (or pair) of a tap.
        """
        b, c = self.b, self.c
        base = self.env.storage.at[c.item, TABLE_PART]
        taps = list(positions(*map(range, c.extents)))
        reached = [
            (self.window_offset(c.columns, c.others, at), self._weights(j, at))
            for j, at in enumerate(taps)
        ]
        channel_stride = 2 if c.pairs else 1
        per_tap = c.pairs or c.few_channels or 1
        for j, (x, y) in enumerate(reached):
            for k in range(per_tap):
                image = b.add(x, number(channel_stride * k))
                weights = b.add(y, number(k * c.tile.columns))
                last = c.has_odd_end and k == per_tap - 1
                for i, value in enumerate((image, weights, number(0xFFFF if last else -1))):
                    place = number(ENTRY_WORDS * (j * per_tap + k) + i)
                    b.store(value, element_address(b, base, place, i64))

    def _weights(self, tap: int, at: tuple[int, ...]) -> Value:
        """Return elements from the first tap's weights to those of `tap`, at position `at`."""
        b, c, env = self.b, self.c, self.env
        if not c.prepacked:
            return number(tap * c.block * c.tile.columns)
        total, (access, _) = number(0), c.weights()
        for a, count in zip(c.others, at, strict=True):
            step = env.frame.index(coefficient(access.offset, a) or 0)
            total = b.add(total, b.mul(step, number(count)))
        return total

    def _panel(self, column: Value, depth: Value) -> Value:
        """Return the address of the weights for columns from one on, in a channel block."""
        b, c, env = self.b, self.c, self.env
        if self.filter_packer is not None:  # one panel at a time
            return self.at(LEFT_PART, number(0))
        if not c.prepacked:
            return self.at(LEFT_PART, b.mul(column, number(c.taps * c.block)))
        access, pitch = c.weights()
        zeros = dict.fromkeys((*c.others, c.depth, c.n), 0)
        at = env.index(substitute(access.offset, zeros), env.top)
        column = b.add(env.ranges[c.n][0], column)
        panel = b.mul(b.udiv(column, number(c.tile.columns)), env.frame.index(pitch))
        at = b.add(b.add(at, panel), b.mul(depth, number(c.tile.columns)))
        return element_address(b, env.frame.buffers[access.buffer], at, c.unit)

    def _next_panel(self, column: Value, last: Value) -> Value:
        """Return the address of the weights which are multiplied after those of a column block.

        After the task's last columns come those of the next channel block, or those of the next
        task if this block is the last one.
        """
        b, c, env = self.b, self.c, self.env
        (low, high), (start, end) = env.ranges[c.n], env.ranges[c.depth]
        next_column, depth = b.add(column, number(c.tile.columns)), start
        is_past = b.icmp_signed(">=", next_column, b.sub(high, low))
        is_past = b.and_(is_past, b.not_(last))
        return self._panel(b.select(is_past, number(0), next_column), b.select(is_past, end, depth))

    def _tiles(self, depth: Value, ends: BlockEnds, begin: Begin) -> None:
        """Emit every register tile of the packed blocks."""
        b, env, c = self.b, self.env, self.c
        if c.tiles_end_with_rows(env.s.local[c.columns[-1].axis]):
            self._row_tiles(depth, ends, begin)
            return
        sizes = [b.sub(end, start) for start, end in (env.ranges[k.axis] for k in c.columns)]
        rows = sizes[-1]
        if len(sizes) > 1:
            pitch = env.extent(c.item, c.columns[-1].axis)
            rows = b.add(rows, b.mul(b.sub(sizes[0], number(1)), pitch))
        low, high = env.ranges[c.n]
        columns = b.sub(high, low)

        def put(tile: Tile, row: Value, column: Value) -> None:
            image, share = b.mul(row, number(c.pitch)), Share(row, rows, tile.rows)
            function = self._function(tile.rows, tile.vectors)
            self._tile(function, [row], image, column, depth, ends, share)

        for_each_tile(env, c.tile, c.tail_rows, rows, columns, put, begin)

    def _row_tiles(self, depth: Value, ends: BlockEnds, begin: Begin) -> None:
        """Emit every register tile, where tiles end with the rows of the image."""
        b, env, c = self.b, self.env, self.c
        *outer, _ = c.columns
        steps = [self.packed_right_strides[x.position_axis] for x in c.columns]
        parts = list(self._parts())
        has_full_tiles = self.is_multiple(c.n, c.tile.columns)
        tiles = {
            n: [self._function(rows, n) for rows, *_ in parts]
            for n in (c.tile.vectors, *(() if has_full_tiles else (1,)))
        }

        def row_loops(column: Value, vectors: int, at: list[Value], share: Share) -> None:
            if len(at) < len(outer):
                first, last = env.ranges[outer[len(at)].axis]
                count = b.sub(last, first)
                env.loop(
                    number(0),
                    count,
                    1,
                    lambda y: row_loops(column, vectors, [*at, y], share.split(b, y, count)),
                )
                return
            for tile, (rows, start, end) in zip(tiles[vectors], parts, strict=True):
                env.loop(
                    start,
                    end,
                    rows,
                    lambda x, f=tile: self._tile(
                        f, [*at, x], row_offset(b, steps, [*at, x]), column, depth, ends, share
                    ),
                )

        def panel(column: Value, vectors: int) -> None:
            begin(column, vectors)
            row_loops(column, vectors, [], ALL_TILES)

        low, high = env.ranges[c.n]
        for_each_column_tile(env, c.tile, b.sub(high, low), panel, has_full_tiles)

    def _parts(self) -> Iterator[tuple[int | Value, Value, Value]]:
        """Yield the height of tiles along an image row, and the range which it covers.

        Where the row's length is unknown, tiles have nearly equal, even heights; an odd row begins
        with a tile of `odd` pixels.
        """
        b, c, axis = self.b, self.c, self.c.columns[-1].axis
        heights, done = c.heights(self.env.s.local[axis]), 0
        for height in dict.fromkeys(heights):
            end = done + height * heights.count(height)
            yield height, number(done), number(end)
            done = end
        if heights:
            return
        low, high = self.env.ranges[axis]
        size, odd_height = b.sub(high, low), number(c.odd)
        first_height = b.select(b.icmp_signed("<", size, odd_height), number(1), odd_height)
        first = b.mul(b.and_(size, number(1)), first_height)
        yield first_height, number(0), first
        pairs, max_pairs = b.lshr(b.sub(size, first), number(1)), number(c.tile.rows // 2)
        count = b.maximum(b.udiv(b.add(pairs, b.sub(max_pairs, number(1))), max_pairs), number(1))
        each = b.udiv(pairs, count)
        rows, left = b.mul(each, number(2)), b.sub(pairs, b.mul(each, count))
        taller = b.add(rows, number(2))
        end = b.add(first, b.mul(left, taller))
        yield taller, first, end
        yield rows, end, size

    def _function(self, rows: int | Value, vectors: int) -> Value:
        """Return the tile function of a height, selected at run time if necessary."""
        b, c, target = self.b, self.c, self.env.frame.target
        rounded = None if self.rounded is None else self.rounded.dtype

        def of_height(height: int) -> Value:
            tile = replace(c.tile, rows=height, vectors=vectors)
            return tile_function(b.module, c, tile, target, rounded)

        if isinstance(rows, int):
            return of_height(rows)
        first, *taller = c.all_heights
        function = of_height(first)
        for height in taller:
            is_lower = b.icmp_signed("<", rows, number(height))
            function = b.select(is_lower, function, of_height(height))
        return function

    def _tile(
        self,
        function: Value,
        row: Sequence[Value],
        image: Value,
        column: Value,
        depth: Value,
        ends: BlockEnds,
        share: Share,
    ) -> None:
        """Call a tile.

        sums[rows, columns] += image[table[tap] + rows, k] * panel[tap, k, columns].
        """
        b, c = self.b, self.c
        to = b.add(row_offset(b, self.rows, row), column)
        to = element_address(b, self.to, to, c.item.dtype)
        image = self.at(RIGHT_PART, image)
        panel = self._panel(column, self.env.ranges[c.depth][0])
        table = self.env.storage.at[c.item, TABLE_PART]
        first, last = ends
        taps = number(0), number(c.steps)
        if self.padding is not None:
            taps = self.padding.taps(row[-2])
        args = [to, self.rows[-1], image, panel, table, depth, first, *taps]
        if c.prefetches_weights:
            args += panel_share(b, c, self._next_panel(column, last), depth, share)
        if (later := self.rounded) is not None:
            holds, spot = later.target(b, row, column, last)
            args += [spot.address, spot.row_stride, holds]
        short = None if self.rounded is None else self.rounded.dtype
        b.call_at(function, tile_type(c, short), args)
