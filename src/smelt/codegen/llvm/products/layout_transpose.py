"""Images and results of products over windows that change places with their channels on the way.

Vectors of an image run along its lines.  Those of as many channels as a vector has lanes are a
square; its columns are places with their channels side by side, which is how they are packed.  Sums
lie so too, and are turned back square by square, without regard to lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, store_vector
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.schedule.build_nests import Nest
from smelt.codegen.llvm.scratch.transpose import transpose
from smelt.codegen.llvm.scratch.workspace import RIGHT_PART, SUMS_PART

if TYPE_CHECKING:
    from smelt.codegen.llvm.products.implicit_gemm_nhwc import ImplicitGemmNhwc

Value = ir.Value


def pack_turned(packer: ImplicitGemmNhwc, nest: Nest) -> None:
    """Packs a block of the image, line by line.  What a square has beyond its line is overwritten
    by the next one, and behind the last one there is room."""
    b, home, c, lanes = packer.b, packer.home, packer.c, packer.c.tile.lanes
    *outer, depth, last = nest.order
    packer.starts = {a: home.ranges[a][0] for a in nest.order}
    column = c.columns[-1]
    known, size = home.s.local[column.axis], home.s.phase.axes[column.axis]
    line = 0  # where all tasks have lines of one length it is known what is left of each
    if isinstance(known, int) and isinstance(size, int) and known and size % known == 0:
        line = (known + column.margin) * (column.step if c.few else 1)
    piece = _Piece(packer, nest)

    def lines(scope: Scope, rest: list[str], done: int) -> None:
        if rest:
            home.loop(*home.ranges[rest[0]], 1, lambda at: step(scope, rest, at, done))
            return
        home.loop(*home.ranges[depth], c.few or lanes, lambda k: pieces(scope, k))

    def step(scope: Scope, rest: list[str], at: Value, done: int) -> None:
        inner = Scope(scope, {rest[0]: at})
        home.enter(inner, done + 1)
        lines(inner, rest[1:], done + 1)

    def pieces(scope: Scope, k: Value) -> None:
        low, high = home.ranges[last]
        whole = b.add(low, b.and_(b.sub(high, low), number(-lanes)))
        home.loop(low, whole, lanes, lambda at: piece.put(scope, k, at, None, lanes))
        home.loop(
            whole,
            high,
            lanes,
            lambda at: piece.put(
                scope,
                k,
                at,
                b.icmp_signed("<", iota(lanes), splat(b, b.sub(high, at), lanes)),
                line % lanes or lanes,
            ),
        )

    lines(home.open(nest, Scope(home.top)), [*outer], 0)


class _Piece:
    """A vector of places of a line, and all that a task packs of them at once."""

    def __init__(self, packer: ImplicitGemmNhwc, nest: Nest) -> None:
        self.packer, self.nest, self.c = packer, nest, packer.c
        self.home, self.b, self.lanes = packer.home, packer.b, packer.c.tile.lanes
        self.depth, self.last = nest.order[-2:]
        self.m = LLVMMachine(self.b, self.lanes, self.home.home.target)

    def put(self, scope: Scope, k: Value, at: Value, mask: Value | None, count: int) -> None:
        """Packs channels from the kth on of so many places."""
        if self.c.few:
            self._colours(scope, at, self._rows(scope, (k, at), mask, self.c.few))
            return
        for i, found in enumerate(transpose(self.b, self._rows(scope, (k, at), mask, self.lanes))):
            place = Scope(scope, {self.depth: k, self.last: self.b.add(at, number(i))})
            if i < count:
                self._store(self.packer.offset(self.nest, place), found)

    def _store(self, offset: Value, found: Value) -> None:
        store_vector(self.m, self.packer.at(RIGHT_PART, offset), found, self.c.unit, None)

    def _rows(
        self, scope: Scope, at: tuple[Value, Value], mask: Value | None, count: int
    ) -> list[Value]:
        """Vectors along the line of so many channels; those beyond the last one are again that."""
        b, home, (k, place), found = self.b, self.home, at, list[Value]()
        end = b.sub(home.ranges[self.depth][1], number(1))
        for i in range(count):
            here = b.add(k, number(i))
            here = b.select(b.icmp_signed("<", here, end), here, end)
            channel = Scope(scope, {self.depth: here})
            home.enter(channel, len(self.nest.order) - 1)
            inner = Scope(
                channel, {self.last: place}, lanes=Lanes(self.last, place, self.lanes, mask)
            )
            home.enter(inner, len(self.nest.order))
            found.append(home.get(self.c.right, inner, True))
        return found

    def _colours(self, scope: Scope, at: Value, rows: list[Value]) -> None:
        """Few channels go side by side, place after place."""
        b, packer, lanes, few = self.b, self.packer, self.lanes, self.c.few
        far = b.mul(b.sub(at, packer.starts[self.last]), number(few))
        for a in self.nest.order[:-2]:
            far = b.add(far, b.mul(b.sub(scope.axis(a), packer.starts[a]), packer.strides[a]))
        for j in range(few):
            spots, found = [divmod(j * lanes + i, few) for i in range(lanes)], rows[0]
            for k in range(1, few):
                taken = [
                    lanes + x if y == k else x if k == 1 else i for i, (x, y) in enumerate(spots)
                ]
                mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), taken)
                found = b.shuffle_vector(found, rows[k], mask)
            self._store(b.add(far, number(j * lanes)), found)


def turn_back(packer: ImplicitGemmNhwc) -> None:
    """The sums, from place by place to channel by channel, where they are read or stored."""
    b, home, c, lanes = packer.b, packer.home, packer.c, packer.c.tile.lanes
    m, dtype = LLVMMachine(b, lanes, home.home.target), c.item.dtype
    base, apart = home.direct.turned(c)
    columns = [k.axis for k in c.columns]
    spans = {a: b.sub(high, low) for a in (c.n, *columns) for low, high in (home.ranges[a],)}
    line = spans[columns[-1]]
    if home.direct.is_run(c):
        line = b.mul(spans[columns[-2]], packer.rows[-2])
        line = b.udiv(line, packer.rows[-1])
        columns.pop(-2)

    even = packer.is_even(c.n, lanes)

    def square(n: Value, source: Value, to: Value, at: Value, whole: bool) -> None:
        rows = [
            load_vector(
                m,
                packer.at(
                    SUMS_PART, b.add(b.add(source, n), b.mul(b.add(at, number(k)), packer.rows[-1]))
                ),
                dtype,
                None,
            )
            for k in range(lanes)
        ]
        end = spans[c.n]
        inside = b.icmp_signed("<", iota(lanes), splat(b, b.sub(line, at), lanes))
        for k, row in enumerate(transpose(b, rows)):
            channel = b.add(n, number(k))
            mask: Value | None = None if whole else inside
            if not even:
                some = splat(b, b.icmp_signed("<", channel, end), lanes)
                mask = some if mask is None else b.and_(mask, some)
            place = b.add(b.add(to, at), b.mul(channel, apart[c.n]))
            store_vector(m, element_address(b, base, place, dtype), row, dtype, mask)

    def lines(rest: list[str], n: Value, source: Value, to: Value) -> None:
        if len(rest) > 1:
            step = packer.rows[[k.axis for k in c.columns].index(rest[0])]
            home.loop(
                number(0),
                spans[rest[0]],
                1,
                lambda at: lines(
                    rest[1:],
                    n,
                    b.add(source, b.mul(at, step)),
                    b.add(to, b.mul(at, apart[rest[0]])),
                ),
            )
            return
        middle = b.and_(line, number(-lanes))
        home.loop(number(0), middle, lanes, lambda at: square(n, source, to, at, True))
        home.loop(middle, line, lanes, lambda at: square(n, source, to, at, False))

    home.loop(number(0), spans[c.n], lanes, lambda n: lines(columns, n, number(0), number(0)))


__all__ = ["pack_turned", "turn_back"]
