"""A tall product: some rows at once under a tile, and what reads its sums on the spot.

The sums of a tile stay in registers: for each of its rows they are known to the nest that reads
them, which computes and stores what follows.  Where that is long, it is not written out for every
row: the sums of some rows go to scratch first.  Where less than a whole tile of rows is left, they
are taken by lower tiles, one by one in the end: nothing is computed twice, since results may
overwrite operands.

The left operand is multiplied where it lies, or else some rows of it are packed first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.indexing import I64, iota, number, opaque, splat
from smelt.codegen.llvm.items import Access, Item
from smelt.codegen.llvm.machine import LLVMMachine
from smelt.codegen.llvm.memory import (
    element_address,
    load_scalar,
    load_vector,
    prefetch,
    store_vector,
)
from smelt.codegen.llvm.nests import Nest
from smelt.codegen.llvm.operands import load_of
from smelt.codegen.llvm.packer import Packer
from smelt.codegen.llvm.scope import Lanes, Scope
from smelt.codegen.llvm.scratch import copied, each_vector
from smelt.codegen.llvm.storage import LEFT_PART, RIGHT_PART, STAGED_PART, SUMS_PART
from smelt.codegen.llvm.stretches import in_stretches, stretched
from smelt.codegen.llvm.tall import Tall
from smelt.codegen.llvm.thin import multiply_add
from smelt.codegen.llvm.turn import turned
from smelt.codegen.llvm.versions import needed
from smelt.ops.cast import cast
from smelt.types.affine import coefficient
from smelt.types.dtype import DType

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
AHEAD = 8192
"""Bytes between what is read of long rows and what is asked for."""


class TallEmitter(Packer):
    """One tall product in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: Tall) -> None:
        super().__init__(home, c.item)
        self.nest, self.c = nest, c
        self.m = LLVMMachine(self.b, c.tile.lanes, home.home.target)
        self.scalar = LLVMMachine(self.b, None, home.home.target)
        self.first, self.staged = number(0), False
        """Of the rows at hand; and whether they are stored by way of scratch."""
        self.top = home.top
        self.rows_apart: dict[Access, Value] = {}
        self.left_steps: list[Value] = []
        low, high = home.ranges[c.k]
        self.depth = self.b.sub(high, low)
        self.column, high = home.ranges[c.n]
        self.columns = self.b.sub(high, self.column)
        self.pitch = self._whole(self.b.add(self.columns, number(c.tile.lanes - 1)), c.tile.lanes)
        """Elements between packed lines of the right operand, and between rows of sums."""
        self.strides = {c.k: self.pitch, c.n: number(1)}
        self.apart = {c.m: self.depth, c.k: number(1)}

    def _whole(self, count: Value, step: int) -> Value:
        return self.b.and_(count, number(-step))

    def run(self) -> None:
        """All rows of this task, some at a time."""
        home, b, c = self.home, self.b, self.c
        low, high = home.ranges[c.m]
        self._pack_right()
        self._open_left()
        home.foresees = False
        even = b.icmp_signed("==", b.urem(self.columns, number(c.tile.lanes)), number(0))

        def some(at: Value) -> None:
            end = b.add(at, number(c.staged))
            end = b.select(b.icmp_signed("<", end, high), end, high)
            self.first, home.ranges[c.m] = at, (at, end)
            self._pack_left()
            self.top = home.open(self.nest, Scope(home.top))
            self._know_steps()
            if not c.dense:
                self._results(at, end)
            else:
                with b.if_else(even) as (lines, parts):
                    with lines:
                        self._results(at, end)
                    with parts:
                        self.staged = True
                        self._results(at, end)
                        self._copy(at, end)
                        self.staged = False
            home.ranges[c.m] = low, high

        home.loop(low, high, c.staged, some)
        home.foresees = True

    def _know_steps(self) -> None:
        """How far apart the places of neighbouring rows are."""
        home = self.home
        steps = {a: coefficient(a.offset, self.c.m) for a in home.accesses if not a.positions}
        self.rows_apart = {a: home.index(s, self.top) for a, s in steps.items() if s is not None}

    # ---- the left operand ------------------------------------------------------------------------

    def _open_left(self) -> None:
        """Finds where the left operand lies, and how far apart its rows and positions are."""
        home, b, c = self.home, self.b, self.c
        self.along, self.stored = "", c.item.dtype
        if not c.direct:
            self.base = home.storage.at[c.item, LEFT_PART]
            self.left_steps = [self.depth, number(1)]
            return
        access = load_of(c.left)
        assert access is not None
        top = home.open(self.nest.packs[0], Scope(home.top))
        self.left_steps = [home.index(coefficient(access.offset, a) or 0, top) for a in (c.m, c.k)]
        self.along = c.k if coefficient(access.offset, c.k) == 1 else ""
        origin = b.add(top.offset(access), b.mul(home.ranges[c.k][0], self.left_steps[1]))
        self.base = element_address(b, home.home.buffers[access.buffer], origin, self.stored)

    def _pack_left(self) -> None:
        """Some rows of the left operand, unless they are multiplied where they lie."""
        c, nest = self.c, self.nest.packs[0]
        if c.direct:
            return
        access = load_of(c.left)
        flat = access is not None and coefficient(access.offset, c.k) == 1
        if access is None or not flat or \
                coefficient(access.offset, c.m) != self.home.s.phase.axes[c.k]:  # fmt: skip
            self.pack(nest)
        else:
            self._convert(nest, access)

    def _convert(self, nest: Nest, access: Access) -> None:
        """The same where they are converted only, and follow one another without gaps."""
        home, b, c = self.home, self.b, self.c
        low, high = home.ranges[c.m]
        top = home.open(nest, Scope(home.top))
        dtype = home.home.dtypes[access.buffer]
        origin = b.add(top.offset(access), b.mul(low, self.depth))
        base = element_address(b, home.home.buffers[access.buffer], origin, dtype)

        def put(at: Value, mask: Value | None) -> None:
            found = load_vector(self.m, element_address(b, base, at, dtype), dtype, mask)
            found = converted(self.m, found, c.left)
            store_vector(self.m, self.at(LEFT_PART, at), found, c.item.dtype, None)

        each_vector(b, home, b.mul(b.sub(high, low), self.depth), c.tile.lanes, put)

    def _pack_right(self) -> None:
        """All of the right operand: of one that is turned each panel from its begin to its end."""
        nest, c, home = self.nest.packs[1], self.c, self.home
        self.starts = {a: home.ranges[a][0] for a in nest.order}
        if not nest.turned:
            self.pack(nest)
            return
        axes = stretched(home, nest, c.tile.columns)
        in_stretches(home, axes, lambda: self._turn_right(nest))

    def _turn_right(self, nest: Nest) -> None:
        """A stretch of a right operand that is turned."""
        c, home = self.c, self.home
        items = needed(nest, home.taken) if home.taken else nest.items
        if len(items) == 1 and items[0] in nest.turned:
            m = LLVMMachine(self.b, c.tile.lanes, home.home.target)

            def put(k: Value, column: Value, value: Value) -> None:
                at = (self.b.sub(x, self.starts[a]) for x, a in ((k, c.k), (column, c.n)))
                store_vector(m, self.at(RIGHT_PART, self._packed(*at)), value, c.item.dtype, None)

            turned(home, items[0], home.open(nest, Scope(home.top)), put)
            return

        def turn() -> None:
            home.run(nest, Scope(home.top))

        self._pieces(c.n, lambda: self._pieces(c.k, turn))

    def _clear_beyond(self) -> None:
        """The last panel's lanes without a column are 0: subnormal numbers that other kernels left
        there would take a hundred cycles each."""
        b, c = self.b, self.c
        whole, zero = self._whole(self.columns, c.tile.columns), self.m.const(c.item.dtype, 0)

        def line(k: Value) -> None:
            for v in range(c.tile.vectors):
                at = self._packed(k, b.add(whole, number(v * c.tile.lanes)))
                store_vector(self.m, self.at(RIGHT_PART, at), zero, c.item.dtype, None)

        with b.if_then(b.icmp_signed("!=", whole, self.columns)):
            self.home.loop(number(0), self.depth, 1, line)

    def plain(self, nest: Nest) -> Collection[str]:
        return () if nest.turned else nest.order

    def unit(self, nest: Nest) -> int:
        return self.c.tile.columns if nest.packed == "right" and self.c.wide else 1

    def offset(self, nest: Nest, scope: Scope) -> Value:
        """Where the vector at a scope goes, in elements."""
        c, b = self.c, self.b
        if not c.wide or nest.packed != "right":
            return super().offset(nest, scope)
        k, column = scope.axis(c.k), scope.axis(c.n)
        return self._packed(b.sub(k, self.starts[c.k]), b.sub(column, self.column))

    def _packed(self, k: Value, column: Value) -> Value:
        """Where an element of the right operand is packed."""
        b, wide = self.b, self.c.tile.columns
        if not self.c.wide:
            return b.add(b.mul(k, self.pitch), column)
        panel = b.mul(self._whole(column, wide), self.depth)
        inside = b.and_(column, number(wide - 1))
        return b.add(b.add(panel, b.mul(k, number(wide))), inside)

    def put(self, nest: Nest, value: Value, scope: Scope) -> None:
        """Stores one vector of a packed operand: of the left one a whole vector, over whose end the
        next row is stored, unless parts of all rows come one after another."""
        if nest.packed == "right" or scope.lanes is None or self.parted:
            super().put(nest, value, scope)
            return
        lanes = scope.lanes.count
        to = self.at(LEFT_PART, self.offset(nest, scope))
        m = LLVMMachine(self.b, lanes, self.home.home.target)
        store_vector(m, to, splat(self.b, value, lanes), self.item.dtype, None)

    def _clamped(self, row: Value, count: int) -> list[Value]:
        """Where the rows of a tile begin that follow one another; those beyond the last one are the
        last one."""
        b, c = self.b, self.c
        last = b.sub(self.home.ranges[c.m][1], number(1))
        found: list[Value] = []
        for i in range(count):
            at = b.add(row, number(i)) if i else row
            at = b.select(b.icmp_signed("<", at, last), at, last)
            at = b.mul(at if c.direct else b.sub(at, self.first), self.left_steps[0])
            found.append(element_address(b, self.base, at, self.stored))
        return found

    # ---- rows ------------------------------------------------------------------------------------

    def _results(self, low: Value, high: Value) -> None:
        """Whole tiles of rows, then lower ones; then what reads them, if that comes later."""
        b, c, loop, done = self.b, self.c, self.home.loop, low
        part = "whole" if c.wide else ""
        for size in c.heights[:-1]:
            end = b.sub(high, b.urem(b.sub(high, done), number(size)))
            loop(done, end, size, lambda row, size=size: self._rows(row, size, part))
            done = end
        if part:
            self._beside(low, done)
        loop(done, high, 1, lambda row: self._rows(row, 1))
        if self.c.late:
            loop(low, high, 1, self._late)

    def _beside(self, low: Value, high: Value) -> None:
        """Columns beside whole panels: tiles of a vector, as high as others and lower ones."""
        done, (full, *_, lower, _) = low, self.c.heights
        for size in (full, lower):
            end = self.b.sub(high, self.b.urem(self.b.sub(high, done), number(size)))
            self.home.loop(done, end, size, lambda row, size=size: self._rows(row, size, "rest"))
            done = end

    def _copy(self, low: Value, high: Value) -> None:
        """Rows of results from scratch to where they belong.  They were stored whole vector by
        whole vector, one over the end of the other: stores of a few lanes take several times as
        long."""
        b, home, c = self.b, self.home, self.c
        count = b.mul(b.sub(high, low), self.columns)
        place = Scope(self.top, {c.m: low})
        home.enter(place, 1)
        for j, s in enumerate(self.nest.stores):
            dtype = home.home.dtypes[s.access.buffer]
            base = home.home.buffers[s.access.buffer]
            to = element_address(b, base, place.offset(s.access), dtype)
            copied(b, home, home.storage.at[c.item, STAGED_PART + j], to, count, dtype)

    def _rows(self, row: Value, count: int, part: Literal["", "whole", "rest"] = "") -> None:
        """All columns of some rows; or whole panels of them, or what is beside these."""
        self._across(self._tile(row, count), self.c.tile.vectors, part)

    def _tile(self, row: Value, count: int) -> Any:
        """What computes and stores some columns of some rows."""
        b, c = self.b, self.c
        at = b.mul(row if c.direct else b.sub(row, self.first), self.left_steps[0])
        first = element_address(b, self.base, at, self.stored)
        starts = [element_address(b, first, b.mul(number(i), self.left_steps[0]), self.stored)
                  for i in range(count)]  # fmt: skip
        places = [] if c.late else self._places(row, count)
        lanes = c.tile.lanes

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            totals = self._sums(starts, b.sub(at, self.column), vectors, mask)
            for j, total in enumerate(totals):
                i, v = divmod(j, vectors)
                here = b.add(at, number(v * lanes)) if v else at
                if c.late:
                    to = self._sum(b.add(row, number(i)), here)
                    store_vector(self.m, to, total, c.item.dtype, None)
                else:
                    self._read(places[i], here, mask, total)

        return columns

    def _places(self, row: Value, count: int) -> list[Scope]:
        """The scopes of some rows."""
        b, home, c = self.b, self.home, self.c
        places = [Scope(self.top, {c.m: b.add(row, number(i))}) for i in range(count)]
        home.enter(places[0], 1)
        for i, place in enumerate(places[1:], 1):
            for access, step in self.rows_apart.items():
                if access in places[0].offsets:
                    before = places[0].offsets[access]
                    place.offsets[access] = b.add(before, b.mul(number(i), step))
            home.enter(place, 1)
        return places

    def _across(
        self, put: Any, vectors: int, part: Literal["", "whole", "rest"] = ""
    ) -> None:  # fmt: skip
        """`put(column, vectors, mask)` for all columns, so many vectors at once where there are:
        first for what is less than a vector, which may be stored over the begin of the next row.
        Of `part` "whole" only where there are so many, of "rest" the others, one by one."""
        b, home, c = self.b, self.home, self.c
        (low, high), lanes, wide = home.ranges[c.n], c.tile.lanes, c.tile.lanes * vectors
        size = b.sub(high, low)
        whole, many = b.add(low, self._whole(size, lanes)), b.add(low, self._whole(size, wide))

        def masked(at: Value) -> None:
            left = opaque(b, b.sub(high, at))
            put(at, 1, b.icmp_signed("<", iota(lanes), splat(b, left, lanes)))

        if part != "whole":
            home.loop(many if part == "rest" else whole, high, lanes, masked)
        if part != "rest":
            home.loop(low, many, wide, lambda at: put(at, vectors, None))
        if wide > lanes and not part:
            home.loop(many, whole, lanes, lambda at: put(at, 1, None))

    # ---- what reads the sums ---------------------------------------------------------------------

    def _sum(self, row: Value, column: Value) -> Value:
        """Address of a sum in scratch."""
        b, low = self.b, self.home.ranges[self.c.n][0]
        at = b.add(b.mul(b.sub(row, self.first), self.pitch), b.sub(column, low))
        return self.at(SUMS_PART, at)

    def _late(self, row: Value) -> None:
        """What reads the sums of a row, from scratch."""
        (place,), c, b = self._places(row, 1), self.c, self.b

        def columns(at: Value, vectors: int, mask: Value | None) -> None:
            for v in range(vectors):
                here = b.add(at, number(v * c.tile.lanes)) if v else at
                total = load_vector(self.m, self._sum(row, here), c.item.dtype, None)
                self._read(place, here, mask, total)

        # What is read after long sums need not be written out more than once.
        self._across(columns, 1 if c.wide else c.tile.vectors)

    def _read(self, place: Scope, column: Value, mask: Value | None, total: Value) -> None:
        """Computes and stores what reads one vector of sums."""
        home, b, c = self.home, self.b, self.c
        inner = Scope(place, {c.n: column}, lanes=Lanes(c.n, column, c.tile.lanes, mask))
        inner.values[c.item] = total
        home.enter(inner, 2)
        if not self.staged:
            home.body(inner)
            return
        row = b.mul(b.sub(inner.axis(c.m), self.first), self.columns)
        at = b.add(row, b.sub(column, home.ranges[c.n][0]))
        for j, s in enumerate(self.nest.stores):
            dtype = home.home.dtypes[s.access.buffer]
            to = element_address(b, home.storage.at[c.item, STAGED_PART + j], at, dtype)
            store_vector(self.m, to, home.get(s.value, inner, True), dtype, None)

    # ---- the tile --------------------------------------------------------------------------------

    def _sums(
        self, starts: list[Value], column: Value, vectors: int, mask: Value | None
    ) -> list[Value]:  # fmt: skip
        """The sums of some rows and vectors of columns over all of k."""
        c = self.c
        line = self.at(RIGHT_PART, self._packed(number(0), column))

        def one(k: Value, totals: list[Value], nth: int) -> list[Value]:
            across = self._line(k, nth, line, column, vectors, mask)
            if nth == 0:
                self._ask(starts, k, column)
            ones = [self._one(start, k, nth) for start in starts]
            return [multiply_add(self.m, ones[j // vectors], across[j % vectors], total, c.item)
                    for j, total in enumerate(totals)]  # fmt: skip

        begin, done = [self.m.const(c.item.dtype, 0)] * (len(starts) * vectors), number(0)
        if (step := self._unrolled(len(starts))) > 1:
            done = self._whole(self.depth, step)
            begin = self._added(number(0), done, step, one, begin)
        return self._added(done, self.depth, 1, one, begin)

    def _unrolled(self, height: int) -> int:
        """Positions that the loop of a tile takes at once."""
        return 1

    def _line(
        self, k: Value, nth: int, first: Value, column: Value, vectors: int, mask: Value | None
    ) -> list[Value]:  # fmt: skip
        """Some vectors of one line of the right operand: of the nth after the kth."""
        places = self._panel(k, nth, first, vectors)
        return [load_vector(self.m, place, self.c.item.dtype, mask) for place in places]

    def _panel(self, k: Value, nth: int, first: Value, vectors: int) -> list[Value]:
        """Where they are packed, `first` being the place of the first line."""
        c = self.c
        step = number(c.tile.columns) if c.wide else self.pitch
        line = self._on(first, k, nth, step, c.item.dtype)
        return [element_address(self.b, line, number(v * c.tile.lanes), c.item.dtype)
                for v in range(vectors)]  # fmt: skip

    def _on(self, first: Value, k: Value, nth: int, step: Value, dtype: DType) -> Value:
        """An address `k + nth` steps on, of which only `k` differs from round to round."""
        b = self.b
        at = element_address(b, first, b.mul(k, step), dtype)
        return element_address(b, at, b.mul(number(nth), step), dtype) if nth else at

    def _added(
        self, low: Value, high: Value, step: int, one: Any, begin: list[Value]
    ) -> list[Value]:  # fmt: skip
        """`one(k, sums, nth)` for all k from `low` to `high`, so many in each round."""
        b, before = self.b, self.b.block
        loop, done = b.append_basic_block("tile"), b.append_basic_block("tiled")
        b.cbranch(b.icmp_signed("<", low, high), loop, done)
        b.position_at_end(loop)
        k = b.phi(I64)
        k.add_incoming(low, before)
        totals = [b.phi(x.type) for x in begin]
        following: list[Value] = [*totals]
        for nth in range(step):
            following = one(k, following, nth)
        after, end = b.add(k, number(step)), b.block
        k.add_incoming(after, end)
        b.cbranch(b.icmp_signed("<", after, high), loop, done)
        b.position_at_end(done)
        found: list[Value] = []
        for first, total, value in zip(begin, totals, following, strict=True):
            total.add_incoming(first, before)
            total.add_incoming(value, end)
            last = b.phi(first.type)
            last.add_incoming(first, before)
            last.add_incoming(value, end)
            found.append(last)
        return found

    def _ask(self, starts: list[Value], k: Value, column: Value) -> None:
        """Has the processor fetch what later tiles read: a tile's rows are too many and too short
        for it to guess."""
        b = self.b
        if self.along == self.c.k and len(starts) > 1:
            ahead = number(AHEAD // self.stored.itemsize)
            if self.c.wide:  # the next rows, while the tiles of these use theirs
                ahead = b.mul(self.left_steps[0], number(len(starts)))
            at = b.add(b.mul(k, number(len(starts))), ahead)
            prefetch(b, element_address(b, starts[0], at, self.stored), near=not self.c.wide)

    def _one(self, start: Value, k: Value, nth: int) -> Value:
        """An element of the left operand in all lanes: of its row the nth after the kth."""
        at = self._on(start, k, nth, self.left_steps[1], self.stored)
        return splat(self.b, load_scalar(self.scalar, at, self.stored, None), self.c.tile.lanes)


def converted(m: LLVMMachine, value: Value, item: Item) -> Value:
    """What was loaded for an item, as the type to which this converts it."""
    chain = [item]
    while chain[-1].kind == "cast":
        chain.append(chain[-1].args[0])
    for outer, inner in zip(chain[-2::-1], chain[:0:-1], strict=True):
        value = cast(m, value, inner.dtype, outer.dtype)
    return value


__all__ = ["TallEmitter", "converted"]
