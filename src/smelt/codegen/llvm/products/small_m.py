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
from typing import TYPE_CHECKING, Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.counting import times
from smelt.codegen.llvm.instructions.indexing import first_lanes, number, opaque
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.products.block_sums import with_before
from smelt.codegen.llvm.products.k_blocked import KBlockedGemm
from smelt.codegen.llvm.products.tall_skinny import last_of
from smelt.codegen.llvm.products.tall_skinny_packing import converted
from smelt.codegen.llvm.products.tile_loops import rounds
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.operands import load_of
from smelt.codegen.llvm.schedule.tall_skinny import TallSkinnyPlan
from smelt.codegen.llvm.scratch.workspace import RIGHT_PART
from smelt.dataclass import dataclass
from smelt.types.dtype import DType

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
UNROLLED = 4
"""Positions along k per iteration of a full tile's loop."""
FRACTION = 16
"""Fraction bits of fixed-point numbers: lines prefetched per iteration, 1 / groups per row."""
TOGETHER = 4
"""Neighbouring cache lines prefetched together, which memory delivers faster."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A block of a right operand stored in rows, from the task's first column."""

    base: Value
    later: Value
    """Address from which to prefetch."""
    apart: Value
    """Elements between rows."""
    dtype: DType
    across: Value
    """Groups of neighbouring cache lines per row."""
    inverse: Value
    """1 / `across`, fixed point."""
    rate: Value
    """Groups to prefetch per iteration of a full tile, fixed point."""


