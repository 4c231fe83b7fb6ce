"""Emit a k-blocked packed GEMM with fused epilogue (GotoBLAS loops).

    for each block of k:
        pack the right operand in panels, and the left one unless its rows are read in place
        for each tile:  sums += left * right, in registers; in scratch between blocks
        (last block) the epilogue takes the sums from registers

Blocks of both operands and the sums fit L2 together, however long k is; tiles prefetch what the
next block packs.  A left operand which is contiguous along its rows (M) is packed in strips of one
vector of rows, position by position: whole vectors are stored as they are read, without a
transpose.

On processors which issue few instructions per cycle, packing costs as much as the memory latency it
hides.  There the rows of a tile are packed just before the tile: they are in L1 then and leave L2
to the right operand, and each panel of the previous tile prefetches one of them.

A prepacked right operand is read in place; all tiles of a panel share in prefetching the part which
the next block, or the next task, reads first.

There is only one tile size.  For a remainder of rows or columns it computes extra sums, from
whatever is stored behind the packed ones; the epilogue then reads the valid sums from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Self

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import CACHE_LINE, prefetch_packed_rows
from smelt.codegen.llvm.instructions.indexing import (
    lanes_before_end,
    number,
    opaque,
    splat,
)
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import LEFT_PART, RIGHT_PART
from smelt.codegen.llvm.nests.register_tile import Tile
from smelt.codegen.llvm.products.rank_one_update import multiply_add, rank_one_update
from smelt.codegen.llvm.products.tall_skinny import TallSkinnyGemm
from smelt.codegen.llvm.products.tile_loops import reduction_loop
from smelt.codegen.llvm.products.tile_sums import TileTarget, add_previous_blocks, strided_rows
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedGemmPlan
from smelt.codegen.llvm.schedule.operands import plain_load
from smelt.python.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.expr import axes_of

Value = ir.Value
K_BLOCK_PREFETCH_ROWS = 8
"""Rows between what is packed and what is prefetched into L1.

Four of these short rows are packed before memory answers; packing evicts nothing needed sooner.
"""
NARROW_PREFETCH_ROWS = 2
"""Rows between packing and prefetch on processors which issue few instructions."""
PANEL_PREFETCH_BYTES = 1024
"""Bytes of a panel between what a tile multiplies and what it prefetches into L1.

Used where a tile prefetches nothing else.
"""
UNROLL = 4
"""Positions along k per iteration of the tile's loop.

The loop counter takes a tenth of the issue slots otherwise, which hyperthreads share.
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


