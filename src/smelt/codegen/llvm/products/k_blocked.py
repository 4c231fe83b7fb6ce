"""A deep product: a wide one whose summed positions are taken block by block.

    for each block of k:
        pack the right operand in panels, and the left one unless its rows are read where they lie
        for 12 rows, for 32 columns:  sums += left * right, in registers; in scratch between blocks
        (of the last block) what reads the sums gets them from the registers

Blocks of both operands and the sums stay in L2 together, however many positions are summed; tiles
ask memory for what the next block packs.  A left operand that lies along its rows is packed in
strips of a vector's rows, position by position: whole vectors of it are stored as they are read,
and nothing is turned.

Where few instructions start in a cycle, packing counts as much as what it waits for.  There the
rows of a tile are packed when their turn comes: they are in the first cache then, leave the second
one to the right operand, and each panel of the tile before asks memory for one of them (products of
1024 to 2048 take 0.93 of the time).

A right operand that lies in panels already is read there; all tiles of a panel share in asking for
the part of it that the next block, or the next task, reads first.

There is but one tile.  Where rows or columns are left over, it computes some that nobody asked for,
from what happens to lie behind the packed ones, and those that are asked for are read from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import LINE, ask_ahead
from smelt.codegen.llvm.instructions.indexing import iota, number, opaque, splat
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.products.block_sums import with_before
from smelt.codegen.llvm.products.gemv import fma_step
from smelt.codegen.llvm.products.tall_skinny import TallSkinnyGemm
from smelt.codegen.llvm.products.tile_loops import rounds
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.operands import load_of
from smelt.codegen.llvm.schedule.tall_skinny import TallSkinnyPlan
from smelt.codegen.llvm.scratch.workspace import LEFT_PART, RIGHT_PART
from smelt.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.expr import axes_of

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
TOGETHER = 4
"""Rows that begin at a multiple of so many lie in one strip."""
ROWS_AHEAD = 8
"""Rows by which packing runs behind what it has asked memory for.  These are short: four of them
are packed before memory has answered.  They are asked into the first cache, since what is packed
pushes nothing out of it that is needed before (gradients of large heads take 0.96 of the time)."""
NARROW_AHEAD = 2
"""The same where few instructions start in a cycle: what is asked for waits for memory instead of
what multiplies (measured on a Cascade Lake: 0.99 of the time)."""
PANEL_AHEAD = 1024
"""Bytes of a panel between what a tile multiplies and what it asks for into the first cache, where
it asks for nothing else: all that it reads and adds to lies in the second one."""
UNROLLED = 4
"""Positions that the loop of the tile takes at once: what it counts takes a tenth of the slots for
instructions otherwise, which the other thread of a core wants too."""
WHOLE = 32
"""Positions that blocks begin at a multiple of: lanes of the widest vectors of two bytes each.
What lies in pieces along the sum (heads) is read by vectors that must not reach from one to the
next."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Lines of an operand that lie in runs, all of the same length."""

    base: Value
    apart: Value
    """Bytes between runs."""
    length: Value
    """Bytes of a run."""
    count: Value
    """Runs: none if no block follows."""


