"""Transpose tiles of arrays through registers, so that loops read them without gathers.

A load which is contiguous along axis u while the loop's vectors run along v would gather.  Instead
a tile of 64 x 64 elements is copied to scratch with u and v exchanged: vectors are read along u,
squares of them are transposed in registers (J. O. Eklundh's butterfly, 1972), and vectors along v
are stored.  The loops then read rows of the transposed tile.

Squares are read a few elements of many rows at a time, which hardware prefetchers do not follow.
So as many cache lines are prefetched as are read: of the next tile in memory order, row by row; or
where rows of a stream's block are walked along, of rows some squares later.

Where the output exceeds the caches, little is computed of a single transposed array, and a vector
fills a cache line, no staging tile is needed: a square is read, transposed, and each of its columns
goes through the nest's body at once and is stored non-temporally.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.gather_cache import cache_gathers
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import CACHE_LINE
from smelt.codegen.llvm.access.proven_bounds import LaneBounds, inside_limits
from smelt.codegen.llvm.instructions.indexing import (
    I64,
    lanes_before_end,
    lanes_if,
    number,
    opaque,
)
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Item, Load, Operation
from smelt.codegen.llvm.nests.environment import CachedGather, Environment
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.codegen.llvm.schedule.transposed_strip import strip_rows
from smelt.codegen.llvm.scratch.workspace import TRANSPOSED_PART
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.expr import Index

Value = ir.Value
Put = Callable[[Value, Value, Value], None]
PREFETCH_SQUARES = 4
"""Squares between what is transposed and what is prefetched, where a stream's rows are walked.

