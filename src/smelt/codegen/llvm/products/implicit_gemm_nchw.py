"""Products over windows: blocks of both operands, and register tiles over them.

The left operand's block is multiplied where it lies, if it lies along the summed positions and
tiles end where its rows do; or else it goes to scratch row by row.  Of the right one, every place
that the task's columns reach is packed once.  A table says, for each summed position, how far from
a column the element lies that it is multiplied with; so a register tile reads consecutive columns
at `table[k] + column`.  Packings are ordinary nests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import product as positions
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_scalar, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import I64, number, opaque, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.products.block_sums import with_before
from smelt.codegen.llvm.products.gemv import fma_step
from smelt.codegen.llvm.products.pack_filter_pairs import TapsPacker, lies_by_taps
from smelt.codegen.llvm.products.pack_short_rows import each_length
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.products.tile_loops import for_each_tile, outline_function
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.schedule.contract import Tile
from smelt.codegen.llvm.schedule.conv_plan import DEPTH, PITCH, ConvPlan
from smelt.codegen.llvm.schedule.operands import Dealt, load_of
from smelt.codegen.llvm.scratch.workspace import LEFT_PART, RIGHT_PART, TABLE_PART
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.dtype import i64

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


class ImplicitGemmNchw(Packer):
    """One product over windows in the task that `home` is emitting."""

    def __init__(self, home: NestEmitter, nest: Nest, c: ConvPlan) -> None:
        super().__init__(home, c.item)
        self.nest, self.c = nest, c
        self.walk = number(0)
        self.apart = {c.m: number(PITCH), c.depth: number(c.taps), c.flat: number(1)}

    def plain(self, nest: Nest) -> Collection[str]:
        return (self.c.depth,) if nest.packed == "right" else ()

    def _pack(self, nest: Nest, scope: Scope) -> None:
        def run(vectors: int) -> None:
            self.vectors = vectors
            super(ImplicitGemmNchw, self)._pack(nest, scope)
            self.vectors = 0

        each_length(self.home, nest, run)

    def run(self) -> None:
        """The whole product of this task into its scratch array."""
        home, b, c = self.home, self.b, self.c
        packed = c.packed(home.s.local)
        self.strides = self.steps(c.right_order(), packed, c.apart, c.tile.lanes)
        self.row = number(1)
        for a in c.axes[1:]:
            self.row = self.b.mul(self.row, home.home.index(home.storage.extent(c.item, a)))
        self._table()
        kept = dict(home.ranges)
        self.widen(c.columns)
        if c.depth:
            low, high = home.ranges[c.depth]
            with self.b.if_then(self.b.icmp_signed(">=", low, high)):
                self._clear()
            each = self._even(b.sub(high, low))
            home.loop(low, high, each, lambda at: self._block(at, each))
        else:
            self._deep(number(0), number(1), ir.IntType(1)(1))
        home.ranges = kept

    def _even(self, depth: Value) -> Value:
        """Positions of each block, so that all are about as large: a short last one would read and
        write all sums for few products."""
        b, most = self.b, number(self.c.block)
        pieces = b.udiv(b.add(depth, b.sub(most, number(1))), most)
        pieces = b.add(pieces, b.zext(b.icmp_signed("==", pieces, number(0)), I64))
        return b.udiv(b.sub(b.add(depth, pieces), number(1)), pieces)

    def _block(self, at: Value, each: Value) -> None:
        kept = low, high = self.home.ranges[self.c.depth]
        end = self.b.add(at, each)
        end = self.b.select(self.b.icmp_signed("<", end, high), end, high)
        self.home.ranges[self.c.depth] = (at, end)
        self._deep(at, end, self.b.icmp_signed("==", at, low))
        self.home.ranges[self.c.depth] = kept

    def _deep(self, low: Value, high: Value, first: Value) -> None:
        """One block of the summed positions: packs both operands and multiplies."""
        c, taps = self.c, number(self.c.taps)
        if c.flat != c.depth and not c.apart_taps:
            self.home.ranges[c.flat] = (self.b.mul(low, taps), self.b.mul(high, taps))
        left, right = self.nest.packs
        self._left(left)
        kept = {k.axis: self.home.ranges[k.axis] for k in c.columns}
        for column in c.columns:  # the range of places, also where they are the columns
            self.home.ranges[column.axis] = self.home.ranges[column.place]
        self.pack(right)
        self.home.ranges.update(kept)
        self._tiles(self.b.mul(self.b.sub(high, low), taps), first)

    def _left(self, nest: Nest) -> None:
        """This block of the left operand: where it lies, if tiles end where its rows do, or else
        packed; and elements between its rows."""
        b, c, home = self.b, self.c, self.home
        packed = self.at(LEFT_PART, number(0)), number(PITCH)
        access = load_of(c.left)
        if access is None or not (c.lies or c.dealt):
            loads = lies_by_taps(c)
            if loads is not None:
                TapsPacker(home, nest, c, loads).run()
            else:
                self.pack(nest)
            self.left, self.row_step = packed
            return
        low, high = home.ranges[c.m]
        rows = b.sub(high, low)
        whole = b.and_(
            b.icmp_signed("==", b.urem(rows, number(c.even)), number(0)),
            b.icmp_signed(">=", rows, number(c.fewer)),
        )
        with b.if_then(b.not_(whole)):
            self.pack(nest)
        top = home.open(nest, Scope(home.top))
        apart = home.index(c.dealt.row if c.dealt else coefficient(access.offset, c.m) or 0, top)
        if c.dealt:
            along = home.ranges[c.depth][0] if c.depth else number(0)
            along = b.add(home.index(c.dealt.start, top), b.mul(along, self._walk(c.dealt, top)))
            self.walk = self._table_at(b.select(whole, number(DEPTH), number(2 * DEPTH)))
        else:
            along = b.add(top.offset(access), home.ranges[c.flat][0])
        at = b.add(along, b.mul(low, apart))
        lying = element_address(b, home.home.buffers[access.buffer], at, c.unit)
        self.left = b.select(whole, lying, packed[0])
        self.row_step = b.select(whole, apart, packed[1])

    def _walk(self, dealt: Dealt, top: Scope) -> Value:
        """How far apart neighbours along `depth` lie."""
        return self.home.index(dealt.steps[0], top) if self.c.depth else number(0)

    # ---- before the first block ------------------------------------------------------------------

    def _clear(self) -> None:
        """The sums of nothing."""
        home, item = self.home, self.c.item
        m = LLVMMachine(self.b, home.s.lanes, home.home.target)
        low, high = home.ranges[self.c.m]
        zero = m.const(item.dtype, 0)
        home.loop(
            number(0),
            self.b.mul(self.b.sub(high, low), self.row),
            home.s.lanes,
            lambda at: store_vector(m, self.at(0, at), zero, item.dtype, None),
        )

    def _table(self) -> None:
        """For each summed position of a block, how far from a column it reads."""
        b, c = self.b, self.c
        near = [self.reach(c.columns, c.others, at) for at in positions(*map(range, c.extents))]
        far = self.strides[c.depth] if c.depth else number(0)
        dealt = self._dealt_table() if c.dealt else None

        def line(position: Value) -> None:
            first, start = b.mul(position, number(c.taps)), b.mul(position, far)
            for j, offset in enumerate(near):
                b.store(b.add(start, offset), self._table_at(b.add(first, number(j))))
            if dealt:
                dealt(position, first)

        self.home.loop(number(0), number(c.block if c.depth else 1), 1, line)

    def _dealt_table(self) -> Callable[[Value, Value], None]:
        """Writes how far the left operand's elements lie from its row where they lie; and where
        they are packed."""
        b, c, home = self.b, self.c, self.home
        assert c.dealt is not None
        steps = [home.index(n, home.top) for n in c.dealt.steps]
        far = steps.pop(0) if c.depth else number(0)
        near: list[Value] = []
        for at in positions(*map(range, c.extents)):
            total = number(0)
            for k, step in zip(at, steps, strict=True):
                total = b.add(total, b.mul(step, number(k)))
            near.append(total)

        def line(position: Value, first: Value) -> None:
            for j, offset in enumerate(near):
                k = b.add(first, number(j))
                b.store(
                    b.add(b.mul(position, far), offset), self._table_at(b.add(k, number(DEPTH)))
                )
                b.store(k, self._table_at(b.add(k, number(2 * DEPTH))))

        return line

    def _table_at(self, k: Value) -> Value:
        return element_address(self.b, self.home.storage.at[self.c.item, TABLE_PART], k, i64)

    # ---- tiles -----------------------------------------------------------------------------------

    def _tiles(self, depth: Value, first: Value) -> None:
        """Every register tile of the packed blocks: whole ones, then lower ones; where
        few columns are left, of one vector."""
        b, home, c = self.b, self.home, self.c
        low, high = home.ranges[c.m]
        rows = b.sub(high, low)
        sizes = [b.sub(end, start) for start, end in (home.ranges[k.axis] for k in c.columns)]
        columns = sizes[-1]
        for size, k in zip(sizes[:-1], c.columns, strict=False):
            columns = b.add(columns, b.mul(b.sub(size, number(1)), self.strides[k.place]))

        def put(tile: Tile, row: Value, column: Value) -> None:
            self._tile(tile, row, column, depth, first)

        for_each_tile(home, c.tile, c.fewer, rows, columns, put)

    def _tile(self, tile: Tile, row: Value, column: Value, depth: Value, first: Value) -> None:
        """acc[rows, columns] += left[rows, depth] * right[table[depth] + columns]."""
        b, item = self.b, self.c.item
        to = self.at(0, b.add(b.mul(row, self.row), column))
        left = element_address(b, self.left, b.mul(row, self.row_step), self.c.unit)
        right = self.at(RIGHT_PART, column)
        table = self.home.storage.at[item, TABLE_PART]
        dealt = self.c.dealt is not None
        function = tile_function(b.module, item, tile, self.home.home.target, dealt=dealt)
        more = [self.walk] if dealt else []
        b.call(function, [to, self.row, left, self.row_step, right, table, depth, first, *more])


PTR = ir.PointerType()
TILE_ARGS = (PTR, I64, PTR, I64, PTR, PTR, I64, ir.IntType(1))


def tile_function(
    module: ir.Module, item: Item, tile: Tile, target: Target, *, dealt: bool = False
) -> ir.Function:
    """The register tile as a function of its own; `dealt`: it has a table for the left operand too.

    Among the loops that pack, constants of those would be kept in the registers of the sums.
    """
    kinds = f"{item.args[0].dtype}.{item.dtype}"
    name = f"tile.{kinds}.{tile.rows}x{tile.columns}{'.dealt' if dealt else ''}"
    kind = ir.FunctionType(ir.VoidType(), [*TILE_ARGS, PTR] if dealt else [*TILE_ARGS])
    return outline_function(module, name, kind, lambda f: _fill(f, tile, item, target))


def _fill(f: ir.Function, tile: Tile, item: Item, target: Target) -> None:
    """sums[i, v] += left[i*apart + k] * right[table[k] + v] for k below depth; from 0 if fresh.
    With a table for the left operand it is left[i*apart + walk[k]]."""
    to, stride, left, apart, right, table, depth, fresh, *walk = f.args
    dtype, unit, height = item.dtype, item.args[0].dtype, tile.rows
    b = ir.IRBuilder(f.append_basic_block("entry"))
    m, scalar = LLVMMachine(b, tile.lanes, target), LLVMMachine(b, None, target)
    places = [
        element_address(
            b,
            element_address(b, to, b.mul(stride, number(i)), dtype),
            number(v * tile.lanes),
            dtype,
        )
        for i in range(height)
        for v in range(tile.vectors)
    ]
    begin, zero = b.load(walk[0], typ=I64) if walk else number(0), m.const(dtype, 0)
    begin = opaque(b, begin) if walk else begin  # or all loads became one, of this round
    entry, loop, done = b.block, f.append_basic_block("loop"), f.append_basic_block("done")
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    k.add_incoming(number(0), entry)
    along = b.phi(I64) if walk else k  # loaded one round before: LLVM would spill sums for it
    total = [b.phi(zero.type) for _ in places]
    line = element_address(b, right, b.load(element_address(b, table, k, i64), typ=I64), unit)
    across = [
        load_vector(m, element_address(b, line, number(v * tile.lanes), unit), unit, None)
        for v in range(tile.vectors)
    ]
    column = element_address(b, left, along, unit)
    following: list[Value] = []
    for i in range(height):
        place = element_address(b, column, b.mul(apart, number(i)), unit)
        wide = splat(b, load_scalar(scalar, place, unit, None), tile.lanes)
        following += [
            fma_step(m, wide, across[v], total[i * tile.vectors + v], item)
            for v in range(tile.vectors)
        ]
    after = b.add(k, number(1))
    k.add_incoming(after, loop)
    if walk:
        along.add_incoming(begin, entry)
        along.add_incoming(b.load(element_address(b, walk[0], after, i64), typ=I64), loop)
    for phi, s in zip(total, following, strict=True):
        phi.add_incoming(zero, entry)
        phi.add_incoming(s, loop)
    b.cbranch(b.icmp_signed("<", after, depth), loop, done)
    b.position_at_end(done)
    following = with_before(m, places, dtype, following, fresh)
    for p, s in zip(places, following, strict=True):
        store_vector(m, p, s, dtype, None)
    b.ret_void()
