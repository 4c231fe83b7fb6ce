"""Prefetch cache lines of several rows at a limited rate, during a tile.

The epilogue of a tile reads and writes two cache lines of each of a dozen rows.  Prefetched at once
they would occupy all line fill buffers of L1, and the tile would stall before it begins; so they
are spread over the tile's loop.

    course = PrefetchStream(b, first, step, (12, 2), near=False, written=False)
    course.begin(depth)              before a loop over so many positions along k
    ask_in_course(b, [course], k)    within it
    course.at_once()                 instead
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import prefetch
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.instructions.counting import multiple_of_counter
from smelt.codegen.llvm.instructions.indexing import number

Value = ir.Value
FRACTION = 16
"""Fraction bits of the number of lines per position."""
INTERVAL = 16
"""Positions per prefetch: prefetching at each would slow long sums."""


def prefetch_in_loop(b: ir.IRBuilder, courses: Sequence[PrefetchStream], k: Value) -> None:
    """Prefetch the lines which fall to position k, once every `INTERVAL` positions."""
    if not courses:
        return
    with b.if_then(b.icmp_signed("==", b.and_(k, number(INTERVAL - 1)), number(0))):
        for course in courses:
            course.prefetch_at(k)


class PrefetchStream:
    """Cache lines of some rows to prefetch, from an address on.

    `step` is in bytes between rows, `shape` the numbers of rows and of lines per row.  `near`
    prefetches into L1 rather than L2, `written` for writing.
    """

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
        """Set the rate for a loop over `depth` positions.

        If there are too few positions, prefetch all lines now.
        """
        b, count = self.b, self.rows * self.lines
        least = number(count * INTERVAL)
        short = b.icmp_signed("<", depth, least)
        with b.if_then(short):
            self.prefetch_all()
        self.rate = b.udiv(number(count << FRACTION), b.select(short, least, depth))

    def prefetch_at(self, k: Value) -> None:
        """Prefetch the line which falls to a position."""
        b = self.b
        nth = b.lshr(multiple_of_counter(b, k, self.rate), number(FRACTION))
        self._prefetch_line(b.udiv(nth, number(self.lines)), b.urem(nth, number(self.lines)))

    def prefetch_all(self) -> None:
        """Prefetch all lines."""
        for row in range(self.rows):
            for line in range(self.lines):
                self._prefetch_line(number(row), number(line))

    def _prefetch_line(self, row: Value, line: Value) -> None:
        b = self.b
        at = b.add(b.mul(row, self.step), b.mul(line, number(CACHE_LINE)))
        address = b.gep(self.first, [at], source_etype=ir.IntType(8))
        prefetch(b, address, near=self.near, written=self.written)


__all__ = ["PrefetchStream", "prefetch_in_loop"]