These are read only a few times; the distance covers the latency of L3.
"""


def fill_transposed_tile(env: Environment, item: Load, scope: Scope) -> None:
    """Fill the transposed tile of a load for the current block."""
    b, (u, v) = env.b, env.nest.order[-2:]
    place = env.storage.at[item, TRANSPOSED_PART]
    m = LLVMMachine(b, env.s.lanes, env.frame.target)

    pitch = tile_pitch(env, item)

    def put(row: Value, first: Value, column: Value) -> None:
        offset = b.add(b.mul(b.sub(row, env.ranges[u][0]), pitch), b.sub(first, env.ranges[v][0]))
        to = element_address(b, place, offset, item.dtype)
        store_vector(m, to, column, item.dtype, None)

    emit_transposed(env, item, scope, put, across=True)


def tile_pitch(env: Environment, item: Item) -> Value:
    """Return elements from one row of a transposed tile to the next."""
    pitch = env.storage.pitches[item] if env.nest.strips else transpose_side(env.s.lanes)
    return env.frame.index(pitch)


def emit_transposed(
    env: Environment,
    item: Load,
    scope: Scope,
    put: Put,
    *,
    across: bool = False,
    full_squares: bool = False,
) -> None:
    """Emit `put(row, first, column)` for all transposed vectors of the current block of a load.

    Arguments are a position along u, the first position along v, and a vector along v.  The last
    vectors may reach past the block, unless it has `full_squares` only.  Rows are walked along or,
    with `across`, a few elements of all of them at a time.
    """
    b, side = env.b, env.s.lanes
    (u_low, u_high), (v_low, v_high) = (env.ranges[a] for a in env.nest.order[-2:])
    squares = _Squares(env, item, scope)
    streamed = env.s.phase.segments[env.nest.time] is not None
    read = squares.load_full if full_squares else squares.load_any

    def block(u0: Value, v0: Value) -> None:
        if streamed and not across:
            squares.prefetch_square(u0, b.add(v0, number(PREFETCH_SQUARES * side)))
        for k, column in enumerate(transpose(b, read(u0, v0))):
            put(b.add(u0, number(k)), v0, column)

    step = max(CACHE_LINE // squares.dtype.itemsize, side)

    def row_squares(u1: Value, v0: Value) -> None:
        """Emit all squares of rows which share cache lines, before those lines are evicted."""
        _prefetch_next_tile(env, item, scope, (u1, v0), step)
        if step == side:
            block(u1, v0)
            return
        end = b.minimum(b.add(u1, number(step)), u_high)
        env.loop(u1, end, side, lambda u0: block(u0, v0))

    if across:
        env.loop(
            u_low,
            u_high,
            step,
            lambda u1: env.loop(v_low, v_high, side, lambda v0: row_squares(u1, v0)),
        )
    else:
        env.loop(
            v_low, v_high, side, lambda v0: env.loop(u_low, u_high, side, lambda u0: block(u0, v0))
        )


class _Squares:
    """Reads squares of the current block of a load."""

    def __init__(self, env: Environment, item: Load, scope: Scope) -> None:
        access = item.access
        self.env, self.b, self.access, self.scope = env, env.b, access, scope
        self.side = env.s.lanes
        self.dtype, self.base = env.frame.dtypes[access.buffer], env.frame.buffers[access.buffer]
        self.m = LLVMMachine(self.b, self.side, env.frame.target)
        self.offset_of = _offset_function(env, access, scope)
        self.limits = [pair for pair in access.limits if pair not in env.proven_limits]
        self.other = self.m.const(item.dtype, access.other)
        """The value read out of bounds."""

    def load_full(self, u0: Value, v0: Value) -> list[Value]:
        """Load a square which is inside the block and the array."""
        start = self._start(u0)
        return [self._load(start, self.b.add(v0, number(k)), None) for k in range(self.side)]

    def load_masked(self, u0: Value, v0: Value) -> list[Value]:
        """Load any square; lanes past the block are 0, rows past it not accessed."""
        b, env, side = self.b, self.env, self.side
        u, v = env.nest.order[-2:]
        u_high, v_high = env.ranges[u][1], env.ranges[v][1]
        inside = lanes_before_end(b, b.sub(u_high, u0), side)
        rows: list[Value] = []
        start = self._start(u0)
        for k in range(side):
            at = b.add(v0, number(k))
            is_row = b.icmp_signed("<", at, v_high)
            mask = lanes_if(b, is_row, inside)
            place = Scope(self.scope, {u: u0, v: at}, lanes=Lanes(u, u0, side, None))
            test = inside_limits(env, self.access, place, True) if self.limits else None
            rows.append(self._load(start, at, (is_row, mask), test))
        return rows

    def load_any(self, u0: Value, v0: Value) -> list[Value]:
        """Load a square without masks where it is inside; nothing where it is outside."""
        b, env, side = self.b, self.env, self.side
        u, v = env.nest.order[-2:]
        ends = [b.add(at, number(side)) for at in (u0, v0)]
        u_whole, v_whole = (
            b.icmp_signed("<=", end, env.ranges[a][1]) for end, a in zip(ends, (u, v), strict=True)
        )
        inside = b.and_(u_whole, v_whole)
        if not self.limits:
            return b.either(
                inside, lambda: self.load_full(u0, v0), lambda: self.load_masked(u0, v0)
            )
        corners = [
            Scope(self.scope, {u: x, v: y})
            for x in (u0, b.add(u0, number(side - 1)))
            for y in (v0, b.add(v0, number(side - 1)))
        ]
        within, may_be_inside = _square_limits(env, self.limits, corners)
        return b.either(
            b.and_(inside, within),
            lambda: self.load_full(u0, v0),
            lambda: b.either(
                may_be_inside, lambda: self.load_masked(u0, v0), lambda: [self.other] * side
            ),
        )

    def prefetch_square(self, u0: Value, v0: Value) -> None:
        """Prefetch the cache lines of a square.

        Addresses are opaque: LLVM would keep parts of them in registers which tiles need.
        """
        b, stride = self.b, coefficient(self.access.offset, self.env.nest.order[-1])
        if stride is None:
            return  # no constant stride
        row_stride = opaque(b, self.env.index(stride, self.scope))
        offset = opaque(b, b.add(self._start(u0), b.mul(v0, row_stride)))
        for _ in range(self.side):
            prefetch(b, element_address(b, self.base, offset, self.dtype), near=True)
            offset = b.add(offset, row_stride)

    def _start(self, u0: Value) -> Value:
        """Return the offset of rows, without their position along v."""
        return self.b.add(self.scope.offset(self.access), self.offset_of(0, u0))

    def _load(
        self,
        start: Value,
        at: Value,
        block: tuple[Value, Value] | None,
        test: LaneBounds | None = None,
    ) -> Value:
        """Load a row: its lanes in the block, if any, which pass the bounds test.

        `block` has whether the row is in the block, and its lanes.  A masked load without lanes is
        slow where memory is not mapped, so it goes to the array's beginning.
        """
        b = self.b
        address = element_address(b, self.base, b.add(start, self.offset_of(1, at)), self.dtype)
        if block is None:
            return load_vector(self.m, address, self.dtype, None)
        is_row, mask = block
        if test is None:
            address = b.select(is_row, address, self.base)
            return load_vector(self.m, address, self.dtype, mask)
        address = b.select(b.and_(is_row, test.some), address, self.base)
        loaded = load_vector(self.m, address, self.dtype, b.and_(mask, test.mask))
        return loaded if self.access.gives_zero else self.m.select(test.mask, loaded, self.other)


def _square_limits(
    env: Environment, limits: Sequence[tuple[Index, Index]], corners: Sequence[Scope]
) -> tuple[Value, Value]:
    """Return whether all of a square is in bounds, and whether any may be.

    Bounds are linear in the loop's axes, so they are extreme at the corners.
    """
    b = env.b
    all_inside: Value = ir.Constant(ir.IntType(1), 1)
    any_inside: Value = all_inside
    for e, n in limits:
        low, *rest = (env.index(e, corner) for corner in corners)
        high, end = low, env.index(n, corners[0])
        for x in rest:
            low = b.minimum(x, low)
            high = b.maximum(x, high)
        begins, ends = (b.icmp_signed(">=", x, number(0)) for x in (low, high))
        all_inside = b.and_(all_inside, b.and_(begins, b.icmp_signed("<", high, end)))
        any_inside = b.and_(any_inside, b.and_(ends, b.icmp_signed("<", low, end)))
    return all_inside, any_inside


def _offset_function(
    env: Environment, access: Access, scope: Scope
) -> Callable[[int, Value], Value]:
    """Return a function from a position along u (0) or v (1) to an offset.

    Along u the offset must be contiguous within squares only, along v it is arbitrary.
    """
    b, axes = env.b, env.nest.order[-2:]
    terms, steps = env.groups[access][-2:], [coefficient(access.offset, a) for a in axes]
    stride = env.index(steps[1] or 0, scope)

    def offset(which: int, at: Value) -> Value:
        if steps[which] is None:
            return env.index(terms[which], Scope(scope, {axes[which]: at}))
        return b.mul(at, stride) if which else at

    return offset


def _prefetch_next_tile(
    env: Environment, item: Load, scope: Scope, at: tuple[Value, Value], step: int
) -> None:
    """Prefetch the share of the next task's tile, which continues along u, at a position.

    The share is as many lines as are read there: `step` elements of as many rows as there are
    lanes.
    """
    access = item.access
    if any(coefficient(access.offset, a) is None for a in env.nest.order[-2:]):
        return  # no constant stride to the next tile
    b, lanes = env.b, env.s.lanes
    side, dtype = transpose_side(lanes), env.frame.dtypes[access.buffer]
    if env.nest.strips:  # the next strip
        side = max(strip_rows(item.dtype, lanes), CACHE_LINE // dtype.itemsize)
    lines, each = (n * dtype.itemsize // CACHE_LINE for n in (side, lanes * step))
    (u_low, _), (v_low, v_high) = (env.ranges[a] for a in env.nest.order[-2:])
    u, v = b.udiv(b.sub(at[0], u_low), number(step)), b.udiv(b.sub(at[1], v_low), number(lanes))
    squares_per_row = b.udiv(b.add(b.sub(v_high, v_low), number(lanes - 1)), number(lanes))
    first = b.mul(b.add(b.mul(u, squares_per_row), v), number(each))
    stride = env.index(coefficient(access.offset, env.nest.order[-1]) or 0, scope)
    start = b.add(scope.offset(access), b.add(u_low, number(side)))
    run = min(each, lines)  # of one row
    for k in range(0, each, run):
        line = b.add(first, number(k))
        row = b.add(v_low, b.udiv(line, number(lines)))
        place = b.add(start, b.mul(row, stride))
        address = env.address(access.buffer, place)
        in_row = b.mul(b.urem(line, number(lines)), number(CACHE_LINE))
        for nth in range(run):
            to = b.add(in_row, number(nth * CACHE_LINE))
            prefetch(b, b.gep(address, [to], source_etype=ir.IntType(8)))


SHUFFLE_BYTES = 16
"""Bytes of the register parts within which shuffle instructions work."""
_SIZES = {ir.HalfType: 2, ir.BFloatType: 2, ir.FloatType: 4, ir.DoubleType: 8}


def transpose(b: ir.IRBuilder, rows: list[Value]) -> list[Value]:
    """Transpose a square of lanes in registers."""
    kind, side = rows[0].type, len(rows)
    assert isinstance(kind, ir.VectorType)
    element = kind.element
    is_integer = isinstance(element, ir.IntType)
    size = max(element.width // 8, 1) if is_integer else _SIZES[type(element)]
    part_lanes = min(SHUFFLE_BYTES // size, side)
    stages, order = butterfly(side, part_lanes)
    rows = [*rows]
    for step, masks in stages:
        if step == part_lanes:
            rows = [_fenced(b, row) for row in rows]
        low, high = (ir.Constant(ir.VectorType(ir.IntType(32), len(m)), [*m]) for m in masks)
        for k in range(side):
            if not k & step:
                first, second = rows[k], rows[k + step]
                rows[k] = b.shuffle_vector(first, second, low)
                rows[k + step] = b.shuffle_vector(first, second, high)
    return [rows[k] for k in order]


Masks = tuple[tuple[int, ...], tuple[int, ...]]


@cache
def butterfly(side: int, part: int) -> tuple[tuple[tuple[int, Masks], ...], tuple[int, ...]]:
    """Return the stages of a transposition, and the row in which each column ends.

    A stage is the distance of paired rows, and which lanes of both each of them takes.  Within
    parts of a register, single lanes of both rows alternate, then pairs of lanes; last come whole
    parts.  Each is one instruction with an immediate operand.
    """
    stages: list[tuple[int, Masks]] = []
    elements = [[(k, j) for j in range(side)] for k in range(side)]
    step = 1
    while step < side:
        if step < part:
            places = [
                (at + half * part // 2, at + (half + 1) * part // 2)
                for half in (0, 1)
                for at in range(0, side, part)
            ]
            runs = [[(at, at + side) for at in range(low, high, step)] for low, high in places]
            lanes = [x for run in runs for pair in run for at in pair for x in range(at, at + step)]
        else:
            lanes = [
                x
                for half in (0, 1)
                for row in (0, side)
                for at in range(row + half * part, row + side, 2 * part)
                for x in range(at, at + part)
            ]
        masks = tuple(lanes[:side]), tuple(lanes[side:])
        stages.append((step, masks))
        for k in range(side):
            if not k & step:
                both = elements[k] + elements[k + step]
                elements[k], elements[k + step] = ([both[x] for x in m] for m in masks)
        step *= 2
    column = {lanes[0][1]: k for k, lanes in enumerate(elements)}
    return tuple(stages), tuple(column[j] for j in range(side))


def _fenced(b: ir.IRBuilder, row: Value) -> Value:
    """Return a vector whose origin LLVM does not see.

    It would weigh all shuffles of a square against each other, a third of a product's compilation
    time.
    """
    kind = row.type
    if isinstance(kind.element, ir.IntType):
        return row
    name = f"llvm.arithmetic.fence.{kind.intrinsic_name}"
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(kind, [kind]), name)
    return b.call(function, [row])


MAX_WORK = 16
"""Maximum instructions per vector: the body is unrolled for each column of a square."""


def emit_transposed_loops(env: Environment, scope: Scope, loops: Callable[[], None]) -> None:
    """Emit the last two loops of a nest, which `loops` emits on transposed tiles.

    Where it pays there is a second version, square by square, for blocks of complete squares whose
    stores are aligned cache lines.
    """

    def by_tiles() -> None:
        for item in filter(env.live_items.__contains__, env.nest.transposed):
            fill_transposed_tile(env, item, scope)
        gathers: dict[Item, CachedGather] = {}
        if not env.nest.strips:
            gathers = cache_gathers(env, env.nest.order[-2], transpose_side(env.s.lanes))
        with env.within(cached_gathers=gathers):
            loops()

    if env.nest.strips or not _is_plain(env):
        by_tiles()
        return
    b, (item,) = env.b, env.nest.transposed
    parts = [b.sub(high, low) for low, high in (env.ranges[a] for a in env.nest.order[-2:])]
    remainders = [b.and_(n, number(env.s.lanes - 1)) for n in parts]
    remainders += [b.and_(n, number(CACHE_LINE - 1)) for n in _places(env, scope)]
    with b.if_else(b.icmp_signed("==", reduce(b.or_, remainders), number(0))) as (
        direct,
        otherwise,
    ):
        with direct, env.within(nontemporal=CACHE_LINE):
            emit_transposed(
                env,
                item,
                scope,
                lambda *column: _column(env, scope, *column),
                across=True,
                full_squares=True,
            )
        with otherwise:
            by_tiles()


def _is_plain(env: Environment) -> bool:
    """Return whether the direct version pays.

    Little is computed of one transposed array, and the outputs are stored non-temporally in full
    cache lines.
    """
    nest, lanes = env.nest, env.s.lanes
    if (
        len(nest.transposed) != 1
        or not env.frame.streaming
        or nest.stages
        or nest.reductions
        or nest.saves
    ):
        return False
    access = nest.transposed[0].access
    inner = [i for i in env.items if nest.vector in i.axes]
    work = sum(SCALARS[i.op].cost if isinstance(i, Operation) else 1 for i in inner)
    # Stores are checked at two rows, which determine the alignment of all.
    full_lines = all(
        s.where is None
        and env.step(s.access, nest.vector or "") == 1
        and env.step(s.access, nest.order[-2]) is not None
        and env.frame.dtypes[s.access.buffer].itemsize * lanes == CACHE_LINE
        for s in nest.stores
    )
    return full_lines and isinstance(access, Access) and not access.limits and work <= MAX_WORK


def _places(env: Environment, scope: Scope) -> list[Value]:
    """Return addresses which are line-aligned if all vectors of all stores are.

    They are those of the first vectors of two rows.
    """
    b, axes = env.b, env.nest.order[-2:]
    u, v = (env.ranges[a][0] for a in axes)
    addresses: list[Value] = []
    for access in (s.access for s in env.nest.stores):
        base, dtype = env.frame.buffers[access.buffer], env.frame.dtypes[access.buffer]
        for row in (u, b.add(u, number(1))):
            at = env.index(access.offset, Scope(scope, {axes[0]: row, axes[1]: v}))
            addresses.append(b.ptrtoint(element_address(b, base, at, dtype), I64))
    return addresses


def _column(env: Environment, scope: Scope, row: Value, first: Value, column: Value) -> None:
    """Emit the nest's body for one column."""
    depth, (u, v) = len(env.nest.order), env.nest.order[-2:]
    outer = Scope(scope, {u: row})
    env.enter(outer, depth - 1)
    lanes = Lanes(v, first, env.s.lanes, None)
    inner = Scope(outer, {v: first}, {env.nest.transposed[0]: column}, lanes=lanes)
    env.enter(inner, depth)
    env.body(inner)


def load_transposed_row(env: Environment, item: Item, scope: Scope) -> Value:
    """Load the vector of a transposed tile at the current position."""
    b = env.b
    u, v = env.nest.order[-2:]
    row = b.mul(b.sub(scope.axis(u), env.ranges[u][0]), tile_pitch(env, item))
    column = b.sub(scope.axis(v), env.ranges[v][0])
    at = element_address(b, env.storage.at[item, TRANSPOSED_PART], b.add(row, column), item.dtype)
    return load_vector(
        env.machine(scope, True), at, item.dtype, scope.lanes.mask if scope.lanes else None
    )
