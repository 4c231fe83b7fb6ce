"""Lines of rows that a tile asks memory for in its course.

What is read beside a tile's sums, and the lines of what is made of them, are two lines of each of a
dozen rows.  Asked for all at once they take all places that the first cache has for lines under
way, and the tile waits for memory before it has begun: asked for one by one, what is added to 512 x
3072 sums of 768 positions costs 0 to 5 % of the whole less.

    course = PrefetchStream(b, first, step, (12, 2), near=False, written=False)
    course.begin(depth)              before a loop over so many summed positions
    ask_in_course(b, [course], k)    in it
    course.at_once()                 instead
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import prefetch
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.counting import times
from smelt.codegen.llvm.instructions.indexing import number

Value = ir.Value
FRACTION = 16
"""Bits of what is asked for at each position that are less than a line."""
EVERY = 16
"""Positions of which one asks: asking at each took 6 % of the time of sums that are long."""


def ask_in_course(b: ir.IRBuilder, courses: Sequence[PrefetchStream], k: Value) -> None:
    """Asks for the lines that fall to a position, if it is one of those that ask."""
    if not courses:
        return
    with b.if_then(b.icmp_signed("==", b.and_(k, number(EVERY - 1)), number(0))):
        for course in courses:
            course.ask(k)


class PrefetchStream:
    """Lines from an address on: of so many rows, a step of bytes apart, so many in each; to be read
    or `written`, in the first cache (`near`) or in the second."""

    def __init__(
        self,
        b: ir.IRBuilder,
        first: Value,
        step: Value,
        shape: tuple[int, int],
        *,
        near: bool,
        written: bool,
    ) -> None:
        self.b, self.first, self.step = b, first, step
        (self.rows, self.lines), self.near, self.written = shape, near, written

    def begin(self, depth: Value) -> None:
        """Fixes how much of a line falls to each of so many positions; asks for all lines now where
        there are too few positions."""
        b, count = self.b, self.rows * self.lines
        least = number(count * EVERY)
        short = b.icmp_signed("<", depth, least)
        with b.if_then(short):
            self.at_once()
        self.rate = b.udiv(number(count << FRACTION), b.select(short, least, depth))

    def ask(self, k: Value) -> None:
        """Asks for the line that falls to a position."""
        b = self.b
        nth = b.lshr(times(b, k, self.rate), number(FRACTION))
        self._ask(b.udiv(nth, number(self.lines)), b.urem(nth, number(self.lines)))

    def at_once(self) -> None:
        """Asks for all of them."""
        for row in range(self.rows):
            for line in range(self.lines):
                self._ask(number(row), number(line))

    def _ask(self, row: Value, line: Value) -> None:
        b = self.b
        at = b.add(b.mul(row, self.step), b.mul(line, number(LINE)))
        address = b.gep(self.first, [at], source_etype=ir.IntType(8))
        prefetch(b, address, near=self.near, written=self.written)


__all__ = ["PrefetchStream", "ask_in_course"]
