"""Prefetch the next panel of a prepacked right operand, shared among the tiles.

A panel is contiguous and as long as a block of k.  The first tile of a column would read it at the
speed of L3, while the others find it in L2.  So all tiles of a panel prefetch the next one, each
its share:

    panel = PanelAhead(home, c, right, (rows, depth), last)
    begin = panel.begin(row, column, height)    per tile: its share
    panel.ask(begin, k)                         per k: a cache line
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, prefetch
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import multiple_of_counter
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.schedule.contract import Contraction

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.products.microkernel import OperandLayout

Value = ir.Value
PanelShare = tuple[Value, Value, Value]
"""A tile's share: the next panel, lines prefetched by the tiles above, lines per position.

Both counts are fixed point.
"""
FRACTION = 16
"""Fraction bits of the number of lines per position."""


class PanelPrefetcher:
    """Prefetches of one contraction's tiles.

    `block` is the block's number of rows and of positions along k, `last` whether it is the last
    one along k.
    """

    def __init__(
        self,
        home: NestEmitter,
        c: Contraction,
        right: OperandLayout,
        block: tuple[Value, Value],
        last: Value | None,
    ) -> None:
        self.home, self.b, self.c, self.right = home, home.b, c, right
        (self.rows, self.depth), self.last = block, last

    def begin(self, row: Value, column: Value, height: int) -> PanelShare:
        """Return the share of a tile."""
        b, c = self.b, self.c
        lines = -(-c.tile.columns * c.unit.itemsize // CACHE_LINE)
        tiles, nth = (b.udiv(x, number(height)) for x in (self.rows, row))
        rate = b.udiv(number(lines << FRACTION), tiles)
        return self._next(column), b.mul(b.mul(nth, self.depth), rate), rate

    def prefetch_at(self, begin: PanelShare, k: Value) -> None:
        """Prefetch the line which falls to a position."""
        b, (panel, before, rate) = self.b, begin
        line = b.lshr(b.add(before, multiple_of_counter(b, k, rate)), number(FRACTION))
        prefetch(b, b.gep(panel, [b.mul(line, number(CACHE_LINE))], source_etype=ir.IntType(8)))

    def _next(self, column: Value) -> Value:
        """Return the address of the panel which follows that of a column.

        After the last column comes the first panel of the next block, or of the next task's
        columns.
        """
        b, home, c = self.b, self.home, self.c
        assert self.right.panels is not None
        access, top = self.right.panels
        (low, high), (start, end) = home.ranges[c.n], home.ranges[c.k]
        next_column, k = b.add(b.add(low, column), number(c.tile.columns)), start
        if self.last is not None and c.n in home.s.block:
            is_past = b.and_(b.icmp_signed(">=", next_column, high), b.not_(self.last))
            next_column, k = b.select(is_past, low, next_column), b.select(is_past, end, start)
        at = home.index(access.offset, Scope(top, {c.n: next_column, c.k: k}))
        at = at if c.group_size == 1 else b.udiv(at, number(c.group_size))
        return element_address(b, self.right.base, at, c.unit)


__all__ = ["PanelPrefetcher"]
