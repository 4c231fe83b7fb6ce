"""A product of few rows: a wide one that has no time to pack what it multiplies but a few times.

    for 32 columns:
        for the first 12 rows:   for each line k of the right operand: packs it, and multiplies it
        for other rows:          multiplies the packed panel
        all of them:             ask memory for lines of panels to come

With 64 rows a panel is multiplied six times, and packing it by itself takes as long as two of them:
lines of 32 columns lie far apart, and the processor foresees none of them.  So whole tiles of two
panels ask for the next two's lines meanwhile, row by row: memory gives a run of four lines sooner
than two times two.  Where the right operand is computed, or lies along the summed axis, it is
packed before, as for a wide product.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.ahead import LINE
from smelt.codegen.llvm.contract import load_of
from smelt.codegen.llvm.indexing import number
from smelt.codegen.llvm.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.nests import Nest
from smelt.codegen.llvm.scope import Scope
from smelt.codegen.llvm.tall import Tall
from smelt.codegen.llvm.tall_product import TallEmitter, converted
from smelt.dataclass import dataclass
from smelt.types.dtype import DType

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
AHEAD = 24
"""Lines of a panel that nobody asked for between the one that is packed and the one asked for."""
TOGETHER = 2
"""Panels whose lines are asked for row by row, while those before them are multiplied: a power of
two."""
UNROLLED = 2
"""Positions that the loop of a whole tile takes at once."""
FRACTION = 16
"""Bits behind the point of how many lines are asked for with each one that is multiplied."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A right operand that lies in rows, from the task's first column on."""

    base: Value
    apart: Value
    """Elements between its rows."""
    dtype: DType
    each: int
    """Lines of a cache in a row of a panel."""
    rate: Value
    """Rows of a panel to ask for with each summed position of a whole tile."""


