"""Products over windows with channels last: both operands packed, and register tiles over them.

The weights of one block go to panels as wide as the tile, tap by tap; the image's places side by
side.  A tile takes neighbouring places as its rows: for each tap a table says how far off those lie
that it reads, for each channel it broadcasts a number of each and multiplies a line of the panel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product as positions
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, store_vector
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.products.depthwise_separable import hosted, pack_by_lines
from smelt.codegen.llvm.products.layout_transpose import pack_turned, turn_back
from smelt.codegen.llvm.products.nhwc_microkernel import BIT, ENTRY, tile_function, tile_type
from smelt.codegen.llvm.products.operand_rows import along, lines_from
from smelt.codegen.llvm.products.pack_filter_transposed import WeightSquares
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.products.prefetch_filter import WHOLE, Share, part
from smelt.codegen.llvm.products.skip_padding_taps import Margins
from smelt.codegen.llvm.products.tile_loops import (
    every_width,
    for_each_tile,
    in_blocks,
)
from smelt.codegen.llvm.products.tile_sums import far
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.contract import Tile
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.filter_contiguity import lies_in_runs
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.codegen.llvm.scratch.workspace import LEFT_PART, RIGHT_PART, TABLE_PART
from smelt.types.affine import coefficient
from smelt.types.dtype import i64
from smelt.types.expr import substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

LINES = 16
"""Summed positions whose weights are packed together: all taps of a panel's columns that they have
stay in the first cache, since taps that follow each other in memory share its lines."""

Value = ir.Value
Ends: TypeAlias = tuple[Value, Value]
"""Whether a block is the first one, and whether it is the last."""
Begin: TypeAlias = Callable[[Value, int], None]
"""What is done before the tiles of a column: so many vectors of weights from it on are packed."""


class ImplicitGemmNhwc(Packer):
    """One product over windows with channels last in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: NhwcConvPlan) -> None:
        super().__init__(home, c.item)
        self.nest, self.c, self.image = nest, c, c.image
        self.hosted = hosted(home, c.right)
        """Stencils of which the image is made."""
        self.tap: Value = number(0)
        """The tap whose weights are packed."""
        self.firsts: dict[str, Value] = {}
        """Where the block of weights begins that is packed piece by piece."""
        self.margins: Margins | None = None
        self.squares: WeightSquares | None = None

    def plain(self, nest: Nest) -> Collection[str]:
        return (self.c.depth,) if nest.packed == "right" else ()

    def run(self) -> None:
        """The whole product of this task into its scratch array."""
        home, c, b = self.home, self.c, self.b
        self.strides = self.steps(c.packed_axes(), c.packed(home.s.local))
        last = c.columns[-1]
        if c.few:
            self.strides |= {last.place: number(c.pitch), last.rest: number(c.few)}
        self.to, self.rows = home.direct.places(c)
        self.later = home.direct.last(c)
        self._table()
        if lies_in_runs(c) is not None:
            self.squares = WeightSquares(home, self.nest.packs[0], c)
        kept = dict(home.ranges)
        low, high = home.ranges[c.depth]
        with b.if_then(b.icmp_signed(">=", low, high)):
            self._tiles(number(0), (BIT(1), BIT(1)), lambda *_: None)

        even = self.is_even(c.depth, c.block)  # the loops that pack have no rests

        def block(at: Value) -> None:
            end = b.add(at, number(c.block))
            if not even:
                end = b.select(b.icmp_signed("<", end, high), end, high)
            home.ranges[c.depth] = (at, end)
            self._pack_both()
            ends = (b.icmp_signed("==", at, low), b.icmp_signed("==", end, high))
            self._tiles(
                b.sub(end, at), ends, self.squares.pack if self.squares else lambda *_: None
            )

        def blocks() -> None:
            home.loop(low, high, c.block, block)

        if self.skips():
            self.margins = Margins(home, c)
            self.margins.around(blocks, self.to, self.rows)
        else:
            blocks()
        if c.across:
            turn_back(self)
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
        elif not c.panels and self.squares is None:
            in_blocks(
                home,
                c.n,
                c.tile.columns,
                lambda: in_blocks(
                    home,
                    c.depth,
                    LINES,
                    lambda: self._taps(left, c.others, number(0), Scope(home.top)),
                ),
            )
        home.ranges = dict(kept)
        if c.few:  # all that the line has from the first place to the last one that is reached
            low, high = home.ranges[c.columns[-1].axis]
            end = self.b.add(high, number(c.columns[-1].margin))
            each = number(c.columns[-1].step if c.image_across else c.pitch)
            home.ranges[c.line] = self.b.mul(low, each), self.b.mul(end, each)
        self.widen(c.columns)
        if self.hosted:
            pack_by_lines(self, right, self.hosted, [k.axis for k in c.columns[:-1]])
        elif c.image_across:
            pack_turned(self, right)
        else:
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
        home.loop(
            low,
            high,
            1,
            lambda at: self._taps(
                left, tuple(inner), b.add(b.mul(done, extent), at), Scope(scope, {name: at})
            ),
        )

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
        reached = [
            (self.reach(c.columns, c.others, at), self._weights(j, at)) for j, at in enumerate(taps)
        ]
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
        if self.squares is not None:  # one panel at a time
            return self.at(LEFT_PART, number(0))
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

    def _tiles(self, depth: Value, ends: Ends, begin: Begin) -> None:
        """Every register tile of the packed blocks; where few columns are left, of one vector."""
        b, home, c = self.b, self.home, self.c
        if c.ends_lines(home.s.local[c.columns[-1].axis]):
            self._lines(depth, ends, begin)
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

        for_each_tile(home, c.tile, c.fewer, rows, columns, put, begin)

    def _lines(self, depth: Value, ends: Ends, begin: Begin) -> None:
        """Every register tile, where they end with the lines of the image."""
        b, home, c = self.b, self.home, self.c
        *outer, _ = c.columns
        steps, parts = [self.strides[x.place] for x in c.columns], list(self._parts())
        even = self.is_even(c.n, c.tile.columns)
        tiles = {
            n: [self._function(rows, n) for rows, *_ in parts]
            for n in (c.tile.vectors, *(() if even else (1,)))
        }

        def lines(column: Value, vectors: int, at: list[Value], share: Share) -> None:
            if len(at) < len(outer):
                first, last = home.ranges[outer[len(at)].axis]
                count = b.sub(last, first)
                home.loop(
                    number(0),
                    count,
                    1,
                    lambda y: lines(column, vectors, [*at, y], share.among(b, y, count)),
                )
                return
            for tile, (rows, start, end) in zip(tiles[vectors], parts, strict=True):
                home.loop(
                    start,
                    end,
                    rows,
                    lambda x, f=tile: self._tile(
                        f, [*at, x], far(b, steps, [*at, x]), column, depth, ends, share
                    ),
                )

        def panel(column: Value, vectors: int) -> None:
            begin(column, vectors)
            lines(column, vectors, [], WHOLE)

        low, high = home.ranges[c.n]
        every_width(home, c.tile, b.sub(high, low), panel, even)

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
        self,
        function: Value,
        row: Sequence[Value],
        image: Value,
        column: Value,
        depth: Value,
        ends: Ends,
        share: Share,
    ) -> None:
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