class SmallMGemm(KBlockedGemm):
    """Emits one small-M product of the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: TallSkinnyPlan) -> None:
        super().__init__(home, nest, c)
        self.lines: Lines | None = None
        self.whole = number(0)
        """Columns which tiles pack on first use, panel by panel in the same buffer."""
        self.packing: Value | None = None
        """For a full tile: whether it is the first one, which packs what it multiplies."""
        self.tiles = number(0)
        """Number of full-height tiles."""
        self.before: Value | None = None
        """For a full tile: loop iterations of the tiles before it."""

    def _block(self) -> None:
        """Emit one block of k."""
        home, b, c = self.home, self.b, self.c
        low, high = home.ranges[c.m]
        self.tiles = b.udiv(b.sub(self._ends(low, high)[0], low), number(c.tile.rows))
        self.lines = self._locate_rows()
        self._pack_right()
        self._locate_left()
        if c.leader is None:
            self.pack(self.nest.packs[0])
        self.top = home.open(self.nest, Scope(home.top))
        self._set_row_strides()
        self._results(low, high)

    # ---- rows ------------------------------------------------------------------------------------

    def _results(self, low: Value, high: Value) -> None:
        """Emit panel by panel, all rows of each; then the columns past the full panels."""
        b, c, home = self.b, self.c, self.home
        full, ends = c.heights[0], self._ends(low, high)

        def tile(row: Value, size: int, at: Value) -> None:
            self.before = self.packing = None
            if size == full and self.lines is not None:
                self.before = self._iterations_before(at, b.udiv(b.sub(row, low), number(full)))
                self.packing = b.icmp_signed("==", row, low)
            self._tile(row, size)(at, c.tile.vectors, None)

        def panel(at: Value) -> None:
            self._select_range(at)
            for size, (start, end) in zip(c.heights, pairwise((low, *ends)), strict=True):
                home.loop(start, end, size, lambda row, size=size: tile(row, size, at))
            self._epilogue_split_panel(at)

        (begin, _), panel_columns = home.ranges[c.n], c.tile.columns
        panels_end = b.add(begin, self._round_down(self.columns, panel_columns))
        home.loop(begin, panels_end, panel_columns, panel)
        self.before = self.packing = None
        self._select_range(panels_end)
        self._edge_columns(low, ends[2])
        home.loop(ends[2], high, 1, lambda row: self._rows(row, 1, "rest"))
        self._epilogue_split_panel(panels_end)
        if c.late and not c.kept:
            with b.if_then(self.final):
                home.loop(low, high, 1, self._epilogue_row)

    def _select_range(self, column: Value) -> None:
        """Select the output range of a panel's columns, once for all its tiles."""
        has_ranges = self.into.groups and not self.c.late
        self.aimed = self.into.aimed(column, self._end(column), self.top) if has_ranges else None

    def _end(self, column: Value) -> Value:
        """Return the end of a panel, clamped to the task's columns."""
        b, high = self.b, self.home.ranges[self.c.n][1]
        end = b.add(column, number(self.c.tile.columns))
        return b.select(b.icmp_signed("<", end, high), end, high)

    def _epilogue_split_panel(self, column: Value) -> None:
        """Emit the epilogue of a panel which spans several output ranges, from scratch."""
        b, c, home, aimed = self.b, self.c, self.home, self.aimed
        if aimed is None:
            return
        self.aimed, (low, high), end = None, home.ranges[c.m], self._end(column)

        def vector(row: Value, at: Value) -> None:
            total = load_vector(self.m, self._sum_address(row, at), c.item.dtype, None)
            mask = first_lanes(b, opaque(b, b.sub(end, at)), c.tile.lanes)
            self._epilogue_vector(self._places(row, 1)[0], at, mask, total)

        with b.if_then(b.and_(self.final, b.not_(aimed.inside))):
            home.loop(
                low,
                high,
                1,
                lambda row: home.loop(column, end, c.tile.lanes, lambda at: vector(row, at)),
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
        b, c, dtype = self.b, self.c, self.c.item.dtype
        starts = self._starts(row, count)

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            sum_places = self._sum_places(row, at, count, vectors)
            totals = self._sums(starts, b.sub(at, self.column), vectors, mask)
            totals = with_before(self.m, sum_places, dtype, totals, self.fresh)
            if c.late:
                self._store_sums(sum_places, totals)
                return
            read = self.final if self.aimed is None else b.and_(self.final, self.aimed.inside)
            with b.if_else(read) as (last, earlier):
                with last:
                    self._epilogue_full_tile(row, count, at, mask, totals)
                with earlier:
                    self._store_sums(sum_places, totals)

        return columns

    def _starts(self, row: Value, count: int) -> list[Value]:
        if self.c.across:
            return super()._starts(row, count)
        b = self.b
        at = b.mul(b.sub(row, self.first), number(self.c.pitch))
        first = element_address(b, self.base, at, self.stored)
        return [
            element_address(b, first, number(i * self.c.pitch), self.stored) for i in range(count)
        ]

    # ---- the right operand -----------------------------------------------------------------------

    def _pack_right(self) -> None:
        """Pack what tiles do not: the columns past the full panels, or everything."""
        b, c, home = self.b, self.c, self.home
        columns = home.ranges[c.n]
        self.whole = number(0)
        if self.lines is not None:
            has_full_tiles = b.icmp_signed("<", number(0), self.tiles)
            self.whole = b.select(
                has_full_tiles, self._round_down(self.columns, c.tile.columns), number(0)
            )
        home.ranges[c.n] = b.add(columns[0], self.whole), columns[1]
        super()._pack_right()
        home.ranges[c.n] = columns

    def _packed_offset(self, k: Value, column: Value) -> Value:
        """Return the packed position of an element.

        The panel currently multiplied comes first, then the columns packed before the tiles.
        """
        b = self.b
        if self.lines is None:
            return super()._packed_offset(k, column)
        now = b.icmp_signed("<", column, self.whole)
        at = b.add(b.sub(column, self.whole), number(self.c.tile.columns))
        inside = b.and_(column, number(self.c.tile.columns - 1))
        return super()._packed_offset(k, b.select(now, inside, at))

    def _locate_rows(self) -> Lines | None:
        """Locate the right operand's rows and plan their prefetch.

        None if it is not stored in rows.

        Prefetched are the rows of the next block, or of the next task's columns.
        """
        b, c, home = self.b, self.c, self.home
        access, stride = load_of(c.right), c.lines()
        if access is None or stride is None:
            return None
        top, dtype = home.open(self.nest.packs[1], Scope(home.top)), home.home.dtypes[access.buffer]
        step, buffer = home.index(stride, top), home.home.buffers[access.buffer]
        (_, end), (low, high) = home.ranges[c.n], home.ranges[c.k]
        across = b.add(
            b.udiv(b.mul(self.columns, number(dtype.itemsize)), number(TOGETHER * LINE)), number(1)
        )
        panels = b.udiv(self.columns, number(c.tile.columns))
        iterations = b.mul(b.mul(panels, self.tiles), b.udiv(self.depth, number(UNROLLED)))
        iterations = b.select(b.icmp_signed("<", iterations, number(1)), number(1), iterations)
        depth = b.select(self.final, self.each, self._next_depth())
        groups = b.shl(b.mul(across, depth), number(FRACTION))
        more = b.icmp_signed("<", end, home.home.index(home.s.phase.axes[c.n]))
        has_next = b.or_(b.not_(self.final), more)
        rate = b.select(has_next, b.add(b.udiv(groups, iterations), number(1)), number(0))
        origin = top.offset(access)
        offset = b.add(origin, b.add(b.mul(low, step), self.column))
        later = b.select(
            self.final, b.add(b.mul(self.low, step), end), b.add(b.mul(high, step), self.column)
        )
        later = b.select(has_next, b.add(origin, later), offset)
        inverse = b.add(b.udiv(number(1 << FRACTION), across), number(1))
        base, next_ = (element_address(b, buffer, at, dtype) for at in (offset, later))
        return Lines(base, next_, step, dtype, across, inverse, rate)

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
        step = UNROLLED if self.before is not None and packed is None else 1

        def step_at(k: Value, totals: list[Value], nth: int) -> list[Value]:
            if nth == 0:
                self._prefetch_next_block(k, step)
            places = self._panel(k, nth, *panel)
            if packed is None:
                across = [
                    load_vector(self.m, at, c.item.dtype, last_of(mask, v, panel[1]))
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
        begin = rounds(self.b, (number(0), done), step, step_at, zeros)
        return rounds(self.b, (done, self.depth), 1, step_at, begin) if step > 1 else begin

    def _load_row_in_place(self, k: Value, column: Value, vectors: int) -> list[Value]:
        """Load some vectors of the right operand's row in place."""
        b, rows, vectors_read = self.b, self.lines, list[Value]()
        assert rows is not None
        at = b.add(times(b, k, rows.apart), column)
        for v in range(vectors):
            vector_offset = b.add(at, number(v * self.c.tile.lanes))
            address = element_address(b, rows.base, vector_offset, rows.dtype)
            value = load_vector(self.m, address, rows.dtype, None)
            vectors_read.append(converted(self.m, value, self.c.right))
        return vectors_read

    # ---- prefetch --------------------------------------------------------------------------------

    def _iterations_before(self, column: Value, nth: Value) -> Value:
        """Return how many loop iterations full tiles have before the nth tile of a panel."""
        b = self.b
        panel = b.udiv(b.sub(column, self.column), number(self.c.tile.columns))
        tiles = b.add(b.mul(panel, self.tiles), nth)
        return b.mul(tiles, b.udiv(self.depth, number(UNROLLED)))

    def _prefetch_next_block(self, k: Value, step: int) -> None:
        """Prefetch the share of the next block which falls to `step` positions."""
        if self.before is None or self.lines is None:
            return
        b, rows = self.b, self.lines
        nth = b.mul(b.add(self.before, b.udiv(k, number(UNROLLED))), rows.rate)
        nth = b.lshr(nth, number(FRACTION))
        row = b.lshr(b.mul(nth, rows.inverse), number(FRACTION))
        at = b.mul(b.sub(nth, b.mul(row, rows.across)), number(TOGETHER * LINE))
        if step == 1:
            at = b.add(at, b.mul(b.and_(k, number(TOGETHER - 1)), number(LINE)))
        start = element_address(b, rows.later, b.mul(row, rows.apart), rows.dtype)
        for line in range(min(step, TOGETHER)):
            address = b.add(at, number(line * LINE)) if line else at
            address = b.gep(start, [address], source_etype=ir.IntType(8))
            prefetch(b, address, near=True)


__all__ = ["SmallMGemm"]
