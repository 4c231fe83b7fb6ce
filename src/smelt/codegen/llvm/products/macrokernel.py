"""Run register tiles over one packed block of a GEMM (the macrokernel of Goto's algorithm).

acc[rows, vectors] += left[rows, k] * right[k, vectors], in registers for all k of the block.  Each
operand is either packed or read in place: an origin and two strides say where.

On processors which issue few instructions per cycle, two multiply-adds and their operands take all
issue slots; the loop counter and additional address registers come on top.  There a full tile over
packed panels is unrolled along k, and prefetches its panel a little ahead: a panel as large as L1
is read from L2 by every tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    prefetch,
    store_vector,
)
from smelt.codegen.llvm.access.prefetch import CACHE_LINE, next_task
from smelt.codegen.llvm.instructions.counting import (
    multiple_of_counter,
    row_addresses,
    step_address,
)
from smelt.codegen.llvm.instructions.dot_product import dot_step, has_square_step, ones
from smelt.codegen.llvm.instructions.indexing import first_lanes, number, opaque
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Access, Item, bounded_axes
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import (
    LEFT_PART,
    RIGHT_PART,
    SUMS_PART,
    Tile,
    tile_heights,
)
from smelt.codegen.llvm.products.amx import PANEL_COLUMNS as AMX_COLUMNS
from smelt.codegen.llvm.products.amx import multiply, panel_offsets, rows_load_well
from smelt.codegen.llvm.products.direct_store import rounded_output, row_layout
from smelt.codegen.llvm.products.microkernel import (
    Masks,
    TileTarget,
    add_previous_blocks,
    broadcast_each,
    ends_with_whole_unit,
    exchange_halves,
    for_each_height,
    interleave_positions,
    load_row,
    multiply_add,
    pair_rows,
    rank_one_update,
    reads_well_in_place,
    reduction_loop,
    square_update,
    store_tile,
    strided_rows,
    unrolled_reduction,
)
from smelt.codegen.llvm.products.pack_rows import panel_units
from smelt.codegen.llvm.products.packing import panel_offset
from smelt.codegen.llvm.products.prefetch import PanelShare, TilePrefetcher
from smelt.codegen.llvm.schedule.mask_ranges import over_row_groups
from smelt.codegen.llvm.schedule.operands import panel_step, plain_load
from smelt.codegen.llvm.scratch.workspace import needs_run_sums
from smelt.machine.blocks import RUN
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, i8, i32
from smelt.types.expr import coefficient, floordiv

Value = ir.Value

UNPACKED_PANELS = 4
"""Right operands whose rows are at most this many panels long are not packed.

Their panels touch few more pages of memory than packed ones would.
"""
SHORT_ROW_DISTANCE = 24
"""Short rows between what a tile multiplies and what it prefetches: the latency of L3."""


DEEP_PREFETCH_BYTES = 8192
"""Bytes between what few rows multiply of a panel and what they prefetch.

Hardware prefetchers stop at the end of a page.
"""
L1_PREFETCH_BYTES = 1024
"""Bytes of a panel in L2 between what a tile multiplies and what it prefetches."""
CHAINS, CHAINED_VECTORS = 4, 2
"""Sums for each accumulator of a tile of a single row, and most vectors of such a tile.

More vectors have multiply-adds enough in flight, and read one row of the operand at a time.
"""
UNROLL = 4
"""Positions along k per loop iteration, on processors which issue few instructions."""


@dataclass(frozen=True)
class OperandLayout:
    """Layout of an operand: element (a, b) is at origin + a*steps[0] + b*steps[1]."""

    base: Any
    origin: Value
    steps: tuple[Value, Value]
    dtype: DType
    packed: bool
    panels: tuple[Access, Scope] | None = None
    """For a right operand prepacked in panels: its access and scope."""
    unit: DType | None = None
    """Type of a unit, where k counts units rather than elements."""
    next_task_step: Value | None = None
    """Elements from here to the next task's operand, if small enough to prefetch."""


