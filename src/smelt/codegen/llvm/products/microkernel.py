"""Emit register tiles: loops over them, rank-one updates of their sums, and where sums go.

    sums[i, v] += left[i] * right[v]        broadcasts of the left operand, vectors of the right one

Every microkernel is a loop over such updates; they differ in where operands are, in what they
prefetch and in where sums go (F. Van Zee and R. van de Geijn, "BLIS: A Framework for Rapidly
Instantiating BLAS Functionality", 2015).  Within packing loops LLVM would keep those loops'
constants in the registers which the tile needs for its sums; an outlined function has all
registers.  Partial sums of a block of k wait in scratch for the next block.

The loop language has no form for dot products of units, permutes by a register, loads that wait for
sums, and sums that stay on the stack between runs; so the builder emits tiles, and texts pack.

Some dot-product instructions multiply two rows by two columns.  A register then holds a square of
four sums, of rows i and i + 1 and columns j and j + 1; each factor holds two units along k of two
rows, or of two columns.  That is twice the products of a dot product of one unit in every lane.
Squares are made of rows of sums before the loop, and rows of squares after it, by the same
shuffles.

    rows      r0 r1 r2 r3      squares   r0 r1 s0 s1
              s0 s1 s2 s3                r2 r3 s2 s3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    PTR,
    element_address,
    fit_cache_lines,
    load_scalar,
    load_vector,
    store_vector,
)
from smelt.codegen.llvm.instructions.counting import advance_counter, start_counter
from smelt.codegen.llvm.instructions.dot_product import (
    BF16_DOT,
    DotInstruction,
    dot_step,
    square_step,
)
from smelt.codegen.llvm.instructions.indexing import I64, number, opaque, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import lane_numbers
from smelt.codegen.llvm.loopir.items import Item, KPair
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.product_plan import Tile
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.machine.blocks import REGISTER_RUN
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bf16, i16, i32
from smelt.types.expr import Index

Value = ir.Value
_HALVES = (lane_numbers([0, 1, 4, 5]), lane_numbers([2, 3, 6, 7]))
_UNITS = (lane_numbers([0, 4, 1, 5]), lane_numbers([2, 6, 3, 7]))
MultiplyAdd = Callable[[Value, Value, Value], Value]
"""Returns a*b + c of three vectors."""


def rank_one_update(
    step: MultiplyAdd, left: Iterable[Value], right: Sequence[Value], sums: Sequence[Value]
) -> list[Value]:
    """Return a tile's sums, row by row, with the products of one position.

    `left` yields a broadcast for each row.  A generator emits it just before its use, which keeps
    registers free.
    """
    vectors = len(right)
    return [
        step(value, x, sums[i * vectors + v])
        for i, value in enumerate(left)
        for v, x in enumerate(right)
    ]


def load_row(
    m: LLVMMachine, first: Value, dtype: DType, vectors: int, last: Value | None = None
) -> list[Value]:
    """Return the vectors of a row; `last` is the mask of the last one."""
    steps = [number(v * (m.lanes or 1)) for v in range(vectors)]
    masks = [*[None] * (vectors - 1), last]
    return [
        load_vector(m, element_address(m.builder, first, step, dtype), dtype, mask)
        for step, mask in zip(steps, masks, strict=True)
    ]


def broadcast_each(m: LLVMMachine, places: Iterable[Value], dtype: DType) -> Iterator[Value]:
    """Yield the elements at some addresses, each broadcast to a vector."""
    scalar = LLVMMachine(m.builder, None, m.target)
    for place in places:
        yield splat(m.builder, load_scalar(scalar, place, dtype, None), m.lanes or 1)


def multiply_add(m: LLVMMachine, item: Item, group: DotInstruction | None = None) -> MultiplyAdd:
    """Return how a contraction multiplies and adds: by a dot-product instruction if in groups."""
    if group is not None:
        return lambda a, b, c: dot_step(m, group, a, b, c)
    return lambda a, b, c: fma_step(m, a, b, c, item)


def fma_step(m: LLVMMachine, a: Value, b: Value, c: Value, item: Item) -> Value:
    """Return a*b + c, fused if the processor can (software would cost a call).

    With units, add the dot product of the units `a` and `b` to c.
    """
    if isinstance(item.args[0], KPair) or item.args[0].dtype != item.dtype:
        return dot_step(m, BF16_DOT, a, b, c)
    if item.dtype.is_float and m.target.has_fma:
        return m.fma(a, b, c)
    return m.add(m.mul(a, b), c)


def exchange_halves(b: ir.IRBuilder, sums: Sequence[Value], vectors: int) -> list[Value]:
    """Return squares of two rows each for rows of `vectors` sums, or rows for squares."""
    changed = list(sums)
    for first in range(0, len(sums), 2 * vectors):
        for v in range(first, first + vectors):
            pair = sums[v], sums[v + vectors]
            changed[v], changed[v + vectors] = (b.shuffle_vector(*pair, x) for x in _HALVES)
    return changed


def interleave_positions(
    b: ir.IRBuilder, here: Sequence[Value], next_: Sequence[Value]
) -> list[tuple[Value, Value]]:
    """Return for each vector of columns its units at two positions, two columns a register."""
    return [
        (b.shuffle_vector(x, y, _UNITS[0]), b.shuffle_vector(x, y, _UNITS[1]))
        for x, y in zip(here, next_, strict=True)
    ]


def pair_rows(b: ir.IRBuilder, rows: Sequence[Value], align: int) -> Iterable[Value]:
    """Load two units of each of two rows, from the rows' addresses."""
    kind = ir.VectorType(I64, 2)
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        pair: Value = ir.Constant(kind, ir.Undefined)
        for lane, row in enumerate((first, second)):
            units = b.load(row, align=align, typ=I64)
            pair = b.insert_element(pair, units, ir.IntType(32)(lane))
        yield pair


