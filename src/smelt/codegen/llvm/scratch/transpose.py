"""Tiles of arrays that are walked across their rows, turned through registers.

A load that is contiguous along axis u while the loop's vectors run along v would gather.  Instead a
tile of 64 x 64 elements is copied to scratch with u and v exchanged: vectors are read along u,
square blocks of them are transposed in registers (Eklundh's butterfly), and vectors along v are
written.  The loops then read whole rows of the turned tile.

Squares are read a few elements of many rows at a time, which no processor foresees.  So as many
lines are asked for as are read: of the next tile and in the order of memory, row by row, or where
rows of a stream's block are walked along, of the rows that follow some squares later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import LINE
from smelt.codegen.llvm.access.proven_bounds import Inside, inside_limits
from smelt.codegen.llvm.instructions.indexing import iota, number, opaque, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.codegen.llvm.schedule.task_tiling import turned_side
from smelt.codegen.llvm.schedule.transposed_strip import strip_rows
from smelt.codegen.llvm.scratch.workspace import TURNED_PART
from smelt.types.affine import coefficient
from smelt.types.expr import Index

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
Put = Callable[[Value, Value, Value], None]
AHEAD = 4
"""Squares by which turning runs behind what it has asked memory for, where rows of a stream's block
are walked along, which are met but a few times: as long as the last cache takes."""


def turn(home: NestEmitter, item: Item, scope: Scope) -> None:
    """Fills the turned tile of a load for the current block."""
    b, (u, v) = home.b, home.nest.order[-2:]
    place = home.storage.at[item, TURNED_PART]
    m = LLVMMachine(b, home.s.lanes, home.home.target)

    pitch = turned_pitch(home, item)

    def put(row: Value, first: Value, column: Value) -> None:
        offset = b.add(b.mul(b.sub(row, home.ranges[u][0]), pitch), b.sub(first, home.ranges[v][0]))
        to = element_address(b, place, offset, item.dtype)
        store_vector(m, to, column, item.dtype, None)

    turned(home, item, scope, put, across=True)


def turned_pitch(home: NestEmitter, item: Item) -> Value:
    """Elements from one row of a turned tile to the next."""
    pitch = home.storage.pitches[item] if home.nest.strips else turned_side(home.s.lanes)
    return home.home.index(pitch)


def turned(
    home: NestEmitter,
    item: Item,
    scope: Scope,
    put: Put,
    *,
    across: bool = False,
    whole: bool = False,
) -> None:
    """Gives `put` all columns of the current block of a load: position along u, first position
    along v, and a vector along v; the last ones may reach beyond the block, unless it is `whole`
    squares.  Rows are walked along or, with `across`, a few elements of all of them at a time."""
    b, side = home.b, home.s.lanes
    (u_low, u_high), (v_low, v_high) = (home.ranges[a] for a in home.nest.order[-2:])
    squares = _Squares(home, item, scope)
    streamed = home.s.phase.segments[home.nest.time] is not None
    read = squares.whole if whole else squares.either
    if not whole and across and home.home.target.isa == "avx512" and not squares.limits:
        read = squares.masked

    def block(u0: Value, v0: Value) -> None:
        if streamed and not across:
            squares.ask(u0, b.add(v0, number(AHEAD * side)))
        for k, column in enumerate(transpose(b, read(u0, v0))):
            put(b.add(u0, number(k)), v0, column)

    step = max(LINE // squares.dtype.itemsize, side)

    def line(u1: Value, v0: Value) -> None:
        """All squares of some rows that share cache lines, before those lines are gone."""
        _ask(home, item, scope, (u1, v0), step)
        if step == side:
            block(u1, v0)
            return
        end = b.add(u1, number(step))
        end = b.select(b.icmp_signed("<", end, u_high), end, u_high)
        home.loop(u1, end, side, lambda u0: block(u0, v0))

    if across:
        home.loop(
            u_low, u_high, step, lambda u1: home.loop(v_low, v_high, side, lambda v0: line(u1, v0))
        )
    else:
        home.loop(
            v_low, v_high, side, lambda v0: home.loop(u_low, u_high, side, lambda u0: block(u0, v0))
        )


class _Squares:
    """Reads squares of the current block of a load: as many rows along u as a vector has lanes."""

    def __init__(self, home: NestEmitter, item: Item, scope: Scope) -> None:
        access = item.payload
        assert isinstance(access, Access)
        self.home, self.b, self.access, self.scope = home, home.b, access, scope
        self.side = home.s.lanes
        self.dtype, self.base = home.home.dtypes[access.buffer], home.home.buffers[access.buffer]
        self.m = LLVMMachine(self.b, self.side, home.home.target)
        self.moved = _moves(home, access, scope)
        self.limits = [pair for pair in access.limits if pair not in home.assumed]
        self.other = self.m.const(item.dtype, access.other)
        """What is read outside of the limits."""

    def whole(self, u0: Value, v0: Value) -> list[Value]:
        """The rows of a square that is in the block, and in its array."""
        start = self._start(u0)
        return [self._load(start, self.b.add(v0, number(k)), None) for k in range(self.side)]

    def masked(self, u0: Value, v0: Value) -> list[Value]:
        """The rows of any square; lanes beyond the block are 0."""
        b, home, side = self.b, self.home, self.side
        u, v = home.nest.order[-2:]
        u_high, v_high = home.ranges[u][1], home.ranges[v][1]
        inside = b.icmp_signed("<", iota(side), splat(b, b.sub(u_high, u0), side))
        found: list[Value] = []
        start = self._start(u0)
        for k in range(side):
            at = b.add(v0, number(k))
            mask = b.and_(inside, splat(b, b.icmp_signed("<", at, v_high), side))
            here = Scope(self.scope, {u: u0, v: at}, lanes=Lanes(u, u0, side, None))
            test = inside_limits(home, self.access, here, True) if self.limits else None
            found.append(self._load(start, at, mask, test))
        return found

    def either(self, u0: Value, v0: Value) -> list[Value]:
        """Without masks where the whole square is there, without loads where none of it is."""
        b, home, side = self.b, self.home, self.side
        u, v = home.nest.order[-2:]
        ends = [b.add(at, number(side)) for at in (u0, v0)]
        u_whole, v_whole = (
            b.icmp_signed("<=", end, home.ranges[a][1]) for end, a in zip(ends, (u, v), strict=True)
        )
        whole = b.and_(u_whole, v_whole)
        if not self.limits:
            return _one_of(b, whole, lambda: self.whole(u0, v0), lambda: self.masked(u0, v0))
        corners = [
            Scope(self.scope, {u: x, v: y})
            for x in (u0, b.add(u0, number(side - 1)))
            for y in (v0, b.add(v0, number(side - 1)))
        ]
        within, some = _square_limits(home, self.limits, corners)
        return _one_of(
            b,
            b.and_(whole, within),
            lambda: self.whole(u0, v0),
            lambda: _one_of(b, some, lambda: self.masked(u0, v0), lambda: [self.other] * side),
        )

    def ask(self, u0: Value, v0: Value) -> None:
        """Asks memory for the lines of a square.  LLVM would keep what it knows of their addresses
        in registers that tiles need."""
        b, stride = self.b, coefficient(self.access.offset, self.home.nest.order[-1])
        if stride is None:
            return  # they lie anywhere
        apart = opaque(b, self.home.index(stride, self.scope))
        line = opaque(b, b.add(self._start(u0), b.mul(v0, apart)))
        for _ in range(self.side):
            prefetch(b, element_address(b, self.base, line, self.dtype), near=True)
            line = b.add(line, apart)

    def _start(self, u0: Value) -> Value:
        """Where rows begin, but for their position along v."""
        return self.b.add(self.scope.offset(self.access), self.moved(0, u0))

    def _load(
        self, start: Value, at: Value, mask: Value | None, test: Inside | None = None
    ) -> Value:
        """One row: the lanes of the mask that pass the test."""
        b = self.b
        address = element_address(b, self.base, b.add(start, self.moved(1, at)), self.dtype)
        if test is None:
            return load_vector(self.m, address, self.dtype, mask)
        address = b.select(test.some, address, self.base)
        own = test.mask if mask is None else b.and_(mask, test.mask)
        found = load_vector(self.m, address, self.dtype, own)
        return found if self.access.gives_zero else self.m.select(test.mask, found, self.other)


def _square_limits(
    home: NestEmitter, limits: Sequence[tuple[Index, Index]], corners: Sequence[Scope]
) -> tuple[Value, Value]:
    """Whether all of a square is inside, and whether any of it may be; what is tested is linear
    (`is_turnable`), so it is extreme at corners."""
    b = home.b
    whole: Value = ir.Constant(ir.IntType(1), 1)
    some: Value = whole
    for e, n in limits:
        low, *others = (home.index(e, corner) for corner in corners)
        high, end = low, home.index(n, corners[0])
        for x in others:
            low = b.select(b.icmp_signed("<", x, low), x, low)
            high = b.select(b.icmp_signed(">", x, high), x, high)
        begins, ends = (b.icmp_signed(">=", x, number(0)) for x in (low, high))
        whole = b.and_(whole, b.and_(begins, b.icmp_signed("<", high, end)))
        some = b.and_(some, b.and_(ends, b.icmp_signed("<", low, end)))
    return whole, some


def _moves(home: NestEmitter, access: Access, scope: Scope) -> Callable[[int, Value], Value]:
    """How far into its array a position of u (0) or v (1) takes an access: along u it may go on by
    one in runs of whole squares alone, along v as it likes."""
    b, axes = home.b, home.nest.order[-2:]
    terms, steps = home.groups[access][-2:], [coefficient(access.offset, a) for a in axes]
    stride = home.index(steps[1] or 0, scope)

    def moved(which: int, at: Value) -> Value:
        if steps[which] is None:
            return home.index(terms[which], Scope(scope, {axes[which]: at}))
        return b.mul(at, stride) if which else at

    return moved


def _one_of(
    b: ir.IRBuilder, condition: Value, yes: Callable[[], list[Value]], no: Callable[[], list[Value]]
) -> list[Value]:
    """The values of one of two branches."""
    with b.if_else(condition) as (then, otherwise):
        with then:
            first, from_first = yes(), b.block
        with otherwise:
            second, from_second = no(), b.block
    found = [b.phi(x.type) for x in first]
    for phi, x, y in zip(found, first, second, strict=True):
        phi.add_incoming(x, from_first)
        phi.add_incoming(y, from_second)
    return [*found]


def _ask(home: NestEmitter, item: Item, scope: Scope, at: tuple[Value, Value], step: int) -> None:
    """Asks for as many lines of the next task's tile, which goes on along u, as are read at a
    position of u and v, `step` elements of as many rows as there are lanes."""
    access = item.payload
    assert isinstance(access, Access)
    if any(coefficient(access.offset, a) is None for a in home.nest.order[-2:]):
        return  # lines of the next tile lie anywhere
    b, lanes = home.b, home.s.lanes
    side, dtype = turned_side(lanes), home.home.dtypes[access.buffer]
    if home.nest.strips:  # the next strip
        side = max(strip_rows(item.dtype, lanes), LINE // dtype.itemsize)
    lines, each = (n * dtype.itemsize // LINE for n in (side, lanes * step))
    (u_low, _), (v_low, v_high) = (home.ranges[a] for a in home.nest.order[-2:])
    u, v = b.udiv(b.sub(at[0], u_low), number(step)), b.udiv(b.sub(at[1], v_low), number(lanes))
    across = b.udiv(b.add(b.sub(v_high, v_low), number(lanes - 1)), number(lanes))
    first = b.mul(b.add(b.mul(u, across), v), number(each))
    stride = home.index(coefficient(access.offset, home.nest.order[-1]) or 0, scope)
    start = b.add(scope.offset(access), b.add(u_low, number(side)))
    run = min(each, lines)  # of one row
    for k in range(0, each, run):
        line = b.add(first, number(k))
        row = b.add(v_low, b.udiv(line, number(lines)))
        place = b.add(start, b.mul(row, stride))
        address = element_address(b, home.home.buffers[access.buffer], place, dtype)
        here = b.mul(b.urem(line, number(lines)), number(LINE))
        for nth in range(run):
            to = b.add(here, number(nth * LINE))
            prefetch(b, b.gep(address, [to], source_etype=ir.IntType(8)))


PART = 16
"""Bytes of the parts of a register inside of which instructions take lanes in turns."""
_SIZES = {ir.HalfType: 2, ir.BFloatType: 2, ir.FloatType: 4, ir.DoubleType: 8}


def transpose(b: ir.IRBuilder, rows: list[Value], halves: int = 1) -> list[Value]:
    """The columns of a square of lanes, or of two squares side by side."""
    kind, side = rows[0].type, len(rows)
    assert isinstance(kind, ir.VectorType)
    element = kind.element
    whole = isinstance(element, ir.IntType)
    size = max(element.width // 8, 1) if whole else _SIZES[type(element)]
    part = min(PART // size, side)
    stages, order = butterfly(side, part)
    rows = [*rows]
    for step, masks in stages:
        if step == part:
            rows = [_fenced(b, row) for row in rows]
        low, high = (
            ir.Constant(ir.VectorType(ir.IntType(32), len(m)), [*m])
            for m in (beside(m, halves) for m in masks)
        )
        for k in range(side):
            if not k & step:
                first, second = rows[k], rows[k + step]
                rows[k] = b.shuffle_vector(first, second, low)
                rows[k + step] = b.shuffle_vector(first, second, high)
    return [rows[k] for k in order]


def beside(mask: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The lanes that a stage takes where each register has rows of so many squares.

    >>> beside((0, 2), 2)
    (0, 4, 2, 6)
    """
    side = len(mask)
    return tuple(x % side + side * (k + count * (x // side)) for k in range(count) for x in mask)


Masks = tuple[tuple[int, ...], tuple[int, ...]]


@cache
def butterfly(side: int, part: int) -> tuple[tuple[tuple[int, Masks], ...], tuple[int, ...]]:
    """The stages of a transposition: how far apart rows are that are paired, and which lanes of
    both the one and the other take; then the row in which each column ends.

    Inside of parts of a register, lanes of both rows come in turns, then pairs of lanes; at last
    whole parts.  Each is one instruction, whose operands are constants that no register holds."""
    stages: list[tuple[int, Masks]] = []
    found = [[(k, j) for j in range(side)] for k in range(side)]
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
                both = found[k] + found[k + step]
                found[k], found[k + step] = ([both[x] for x in m] for m in masks)
        step *= 2
    column = {lanes[0][1]: k for k, lanes in enumerate(found)}
    return tuple(stages), tuple(column[j] for j in range(side))


def _fenced(b: ir.IRBuilder, row: Value) -> Value:
    """The same vector, of which LLVM does not see how it was made: it would weigh all shuffles of a
    square against one another, which took it a third of a product's compilation."""
    kind = row.type
    if isinstance(kind.element, ir.IntType):
        return row
    name = f"llvm.arithmetic.fence.{kind.intrinsic_name}"
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(kind, [kind]), name)
    return b.call(function, [row])