class FewEmitter(TallEmitter):
    """One product of few rows in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: Tall) -> None:
        super().__init__(home, nest, c)
        self.lines: Lines | None = None
        self.packing: Value | None = None
        """Of a whole tile: whether it is the first one, which packs what it multiplies."""
        self.packs = False
        """Whether what is emitted is for that one."""
        self.tiles = number(0)
        """How many whole tiles the rows have."""
        self.asks: tuple[Value, Value] | None = None
        """Of a whole tile: how many positions those before it multiplied in panels together, and
        the first column of the next ones."""

    def _pack_right(self) -> None:
        """What tiles do not pack: columns beside whole panels, or everything."""
        b, c, home = self.b, self.c, self.home
        (first, last), columns = home.ranges[c.m], home.ranges[c.n]
        self.tiles = b.udiv(b.sub(self._ends(first, last)[0], first), number(c.tile.rows))
        self.lines = self._lie()
        if self.lines is None:
            super()._pack_right()
            return
        some = b.icmp_signed("<", number(0), self.tiles)
        whole = b.select(some, self._whole(self.columns, c.tile.columns), number(0))
        home.ranges[c.n] = b.add(columns[0], whole), columns[1]
        super()._pack_right()
        home.ranges[c.n] = columns

    def _lie(self) -> Lines | None:
        """How the right operand lies in rows; None if it does not."""
        b, c, home = self.b, self.c, self.home
        access, apart = load_of(c.right), c.lines()
        if access is None or apart is None:
            return None
        top, dtype = home.open(self.nest.packs[1], Scope(home.top)), home.home.dtypes[access.buffer]
        step = home.index(apart, top)
        at = b.add(b.add(top.offset(access), b.mul(home.ranges[c.k][0], step)), self.column)
        base = element_address(b, home.home.buffers[access.buffer], at, dtype)
        each = max(c.tile.columns * dtype.itemsize // LINE, 1)
        asking = b.select(b.icmp_signed("<", self.tiles, number(1)), number(1), self.tiles)
        rate = b.udiv(b.add(number(1 << FRACTION), asking), asking)
        return Lines(base, step, dtype, each, rate)

    # ---- rows ------------------------------------------------------------------------------------

    def _results(self, low: Value, high: Value) -> None:
        """Panel by panel, all rows of each; then columns beside whole panels."""
        b, c, home = self.b, self.c, self.home
        full, ends = c.heights[0], self._ends(low, high)

        def tile(row: Value, size: int, at: Value) -> None:
            self.asks = self.packing = None
            if size == full and self.lines is not None:
                self.asks = self._asks(at, b.udiv(b.sub(row, low), number(full)))
                self.packing = b.icmp_signed("==", row, low)
            self._tile(row, size)(at, c.tile.vectors, None)

        def panel(at: Value) -> None:
            for size, (start, end) in zip(c.heights, pairwise((low, *ends)), strict=True):
                home.loop(start, end, size, lambda row, size=size: tile(row, size, at))

        (begin, _), wide = home.ranges[c.n], c.tile.columns
        home.loop(begin, b.add(begin, self._whole(self.columns, wide)), wide, panel)
        self.asks = self.packing = None
        self._beside(low, ends[2])
        home.loop(ends[2], high, 1, lambda row: self._rows(row, 1, "rest"))
        if c.late:
            home.loop(low, high, 1, self._late)

    def _ends(self, low: Value, high: Value) -> list[Value]:
        """Where the tiles of each height end.  Of low ones each reads a whole panel as well: four
        rows that are left over and a high tile's are two of eight."""
        b, rows = self.b, self.b.sub(high, low)
        full, half, quarter, _ = self.c.heights
        left = b.urem(rows, number(full))
        odd = b.and_(b.icmp_signed(">=", left, number(quarter)),
                     b.icmp_signed("<", left, number(half)))  # fmt: skip
        odd = b.and_(odd, b.icmp_signed(">=", rows, number(2 * full)))
        left = b.select(odd, b.add(left, number(full)), left)
        return [b.sub(high, x) for x in (left, b.urem(left, number(half)),
                                         b.urem(left, number(quarter)), number(0))]  # fmt: skip

    # ---- the right operand -----------------------------------------------------------------------

    def _sums(
        self, starts: list[Value], column: Value, vectors: int, mask: Value | None
    ) -> list[Value]:  # fmt: skip
        """The sums of a tile; what reads them is the same whether they are packed meanwhile."""
        if self.packing is None:
            return super()._sums(starts, column, vectors, mask)
        b, ways = self.b, list[tuple[ir.Block, list[Value]]]()
        with b.if_else(self.packing) as branches:
            for self.packs, branch in zip((True, False), branches, strict=True):
                with branch:
                    totals = super()._sums(starts, column, vectors, mask)
                    ways.append((b.block, totals))
        found: list[Value] = []
        for one in zip(*(totals for _, totals in ways), strict=True):
            met = b.phi(one[0].type)
            for (block, _), total in zip(ways, one, strict=True):
                met.add_incoming(total, block)
            found.append(met)
        return found

    def _unrolled(self, height: int) -> int:
        return UNROLLED if self.asks is not None and not self.packs else 1

    def _line(
        self, k: Value, nth: int, first: Value, column: Value, vectors: int, mask: Value | None
    ) -> list[Value]:  # fmt: skip
        if not self.packs or self.lines is None:
            return super()._line(k, nth, first, column, vectors, mask)
        b, lines, found = self.b, self.lines, list[Value]()
        at = b.add(b.mul(k, lines.apart), column)
        self._fetch(lines, b.add(at, b.mul(number(AHEAD), lines.apart)), lines.each)
        for v, place in enumerate(self._panel(k, nth, first, vectors)):
            there = b.add(at, number(v * self.c.tile.lanes))
            address = element_address(b, lines.base, there, lines.dtype)
            value = load_vector(self.m, address, lines.dtype, None)
            found.append(converted(self.m, value, self.c.right))
            store_vector(self.m, place, found[-1], self.c.item.dtype, None)
        return found

    def _asks(self, column: Value, nth: Value) -> tuple[Value, Value]:
        """What the nth tile of a panel has to know of those before it."""
        b, wide = self.b, self.c.tile.columns
        at = b.sub(column, self.column)
        panel = b.and_(b.udiv(at, number(wide)), number(TOGETHER - 1))
        before = b.mul(b.add(b.mul(panel, self.tiles), nth), self.depth)
        later = b.mul(b.sub(number(TOGETHER), panel), number(wide))
        return before, b.add(at, later)

    def _ask(self, starts: list[Value], k: Value, column: Value) -> None:
        """Asks for this round's share of the lines of the next panels together: one line of a panel
        at most.  Rows of the left operand stay in cache from panel to panel."""
        if self.asks is None or self.lines is None:
            return
        b, lines, (before, first) = self.b, self.lines, self.asks
        at = b.lshr(b.mul(b.add(before, k), lines.rate), number(FRACTION))
        panel = b.mul(b.and_(at, number(TOGETHER - 1)), number(self.c.tile.columns))
        row = b.mul(b.udiv(at, number(TOGETHER)), lines.apart)
        self._fetch(lines, b.add(first, b.add(row, panel)), lines.each)

    def _fetch(self, lines: Lines, at: Value, count: int) -> None:
        for line in range(count):
            there = self.b.add(at, number(line * LINE // lines.dtype.itemsize))
            prefetch(self.b, element_address(self.b, lines.base, there, lines.dtype))


__all__ = ["FewEmitter"]