def square_update(
    m: LLVMMachine,
    group: DotInstruction,
    left: Iterable[Value],
    right: Sequence[tuple[Value, Value]],
    squares: Sequence[Value],
) -> list[Value]:
    """Return a tile's squares with the products of two positions along k."""
    vectors, updated = len(right), list(squares)
    for pair, rows in enumerate(left):
        for v, columns in enumerate(right):
            for half in (0, 1):
                at = (2 * pair + half) * vectors + v
                updated[at] = square_step(m, group, rows, columns[half], squares[at])
    return updated


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


@dataclass
class TileTarget:
    """Destination of a tile: address of the first sum, elements between rows, element type."""

    address: Value
    row_stride: Value
    dtype: DType

    def addresses(self, b: ir.IRBuilder, tile: Tile) -> list[Value]:
        """Return the addresses of a tile's vectors, row by row."""
        addresses: list[Value] = []
        for i in range(tile.rows):
            row = element_address(b, self.address, b.mul(self.row_stride, number(i)), self.dtype)
            steps = (number(v * tile.lanes) for v in range(tile.vectors))
            addresses += [element_address(b, row, step, self.dtype) for step in steps]
        return addresses


@dataclass
class RoundedOutput:
    """Destination of final sums which are rounded as they are stored.

    `base` is the address of the task's first output, `strides` its strides along the row axes in
    elements, and `enabled` whether this destination is used (i1).
    """

    base: Value
    strides: list[Value]
    dtype: DType
    enabled: Value

    def target(
        self, b: ir.IRBuilder, row: Sequence[Value], column: Value, last: Value | None
    ) -> tuple[Value, TileTarget]:
        """Return whether a tile's sums go to the output (i1), and its destination there.

        `last` says whether this is the last block of k.
        """
        assert last is not None
        place = b.add(row_offset(b, self.strides, row), column)
        spot = TileTarget(
            element_address(b, self.base, place, self.dtype), self.strides[-1], self.dtype
        )
        return b.and_(self.enabled, last), spot


def strided_rows(
    b: ir.IRBuilder, first: Value, stride: Value, count: int, dtype: DType
) -> list[Value]:
    """Return the addresses of rows at a constant stride, in elements."""
    return [element_address(b, first, b.mul(number(i), stride), dtype) for i in range(count)]


def row_offset(b: ir.IRBuilder, steps: Sequence[Value], row: Sequence[Value]) -> Value:
    """Return the offset of a row, given its index and stride along each axis."""
    total = number(0)
    for step, at in zip(steps[-len(row) :], row, strict=True):
        total = b.add(total, b.mul(at, step))
    return total