class KBlockedGemm(TallSkinnyGemm):
    """One deep product in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: TallSkinnyPlan) -> None:
        super().__init__(home, nest, c)
        self.apart = {c.m: number(self.c.pitch), c.k: number(1)}
        self.pitch = self._whole(
            self.b.add(self.columns, number(c.tile.columns - 1)), c.tile.columns
        )
        self.later = list[Runs]()
        self.fresh: Value = ir.IntType(1)(0)
        self.final: Value = ir.IntType(1)(0)
        """Whether the block at hand is the first one, or the last one."""
        self.low = self.high = number(0)
        """The first of all summed positions, and the end of them."""
        self.each = number(c.depth)
        """Positions of a block."""

    def run(self) -> None:
        """All summed positions of this task, block by block: one block at least, for empty sums.
        Those that share a packed operand take each block one after the other."""
        home, b, c = self.home, self.b, self.c
        every = self._sharing()
        if every[-1].c is not c:
            return
        low, high = home.ranges[c.k]
        home.prefetch_enabled = False
        each = self._even(b.sub(high, low))

        def block(at: Value) -> None:
            end = b.add(at, each)
            end = b.select(b.icmp_signed("<", end, high), end, high)
            home.ranges[c.k] = at, end
            place = (
                b.sub(end, at),
                *(b.icmp_signed("==", *pair) for pair in ((at, low), (end, high))),
            )
            for one in every:
                home.products = one
                one.low, one.high, one.each, one.first = low, high, each, home.ranges[c.m][0]
                one.depth, one.fresh, one.final = place
                one._block()
            home.ranges[c.k] = low, high

        once = b.add(low, number(1))
        home.loop(low, b.select(b.icmp_signed("<", high, once), once, high), each, block)
        home.prefetch_enabled = True

    def _sharing(self) -> list[Self]:
        """This one and the others that read the same packed left operand, in order."""
        first = self.c.leader or self.c.item
        every = [*self._others(), self]
        order = [n.product for n in self.home.s.nests]
        found = [one for one in every if (one.c.leader or one.c.item) is first]
        return sorted(found, key=lambda one: order.index(one.c))

    def _even(self, depth: Value) -> Value:
        """Positions of each block, so that all are about as large: a short last one would read and
        write all sums for few products, and have to ask in its course for all that a long one
        packs.  Blocks begin at whole vectors: none is cut where an axis is taken apart."""
        b, most = self.b, number(self.c.depth)
        pieces = b.udiv(b.add(depth, b.sub(most, number(1))), most)
        none = b.icmp_signed("==", pieces, number(0))
        pieces, depth = (b.select(none, number(1), x) for x in (pieces, depth))
        each = b.udiv(b.add(depth, b.sub(pieces, number(1))), pieces)
        each = self._whole(b.add(each, number(WHOLE - 1)), WHOLE)
        return b.select(b.icmp_signed("<", each, most), each, most)

    def _later(self) -> Value:
        """Positions of the block that follows this one, if one does."""
        b = self.b
        left = b.sub(self.high, self.home.ranges[self.c.k][1])
        return b.select(b.icmp_signed("<", left, self.each), left, self.each)

    def _block(self) -> None:
        """One block of summed positions: packs, multiplies, and reads the sums of the last one."""
        home, b, c = self.home, self.b, self.c
        if not c.panels:
            self._clear_beyond()
            self._pack_right()
        self._open_left()
        if not (c.direct or c.by_tiles) and c.leader is None:
            self.pack(self.nest.packs[0])
        self._foresee()
        if c.panels:
            self.right_top = home.open(self.nest.packs[1], Scope(home.top))
        self._open_tiles()
        low, high = home.ranges[c.m]
        end = b.sub(high, b.urem(b.sub(high, low), number(c.tile.rows)))
        if c.by_tiles:
            home.loop(low, high, c.tile.rows, self._packed_tiles)
            self._open_tiles()
        elif self._is_spaced():
            home.loop(low, end, c.tile.rows, lambda row: self._tiles(row, whole=True))
            home.loop(end, high, c.tile.rows, self._tiles)
        else:
            home.loop(low, high, c.tile.rows, self._tiles)
        if c.kept:
            return
        with b.if_then(self.final):
            home.loop(low, high, 1, lambda row: self._rest(row, b.icmp_signed("<", row, end)))

    def _open_tiles(self) -> None:
        """What is known before the loops over tiles."""
        self.top = self.home.open(self.nest, Scope(self.home.top))
        self._know_steps()

    def _packed_tiles(self, row: Value) -> None:
        """The tiles of some rows, which are packed when their turn comes: they are in the first
        cache then, and leave the second one to the right operand."""
        home, b, c = self.home, self.b, self.c
        low, high = home.ranges[c.m]
        end = b.add(row, number(c.tile.rows))
        home.ranges[c.m] = row, b.select(b.icmp_signed("<", end, high), end, high)
        self.pack(self.nest.packs[0])
        home.ranges[c.m] = low, high
        self._open_tiles()
        self._tiles(row)

    # ---- what is packed next ---------------------------------------------------------------------

    def _foresee(self) -> None:
        """How the operands lie that the next block packs: packing would wait for both of them.
        One alone is soon packed, and tiles that read rows where they lie need all registers; a
        narrow machine has no instructions to spare."""
        c, packs = self.c, self.nest.packs
        if c.by_tiles:
            runs = self._runs(c.left, packs[0], c.m, (self.home.ranges[c.k][0], self.depth))
            self.later = [runs] if runs is not None else []
            return
        none = c.direct or c.panels or c.narrow
        sides = () if none else ((c.right, packs[1], c.n), (c.left, packs[0], c.m))
        found = (self._runs(*side) for side in sides[: 2 if c.leader is None else 1])
        self.later = [runs for runs in found if runs is not None]

    def _runs(
        self, item: Item, nest: Nest, across: str, part: tuple[Value, Value] | None = None
    ) -> Runs | None:
        """Where the next block's part of an operand lies, or a part that begins at one summed
        position and takes so many; None if it is computed or gathered."""
        b, home, k = self.b, self.home, self.c.k
        access = load_of(item)
        if access is None or access.positions:
            return None
        steps = {a: coefficient(access.offset, a) for a in (k, across)}
        along = next((a for a in (across, k) if steps[a] == 1), None)
        if along is None or any(x is None or axes_of(x) for x in steps.values()):
            return None
        top, dtype = home.open(nest, Scope(home.top)), home.home.dtypes[access.buffer]
        apart = {a: home.index(x or 0, top) for a, x in steps.items()}
        (first, last), (start, _) = home.ranges[across], part or home.ranges[k][::-1]
        at = b.add(b.add(top.offset(access), b.mul(first, apart[across])), b.mul(start, apart[k]))
        base = element_address(b, home.home.buffers[access.buffer], at, dtype)
        length, count = b.sub(last, first), part[1] if part else self._later()
        if along == k:
            length, count = count, length
        size, other = number(dtype.itemsize), k if along == across else across
        if part is None:
            count = b.select(self.final, number(0), count)
        return Runs(base, b.mul(apart[other], size), b.mul(length, size), count)

    def _rows_ahead(self, count: int) -> int:
        """A tile's own sums take long enough."""
        return 0

    def _asked(self, row: Value, column: Value) -> list[tuple[Value, Value]]:
        """Where the runs begin that a tile of this block asks for, one of each operand, and their
        bytes: one of the next rows, where these are packed tile by tile."""
        b, tile, found = self.b, self.c.tile, list[tuple[Value, Value]]()
        if self.c.by_tiles:
            nth = b.add(b.add(row, number(tile.rows)), b.udiv(column, number(tile.columns)))
            end = b.add(row, number(2 * tile.rows))
        elif self.c.panels:
            return [self._panel_ahead(row, column)]
        else:
            panels = b.udiv(self.pitch, number(tile.columns))
            nth = b.mul(b.udiv(row, number(tile.rows)), panels)
            nth, end = b.add(nth, b.udiv(column, number(tile.columns))), None
        for runs in self.later:
            some = b.icmp_signed("<", nth, runs.count)
            some = some if end is None else b.and_(some, b.icmp_signed("<", nth, end))
            at = b.mul(b.select(some, nth, number(0)), runs.apart)
            first = b.gep(runs.base, [at], source_etype=ir.IntType(8))
            found.append((first, b.select(some, runs.length, number(0))))
        return found

    # ---- operands --------------------------------------------------------------------------------

    def _open_left(self) -> None:
        super()._open_left()
        if not self.c.direct:
            self.left_steps = [
                number(self.c.pitch),
                number(self.c.tile.lanes if self.c.across else 1),
            ]

    def unit(self, nest: Nest) -> int:
        """Strips are whole vectors of rows."""
        return self.c.tile.lanes if nest.packed == "left" and self.c.across else super().unit(nest)

    def put(self, nest: Nest, value: Value, scope: Scope) -> None:
        """Stores one vector of a packed operand: of a strip a whole one, at its position."""
        b, c = self.b, self.c
        there = c.by_tiles and nest.packed == "left" and load_of(c.left) is not None
        if scope.lanes is not None and scope.lanes.mask is None and not there:
            ask_ahead(self.home, nest, scope, NARROW_AHEAD if c.narrow else ROWS_AHEAD, near=True)
        if nest.packed == "right" or not c.across:
            super().put(nest, value, scope)
            return
        k, row = (b.sub(scope.axis(a), self.starts[a]) for a in (c.k, c.m))
        strip = self._whole(row, c.tile.lanes)
        at = b.add(b.mul(strip, number(self.c.pitch)), b.mul(k, number(c.tile.lanes)))
        value = splat(b, value, c.tile.lanes)
        store_vector(self.m, self.at(LEFT_PART, at), value, c.item.dtype, None)

    def _is_spaced(self) -> bool:
        """Whether rows lie a known way apart where whole tiles of them are to be addressed by one
        register: a narrow machine has no slots for what more registers than there are take."""
        c, apart = self.c, self.left_steps[0]
        return c.narrow and c.direct and not c.picked and isinstance(apart, ir.Constant)

    def _spaced(self, row: Value, count: int) -> list[Value]:
        """Where such rows of a whole tile begin."""
        b, apart = self.b, self.left_steps[0]
        first = element_address(b, self.base, b.mul(row, apart), self.stored)
        return [
            element_address(b, first, b.mul(number(i), apart), self.stored) for i in range(count)
        ]

    def _starts(self, row: Value, count: int) -> list[Value]:
        """Where the rows of a tile begin; rows beyond the last one are the last one, or what lies
        behind it in scratch."""
        b, c, found = self.b, self.c, list[Value]()
        if c.direct:
            return self._clamped(row, count)
        if not c.across:  # a known way apart: one address does for all
            at = number(0) if c.by_tiles else b.mul(b.sub(row, self.first), number(c.pitch))
            first = element_address(b, self.base, at, self.stored)
            return [
                element_address(b, first, number(i * c.pitch), self.stored) for i in range(count)
            ]
        for i in range(0, count, TOGETHER):
            place = b.add(b.sub(row, self.first), number(i))
            strip = self._whole(place, c.tile.lanes)
            at = b.add(b.mul(strip, number(self.c.pitch)), b.sub(place, strip))
            found += [
                element_address(b, self.base, b.add(at, number(j)), self.stored)
                for j in range(min(TOGETHER, count - i))
            ]
        return found

    # ---- the tile --------------------------------------------------------------------------------

    def _tiles(self, row: Value, whole: bool = False) -> None:
        """All columns of the rows of a tile, panel by panel."""
        b, c, home = self.b, self.c, self.home
        starts = (self._spaced if whole else self._starts)(row, c.tile.rows)
        low, high = home.ranges[c.n]
        lower = b.icmp_signed("<=", b.add(row, number(c.tile.rows)), home.ranges[c.m][1])
        read = b.and_(lower, self.final)
        origins = self._origins(row)

        def panel(at: Value) -> None:
            some = self.later or (c.panels and not c.narrow)
            asked = self._asked(b.sub(row, self.first), b.sub(at, low)) if some else []
            kept = self._kept(row, at, c.tile.rows, c.tile.vectors)
            if not c.narrow:
                self._ask_beside(row, at, origins)
            totals = self._total(starts, b.sub(at, low), asked)
            totals = with_before(self.m, kept, c.item.dtype, totals, self.fresh)
            if c.late:
                self._keep(kept, totals)
                return
            inside = b.icmp_signed("<=", b.add(at, number(c.tile.columns)), high)
            with b.if_else(b.and_(read, inside)) as (here, later):
                with here:
                    self._read_tile(row, c.tile.rows, at, None, totals)
                with later:
                    self._keep(kept, totals)

        home.loop(low, high, c.tile.columns, panel)

    def _ask_beside(self, row: Value, column: Value, origins: Mapping[Access, Value]) -> None:
        """Has the processor fetch the sums of the next tile of these rows, and in a last block what
        stands beside the results of this one, and these."""
        b, tile = self.b, self.c.tile
        for place in self._kept(row, b.add(column, number(tile.columns)), tile.rows, tile.vectors):
            prefetch(b, place, near=True)
        if origins:
            with b.if_then(self.final):
                for course in self._courses(origins, column, tile.rows, tile.vectors):
                    course.at_once()

    def _read_tile(
        self, row: Value, count: int, column: Value, mask: Value | None, totals: list[Value]
    ) -> None:
        """What reads all sums of a tile, from registers."""
        self._read_all(row, self._places(row, count), column, mask, totals)

    def _kept(self, row: Value, column: Value, count: int, vectors: int) -> list[Value]:
        """Where the sums of a tile are between blocks."""
        b, c = self.b, self.c
        first = self._sum(row, column)
        found: list[Value] = []
        for i in range(count):
            line = element_address(b, first, b.mul(self.pitch, number(i)), c.item.dtype)
            found += [
                element_address(b, line, number(v * c.tile.lanes), c.item.dtype)
                for v in range(vectors)
            ]
        return found

    def _keep(self, places: list[Value], totals: list[Value]) -> None:
        for place, total in zip(places, totals, strict=True):
            store_vector(self.m, place, total, self.c.item.dtype, None)

    def _total(
        self, starts: list[Value], column: Value, asked: list[tuple[Value, Value]]
    ) -> list[Value]:
        """A tile's sums over this block; each round asks for a line of runs."""
        b, c = self.b, self.c
        first = self._first(column)

        def one(k: Value, totals: list[Value], nth: int) -> list[Value]:
            places = self._panel(k, nth, first, c.tile.vectors)
            for place in places if c.narrow else ():
                there = b.gep(place, [number(PANEL_AHEAD)], source_etype=ir.IntType(8))
                prefetch(b, there, near=True)
            across = [load_vector(self.m, place, c.item.dtype, None) for place in places]
            return self._multiplied(starts, k, nth, across, totals)

        def asking(k: Value, totals: list[Value], nth: int) -> list[Value]:
            for first, length in () if nth else asked:
                there = b.mul(k, number(LINE // UNROLLED))
                there = b.select(b.icmp_signed("<", there, length), there, length)
                prefetch(b, b.gep(first, [there], source_etype=ir.IntType(8)))
            return one(k, totals, nth)

        whole = self._whole(self.depth, UNROLLED)
        begin = [self.m.const(c.item.dtype, 0)] * (c.tile.rows * c.tile.vectors)
        begin = rounds(self.b, (number(0), whole), UNROLLED, asking, begin)
        return rounds(self.b, (whole, self.depth), 1, one, begin)

    def _first(self, column: Value) -> Value:
        """Where a panel of this block begins."""
        if not self.c.panels:
            return self.at(RIGHT_PART, self._packed(number(0), column))
        return self._panel_at(column, self.home.ranges[self.c.k][0])

    def _panel_at(self, column: Value, k: Value) -> Value:
        """The same of one that lies in panels, from a summed position on."""
        home, b, c = self.home, self.b, self.c
        access = load_of(c.right)
        assert access is not None
        place = {c.n: b.add(home.ranges[c.n][0], column), c.k: k}
        at = home.index(access.offset, Scope(self.right_top, place))
        return element_address(b, home.home.buffers[access.buffer], at, c.item.dtype)

    def _panel_ahead(self, row: Value, column: Value) -> tuple[Value, Value]:
        """The part of a panel of the next block, or of the next task's first one, that falls to a
        tile of this one."""
        home, b, c = self.home, self.b, self.c
        (first, last), (_, end) = home.ranges[c.m], home.ranges[c.k]
        beside = b.add(column, b.select(self.final, self.columns, number(0)))
        begin = self._panel_at(beside, b.select(self.final, self.low, end))
        tiles = b.udiv(b.add(b.sub(last, first), number(c.tile.rows - 1)), number(c.tile.rows))
        size = number(c.tile.columns * c.item.dtype.itemsize)
        share = b.udiv(b.mul(self.depth, size), b.mul(tiles, number(LINE)))
        share = b.mul(b.add(share, number(1)), number(LINE))
        part = b.mul(b.udiv(row, number(c.tile.rows)), share)
        return b.gep(begin, [part], source_etype=ir.IntType(8)), share

    def _multiplied(
        self, starts: list[Value], k: Value, nth: int, across: list[Value], totals: list[Value]
    ) -> list[Value]:
        """The sums with the products of one position added."""
        found: list[Value] = []
        for i, start in enumerate(starts):  # broadcasts do not wait in registers for their turn
            value = self._one(start, k, nth)
            found += [
                fma_step(self.m, value, x, totals[i * len(across) + v], self.c.item)
                for v, x in enumerate(across)
            ]
        return found

    # ---- what reads the sums later ---------------------------------------------------------------

    def _rest(self, row: Value, whole: Value) -> None:
        """Reads a row's sums from scratch, as far as its tiles have not done so."""
        b, c, home, lanes = self.b, self.c, self.home, self.c.tile.lanes
        low, high = home.ranges[c.n]
        first = low
        if not c.late:
            first = b.select(whole, b.add(low, self._whole(self.columns, c.tile.columns)), low)
        end = b.add(low, self._whole(self.columns, lanes))
        (place,) = self._places(row, 1)

        def read(at: Value, mask: Value | None) -> None:
            total = load_vector(self.m, self._sum(row, at), c.item.dtype, None)
            self._read(place, at, mask, total)

        def masked(at: Value) -> None:
            left = opaque(b, b.sub(high, at))
            read(at, b.icmp_signed("<", iota(lanes), splat(b, left, lanes)))

        home.loop(first, end, lanes, lambda at: read(at, None))
        home.loop(end, high, lanes, masked)


__all__ = ["KBlockedGemm"]
