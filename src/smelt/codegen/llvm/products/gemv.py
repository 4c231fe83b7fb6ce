"""Thin contractions: few rows, whose larger operand is read once, in its own order, never packed.

Such a product is as fast as memory, so what counts is that enough is under way: many lines of the
operand are read side by side, as many streams as the processor follows, in long runs.  Where the
lines lie along n, a vector of each goes to the sums of its columns, which stay in cache:
sum[i, n] += left[i, k] * right[k, n] + left[i, k+1] * right[k+1, n] + ...  Where they lie along a
summed axis, several dot products run side by side and end in sums over the lanes.  The operand may
be computed as it is read: a conversion, a scale, a gather of rows.  Short numbers are multiplied in
groups (`smelt.codegen.llvm.instructions.dot_product`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.blocks import LINES_RUN
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_scalar,
    load_vector,
    prefetch,
    store_scalar,
    store_vector,
)
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.dot_product import BFLOATS, interleaved, narrow, step, units
from smelt.codegen.llvm.instructions.horizontal_sums import across, together
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.products.operand_rows import along, lines_from
from smelt.codegen.llvm.products.tile_loops import blocks
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.contract import Contraction
from smelt.codegen.llvm.scratch.workspace import LEFT_PART, SUMS_PART, lines_apart
from smelt.types.affine import coefficient
from smelt.types.expr import atoms

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
LINES = 8
"""Lines along n that are read side by side, where there are registers for two vectors of each: more
streams than that outrun what the processor follows."""
FEW = 4
"""The same of a single row, where lines are dear to compute, where few are left, and of dot
products."""
LONG_LINE = 1536
"""Elements of lines from which on a single row meets them one by one: the sum over lanes at the end
of each takes as long as 100 elements."""
AHEAD = 2048
"""Bytes between what dot products read and what they ask for."""
NEXT, ONE_AHEAD = 1024, 4096
"""The same of lines along n, and of lines that are read one by one."""
CHUNK, NEXT_PIECES = 4096, 2
"""Bytes of each row of the left operand that are multiplied at a time where all of them stay in the
first cache: the sums over lanes at a piece's end take as long as half a kilobyte of it.  And groups
of pieces between those that rows meet and those that are asked for, for the second cache: the first
one has room for few beside the rows."""
CHUNK_MANY, NEXT_PIECES_MANY = 1024, 8
"""The same of more rows, which are visited one group after another."""
SHORT = 6
"""Values up to which a line counts as cheap to compute."""


class Gemv:
    """One block of a thin contraction, its left operand packed: all of n, `depth` of k."""

    def __init__(self, home: NestEmitter, c: Contraction, right: Nest, scope: Scope) -> None:
        self.home, self.b, self.c = home, home.b, c
        self.right, self.scope = right, scope
        self.ranges = {a: home.ranges[a] for a in (c.k, c.n)}
        self.start = home.ranges[c.k][0]
        self.rows = number(1)
        if c.m is not None:
            low, high = home.ranges[c.m]
            self.rows = self.b.sub(high, low)
        self.stride = home.home.index(home.storage.extent(c.item, c.n))
        self.sums: Value = home.storage.at[c.item, 0]
        self.lanes, self.wide = c.tile.lanes, c.tile.lanes * c.together
        if c.along == c.n and c.group is None and c.m is not None:
            self.wide *= 2  # a number of the left operand serves two vectors
        s = home.s
        blocks = c.along == c.k and s.region(c.item) is None and c.k not in s.phase.cut
        self.apart = self.wide if blocks else 1
        """What vectors of the right operand begin at multiples of."""
        self.ahead = dict[int, tuple[Value, Value]]()
        """By an element's bytes, how far away is asked: groups of lines, and elements beyond."""
        self.far = False
        """Whether that is for the second cache."""
        self.machine = LLVMMachine(self.b, self.lanes, home.home.target)
        self.scalar = LLVMMachine(self.b, None, home.home.target)

    def clear_ends(self) -> None:
        """Zero behind the rows of the left operand, which is packed next: whole vectors of it are
        multiplied, and units for whole groups of lines."""
        low, high = self.ranges[self.c.k]
        b, count = self.b, max(self.lanes, FEW)
        end = b.add(low, b.and_(b.sub(high, low), number(-count * self.c.together)))
        zero = self.machine.const(self.c.unit, 0)

        def clear(row: Value) -> None:
            for more in range(0, count, self.lanes):
                store_vector(self.machine, self._left(row, end, more), zero, self.c.unit, None)

        self.home.loop(number(0), self.rows, 1, clear)

    def run(self, fresh: Value | None) -> None:
        """Adds the block's products to the sums in scratch; `fresh` tells a first block."""
        self.top = self.home.open(self.right, self.scope)
        self.home.prefetch_enabled = False
        if lines_apart(self.c, self.home.s):
            self._runs(ir.IntType(1)(0) if fresh is None else fresh)
        elif self.c.along == self.c.n:
            self._rows()
        else:
            self._dots()
        self.home.prefetch_enabled = True

    def _runs(self, fresh: Value) -> None:
        """Lines along n, so many one after the other, which end at multiples of that."""
        b, span, many = self.b, self.ranges[self.c.k], LINES_RUN * self.c.together

        def one(start: Value, end: Value) -> None:
            self.ranges[self.c.k] = start, end
            self._apart(b.not_(b.and_(fresh, b.icmp_signed("==", start, span[0]))))

        blocks(self.home, span, many, one, at_multiples=True)
        self.ranges[self.c.k] = span

    def _apart(self, later: Value) -> None:
        """A run of lines; a `later` one is summed on its own and then added to what was summed
        before, for the sake of roundings (`smelt.codegen.llvm.products.block_sums`)."""
        b, home, c, dtype = self.b, self.home, self.c, self.c.item.dtype
        before, apart = home.storage.at[c.item, 0], home.storage.at[c.item, SUMS_PART]
        count = b.mul(home.home.index(home.storage.rows(c)), self.stride)
        count = b.select(later, count, number(0))

        def clear(at: Value) -> None:
            place = element_address(b, apart, at, dtype)
            store_vector(self.machine, place, self.machine.const(dtype, 0), dtype, None)

        def add(at: Value) -> None:
            place = element_address(b, before, at, dtype)
            both = [
                load_vector(self.machine, element_address(b, base, at, dtype), dtype, None)
                for base in (before, apart)
            ]
            store_vector(self.machine, place, self.machine.add(*both), dtype, None)

        home.loop(number(0), count, self.lanes, clear)
        self.sums = b.select(later, apart, before)
        self._rows()
        home.loop(number(0), count, self.lanes, add)

    # ---- operands ----------------------------------------------------------------------------

    def _value(self, line: Scope, at: Value, mask: Value | None) -> Value:
        """One vector of the right operand on a line, as it is multiplied; 0 outside of a mask."""
        c = self.c
        lanes = Lanes(c.along, at, self.wide, mask, self.apart)
        inner = Scope(line, {c.along: at}, lanes=lanes)
        self.home.enter(inner, 2)
        found = self.home.get(c.right, inner, True)
        if c.group is not None:
            m = LLVMMachine(self.b, self.wide, self.home.home.target)
            found = narrow(m, found, c.right, c.group)
        return found if mask is None else self.b.select(mask, found, ir.Constant(found.type, None))

    def _left(self, row: Value, k: Value, more: int = 0) -> Value:
        """Address of the unit of left[row] that begins at k, or of one `more` behind it."""
        b = self.b
        at = b.sub(k, self.start)
        if self.c.together > 1:
            at = b.udiv(at, number(self.c.together))
        at = b.add(b.mul(row, number(self.c.pitch)), b.add(at, number(more)) if more else at)
        base = self.home.storage.at[self.c.item, LEFT_PART]
        return element_address(b, base, at, self.c.unit)

    def _sum(self, row: Value, column: Value) -> Value:
        """Address of the sum at a row and an absolute column."""
        b, item = self.b, self.c.item
        at = b.add(b.mul(row, self.stride), b.sub(column, self.home.scratch.start(item, self.c.n)))
        return element_address(b, self.sums, at, item.dtype)

    def _multiplied(self, one: Value, value: Value, total: Value) -> Value:
        if self.c.group is None:
            return fma_step(self.machine, one, value, total, self.c.item)
        return step(self.machine, self.c.group, one, value, total)

    def _ones(self, row: Value, k: Value, count: int) -> list[Value]:
        """Units of the left operand from k on, each in all lanes."""
        units = (
            load_scalar(self.scalar, self._left(row, k, t), self.c.unit, None) for t in range(count)
        )
        return [splat(self.b, one, self.lanes) for one in units]

    def _add(
        self, k: Value, column: Value, found: Sequence[Sequence[Value]], only: Sequence[Value]
    ) -> None:
        """sum[i, columns] += left[i, units from k on] * found[unit][vector of columns]; `only` are
        the units of a single row."""
        b, m, dtype = self.b, self.machine, self.c.item.dtype

        def row(i: Value) -> None:
            places = [
                self._sum(i, b.add(column, number(v * self.lanes)) if v else column)
                for v in range(len(found[0]))
            ]
            totals = [load_vector(m, place, dtype, None) for place in places]
            for one, line in zip(only or self._ones(i, k, len(found)), found, strict=True):
                totals = [
                    self._multiplied(one, x, total) for x, total in zip(line, totals, strict=True)
                ]
            for place, total in zip(places, totals, strict=True):
                store_vector(m, place, total, dtype, None)

        if self.c.m is None:
            row(number(0))
        else:
            self.home.loop(number(0), self.rows, 1, row)

    # ---- lines along n -----------------------------------------------------------------------

    def _rows(self) -> None:
        """Many lines at a time, then a few."""
        b, (low, high) = self.b, self.ranges[self.c.k]
        many = LINES if self.home.home.target.registers >= 32 else LINES // 2
        many = FEW if self.c.m is None or len(self.right.items) > SHORT else many
        middle = b.add(low, b.and_(b.sub(high, low), number(-many)))
        self._foresee(self.c.n, NEXT)
        self.home.loop(low, middle, many, lambda k: self._some(k, many, False))
        self.home.loop(middle, high, FEW, lambda k: self._some(k, FEW, True))

    def _some(self, k: Value, count: int, clamped: bool) -> None:
        """`count` lines from k on; with `clamped` there may be fewer."""
        b, together = self.b, self.c.together
        last = b.sub(self.ranges[self.c.k][1], number(1)) if clamped else None
        lines = lines_from(self.home, self.top, self.c.k, k, count, last)
        high = self.ranges[self.c.k][1]
        here = [b.icmp_signed("<", b.add(k, number(r)), high) for r in range(count)]
        only = [] if self.c.m is not None else self._ones(number(0), k, count // together)

        def put(at: Value, mask: Value | None) -> None:
            values: list[Value] = []
            for r, line in enumerate(lines):
                value = self._value(line, at, mask)
                zero = ir.Constant(value.type, None)
                values.append(b.select(here[r], value, zero) if clamped and r else value)
            if mask is None and not clamped and self.c.m is not None:
                self._ask(lines, at, (self.c.k, self.c.n))
            if self.c.group is None:
                self._add(k, at, [self._vectors(value) for value in values], only)
                return
            groups = (values[r : r + together] for r in range(0, count, together))
            self._add(k, at, [interleaved(b, group) for group in groups], only)

        along(self.home, self.ranges[self.c.along], self.wide, put)

    # ---- lines along k -----------------------------------------------------------------------

    def _dots(self) -> None:
        """sum[i, n] += the dot product of row i and line n, for a few of both side by side: as many
        rows as may be, since each visit to a line takes all of its bytes again."""
        b, wide = self.b, self.home.home.target.registers >= 32
        alone = self.c.group is None and self.home.home.target.foresees_pages
        if self.c.m is None and not alone:
            self._sweep(1, FEW)
            return
        if self.c.m is None:
            low, high = self.ranges[self.c.k]
            long = b.icmp_signed(">=", b.sub(high, low), number(LONG_LINE))
            with b.if_else(long) as (then, otherwise):
                with then:
                    self.home.loop(*self.ranges[self.c.n], 1, self._line)
                with otherwise:
                    self._sweep(1, FEW)
            return
        heights, several = ((FEW // 2, FEW), 2 * FEW) if wide else ((FEW // 2,), FEW)

        def rows(heights: tuple[int, ...]) -> None:
            if not heights:
                self._chunks(several)
                return
            few = b.icmp_signed("<=", self.rows, number(heights[0]))
            with b.if_else(few) as (then, otherwise):
                with then:
                    self._sweep(heights[0], FEW)
                with otherwise:
                    rows(heights[1:])

        rows(heights)

    def _chunks(self, several: int) -> None:
        """Dot products of more rows, `several` at once, piece by piece."""
        b, each = self.b, self.c.together / self.c.unit.itemsize
        many, most = (number(int(size * each)) for size in (CHUNK_MANY, CHUNK))
        one = b.icmp_signed("<=", self.rows, number(several))
        size = b.select(one, most, many)
        groups = b.select(one, number(NEXT_PIECES), number(NEXT_PIECES_MANY))
        self.home.loop(
            *self.ranges[self.c.k], size, lambda at: self._chunk(at, size, several, groups)
        )

    def _line(self, n: Value) -> None:
        """sum[n] += the dot product of the one row and a long line: read alone, in several sums at
        once, it is what the processor foresees by itself."""
        b, c, m, lanes = self.b, self.c, self.machine, self.lanes
        (line,) = lines_from(self.home, self.top, c.n, n, 1, None)
        zero = m.const(c.item.dtype, 0)
        places = [self._variable(zero) for _ in range(FEW)]
        low, high = self.ranges[c.k]
        middle = b.add(low, b.and_(b.sub(high, low), number(-FEW * lanes)))

        # Vectors one by one where lanes pick elements: long ones would be joined and taken apart.
        loads = [x.payload.offset for x in self.right.items if isinstance(x.payload, Access)]
        usual, each = self.wide, FEW if all(coefficient(e, c.k) is not None for e in loads) else 1

        def put(at: Value, mask: Value | None, first: int = 0) -> None:
            for k, value in enumerate(self._vectors(self._value(line, at, mask))):
                one = load_vector(m, self._left(number(0), at, k * lanes), c.unit, None)
                total = b.load(places[first + k], typ=zero.type)
                b.store(self._multiplied(one, value, total), places[first + k])

        def several(at: Value) -> None:
            self._ask([line], at, (c.n, c.k), length=FEW * lanes)
            for k in range(0, FEW, each):
                put(b.add(at, number(k * lanes)) if k else at, None, k)

        self._foresee(c.k, ONE_AHEAD)
        self.wide = each * lanes
        self.home.loop(low, middle, FEW * lanes, several)
        self.wide = usual
        along(self.home, (middle, high), lanes, put)
        totals = [b.load(place, typ=zero.type) for place in places]
        while len(totals) > 1:
            totals = [m.add(x, y) for x, y in zip(totals[::2], totals[1::2], strict=True)]
        self._keep_one(self._sum(number(0), n), across(self.machine, totals[0]))

    def _chunk(self, at: Value, size: Value, rows: int, groups: Value) -> None:
        """One piece of k, whose rows of the left operand stay in the first cache."""
        b, (low, high) = self.b, self.ranges[self.c.k]
        end = b.add(at, size)
        self.ranges[self.c.k] = at, b.select(b.icmp_signed("<", end, high), end, high)
        self._sweep(rows, FEW // 2, groups)
        self.ranges[self.c.k] = low, high

    def _sweep(self, rows: int, count: int, groups: Value | None = None) -> None:
        """All lines, or pieces of them, `count` at a time, with all rows, `rows` at a time; with
        `groups`, what comes so many groups of lines later is asked for."""
        b, (low, high) = self.b, self.ranges[self.c.n]
        middle = b.add(low, b.and_(b.sub(high, low), number(-count)))
        self.far = groups is not None
        if groups is None:
            self._foresee(self.c.k, AHEAD)
        else:  # told that no piece ends before, LLVM orders loads and asks worse: 1.3 times as long
            self.ahead = {size: (groups, number(0)) for size in self._sizes()}
        for first, last, many in ((low, middle, count), (middle, high, 1)):

            def some(n: Value, many: int = many) -> None:
                lines = lines_from(self.home, self.top, self.c.n, n, many, None)
                self.home.loop(number(0), self.rows, rows, lambda i: self._group(i, rows, n, lines))

            self.home.loop(first, last, many, some)

    def _group(self, i: Value, rows: int, n: Value, lines: list[Scope]) -> None:
        b, c, m = self.b, self.c, self.machine
        zero = m.const(c.item.dtype, 0)
        places = [[self._variable(zero) for _ in lines] for _ in range(rows)]

        def put(at: Value, mask: Value | None) -> None:
            values = [self._value(line, at, mask) for line in lines]
            values = values if c.group is None else [units(b, x) for x in values]
            for g, sums in enumerate(places):
                one = load_vector(m, self._left(b.add(i, number(g)), at), c.unit, None)
                for value, place in zip(values, sums, strict=True):
                    b.store(self._multiplied(one, value, b.load(place, typ=zero.type)), place)

        def asking(at: Value) -> None:
            self._ask(lines, at, (c.n, c.k), b.icmp_signed("==", i, number(0)), step)
            for v in range(0, step, self.wide):
                put(b.add(at, number(v)) if v else at, None)

        low, high = self.ranges[c.along]
        step = max(self.wide, LINE // min(self._sizes(), default=LINE))
        middle = b.add(low, b.and_(b.sub(high, low), number(-step)))
        self.home.loop(low, middle, step, asking)
        along(self.home, (middle, high), self.wide, put)
        totals = [b.load(place, typ=zero.type) for sums in places for place in sums]
        while len(totals) > 1 and len(totals) < self.lanes:
            totals.append(zero)
        for first in range(0, len(totals), self.lanes):
            self._keep(i, n, first, totals[first : first + self.lanes], len(lines), rows)

    def _keep(
        self, i: Value, n: Value, first: int, totals: list[Value], lines: int, rows: int
    ) -> None:
        """Adds the sums over lanes to the sums in scratch: of vectors row by row, line by line; of
        short vectors a row's lines are several."""
        b, dtype = self.b, self.c.item.dtype
        if len(totals) == 1:
            self._keep_one(self._sum(i, n), across(self.machine, totals[0]))
            return
        found, run = together(self.machine, totals), min(lines, self.lanes)
        for at in range(first, min(first + self.lanes, rows * lines), run):
            row, line = divmod(at, lines)
            where = self._sum(b.add(i, number(row)), b.add(n, number(line)) if line else n)
            if lines == 1:
                one = b.extract_element(found, ir.Constant(ir.IntType(32), at - first))
                self._keep_one(where, one)
                continue
            picks = [at - first + r for r in range(run)]
            some = b.shuffle_vector(
                found, found, ir.Constant(ir.VectorType(ir.IntType(32), run), picks)
            )
            m = LLVMMachine(b, run, self.home.home.target)
            before = load_vector(m, where, dtype, None)
            store_vector(m, where, m.add(before, some), dtype, None)

    def _keep_one(self, where: Value, total: Value) -> None:
        dtype = self.c.item.dtype
        before = load_scalar(self.scalar, where, dtype, None)
        store_scalar(self.scalar, where, self.scalar.add(before, total), dtype, None)

    def _ask(
        self,
        lines: list[Scope],
        at: Value,
        axes: tuple[str, str],
        asked: Value | None = None,
        length: int = 0,
    ) -> None:
        """Has the processor fetch what lies ahead along the lines, or at their end on the next
        ones; axes: the one across lines and the one along them.  Nothing new unless `asked`.
        """
        b, home, (across, along) = self.b, self.home, axes
        for item in self.right.items:
            access = item.payload
            if not isinstance(access, Access) or coefficient(access.offset, along) != 1:
                continue
            step = coefficient(access.offset, across)
            if step is None or any(a.kind == "axis" for a in atoms(step)):
                continue
            dtype = home.home.dtypes[access.buffer]
            low, high = self.ranges[along]
            later = b.mul(home.index(step, self.top), number(len(lines)))
            groups, more = self.ahead[dtype.itemsize]
            inside = b.icmp_signed("<", b.add(at, more), high)
            ahead = b.select(inside, more, b.add(b.sub(more, b.sub(high, low)), later))
            ahead = b.add(b.mul(groups, later), ahead)
            if asked is not None:
                ahead = b.select(asked, ahead, number(0))
            ahead = b.add(at, ahead)
            for line in lines:
                place = b.add(line.offset(access), ahead)
                for k in range(0, length or self.wide, max(LINE // dtype.itemsize, 1)):
                    there = b.add(place, number(k))
                    prefetch(
                        b,
                        element_address(b, home.home.buffers[access.buffer], there, dtype),
                        near=not self.far,
                    )

    def _foresee(self, along: str, far: int) -> None:
        """How many whole lines `far` bytes are, and elements what is left: short lines are asked
        for some groups of them before, so that as much is under way as along long ones."""
        b, (low, high) = self.b, self.ranges[along]
        length = b.sub(high, low)
        length = b.select(b.icmp_signed("<", length, number(1)), number(1), length)
        for size in self._sizes():
            whole = b.udiv(number(far // size), length)
            self.ahead[size] = whole, b.sub(number(far // size), b.mul(whole, length))

    def _sizes(self) -> set[int]:
        """Bytes of what is read of a line."""
        return {
            self.home.home.dtypes[x.payload.buffer].itemsize
            for x in self.right.items
            if isinstance(x.payload, Access)
        }

    def _vectors(self, value: Value) -> list[Value]:
        """A wide register as registers of the processor."""
        kind = ir.VectorType(ir.IntType(32), self.lanes)
        return [
            self.b.shuffle_vector(value, value, ir.Constant(kind, list(range(v, v + self.lanes))))
            for v in range(0, value.type.count, self.lanes)
        ]

    def _variable(self, start: Value) -> Value:
        with self.b.goto_entry_block():
            place = self.b.alloca(start.type)
        self.b.store(start, place)
        return place


def fma_step(m: LLVMMachine, a: Value, b: Value, c: Value, item: Item) -> Value:
    """a*b + c, rounded once where the processor can: in software that would cost a call; of units
    c and the products of their members."""
    if item.args[0].kind == "unit" or item.args[0].dtype != item.dtype:
        return step(m, BFLOATS, a, b, c)
    if item.dtype.is_float and (m.target.has("fma") or m.target.isa == "neon"):
        return m.fma(a, b, c)
    return m.add(m.mul(a, b), c)


__all__ = ["Gemv", "fma_step"]