class KBlockedGemm(TallSkinnyGemm):
    """Emits one k-blocked product of the task that `env` is emitting."""

    def __init__(self, env: Environment, nest: Nest, c: FusedGemmPlan) -> None:
        super().__init__(env, nest, c)
        self.packed_left_strides = {c.m: number(self.c.pitch), c.k: number(1)}
        self.pitch = self._round_down(
            self.b.add(self.columns, number(c.tile.columns - 1)), c.tile.columns
        )
        self.next_runs = list[PrefetchRuns]()
        self.is_first_block: Value = ir.IntType(1)(0)
        self.is_last_block: Value = ir.IntType(1)(0)
        """Whether the current block is the first one (`is_first_block`), or the last one
        (`is_last_block`)."""
        self.k_begin = self.k_end = number(0)
        """Range of the reduction over all blocks."""
        self.block_depth = number(c.depth)
        """Positions per block."""

    def run(self) -> None:
        """Emit all blocks of k of this task, at least one for empty sums.

        Products which share a packed left operand take turns in each block.
        """
        env, b, c = self.env, self.b, self.c
        products = self._sharing()
        if products[-1].c is not c:
            return
        low, high = env.ranges[c.k]
        each = self._even_block(b.sub(high, low))

        def block(at: Value) -> None:
            end = b.add(at, each)
            end = b.select(b.icmp_signed("<", end, high), end, high)
            depth, is_first = b.sub(end, at), b.icmp_signed("==", at, low)
            ends = is_first, b.icmp_signed("==", end, high)
            for product in products:
                with env.narrowed({c.k: (at, end)}), env.within(products=product):
                    product._enter_block((low, high), each, depth, ends)
                    product._block()

        once = b.add(low, number(1))
        with env.within(prefetch_enabled=False):
            env.loop(low, b.select(b.icmp_signed("<", high, once), once, high), each, block)

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
        size = self._round_down(b.add(size, number(K_ALIGNMENT - 1)), K_ALIGNMENT)
        return b.select(b.icmp_signed("<", size, limit), size, limit)

    def _next_depth(self) -> Value:
        """Return the size of the next block of k; 0 if there is none."""
        b = self.b
        left = b.sub(self.k_end, self.env.ranges[self.c.k][1])
        return b.select(b.icmp_signed("<", left, self.block_depth), left, self.block_depth)

    def _enter_block(
        self, span: tuple[Value, Value], each: Value, depth: Value, ends: tuple[Value, Value]
    ) -> None:
        (self.k_begin, self.k_end), self.block_depth, self.depth = span, each, depth
        self.is_first_block, self.is_last_block = ends
        self.first_row = self.env.ranges[self.c.m][0]

    def _block(self) -> None:
        """Emit one block of k: pack, multiply, and the epilogue of the last block."""
        env, b, c = self.env, self.b, self.c
        if not c.prepacked:
            self._zero_panel_tail()
            self._pack_right()
        self._locate_left()
        if not (c.direct or c.by_tiles) and c.leader is None:
            self.pack(self.nest.packs[0])
        self._locate_next_block()
        if c.prepacked:
            self.right_top = env.open(self.nest.packs[1], Scope(env.top))
        self._prepare_tiles()
        low, high = env.ranges[c.m]
        end = b.sub(high, b.urem(b.sub(high, low), number(c.tile.rows)))
        if c.by_tiles:
            env.loop(low, high, c.tile.rows, self._packed_tiles)
            self._prepare_tiles()
        elif self._uses_one_base():
            env.loop(low, end, c.tile.rows, lambda row: self._tiles(row, one_base=True))
            env.loop(end, high, c.tile.rows, self._tiles)
        else:
            env.loop(low, high, c.tile.rows, self._tiles)
        if c.keeps_sums:
            return
        with b.if_then(self.is_last_block):
            env.loop(
                low,
                high,
                1,
                lambda row: self._epilogue_remaining(row, b.icmp_signed("<", row, end)),
            )

    def _prepare_tiles(self) -> None:
        """Emit what precedes the loops over tiles."""
        self.top = self.env.open(self.nest, Scope(self.env.top))
        self._set_row_strides()

    def _packed_tiles(self, row: Value) -> None:
        """Emit the tiles of some rows, which are packed just before.

        They are in L1 then, and leave L2 to the right operand.
        """
        env, b, c = self.env, self.b, self.c
        _, high = env.ranges[c.m]
        end = b.add(row, number(c.tile.rows))
        end = b.select(b.icmp_signed("<", end, high), end, high)
        with env.narrowed({c.m: (row, end)}):
            self.pack(self.nest.packs[0])
        self._prepare_tiles()
        self._tiles(row)

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
        top, dtype = env.open(nest, Scope(env.top)), env.frame.dtypes[access.buffer]
        strides = {a: env.index(x or 0, top) for a, x in steps.items()}
        (first, last), (start, _) = env.ranges[row_axis], part or env.ranges[k][::-1]
        at = b.add(
            b.add(top.offset(access), b.mul(first, strides[row_axis])), b.mul(start, strides[k])
        )
        base = element_address(b, env.frame.buffers[access.buffer], at, dtype)
        length, count = b.sub(last, first), part[1] if part else self._next_depth()
        if unit_axis == k:
            length, count = count, length
        size, run_axis = number(dtype.itemsize), k if unit_axis == row_axis else row_axis
        if part is None:
            count = b.select(self.is_last_block, number(0), count)
        return PrefetchRuns(base, b.mul(strides[run_axis], size), b.mul(length, size), count)

    def _rows_ahead(self, count: int) -> int:
        """Return 0: a tile's own sums take long enough for its prefetches."""
        return 0

    def _prefetch_targets(self, row: Value, column: Value) -> list[tuple[Value, Value]]:
        """Return address and length of the runs which a tile prefetches, one per operand.

        Where rows are packed tile by tile, one of the next rows.
        """
        b, tile, targets = self.b, self.c.tile, list[tuple[Value, Value]]()
        if self.c.by_tiles:
            nth = b.add(b.add(row, number(tile.rows)), b.udiv(column, number(tile.columns)))
            end = b.add(row, number(2 * tile.rows))
        elif self.c.prepacked:
            return [self._panel_ahead(row, column)]
        else:
            panels = b.udiv(self.pitch, number(tile.columns))
            nth = b.mul(b.udiv(row, number(tile.rows)), panels)
            nth, end = b.add(nth, b.udiv(column, number(tile.columns))), None
        for runs in self.next_runs:
            exists = b.icmp_signed("<", nth, runs.count)
            exists = exists if end is None else b.and_(exists, b.icmp_signed("<", nth, end))
            at = b.mul(b.select(exists, nth, number(0)), runs.stride_bytes)
            first = b.gep(runs.base, [at], source_etype=ir.IntType(8))
            targets.append((first, b.select(exists, runs.length_bytes, number(0))))
        return targets

    # ---- operands --------------------------------------------------------------------------------

    def _locate_left(self) -> None:
        """Locate the left operand and set the strides of its packed form."""
        super()._locate_left()
        if not self.c.direct:
            self.left_strides = [
                number(self.c.pitch),
                number(self.c.tile.lanes if self.c.packs_transposed else 1),
            ]

    def vector_alignment(self, nest: Nest) -> int:
        """Return the multiple at which packed vectors begin; strips are full vectors of rows."""
        return (
            self.c.tile.lanes
            if nest.packed == "left" and self.c.packs_transposed
            else super().vector_alignment(nest)
        )

    def put(self, nest: Nest, value: Value, scope: Scope) -> None:
        """Store one vector of a packed operand; vectors of a strip whole, at their position."""
        b, c = self.b, self.c
        is_prefetched = c.by_tiles and nest.packed == "left" and plain_load(c.left) is not None
        if scope.lanes is not None and scope.lanes.mask is None and not is_prefetched:
            prefetch_packed_rows(
                self.env,
                nest,
                scope,
                NARROW_PREFETCH_ROWS if c.issue_bound else K_BLOCK_PREFETCH_ROWS,
                near=True,
            )
        if nest.packed == "right" or not c.packs_transposed:
            super().put(nest, value, scope)
            return
        k, row = (b.sub(scope.axis(a), self.starts[a]) for a in (c.k, c.m))
        strip = self._round_down(row, c.tile.lanes)
        at = b.add(b.mul(strip, number(self.c.pitch)), b.mul(k, number(c.tile.lanes)))
        value = splat(b, value, c.tile.lanes)
        store_vector(self.m, self.at(LEFT_PART, at), value, c.item.dtype, None)

    def _uses_one_base(self) -> bool:
        """Return whether full tiles address rows from one register at a constant stride.

        A narrow machine has no issue slots to reload addresses which do not fit registers.
        """
        c, stride = self.c, self.left_strides[0]
        return c.issue_bound and c.direct and not c.gathers_rows and isinstance(stride, ir.Constant)

    def _strided_starts(self, row: Value, count: int) -> list[Value]:
        """Return row addresses of a full tile at a constant stride."""
        b, stride = self.b, self.left_strides[0]
        first = element_address(b, self.base, b.mul(row, stride), self.left_dtype)
        return strided_rows(b, first, stride, count, self.left_dtype)

    def _starts(self, row: Value, count: int) -> list[Value]:
        """Return row addresses of a tile.

        Rows past the end are clamped to the last row, or read what follows it in scratch.
        """
        b, c, addresses = self.b, self.c, list[Value]()
        if c.direct:
            return self._clamped(row, count)
        if not c.packs_transposed:  # a constant stride: one address register serves all rows
            at = number(0) if c.by_tiles else b.mul(b.sub(row, self.first_row), number(c.pitch))
            first = element_address(b, self.base, at, self.left_dtype)
            return strided_rows(b, first, number(c.pitch), count, self.left_dtype)
        group = gcd(c.tile.rows, c.tile.lanes)  # rows from a multiple of it on share a strip
        for i in range(0, count, group):
            place = b.add(b.sub(row, self.first_row), number(i))
            strip = self._round_down(place, c.tile.lanes)
            at = b.add(b.mul(strip, number(self.c.pitch)), b.sub(place, strip))
            addresses += [
                element_address(b, self.base, b.add(at, number(j)), self.left_dtype)
                for j in range(min(group, count - i))
            ]
        return addresses

    # ---- the tile --------------------------------------------------------------------------------

    def _tiles(self, row: Value, one_base: bool = False) -> None:
        """Emit all columns of a tile's rows, panel by panel.

        With `one_base` rows are addressed from one register at a constant stride.
        """
        b, c, env = self.b, self.c, self.env
        starts = (self._strided_starts if one_base else self._starts)(row, c.tile.rows)
        low, high = env.ranges[c.n]
        is_full = b.icmp_signed("<=", b.add(row, number(c.tile.rows)), env.ranges[c.m][1])
        read = b.and_(is_full, self.is_last_block)
        origins = self._origins(row)

        def panel(at: Value) -> None:
            prefetches = self.next_runs or (c.prepacked and not c.issue_bound)
            targets = (
                self._prefetch_targets(b.sub(row, self.first_row), b.sub(at, low))
                if prefetches
                else []
            )
            sum_places = self._sum_places(row, at, c.tile.rows, c.tile.vectors)
            if not c.issue_bound:
                self._prefetch_results(row, at, origins)
            totals = self._total(starts, b.sub(at, low), targets)
            totals = add_previous_blocks(
                self.m, sum_places, c.item.dtype, totals, self.is_first_block
            )
            is_final = read
            if not c.stores_sums:
                inside = b.icmp_signed("<=", b.add(at, number(c.tile.columns)), high)
                is_final = b.and_(read, inside)
            self._store_or_read(is_final, (row, c.tile.rows, at, None), sum_places, totals)

        env.loop(low, high, c.tile.columns, panel)

    def _prefetch_results(self, row: Value, column: Value, origins: Mapping[Access, Value]) -> None:
        """Prefetch the sums of the next tile of these rows.

        In the last block also what this tile's epilogue reads and writes.
        """
        b, tile = self.b, self.c.tile
        for place in self._sum_places(
            row, b.add(column, number(tile.columns)), tile.rows, tile.vectors
        ):
            prefetch(b, place, near=True)
        if origins:
            with b.if_then(self.is_last_block):
                for stream in self._prefetch_streams(origins, column, tile.rows, tile.vectors):
                    stream.prefetch_all()

    def _store_or_read(
        self,
        is_final: Value,
        tile: tuple[Value, int, Value, Value | None],
        places: list[Value],
        totals: list[Value],
    ) -> None:
        """Store a tile's sums in scratch, or let the epilogue read final ones from registers.

        `tile` is its first row, rows, first column, and the mask of the last vector.
        """
        if self.c.stores_sums:
            self._store_sums(places, totals)
            return
        row, count, column, mask = tile

        def read() -> None:
            self._epilogue_tile(row, self._places(row, count), column, mask, totals)

        if ir.is_true(is_final):
            read()
            return
        with self.b.if_else(is_final) as (final, earlier):
            with final:
                read()
            with earlier:
                self._store_sums(places, totals)

    def _sum_places(self, row: Value, column: Value, count: int, vectors: int) -> list[Value]:
        """Return the scratch addresses of a tile's sums between blocks."""
        first = TileTarget(self._sum_address(row, column), self.pitch, self.c.item.dtype)
        return first.addresses(self.b, Tile(count, vectors, self.c.tile.lanes))

    def _store_sums(self, places: list[Value], totals: list[Value]) -> None:
        for place, total in zip(places, totals, strict=True):
            store_vector(self.m, place, total, self.c.item.dtype, None)

    def _total(
        self, starts: list[Value], column: Value, targets: list[tuple[Value, Value]]
    ) -> list[Value]:
        """Return a tile's sums over this block; each iteration prefetches a cache line of runs."""
        b, c = self.b, self.c
        first = self._first(column)

        def step_at(k: Value, totals: list[Value], nth: int) -> list[Value]:
            places = self._panel(k, nth, first, c.tile.vectors)
            for place in places if c.issue_bound else ():
                ahead = b.gep(place, [number(PANEL_PREFETCH_BYTES)], source_etype=ir.IntType(8))
                prefetch(b, ahead, near=True)
            right_vectors = [load_vector(self.m, place, c.item.dtype, None) for place in places]
            return self._add_products(starts, k, nth, right_vectors, totals)

        def prefetching_step(k: Value, totals: list[Value], nth: int) -> list[Value]:
            for first, length in () if nth else targets:
                ahead = b.mul(k, number(CACHE_LINE // UNROLL))
                ahead = b.select(b.icmp_signed("<", ahead, length), ahead, length)
                prefetch(b, b.gep(first, [ahead], source_etype=ir.IntType(8)))
            return step_at(k, totals, nth)

        unrolled_end = self._round_down(self.depth, UNROLL)
        begin = [self.m.const(c.item.dtype, 0)] * (c.tile.rows * c.tile.vectors)
        begin = reduction_loop(self.b, (number(0), unrolled_end), UNROLL, prefetching_step, begin)
        return reduction_loop(self.b, (unrolled_end, self.depth), 1, step_at, begin)

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
        at = env.index(access.offset, Scope(self.right_top, place))
        return element_address(b, env.frame.buffers[access.buffer], at, c.item.dtype)

    def _panel_ahead(self, row: Value, column: Value) -> tuple[Value, Value]:
        """Return a tile's share of the next panel to prefetch: address and bytes.

        It belongs to the next block, or to the first block of the next task.
        """
        env, b, c = self.env, self.b, self.c
        (first, last), (_, end) = env.ranges[c.m], env.ranges[c.k]
        next_column = b.add(column, b.select(self.is_last_block, self.columns, number(0)))
        begin = self._panel_at(next_column, b.select(self.is_last_block, self.k_begin, end))
        tiles = b.udiv(b.add(b.sub(last, first), number(c.tile.rows - 1)), number(c.tile.rows))
        size = number(c.tile.columns * c.item.dtype.itemsize)
        share = b.udiv(b.mul(self.depth, size), b.mul(tiles, number(CACHE_LINE)))
        share = b.mul(b.add(share, number(1)), number(CACHE_LINE))
        part = b.mul(b.udiv(row, number(c.tile.rows)), share)
        return b.gep(begin, [part], source_etype=ir.IntType(8)), share

    def _add_products(
        self, starts: list[Value], k: Value, nth: int, across: list[Value], totals: list[Value]
    ) -> list[Value]:
        """Return the sums with the products of one position added."""
        left = (self._broadcast(start, k, nth) for start in starts)
        return rank_one_update(multiply_add(self.m, self.c.item), left, across, totals)

    # ---- the epilogue from scratch ---------------------------------------------------------------

    def _epilogue_remaining(self, row: Value, in_full_tile: Value) -> None:
        """Emit the epilogue of a row from scratch, for columns its tiles have not done.

        `in_full_tile` says whether a full-height tile computed the row (i1).
        """
        b, c, env, lanes = self.b, self.c, self.env, self.c.tile.lanes
        low, high = env.ranges[c.n]
        first = low
        if not c.stores_sums:
            first = b.select(
                in_full_tile, b.add(low, self._round_down(self.columns, c.tile.columns)), low
            )
        end = b.add(low, self._round_down(self.columns, lanes))
        (place,) = self._places(row, 1)

        def read(at: Value, mask: Value | None) -> None:
            total = load_vector(self.m, self._sum_address(row, at), c.item.dtype, None)
            self._epilogue_vector(place, at, mask, total)

        def masked(at: Value) -> None:
            left = opaque(b, b.sub(high, at))
            read(at, lanes_before_end(b, left, lanes))

        env.loop(first, end, lanes, lambda at: read(at, None))
        env.loop(end, high, lanes, masked)


__all__ = ["KBlockedGemm"]
