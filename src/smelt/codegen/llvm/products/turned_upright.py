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
from smelt.codegen.llvm.schedule.nests import Nest
from smelt.codegen.llvm.scratch.storage import RIGHT_PART, SUMS_PART
from smelt.codegen.llvm.scratch.turn import transpose

if TYPE_CHECKING:
    from smelt.codegen.llvm.products.upright_product import UprightEmitter

Value = ir.Value


def pack_turned(packer: UprightEmitter, nest: Nest) -> None:
    """Packs a block of the image, line by line.  What a square has beyond its line is overwritten
    by the next one, and behind the last one there is room."""
    b, home, c, lanes = packer.b, packer.home, packer.c, packer.c.tile.lanes
    *outer, depth, last = nest.order
    top, m = home.open(nest, Scope(home.top)), LLVMMachine(b, lanes, home.home.target)
    packer.starts = {a: home.ranges[a][0] for a in nest.order}
    known = home.s.local[c.columns[-1].axis]
    line = known + c.columns[-1].margin if isinstance(known, int) else None

    def square(scope: Scope, k: Value, at: Value, count: int) -> None:
        end = b.sub(home.ranges[depth][1], number(1))
        high, rows = home.ranges[last][1], list[Value]()
        mask = b.icmp_signed("<", iota(lanes), splat(b, b.sub(high, at), lanes))
        for i in range(lanes):
            here = b.add(k, number(i))
            here = b.select(b.icmp_signed("<", here, end), here, end)
            channel = Scope(scope, {depth: here})
            home.enter(channel, len(nest.order) - 1)
            inner = Scope(channel, {last: at}, lanes=Lanes(last, at, lanes, mask))
            home.enter(inner, len(nest.order))
            rows.append(home.get(c.right, inner, True))
        for i, found in enumerate(transpose(b, rows)[:count]):
            place = Scope(scope, {depth: k, last: b.add(at, number(i))})
            to = packer.at(RIGHT_PART, packer.offset(nest, place))
            store_vector(m, to, found, c.unit, None)

    def lines(scope: Scope, rest: list[str], done: int) -> None:
        if rest:
            home.loop(*home.ranges[rest[0]], 1, lambda at: step(scope, rest, at, done))
            return
        low, high = home.ranges[last]
        whole = high if line is None else b.add(low, number(line // lanes * lanes))
        home.loop(*home.ranges[depth], lanes, lambda k: squares(scope, k, low, whole))

    def step(scope: Scope, rest: list[str], at: Value, done: int) -> None:
        inner = Scope(scope, {rest[0]: at})
        home.enter(inner, done + 1)
        lines(inner, rest[1:], done + 1)

    def squares(scope: Scope, k: Value, low: Value, whole: Value) -> None:
        home.loop(low, whole, lanes, lambda at: square(scope, k, at, lanes))
        if line is not None and line % lanes:
            square(scope, k, whole, line % lanes)

    lines(top, [*outer], 0)


def turn_back(packer: UprightEmitter) -> None:
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

    def square(n: Value, source: Value, to: Value, at: Value) -> None:
        rows = [load_vector(m, packer.at(SUMS_PART, b.add(b.add(source, n), b.mul(
                    b.add(at, number(k)), packer.rows[-1]))), dtype, None)
                for k in range(lanes)]  # fmt: skip
        end = spans[c.n]
        inside = b.icmp_signed("<", iota(lanes), splat(b, b.sub(line, at), lanes))
        for k, row in enumerate(transpose(b, rows)):
            channel = b.add(n, number(k))
            mask = b.and_(inside, splat(b, b.icmp_signed("<", channel, end), lanes))
            place = b.add(b.add(to, at), b.mul(channel, apart[c.n]))
            store_vector(m, element_address(b, base, place, dtype), row, dtype, mask)

    def lines(rest: list[str], n: Value, source: Value, to: Value) -> None:
        if len(rest) > 1:
            step = packer.rows[[k.axis for k in c.columns].index(rest[0])]
            home.loop(number(0), spans[rest[0]], 1, lambda at: lines(
                rest[1:], n, b.add(source, b.mul(at, step)), b.add(to, b.mul(at, apart[rest[0]]))
            ))  # fmt: skip
            return
        home.loop(number(0), line, lanes, lambda at: square(n, source, to, at))

    home.loop(number(0), spans[c.n], lanes, lambda n: lines(columns, n, number(0), number(0)))


__all__ = ["pack_turned", "turn_back"]
