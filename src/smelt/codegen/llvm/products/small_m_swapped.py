"""A product of few rows whose right operand lies along the sum: its rows and columns change places.

Weights of layers lie so: packing them in panels, which turns them, takes as long as a third of what
few rows multiply.  So they are not packed.  Vectors run along the rows of the result instead, of
which there are few, and elements of the right operand are fetched from where they lie:

    pack the left operand in panels: of 32 rows, position by position
    for 48 columns:
        for 12 of them, for 32 rows:   sums[column] += right[column, k] * panel[k, rows]
                                       turned in registers, to scratch memory
        for each row:                  reads its 48 sums

The lines of the next 12 columns are asked for meanwhile: each is read once, to its end.  Columns of
other types are converted just before they are multiplied, and stay in the first cache.  Where fewer
columns are left, the last one stands for the others: nobody reads their sums.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from smelt.blocks import TURNED_COLUMNS, TURNED_PITCH
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.products.tall_skinny import TallSkinnyGemm
from smelt.codegen.llvm.products.tile_loops import every_width
from smelt.codegen.llvm.products.transposed_store_tile import (
    FRACTION,
    TOGETHER,
    UNROLLED,
    tile_function,
)
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.tall_skinny import TallSkinnyPlan
from smelt.codegen.llvm.scratch.scratch import each_vector
from smelt.codegen.llvm.scratch.workspace import RIGHT_PART, SUMS_PART

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


class SmallMSwappedGemm(TallSkinnyGemm):
    """One such product in the task that `home` is emitting: `m` is the axis of its columns, `n`
    that of its rows, and its left operand is the one that lies along the sum."""

    def __init__(self, home: NestEmitter, nest: Nest, c: TallSkinnyPlan) -> None:
        super().__init__(home, nest, c)
        self.rate = number(0)
        self.beneath = list[Self]()
        """The other products, whose sums what reads those of this one reads as well."""
        self.start = number(0)
        """The first column of those that are read together."""

    def run(self) -> None:
        """All columns of this task, some at a time, of all products that are taken together."""
        home, b, c = self.home, self.b, self.c
        if c.kept:
            return
        self.beneath = self._others()
        every = [*self.beneath, self]
        low, high = home.ranges[c.m]
        for one in every:
            one._open()
        home.prefetch_enabled = False

        def some(at: Value) -> None:
            end = b.add(at, number(TURNED_COLUMNS))
            end = b.select(b.icmp_signed("<", end, high), end, high)
            for one in every:
                home.products, one.start = one, at
                home.loop(at, end, c.tile.rows, partial(one._columns, end))
            self._read_rows(at, end)

        home.loop(low, high, TURNED_COLUMNS, some)
        home.prefetch_enabled = True

    def _open(self) -> None:
        """What stands before all columns."""
        self.home.products = self
        if self.c.leader is None:
            self._clear_beyond()
            self._pack_right()
        self._open_left()
        self.rate = self._lines_asked()

    def _lines_asked(self) -> Value:
        """How many pairs of lines of the next columns a round of a tile asks for, so that they are
        all asked for while those at hand are multiplied."""
        b, c = self.b, self.c
        size = number(c.item.dtype.itemsize)
        lines = b.add(b.udiv(b.mul(self.depth, size), number(LINE)), number(1))
        pairs = b.mul(lines, number(-(-c.tile.rows // TOGETHER) << FRACTION))
        panels = b.add(b.udiv(self.columns, number(c.tile.columns)), number(1))
        rounds = b.mul(panels, b.add(b.udiv(self.depth, number(UNROLLED)), number(1)))
        return b.udiv(pairs, rounds)

    # ---- tiles -----------------------------------------------------------------------------------

    def _columns(self, end: Value, row: Value) -> None:
        """All rows of the columns of a tile: converts these, if need be, and multiplies them."""
        b, c, home = self.b, self.c, self.home
        kept, next_ = home.ranges[c.m], b.add(row, number(c.tile.rows))
        home.ranges[c.m] = row, b.select(b.icmp_signed("<", next_, end), next_, end)
        self.first = row
        self._pack_left()
        home.ranges[c.m] = kept
        every_width(home, c.tile, self.columns, lambda at, n: self._tile_at(row, at, n))

    def _tile_at(self, row: Value, at: Value, vectors: int) -> None:
        """The sums of a tile: of each row the columns one after the other."""
        b, c = self.b, self.c
        size, (_, end) = number(self.stored.itemsize), self.home.ranges[c.m]
        panels = b.udiv(at, number(c.tile.columns))
        before = b.mul(panels, b.udiv(self.depth, number(UNROLLED)))
        function = tile_function(b.module, c, vectors, self.home.home.target)
        b.call(
            function,
            [
                self._sum(at, row),
                self._panel_of(at),
                self._there(row),
                b.mul(self.left_steps[0], size),
                b.sub(end, row),
                self.depth,
                self._there(b.add(row, number(c.tile.rows))),
                b.mul(before, self.rate),
                self.rate,
            ],
        )

    def _panel_of(self, row: Value) -> Value:
        """Where a panel of rows is packed."""
        at, item = self._packed(number(0), row), self.c.leader or self.c.item
        return element_address(self.b, self.home.storage.at[item, RIGHT_PART], at, item.dtype)

    def _there(self, row: Value) -> Value:
        """Where a column's elements begin, as they lie or as they have been converted."""
        b, nth = self.b, row if self.c.direct else self.b.sub(row, self.first)
        return element_address(b, self.base, b.mul(nth, self.left_steps[0]), self.stored)

    # ---- what reads the sums ---------------------------------------------------------------------

    def _sum(self, row: Value, column: Value) -> Value:
        """Address of a sum in scratch: of a row of the task's, counted from its first one."""
        b = self.b
        at = b.add(b.mul(row, number(TURNED_PITCH)), b.sub(column, self.start))
        return self.at(SUMS_PART, at)

    def _read_rows(self, low: Value, high: Value) -> None:
        """What reads the sums of some columns, row by row."""
        b, c, home, lanes = self.b, self.c, self.home, self.c.tile.lanes
        self.top = home.open(self.nest, Scope(home.top))
        first, last = home.ranges[c.n]

        def line(row: Value) -> None:
            place = Scope(self.top, {c.n: row})
            home.enter(place, 1)

            def read(at: Value, mask: Value | None) -> None:
                inner = Scope(place, {c.m: at}, lanes=Lanes(c.m, at, lanes, mask))
                for one in (*self.beneath, self):
                    there = one._sum(b.sub(row, first), at)
                    inner.values[one.c.item] = load_vector(self.m, there, one.c.item.dtype, None)
                home.enter(inner, 2)
                home.body(inner)

            each_vector(
                b, home, b.sub(high, low), lanes, lambda at, mask: read(b.add(low, at), mask)
            )

        home.loop(first, last, 1, line)


__all__ = ["SmallMSwappedGemm"]
