"""Emit a small-M GEMM which packs the right operand on first use.

    for each block of k:
        copy the left operand's block
        for 32 columns:
            for the first 12 rows:   for each k of the right operand: pack its row, multiply it
            for other rows:          multiply the packed panel
            all of them:             prefetch rows of the next block

With 64 rows a panel is multiplied only six times, and packing it separately would cost as much as
two of these: rows of 32 columns are far apart, and hardware prefetchers follow none of them.  So
tiles prefetch the next block's rows meanwhile, in memory order, into L1.  Most are evicted to L2
before they are read; prefetching into L2 directly is worse, since processors do not continue
streams from there.  A panel stays in L1, the sums of a block in L2.  A right operand which is
computed, or contiguous along k, is packed first, as in `k_blocked`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import multiple_of_counter
from smelt.codegen.llvm.instructions.indexing import first_lanes, number, opaque
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import RIGHT_PART
from smelt.codegen.llvm.products.k_blocked import KBlockedGemm
from smelt.codegen.llvm.products.tall_skinny import mask_of_last
from smelt.codegen.llvm.products.tall_skinny_packing import apply_casts
from smelt.codegen.llvm.products.tile_loops import reduction_loop
from smelt.codegen.llvm.products.tile_sums import add_previous_blocks
from smelt.codegen.llvm.schedule.fused_gemm_plan import FusedGemmPlan
from smelt.codegen.llvm.schedule.operands import plain_load
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType

Value = ir.Value
UNROLL = 4
"""Positions along k per iteration of a full tile's loop."""
FRACTION = 16
"""Fraction bits of fixed-point numbers: lines prefetched per iteration, 1 / groups per row."""
PREFETCH_GROUP = 4
"""Neighbouring cache lines prefetched together, which memory delivers faster."""


@dataclass(frozen=True, slots=True)
class RightRows:
    """A block of a right operand stored in rows, from the task's first column."""

    base: Value
    prefetch_base: Value
    """Address from which to prefetch."""
    row_stride: Value
    """Elements between rows."""
    dtype: DType
    groups_per_row: Value
    """Groups of neighbouring cache lines per row."""
    inverse_groups: Value
    """1 / `packs_transposed`, fixed point."""
    rate: Value
    """Groups to prefetch per iteration of a full tile, fixed point."""


