"""Taps that reach no line of an image, which a product over windows leaves out.

Above and below an image are zeros.  Of lines of 7 they are a tenth of what is multiplied, and add
nothing, unless they meet a weight that is infinite or no number.  Such a weight shows in results
whose windows lie inside, so a task looks at the results of one such line when all is summed; where
they are not finite, it begins again and leaves nothing out.

    margins = Margins(home, c)
    margins.around(run, to, rows)        run(): all of a task's sums
    low, high = margins.taps(y)          in it: the taps of a line
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import any_lane, element_address, load_vector
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.products.tile_loops import rounds
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
BIT = ir.IntType(1)


class Margins:
    """The lines of an image that a product's windows reach, in the task at hand."""

    def __init__(self, home: NestEmitter, c: NhwcConvPlan) -> None:
        assert c.lines is not None
        self.home, self.b, self.c, b = home, home.b, c, home.b
        self.column = c.columns[-2]
        self.inner = c.steps // self.column.taps
        """Turns of a tile's loop for each tap of a line."""
        start, count = home.home.index(c.lines.start), home.home.index(c.lines.count)
        low, high = home.ranges[self.column.axis]
        step, reach = number(self.column.step), (self.column.taps - 1) * self.column.dilation
        before = b.sub(number(0), b.add(b.mul(low, step), start))
        self.before, self.behind = before, b.add(before, count)
        """Places from the first window of the task to the image's first line, and behind its
        last."""
        self.line = self._times(before, self.column.step)
        """The first line of results above whose windows no tap is outside."""
        end = b.add(b.mul(self.line, step), number(reach))
        inside = b.icmp_signed("<", end, self.behind)
        self.some = b.and_(inside, b.icmp_signed("<", self.line, b.sub(high, low)))
        self.whole: Value = BIT(0)
        """Whether nothing is left out."""

    def around(self, run: Callable[[], None], to: Value, rows: Sequence[Value]) -> None:
        """Runs the sums, which go to an address, and once more where they are not finite."""
        b = self.b
        before, again, done = b.block, b.append_basic_block("again"), b.append_basic_block("summed")
        b.branch(again)
        b.position_at_end(again)
        known = b.phi(BIT)
        known.add_incoming(BIT(0), before)
        self.whole = b.or_(known, b.not_(self.some))
        run()
        where = element_address(b, to, b.mul(self.line, rows[-2]), self.c.item.dtype)
        summed = b.block
        with b.if_then(b.not_(self.whole)):
            found, looked = self._is_odd(where), b.block
        odd = b.phi(BIT)
        odd.add_incoming(BIT(0), summed)
        odd.add_incoming(found, looked)
        known.add_incoming(BIT(1), b.block)
        b.cbranch(odd, again, done)
        b.position_at_end(done)

    def taps(self, y: Value) -> tuple[Value, Value]:
        """The first of a tile's turns in a line of the task's results, and the one behind its
        last."""
        b, c = self.b, self.column
        moved = b.mul(y, number(c.step))
        low, high = (
            b.mul(self._least(self._times(b.sub(x, moved), c.dilation), c.taps), number(self.inner))
            for x in (self.before, self.behind)
        )
        return (
            b.select(self.whole, number(0), low),
            b.select(self.whole, number(self.c.steps), high),
        )

    def _least(self, n: Value, most: int) -> Value:
        return self.b.select(self.b.icmp_signed("<", n, number(most)), n, number(most))

    def _times(self, n: Value, by: int) -> Value:
        """How many steps reach so far, 0 where that is behind."""
        b = self.b
        n = b.select(b.icmp_signed("<", n, number(0)), number(0), n)
        return n if by == 1 else b.udiv(b.add(n, number(by - 1)), number(by))

    def _is_odd(self, where: Value) -> Value:
        """Whether one of the results of a place is not finite."""
        b, home, dtype, lanes = self.b, self.home, self.c.item.dtype, self.c.tile.lanes
        m = LLVMMachine(b, lanes, home.home.target)
        zero = m.const(dtype, 0)
        low, high = home.ranges[self.c.n]
        columns = b.sub(high, low)

        def one(k: Value, sums: list[Value], _: int) -> list[Value]:
            at = b.mul(k, number(lanes))
            mask = b.icmp_signed("<", iota(lanes), splat(b, b.sub(columns, at), lanes))
            found = load_vector(m, element_address(b, where, at, dtype), dtype, mask)
            return [m.add(sums[0], m.mul(found, zero))]

        count = b.udiv(b.add(columns, number(lanes - 1)), number(lanes))
        (total,) = rounds(b, (number(0), count), 1, one, [zero])
        return any_lane(b, b.fcmp_unordered("uno", total, total))


__all__ = ["Margins"]
