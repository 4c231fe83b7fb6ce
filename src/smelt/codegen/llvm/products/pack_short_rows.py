"""Pack short image rows with few masked vectors, whose masks all rows share.

A row of 28 pixels plus padding is two vectors.  Where they begin, and which of their lanes are
inside the image, is the same for every row; so masks are hoisted, and the loop over rows only loads
and stores.  Vectors are stored whole: what one has past the end of its row is overwritten by the
next row.

    masks       0 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1   1 1 1 1 1 1 1 1 1 1 1 0 - - - -
    row n       . x x x x x x x x x x x x x x x x x x x x x x x x x x .
    row n+1                                                             . x x x x x x x x x x

Rows outside the image have loops of their own, before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import opaque_mask
from smelt.codegen.llvm.access.proven_bounds import LaneBounds, test_lanes
from smelt.codegen.llvm.instructions.indexing import iota, number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Apply, Cast, Const, IndexValue, KPair, Load, accesses_of
from smelt.codegen.llvm.loops.partition_padding import has_small_step, interior_range
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.pieces import Limit
from smelt.python.dataclass import dataclass
from smelt.types.expr import atoms, axes_of, sub

Value = ir.Value
I1 = ir.IntType(1)
ROW_VECTORS = (1, 2, 4)
"""Vectors per row for which loops are emitted; with more, tests are a small part."""
PACKED_KINDS = (Const, IndexValue, Load, Apply, Cast, KPair)
"""Kinds of items which are computed lane by lane, whatever the other lanes hold."""


@dataclass(frozen=True, slots=True)
class _Tests:
    """Bounds of what is packed: those which depend on the row alone, and the others."""

    rows: tuple[Limit, ...]
    others: tuple[Limit, ...]
    same_bounds: bool
    """Whether all bounded accesses have the same bounds along the row axis."""


def for_each_row_length(env: Environment, nest: Nest, run: Callable[[int], None]) -> None:
    """Emit a packing nest by `run(vectors)`, for each number of vectors a row may need.

    `row_vectors` is 0 for rows of any length.
    """
    if _tests(env, nest) is None:
        run(0)
        return
    b, lanes, row_axis = env.b, env.s.lanes, nest.order[-1]
    low, high = env.ranges[row_axis]
    longest = env.s.phase.axes[row_axis]
    if isinstance(longest, int) and 0 < longest <= ROW_VECTORS[-1] * lanes:
        run(-(-longest // lanes))
        return

    def try_counts(counts: tuple[int, ...]) -> None:
        if not counts:
            run(0)
            return
        fits = b.icmp_signed("<=", b.sub(high, low), number(counts[0] * lanes))
        with b.if_else(fits) as (short, long):
            with short:
                run(counts[0])
            with long:
                try_counts(counts[1:])

    try_counts(ROW_VECTORS)


def emit_short_rows(env: Environment, scope: Scope, depth: int) -> bool:
    """Emit the loop over short rows if it begins here; return whether it does."""
    packer = env.products
    if packer is None or not packer.row_vectors:
        return False
    tests = _tests(env, env.nest) if depth == len(env.nest.order) - 2 else None
    if tests is None:
        return False
    _emit_loops(env, scope, depth, packer.row_vectors, tests)
    return True


def _tests(env: Environment, nest: Nest) -> _Tests | None:
    """Return the bounds of a nest which can be packed with shared masks, else None.

    No bound may move along rows and across them, and everything it computes must be possible in
    full vectors.
    """
    if len(nest.order) < 2 or not nest.single_use or nest.packed != "right" or nest.transposed:
        return None
    row, pixel = nest.order[-2:]
    if env.row_groups or nest.vector != pixel:
        return None
    if any(not isinstance(i, PACKED_KINDS) or i in env.s.materialised for i in nest.items):
        return None
    loads = [a for a in accesses_of(nest.items) if a.limits]
    pairs = dict.fromkeys(p for a in loads for p in a.limits if p not in env.proven_limits)
    rows: list[Limit] = []
    for e, n in pairs:
        if any(x.kind == "value" for x in atoms(e)) or {row, pixel} & {*axes_of(n)}:
            return None
        if row in axes_of(e):
            if pixel in axes_of(e) or not has_small_step(e, row):
                return None
            rows.append((e, n))
    alike = all({*rows} <= {*a.limits} for a in loads)
    return _Tests(tuple(rows), tuple(p for p in pairs if p not in rows), alike)


def _emit_loops(env: Environment, scope: Scope, depth: int, count: int, tests: _Tests) -> None:
    """Emit the loops over rows of `count` vectors."""
    b, (row, pixel), lanes = env.b, env.nest.order[-2:], env.s.lanes
    low, high = env.ranges[pixel]
    m = LLVMMachine(b, lanes, env.frame.target)
    vectors: list[Lanes] = []
    for k in range(count):
        at = b.add(low, number(k * lanes))
        mask = b.icmp_signed("<", iota(lanes), splat(b, b.sub(high, at), lanes))
        lanes_at = Lanes(pixel, at, lanes, opaque_mask(m, mask))
        place = Scope(scope, {pixel: at}, lanes=lanes_at)
        tests_by_limit = {pair: test_lanes(env, *pair, place) for pair in tests.others}
        tests_done = {
            p: LaneBounds(opaque_mask(m, test.mask), test.some)
            for p, test in tests_by_limit.items()
        }
        vectors.append(replace(lanes_at, tested_limits=tests_done))

    def emit_rows(start: Value, end: Value, row_limits: dict[Limit, LaneBounds]) -> None:
        def inside(position: Value) -> None:
            inner = Scope(scope, {row: position})
            env.enter(inner, depth + 1)
            for lanes_at in vectors:
                lanes_at = replace(lanes_at, tested_limits={**lanes_at.tested_limits, **row_limits})
                place = Scope(inner, {pixel: lanes_at.base}, lanes=lanes_at)
                env.enter(place, depth + 2)
                env.body(place)

        env.loop(start, end, 1, inside)

    first, last = env.ranges[row]
    if not tests.rows:
        emit_rows(first, last, {})
    else:
        _emit_inside_and_outside(env, scope, tests, emit_rows)


def _emit_inside_and_outside(
    env: Environment,
    scope: Scope,
    tests: _Tests,
    emit_rows: Callable[[Value, Value, dict[Limit, LaneBounds]], None],
) -> None:
    """Emit rows inside the image, and those outside before and after."""
    b, row, lanes = env.b, env.nest.order[-2], env.s.lanes
    low, high = env.ranges[row]
    gaps = (g for e, n in tests.rows for g in (e, sub(sub(n, 1), e)))
    first, last = interior_range(env, scope, gaps, row)
    first = b.minimum(first, high)
    last = b.maximum(last, first)
    nothing_inside = LaneBounds(ir.Constant(ir.VectorType(I1, lanes), None), I1(0))
    outside = dict.fromkeys(tests.rows, nothing_inside) if tests.same_bounds else {}

    def side(k: Value) -> None:
        before = b.icmp_signed("==", k, number(0))
        emit_rows(b.select(before, low, last), b.select(before, first, high), outside)
        with b.if_then(before), env.within(proven_limits=env.proven_limits | {*tests.rows}):
            emit_rows(first, last, {})

    env.loop(number(0), number(2), 1, side)
