"""Which lanes of an access are inside its array: the tests that margins and joined arrays need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    FARTHEST_STEP,
    any_lane,
    every_lane,
    lanes_between,
)
from smelt.codegen.llvm.access.permute_gather import lane_limits
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Clamping, accesses_of
from smelt.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.dtype import i64
from smelt.types.expr import Index, atoms, axes_of, nonnegative

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value
Limit = tuple[Index, Index]
SEVERAL = 2
"""Tested loads for which rows that lie inside are worth loops of their own."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Which lanes of an access are inside: `mask` says which (a bit where there are no lanes),
    `some` says whether any may be.  A masked load that reads nothing still costs hundreds of cycles
    where its address is not mapped, so one without lanes had better go somewhere else."""

    mask: Value
    some: Value


def inside_limits(home: NestEmitter, access: Access, scope: Scope, vector: bool) -> Inside | None:
    """The lanes of an access whose positions are inside; None where nothing is tested."""
    found: Inside | None = None
    for pair in access.limits:
        if pair in home.assumed:
            continue
        known = scope.lanes.inside.get(pair) if vector and scope.lanes is not None else None
        test = known or _test(home, *pair, scope, vector)
        found = (
            test
            if found is None
            else Inside(home.b.and_(found.mask, test.mask), home.b.and_(found.some, test.some))
        )
    return found


def clamped(home: NestEmitter, m: LLVMMachine, found: Value, to: Clamping, scope: Scope) -> Value:
    """A computed position, moved to the nearest one inside."""
    limit = home.b.sub(home.index(to.extent, scope), number(1))
    if m.lanes is not None:
        limit = splat(home.b, limit, m.lanes)
    found = m.select(m.compare("lt", found, limit), found, limit)
    return m.select(m.compare("gt", found, zero := m.const(i64, 0)), found, zero)


def tested(home: NestEmitter, e: Index, n: Index, scope: Scope) -> Inside:
    """The lanes in which one index is inside 0 .. n-1, found here for more than one access."""
    return _test(home, e, n, scope, vector=True)


def known_limits(home: NestEmitter, scope: Scope) -> dict[Limit, Inside]:
    """Which lanes are inside, of the limits that no loop within this scope moves."""
    inner = {a for a in home.nest.order if scope.axis(a) is None}
    found = dict.fromkeys(
        pair
        for access in accesses_of(home.items)
        for pair in access.limits
        if pair not in home.assumed
        and not any(map(inner.intersection, map(axes_of, pair)))
        and not any(a.kind == "value" for e in pair for a in atoms(e))
    )
    return {pair: tested(home, *pair, scope) for pair in found}


def of_lines(e: Index, axis: str) -> bool:
    """Whether an index tells lines of an axis apart, as i//n does."""
    return any(a.kind == "//" and axis in axes_of(a.args[0]) for a in atoms(e))


def within_lines(
    home: NestEmitter, axis: str, known: Mapping[Limit, Inside], body: Callable[[], None]
) -> None:
    """The body, twice where limits tell lines of an axis apart: for vectors all of whose lanes lie
    inside of those, and for the few others."""
    b, before = home.b, home.assumed
    told = [pair for pair in known if of_lines(pair[0], axis)]
    if not told:
        body()
        return
    mask = known[told[0]].mask
    for pair in told[1:]:
        mask = b.and_(mask, known[pair].mask)
    with b.if_else(every_lane(b, mask)) as (inner, others):
        with inner:
            home.assumed = before | {*told}
            body()
            home.assumed = before
        with others:
            body()


def row_limits(home: NestEmitter, scope: Scope) -> tuple[frozenset[Limit], Value | None]:
    """The limits that the loop over vectors leaves alone, where several loads are tested against
    such; and whether all of them hold."""
    nest = home.nest
    loads = accesses_of(home.items)
    still = [
        [p for p in x.limits if _is_still(home, p[0]) and p not in home.assumed] for x in loads
    ]
    enough = 1 if nest.once else SEVERAL
    if nest.folds or nest.fixed or sum(map(bool, still)) < enough:
        return frozenset(), None
    tests = dict.fromkeys(pair for pairs in still for pair in pairs)
    whole: Value | None = None
    for e, n in tests:
        test = _bit(home, e, n, scope)
        whole = test if whole is None else home.b.and_(whole, test)
    return frozenset(tests), whole


def _is_still(home: NestEmitter, e: Index) -> bool:
    """Whether an index has one value for all positions of the vector axis."""
    read = [home.s.phase.positions[a.name] for a in atoms(e) if a.kind == "value"]
    return not read and home.nest.vector not in axes_of(e)


def _bit(home: NestEmitter, e: Index, n: Index, scope: Scope) -> Value:
    b, at = home.b, home.index(e, scope)
    test = b.icmp_signed("<", at, home.index(n, scope))
    return test if nonnegative(e) else b.and_(test, b.icmp_signed(">=", at, number(0)))


def _test(home: NestEmitter, e: Index, n: Index, scope: Scope, vector: bool) -> Inside:
    b, lanes = home.b, scope.lanes if vector else None
    along = lanes is not None and (lanes.axis in axes_of(e) or home.vector_position(e))
    if lanes is None or not along:
        test = _bit(home, e, n, scope)
        return Inside(test if lanes is None else splat(b, test, lanes.count), test)
    step = _lane_step(home, e, lanes.axis)
    if step is not None:
        base, limit = home.index(e, scope), home.index(n, scope)
        mask = lanes_between(home.machine(scope, True), base, step, limit, lanes.count)
        far = b.add(base, number(step * (lanes.count - 1)))
        low, high = (base, far) if step >= 0 else (far, base)
        some = b.and_(b.icmp_signed("<", low, limit), b.icmp_signed(">=", high, number(0)))
        return Inside(mask, some)
    mask = lane_limits(home, e, n, scope)
    if mask is not None:
        return Inside(mask, any_lane(b, mask))
    at = home.index(e, scope, lanes=True)
    test = b.icmp_signed("<", at, splat(b, home.index(n, scope), lanes.count))
    if not nonnegative(e):
        test = b.and_(test, b.icmp_signed(">=", at, ir.Constant(at.type, None)))
    # Of places in lines some are inside, unless all of a line is margin.
    places = any(a.kind == "%" and lanes.axis in axes_of(a.args[0]) for a in atoms(e))
    return Inside(test, ir.IntType(1)(1) if places else any_lane(b, test))


def _lane_step(home: NestEmitter, e: Index, axis: str) -> int | None:
    """How much an index grows from lane to lane, if that is one small number."""
    if home.vector_position(e):
        return None
    step = coefficient(e, axis)
    return step if isinstance(step, int) and abs(step) <= FARTHEST_STEP else None
