"""A product of few rows: a wide one that has no time to pack what it multiplies but a few times.

    for 32 columns:
        for the first 12 rows:   for each line k of the right operand: packs it, and multiplies it
        for other rows:          multiplies the packed panel; asks memory for the next panel's lines

With 64 rows a panel is multiplied six times, and packing it by itself takes as long as two of them:
lines of 32 columns lie far apart, and the processor foresees none of them.  So whole tiles of a
panel ask for the next one's lines meanwhile, two rows of it in a round at most.  Where the right
operand is computed, or lies along the summed axis, it is packed before, as for a wide product.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

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

Value = Any
AHEAD = 24
"""Lines of a panel that nobody asked for between the one that is packed and the one asked for."""
UNROLLED = 4
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
    """Rows of the next panel to ask for with each summed position of a whole tile."""


class FewEmitter(TallEmitter):
    """One product of few rows in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: Tall) -> None:
        super().__init__(home, nest, c)
        self.lines: Lines | None = None
        self.packs = False
        """Whether the tile at hand packs what it multiplies."""
        self.tiles: Value = None
        """How many whole tiles the rows have."""
        self.asks: Value = None
        """Of a whole tile: how many positions those before it in this panel multiplied."""

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
        later = b.sub(self.tiles, number(1))  # whole tiles behind the one that packs
        later = b.select(b.icmp_signed("<", later, number(1)), number(1), later)
        rate = b.udiv(b.add(number(1 << FRACTION), later), later)
        return Lines(base, step, dtype, each, rate)

    # ---- rows ------------------------------------------------------------------------------------

    def _results(self, low: Value, high: Value) -> None:
        """Panel by panel, all rows of each; then columns beside whole panels."""
        b, c, home = self.b, self.c, self.home
        full, _, lower, _ = c.heights
        ends = self._ends(low, high)

        def tile(row: Value, size: int, at: Value) -> None:
            self.asks = None
            if size == full and self.lines is not None:
                before = b.sub(b.udiv(b.sub(row, low), number(full)), number(1))
                self.asks = b.mul(before, self.depth)
            self._tile(row, size)(at, c.tile.vectors, None)

        def panel(at: Value) -> None:
            first = low
            if self.lines is not None:
                first = b.add(low, number(full))
                first = b.select(b.icmp_signed("<=", first, high), first, low)
                with b.if_then(b.icmp_signed("<", low, first)):
                    self.packs = True
                    tile(low, full, at)
                    self.packs = False
            for size, (start, end) in zip(c.heights, pairwise((first, *ends)), strict=True):
                home.loop(start, end, size, lambda row, size=size: tile(row, size, at))

        (begin, _), wide = home.ranges[c.n], c.tile.columns
        home.loop(begin, b.add(begin, self._whole(self.columns, wide)), wide, panel)
        self.asks = None
        home.loop(low, ends[2], lower, lambda row: self._rows(row, lower, "rest"))
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

    def _unrolled(self, height: int) -> int:
        return UNROLLED if height == self.c.tile.rows and not self.packs else 1

    def _line(
        self, k: Value, column: Value, vectors: int, mask: Value | None
    ) -> list[Value]:  # fmt: skip
        if not self.packs or self.lines is None:
            return super()._line(k, column, vectors, mask)
        b, lines, found = self.b, self.lines, list[Value]()
        at = b.add(b.mul(k, lines.apart), column)
        self._fetch(lines, b.add(at, b.mul(number(AHEAD), lines.apart)), lines.each)
        for v, place in enumerate(self._panel(k, column, vectors)):
            there = b.add(at, number(v * self.c.tile.lanes))
            address = element_address(b, lines.base, there, lines.dtype)
            value = load_vector(self.m, address, lines.dtype, None)
            found.append(converted(self.m, value, self.c.right))
            store_vector(self.m, place, found[-1], self.c.item.dtype, None)
        return found

    def _ask(self, starts: list[Value], k: Value, column: Value) -> None:
        """Asks for this round's share of the next panel's lines.  Rows of the left operand stay in
        cache from panel to panel."""
        if self.asks is None or self.packs or self.lines is None:
            return
        b, lines = self.b, self.lines
        row = b.lshr(b.mul(b.add(self.asks, k), lines.rate), number(FRACTION))
        at = b.add(b.mul(row, lines.apart), b.add(column, number(self.c.tile.columns)))
        for nth in range(UNROLLED // 2):
            self._fetch(
                lines, b.add(at, b.mul(number(nth), lines.apart)) if nth else at, lines.each
            )

    def _fetch(self, lines: Lines, at: Value, count: int) -> None:
        for line in range(count):
            there = self.b.add(at, number(line * LINE // lines.dtype.itemsize))
            prefetch(self.b, element_address(self.b, lines.base, there, lines.dtype))


__all__ = ["FewEmitter"]
