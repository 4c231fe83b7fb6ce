"""Products over windows with channels last: both operands packed, and register tiles over them.

The weights of one block go to panels as wide as the tile, tap by tap; the image's places side by
side.  A tile takes neighbouring places as its rows: for each tap a table says how far off those lie
that it reads, for each channel it broadcasts a number of each and multiplies a line of the panel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product as positions
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.products.before import with_before
from smelt.codegen.llvm.products.lines import along, lines_from
from smelt.codegen.llvm.products.margins import Margins
from smelt.codegen.llvm.products.packer import Packer
from smelt.codegen.llvm.products.share import PART, WHOLE, Share, ask, part
from smelt.codegen.llvm.products.sums import Spot, far, put
from smelt.codegen.llvm.products.thin import multiply_add
from smelt.codegen.llvm.products.tiling import (
    every_tile,
    every_width,
    function_apart,
    in_blocks,
)
from smelt.codegen.llvm.schedule.contract import Tile
from smelt.codegen.llvm.schedule.nests import Nest
from smelt.codegen.llvm.schedule.upright import Upright
from smelt.codegen.llvm.scratch.storage import LEFT_PART, RIGHT_PART, TABLE_PART
from smelt.codegen.llvm.scratch.turn import transpose
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, i64
from smelt.types.expr import substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

LINES = 16
"""Summed positions whose weights are packed together: all taps of a panel's columns that they have
stay in the first cache, since taps that follow each other in memory share its lines."""

Value = ir.Value
BIT, I32 = ir.IntType(1), ir.IntType(32)
ENTRY = 3
"""Numbers that a table has for each of its positions."""
Ends: TypeAlias = tuple[Value, Value]
"""Whether a block is the first one, and whether it is the last."""


class UprightEmitter(Packer):
    """One product over windows with channels last in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: Upright) -> None:
        super().__init__(home, c.item)
        self.nest, self.c, self.image = nest, c, c.image
        self.tap: Value = number(0)
        """The tap whose weights are packed."""
        self.firsts: dict[str, Value] = {}
        """Where the block of weights begins that is packed piece by piece."""
        self.margins: Margins | None = None

    def plain(self, nest: Nest) -> Collection[str]:
        return (self.c.depth,) if nest.packed == "right" else ()

    def run(self) -> None:
        """The whole product of this task into its scratch array."""
        home, c, b = self.home, self.c, self.b
        self.strides = self.steps(c.right_order(), c.packed(home.s.local))
        last = c.columns[-1]
        if c.few:
            self.strides |= {last.place: number(c.pitch), last.rest: number(c.few)}
        self.to, self.rows = home.direct.places(c)
        self.later = home.direct.last(c)
        self._table()
        kept = dict(home.ranges)
        low, high = home.ranges[c.depth]
        with b.if_then(b.icmp_signed(">=", low, high)):
            self._tiles(number(0), (BIT(1), BIT(1)))

        even = self.is_even(c.depth, c.block)  # the loops that pack have no rests

        def block(at: Value) -> None:
            end = b.add(at, number(c.block))
            if not even:
                end = b.select(b.icmp_signed("<", end, high), end, high)
            home.ranges[c.depth] = (at, end)
            self._pack_both()
            self._tiles(
                b.sub(end, at), (b.icmp_signed("==", at, low), b.icmp_signed("==", end, high))
            )

        def blocks() -> None:
            home.loop(low, high, c.block, block)

        if self.skips():
            self.margins = Margins(home, c)
            self.margins.around(blocks, self.to, self.rows)
        else:
            blocks()
        home.ranges = kept

    def skips(self) -> bool:
        """Whether taps that reach no line of the image are left out."""
        c = self.c
        known = c.ends_lines(self.home.s.local[c.columns[-1].axis])
        return c.lines is not None and known and self.later is None

    def is_even(self, axis: str, step: int) -> bool:
        """Whether each task is known to have whole steps along an axis."""
        sizes = self.home.s.local[axis], self.home.s.phase.axes[axis]
        return all(isinstance(n, int) and n % step == 0 for n in sizes)

    def _pack_both(self) -> None:
        home, c = self.home, self.c
        left, right = self.nest.packs
        if c.flat:
            home.ranges[c.flat] = number(0), number(c.steps)
        self.firsts = {a: home.ranges[a][0] for a in c.left_order()}
        kept = dict(home.ranges)
        if c.flat:
            in_blocks(home, c.n, c.tile.columns, lambda: self.pack(left))
        elif not c.panels:
            in_blocks(home, c.n, c.tile.columns, lambda: in_blocks(
                home, c.depth, LINES, lambda: self._taps(left, c.others, number(0), Scope(home.top))
            ))  # fmt: skip
        home.ranges = dict(kept)
        if c.few:  # all that the line has from the first place to the last one that is reached
            low, high = home.ranges[c.columns[-1].axis]
            end = self.b.add(high, number(c.columns[-1].margin))
            along = self.b.mul(low, number(c.pitch)), self.b.mul(end, number(c.pitch))
            home.ranges[c.line] = along
        self.widen(c.columns)
        self.pack(right)
        home.ranges = kept

    def _taps(self, left: Nest, rest: tuple[str, ...], done: Value, scope: Scope) -> None:
        """Packs the weights of every tap, those of the taps `rest` under the ones in `scope`."""
        home, c, b = self.home, self.c, self.b
        if not rest:
            self.tap = done
            if c.turned:
                self._turn(left, scope)
            else:
                self.pack(left, scope)
            return
        name, *inner = rest
        low, high = home.ranges[name]
        extent = number(c.extents[c.others.index(name)])
        home.loop(low, high, 1, lambda at: self._taps(
            left, tuple(inner), b.add(b.mul(done, extent), at), Scope(scope, {name: at})
        ))  # fmt: skip

    def _turn(self, left: Nest, scope: Scope) -> None:
        """Packs pairs that lie along the sum: squares of them change rows with columns."""
        b, home, c, lanes = self.b, self.home, self.c, self.c.tile.lanes
        top, m = home.open(left, scope), LLVMMachine(self.b, lanes, self.home.home.target)
        low, high = home.ranges[c.n]

        def columns(n: Value) -> None:
            lines = lines_from(home, top, c.n, n, lanes, b.sub(high, number(1)))

            def put(at: Value, mask: Value | None) -> None:
                rows: list[Value] = []
                for line in lines:
                    inner = Scope(line, {c.depth: at}, lanes=Lanes(c.depth, at, lanes, mask))
                    home.enter(inner, 2)
                    rows.append(home.get(c.left, inner, True))
                for t, found in enumerate(transpose(b, rows)[: c.block]):
                    place = Scope(top, {c.n: n, c.depth: b.add(at, number(t))})
                    to = self.at(LEFT_PART, self.offset(left, place))
                    store_vector(m, to, found, c.unit, None)

            along(home, home.ranges[c.depth], lanes, put)

        home.loop(low, high, lanes, columns)

    def offset(self, nest: Nest, scope: Scope) -> Value:
        """Where a vector goes: weights to panels as wide as the tile."""
        if nest.packed == "right":
            return super().offset(nest, scope)
        b, c = self.b, self.c
        k, n = (b.sub(scope.axis(a), self.firsts[a]) for a in (c.flat or c.depth, c.n))
        inside = b.and_(n, number(c.tile.columns - 1))
        k = b.add(b.mul(self.tap, number(c.block)), k)
        panel = b.mul(b.sub(n, inside), number(c.taps * c.block))
        return b.add(b.add(panel, b.mul(k, number(c.tile.columns))), inside)

    def _table(self) -> None:
        """For each tap, how far from a row it reads, and how far from the first tap's weights its
        own lie; for each of few channels of it, and what of a pair counts."""
        b, c = self.b, self.c
        base = self.home.storage.at[c.item, TABLE_PART]
        taps = list(positions(*map(range, c.extents)))
        reached = [(self.reach(c.columns, c.others, at), self._weights(j, at))
                   for j, at in enumerate(taps)]  # fmt: skip
        apart = 2 if c.pairs else 1
        run = c.pairs or c.few or 1
        for j, (x, y) in enumerate(reached):
            for k in range(run):
                image, weights = b.add(x, number(apart * k)), b.add(y, number(k * c.tile.columns))
                last = c.ends and k == run - 1
                for i, value in enumerate((image, weights, number(0xFFFF if last else -1))):
                    place = number(ENTRY * (j * run + k) + i)
                    b.store(value, element_address(b, base, place, i64))

    def _weights(self, tap: int, at: tuple[int, ...]) -> Value:
        """Elements from the first tap's weights to those of another, which is `at`."""
        b, c, home = self.b, self.c, self.home
        if not c.panels:
            return number(tap * c.block * c.tile.columns)
        found, (access, _) = number(0), c.weights()
        for a, count in zip(c.others, at, strict=True):
            step = home.home.index(coefficient(access.offset, a) or 0)
            found = b.add(found, b.mul(step, number(count)))
        return found

    def _panel(self, column: Value, depth: Value) -> Value:
        """The address of the weights for the columns from one on, in a block that begins there."""
        b, c, home = self.b, self.c, self.home
        if not c.panels:
            return self.at(LEFT_PART, b.mul(column, number(c.taps * c.block)))
        access, pitch = c.weights()
        still = dict.fromkeys((*c.others, c.depth, c.n), 0)
        at = home.index(substitute(access.offset, still), home.top)
        column = b.add(home.ranges[c.n][0], column)
        panel = b.mul(b.udiv(column, number(c.tile.columns)), home.home.index(pitch))
        at = b.add(b.add(at, panel), b.mul(depth, number(c.tile.columns)))
        return element_address(b, home.home.buffers[access.buffer], at, c.unit)

    def _following(self, column: Value, last: Value) -> Value:
        """The address of the weights that are multiplied behind those from a column on: beside the
        task's last ones lie those of the next block, or of the next task if this is the `last`."""
        b, c, home = self.b, self.c, self.home
        (low, high), (start, end) = home.ranges[c.n], home.ranges[c.depth]
        beside, depth = b.add(column, number(c.tile.columns)), start
        behind = b.icmp_signed(">=", beside, b.sub(high, low))
        behind = b.and_(behind, b.not_(last))
        return self._panel(b.select(behind, number(0), beside), b.select(behind, end, depth))

    def _tiles(self, depth: Value, ends: Ends) -> None:
        """Every register tile of the packed blocks; where few columns are left, of one vector."""
        b, home, c = self.b, self.home, self.c
        if c.ends_lines(home.s.local[c.columns[-1].axis]):
            self._lines(depth, ends)
            return
        sizes = [b.sub(end, start) for start, end in (home.ranges[k.axis] for k in c.columns)]
        rows = sizes[-1]
        if len(sizes) > 1:
            pitch = home.home.index(home.storage.extent(c.item, c.columns[-1].axis))
            rows = b.add(rows, b.mul(b.sub(sizes[0], number(1)), pitch))
        low, high = home.ranges[c.n]
        columns = b.sub(high, low)

        def put(tile: Tile, row: Value, column: Value) -> None:
            image, share = b.mul(row, number(c.pitch)), Share(row, rows, tile.rows)
            function = self._function(tile.rows, tile.vectors)
            self._tile(function, [row], image, column, depth, ends, share)

        every_tile(home, c.tile, c.fewer, rows, columns, put)

    def _lines(self, depth: Value, ends: Ends) -> None:
        """Every register tile, where they end with the lines of the image."""
        b, home, c = self.b, self.home, self.c
        *outer, _ = c.columns
        steps, parts = [self.strides[x.place] for x in c.columns], list(self._parts())
        even = self.is_even(c.n, c.tile.columns)
        tiles = {n: [self._function(rows, n) for rows, *_ in parts]
                 for n in (c.tile.vectors, *(() if even else (1,)))}  # fmt: skip

        def lines(column: Value, vectors: int, at: list[Value], share: Share) -> None:
            if len(at) < len(outer):
                first, last = home.ranges[outer[len(at)].axis]
                count = b.sub(last, first)
                home.loop(number(0), count, 1, lambda y: lines(
                    column, vectors, [*at, y], share.among(b, y, count)
                ))  # fmt: skip
                return
            for tile, (rows, start, end) in zip(tiles[vectors], parts, strict=True):
                home.loop(start, end, rows, lambda x, f=tile: self._tile(
                    f, [*at, x], far(b, steps, [*at, x]), column, depth, ends, share
                ))  # fmt: skip

        low, high = home.ranges[c.n]
        every_width(home, c.tile, b.sub(high, low),
                    lambda column, vectors: lines(column, vectors, [], WHOLE), even)  # fmt: skip

    def _parts(self) -> Iterator[tuple[int | Value, Value, Value]]:
        """Heights of the tiles along a line, and from where to where each of them goes."""
        b, c, axis = self.b, self.c, self.c.columns[-1].axis
        heights, done = c.heights(self.home.s.local[axis]), 0
        for height in dict.fromkeys(heights):
            end = done + height * heights.count(height)
            yield height, number(done), number(end)
            done = end
        if heights:
            return
        low, high = self.home.ranges[axis]
        size, odd = b.sub(high, low), number(c.odd)
        one = b.select(b.icmp_signed("<", size, odd), number(1), odd)
        first = b.mul(b.and_(size, number(1)), one)
        yield one, number(0), first
        pairs, most = b.lshr(b.sub(size, first), number(1)), number(c.tile.rows // 2)
        count = b.udiv(b.add(pairs, b.sub(most, number(1))), most)
        count = b.select(b.icmp_signed("<", count, number(1)), number(1), count)
        each = b.udiv(pairs, count)
        rows, left = b.mul(each, number(2)), b.sub(pairs, b.mul(each, count))
        more = b.add(rows, number(2))
        end = b.add(first, b.mul(left, more))
        yield more, first, end
        yield rows, end, size

    def _function(self, rows: int | Value, vectors: int) -> Value:
        """The register tile of so many rows, one of those that there are if that is not known."""
        b, c, target = self.b, self.c, self.home.home.target
        short = None if self.later is None else self.later.dtype

        def of(height: int) -> Value:
            tile = replace(c.tile, rows=height, vectors=vectors)
            return tile_function(b.module, c, tile, target, short)

        if isinstance(rows, int):
            return of(rows)
        first, *others = c.all_heights
        found = of(first)
        for height in others:
            found = b.select(b.icmp_signed("<", rows, number(height)), found, of(height))
        return found

    def _tile(
        self, function: Value, row: Sequence[Value], image: Value, column: Value, depth: Value,
        ends: Ends, share: Share,
    ) -> None:  # fmt: skip
        """sums[rows, columns] += image[table[tap] + rows, depth] * panel[tap, depth, columns]."""
        b, c = self.b, self.c
        to = b.add(far(b, self.rows, row), column)
        to = element_address(b, self.to, to, c.item.dtype)
        image = self.at(RIGHT_PART, image)
        panel = self._panel(column, self.home.ranges[c.depth][0])
        table = self.home.storage.at[c.item, TABLE_PART]
        first, last = ends
        taps = number(0), number(c.steps)
        if self.margins is not None:
            taps = self.margins.taps(row[-2])
        args = [to, self.rows[-1], image, panel, table, depth, first, *taps]
        if c.asks:
            args += part(b, c, self._following(column, last), depth, share)
        if (later := self.later) is not None:
            holds, spot = later.at(b, row, column, last)
            args += [spot.address, spot.apart, holds]
        b.call_at(function, tile_type(c, None if self.later is None else self.later.dtype), args)


PTR = ir.PointerType()
TILE = [PTR, I64, PTR, PTR, PTR, I64, BIT, I64, I64]
LAST = [PTR, I64, BIT]
"""Where the last sums go and how far apart, and whether these are they."""


def tile_function(
    module: ir.Module, c: Upright, tile: Tile, target: Target, short: DType | None
) -> ir.Function:  # fmt: skip
    """The register tile as a function of its own, where nothing else is kept in registers; its last
    sums may be stored as a `short` type."""
    name = f"upright.{c.unit}.{c.item.dtype}.{tile.rows}x{tile.columns}.{c.taps}x{c.block}.{c.few}"
    name += f".{c.pitch}" + (f".{c.pairs}.{c.ends}" if c.pairs else "") + ".asks" * c.asks
    name += f".{short}" if short is not None else ""
    return function_apart(
        module, name, tile_type(c, short), lambda f: _Tile(f, c, tile, target).fill(short)
    )


def tile_type(c: Upright, short: DType | None) -> ir.FunctionType:
    """The type of all of a product's register tiles."""
    args = [*TILE, *(PART if c.asks else ()), *(LAST if short is not None else ())]
    return ir.FunctionType(ir.VoidType(), args)


class _Tile:
    """sums[i, v] += image[table[t, 0] + i*pitch + k] * panel[table[t, 1] + k*columns + v] for all
    taps t and k < depth."""

    def __init__(self, f: ir.Function, c: Upright, tile: Tile, target: Target) -> None:
        self.f, self.c, self.tile = f, c, tile
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, tile.lanes, target)
        self.scalar = LLVMMachine(self.b, None, target)

    def fill(self, short: DType | None) -> None:
        """The function's body."""
        b, f, dtype = self.b, self.f, self.c.item.dtype
        to, stride, image, panel, table, depth, fresh, low, high, *spot = f.args
        if self.c.asks:
            self.ask, self.rate, *spot = spot
        places = Spot(to, stride, dtype).places(b, self.tile)
        entry, zero = b.block, self.m.const(dtype, 0)
        taps, done = f.append_basic_block("taps"), f.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", low, high), taps, done)
        b.position_at_end(taps)
        tap = b.phi(I64)
        before = [b.phi(zero.type) for _ in places]
        entries = element_address(b, table, b.mul(tap, number(ENTRY)), i64)
        line, weights, counts = (
            b.load(element_address(b, entries, number(k), i64), typ=I64) for k in range(ENTRY)
        )
        if self.c.ends:  # LLVM would compute with scalars and broadcast what comes out
            kind = ir.VectorType(I32, self.tile.lanes)
            counts = splat(b, b.trunc(counts, I32), self.tile.lanes)
            self.counts = b.asm(ir.FunctionType(kind, [kind]), "", "=v,0", [counts], False)
        line = element_address(b, image, line, self.c.image)
        if self.c.asks:
            self.asked = element_address(b, self.ask, weights, self.c.unit)
        weights = element_address(b, panel, weights, self.c.unit)
        if self.c.few:
            ended = self._step(line, weights, number(0), before)
        else:
            ended = self._channels(line, weights, depth, before)
        later = b.add(tap, number(1))
        b.cbranch(b.icmp_signed("<", later, high), taps, done)
        end = b.block
        for block, value in ((entry, low), (end, later)):
            tap.add_incoming(value, block)
        b.position_at_end(done)
        sums = [b.phi(x.type) for x in ended]
        for value, *phis in zip(ended, before, sums, strict=True):
            for phi in phis:
                phi.add_incoming(zero, entry)
                phi.add_incoming(value, end)
        ended = with_before(self.m, places, dtype, [*sums], fresh)
        last = None if short is None else (spot[2], Spot(spot[0], spot[1], short))
        put(self.m, self.c, self.tile, ended, places, last=last)
        b.ret_void()

    def _channels(
        self, line: Value, weights: Value, depth: Value, before: Sequence[Value]
    ) -> list[Value]:
        """The sums after all channels of one tap."""
        b, f = self.b, self.f
        taps, loop, next_ = b.block, f.append_basic_block("loop"), f.append_basic_block("next")
        b.cbranch(b.icmp_signed("<", number(0), depth), loop, next_)
        b.position_at_end(loop)
        k, panel = b.phi(I64), b.phi(weights.type)
        sums = [b.phi(x.type) for x in before]
        if self.c.asks:
            ask(b, self.asked, self.rate, k)
        following = self._step(line, panel, k, sums)
        beside = element_address(b, panel, number(self.c.tile.columns), self.c.unit)
        after = b.add(k, number(1))
        b.cbranch(b.icmp_signed("<", after, depth), loop, next_)
        b.position_at_end(next_)
        ended = [b.phi(x.type) for x in before]
        k.add_incoming(number(0), taps)
        k.add_incoming(after, loop)
        panel.add_incoming(weights, taps)
        panel.add_incoming(beside, loop)
        for first, total, new, last in zip(before, sums, following, ended, strict=True):
            total.add_incoming(first, taps)
            total.add_incoming(new, loop)
            last.add_incoming(first, taps)
            last.add_incoming(new, loop)
        return [*ended]

    def _broadcast(self, place: Value) -> Value:
        """A number of the image in all lanes, or a pair of which perhaps one counts."""
        b, c, lanes = self.b, self.c, self.tile.lanes
        if not c.pairs:
            return splat(b, load_scalar(self.scalar, place, c.unit, None), lanes)
        pair = splat(b, b.load(place, align=c.image.itemsize, typ=I32), lanes)
        return b.and_(pair, self.counts) if c.ends else pair

    def _step(self, line: Value, weights: Value, k: Value, sums: Sequence[Value]) -> list[Value]:
        """The sums after one more channel, the kth, whose weights lie at an address."""
        b, c, tile, dtype = self.b, self.c, self.tile, self.c.unit
        across = [load_vector(self.m, element_address(b, weights, number(v * tile.lanes), dtype),
                              dtype, None) for v in range(tile.vectors)]  # fmt: skip
        first, found = element_address(b, line, k, c.image), list[Value]()
        for i in range(tile.rows):
            place = element_address(b, first, number(i * c.pitch), c.image)
            one = self._broadcast(place)
            found += [multiply_add(self.m, one, across[v], sums[i * tile.vectors + v], c.item)
                      for v in range(tile.vectors)]  # fmt: skip
        return found
