"""Partition a row's loop into a guard-free interior and tested ends (index set splitting).

Shifted neighbours, padding and concatenations test the position along the vector axis, and each
test flips once.  The answers that hold in the middle of a row hold together between two positions,
which are computed at the start of the row; a loop of its own runs between them, without tests and
without loads of the other side:

    x[i-2]  tests 2 <= i                           i  0 1 2 .................... n-2 n-1
    x[i+1]  tests i < n - 1                        tested   [untested .........]  tested
    i < a   is false from a on

If the order of these positions is not known at compile time, or sizes leave nothing between them,
the tested loop does it all: correctness does not depend on where they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import product

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.access.memory import FARTHEST_STEP
from smelt.codegen.llvm.access.nontemporal import main_loop
from smelt.codegen.llvm.access.proven_bounds import MIN_TESTED_LOADS, row_limits
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, Phase, accesses_of, visited_axes
from smelt.codegen.llvm.loops.partition_selects import (
    MAX_BODY_ITEMS,
    assuming,
    body_cost,
    branch_on_pieces,
    combine_answers,
    conditions,
    partition_axis,
    run_pieces,
)
from smelt.codegen.llvm.loops.versioning import live_items
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.pieces import Limit, Piece
from smelt.kernel.bounds import Facts
from smelt.python.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.dtype import bool_
from smelt.types.expr import Index, atoms, axes_of, evaluate, mul, sub, substitute

Value = ir.Value

PROBE_SIZE = 1 << 20
"""Value of all sizes when looking for the usual answer of a test."""
PROBE_POINTS = Fraction(1, 4), Fraction(3, 4)
"""Relative positions in a row at which a test is evaluated: its answer is usual if they agree."""
MAX_PROBE_AXES = 3
"""Maximum axes of a test: it is evaluated in as many corners as they have."""
MAX_EDGE_POSITIONS = 64
"""Positions at an end of an axis for which tested loops are fast enough."""
MIN_ROW_VECTORS = 4
"""Minimum vectors of a row that is partitioned."""


@dataclass(frozen=True, slots=True)
class Interior:
    """A range of rows or positions in which tests have their usual answers.

    Where `gaps` are >= 0, the conditions `known_conditions` have their answers and `limits` hold.
    `edges`: all that remains is a few positions at the ends of an axis.
    """

    gaps: tuple[Index, ...]
    items: tuple[Item, ...]
    """What is computed there."""
    taken: dict[Item, bool]
    limits: frozenset[Limit]
    edges: bool


def interior_of(env: Environment, facts: Facts = ()) -> Interior | None:
    """Return the interior of the current nest's rows, or None if it saves nothing.

    Also None if partitioning rows at known positions saves as much
    (`smelt.codegen.llvm.loops.partition_selects`).
    """
    phase, nest = env.s.phase, env.nest
    name = nest.vector
    if name is None or not _is_partitionable(phase, nest, name):
        return None
    extent = phase.axes[name]
    if isinstance(extent, int) and extent < MIN_ROW_VECTORS * env.s.lanes:
        return None
    interior = _find_interior(env, lambda e: _is_simple(e) and has_small_step(e, name))
    if interior is None:
        return None
    interior_cost = (
        body_cost(interior.items, env.proven_limits | interior.limits),
        len(interior.items),
    )
    for piece in partition_axis(nest, name, extent, facts):
        live = live_items(nest, env.known_conditions | piece.taken)
        cost = body_cost(live, env.proven_limits | piece.limits), len(live)
        if cost < interior_cost or (cost == interior_cost and not interior.edges):
            return None
    return interior


def _likely_rows(env: Environment) -> Interior | None:
    """Return the rows in which tests of outer positions have their usual answers.

    None if hardly anything is saved.
    """
    nest = env.nest
    if nest.transposed or nest.state_updates or nest.scalars or nest.reductions or nest.packed:
        return None
    if any(isinstance(i, (ssa.UniformSelect, ssa.Scan, ssa.WindowRead)) for i in nest.items):
        return None
    interior = _find_interior(env, lambda e: _is_simple(e) and nest.vector not in axes_of(e) != ())
    if interior is None:
        return None
    saved = body_cost(env.items, env.proven_limits) - body_cost(
        interior.items, env.proven_limits | interior.limits
    )
    return interior if saved >= MIN_TESTED_LOADS else None


def _is_partitionable(phase: Phase, nest: Nest, name: str) -> bool:
    """Return whether rows may be taken in any order of parts: nothing is carried along them."""
    if nest.order[-1:] != (name,) or name in phase.window_positions:
        return False
    if nest.state_updates or nest.scalars or nest.transposed or nest.packed or nest.single_use:
        return False
    if name in visited_axes(phase.segments[nest.time]):
        return False
    accesses = [*accesses_of(nest.items), *(s.access for s in nest.stores)]
    if any(coefficient(a.offset, name) is None for a in accesses):
        # Contiguous only in runs of full vectors.
        return False
    return not any(isinstance(i, (ssa.UniformSelect, ssa.Scan, ssa.WindowRead)) for i in nest.items)


def _find_interior(env: Environment, counts: Callable[[Index], bool]) -> Interior | None:
    """Find the interior of a row, where conditions and bounds checks have usual answers.

    `counts` selects the tests by their index.  None if the interior saves nothing.
    """
    nest, gaps = env.nest, dict[Index, None]()
    taken = {} if nest.stages else _likely_answers(env, counts, gaps)
    items = live_items(nest, env.known_conditions | taken) if taken else env.items
    limits: set[Limit] = set()
    for e, n in dict.fromkeys(p for x in accesses_of(items) for p in x.limits):
        margins = e, sub(sub(n, 1), e)
        if (e, n) not in env.proven_limits and counts(e) and all(map(_likely_answer, margins)):
            limits.add((e, n))
            gaps |= dict.fromkeys(margins)
    current_cost = body_cost(env.items, env.proven_limits), len(env.items)
    if (body_cost(items, env.proven_limits | limits), len(items)) >= current_cost:
        return None
    return Interior(tuple(gaps), tuple(items), taken, frozenset(limits), all(map(_is_edge, gaps)))


def _likely_answers(
    env: Environment, counts: Callable[[Index], bool], gaps: dict[Index, None]
) -> dict[Item, bool]:
    """Return each condition that has a usual answer in the interior, with that answer.

    Adds the expressions that are >= 0 there to `gaps`.
    """
    tested, answers = conditions(env.nest), dict(env.known_conditions)
    for item in env.items:
        gap = gap_of(item) if item in tested and item not in answers else None
        answer = None
        if gap is not None and counts(gap):
            answer = _likely_answer(gap)
            if answer is not None:
                gaps[gap if answer else sub(mul(gap, -1), 1)] = None
        elif item in tested and isinstance(item, ssa.Apply) and _is_logic(item):
            answer = combine_answers(item.op, [answers.get(a) for a in item.args])
        if answer is not None:
            answers[item] = answer
    return {i: answer for i, answer in answers.items() if i not in env.known_conditions}


def has_likely_sides(nest: Nest) -> bool:
    """Return whether some selection of a nest has a usual side.

    That side gets loops of its own.
    """
    tested = conditions(nest)
    gaps = (gap_of(i) for i in nest.items if i in tested)
    return any(g is not None and _is_simple(g) and _likely_answer(g) is not None for g in gaps)


def _is_logic(item: Item) -> bool:
    return all(x.dtype == bool_ for x in (item, *item.args))


def has_small_step(e: Index, name: str) -> bool:
    """Return whether an index has a small constant stride along an axis."""
    step = coefficient(e, name)
    return isinstance(step, int) and 1 <= abs(step) <= FARTHEST_STEP


def _is_simple(e: Index) -> bool:
    """Return whether an index depends on few axes and sizes alone."""
    return len(axes_of(e)) <= MAX_PROBE_AXES and all(a.kind != "value" for a in atoms(e))


def _likely_answer(gap: Index) -> bool | None:
    """Return whether a gap is >= 0 in the middle of its axes.

    None if that varies.  The gap is evaluated at a few points of axes of a probe size.
    """
    sizes = defaultdict[str, int](lambda: PROBE_SIZE)
    axes = {a.name: evaluate(a.extent, sizes) for a in atoms(gap) if a.kind == "axis"}
    parts = product(*([int(n * part) for part in PROBE_POINTS] for n in axes.values()))
    answers = {evaluate(gap, sizes, dict(zip(axes, at, strict=True))) >= 0 for at in parts}
    return answers.pop() if len(answers) == 1 else None


def _is_edge(gap: Index) -> bool:
    """Return whether a gap is below 0 only next to an end of an axis."""
    sizes = defaultdict[str, int](lambda: PROBE_SIZE)
    axes = {a.name: a.extent for a in atoms(gap) if a.kind == "axis"}
    ends = (
        substitute(gap, dict.fromkeys(axes, 0)),
        substitute(gap, {a: sub(n, 1) for a, n in axes.items()}),
    )
    return all(
        evaluate(e, sizes) >= 0 or (isinstance(e, int) and e >= -MAX_EDGE_POSITIONS) for e in ends
    )


# ---- emission ------------------------------------------------------------------------------------


def interior_range(
    env: Environment, scope: Scope, gaps: Iterable[Index], axis: str = ""
) -> tuple[Value, Value]:
    """Emit the range of an axis in which all `gaps` are >= 0.

    The row is the default axis.
    """
    name, b = axis or env.nest.vector or "", env.b
    low, _ = first, last = env.ranges[name]
    for gap in gaps:
        step = coefficient(gap, name)
        assert isinstance(step, int) and step
        offset = env.index(substitute(gap, {name: 0}), scope)
        if step > 0:
            begin = b.sub(number(0), offset)
            if step > 1:
                begin = b.sdiv(b.add(begin, number(step - 1)), number(step))
            first = b.select(b.icmp_signed("<", first, begin), begin, first)
        else:
            last_gap = offset if step == -1 else b.sdiv(offset, number(-step))
            end = b.select(b.icmp_signed("<", offset, number(0)), low, b.add(last_gap, number(1)))
            last = b.select(b.icmp_signed("<", end, last), end, last)
    return first, last


def run_partitioned(
    env: Environment,
    scope: Scope,
    facts: Facts,
    at: Callable[[int, bool], Callable[[Value], None]],
    walk: Callable[[Value, Value], None],
) -> bool:
    """Emit a row's loops: tested ones around its interior, or those of its pieces.

    Returns whether it has either.  `at` returns the body for a number of lanes, with or without the
    mask of the row's end; `walk` emits the loop over unrolled vectors between two positions.
    """
    b, lanes = env.b, env.s.lanes
    name, wide, step = (
        env.nest.vector or "",
        lanes * env.nest.unroll,
        env.reductions.tail_lanes(),
    )
    interior = interior_of(env, facts)
    if interior is None:
        row_pieces = partition_axis(env.nest, name, env.s.phase.axes[name], facts)
        if row_pieces:
            run_pieces(env, row_pieces, scope, wide, at)
        return bool(row_pieces)
    low, high = env.ranges[name]
    first, last = interior_range(env, scope, interior.gaps)
    begin = b.add(low, b.and_(b.add(b.sub(first, low), number(lanes - 1)), number(-lanes)))
    fits, length = b.icmp_signed("<=", b.add(begin, number(lanes)), last), b.sub(last, begin)
    middle = b.select(fits, b.add(begin, b.and_(length, number(-wide))), high)
    end = b.select(fits, b.add(begin, b.and_(length, number(-lanes))), high)
    begin = b.select(fits, begin, high)
    has_single_loop = env.nest.unroll > 1 and len(interior.items) <= MAX_BODY_ITEMS
    end = end if has_single_loop else middle

    def run_side(k: Value) -> None:
        is_first = b.icmp_signed("==", k, number(0))
        start = b.select(is_first, low, end)
        env.loop(start, b.select(is_first, begin, high), step, at(step, True))
        with b.if_then(is_first), assuming(env, Piece(None, (), interior.taken, interior.limits)):
            main_loop(env, begin, wide, lambda: walk(begin, middle), scope)
            if has_single_loop:
                env.loop(middle, end, lanes, at(lanes, False))

    env.loop(number(0), number(2), 1, run_side)
    return True


def run_row_versions(
    env: Environment, outer: Sequence[str], scope: Scope, run: Callable[[Facts, bool], None]
) -> None:
    """Emit a row's loops in versions by tests that do not move along it.

    Either for rows in which all such tests have their usual answers and for others, or for each
    piece of an outer axis that has its own selections, or else for rows that are in bounds and for
    others.  `run` gets the facts that hold, and whether such rows are few.
    """
    interior = _likely_rows(env)
    for name in reversed(outer if interior is None or not interior.edges else ()):
        outer_pieces = partition_axis(env.nest, name, env.s.phase.axes[name])
        if outer_pieces:
            branch_on_pieces(
                env,
                name,
                outer_pieces,
                scope,
                lambda facts: _run_bounds_versions(env, scope, facts, run),
            )
            return
    if interior is None:
        _run_bounds_versions(env, scope, (), run)
        return
    b = env.b
    holds: Value = ir.Constant(ir.IntType(1), 1)
    for gap in interior.gaps:
        holds = b.and_(holds, b.icmp_signed(">=", env.index(gap, scope), number(0)))
    with b.if_else(holds) as (inside, border):
        with inside, assuming(env, Piece(None, (), interior.taken, interior.limits)):
            run(interior.gaps, False)
        with border:
            run((), interior.edges)


def _run_bounds_versions(
    env: Environment, scope: Scope, facts: Facts, run: Callable[[Facts, bool], None]
) -> None:
    """Emit a row twice if need be: for rows that are in bounds, and for others."""
    limits, hold = row_limits(env, scope)
    if hold is None:
        run(facts, False)
        return
    with env.b.if_else(hold) as (inside, border):
        with inside, env.within(proven_limits=env.proven_limits | limits):
            run(facts, False)
        with border:
            run(facts, False)


__all__ = [
    "has_likely_sides",
    "has_small_step",
    "interior_of",
    "interior_range",
    "run_partitioned",
    "run_row_versions",
]
