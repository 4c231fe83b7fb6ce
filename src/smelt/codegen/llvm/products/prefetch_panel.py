"""What tiles ask memory for where a right operand lies in panels: the panel that follows.

A panel is a run of memory as long as a block of the sum is deep, which the first tile of a column
would read no faster than L3 gives it while the others find it in L2.  So all tiles of a panel ask
for the next one, each for its part:

    panel = PanelAhead(home, c, right, (rows, depth), last)
    begin = panel.begin(row, column, height)    of a tile: where its part begins
    panel.ask(begin, k)                         for each k: a line
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, prefetch
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.counting import times
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.schedule.contract import Contraction

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.products.microkernel import Place

Value = ir.Value
Part = tuple[Value, Value, Value]
"""Of a tile: the next panel, and in fractions of lines how many the tiles above have asked for and
how many each position does."""
FRACTION = 16
"""Bits behind the point of how many lines are asked for with each summed position."""


class PanelAhead:
    """The asks of one contraction's tiles, of so many rows and summed positions in the block at
    hand, which is the `last` one along the sum or not."""

    def __init__(
        self,
        home: NestEmitter,
        c: Contraction,
        right: Place,
        block: tuple[Value, Value],
        last: Value | None,
    ) -> None:
        self.home, self.b, self.c, self.right = home, home.b, c, right
        (self.rows, self.depth), self.last = block, last

    def begin(self, row: Value, column: Value, height: int) -> Part:
        """What falls to a tile."""
        b, c = self.b, self.c
        lines = -(-c.tile.columns * c.unit.itemsize // LINE)
        tiles, nth = (b.udiv(x, number(height)) for x in (self.rows, row))
        rate = b.udiv(number(lines << FRACTION), tiles)
        return self._next(column), b.mul(b.mul(nth, self.depth), rate), rate

    def ask(self, begin: Part, k: Value) -> None:
        """Asks for the line that falls to a position."""
        b, (panel, before, rate) = self.b, begin
        line = b.lshr(b.add(before, times(b, k, rate)), number(FRACTION))
        prefetch(b, b.gep(panel, [b.mul(line, number(LINE))], source_etype=ir.IntType(8)))

    def _next(self, column: Value) -> Value:
        """The panel beside the one of a column; behind the last one that of the first column in the
        next block, or that of the next task's columns."""
        b, home, c = self.b, self.home, self.c
        assert self.right.panels is not None
        access, top = self.right.panels
        (low, high), (start, end) = home.ranges[c.n], home.ranges[c.k]
        beside, k = b.add(b.add(low, column), number(c.tile.columns)), start
        if self.last is not None and c.n in home.s.block:
            behind = b.and_(b.icmp_signed(">=", beside, high), b.not_(self.last))
            beside, k = b.select(behind, low, beside), b.select(behind, end, start)
        at = home.index(access.offset, Scope(top, {c.n: beside, c.k: k}))
        at = at if c.together == 1 else b.udiv(at, number(c.together))
        return element_address(b, self.right.base, at, c.unit)


__all__ = ["PanelAhead"]
