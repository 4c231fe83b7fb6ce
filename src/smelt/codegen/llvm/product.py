"""Contractions: packed blocks of both operands, and a register tile that runs over them.

For each block of k: the left operand's block goes to scratch row by row (rows a fixed distance
apart, so that one base register reaches all rows of a tile), the right operand's in panels as wide
as the tile; then tiles accumulate into the scratch array of the result.  Both packings are ordinary
nests, which may compute, gather, convert or turn what they pack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smelt.blocks import COLUMNS, DEPTH
from smelt.codegen.llvm.contract import Contraction
from smelt.codegen.llvm.indexing import I64, number, splat
from smelt.codegen.llvm.items import Item
from smelt.codegen.llvm.machine import LLVMMachine
from smelt.codegen.llvm.memory import element_address, load_scalar, load_vector, store_vector
from smelt.codegen.llvm.nests import TILE, Nest
from smelt.codegen.llvm.scope import Scope
from smelt.codegen.llvm.storage import LEFT_PART, RIGHT_PART
from smelt.codegen.llvm.thin import ThinEmitter, multiply_add
from smelt.codegen.llvm.turn import Put, turned
from smelt.types.dtype import DType

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = Any


class ProductEmitter:
    """The contractions of the task that `home` is emitting."""

    def __init__(self, home: NestEmitter) -> None:
        self.home, self.b = home, home.b
        self.scope = home.top
        self.ahead: dict[Item, Value] = {}
        """Products whose left operand is packed before their stream, if it is one block of k."""

    def pack_ahead(self, nest: Nest, c: Contraction) -> None:
        """Packs the left operand, which is the same for all blocks of the stream that begins."""
        low, high = self.home.ranges[c.k]
        fits = self.b.icmp_signed("<=", self.b.sub(high, low), number(c.depth))
        with self.b.if_then(fits):
            self._pack(nest.packs[0], Scope(self.home.top))
        self.ahead[c.item] = fits

    def run(self, nest: Nest, c: Contraction) -> None:
        """The whole contraction of this task into its scratch array."""
        self.fresh: Value = None
        scope = Scope(self.home.top)
        if c.thin or c.outer:
            self._clear(c)
            self._outer(nest, c, 0, scope)
            return
        low, high = self.home.ranges[c.k]
        with self.b.if_then(self.b.icmp_signed(">=", low, high)):
            self._clear(c)

        def deep() -> None:
            self.fresh = self.b.icmp_signed("==", self.home.ranges[c.k][0], low)
            self._deep(nest, c, scope)

        self._blocks(c.k, c.depth, deep)

    def _clear(self, c: Contraction) -> None:
        home = self.home
        m = LLVMMachine(self.b, home.s.lanes, home.home.target)
        count = home.home.index(home.storage.rows(c))
        count = self.b.mul(count, home.home.index(home.storage.extent(c.item, c.n)))
        base, zero = home.storage.at[c.item, 0], m.const(c.item.dtype, 0)

        def put(position: Value) -> None:
            at = element_address(self.b, base, position, c.item.dtype)
            store_vector(m, at, zero, c.item.dtype, None)

        home.loop(number(0), count, home.s.lanes, put)

    def _outer(self, nest: Nest, c: Contraction, depth: int, scope: Scope) -> None:
        """Loops over the summed axes but the last."""
        if depth < len(c.outer):
            name = c.outer[depth]
            low, high = self.home.ranges[name]
            self.home.loop(
                low, high, 1,
                lambda at: self._outer(nest, c, depth + 1, Scope(scope, {name: at})),
            )  # fmt: skip
            return
        self._blocks(c.k, c.depth, lambda: self._deep(nest, c, scope))

    def _blocks(self, axis: str, size: int, inside: Any) -> None:
        """Runs `inside` with the range of an axis cut to blocks."""
        b, home = self.b, self.home
        low, high = home.ranges[axis]

        def block(at: Value) -> None:
            end = b.add(at, number(size))
            home.ranges[axis] = (at, b.select(b.icmp_signed("<", end, high), end, high))
            inside()
            home.ranges[axis] = (low, high)

        home.loop(low, high, size, block)

    def _deep(self, nest: Nest, c: Contraction, scope: Scope) -> None:
        """One block of k: packs left, then block by block of n packs right and multiplies."""
        left, right = nest.packs
        if c.item in self.ahead:
            with self.b.if_then(self.b.not_(self.ahead[c.item])):
                self._pack(left, scope)
        elif not c.direct:
            self._pack(left, scope)
        if c.thin:
            ThinEmitter(self.home, c, right, scope).run()
            return

        def columns() -> None:
            self._pack(right, scope)
            self._tiles(c)

        self._blocks(c.n, COLUMNS, columns)

    def _pack(self, pack: Nest, scope: Scope) -> None:
        self.pack_starts = {a: self.home.ranges[a][0] for a in pack.order}
        if not pack.turned:
            self.home.run(pack, scope)
            return
        if pack.items == pack.turned:
            top = self.home.open(pack, scope)
            turned(self.home, pack.turned[0], top, self._putter(pack))
            return
        first, second = pack.order
        self._blocks(
            first, TILE, lambda: self._blocks(second, TILE, lambda: self.home.run(pack, scope))
        )

    def put(self, pack: Nest, value: Value, scope: Scope) -> None:
        """Stores one vector of a packed operand at its place."""
        lanes = scope.lanes.count if scope.lanes is not None else None
        m = LLVMMachine(self.b, lanes, self.home.home.target)
        *firsts, second = (scope.axis(a) for a in pack.order)
        at, dtype = self._packed_place(pack, firsts[0] if firsts else None, second)
        value = splat(self.b, value, lanes) if lanes else value
        store_vector(m, at, value, dtype, scope.lanes.mask if scope.lanes else None)

    def _putter(self, pack: Nest) -> Put:
        """Stores a whole vector of a packed operand."""
        m = LLVMMachine(self.b, self.home.s.lanes, self.home.home.target)

        def put(first: Value, second: Value, value: Value) -> None:
            at, dtype = self._packed_place(pack, first, second)
            store_vector(m, at, value, dtype, None)

        return put

    def _packed_place(self, pack: Nest, first: Value | None, second: Value) -> tuple[Value, DType]:
        """Where an element of a packed operand lies, and its type."""
        b, home = self.b, self.home
        c = next(n.product for n in home.s.nests if pack in n.packs)
        assert isinstance(c, Contraction)
        second = b.sub(second, self.pack_starts[pack.order[-1]])
        first = number(0) if first is None else b.sub(first, self.pack_starts[pack.order[0]])
        dtype = c.item.dtype
        if pack.packed == "left":
            base = home.storage.at[c.item, LEFT_PART]
            offset = b.add(b.mul(first, number(c.pitch)), second)
        else:
            base = home.storage.at[c.item, RIGHT_PART]
            inside = b.and_(second, number(c.tile.columns - 1))
            panel = b.mul(b.sub(second, inside), number(DEPTH))
            offset = b.add(b.add(panel, b.mul(first, number(c.tile.columns))), inside)
        return element_address(b, base, offset, dtype), dtype

    # ---- tiles -----------------------------------------------------------------------------------

    def _tiles(self, c: Contraction) -> None:
        """Every register tile of the packed blocks."""
        b, home = self.b, self.home
        assert c.m is not None
        (m_low, m_high), (n_low, n_high) = home.ranges[c.m], home.ranges[c.n]
        k_low, k_high = home.ranges[c.k]
        rows, columns, depth = b.sub(m_high, m_low), b.sub(n_high, n_low), b.sub(k_high, k_low)
        stride = home.home.index(home.storage.extent(c.item, c.n))
        dtype = c.item.dtype
        right = home.storage.at[c.item, RIGHT_PART]
        if c.direct:
            first = b.sub(k_low, home.scratch.start(c.left, c.k))
            left = element_address(b, home.storage.at[c.left, 0], first, dtype)
        else:
            left = home.storage.at[c.item, LEFT_PART]
        n_first = b.sub(n_low, home.scratch.start(c.item, c.n))

        def tile(column: Value, row: Value) -> None:
            at = b.add(b.mul(row, stride), b.add(n_first, column))
            to = element_address(b, home.storage.at[c.item, 0], at, dtype)
            a = element_address(b, left, b.mul(row, number(c.pitch)), dtype)
            panel = element_address(b, right, b.mul(column, number(DEPTH)), dtype)
            self._tile(c, to, stride, a, panel, depth)

        home.loop(
            number(0), columns, c.tile.columns,
            lambda column: home.loop(
                number(0), rows, c.tile.rows, lambda row: tile(column, row)
            ),
        )  # fmt: skip

    def _start(self, m: LLVMMachine, places: list[Value], dtype: DType) -> list[Value]:
        """The sums so far: nothing in the first block of k."""
        b = self.b
        if self.fresh is None:
            return [load_vector(m, p, dtype, None) for p in places]
        before = b.block
        with b.if_then(b.not_(self.fresh)):
            found = [load_vector(m, p, dtype, None) for p in places]
            inside = b.block
        phis = [b.phi(v.type) for v in found]
        for phi, v in zip(phis, found, strict=True):
            phi.add_incoming(m.const(dtype, 0), before)
            phi.add_incoming(v, inside)
        return phis

    def _tile(
        self, c: Contraction, to: Value, stride: Value, a: Value, panel: Value, depth: Value
    ) -> None:
        """acc[rows, vectors] += a[rows, depth] * panel[depth, vectors], held in registers."""
        b, dtype, tile = self.b, c.item.dtype, c.tile
        m = LLVMMachine(b, tile.lanes, self.home.home.target)
        scalar = LLVMMachine(b, None, self.home.home.target)
        places: list[Value] = []
        for i in range(tile.rows):
            row = element_address(b, to, b.mul(stride, number(i)), dtype)
            places += [element_address(b, row, number(v * tile.lanes), dtype)
                       for v in range(tile.vectors)]  # fmt: skip
        start = self._start(m, places, dtype)
        before = b.block
        loop, done = b.append_basic_block("tile"), b.append_basic_block("tiled")
        b.branch(loop)
        b.position_at_end(loop)
        k = b.phi(I64)
        k.add_incoming(number(0), before)
        total = [b.phi(s.type) for s in start]
        for phi, s in zip(total, start, strict=True):
            phi.add_incoming(s, before)
        line = element_address(b, panel, b.mul(k, number(tile.columns)), dtype)
        vectors = [element_address(b, line, number(v * tile.lanes), dtype)
                   for v in range(tile.vectors)]  # fmt: skip
        across = [load_vector(m, place, dtype, None) for place in vectors]
        column = element_address(b, a, k, dtype)
        following: list[Value] = []
        for i in range(tile.rows):
            one = load_scalar(
                scalar, element_address(b, column, number(i * c.pitch), dtype), dtype, None
            )
            wide = splat(b, one, tile.lanes)
            following += [multiply_add(m, wide, across[v], total[i * tile.vectors + v], c.item)
                          for v in range(tile.vectors)]  # fmt: skip
        after = b.add(k, number(1))
        k.add_incoming(after, loop)
        for phi, s in zip(total, following, strict=True):
            phi.add_incoming(s, loop)
        b.cbranch(b.icmp_signed("<", after, depth), loop, done)
        b.position_at_end(done)
        for p, s in zip(places, following, strict=True):
            store_vector(m, p, s, dtype, None)