def store_tile(
    m: LLVMMachine,
    c: Contraction | NhwcConvPlan | DepthwisePlan,
    tile: Tile,
    totals: Sequence[Value],
    places: Sequence[Value],
    masks: Masks = (),
    last: tuple[Value, TileTarget] | None = None,
) -> None:
    """Store a tile's sums at `places` in scratch, or in the output.

    `last` is the condition of the latter, and the tile's destination there.
    """
    b = m.builder

    def store(places: Sequence[Value], values: Sequence[Value], dtype: DType) -> None:
        for k, (place, value) in enumerate(zip(places, values, strict=True)):
            store_vector(m, place, value, dtype, masks[k] if masks else None)

    if last is None:
        store(places, totals, c.item.dtype)
        return
    holds, spot = last
    with b.if_else(holds) as (to_output, to_scratch):
        with to_output:
            if spot.dtype == bf16 and c.unit == i32:  # pair products flush subnormals as well
                store(spot.addresses(b, tile), [m.to_bfloat(x) for x in totals], i16)
            else:
                store(spot.addresses(b, tile), totals, spot.dtype)
        with to_scratch:
            store(places, totals, c.item.dtype)


Masks: TypeAlias = Sequence[Value | None]


def add_previous_blocks(
    m: LLVMMachine,
    places: list[Value],
    dtype: DType,
    totals: list[Value],
    unless: Value | None,
    masks: Masks = (),
) -> list[Value]:
    """Return sums plus the partial sums of earlier blocks, loaded from `places`.

    Where `unless` holds (the first block) sums are returned unchanged.  `masks` apply to the loads.
    """
    is_later = ir.IntType(1)(1) if unless is None else m.builder.not_(unless)
    return m.builder.either(is_later, lambda: _add_stored(m, places, dtype, totals, masks), totals)


def fits_one_run(positions: Index, dtype: DType) -> bool:
    """Return whether so many positions may be summed in one run; integer sums are exact."""
    return not dtype.is_float or (isinstance(positions, int) and positions <= REGISTER_RUN)


def sum_in_runs(
    m: LLVMMachine,
    dtype: DType,
    span: tuple[Value, Value],
    count: int,
    sum_run: Callable[[tuple[Value, Value]], list[Value]],
    most: int = REGISTER_RUN,
) -> list[Value]:
    """Return `count` vectors of sums over a span, added up from short runs.

    `sum_run` emits the sums of a run of at most `most` positions.  Totals wait on the stack between
    runs if a run needs all registers.
    """
    b, (low, high), before = m.builder, span, m.builder.block
    in_registers = 2 * count + 4 <= m.target.registers
    places = [] if in_registers else _on_stack(m, dtype, count)
    run, more, done = map(b.append_basic_block, ("run", "more", "done"))
    b.branch(run)
    b.position_at_end(run)
    at, phis = b.phi(I64), [b.phi(m.raw_type(dtype)) for _ in range(count if in_registers else 0)]
    end = b.add(at, number(most))
    has_more = b.icmp_signed("<", end, high)
    totals = sum_run((at, b.select(has_more, end, high)))
    if in_registers:
        totals = [m.add(x, y) for x, y in zip(phis, totals, strict=True)]
    else:
        totals = add_previous_blocks(m, places, dtype, totals, b.icmp_signed("==", at, low))
    b.cbranch(has_more, more, done)
    b.position_at_end(more)
    for place, total in zip(places, totals, strict=False):
        store_vector(m, place, total, dtype, None)
    b.branch(run)
    at.add_incoming(low, before)
    at.add_incoming(end, more)
    for phi, total in zip(phis, totals, strict=False):
        phi.add_incoming(m.const(dtype, 0), before)
        phi.add_incoming(total, more)
    b.position_at_end(done)
    return totals


def _on_stack(m: LLVMMachine, dtype: DType, count: int) -> list[Value]:
    """Return stack slots for so many vectors, which LLVM cannot promote to registers."""
    b, kind = m.builder, m.raw_type(dtype)
    with b.goto_entry_block():
        place = b.alloca(ir.ArrayType(kind, count))
        place = b.asm(ir.FunctionType(PTR, [PTR]), "", "=r,0", [place], False)
    return [element_address(b, place, number(k * kind.count), dtype) for k in range(count)]


def _add_stored(
    m: LLVMMachine, places: list[Value], dtype: DType, totals: list[Value], masks: Masks
) -> list[Value]:
    """Return sums plus those at `places`; constants are initial zeros and add nothing."""
    earlier = [
        load_vector(m, p, dtype, mask)
        for p, mask in zip(places, masks or [None] * len(places), strict=True)
    ]
    if all(isinstance(x, ir.Constant) for x in totals):
        return earlier
    return [m.add(x, y) for x, y in zip(earlier, totals, strict=True)]
