"""Packs weights whose taps lie behind one another in memory, a square of them at a time.

Weights w[m,c,u,v] lie as one run for each m, all taps of a channel and then those of the next one.
Tiles read panels where what lies side by side is m:

    memory    w[m]     c0t0 c0t1 .. c0t8 c1t0 ..      as many runs as a vector has lanes
    scratch   t0       c0: m m m .., c1: m m m .., ..      then t1, and so on

Whole vectors are read of neighbouring runs and turned in registers.  A table says to which line of
the panel each position of a run belongs.  There is one panel at a time, which is packed before its
tiles, so that these find it in a near cache, as those who pack do.  Runs are too short for the
processor to foresee the next ones, so these are asked for: of the next panel before these tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.products.tall_skinny_packing import converted
from smelt.codegen.llvm.products.tile_loops import outline_function, rounds
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.filter_contiguity import lies_in_runs
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.codegen.llvm.scratch.workspace import LEFT_PART, RUNS_PART
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, i64
from smelt.types.expr import substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
PTR = ir.PointerType()
PACK_TYPE = ir.FunctionType(ir.VoidType(), [PTR, PTR, I64, I64, I64, PTR, PTR])
"""The panel's vector of columns, the first run, elements between runs, how many runs there are,
positions of each, the table, and the first run that is packed after these."""


class WeightSquares:
    """The weights of one product on their way to panels, one after the other."""

    def __init__(self, home: NestEmitter, nest: Nest, c: NhwcConvPlan) -> None:
        self.home, self.b, self.c = home, home.b, c
        access = lies_in_runs(c)
        assert access is not None
        self.dtype, self.base = home.home.dtypes[access.buffer], home.home.buffers[access.buffer]
        top = home.open(nest, Scope(home.top))
        still = dict.fromkeys((c.n, c.depth, *c.others), 0)
        self.origin = home.index(substitute(access.offset, still), top)
        self.apart = home.index(coefficient(access.offset, c.n) or 0, top)
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
                to = element_address(b, self._table(), b.add(first, number(place)), i64)
                b.store(b.add(line, number(tap * c.block * c.tile.columns)), to)

        self.home.loop(number(0), number(c.block), 1, channel)

    def _table(self) -> Value:
        return self.home.storage.at[self.c.item, RUNS_PART]

    def pack(self, column: Value, vectors: int) -> None:
        """Packs the panel of a task's columns from one on, in the block of channels at hand."""
        b, c, home, lanes = self.b, self.c, self.home, self.c.tile.lanes
        (first, last), (low, high) = home.ranges[c.n], home.ranges[c.depth]
        length = b.mul(b.sub(high, low), number(c.taps))
        n, after = b.add(first, column), b.add(first, b.add(column, number(vectors * lanes)))
        behind = b.icmp_signed(">=", after, last)
        later = self._run(b.select(behind, first, after), b.select(behind, high, low))
        function = pack_function(b.module, c, self.dtype, home.home.target)
        for v in range(vectors):
            begin, panel = self._run(n, low), home.storage.at[c.item, LEFT_PART]
            n = b.add(n, number(lanes))
            to = element_address(b, panel, number(v * lanes), c.unit)
            following = self._run(n, low) if v + 1 < vectors else later
            left = b.sub(last, b.sub(n, number(lanes)))
            args = [to, begin, self.apart, left, length, self._table(), following]
            b.call(function, args)

    def _run(self, n: Value, k: Value) -> Value:
        """The address of the run of a column, from a channel on."""
        b = self.b
        at = b.add(self.origin, b.add(b.mul(n, self.apart), b.mul(k, number(self.c.taps))))
        return element_address(b, self.base, at, self.dtype)


def pack_function(module: ir.Module, c: NhwcConvPlan, dtype: DType, target: Target) -> ir.Function:
    """The function that packs a vector's runs: each product of a module has the same ones."""
    types = [dtype]
    item = c.left
    while item.kind == "cast":
        types.insert(1, item.dtype)
        item = item.args[0]
    name = f"squares.{'.'.join(map(str, types))}.{c.tile.lanes}"
    return outline_function(module, name, PACK_TYPE, lambda f: _Pack(f, c, dtype, target).fill())


class _Pack:
    def __init__(self, f: ir.Function, c: NhwcConvPlan, dtype: DType, target: Target) -> None:
        self.f, self.c, self.dtype = f, c, dtype
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, c.tile.lanes, target)

    def fill(self) -> None:
        """The function's body."""
        b, lanes = self.b, self.c.tile.lanes
        _, first, apart, rows, length, *_ = self.f.args
        last = b.sub(rows, number(1))
        begins: list[Value] = [first]
        for i in range(1, lanes):  # those beyond the last one are that again
            row = b.select(b.icmp_signed("<", last, number(i)), last, number(i))
            begins.append(element_address(b, first, b.mul(row, apart), self.dtype))
        side = number(lanes)
        end = b.sub(length, side)

        def square(nth: Value, *_: object) -> list[Value]:
            at = b.mul(nth, side)
            at = b.select(b.icmp_signed("<", at, end), at, end)
            self._square(begins, at, None)  # the last one has some of the one before it again
            return []

        with b.if_else(b.icmp_signed(">=", length, side)) as (then, otherwise):
            with then:
                count = b.udiv(b.add(length, number(lanes - 1)), side)
                rounds(b, (number(0), count), 1, square, [])
            with otherwise:
                mask = b.icmp_signed("<", iota(lanes), splat(b, length, lanes))
                self._square(begins, number(0), mask)
        b.ret_void()

    def _square(self, begins: Sequence[Value], at: Value, mask: Value | None) -> None:
        """As many positions of as many runs."""
        b, c, (to, _, apart, _, _, table, later) = self.b, self.c, self.f.args
        lines: list[Value] = []
        for i, begin in enumerate(begins):
            found = load_vector(self.m, element_address(b, begin, at, self.dtype), self.dtype, mask)
            ahead = b.add(at, b.mul(apart, number(i)))
            prefetch(b, element_address(b, later, ahead, self.dtype))
            lines.append(converted(self.m, found, c.left))
        for k, column in enumerate(transpose(b, lines)):
            entry = element_address(b, table, b.add(at, number(k)), i64)
            place = element_address(b, to, b.load(entry, typ=I64), c.unit)
            store_vector(self.m, place, column, c.unit, None)


__all__ = ["WeightSquares", "pack_function"]
