"""Register tiles as functions of their own, and the loops that call them for all of a block.

Among the loops that pack, constants of those would be kept in the registers of a tile's sums:

    function = outline_function(module, "tile.f32.12x32", TILE_TYPE, fill)   # fill(function), once
    for_each_tile(home, tile, fewer, rows, columns, lambda tile, row, column: ...)
    every_width(home, tile, columns, lambda column, vectors: ...)       # what stands above others
    rounds(b, (low, high), step, lambda k, sums, nth: ..., begin)       # a tile's own loop
    in_blocks(home, axis, size, inside)                                 # around them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import lie_in_lines
from smelt.codegen.llvm.instructions.counting import count_on, counted
from smelt.codegen.llvm.instructions.indexing import number, opaque
from smelt.codegen.llvm.schedule.contract import Contraction, Tile
from smelt.codegen.llvm.schedule.task_tiling import turned_side

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
FEW = 2
"""Tiles one below the other up to which loading what two lines hold costs less than packing it."""


def blocks(
    home: NestEmitter,
    span: tuple[Value, Value],
    size: int | Value,
    inside: Callable[[Value, Value], None],
    *,
    at_multiples: bool = False,
) -> None:
    """`inside(begin, end)` for blocks of so many positions, or for those that end at multiples."""
    b, (low, high) = home.b, span
    step = number(size) if isinstance(size, int) else size

    def block(at: Value) -> None:
        end = b.add(at, step)
        start = b.select(b.icmp_signed("<", at, low), low, at) if at_multiples else at
        inside(start, b.select(b.icmp_signed("<", end, high), end, high))

    first = low
    if at_multiples:  # of no positions no block begins before them
        some = b.icmp_signed("<", low, high)
        first = b.select(some, b.sub(low, b.srem(low, step)), low)
    home.loop(first, high, size, block)


def in_blocks(
    home: NestEmitter,
    axis: str,
    size: int | Value,
    inside: Callable[[], None],
    *,
    at_multiples: bool = False,
) -> None:
    """Runs `inside` with the range of an axis cut to `blocks`."""
    kept = home.ranges[axis]

    def block(*part: Value) -> None:
        home.ranges[axis] = part[0], part[1]
        inside()
        home.ranges[axis] = kept

    blocks(home, kept, size, block, at_multiples=at_multiples)


def in_squares(home: NestEmitter, axes: Sequence[str], inside: Callable[[], None]) -> None:
    """Runs `inside` with the ranges of two axes cut to what is turned at once."""
    side, (first, second) = turned_side(home.s.lanes), axes
    in_blocks(home, first, side, lambda: in_blocks(home, second, side, inside))


def outline_function(
    module: ir.Module, name: str, kind: ir.FunctionType, fill: Callable[[ir.Function], None]
) -> ir.Function:
    """The function of a name, written by `fill` where the module has none yet."""
    found = module.globals.get(name)
    if found is None:
        found = ir.Function(module, kind, name)
        found.linkage = "internal"
        for attribute in ("noinline", "nounwind"):
            found.attributes.add(attribute)
        found.args[0].add_attribute("noalias")
        fill(found)
    return found


def for_each_tile(
    home: NestEmitter,
    tile: Tile,
    fewer: int,
    rows: Value,
    columns: Value,
    put: Callable[[Tile, Value, Value], None],
    begin: Callable[[Value, int], None] | None = None,
) -> None:
    """`put(tile, row, column)` for every tile of a block: whole ones, then those of `fewer` rows;
    where few columns are left, of one vector.  Before those of a column, `begin(column, vectors)`.
    """
    b = home.b
    whole = full_tile_rows(b, rows, tile.rows, fewer)

    def line(column: Value, vectors: int) -> None:
        if begin is not None:
            begin(column, vectors)
        for height, start, end in ((tile.rows, number(0), whole), (fewer, whole, rows)):
            low = replace(tile, rows=height, vectors=vectors)
            home.loop(start, end, height, lambda row, low=low: put(low, row, column))

    every_width(home, tile, columns, line)


def every_width(
    home: NestEmitter,
    tile: Tile,
    columns: Value,
    line: Callable[[Value, int], None],
    even: bool = False,
) -> None:
    """`line(column, vectors)` for every column that a tile begins at, and vectors of each: where
    few columns are left, one, if columns are not known to be `even`."""
    b = home.b
    if even:
        home.loop(number(0), columns, tile.columns, lambda at: line(at, tile.vectors))
        return
    over = b.srem(columns, number(tile.columns))
    few = b.icmp_signed("<=", over, number(tile.lanes))
    wide = b.select(few, b.sub(columns, over), columns)
    home.loop(number(0), wide, tile.columns, lambda at: line(at, tile.vectors))
    home.loop(wide, columns, tile.columns, lambda at: line(at, 1))


def heights(full: int) -> tuple[int, ...]:
    """Heights of tiles that together fit any number of rows, from whole ones to single rows."""
    return (full, *(h for h in (4, 2, 1) if 2 * h <= full))


def full_tile_rows(b: ir.IRBuilder, rows: Value, high: int, low: int) -> Value:
    """Rows that whole tiles take: two lower ones do the last of these with the few rows that would
    be left, and a whole one more what is nearly whole."""
    over = b.srem(rows, number(high))
    whole, none = b.sub(rows, over), b.icmp_signed("==", over, number(0))
    few = b.icmp_signed("<=", over, number(2 * low - high))
    few = b.and_(b.and_(few, b.not_(none)), b.icmp_signed(">", whole, number(0)))
    many = b.icmp_signed(">", over, number(low))
    whole = b.select(few, b.sub(whole, number(high)), whole)
    return b.select(many, b.add(whole, number(high)), whole)


def lies_well(home: NestEmitter, c: Contraction, lines: tuple[Value, Value], rows: Value) -> Value:
    """Whether tiles of so many rows had better read short lines of a right operand where they lie
    than packed ones: from what address on, and elements apart.  Where vectors lie in two lines of
    the cache each tile loads them twice; a stream's blocks are packed once for all rows, if these
    are more than packing costs."""
    b, size = home.b, c.unit.itemsize
    if home.s.region(c.item) is None:
        return ir.IntType(1)(1)
    whole = lie_in_lines(b, lines[0], b.mul(lines[1], number(size)), c.tile.lanes * size)
    return b.or_(whole, b.icmp_signed("<=", rows, number(FEW * c.tile.rows)))


def whole_units(home: NestEmitter, c: Contraction) -> Value:
    """Whether the block of k at hand ends with a whole unit."""
    low, high = home.ranges[c.k]
    part = home.b.urem(home.b.sub(high, low), number(c.together))
    return home.b.icmp_signed("==", part, number(0))


def rounds(
    b: ir.IRBuilder,
    span: tuple[Value, Value],
    step: int,
    one: Callable[[Value, list[Value], int], list[Value]],
    begin: list[Value],
) -> list[Value]:
    """What begins as `begin` after `one(k, sums, nth)` for all k of a span, so many in each round:
    the nth after the kth."""
    (low, high), before = span, b.block
    ahead, loop = b.append_basic_block("ahead"), b.append_basic_block("tile")
    done = b.append_basic_block("tiled")
    b.cbranch(b.icmp_signed("<", low, high), ahead, done)
    b.position_at_end(ahead)
    low = opaque(b, low)  # a block that stays: there LLVM fills registers, or else in each round
    b.branch(loop)
    b.position_at_end(loop)
    k = counted(b, low, number(step), ahead)
    totals = [b.phi(x.type) for x in begin]
    following: list[Value] = [*totals]
    for nth in range(step):
        following = one(k, following, nth)
    after, end = count_on(b, k), b.block
    b.cbranch(b.icmp_signed("<", after, high), loop, done)
    b.position_at_end(done)
    found: list[Value] = []
    for first, total, value in zip(begin, totals, following, strict=True):
        total.add_incoming(first, ahead)
        total.add_incoming(value, end)
        last = b.phi(first.type)
        last.add_incoming(first, before)
        last.add_incoming(value, end)
        found.append(last)
    return found
