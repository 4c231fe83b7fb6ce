"""Emit a GEMM with a fused epilogue: GotoBLAS loops, in the order that its plan says.

    for each block of k:
        pack the right operand, and the left one unless its rows are read in place
        for each tile:  sums += left * right, in registers; in scratch between blocks
        (last block) the epilogue takes the sums from registers

| form | blocks of k | order of tiles | remainder of rows |
|---|---|---|---|
| `tall_skinny`, `panels` | one | rows, some of which are packed at a time | lower tiles |
| `k_blocked` | several | rows, then panels | whole tiles, which compute extra sums |
| `small_m` | several | panels, then rows | lower tiles |

Blocks of both operands and the sums fit L2 together, however long k is; tiles prefetch what the
next block packs.  On processors which issue few instructions per cycle, packing costs as much as
the memory latency it hides.  There the rows of a tile are packed just before the tile: they are in
L1 then and leave L2 to the right operand, and each panel of the previous tile prefetches one of
them.

A prepacked right operand is read in place; all tiles of a panel share in prefetching the part which
the next block, or the next task, reads first.

With few rows a panel is multiplied only some times, and packing it separately would cost as much as
two of these: so the first tile packs what it multiplies (`FirstUse`).

A row remainder goes to lower tiles, down to single rows, where outputs may overwrite operands:
nothing is computed twice.  The extra sums of whole tiles are of whatever is stored behind packed
rows and columns; the epilogue then reads the valid sums from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Self

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_vector,
    prefetch,
    store_vector,
)
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import (
    multiple_of_counter,
    row_addresses,
    step_address,
)
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import RIGHT_PART
from smelt.codegen.llvm.products.fused_epilogue import Columns, FusedEpilogue, Part, mask_of_last
from smelt.codegen.llvm.products.fused_gemm_packing import UNROLL, FirstUse
from smelt.codegen.llvm.products.microkernel import (
    add_previous_blocks,
    broadcast_each,
    fits_one_run,
    for_each_height,
    multiply_add,
    rank_one_update,
    reduction_loop,
    strip_mine_axis,
    sum_in_runs,
    unrolled_reduction,
)
from smelt.codegen.llvm.products.prefetch import (
    PanelShare,
    Share,
    panel_share,
    prefetch_at,
    prefetch_in_loop,
)
from smelt.codegen.llvm.schedule.fused_gemm import FusedGemmPlan
from smelt.codegen.llvm.schedule.operands import plain_load
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, i8
from smelt.types.expr import axes_of, coefficient

Value = ir.Value
ROW_PREFETCH_BYTES = 8192
"""Bytes between what is read of long rows and what is prefetched."""
PANEL_PREFETCH_BYTES = 1024
"""Bytes of a panel between what a tile multiplies and what it prefetches into L1.

Used where a tile prefetches nothing else.
"""
K_ALIGNMENT = 32
"""Multiple of positions along k at which blocks begin: lanes of the widest 16-bit vectors.