class Macrokernel:
    """Emits the register tiles of one contraction for one block of k."""

    def __init__(self, env: Environment, c: Contraction, left: Nest, scope: Scope) -> None:
        self.env, self.b, self.c = env, env.b, c
        self.right_in_place: Value | None = None
        """Whether a right operand with short rows is read in place instead of packed (i1)."""
        self.rows = number(1)
        if c.m is not None:
            low, high = env.ranges[c.m]
            self.rows = self.b.sub(high, low)
        self.row_axis = c.m if c.m in bounded_axes(env.s.region(c.item)) else None
        """The row axis, where the block covers only a part of it."""
        self.bands = next((x for x in env.row_groups if x.groups.takes(c)), None)
        """Range of columns, or of k, which each band of rows uses (causal masks, windows)."""
        self.adds_previous_last = needs_run_sums(c, env.s)
        """Whether sums of earlier blocks are added after the block's own sums, not before."""
        low, high = env.ranges[c.k]
        self.first_k, self.end_k = number(0), self.b.sub(high, low)
        if c.group is not None:
            self.end_k = self.b.add(self.end_k, number(c.group_size - 1))
            self.end_k = self.b.udiv(self.end_k, number(c.group_size))
        self.prefetch_bytes = self.prefetch_distance()
        """Prefetch distance of the current block of the right operand in bytes."""
        self.panel_units = panel_units(env, c)
        self.base, self.stride = row_layout(env, c)
        self.rounded_output = rounded_output(env, c)
        dtype = c.unit
        self.left_in_place: Value | None = None
        """Whether a left operand in units is read in place (i1)."""
        part = env.storage.at.get((c.item, RIGHT_PART))
        self.right = OperandLayout(
            part, number(0), (number(c.tile.columns), number(1)), dtype, True
        )
        if c.m is not None and c.reads_left_in_place():
            self.left = self._open(left, c.left, (c.m, c.k), scope)
            return
        if c.m is not None and c.units:
            self.left = self._unit_rows(self._open(left, c.left, (c.m, c.k), scope))
            return
        base, offset = env.storage.at.get((c.item, LEFT_PART)), number(0)
        if c.direct:
            base = env.storage.at[c.left, 0]
            offset = self._positions_before(c.left, c.k)
            offset = self.b.mul(offset, number(c.pitch)) if c.m_contiguous else offset
            if self.row_axis is not None:
                rows = self._positions_before(c.left, self.row_axis)
                offset = self.b.add(offset, self.b.mul(rows, number(c.steps[0])))
        steps = number(c.steps[0]), number(c.steps[1])
        self.left = OperandLayout(base, offset, steps, dtype, True)

    def read_panels(self, base: Value) -> None:
        """Read the right operand in panels from an address."""
        self.right = replace(self.right, base=base)

    def _positions_before(self, item: Item, axis: str) -> Value:
        """Return how many positions a scratch array has before the range of an axis."""
        return self.b.sub(self.env.ranges[axis][0], self.env.start(item, axis))

    def open_right(self, nest: Nest, scope: Scope) -> None:
        """Locate the right operand's block which is read in place."""
        if not self.c.prepacked:
            self.right = self._open(nest, self.c.right, (self.c.k, self.c.n), scope)
            return
        env, access = self.env, plain_load(self.c.right)
        assert access is not None
        top = Scope(scope, {self.c.k: env.ranges[self.c.k][0]})
        size = self.c.group_size
        step = env.index(floordiv(panel_step(access, self.c.k, size) or 0, size), top)
        base, steps = env.frame.buffers[access.buffer], (step, number(1))
        self.right = OperandLayout(base, number(0), steps, self.c.unit, True, (access, top))

    def choose_right_in_place(self, nest: Nest, scope: Scope) -> Value:
        """Choose between reading the right operand in place and reading packed panels (i1).

        It is read in place where its rows are short, full panels wide and well aligned for the
        tiles.
        """
        b, c, packed = self.b, self.c, self.right
        place = self._open(nest, c.right, (c.k, c.n), scope)
        if place.dtype != packed.dtype:  # packing converts it
            return ir.IntType(1)(0)
        (low, high), row_stride = self.env.ranges[c.n], place.steps[0]
        remainder = b.and_(b.sub(high, low), number(c.tile.columns - 1))
        short = b.icmp_unsigned("<=", row_stride, number(UNPACKED_PANELS * c.tile.columns))
        short = b.and_(short, b.icmp_signed("==", remainder, number(0)))
        first = element_address(b, place.base, place.origin, place.dtype)
        self.right_in_place = b.and_(
            short, reads_well_in_place(self.env, c, (first, row_stride), self.rows)
        )
        steps = b.select(self.right_in_place, row_stride, packed.steps[0]), packed.steps[1]
        base = b.select(self.right_in_place, first, packed.base)
        self.right = replace(packed, base=base, steps=steps)
        if self.env.s.region(c.item):  # a stream reads each block only a few times
            self.prefetch_bytes = b.mul(steps[0], number(SHORT_ROW_DISTANCE * place.dtype.itemsize))
        return self.right_in_place

    def run(self, fresh: Value | None, tile: Tile | None = None, last: Value | None = None) -> None:
        """Emit the block's products into the result in scratch.

        Sums are added to the array, or stored where `fresh` holds.  `tile` replaces the
        contraction's own register tile; `last` says whether this is the last block along k.
        """
        c, b, env = self.c, self.b, self.env
        operands, block = (self.left, self.right), (self.rows, self.end_k)
        self.prefetcher = TilePrefetcher(env, c, operands, block, last)
        self.tile_rows, vectors = (tile or c.tile).rows, (tile or c.tile).vectors
        lanes, tile_columns = c.tile.lanes, c.tile.lanes * vectors
        low, high = env.ranges[c.n]
        self.is_first_block, self.is_last_block, columns = fresh, last, b.sub(high, low)
        self.column = b.sub(low, env.start(c.item, c.n))
        if c.group is not None and c.group.matrix and self.bands is None:
            self._amx_tiles(number(0), self.rows, number(0), columns)
            return
        if self.right.packed:
            put = partial(self._column_tiles, vectors=vectors, mask=None)
            env.loop(number(0), columns, tile_columns, put)
            return
        # If the remainder nearly fills a tile, one tile with a masked last vector covers it.
        remainder = b.and_(columns, number(tile_columns - 1))
        is_nearly_full = b.icmp_signed(">", remainder, number(tile_columns - lanes))
        full_columns = b.sub(columns, b.select(is_nearly_full, number(0), remainder))

        def columns_from(at: Value, vectors: int) -> None:
            left = b.sub(b.sub(columns, at), number((vectors - 1) * lanes))
            self._column_tiles(at, vectors, first_lanes(b, left, lanes))

        env.loop(number(0), full_columns, tile_columns, lambda at: columns_from(at, vectors))
        env.loop(full_columns, columns, lanes, lambda at: columns_from(at, 1))

    def _open(self, nest: Nest, item: Item, axes: tuple[str, str], scope: Scope) -> OperandLayout:
        """Return the layout of an operand which is read in place."""
        b, env, access = self.b, self.env, plain_load(item)
        assert access is not None
        steps = [env.index(coefficient(access.offset, a) or 0, scope) for a in axes]
        origin = env.origin(access, nest.order, scope)
        for a, stride in zip(axes, steps, strict=True):
            origin = b.add(origin, b.mul(env.ranges[a][0], stride))
        return OperandLayout(
            env.frame.buffers[access.buffer],
            origin,
            (steps[0], steps[1]),
            env.frame.dtypes[access.buffer],
            False,
            next_task_step=self._next_task_step(access),
        )

    def _unit_rows(self, place: OperandLayout) -> OperandLayout:
        """Return the layout of a left operand in 32-bit units, in bytes.

        It is read in place if the block ends with a complete unit and tiles load the rows well;
        otherwise packed.
        """
        b, c = self.b, self.c
        in_place = ends_with_whole_unit(self.env, c)
        itemsize, unit_bytes = place.dtype.itemsize, c.unit.itemsize
        row_bytes = b.mul(place.steps[0], number(itemsize)), number(c.pitch * unit_bytes)
        if c.group is not None and c.group.matrix:
            first = element_address(b, place.base, place.origin, place.dtype)
            in_place = b.and_(in_place, rows_load_well(b, first, row_bytes[0]))
        self.left_in_place = in_place
        return OperandLayout(
            b.select(in_place, place.base, self.env.storage.at[c.item, LEFT_PART]),
            b.select(in_place, b.mul(place.origin, number(itemsize)), number(0)),
            (b.select(in_place, *row_bytes), number(1)),
            i8,
            False,
            unit=c.unit,
        )

    def _next_task_step(self, access: Access) -> Value | None:
        """Return the offset of the next task's operand from this one's, for small products."""
        step = next_task(self.env, access) if self.c.kind == "small" else None
        return None if step is None else self.env.frame.index(step)

    def sum_columns(self) -> None:
        """Store the sums from which tiles start where the left operand was offset by packing.

        They are minus the right operand's column sums, times the offset of the left operand.
        """
        b, c, lanes = self.b, self.c, self.c.tile.lanes
        assert c.group is not None
        m = LLVMMachine(b, lanes, self.env.frame.target)
        zero, unit_ones, group = m.const(i32, 0), ones(lanes), c.group
        shift = m.const(i32, -group.left_offset)
        with b.goto_entry_block():
            places = [b.alloca(zero.type) for _ in range(c.tile.vectors)]

        def panel(column: Value) -> None:
            panel_offset = self._right_offset(column)
            for place in places:
                b.store(zero, place)

            def add(k: Value) -> None:
                at = b.add(panel_offset, b.mul(k, self.right.steps[0]))
                at = element_address(b, self.right.base, at, self.right.dtype)
                vectors = self._load_right_row(m, at, len(places), None)
                for place, right in zip(places, vectors, strict=True):
                    total = b.load(place, typ=zero.type)
                    b.store(dot_step(m, group, unit_ones, right, total), place)

            self.env.loop(number(0), self.end_k, 1, add)
            sums = self.env.storage.at[c.item, SUMS_PART]
            for v, place in enumerate(places):
                correction = m.mul(b.load(place, typ=zero.type), shift)
                at = element_address(b, sums, b.add(column, number(v * lanes)), i32)
                store_vector(m, at, correction, i32, None)

        low, high = self.env.ranges[c.n]
        self.env.loop(number(0), b.sub(high, low), c.tile.columns, panel)

    # ---- tiles -----------------------------------------------------------------------------------

    def _column_tiles(self, column: Value, vectors: int, mask: Value | None) -> None:
        """Emit the tiles of a column block, for all rows or band by band."""
        b, c, env = self.b, self.c, self.env
        if (bands := self.bands) is None:
            self._row_tiles(number(0), self.rows, column, vectors, mask)
            return
        low, high = env.ranges[bands.groups.columns]
        first, depth, fresh = self.first_k, self.end_k, self.is_first_block
        summed = bands.groups.sums(c)

        def band(rows: tuple[Value, Value], used_range: tuple[Value, Value], begins: Value) -> None:
            start, stop = used_range
            if not summed:
                first_column, width = b.add(low, column), number(vectors * c.tile.lanes)
                used = b.and_(
                    b.icmp_signed("<", first_column, stop),
                    b.icmp_signed(">", b.add(first_column, width), start),
                )
                with b.if_then(used):
                    self._row_tiles(*rows, column, vectors, mask)
                return
            assert fresh is not None
            each = number(c.group_size)
            self.first_k = b.sdiv(b.sub(start, low), each)
            self.end_k = b.sdiv(b.add(b.sub(stop, low), number(c.group_size - 1)), each)
            self.is_first_block = begins
            with b.if_else(b.icmp_signed("<", start, stop)) as (used, unused):
                with used:
                    self._row_tiles(*rows, column, vectors, mask)
                with unused, b.if_then(fresh):
                    self._clear(rows, column, vectors)

        over_row_groups(env, bands, self.rows, (low, high), summed, band)
        self.first_k, self.end_k, self.is_first_block = first, depth, fresh

    def _clear(self, rows: tuple[Value, Value], column: Value, vectors: int) -> None:
        """Store zeros for rows which use nothing of the first block."""
        m, dtype = LLVMMachine(self.b, self.c.tile.lanes, self.env.frame.target), self.c.item.dtype

        def clear_row(row: Value) -> None:
            for place in self._sum_places(1, vectors, row, column):
                store_vector(m, place, m.const(dtype, 0), dtype, None)

        self.env.loop(*rows, 1, clear_row)

    def _row_tiles(
        self, done: Value, rows: Value, column: Value, vectors: int, mask: Value | None
    ) -> None:
        """Emit tiles for a range of rows: full ones, then lower ones for the remainder."""
        b = self.b
        if self.c.group is not None and self.c.group.matrix:
            self._amx_tiles(done, rows, column, b.add(column, number(AMX_COLUMNS)))
            return

        def tile(row: Value, height: int) -> None:
            self._tile_in_runs(height, vectors, row, column, mask)

        for_each_height(self.env, (done, rows), tile_heights(self.tile_rows), tile)

    def _tile_in_runs(
        self, height: int, vectors: int, row: Value, column: Value, mask: Value | None
    ) -> None:
        """Emit a tile over all of the block, in runs if sums are long."""
        if self.c.depth <= RUN * self.c.group_size or not self.adds_previous_last:
            self._tile(height, vectors, row, column, mask)
            return
        b, first, depth = self.b, self.first_k, self.end_k
        fresh, last = self.is_first_block, self.is_last_block

        def run(at: Value) -> None:
            end = b.add(at, number(RUN))
            more = b.icmp_signed("<", end, depth)
            self.first_k, self.end_k = at, b.select(more, end, depth)
            if fresh is not None:
                self.is_first_block = b.and_(fresh, b.icmp_signed("==", at, first))
            self.is_last_block = None if last is None else b.and_(last, b.not_(more))
            self._tile(height, vectors, row, column, mask)

        self.env.loop(first, depth, RUN, run)
        self.first_k, self.end_k = first, depth
        self.is_first_block, self.is_last_block = fresh, last

    def _amx_tiles(self, done: Value, rows: Value, column: Value, end: Value) -> None:
        """Emit tiles of some rows and columns by matrix instructions (AMX)."""
        b, c, left, right, unit = self.b, self.c, self.left, self.right, self.c.unit
        assert c.group is not None and c.tile.columns == AMX_COLUMNS
        first, size = b.mul(self.first_k, right.steps[0]), number(unit.itemsize)
        places, panels = panel_offsets(
            self.env, column, end, lambda at: b.mul(b.add(self._right_offset(at), first), size)
        )
        to, start = self._sum_places(1, 1, done, column)[0], self._starts(1, done)[0]
        at = element_address(b, start, self.first_k, left.unit or left.dtype)
        multiply(
            b,
            c.group.matrix,
            [
                to,
                b.mul(self.stride, number(c.item.dtype.itemsize)),
                at,
                b.mul(left.steps[0], number(left.dtype.itemsize)),
                right.base,
                places,
                b.mul(right.steps[0], size),
                panels,
                b.sub(rows, done),
                b.sub(self.end_k, self.first_k),
                self.is_first_block or ir.Constant(ir.IntType(1), 0),
            ],
        )

    def _right_offset(self, column: Value) -> Value:
        """Return the offset of the right operand at k = 0 and a column."""
        b, place = self.b, self.right
        if not place.packed:
            return b.add(place.origin, column)
        if place.panels is not None:
            access, top = place.panels
            first = b.add(self.env.ranges[self.c.n][0], column)
            at = self.env.index(access.offset, Scope(top, {self.c.n: first}))
            return at if self.c.group_size == 1 else b.udiv(at, number(self.c.group_size))
        panel = panel_offset(b, self.c.tile.columns, self.panel_units, number(0), column)
        in_place = self.right_in_place
        return panel if in_place is None else b.select(in_place, column, panel)

    def _tile(
        self, height: int, vectors: int, row: Value, column: Value, mask: Value | None
    ) -> None:
        """Emit sum[rows, vectors] = left[rows, all k] * right[all k, vectors] in registers."""
        b, item, lanes = self.b, self.c.item, self.c.tile.lanes
        m = LLVMMachine(b, lanes, self.env.frame.target)
        starts = self._starts(height, row)
        for start in starts:
            self.prefetch_next_task(self.left, start, 2)
        at = self._right_offset(column)
        right_row = element_address(b, self.right.base, at, self.right.dtype)
        places = self._sum_places(height, vectors, row, column)
        full = height * vectors == self.c.tile.rows * self.c.tile.vectors
        place = row, self.column, column
        part = self.prefetcher.begin_tile(place, height, vectors) if full else None
        masks = self._masks(height, vectors, mask)
        begin = self._initial_sums(m, places, masks, vectors, column)
        rows = self.prefetcher.next_rows(starts) if full else None
        following = self.accumulate(m, starts, right_row, begin, (vectors, mask), (rows, part))
        if self.adds_previous_last:
            first = self.is_first_block
            following = add_previous_blocks(m, places, item.dtype, following, first, masks)
        later = self.rounded_output and self.rounded_output.target(
            b, [row], b.add(self.column, column), self.is_last_block
        )
        store_tile(m, self.c, Tile(height, vectors, lanes), following, places, masks, later)

    def _masks(self, height: int, vectors: int, mask: Value | None) -> Masks:
        """Return the store mask of each vector; scratch has room for full vectors."""
        last = mask if self.c.item in self.env.direct.stores else None
        return [*[None] * (vectors - 1), last] * height

    def _starts(self, height: int, row: Value) -> list[Value]:
        """Return addresses of the tile's left rows, or of the first packed one."""
        b, place = self.b, self.left
        at = b.add(place.origin, b.mul(row, place.steps[0]))
        first = element_address(b, place.base, opaque(b, at), place.dtype)
        if place.packed:
            return [first]
        return strided_rows(b, first, place.steps[0], height, place.dtype)

    def _sum_places(self, height: int, vectors: int, row: Value, column: Value) -> list[Value]:
        """Return addresses of the tile's vectors in the result."""
        b, item = self.b, self.c.item
        if self.row_axis is not None:
            row = b.add(row, self._positions_before(item, self.row_axis))
        at = b.add(b.mul(row, self.stride), b.add(self.column, column))
        first = TileTarget(element_address(b, self.base, at, item.dtype), self.stride, item.dtype)
        return first.addresses(b, Tile(height, vectors, self.c.tile.lanes))

    def _initial_sums(
        self, m: LLVMMachine, places: list[Value], masks: Masks, vectors: int, column: Value
    ) -> list[Value]:
        """Return the initial sums of a tile.

        Zero in the first block and where earlier blocks are added afterwards; plus the correction
        for a left operand that packing offset (`sum_columns`).
        """
        b, c = self.b, self.c
        begin = [m.const(c.item.dtype, 0)] * len(places)
        if not self.adds_previous_last:
            begin = add_previous_blocks(m, places, c.item.dtype, begin, self.is_first_block, masks)
        if c.group is None or not c.group.left_offset:
            return begin
        first = element_address(b, self.env.storage.at[c.item, SUMS_PART], column, c.unit)
        sums = load_row(m, first, c.unit, vectors)
        return [m.add(x, sums[k % vectors]) for k, x in enumerate(begin)]

    # ---- the inner loop --------------------------------------------------------------------------

    def prefetch_distance(self) -> Value | None:
        """Return the prefetch distance of the right operand in bytes, or None."""
        b, c, target = self.b, self.c, self.env.frame.target
        if c.by_panels:
            return number(DEEP_PREFETCH_BYTES)
        if c.kind != "packed" or c.prepacked or not target.is_issue_bound:
            return None
        fill = target.l1_bytes // (c.tile.columns * c.unit.itemsize)
        fills = b.icmp_signed(">=", self.end_k, number(fill))
        return b.select(fills, number(L1_PREFETCH_BYTES), number(0))

    def accumulate(
        self,
        m: LLVMMachine,
        starts: list[Value],
        right_row: Value,
        begin: list[Value],
        across: tuple[int, Value | None],
        prefetches: tuple[tuple[Value, Value] | None, PanelShare | None],
    ) -> list[Value]:
        """Return the sums `begin` after all products of a tile.

        `starts` are the rows' addresses in the left operand, `right_row` is the right operand's
        first row.  `across` is the number of vectors and the last one's mask.  `prefetches` are the
        rows which follow (address and step) and a part of the next panel.
        """
        b, span, height = self.b, (self.first_k, self.end_k), len(begin) // across[0]

        def step_at(k: Value, totals: list[Value], nth: int) -> list[Value]:
            self.prefetcher.prefetch_at(k, *prefetches)
            vectors = self._load_right_row(m, self._right_row_at(right_row, k, nth), *across)
            return self._step(m, self._rows_at(starts, k, nth, height), vectors, totals)

        if self._has_squares(m, height):
            sums = self._square_loop(m, starts, right_row, begin, across, prefetches)
            odd = b.and_(b.sub(self.end_k, self.first_k), number(1))
            return reduction_loop(b, (b.sub(self.end_k, odd), self.end_k), 1, step_at, sums)
        if not any(prefetches):
            if (chains := self._chains(len(begin))) > 1:
                return self._interleaved_loop(m, begin, chains, step_at)
            if self._is_dense(len(begin)):
                return unrolled_reduction(b, span, UNROLL, step_at, begin)
        return reduction_loop(b, span, 1, step_at, begin, may_be_empty=False)

    def _has_squares(self, m: LLVMMachine, height: int) -> bool:
        """Return whether one instruction multiplies two rows and two columns at two positions."""
        c, place = self.c, self.left
        step = c.steps[1] if place.packed else place.steps[1].ref
        adjacent = str(step) == "1" and height > 1
        return adjacent and c.group is not None and has_square_step(m.target, c.group)

    def _square_loop(
        self,
        m: LLVMMachine,
        starts: list[Value],
        right_row: Value,
        begin: list[Value],
        across: tuple[int, Value | None],
        prefetches: tuple[tuple[Value, Value] | None, PanelShare | None],
    ) -> list[Value]:
        """Return the sums `begin` after all pairs of positions; see `accumulate`."""
        b, group, vectors = self.b, self.c.group, across[0]
        height = len(begin) // vectors
        padding = begin[-vectors:] if height % 2 else []  # the last row twice
        assert group is not None

        def pair_at(k: Value, squares: list[Value], nth: int) -> list[Value]:
            if nth:
                return squares
            self.prefetcher.prefetch_at(k, *prefetches)
            rows = (self._right_row_at(right_row, k, i) for i in (0, 1))
            here, next_ = (self._load_right_row(m, row, *across) for row in rows)
            addresses = self._rows_at(starts, k, 0, height)
            left = pair_rows(b, [*addresses, *addresses[-1:]][: height + height % 2], 1)
            return square_update(m, group, left, interleave_positions(b, here, next_), squares)

        odd = b.and_(b.sub(self.end_k, self.first_k), number(1))
        squares = exchange_halves(b, [*begin, *padding], vectors)
        span = self.first_k, b.sub(self.end_k, odd)
        squares = reduction_loop(b, span, 2, pair_at, squares)
        return exchange_halves(b, squares, vectors)[: len(begin)]

    def _chains(self, vectors: int) -> int:
        """Return the number of sums for each accumulator of a tile.

        A chain of multiply-adds waits for each; a single row has no other rows to fill the time.
        """
        if self.c.m is not None:
            return 1
        return CHAINS if vectors <= CHAINED_VECTORS else 1

    def _interleaved_loop(
        self,
        m: LLVMMachine,
        begin: list[Value],
        chains: int,
        step_at: Callable[[Value, list[Value], int], list[Value]],
    ) -> list[Value]:
        """Emit the loop with interleaved sums: position k + nth goes to number `nth`."""
        b, size = self.b, len(begin)
        end = b.sub(self.end_k, b.srem(b.sub(self.end_k, self.first_k), number(chains)))
        zero = m.const(self.c.item.dtype, 0)

        def one(k: Value, sums: list[Value], nth: int) -> list[Value]:
            first = nth * size
            following = step_at(k, sums[first : first + size], nth)
            return [*sums[:first], *following, *sums[first + size :]]

        start = [*begin, *[zero] * (size * (chains - 1))]
        sums = reduction_loop(b, (self.first_k, end), chains, one, start)
        while len(sums) > size:
            half = len(sums) // 2
            sums = [m.add(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
        return reduction_loop(b, (end, self.end_k), 1, step_at, sums)

    def _is_dense(self, vectors: int) -> bool:
        """Return whether a tile of so many accumulators fills all issue slots."""
        c, target = self.c, self.env.frame.target
        full = vectors == c.tile.rows * c.tile.vectors and c.kind == "packed"
        steps = self.right.steps[0], self.left.steps[1]
        return full and target.is_issue_bound and all(isinstance(x, ir.Constant) for x in steps)

    def prefetch_next_task(self, place: OperandLayout, address: Value, lines: int) -> None:
        """Prefetch what the next task reads at the counterpart of an address."""
        if place.next_task_step is None:
            return
        b, step = self.b, place.next_task_step
        next_address = element_address(b, address, step, place.dtype)
        for nth in range(lines):
            prefetch(b, element_address(b, next_address, number(nth * CACHE_LINE), i8))

    def _right_row_at(self, first_row: Value, k: Value, nth: int) -> Value:
        """Return the address of the right operand's row at position k + nth.

        `first_row` is the row at k = 0.
        """
        b, place = self.b, self.right
        at = step_address(b, first_row, k, place.steps[0], place.dtype)
        return element_address(b, at, b.mul(number(nth), place.steps[0]), place.dtype)

    def _load_right_row(
        self, m: LLVMMachine, first: Value, vectors: int, mask: Value | None
    ) -> list[Value]:
        b, place = self.b, self.right
        self.prefetch_next_task(place, first, vectors)
        if self.prefetch_bytes is not None:
            for v in range(vectors):
                at = b.add(self.prefetch_bytes, number(v * CACHE_LINE))
                prefetch(b, element_address(b, first, at, i8), near=True)
        return load_row(m, first, place.dtype, vectors, None if place.packed else mask)

    def _rows_at(self, starts: list[Value], k: Value, nth: int, height: int) -> list[Value]:
        """Return addresses of a tile's rows at position k + nth."""
        b, place = self.b, self.left
        unit = place.unit or place.dtype
        if place.packed:
            at = element_address(b, starts[0], multiple_of_counter(b, k, place.steps[1]), unit)
            rows = (number(i * self.c.steps[0]) for i in range(height))
            addresses = [element_address(b, at, row, unit) for row in rows]
        else:
            row_stride = place.steps[0], place.dtype
            addresses = row_addresses(b, starts, row_stride, k, place.steps[1], unit)
        offset = b.mul(number(nth), place.steps[1])
        return [element_address(b, at, offset, unit) for at in addresses]

    def _step(
        self, m: LLVMMachine, rows: list[Value], across: list[Value], totals: list[Value]
    ) -> list[Value]:
        """Return the sums after one more position along k."""
        left = broadcast_each(m, rows, self.left.unit or self.left.dtype)
        return rank_one_update(multiply_add(m, self.c.item, self.c.group), left, across, totals)
