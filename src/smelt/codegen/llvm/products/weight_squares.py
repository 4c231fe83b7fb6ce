"""Packs weights whose taps lie behind one another in memory, a square of them at a time.

Weights w[m,c,u,v] lie as one run for each m, all taps of a channel and then those of the next one.
Tiles read panels where what lies side by side is m:

    memory    w[m]     c0t0 c0t1 .. c0t8 c1t0 ..      as many runs as a vector has lanes
    scratch   t0       c0: m m m .., c1: m m m .., ..      then t1, and so on

Whole vectors are read of neighbouring runs and turned in registers.  A table says to which line of
the panel each position of a run belongs.  Runs are too short for the processor to foresee the next
ones, so these are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.products.tall_packer import converted
from smelt.codegen.llvm.schedule.nests import Nest
from smelt.codegen.llvm.schedule.runs import lies_in_runs
from smelt.codegen.llvm.schedule.upright import Upright
from smelt.codegen.llvm.scratch.storage import LEFT_PART, RUNS_PART
from smelt.codegen.llvm.scratch.turn import transpose
from smelt.types.affine import coefficient
from smelt.types.dtype import i64
from smelt.types.expr import substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


class WeightSquares:
    """The weights of one product on their way to panels, block by block."""

    def __init__(self, home: NestEmitter, nest: Nest, c: Upright) -> None:
        self.home, self.b, self.c = home, home.b, c
        access = lies_in_runs(c)
        assert access is not None
        self.dtype, self.base = home.home.dtypes[access.buffer], home.home.buffers[access.buffer]
        self.top = home.open(nest, Scope(home.top))
        self.m = LLVMMachine(self.b, c.tile.lanes, home.home.target)
        still = dict.fromkeys((c.n, c.depth, *c.others), 0)
        self.origin = home.index(substitute(access.offset, still), self.top)
        self.apart = home.index(coefficient(access.offset, c.n) or 0, self.top)
        self._fill_table([coefficient(access.offset, a) for a in c.others])

    def _fill_table(self, steps: Sequence[object]) -> None:
        """For each position of a run, how far behind the panel's first element its line begins."""
        b, c = self.b, self.c
        taps = [0] * c.taps
        for tap in range(c.taps):
            place, rest = 0, tap
            for step, extent in zip(steps[::-1], c.extents[::-1], strict=True):
                position, rest = rest % extent, rest // extent
                place += position * step if isinstance(step, int) else 0  # of an extent of 1
            taps[place] = tap

        def channel(k: Value) -> None:
            first, line = b.mul(k, number(c.taps)), b.mul(k, number(c.tile.columns))
            for place, tap in enumerate(taps):
                to = self._entry(b.add(first, number(place)))
                b.store(b.add(line, number(tap * c.block * c.tile.columns)), to)

        self.home.loop(number(0), number(c.block), 1, channel)

    def _entry(self, position: Value) -> Value:
        table = self.home.storage.at[self.c.item, RUNS_PART]
        return element_address(self.b, table, position, i64)

    def pack(self) -> None:
        """Packs the block at hand."""
        b, c, home, lanes = self.b, self.c, self.home, self.c.tile.lanes
        (first, last), (low, high) = home.ranges[c.n], home.ranges[c.depth]
        start = b.add(self.origin, b.mul(low, number(c.taps)))
        length, side = b.mul(b.sub(high, low), number(c.taps)), number(lanes)
        whole = b.icmp_signed(">=", length, side)
        end = b.sub(length, side)

        def rows(n: Value) -> None:
            left = b.sub(b.sub(last, n), number(1))
            begins = [self._begin(start, n, left, i) for i in range(lanes)]
            column = b.sub(n, first)
            inside = b.and_(column, number(c.tile.columns - 1))
            panel = b.mul(b.sub(column, inside), number(c.taps * c.block))
            to = element_address(b, home.storage.at[c.item, LEFT_PART], b.add(panel, inside),
                                 c.unit)  # fmt: skip

            def square(at: Value, mask: Value | None) -> None:
                self._square(begins, at, to, mask)

            with b.if_else(whole) as (then, otherwise):
                with then:  # the last square has some of the one before it again
                    home.loop(number(0), length, lanes, lambda at: square(
                        b.select(b.icmp_signed("<", at, end), at, end), None
                    ))  # fmt: skip
                with otherwise:
                    mask = b.icmp_signed("<", iota(lanes), splat(b, length, lanes))
                    square(number(0), mask)

        home.loop(first, last, lanes, rows)

    def _begin(self, start: Value, n: Value, left: Value, i: int) -> Value:
        """Where the run of the ith row from one on begins; rows beyond the last are that again."""
        b = self.b
        row = b.select(b.icmp_signed("<", left, number(i)), left, number(i)) if i else I64(0)
        at = b.add(start, b.mul(b.add(n, row), self.apart))
        return element_address(b, self.base, at, self.dtype)

    def _square(self, begins: Sequence[Value], at: Value, to: Value, mask: Value | None) -> None:
        """As many positions of as many runs."""
        b, c = self.b, self.c
        lines: list[Value] = []
        ahead = b.mul(self.apart, number(len(begins)))
        for begin in begins:
            place = element_address(b, begin, at, self.dtype)
            found = load_vector(self.m, place, self.dtype, mask)
            prefetch(b, element_address(b, place, ahead, self.dtype))
            lines.append(converted(self.m, found, c.left))
        for k, column in enumerate(transpose(b, lines)):
            line = b.load(self._entry(b.add(at, number(k))), typ=I64)
            store_vector(self.m, element_address(b, to, line, c.unit), column, c.unit, None)


__all__ = ["WeightSquares"]
