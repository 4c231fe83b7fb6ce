"""Stencils: both operands packed, and columns of results in registers over them.

A tile computes some positions along one axis for one vector of another.  Each line of the packed
operand is read once for all results of the tile that need it; weights of the taps along the tile's
axis stay in registers meanwhile.  The taps along other axes are walked by a loop, for which a table
says how far from a result each reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from smelt.blocks import HELD_RUN
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector
from smelt.codegen.llvm.access.patterned import permuted
from smelt.codegen.llvm.instructions.indexing import I64, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.products.before import in_runs, is_short
from smelt.codegen.llvm.products.packer import Packer
from smelt.codegen.llvm.products.sums import Spot, far, put
from smelt.codegen.llvm.products.thin import multiply_add
from smelt.codegen.llvm.products.tiling import function_apart, rounds
from smelt.codegen.llvm.schedule.contract import Tile
from smelt.codegen.llvm.schedule.nests import Nest
from smelt.codegen.llvm.schedule.stencil import Stencil
from smelt.codegen.llvm.scratch.storage import LEFT_PART, RIGHT_PART, TABLE_PART
from smelt.codegen.llvm.values.items import Item
from smelt.codegen.llvm.values.places import Slid
from smelt.target import Target
from smelt.types.dtype import DType, i64

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
ENTRY = 3
"""Numbers that a table has for each of its positions."""
Place: TypeAlias = dict[str, Value]
"""A position along each of some axes."""


class StencilEmitter(Packer):
    """One stencil in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: Stencil) -> None:
        super().__init__(home, c.item)
        self.nest, self.c = nest, c

    def run(self) -> None:
        """The whole stencil of this task into its scratch array."""
        home, c = self.home, self.c
        self.strides = self.steps(c.right_order(), c.packed(home.s.local))
        self.to, self.results = self.places()
        self.later = home.direct.last(c)
        wide = home.home.index(home.storage.extent(c.item, c.lane)) if c.shared else number(1)
        self.apart = {c.flat: wide, c.lane: number(1)}
        self._table()
        kept = dict(home.ranges)
        home.ranges[c.flat] = (number(0), home.home.index(home.s.phase.axes[c.flat]))
        left, right = self.nest.packs
        self.pack(left)
        self.widen(c.columns)
        self.pack_lines(right)
        home.ranges = kept
        self._tiles()

    def places(self) -> tuple[Value, dict[str, Value]]:
        """Where tiles write, and elements between neighbours along each axis but the lanes'."""
        to, apart = self.home.direct.places(self.c)
        return to, dict(zip((k.axis for k in self.c.columns[:-1]), apart, strict=True))

    def pack_lines(self, nest: Nest) -> None:
        """Packs the operand that windows slide over."""
        self.pack(nest)

    def _table(self) -> None:
        """For each summed position but those along the tile: where its weights begin, how far from
        a result it reads, and of which lane of a group."""
        b, c = self.b, self.c
        base = self.home.storage.at[c.item, TABLE_PART]
        over = [a for a in c.over if a != c.mixed]
        for j, (first, *_) in enumerate(c.taps):
            at = dict(zip(c.over, _position(first, c.extents), strict=True))
            weights = b.mul(self.apart[c.flat], number(first))
            offset = self.reach(c.columns, over, [at[a] for a in over])
            for k, value in enumerate((weights, offset, number(at.get(c.mixed, 0)))):
                b.store(value, element_address(b, base, number(ENTRY * j + k), i64))

    def _tiles(self) -> None:
        """Every tile of the task."""
        home, c, b = self.home, self.c, self.b
        sizes = {k.axis: b.sub(high, low) for k in c.columns
                 for low, high in [home.ranges[k.axis]]}  # fmt: skip

        def lines(outer: list[Slid], row: Place, right: Value) -> None:
            if not outer:
                home.loop(number(0), sizes[c.lane], c.tile.lanes, lambda at: self._column(
                    at, row, b.add(right, at), sizes[c.tall.axis]))  # fmt: skip
                return
            first, *rest = outer
            home.loop(number(0), sizes[first.axis], 1, lambda at: lines(
                rest, {**row, first.axis: at}, b.add(right, b.mul(at, self.strides[first.place]))
            ))  # fmt: skip

        lines([k for k in c.columns[:-1] if k is not c.tall], {}, number(0))

    def _column(self, at: Value, line: Place, right: Value, size: Value) -> None:
        """All tiles of one vector, the highest first; the lowest ones begin earlier than others
        end rather than go beyond the end."""
        b, c, done = self.b, self.c, number(0)
        step = self.strides[c.tall.place]
        plane = self.strides[c.tall.rest] if c.tall.rest else number(0)
        left = self.at(LEFT_PART, at if c.shared else number(0))
        first, second = c.taps[0][0], c.taps[0][-1]
        rise = b.mul(self.apart[c.flat], number((second - first) // max(c.tall.taps - 1, 1)))
        table = self.home.storage.at[c.item, TABLE_PART]
        heights = c.heights()
        for height in heights:
            over = b.srem(b.sub(size, done), number(height))
            end = size if height == heights[-1] else b.sub(size, over)

            def tile(y: Value, height: int = height) -> None:
                if height == heights[-1]:
                    y = self._inside(y, size, height)
                self._tile(height, {**line, c.tall.axis: y}, at, [
                    left, rise, self.at(RIGHT_PART, b.add(right, b.mul(y, step))), step, plane,
                    table,
                ])  # fmt: skip

            self.home.loop(done, end, height, tile)
            done = end

    def _inside(self, y: Value, size: Value, height: int) -> Value:
        """Where a tile begins that would begin at y, if it is to end with the task's results."""
        b, most = self.b, self.b.sub(size, number(height))
        most = b.select(b.icmp_signed("<", most, number(0)), number(0), most)
        return b.select(b.icmp_signed("<", most, y), most, y)

    def _tile(self, height: int, row: Place, lane: Value, operands: list[Value]) -> None:
        """Calls the function of a tile whose sums begin there."""
        b, c, tall = self.b, self.c, self.c.tall.axis
        order = [k.axis for k in c.columns[:-1]]
        rows = [row[a] for a in order]
        to = b.add(far(b, [self.results[a] for a in order], rows), lane)
        args, short = [element_address(b, self.to, to, c.item.dtype), self.results[tall]], None
        if (later := self.later) is not None:
            there = b.add(far(b, later.apart, rows), lane)
            args += [element_address(b, later.base, there, later.dtype)]
            args += [later.apart[order.index(tall)], later.holds]
            short = later.dtype
        function = tile_function(b.module, c, height, self.home.home.target, short)
        b.call(function, [*args, *operands])


def _position(number: int, extents: Sequence[int]) -> list[int]:
    """A position along several axes, which are counted together."""
    found: list[int] = []
    for n in extents[::-1]:
        number, at = divmod(number, n)
        found.insert(0, at)
    return found


PTR = ir.PointerType()
SUMS = [PTR, I64]
SHORT = [PTR, I64, ir.IntType(1)]
"""Where sums go that are rounded as they are stored, how far apart, and whether they do."""
OPERANDS = [PTR, I64, PTR, I64, I64, PTR]


def tile_function(
    module: ir.Module, c: Stencil, height: int, target: Target, short: DType | None
) -> ir.Function:  # fmt: skip
    """The register tile as a function of its own, where nothing else is kept in registers; its sums
    may be stored as a `short` type."""
    tall, count = c.tall, len(c.taps)
    name = (f"stencil.{c.item.dtype}.{height}x{c.tile.lanes}.{count}x{tall.taps}"
            f".{tall.step}.{tall.dilation}.{'vector' if c.shared else 'scalar'}"
            f".{c.group}.{short or ''}")  # fmt: skip
    sums = SUMS if short is None else [*SUMS, *SHORT]
    kind = ir.FunctionType(ir.VoidType(), [*sums, *OPERANDS])
    return function_apart(
        module, name, kind, lambda f: _Tile(f, c, height, target).fill(count, short)
    )


def pinned(b: ir.IRBuilder, target: Target, vector: Value) -> Value:
    """The same vector, which nothing that reads memory further down may come before: LLVM would
    load all lines at once and have no registers for them."""
    if target.isa not in ("avx512", "avx2"):
        return vector
    kind = ir.FunctionType(vector.type, [vector.type])
    return b.asm(kind, "", "=v,0,~{memory}", [vector], True)


class _Tile:
    """sums[i] += left[(o, u)] * right[table[o] + place of i and u], for all o and u."""

    def __init__(self, f: ir.Function, c: Stencil, height: int, target: Target) -> None:
        self.f, self.c, self.height, self.target = f, c, height, target
        self.b = ir.IRBuilder(f.append_basic_block("entry"))
        self.m = LLVMMachine(self.b, c.tile.lanes, target)
        self.scalar = LLVMMachine(self.b, None, target)
        self.taps = c.tall.taps
        self.held = self.taps + height + 2 <= target.registers
        """Whether there are registers for the weights of all taps."""

    def fill(self, count: int, short: DType | None) -> None:
        """The function's body, for so many summed positions along other axes."""
        b, (to, row, *later) = self.b, self.f.args[: -len(OPERANDS)]
        left, _, right, _, _, table = self.f.args[-len(OPERANDS) :]
        item: Item = self.c.item
        zeros = [self.m.const(item.dtype, 0)] * self.height

        def one(o: Value, sums: list[Value], _: int) -> list[Value]:
            entries = element_address(b, table, b.mul(o, number(ENTRY)), i64)
            weights = element_address(b, left, b.load(entries, typ=I64), item.dtype)
            offset = b.load(element_address(b, entries, number(1), i64), typ=I64)
            first = element_address(b, right, offset, item.dtype)
            lane = b.load(element_address(b, entries, number(2), i64), typ=I64)
            return self._lines(first, weights, list(sums), self._picks(lane))

        def run(span: tuple[Value, Value]) -> list[Value]:
            return rounds(b, span, 1, one, zeros)

        whole, most = (number(0), number(count)), HELD_RUN // self.taps
        long = not is_short(count * self.taps, item.dtype)
        sums = in_runs(self.m, item.dtype, whole, self.height, run, most) if long else run(whole)
        tile = Tile(self.height, 1, self.c.tile.lanes)
        places = Spot(to, row, item.dtype).places(b, tile)
        last = None if short is None else (later[2], Spot(later[0], later[1], short))
        put(self.m, self.c, tile, sums, places, last=last)
        b.ret_void()

    def _picks(self, lane: Value) -> Value | None:
        """The lanes that all take of what is read, where groups of them take the same."""
        b, c, lanes = self.b, self.c, self.c.tile.lanes
        if not c.mixed:
            return None
        kind = ir.IntType(32)
        first = ir.Constant(ir.VectorType(kind, lanes), [k - k % c.group for k in range(lanes)])
        return b.add(first, splat(b, b.trunc(lane, kind), lanes))

    def _lines(
        self, first: Value, weights: Value, sums: list[Value], picks: Value | None
    ) -> list[Value]:
        """The sums after every line that the tile reads, for one position along other axes."""
        b, tall, item = self.b, self.c.tall, self.c.item
        _, rise, _, step, plane, _ = self.f.args[-len(OPERANDS) :]

        def weight(u: int) -> Value:
            at = element_address(b, weights, b.mul(rise, number(u)), item.dtype)
            if self.c.shared:
                return load_vector(self.m, at, item.dtype, None)
            return splat(b, load_scalar(self.scalar, at, item.dtype, None), self.c.tile.lanes)

        known = [weight(u) for u in range(self.taps)] if self.held else []
        for rest in range(tall.step):
            places = {u: tall.quotient(u) for u in range(self.taps) if tall.remainder(u) == rest}
            line = element_address(b, first, b.mul(plane, number(rest)), item.dtype)
            for at in range(self.height + max(places.values(), default=-self.height)):
                used = [u for u, q in places.items() if 0 <= at - q < self.height]
                if not used:
                    continue
                place = element_address(b, line, b.mul(step, number(at)), item.dtype)
                x = load_vector(self.m, place, item.dtype, None)
                x = x if picks is None else permuted(b, [x], picks, self.c.tile.lanes)
                for u in used:
                    i = at - places[u]
                    w = known[u] if self.held else weight(u)
                    sums[i] = multiply_add(self.m, w, x, sums[i], item)
                newest = at - places[used[-1]]
                sums[newest] = pinned(b, self.target, sums[newest])
        return sums
