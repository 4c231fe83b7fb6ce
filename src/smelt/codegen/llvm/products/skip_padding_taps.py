"""Skip convolution taps which only read padding rows, checking for infinities and NaN.

Rows above and below an image are zeros.  For images of 7 rows they are a tenth of the products, and
add nothing unless they meet a weight which is infinite or NaN.  Such a weight shows in outputs
whose windows are inside the image, so the task checks the outputs of one such row when all is
summed.  If they are not finite, it starts again and skips nothing.

    padding = PaddingTaps(env, c)
    padding.run_checked(run, to, rows)    run(): all sums of a task
    low, high = padding.taps(y)           within it: the taps of an output row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import any_lane, element_address, load_vector
from smelt.codegen.llvm.instructions.indexing import lanes_before_end, number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.products.microkernel import reduction_loop
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan

Value = ir.Value
BIT = ir.IntType(1)


class PaddingTaps:
    """The rows of an image which a product's windows reach, in the current task."""

    def __init__(self, env: Environment, c: NhwcConvPlan) -> None:
        assert c.image_rows is not None
        self.env, self.b, self.c, b = env, env.b, c, env.b
        self.column = c.columns[-2]
        self.inner = c.steps // self.column.taps
        """Loop iterations of a tile for each vertical tap."""
        start, count = env.frame.index(c.image_rows.start), env.frame.index(c.image_rows.count)
        low, high = env.ranges[self.column.axis]
        step, reach = number(self.column.step), (self.column.taps - 1) * self.column.dilation
        before = b.sub(number(0), b.add(b.mul(low, step), start))
        self.before, self.behind = before, b.add(before, count)
        """Rows from the task's first window to the image's first row, and to its end."""
        self.line = self._steps_to(before, self.column.step)
        """The first output row whose window starts inside the image."""
        end = b.add(b.mul(self.line, step), number(reach))
        inside = b.icmp_signed("<", end, self.behind)
        self.can_skip = b.and_(inside, b.icmp_signed("<", self.line, b.sub(high, low)))
        self.keeps_all: Value = BIT(0)
        """Whether nothing is skipped (i1)."""

    def run_checked(self, run: Callable[[], None], to: Value, rows: Sequence[Value]) -> None:
        """Emit `run`, which stores sums at `to`, and repeat it where they are not finite."""
        b = self.b
        before, retry, done = b.block, b.append_basic_block("again"), b.append_basic_block("summed")
        b.branch(retry)
        b.position_at_end(retry)
        repeats = b.phi(BIT)
        repeats.add_incoming(BIT(0), before)
        self.keeps_all = b.or_(repeats, b.not_(self.can_skip))
        run()
        checked_row = element_address(b, to, b.mul(self.line, rows[-2]), self.c.item.dtype)
        (must_repeat,) = b.either(
            b.not_(self.keeps_all), lambda: [self._is_not_finite(checked_row)], [BIT(0)]
        )
        repeats.add_incoming(BIT(1), b.block)
        b.cbranch(must_repeat, retry, done)
        b.position_at_end(done)

    def taps(self, y: Value) -> tuple[Value, Value]:
        """Return the range of a tile's loop iterations for an output row of the task."""
        b, c = self.b, self.column
        first_row = b.mul(y, number(c.step))
        low, high = (
            b.mul(
                self._least(self._steps_to(b.sub(x, first_row), c.dilation), c.taps),
                number(self.inner),
            )
            for x in (self.before, self.behind)
        )
        return (
            b.select(self.keeps_all, number(0), low),
            b.select(self.keeps_all, number(self.c.steps), high),
        )

    def _least(self, n: Value, limit: int) -> Value:
        return self.b.minimum(n, number(limit))

    def _steps_to(self, n: Value, by: int) -> Value:
        """Return how many steps reach a distance, rounded up; 0 if it is negative."""
        b = self.b
        n = b.maximum(n, number(0))
        return n if by == 1 else b.udiv(b.add(n, number(by - 1)), number(by))

    def _is_not_finite(self, row: Value) -> Value:
        """Return whether an output of a pixel is not finite (i1)."""
        b, env, dtype, lanes = self.b, self.env, self.c.item.dtype, self.c.tile.lanes
        m = LLVMMachine(b, lanes, env.frame.target)
        zero = m.const(dtype, 0)
        low, high = env.ranges[self.c.n]
        columns = b.sub(high, low)

        def add_vector(k: Value, sums: list[Value], _: int) -> list[Value]:
            at = b.mul(k, number(lanes))
            mask = lanes_before_end(b, b.sub(columns, at), lanes)
            outputs = load_vector(m, element_address(b, row, at, dtype), dtype, mask)
            return [m.add(sums[0], m.mul(outputs, zero))]

        count = b.udiv(b.add(columns, number(lanes - 1)), number(lanes))
        (total,) = reduction_loop(b, (number(0), count), 1, add_vector, [zero])
        return any_lane(b, b.fcmp_unordered("uno", total, total))