class SmallMGemm(KBlockedGemm):
    """Emits one small-M product of the task that `env` is emitting."""

    def __init__(self, env: Environment, nest: Nest, c: FusedGemmPlan) -> None:
        super().__init__(env, nest, c)
        self.right_rows: RightRows | None = None
        self.packed_on_use = number(0)
        """Columns which tiles pack on first use, panel by panel in the same buffer."""
        self.packing: Value | None = None
        """For a full tile: whether it is the first one, which packs what it multiplies."""
        self.full_tiles = number(0)
        """Number of full-height tiles."""
        self.iterations_before: Value | None = None
        """For a full tile: loop iterations of the tiles before it."""

    def _block(self) -> None:
        env, b, c = self.env, self.b, self.c
        low, high = env.ranges[c.m]
        self.full_tiles = b.udiv(b.sub(self._ends(low, high)[0], low), number(c.tile.rows))
        self.right_rows = self._locate_rows()
        self._pack_right()
        self._locate_left()
        if c.leader is None:
            self.pack(self.nest.packs[0])
        self.top = env.open(self.nest, Scope(env.top))
        self._set_row_strides()
        self._results(low, high)

    # ---- rows ------------------------------------------------------------------------------------

    def _results(self, low: Value, high: Value) -> None:
        """Emit panel by panel, all rows of each; then the columns past the full panels."""
        b, c, env = self.b, self.c, self.env
        full, ends = c.heights[0], self._ends(low, high)

        def tile(row: Value, size: int, at: Value) -> None:
            self.iterations_before = self.packing = None
            if size == full and self.right_rows is not None:
                self.iterations_before = self._iterations_before(
                    at, b.udiv(b.sub(row, low), number(full))
                )
                self.packing = b.icmp_signed("==", row, low)
            self._tile(row, size)(at, c.tile.vectors, None)

        def panel(at: Value) -> None:
            self._select_range(at)
            for size, (start, end) in zip(c.heights, pairwise((low, *ends)), strict=True):
                env.loop(start, end, size, lambda row, size=size: tile(row, size, at))
            self._epilogue_split_panel(at)

        (begin, _), panel_columns = env.ranges[c.n], c.tile.columns
        panels_end = b.add(begin, self._round_down(self.columns, panel_columns))
        env.loop(begin, panels_end, panel_columns, panel)
        self.iterations_before = self.packing = None
        self._select_range(panels_end)
        self._edge_columns(low, ends[2])
        env.loop(ends[2], high, 1, lambda row: self._rows(row, 1, "rest"))
        self._epilogue_split_panel(panels_end)
        if c.stores_sums and not c.keeps_sums:
            with b.if_then(self.is_last_block):
                env.loop(low, high, 1, self._epilogue_row)

    def _select_range(self, column: Value) -> None:
        """Select the output range of a panel's columns, once for all its tiles."""
        has_ranges = self.output_ranges.groups and not self.c.stores_sums
        self.selected_outputs = (
            self.output_ranges.select_outputs(column, self._end(column), self.top)
            if has_ranges
            else None
        )

    def _end(self, column: Value) -> Value:
        """Return the end of a panel, clamped to the task's columns."""
        b, high = self.b, self.env.ranges[self.c.n][1]
        end = b.add(column, number(self.c.tile.columns))
        return b.select(b.icmp_signed("<", end, high), end, high)

    def _epilogue_split_panel(self, column: Value) -> None:
        """Emit the epilogue of a panel which spans several output ranges, from scratch."""
        b, c, env, aimed = self.b, self.c, self.env, self.selected_outputs
        if aimed is None:
            return
        self.selected_outputs, (low, high), end = None, env.ranges[c.m], self._end(column)

        def vector(row: Value, at: Value) -> None:
            total = load_vector(self.m, self._sum_address(row, at), c.item.dtype, None)
            mask = first_lanes(b, opaque(b, b.sub(end, at)), c.tile.lanes)
            self._epilogue_vector(self._places(row, 1)[0], at, mask, total)

        with b.if_then(b.and_(self.is_last_block, b.not_(aimed.inside))):
            env.loop(
                low,
                high,
                1,
                lambda row: env.loop(column, end, c.tile.lanes, lambda at: vector(row, at)),
            )

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

    def _tile(self, row: Value, count: int) -> Any:
        """Return a callback which adds this block's sums of some columns of some rows."""
        b, dtype = self.b, self.c.item.dtype
        starts = self._starts(row, count)

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            sum_places = self._sum_places(row, at, count, vectors)
            totals = self._sums(starts, b.sub(at, self.column), vectors, mask)
            totals = add_previous_blocks(self.m, sum_places, dtype, totals, self.is_first_block)
            is_final = self.is_last_block
            if self.selected_outputs is not None:
                is_final = b.and_(is_final, self.selected_outputs.inside)
            self._store_or_read(is_final, (row, count, at, mask), sum_places, totals)

        return columns

    # ---- the right operand -----------------------------------------------------------------------

    def _pack_right(self) -> None:
        """Pack what tiles do not: the columns past the full panels, or everything."""
        b, c, env = self.b, self.c, self.env
        columns = env.ranges[c.n]
        self.packed_on_use = number(0)
        if self.right_rows is not None:
            has_full_tiles = b.icmp_signed("<", number(0), self.full_tiles)
            self.packed_on_use = b.select(
                has_full_tiles, self._round_down(self.columns, c.tile.columns), number(0)
            )
        with env.narrowed({c.n: (b.add(columns[0], self.packed_on_use), columns[1])}):
            super()._pack_right()

    def _packed_offset(self, k: Value, column: Value) -> Value:
        """Return the packed position of an element.

        The panel currently multiplied comes first, then the columns packed before the tiles.
        """
        b = self.b
        if self.right_rows is None:
            return super()._packed_offset(k, column)
        now = b.icmp_signed("<", column, self.packed_on_use)
        at = b.add(b.sub(column, self.packed_on_use), number(self.c.tile.columns))
        inside = b.and_(column, number(self.c.tile.columns - 1))
        return super()._packed_offset(k, b.select(now, inside, at))

    def _locate_rows(self) -> RightRows | None:
        """Locate the right operand's rows and plan their prefetch.

        None if it is not stored in rows.

        Prefetched are the rows of the next block, or of the next task's columns.
        """
        b, c, env = self.b, self.c, self.env
        access, stride = plain_load(c.right), c.right_pitch()
        if access is None or stride is None:
            return None
        top, dtype = (
            env.open(self.nest.packs[1], Scope(env.top)),
            env.frame.dtypes[access.buffer],
        )
        step, buffer = env.index(stride, top), env.frame.buffers[access.buffer]
        (_, end), (low, high) = env.ranges[c.n], env.ranges[c.k]
        across = b.add(
            b.udiv(
                b.mul(self.columns, number(dtype.itemsize)), number(PREFETCH_GROUP * CACHE_LINE)
            ),
            number(1),
        )
        panels = b.udiv(self.columns, number(c.tile.columns))
        iterations = b.mul(b.mul(panels, self.full_tiles), b.udiv(self.depth, number(UNROLL)))
        iterations = b.select(b.icmp_signed("<", iterations, number(1)), number(1), iterations)
        depth = b.select(self.is_last_block, self.block_depth, self._next_depth())
        groups = b.shl(b.mul(across, depth), number(FRACTION))
        more = b.icmp_signed("<", end, env.frame.index(env.s.phase.axes[c.n]))
        has_next = b.or_(b.not_(self.is_last_block), more)
        rate = b.select(has_next, b.add(b.udiv(groups, iterations), number(1)), number(0))
        origin = top.offset(access)
        offset = b.add(origin, b.add(b.mul(low, step), self.column))
        later = b.select(
            self.is_last_block,
            b.add(b.mul(self.k_begin, step), end),
            b.add(b.mul(high, step), self.column),
        )
        later = b.select(has_next, b.add(origin, later), offset)
        inverse = b.add(b.udiv(number(1 << FRACTION), across), number(1))
        base, next_ = (element_address(b, buffer, at, dtype) for at in (offset, later))
        return RightRows(base, next_, step, dtype, across, inverse, rate)

    # ---- the tile --------------------------------------------------------------------------------

    def _sums(
        self, starts: list[Value], column: Value, vectors: int, mask: Value | None
    ) -> list[Value]:
        """Return the sums of a tile, by the packing or the plain loop."""
        b, panel = self.b, (self.at(RIGHT_PART, self._packed_offset(number(0), column)), vectors)
        if self.packing is None:
            return self._accumulate(starts, panel, mask, None)
        ways = list[tuple[ir.Block, list[Value]]]()
        with b.if_else(self.packing) as branches:
            for packed, branch in zip((column, None), branches, strict=True):
                with branch:
                    totals = self._accumulate(starts, panel, mask, packed)
                    ways.append((b.block, totals))
        merged: list[Value] = []
        for values in zip(*(totals for _, totals in ways), strict=True):
            phi = b.phi(values[0].type)
            for (block, _), total in zip(ways, values, strict=True):
                phi.add_incoming(total, block)
            merged.append(phi)
        return merged

    def _accumulate(
        self,
        starts: list[Value],
        panel: tuple[Value, int],
        mask: Value | None,
        packed: Value | None,
    ) -> list[Value]:
        """Return the sums of a tile over this block.

        `panel` is the packed panel and its vectors.  With `packed`, the column to pack from, rows
        are read in place and packed on the way.
        """
        c = self.c
        # Packing stores would keep LLVM from interleaving unrolled positions.
        step = UNROLL if self.iterations_before is not None and packed is None else 1

        def step_at(k: Value, totals: list[Value], nth: int) -> list[Value]:
            if nth == 0:
                self._prefetch_next_block(k, step)
            places = self._panel(k, nth, *panel)
            if packed is None:
                across = [
                    load_vector(self.m, at, c.item.dtype, mask_of_last(mask, v, panel[1]))
                    for v, at in enumerate(places)
                ]
            else:
                across = self._load_row_in_place(k, packed, panel[1])  # not unrolled
            sums = self._add_products(starts, k, nth, across, totals)
            if packed is not None:
                for at, x in zip(places, across, strict=True):
                    store_vector(self.m, at, x, c.item.dtype, None)
            return sums

        done = self._round_down(self.depth, step)
        zeros = [self.m.const(c.item.dtype, 0)] * (len(starts) * panel[1])
        begin = reduction_loop(self.b, (number(0), done), step, step_at, zeros)
        return reduction_loop(self.b, (done, self.depth), 1, step_at, begin) if step > 1 else begin

    def _load_row_in_place(self, k: Value, column: Value, vectors: int) -> list[Value]:
        """Load some vectors of the right operand's row in place."""
        b, rows, vectors_read = self.b, self.right_rows, list[Value]()
        assert rows is not None
        at = b.add(multiple_of_counter(b, k, rows.row_stride), column)
        for v in range(vectors):
            vector_offset = b.add(at, number(v * self.c.tile.lanes))
            address = element_address(b, rows.base, vector_offset, rows.dtype)
            value = load_vector(self.m, address, rows.dtype, None)
            vectors_read.append(apply_casts(self.m, value, self.c.right))
        return vectors_read

    # ---- prefetch --------------------------------------------------------------------------------

    def _iterations_before(self, column: Value, nth: Value) -> Value:
        """Return how many loop iterations full tiles have before the nth tile of a panel."""
        b = self.b
        panel = b.udiv(b.sub(column, self.column), number(self.c.tile.columns))
        tiles = b.add(b.mul(panel, self.full_tiles), nth)
        return b.mul(tiles, b.udiv(self.depth, number(UNROLL)))

    def _prefetch_next_block(self, k: Value, step: int) -> None:
        """Prefetch the share of the next block which falls to `step` positions."""
        if self.iterations_before is None or self.right_rows is None:
            return
        b, rows = self.b, self.right_rows
        nth = b.mul(b.add(self.iterations_before, b.udiv(k, number(UNROLL))), rows.rate)
        nth = b.lshr(nth, number(FRACTION))
        row = b.lshr(b.mul(nth, rows.inverse_groups), number(FRACTION))
        at = b.mul(b.sub(nth, b.mul(row, rows.groups_per_row)), number(PREFETCH_GROUP * CACHE_LINE))
        if step == 1:
            at = b.add(at, b.mul(b.and_(k, number(PREFETCH_GROUP - 1)), number(CACHE_LINE)))
        start = element_address(b, rows.prefetch_base, b.mul(row, rows.row_stride), rows.dtype)
        for line in range(min(step, PREFETCH_GROUP)):
            address = b.add(at, number(line * CACHE_LINE)) if line else at
            address = b.gep(start, [address], source_etype=ir.IntType(8))
            prefetch(b, address, near=True)


__all__ = ["SmallMGemm"]
