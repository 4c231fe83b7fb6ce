"""Partition the packing loop of a padded row, with overlapping vectors at the edges.

A row of an image with padding is packed by vectors, of which the first and the last ones reach past
its ends.  Between them nothing needs a test, wherever that begins:

    row         . . x x x x x x x x x x x x x x x x x x . .
    tested      [0 0 x x]
    untested        [x x x x][x x x x][x x x x][x x x x]
                                            [x x x x]       may overlap the one before it
    tested                                          [0 0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import accesses_of
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Limit
from smelt.loop.passes.group_loads import FARTHEST_STEP
from smelt.python.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.expr import Index, sub, substitute

Value = ir.Value


@dataclass(frozen=True, slots=True)
class Span:
    """Positions of the vector axis from `first` to before `last`, where `limits` hold."""

    first: Value
    last: Value
    limits: frozenset[Limit]


def run_padded_row(
    env: Environment, scope: Scope, at: Callable[[int, bool], Callable[[Value], None]]
) -> bool:
    """Emit the loops of a packing nest: tested ones around untested ones.

    Returns whether it could.  `at` returns the body for a number of lanes, with or without the mask
    of a row's end.  Some elements are done twice, which is harmless in packing.
    """
    span, lanes = _span(env, scope), env.s.lanes
    if span is None:
        return False
    b, (low, high) = env.b, env.ranges[env.nest.vector or ""]
    fits = b.icmp_signed(">=", b.sub(span.last, span.first), number(lanes))
    first, last = (b.select(fits, x, high) for x in (span.first, span.last))
    final = b.sub(last, number(lanes))
    env.loop(low, first, lanes, at(lanes, True))
    with env.within(proven_limits=env.proven_limits | span.limits):
        env.loop(
            first,
            last,
            lanes,
            lambda x: at(lanes, False)(b.select(b.icmp_signed("<", x, final), x, final)),
        )
    env.loop(last, high, lanes, at(lanes, True))
    return True


def _span(env: Environment, scope: Scope) -> Span | None:
    """Return where nothing needs a test; None if that is everywhere, or not known."""
    vector = env.nest.vector or ""
    loads = accesses_of(env.items)
    tests = dict.fromkeys(p for x in loads for p in x.limits if p not in env.proven_limits)
    if any(env.vector_position(e) or not _has_small_step(e, vector) for e, _ in tests):
        return None
    gaps = (g for e, n in tests for g in (e, sub(sub(n, 1), e)))
    first, last = _interior_range(env, scope, gaps)
    return Span(first, last, frozenset(tests)) if tests else None


def _has_small_step(e: Index, name: str) -> bool:
    """Return whether an index has a small constant stride along an axis."""
    step = coefficient(e, name)
    return isinstance(step, int) and 1 <= abs(step) <= FARTHEST_STEP


def _interior_range(env: Environment, scope: Scope, gaps: Iterable[Index]) -> tuple[Value, Value]:
    """Emit the range of the vector axis in which all `gaps` are >= 0."""
    name, b = env.nest.vector or "", env.b
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
