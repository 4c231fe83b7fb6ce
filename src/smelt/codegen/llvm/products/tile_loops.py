"""Strip-mine blocks into register tiles, and outline tiles as functions.

Within the packing loops LLVM would keep those loops' constants in the registers which the tile
needs for its sums; a separate noinline function has all registers:

    function = outline_function(module, "tile.f32.12x32", TILE_TYPE, fill)   # fill(function), once
    for_each_tile(env, tile, fewer, rows, columns, lambda tile, row, column: ...)
    for_each_column_tile(env, tile, columns, line, even)               # tiles one below the other
    reduction_loop(b, (low, high), step, one, begin)                    # the loop over k of a tile
    unrolled_reduction(b, (low, high), step, one, begin)                # for a range of any length
    strip_mine_axis(env, axis, size, inside)                           # the loops around them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import fit_cache_lines
from smelt.codegen.llvm.instructions.counting import advance_counter, start_counter
from smelt.codegen.llvm.instructions.indexing import number, opaque
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.register_tile import Tile
from smelt.codegen.llvm.schedule.task_tiling import transpose_side

Value = ir.Value
UNPACKED_TILES = 2
"""Maximum tiles below each other for which packing unaligned rows does not pay."""


def strip_mine(
    env: Environment,
    span: tuple[Value, Value],
    size: int | Value,
    inside: Callable[[Value, Value], None],
    *,
    at_multiples: bool = False,
) -> None:
    """Emit `inside(begin, end)` for consecutive blocks of a range.

    With `at_multiples` blocks end at multiples of the size, so that the first may be shorter.
    """
    b, (low, high) = env.b, span
    step = number(size) if isinstance(size, int) else size

    def block(at: Value) -> None:
        end = b.add(at, step)
        start = b.maximum(at, low) if at_multiples else at
        inside(start, b.minimum(end, high))

    first = low
    if at_multiples:  # an empty range must not begin before itself
        has_any = b.icmp_signed("<", low, high)
        first = b.select(has_any, b.sub(low, b.srem(low, step)), low)
    env.loop(first, high, size, block)


def strip_mine_axis(
    env: Environment,
    axis: str,
    size: int | Value,
    inside: Callable[[], None],
    *,
    at_multiples: bool = False,
) -> None:
    """Emit `inside` for each block of an axis, whose range is narrowed to it."""

    def narrowed(*part: Value) -> None:
        with env.narrowed({axis: (part[0], part[1])}):
            inside()

    strip_mine(env, env.ranges[axis], size, narrowed, at_multiples=at_multiples)


def strip_mine_transpose_tiles(
    env: Environment, axes: Sequence[str], inside: Callable[[], None]
) -> None:
    """Emit `inside` for each transpose tile of two axes, with narrowed ranges."""
    side, (first, second) = transpose_side(env.s.lanes), axes
    strip_mine_axis(env, first, side, lambda: strip_mine_axis(env, second, side, inside))


def outline_function(
    module: ir.Module, name: str, kind: ir.FunctionType, fill: Callable[[ir.Function], None]
) -> ir.Function:
    """Return the internal noinline function `name`, emitted by `fill` if the module has none."""
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, kind, name, "internal")
        for attribute in ("noinline", "nounwind"):
            function.attributes.add(attribute)
        function.args[0].add_attribute("noalias")
        fill(function)
    return function


def for_each_height(
    env: Environment,
    rows: tuple[Value, Value],
    heights: Sequence[int],
    put: Callable[[Value, int], None],
) -> Value:
    """Emit `put(row, height)` for tiles of each height; return where they end."""
    b, (done, high) = env.b, rows
    for height in heights:
        end = b.sub(high, b.urem(b.sub(high, done), number(height)))
        env.loop(done, end, height, lambda row, height=height: put(row, height))
        done = end
    return done


def for_each_tile(
    env: Environment,
    tile: Tile,
    fewer: int,
    rows: Value,
    columns: Value,
    put: Callable[[Tile, Value, Value], None],
    begin: Callable[[Value, int], None] | None = None,
) -> None:
    """Emit `put(tile, row, column)` for every register tile of a block.

    Full tiles come first, then those of `fewer` rows; a narrow column remainder gets tiles of one
    vector.  `begin(column, vectors)` is emitted before the tiles of each column block.
    """
    b = env.b
    full_rows = full_tile_rows(b, rows, tile.rows, fewer)

    def column_tiles(column: Value, vectors: int) -> None:
        if begin is not None:
            begin(column, vectors)
        for height, start, end in ((tile.rows, number(0), full_rows), (fewer, full_rows, rows)):
            sized = replace(tile, rows=height, vectors=vectors)
            env.loop(start, end, height, lambda row, sized=sized: put(sized, row, column))

    for_each_column_tile(env, tile, columns, column_tiles)


def for_each_column_tile(
    env: Environment,
    tile: Tile,
    columns: Value,
    line: Callable[[Value, int], None],
    even: bool = False,
) -> None:
    """Emit `line(column, vectors)` for every column block of a register tile.

    A remainder which fits one vector gets `vectors` = 1; with `even` there is known to be none.
    """
    b = env.b
    if even:
        env.loop(number(0), columns, tile.columns, lambda at: line(at, tile.vectors))
        return
    remainder = b.srem(columns, number(tile.columns))
    is_narrow = b.icmp_signed("<=", remainder, number(tile.lanes))
    full_columns = b.select(is_narrow, b.sub(columns, remainder), columns)
    env.loop(number(0), full_columns, tile.columns, lambda at: line(at, tile.vectors))
    env.loop(full_columns, columns, tile.columns, lambda at: line(at, 1))


def full_tile_rows(b: ir.IRBuilder, rows: Value, high: int, low: int) -> Value:
    """Return how many rows full-height tiles cover.

    If the remainder is small, one full tile less, so that two short tiles cover it and the
    remainder; if the remainder is nearly a full tile, round up.
    """
    remainder = b.srem(rows, number(high))
    full, is_exact = b.sub(rows, remainder), b.icmp_signed("==", remainder, number(0))
    is_small = b.icmp_signed("<=", remainder, number(2 * low - high))
    is_small = b.and_(b.and_(is_small, b.not_(is_exact)), b.icmp_signed(">", full, number(0)))
    is_large = b.icmp_signed(">", remainder, number(low))
    full = b.select(is_small, b.sub(full, number(high)), full)
    return b.select(is_large, b.add(full, number(high)), full)


def reads_well_in_place(
    env: Environment, c: Contraction, lines: tuple[Value, Value], rows: Value
) -> Value:
    """Return whether tiles should read short rows of the right operand in place (i1).

    `lines` is the first row's address and the elements between rows.  Vectors which cross cache
    lines are loaded twice by every tile, so a stream's block is packed once for all rows if there
    are more rows than packing costs.
    """
    b, size = env.b, c.unit.itemsize
    if env.s.region(c.item) is None:
        return ir.IntType(1)(1)
    aligned = fit_cache_lines(b, lines[0], b.mul(lines[1], number(size)), c.tile.lanes * size)
    return b.or_(aligned, b.icmp_signed("<=", rows, number(UNPACKED_TILES * c.tile.rows)))


def ends_with_whole_unit(env: Environment, c: Contraction) -> Value:
    """Return whether the current block of k ends with a complete 32-bit unit (i1)."""
    low, high = env.ranges[c.k]
    remainder = env.b.urem(env.b.sub(high, low), number(c.group_size))
    return env.b.icmp_signed("==", remainder, number(0))


def reduction_loop(
    b: ir.IRBuilder,
    span: tuple[Value, Value],
    step: int,
    one: Callable[[Value, list[Value], int], list[Value]],
    begin: list[Value],
    *,
    may_be_empty: bool = True,
) -> list[Value]:
    """Emit a reduction loop over k with accumulators in phi nodes; return the final accumulators.

    `one(k, sums, nth)` returns the accumulators after position k + nth; the body is unrolled by
    `step`.  The range must be a multiple of `step`.
    """
    (low, high), before = span, b.block
    enters = b.icmp_signed("<", low, high) if may_be_empty else ir.IntType(1)(1)
    if ir.is_false(enters):
        return begin
    preheader, loop = b.append_basic_block("ahead"), b.append_basic_block("tile")
    done = b.append_basic_block("tiled")
    b.cbranch(enters, preheader, done)
    b.position_at_end(preheader)
    low = opaque(b, low)  # keeps the preheader: LLVM hoists constants there
    b.branch(loop)
    b.position_at_end(loop)
    k = start_counter(b, low, number(step), preheader)
    totals = [b.phi(x.type) for x in begin]
    following: list[Value] = [*totals]
    for nth in range(step):
        following = one(k, following, nth)
    after, end = advance_counter(b, k), b.block
    b.cbranch(b.icmp_signed("<", after, high), loop, done)
    b.position_at_end(done)
    results: list[Value] = []
    for first, total, value in zip(begin, totals, following, strict=True):
        total.add_incoming(first, preheader)
        total.add_incoming(value, end)
        if not may_be_empty:
            results.append(value)
            continue
        last = b.phi(first.type)
        last.add_incoming(first, before)
        last.add_incoming(value, end)
        results.append(last)
    return results


def unrolled_reduction(
    b: ir.IRBuilder,
    span: tuple[Value, Value],
    step: int,
    one: Callable[[Value, list[Value], int], list[Value]],
    begin: list[Value],
    rest: Callable[[Value, list[Value], int], list[Value]] | None = None,
) -> list[Value]:
    """Emit a reduction loop unrolled by `step`, and one for what is left.

    Arguments are those of `reduction_loop`; `rest` emits what is left, if not `one`.
    """
    if step == 1:
        return reduction_loop(b, span, 1, one, begin)
    low, high = span
    end = b.add(low, b.and_(b.sub(high, low), number(-step)))
    sums = reduction_loop(b, (low, end), step, one, begin)
    return reduction_loop(b, (end, high), 1, rest or one, sums)