Vectors must not cross from one segment of k (an attention head) into the next.
"""


@dataclass(frozen=True, slots=True)
class PrefetchRuns:
    """Contiguous runs of an operand, all of the same length, to be prefetched."""

    base: Value
    stride_bytes: Value
    """Bytes between the beginnings of runs."""
    length_bytes: Value
    """Bytes of a run."""
    count: Value
    """Number of runs; 0 if no block follows."""


class FusedGemm(FusedEpilogue):
    """Emits one GEMM with a fused epilogue in the task that `env` is emitting."""

    def __init__(self, env: Environment, nest: Nest, c: FusedGemmPlan) -> None:
        super().__init__(env, nest, c)
        self.next_runs = list[PrefetchRuns]()
        self.is_first_block: Value = ir.IntType(1)(1)
        self.is_last_block: Value = ir.IntType(1)(1)
        """Whether the current block of k is the first one (`is_first_block`), or the last one
        (`is_last_block`)."""
        self.k_begin = self.k_end = number(0)
        """Range of the reduction over all blocks."""
        self.block_depth = number(c.depth)
        """Positions per block."""
        self.first_use: FirstUse | None = None
        """How tiles pack the right operand, if they do."""

    def run(self) -> None:
        """Emit all blocks of this task, at least one for empty sums.

        Products whose sums the epilogue of another product reads are emitted with it: it takes the
        same rows of all of them, so that operands and sums stay in L1.  Blocks of k are emitted
        together by those products only which share a packed left operand.
        """
        env, c = self.env, self.c
        if c.blocks_k:
            self._k_blocks(self._sharing())
        elif not c.keeps_sums:
            products = [*self._kept_products(), self]
            for product in products:
                with env.within(products=product):
                    product._pack_right()
                    product._locate_left()

            def row_block() -> None:
                for product in products:
                    with env.within(products=product):
                        product._row_block(*env.ranges[c.m])

            strip_mine_axis(env, c.m, c.rows_per_pass, row_block)

    def _k_blocks(self, products: list[Self]) -> None:
        """Emit blocks of k, in each of which products take turns, at the last one."""
        env, b, c = self.env, self.b, self.c
        if products[-1].c is not c:
            return
        low, high = env.ranges[c.k]
        each = self._even_block(b.sub(high, low))

        def block(at: Value) -> None:
            end = b.minimum(b.add(at, each), high)
            depth, is_first = b.sub(end, at), b.icmp_signed("==", at, low)
            ends = is_first, b.icmp_signed("==", end, high)
            for product in products:
                with env.narrowed({c.k: (at, end)}), env.within(products=product):
                    product._enter_block((low, high), each, depth, ends)
                    product._block()

        env.loop(low, b.maximum(b.add(low, number(1)), high), each, block)

    def _sharing(self) -> list[Self]:
        """Return the products which read the same packed left operand, in order."""
        first = self.c.leader or self.c.item
        products = [*self._kept_products(), self]
        order = [n.product for n in self.env.s.nests]
        sharing = [product for product in products if (product.c.leader or product.c.item) is first]
        return sorted(sharing, key=lambda product: order.index(product.c))

    def _even_block(self, depth: Value) -> Value:
        """Return the block size which makes all blocks about equally large.

        A short last block would load and store all sums for few products, and prefetch in its
        course all that a long one packs.  Blocks begin at multiples of the widest vectors.
        """
        b, limit = self.b, number(self.c.depth)
        pieces = b.udiv(b.add(depth, b.sub(limit, number(1))), limit)
        is_empty = b.icmp_signed("==", pieces, number(0))
        pieces, depth = (b.select(is_empty, number(1), x) for x in (pieces, depth))
        size = b.udiv(b.add(depth, b.sub(pieces, number(1))), pieces)
        return b.minimum(self._round_down(b.add(size, number(K_ALIGNMENT - 1)), K_ALIGNMENT), limit)

    def _next_depth(self) -> Value:
        """Return the size of the next block of k; 0 if there is none."""
        left = self.b.sub(self.k_end, self.env.ranges[self.c.k][1])
        return self.b.minimum(left, self.block_depth)

    def _enter_block(
        self, span: tuple[Value, Value], each: Value, depth: Value, ends: tuple[Value, Value]
    ) -> None:
        (self.k_begin, self.k_end), self.block_depth, self.depth = span, each, depth
        self.is_first_block, self.is_last_block = ends
        self.first_row = self.env.ranges[self.c.m][0]

    def _block(self) -> None:
        """Emit one block of k: pack, multiply, and the epilogue of the last block."""
        env, b, c = self.env, self.b, self.c
        low, high = env.ranges[c.m]
        if c.small_m:
            self._locate_first_use(b.sub(self._ends(low, high)[0], low))
        elif not c.prepacked:
            self._zero_panel_tail()
        if not c.prepacked:
            self._pack_right()
        self._locate_left()
        if not (c.direct or c.by_tiles) and c.leader is None:
            self.pack(self.nest.packs[0])
        if c.small_m:
            self._open_epilogue()
            self._by_panels(low, high)
            return
        self._locate_next_block()
        self._open_epilogue()
        end = b.sub(high, b.urem(b.sub(high, low), number(c.tile.rows)))
        if c.by_tiles:
            env.loop(low, high, c.tile.rows, self._packed_tiles)
        elif self._uses_one_base():
            env.loop(low, end, c.tile.rows, lambda row: self._panels(row, one_base=True))
            env.loop(end, high, c.tile.rows, self._panels)
        else:
            env.loop(low, high, c.tile.rows, self._panels)
        if not c.keeps_sums:
            with b.if_then(self.is_last_block):
                self._epilogue_remaining((low, high), end)

    def _epilogue_remaining(self, rows: tuple[Value, Value], end: Value) -> None:
        """Emit the epilogue of what tiles left out.

        Tiles of full height, before the row `end`, leave out columns past the full panels.
        """
        b, (low, high) = self.b, self.env.ranges[self.c.n]
        if not self.c.stores_sums:
            done = b.add(low, self._round_down(self.columns, self.c.tile.columns))
            self._epilogue_rows((rows[0], end), (done, high))
            rows = end, rows[1]
        self._epilogue_rows(rows, (low, high))

    # ---- orders of tiles -------------------------------------------------------------------------

    def _row_block(self, low: Value, high: Value) -> None:
        """Emit a block of rows with all of k: sums and epilogue."""
        b, c = self.b, self.c
        self.first_row = low
        self._pack_left()
        self._open_epilogue()
        if not c.dense:
            self._by_rows(low, high)
            return
        aligned = b.icmp_signed("==", b.urem(self.columns, number(c.tile.lanes)), number(0))

        def staged() -> None:
            self._stage(lambda: self._by_rows(low, high))
            self._copy_staged(low, high)

        b.either(aligned, lambda: self._by_rows(low, high), staged)

    def _by_rows(self, low: Value, high: Value) -> None:
        """Emit full tiles of rows, then lower ones; then a deferred epilogue."""
        env, c = self.env, self.c
        part: Part = "whole" if c.wide else ""
        rows = (low, high)
        done = for_each_height(env, rows, c.heights[:-1], partial(self._rows, part=part))
        if part:
            self._edge_columns(low, done)
        env.loop(done, high, 1, lambda row: self._rows(row, 1))
        if c.stores_sums and not c.keeps_sums:
            self._epilogue_rows((low, high), env.ranges[c.n])

    def _rows(self, row: Value, count: int, part: Part = "") -> None:
        """Emit all columns of some rows, or the full panels, or the rest."""
        self._across(self._tile(row, count), self.c.tile.vectors, part)

    def _edge_columns(self, low: Value, high: Value) -> None:
        """Emit the columns past the full panels, by full and by lower tiles."""
        heights = self.c.heights[0], self.c.heights[-2]
        put = partial(self._rows, part="rest")
        for_each_height(self.env, (low, high), heights, put)

    def _panels(self, row: Value, *, one_base: bool = False) -> None:
        """Emit all panels of a tile's rows, the last one past the end.

        With `one_base` rows are addressed from one register at a constant stride.
        """
        tile = self.c.tile
        columns = self._tile(row, tile.rows, clamped=not one_base)
        self.env.loop(
            *self.env.ranges[self.c.n], tile.columns, lambda at: columns(at, tile.vectors, None)
        )

    def _packed_tiles(self, row: Value) -> None:
        """Emit the tiles of some rows, which are packed just before.

        They are in L1 then, and leave L2 to the right operand.
        """
        c, end = self.c, self.b.add(row, number(self.c.tile.rows))
        with self.env.narrowed({c.m: (row, self.b.minimum(end, self.env.ranges[c.m][1]))}):
            self.pack(self.nest.packs[0])
        self._panels(row)

    def _uses_one_base(self) -> bool:
        """Return whether full tiles address rows from one register at a constant stride.

        A narrow machine has no issue slots to reload addresses which do not fit registers.
        """
        c, stride = self.c, self.left_strides[0]
        return c.issue_bound and c.direct and not c.gathers_rows and isinstance(stride, ir.Constant)

    def _by_panels(self, low: Value, high: Value) -> None:
        """Emit panel by panel, all rows of each; then the columns past the full panels."""
        b, c, env, use = self.b, self.c, self.env, self.first_use
        full, ends = c.heights[0], self._ends(low, high)

        def tile(row: Value, size: int, at: Value) -> None:
            if size == full and use is not None:
                nth = b.udiv(b.sub(row, low), number(full))
                use.begin_tile(b.sub(at, self.column), nth, b.icmp_signed("==", row, low))
            self._tile(row, size)(at, c.tile.vectors, None)
            if use is not None:
                use.end_tile()

        def panel(at: Value) -> None:
            self._select_range(at)
            for size, (start, end) in zip(c.heights, pairwise((low, *ends)), strict=True):
                env.loop(start, end, size, lambda row, size=size: tile(row, size, at))
            self._epilogue_split_panel(at)

        (begin, _), panel_columns = env.ranges[c.n], c.tile.columns
        panels_end = b.add(begin, self._round_down(self.columns, panel_columns))
        env.loop(begin, panels_end, panel_columns, panel)
        self._select_range(panels_end)
        self._edge_columns(low, ends[2])
        env.loop(ends[2], high, 1, lambda row: self._rows(row, 1, "rest"))
        self._epilogue_split_panel(panels_end)
        if c.stores_sums and not c.keeps_sums:
            with b.if_then(self.is_last_block):
                self._epilogue_rows((low, high), env.ranges[c.n])

    def _ends(self, low: Value, high: Value) -> list[Value]:
        """Return the row at which tiles of each height end.

        Low tiles read a complete panel as well, so a small remainder joins the last full tile, and
        both become tiles of the second height (12 + 4 rows are 8 + 8).
        """
        b, rows = self.b, self.b.sub(high, low)
        full, half, quarter, _ = self.c.heights
        left = b.urem(rows, number(full))
        joins = b.and_(
            b.icmp_signed(">=", left, number(quarter)), b.icmp_signed("<", left, number(half))
        )
        joins = b.and_(joins, b.icmp_signed(">=", rows, number(2 * full)))
        left = b.select(joins, b.add(left, number(full)), left)
        return [
            b.sub(high, x)
            for x in (left, b.urem(left, number(half)), b.urem(left, number(quarter)), number(0))
        ]

    def _select_range(self, column: Value) -> None:
        """Select the output range of a panel's columns, once for all its tiles."""
        ranges, self.selected_outputs = self.output_ranges, None
        if ranges.groups and not self.c.stores_sums:
            end = self._panel_end(column)
            self.selected_outputs = ranges.select_outputs(column, end)

    def _panel_end(self, column: Value) -> Value:
        """Return the end of a panel, clamped to the task's columns."""
        end = self.b.add(column, number(self.c.tile.columns))
        return self.b.minimum(end, self.env.ranges[self.c.n][1])

    def _epilogue_split_panel(self, column: Value) -> None:
        """Emit the epilogue of a panel which spans several output ranges, from scratch."""
        b, c, aimed = self.b, self.c, self.selected_outputs
        if aimed is None:
            return
        self.selected_outputs, columns = None, (column, self._panel_end(column))
        with b.if_then(b.and_(self.is_last_block, b.not_(aimed.inside))):
            self._epilogue_rows(self.env.ranges[c.m], columns)

    # ---- the tile --------------------------------------------------------------------------------

    def _tile(self, row: Value, count: int, *, clamped: bool = False) -> Columns:
        """Return what emits tiles of some rows: sums of this block, and what reads them."""
        b, env, c = self.b, self.env, self.c
        has_extra_sums = c.form == "k_blocked"  # of whole tiles past the last row or column
        starts = self._starts(row, count, clamped=clamped)
        has_sums = c.stores_sums or c.blocks_k
        rows = [] if has_sums else self._rows_of(row, count)
        origins = self._origins(row) if count > 1 and not c.small_m else {}
        is_final = self.is_last_block
        if has_extra_sums:
            is_full = b.icmp_signed("<=", b.add(row, number(count)), env.ranges[c.m][1])
            is_final = b.and_(is_full, is_final)

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            ahead = self._prefetches(row, at, (starts, vectors), origins)
            sums = self._sum_places(row, at, count, vectors) if has_sums else []
            totals = self._sums(starts, b.sub(at, self.column), vectors, mask, ahead)
            totals = add_previous_blocks(self.m, sums, c.item.dtype, totals, self.is_first_block)
            reads = ir.IntType(1)(0) if c.stores_sums else is_final
            if has_extra_sums:
                inside = b.icmp_signed("<=", b.add(at, number(c.tile.columns)), env.ranges[c.n][1])
                reads = b.and_(reads, inside)
            elif self.selected_outputs is not None:
                reads = b.and_(reads, self.selected_outputs.inside)

            def read() -> None:
                if c.keeps_sums:
                    return
                self._epilogue_tile(row, rows or self._rows_of(row, count), at, mask, totals)

            b.either(reads, read, lambda: self._store_sums(sums, totals))

        return columns

    def _store_sums(self, places: list[Value], totals: list[Value]) -> None:
        for place, total in zip(places, totals, strict=True):
            store_vector(self.m, place, total, self.c.item.dtype, None)

    def _sums(
        self,
        starts: list[Value],
        column: Value,
        vectors: int,
        mask: Value | None,
        ahead: Callable[[Value, int], None],
    ) -> list[Value]:
        """Return a tile's sums over this block, by the packing or the plain loop."""
        first, is_packing = self._first(column), self.first_use and self.first_use.is_packing

        def plain() -> list[Value]:
            return self._accumulate(starts, (first, vectors), mask, ahead)

        def packing() -> list[Value]:
            return self._accumulate(starts, (first, vectors), mask, ahead, column)

        return plain() if is_packing is None else self.b.either(is_packing, packing, plain)

    def _accumulate(
        self,
        starts: list[Value],
        panel: tuple[Value, int],
        mask: Value | None,
        ahead: Callable[[Value, int], None],
        packed: Value | None = None,
    ) -> list[Value]:
        """Return the sums of a tile over this block.

        `panel` is the packed panel and its vectors.  With `packed`, the column to pack from, rows
        are read in place and packed on the way.
        """
        c, b, use, vectors = self.c, self.b, self.first_use, panel[1]
        # Packing stores would keep LLVM from interleaving unrolled positions.
        is_short = c.small_m and (packed is not None or not (use and use.iterations_before))
        unroll = UNROLL if c.blocks_k and not is_short else 1
        update = multiply_add(self.m, c.item)

        def step_at(
            k: Value, totals: list[Value], nth: int, *, prefetches: bool = True
        ) -> list[Value]:
            if nth == 0 and prefetches:
                ahead(k, unroll)
            places = self._panel(k, nth, *panel)
            if packed is not None and use is not None:
                across = use.load_row(self.m, k, packed, vectors)
            else:
                across = [
                    load_vector(self.m, at, c.item.dtype, mask_of_last(mask, v, vectors))
                    for v, at in enumerate(places)
                ]
            sums = rank_one_update(update, self._left_at(starts, k, nth), across, totals)
            if packed is not None:
                self._store_sums(places, across)
            return sums

        zeros = [self.m.const(c.item.dtype, 0)] * (len(starts) * vectors)
        span, dtype = (number(0), self.depth), c.item.dtype
        if c.blocks_k or not c.wide or fits_one_run(self.env.s.local[c.k], dtype):
            rest = partial(step_at, prefetches=False)
            return unrolled_reduction(b, span, unroll, step_at, zeros, rest)
        return sum_in_runs(
            self.m, dtype, span, len(zeros), lambda run: reduction_loop(b, run, 1, step_at, zeros)
        )

    def _left_at(self, starts: list[Value], k: Value, nth: int) -> Iterator[Value]:
        """Return the broadcast elements of a tile's rows at position k + nth."""
        step, dtype = self.left_strides[1], self.left_dtype
        if self.c.blocks_k or self.c.gathers_rows:  # few registers, or unrelated addresses
            places = (self._advance(start, k, nth, step, dtype) for start in starts)
        else:
            row_stride = self.left_strides[0], dtype
            places = iter(row_addresses(self.b, starts, row_stride, k, step, dtype))
        return broadcast_each(self.m, places, dtype)

    def _advance(self, first: Value, k: Value, nth: int, step: Value, dtype: DType) -> Value:
        """Return the address `k + nth` steps on; only `k` changes between iterations."""
        b = self.b
        at = element_address(b, first, multiple_of_counter(b, k, step), dtype)
        return element_address(b, at, b.mul(number(nth), step), dtype)

    # ---- the right operand -----------------------------------------------------------------------

    def _pack_right(self) -> None:
        """Pack the right operand, except for what tiles pack."""
        use, (low, high) = self.first_use, self.env.ranges[self.c.n]
        begin = low if use is None else self.b.add(low, use.columns)
        with self.env.narrowed({self.c.n: (begin, high)}):
            super()._pack_right()

    def _packed_column(self, column: Value) -> Value:
        """Return where a column of the task is packed."""
        return self.first_use.place(column) if self.first_use else column

    def _first(self, column: Value) -> Value:
        """Return the address of a panel of this block."""
        if not self.c.prepacked:
            return self.at(RIGHT_PART, self._packed_offset(number(0), column))
        return self._panel_at(column, self.env.ranges[self.c.k][0])

    def _panel_at(self, column: Value, k: Value) -> Value:
        """Return the address of a prepacked panel, from a position along k."""
        env, b, c = self.env, self.b, self.c
        access = plain_load(c.right)
        assert access is not None
        place = {c.n: b.add(env.ranges[c.n][0], column), c.k: k}
        at = env.index(access.offset, Scope(self.env.top, place))
        return env.address(access.buffer, at)

    def _panel(self, k: Value, nth: int, first: Value, vectors: int) -> list[Value]:
        """Return addresses of vectors in the packed row at k + nth.

        `first` is the row at k = 0.
        """
        c, b, dtype = self.c, self.b, self.c.item.dtype
        step = number(c.tile.columns) if c.wide else self.pitch
        row = step_address(b, first, k, step, dtype)
        row = element_address(b, row, b.mul(number(nth), step), dtype)
        places = [element_address(b, row, number(v * c.tile.lanes), dtype) for v in range(vectors)]
        for place in places if c.form == "k_blocked" and c.issue_bound else ():
            prefetch(b, element_address(b, place, number(PANEL_PREFETCH_BYTES), i8), near=True)
        return places

    def _locate_first_use(self, full_rows: Value) -> None:
        """Locate the right operand's rows, if it is stored in rows, which full tiles pack.

        Prefetched are the rows of the next block, or of the next task's columns.
        """
        b, c, env = self.b, self.c, self.env
        access, pitch = plain_load(c.right), c.right_pitch()
        if access is None or pitch is None:
            return
        stride, dtype = env.index(pitch, env.top), env.frame.dtypes[access.buffer]
        (_, end), (low, high) = env.ranges[c.n], env.ranges[c.k]
        has_more = b.icmp_signed("<", end, env.frame.index(env.s.phase.axes[c.n]))
        next_depth = b.select(has_more, self.block_depth, number(0))
        next_depth = b.select(self.is_last_block, next_depth, self._next_depth())
        offset = b.add(b.mul(low, stride), self.column)
        next_columns = b.add(b.mul(self.k_begin, stride), end)
        next_rows = b.add(b.mul(high, stride), self.column)
        later = b.select(self.is_last_block, next_columns, next_rows)
        later = b.select(b.icmp_signed("<", number(0), next_depth), later, offset)
        origin = env.origin(access, self.nest.packs[1].order, env.top)
        base, later = (env.address(access.buffer, b.add(origin, at)) for at in (offset, later))
        rows, depths = (base, later, stride, dtype), (self.depth, next_depth)
        full_tiles = b.udiv(full_rows, number(c.tile.rows))
        self.first_use = FirstUse(b, c, rows, self.columns, full_tiles, depths)

    # ---- prefetch --------------------------------------------------------------------------------

    def _prefetches(
        self,
        row: Value,
        column: Value,
        tile: tuple[list[Value], int],
        origins: Mapping[Access, Value],
    ) -> Callable[[Value, int], None]:
        """Prefetch before a tile; return what prefetches for some positions within it.

        `tile` has the addresses of its rows, and its vectors.
        """
        b, c, (starts, vectors) = self.b, self.c, tile
        if c.small_m:
            return self.first_use.prefetch if self.first_use else lambda k, step: None
        if c.blocks_k:
            place = b.sub(row, self.first_row), b.sub(column, self.column)
            targets = self._prefetch_targets(*place)
            part = self._panel_ahead(*place) if c.prepacked and not c.issue_bound else None
            if not c.issue_bound:
                self._prefetch_results(row, column, origins)

            def ahead_in_block(k: Value, step: int) -> None:
                prefetch_runs(b, targets, k, step)
                if part is not None:
                    prefetch_at(b, *part, k)

            return ahead_in_block
        streams = self._prefetch_streams(origins, column, len(starts), vectors)
        for stream in streams:
            if c.wide:
                stream.begin(self.depth)
            else:
                stream.prefetch_all()
        if c.gathers_rows and len(starts) == c.heights[0]:
            self._prefetch_gathered(b.add(row, number(len(starts))), column)

        def ahead(k: Value, step: int) -> None:
            self._prefetch_rows(starts, k)
            prefetch_in_loop(b, streams if c.wide else [], k)

        return ahead

    def _prefetch_gathered(self, row: Value, column: Value) -> None:
        """Prefetch one of the next gathered rows, another for each panel.

        Hardware prefetchers cannot predict their addresses.
        """
        b, c, env = self.b, self.c, self.env
        nth = b.udiv(b.sub(column, self.column), number(c.tile.columns))
        last = b.sub(env.ranges[c.m][1], number(1))
        first, dtype = self._gathered_row(b.minimum(b.add(row, nth), last)), self.left_dtype
        step = CACHE_LINE // dtype.itemsize
        zero, depth = number(0), self.depth
        env.loop(zero, depth, step, lambda k: prefetch(b, element_address(b, first, k, dtype)))

    def _prefetch_rows(self, starts: list[Value], k: Value) -> None:
        """Prefetch rows of later tiles: too many and too short for hardware prefetchers."""
        b, dtype = self.b, self.left_dtype
        if self.left_contiguous_axis == self.c.k and len(starts) > 1:
            distance = number(ROW_PREFETCH_BYTES // dtype.itemsize)
            if self.c.wide:  # the next rows, in the course of this row block's tiles
                distance = b.mul(self.left_strides[0], number(len(starts)))
            at = step_address(b, starts[0], k, number(len(starts)), dtype)
            prefetch(b, element_address(b, at, distance, dtype), near=not self.c.wide)

    def _prefetch_results(self, row: Value, column: Value, origins: Mapping[Access, Value]) -> None:
        """Prefetch the sums of the next tile of these rows.

        In the last block also what this tile's epilogue reads and writes.
        """
        b, tile = self.b, self.c.tile
        next_column = b.add(column, number(tile.columns))
        for place in self._sum_places(row, next_column, tile.rows, tile.vectors):
            prefetch(b, place, near=True)
        if origins:
            with b.if_then(self.is_last_block):
                for stream in self._prefetch_streams(origins, column, tile.rows, tile.vectors):
                    stream.prefetch_all()

    # ---- prefetch of the next block --------------------------------------------------------------

    def _locate_next_block(self) -> None:
        """Locate what the next block packs, for which this block's tiles prefetch.

        Prefetched if both operands are packed, since packing would wait for both.  One operand
        alone is packed quickly, tiles that read rows in place need all registers, and a narrow
        machine has no spare issue slots.
        """
        c, packs = self.c, self.nest.packs
        if c.by_tiles:
            runs = self._prefetch_runs(c.left, packs[0], c.m, (self.env.ranges[c.k][0], self.depth))
            self.next_runs = [runs] if runs is not None else []
            return
        skips = c.direct or c.prepacked or c.issue_bound
        sides = () if skips else ((c.right, packs[1], c.n), (c.left, packs[0], c.m))
        candidates = (self._prefetch_runs(*side) for side in sides[: 2 if c.leader is None else 1])
        self.next_runs = [runs for runs in candidates if runs is not None]

    def _prefetch_runs(
        self, item: Item, nest: Nest, row_axis: str, part: tuple[Value, Value] | None = None
    ) -> PrefetchRuns | None:
        """Return the contiguous runs of an operand's next block, to be prefetched.

        `part` (first k, count) selects another block.  None if the operand is computed or gathered.
        """
        b, env, k = self.b, self.env, self.c.k
        access = plain_load(item)
        if access is None or access.positions:
            return None
        steps = {a: coefficient(access.offset, a) for a in (k, row_axis)}
        unit_axis = next((a for a in (row_axis, k) if steps[a] == 1), None)
        if unit_axis is None or any(x is None or axes_of(x) for x in steps.values()):
            return None
        strides = {a: env.index(x or 0, env.top) for a, x in steps.items()}
        (first, last), (start, _) = env.ranges[row_axis], part or env.ranges[k][::-1]
        at = env.origin(access, nest.order, env.top)
        at = b.add(at, b.mul(first, strides[row_axis]))
        at = b.add(at, b.mul(start, strides[k]))
        base = env.address(access.buffer, at)
        length, count = b.sub(last, first), part[1] if part else self._next_depth()
        if unit_axis == k:
            length, count = count, length
        dtype = env.frame.dtypes[access.buffer]
        size, run_axis = number(dtype.itemsize), k if unit_axis == row_axis else row_axis
        if part is None:
            count = b.select(self.is_last_block, number(0), count)
        return PrefetchRuns(base, b.mul(strides[run_axis], size), b.mul(length, size), count)

    def _prefetch_targets(self, row: Value, column: Value) -> list[tuple[Value, Value]]:
        """Return address and length of the runs which a tile prefetches, one per operand.

        Where rows are packed tile by tile, one of the next rows.
        """
        b, tile, targets = self.b, self.c.tile, list[tuple[Value, Value]]()
        if self.c.by_tiles:
            nth = b.add(b.add(row, number(tile.rows)), b.udiv(column, number(tile.columns)))
            end = b.add(row, number(2 * tile.rows))
        else:
            panels = b.udiv(self.pitch, number(tile.columns))
            nth = b.mul(b.udiv(row, number(tile.rows)), panels)
            nth, end = b.add(nth, b.udiv(column, number(tile.columns))), None
        for runs in self.next_runs:
            exists = b.icmp_signed("<", nth, runs.count)
            exists = exists if end is None else b.and_(exists, b.icmp_signed("<", nth, end))
            at = b.mul(b.select(exists, nth, number(0)), runs.stride_bytes)
            first = element_address(b, runs.base, at, i8)
            targets.append((first, b.select(exists, runs.length_bytes, number(0))))
        return targets

    def _panel_ahead(self, row: Value, column: Value) -> PanelShare:
        """Return a tile's share of the next panel to prefetch.

        It belongs to the next block, or to the first block of the next task.
        """
        env, b, c = self.env, self.b, self.c
        (first, last), (_, end), rows = env.ranges[c.m], env.ranges[c.k], number(c.tile.rows)
        next_column = b.add(column, b.select(self.is_last_block, self.columns, number(0)))
        begin = self._panel_at(next_column, b.select(self.is_last_block, self.k_begin, end))
        tiles = b.udiv(b.add(b.sub(last, first), number(c.tile.rows - 1)), rows)
        return panel_share(b, c, begin, self.depth, Share(b.udiv(row, rows), tiles))


def prefetch_runs(
    b: ir.IRBuilder, targets: Sequence[tuple[Value, Value]], k: Value, step: int
) -> None:
    """Prefetch the cache lines of runs which fall to `step` positions, up to their ends."""
    for first, length in targets:
        ahead = b.minimum(b.mul(k, number(CACHE_LINE // step)), length)
        prefetch(b, element_address(b, first, ahead, i8))
