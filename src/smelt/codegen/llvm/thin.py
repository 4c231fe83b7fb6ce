"""Thin contractions: few rows, whose larger operand is read once, in its own order, never packed.

Such a product is as fast as memory, so what counts is long runs and no copies.  Where the operand's
rows lie along n, several of them are added at a time to the sums of a block of columns, which stay
in L1:  sum[i, n] += left[i, k] * right[k, n] + left[i, k+1] * right[k+1, n] + ...  Where they lie
along a summed axis, several dot products run side by side and end in one sum over the lanes.  The
operand may be computed as it is read: a conversion, a scale, a gather of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from smelt.codegen.llvm.contract import Contraction
from smelt.codegen.llvm.indexing import iota, number, splat
from smelt.codegen.llvm.items import Item
from smelt.codegen.llvm.machine import LLVMMachine
from smelt.codegen.llvm.memory import (
    element_address,
    load_scalar,
    load_vector,
    store_scalar,
    store_vector,
)
from smelt.codegen.llvm.nests import Nest
from smelt.codegen.llvm.scope import Lanes, Scope
from smelt.codegen.llvm.storage import LEFT_PART

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = Any
LINES = 4
"""Lines of the larger operand that are read side by side: streams that a prefetcher follows."""
WIDE = 2
"""Vectors of sums in registers, where lines lie along n."""


class ThinEmitter:
    """One block of a thin contraction, its left operand packed: all of n, `depth` of k."""

    def __init__(self, home: NestEmitter, c: Contraction, right: Nest, scope: Scope) -> None:
        self.home, self.b, self.c = home, home.b, c
        self.top = home.open(right, scope)
        self.ranges = {a: home.ranges[a] for a in (c.k, c.n)}
        self.rows = number(1)
        if c.m is not None:
            low, high = home.ranges[c.m]
            self.rows = self.b.sub(high, low)
        self.stride = home.home.index(home.storage.extent(c.item, c.n))
        self.scalar = LLVMMachine(self.b, None, home.home.target)

    def run(self) -> None:
        """Adds the block's products to the sums in scratch."""
        line = self.c.k if self.c.along == self.c.n else self.c.n
        visit = self._columns if self.c.along == self.c.n else self._dots
        low, high = self.ranges[line]
        b = self.b
        middle = b.add(low, b.and_(b.sub(high, low), number(-LINES)))
        for first, last, count in ((low, middle, LINES), (middle, high, 1)):
            self.home.loop(first, last, count, self._visitor(visit, line, count))

    def _visitor(
        self, visit: Callable[[Value, list[Scope]], None], line: str, count: int
    ) -> Callable[[Value], None]:
        """Visits `count` lines from a position on."""

        def inside(at: Value) -> None:
            lines = [Scope(self.top, {line: self.b.add(at, number(r)) if r else at})
                     for r in range(count)]  # fmt: skip
            for one in lines:
                self.home.enter(one, 1)
            visit(at, lines)

        return inside

    def _along(self, wide: int, put: Callable[[Value, int, Value | None], None]) -> None:
        """Whole runs of `wide` vectors, then masked vectors: position, lanes and mask."""
        b, lanes = self.b, self.c.tile.lanes
        low, high = self.ranges[self.c.along]
        middle = b.add(low, b.and_(b.sub(high, low), number(-lanes * wide)))
        self.home.loop(low, middle, lanes * wide, lambda at: put(at, lanes * wide, None))

        def masked(at: Value) -> None:
            put(at, lanes, b.icmp_signed("<", iota(lanes), splat(b, b.sub(high, at), lanes)))

        self.home.loop(middle, high, lanes, masked)

    def _values(self, lines: list[Scope], at: Value, lanes: int, mask: Value | None) -> list[Value]:
        """One vector of the right operand on each line."""
        found: list[Value] = []
        for line in lines:
            along = self.c.along
            inner = Scope(line, {along: at}, lanes=Lanes(along, at, lanes, mask))
            self.home.enter(inner, 2)
            found.append(self.home.get(self.c.right, inner, True))
        return found

    def _left(self, row: Value, k: Value) -> Value:
        """Address of left[row, k]."""
        b = self.b
        at = b.add(b.mul(row, number(self.c.pitch)), b.sub(k, self.ranges[self.c.k][0]))
        return element_address(b, self.home.storage.at[self.c.item, LEFT_PART], at,
                               self.c.item.dtype)  # fmt: skip

    def _sum(self, row: Value, column: Value) -> Value:
        """Address of the sum at a row and an absolute column."""
        b, item = self.b, self.c.item
        at = b.add(b.mul(row, self.stride), b.sub(column, self.home.scratch.start(item, self.c.n)))
        return element_address(b, self.home.storage.at[item, 0], at, item.dtype)

    # ---- lines along n -----------------------------------------------------------------------

    def _columns(self, k: Value, lines: list[Scope]) -> None:
        """sum[i, n] += left[i, k + r] * right[k + r, n] for every line r."""
        b, dtype = self.b, self.c.item.dtype

        def put(at: Value, lanes: int, mask: Value | None) -> None:
            values = self._values(lines, at, lanes, mask)
            m = LLVMMachine(b, lanes, self.home.home.target)

            def row(i: Value) -> None:
                place = self._sum(i, at)
                total = load_vector(m, place, dtype, None)
                for r, value in enumerate(values):
                    where = self._left(i, b.add(k, number(r)))
                    one = load_scalar(self.scalar, where, dtype, None)
                    total = multiply_add(m, splat(b, one, lanes), value, total, self.c.item)
                store_vector(m, place, total, dtype, None)

            if self.c.m is None:
                row(number(0))
            else:
                self.home.loop(number(0), self.rows, 1, row)

        self._along(WIDE, put)

    # ---- lines along k -----------------------------------------------------------------------

    def _dots(self, n: Value, lines: list[Scope]) -> None:
        """sum[i, n + r] += the dot product of left[i] and line r, for groups of rows."""
        b, group = self.b, self.c.tile.rows
        if group == 1:
            self._group(number(0), 1, n, lines)
            return
        several = b.and_(b.add(self.rows, number(group - 2)), number(-group))
        self.home.loop(number(0), several, group, lambda i: self._group(i, group, n, lines))
        self.home.loop(several, self.rows, 1, lambda i: self._group(i, 1, n, lines))

    def _group(self, i: Value, count: int, n: Value, lines: list[Scope]) -> None:
        b, item, lanes = self.b, self.c.item, self.c.tile.lanes
        m = LLVMMachine(b, lanes, self.home.home.target)
        zero = m.const(item.dtype, 0)
        places = [[self._variable(zero) for _ in lines] for _ in range(count)]

        def put(at: Value, _: int, mask: Value | None) -> None:
            values = self._values(lines, at, lanes, mask)
            for g, sums in enumerate(places):
                one = load_vector(m, self._left(b.add(i, number(g)), at), item.dtype, mask)
                for value, place in zip(values, sums, strict=True):
                    total = b.load(place, typ=zero.type)
                    b.store(multiply_add(m, one, value, total, item), place)

        self._along(1, put)
        for g, sums in enumerate(places):
            for r, place in enumerate(sums):
                total = b.load(place, typ=zero.type)
                where = self._sum(b.add(i, number(g)), b.add(n, number(r)))
                before = load_scalar(self.scalar, where, item.dtype, None)
                found = self.scalar.add(before, self._across(m, total))
                store_scalar(self.scalar, where, found, item.dtype, None)

    def _variable(self, start: Value) -> Value:
        with self.b.goto_entry_block():
            place = self.b.alloca(start.type)
        self.b.store(start, place)
        return place

    def _across(self, m: LLVMMachine, total: Value) -> Value:
        """The sum over lanes, halves with halves."""
        b, lanes = self.b, self.c.tile.lanes
        while lanes > 1:
            lanes //= 2
            first, second = (
                ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(at, at + lanes)))
                for at in (0, lanes)
            )
            nothing = ir.Constant(total.type, ir.Undefined)
            total = m.add(b.shuffle_vector(total, nothing, first),
                          b.shuffle_vector(total, nothing, second))  # fmt: skip
        return b.extract_element(total, ir.Constant(ir.IntType(32), 0))


def multiply_add(m: LLVMMachine, a: Value, b: Value, c: Value, item: Item) -> Value:
    """a*b + c, rounded once where the processor can: in software that would cost a call."""
    if item.dtype.is_float and (m.target.has("fma") or m.target.isa == "neon"):
        return m.fma(a, b, c)
    return m.add(m.mul(a, b), c)


__all__ = ["ThinEmitter", "multiply_add"]
