"""Stencils over short lines: squares of them are turned in registers on their way in and out.

What is packed is first cleared, margins included, if there are any.  Then each line that is inside
is read by squares, a vector of each position along the axis across, and their columns are stored,
each to its place.  Sums lie as what is packed does, place by place, and are turned back square by
square, without regard to lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.input_tile import Slid
from smelt.codegen.llvm.products.depthwise_packed import DepthwisePacked
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.codegen.llvm.scratch.workspace import RIGHT_PART, SUMS_PART
from smelt.types.expr import product

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


class DepthwiseTransposed(DepthwisePacked):
    """One stencil whose lines are turned, in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: DepthwisePlan) -> None:
        super().__init__(home, nest, c)
        assert c.lines is not None
        self.lines, self.lanes = c.lines, c.tile.lanes
        self.m = LLVMMachine(self.b, self.lanes, home.home.target)

    def run(self) -> None:
        super().run()
        self._turn_back()

    def places(self) -> tuple[Value, dict[str, Value]]:
        axes = tuple(k.axis for k in self.c.columns)
        extents = [*(self.home.s.local[a] for a in axes[:-1]), self.lanes]
        return self.home.storage.at[self.item, SUMS_PART], self.steps(axes, extents)

    # ---- the operand -----------------------------------------------------------------------------

    def pack_lines(self, nest: Nest) -> None:
        home, b, c, lines = self.home, self.b, self.c, self.lines
        if any(lines.inside):
            self._clear()
        low, high = home.ranges[c.lane]
        start = b.add(home.index(lines.start, home.top), b.mul(low, home.home.index(lines.apart)))
        last = b.sub(b.sub(high, low), number(1))  # lanes beyond it read what it reads
        apart = [
            b.mul(
                b.select(b.icmp_signed("<", number(k), last), number(k), last),
                home.home.index(lines.apart),
            )
            for k in range(self.lanes)
        ]
        self._each_line(0, start, number(0), apart)

    def _clear(self) -> None:
        zero = self.m.const(self.c.item.dtype, 0)
        whole = self.home.home.index(product(self.c.packed(self.home.s.local)))
        self.home.loop(
            number(0),
            whole,
            self.lanes,
            lambda at: store_vector(self.m, self.at(RIGHT_PART, at), zero, self.c.item.dtype, None),
        )

    def _span(self, k: int) -> tuple[Value, Value]:
        """Positions of the task along an axis of places that are inside, from and to."""
        b, c = self.b, self.c.columns[k]
        low, high = self.home.ranges[c.axis]
        first = b.mul(low, number(c.step))
        reach = (c.taps - 1) * c.dilation + 1 - c.step
        end = b.add(b.mul(high, number(c.step)), number(reach))
        for before, extent in self.lines.inside[k]:
            begin = number(-before)
            first = b.select(b.icmp_signed("<", first, begin), begin, first)
            behind = b.sub(self.home.home.index(extent), number(before))
            end = b.select(b.icmp_signed("<", behind, end), behind, end)
        return first, end

    def _place(self, c: Slid, at: Value) -> Value:
        """How far a position along an axis of places is from the first packed one, in elements."""
        b = self.b
        here = b.sub(at, b.mul(self.home.ranges[c.axis][0], number(c.step)))
        if c.step == 1:
            return b.mul(here, self.strides[c.place])
        whole, rest = b.udiv(here, number(c.step)), b.urem(here, number(c.step))
        return b.add(b.mul(whole, self.strides[c.place]), b.mul(rest, self.strides[c.rest]))

    def _each_line(self, k: int, start: Value, to: Value, apart: list[Value]) -> None:
        """Packs all lines inside, which the columns from the k-th on walk through."""
        b, home, c = self.b, self.home, self.c.columns[k]
        first, end = self._span(k)
        if k < len(self.c.columns) - 2:
            step = home.home.index(self.lines.steps[k])
            home.loop(
                first,
                end,
                1,
                lambda at: self._each_line(
                    k + 1, b.add(start, b.mul(at, step)), b.add(to, self._place(c, at)), apart
                ),
            )
            return
        half = self.lanes // 2
        few = b.icmp_signed("<=", b.sub(end, first), number(half))

        def line(count: int) -> None:
            home.loop(
                first,
                end,
                count,
                lambda at: self._columns(to, at, end, self._square(start, at, end, apart, count)),
            )

        with b.if_else(few) as (short, long):
            with short:
                line(half)
            with long:
                line(self.lanes)

    def _square(
        self, start: Value, at: Value, end: Value, apart: list[Value], count: int
    ) -> list[Value]:
        """The columns of so many positions of a line, from one on: of a square, or of two halves
        of one side by side, which takes half as long."""
        b, home = self.b, self.home
        dtype = home.home.dtypes[self.lines.buffer]
        left = b.sub(end, at)
        mask = b.icmp_signed("<", iota(count), splat(b, left, count))
        m = LLVMMachine(b, count, home.home.target)
        base = element_address(b, home.home.buffers[self.lines.buffer], b.add(start, at), dtype)
        rows = [load_vector(m, element_address(b, base, far, dtype), dtype, mask) for far in apart]
        if count == self.lanes:
            return transpose(b, rows)
        both = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [*range(self.lanes)])
        return transpose(
            b, [b.shuffle_vector(rows[k], rows[k + count], both) for k in range(count)], halves=2
        )

    def _columns(self, to: Value, at: Value, end: Value, columns: list[Value]) -> None:
        """Stores what follows one another along a line, each to its place.  Lines come in the order
        of their places, so zeros behind the end of one are there before what the next one has;
        unless windows step over places, which are dealt out then by what remains."""
        b, c, dtype = self.b, self.c.columns[-2], self.c.item.dtype
        nowhere = self.home.home.index(product(self.c.packed(self.home.s.local)))
        for k, column in enumerate(columns):
            here = b.add(to, self._place(c, b.add(at, number(k))))
            if any(x.step > 1 for x in self.c.columns):
                inside = b.icmp_signed("<", b.add(at, number(k)), end)
                here = b.select(inside, here, nowhere)
            store_vector(self.m, self.at(RIGHT_PART, here), column, dtype, None)

    # ---- the results -----------------------------------------------------------------------------

    def _turn_back(self) -> None:
        """The sums, from place by place to line by line."""
        home, b, c, dtype = self.home, self.b, self.c, self.c.item.dtype
        outer, *others = c.columns[:-1]
        low, high = home.ranges[outer.axis]
        line = home.home.index(product(home.s.local[k.axis] for k in others))
        whole = home.home.index(product(home.s.local[k.axis] for k in c.columns[:-1]))
        places = b.mul(b.sub(high, low), line)

        def square(at: Value) -> None:
            rows = [
                load_vector(
                    self.m,
                    self.at(SUMS_PART, b.mul(b.add(at, number(k)), number(self.lanes))),
                    dtype,
                    None,
                )
                for k in range(self.lanes)
            ]
            mask = b.icmp_signed("<", iota(self.lanes), splat(b, b.sub(places, at), self.lanes))
            for k, row in enumerate(transpose(b, rows)):
                here = self.at(0, b.add(b.mul(number(k), whole), at))
                store_vector(self.m, here, row, dtype, mask)

        home.loop(number(0), places, self.lanes, square)


__all__ = ["DepthwiseTransposed"]
