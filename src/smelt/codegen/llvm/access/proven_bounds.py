"""Bounds checks of lanes, as padding and concatenations need, unless they are proven."""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    any_lane,
    lanes_between,
)
from smelt.codegen.llvm.access.permute_gather import lane_limits
from smelt.codegen.llvm.instructions.indexing import number, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Access, Position
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.loop.passes.group_loads import FARTHEST_STEP
from smelt.python.dataclass import dataclass
from smelt.types.dtype import i64
from smelt.types.expr import Index, atoms, axes_of, coefficient, nonnegative

Value = ir.Value


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """The lanes of an access that are in bounds.

    `mask` has them (one bit if there are no lanes), `some` is whether there may be any.  A masked
    load without lanes still costs hundreds of cycles if its address is not mapped, so it should go
    to another address.
    """

    mask: Value
    some: Value


def inside_limits(
    env: Environment, access: Access, scope: Scope, vector: bool
) -> LaneBounds | None:
    """Emit which lanes of an access are in bounds; None if nothing needs a test."""
    result: LaneBounds | None = None
    for pair in access.limits:
        if pair in env.proven_limits:
            continue
        test = _test(env, *pair, scope, vector)
        result = (
            test
            if result is None
            else LaneBounds(env.b.and_(result.mask, test.mask), env.b.and_(result.some, test.some))
        )
    return result


def clamp_position(
    env: Environment, m: LLVMMachine, position: Value, to: Position, scope: Scope
) -> Value:
    """Clamp a computed position into its extent."""
    limit = env.b.sub(env.index(to.extent, scope), number(1))
    if m.lanes is not None:
        limit = splat(env.b, limit, m.lanes)
    position = m.select(m.compare("lt", position, limit), position, limit)
    return m.select(m.compare("gt", position, zero := m.const(i64, 0)), position, zero)


def _scalar_test(env: Environment, e: Index, n: Index, scope: Scope) -> Value:
    b, at = env.b, env.index(e, scope)
    test = b.icmp_signed("<", at, env.index(n, scope))
    return test if nonnegative(e) else b.and_(test, b.icmp_signed(">=", at, number(0)))


def _test(env: Environment, e: Index, n: Index, scope: Scope, vector: bool) -> LaneBounds:
    """Emit the lanes in which an index is in 0 .. n-1.

    By comparing lane numbers if the index has a small stride, by a table if it is periodic, else in
    all lanes.
    """
    b, lanes = env.b, scope.lanes if vector else None
    varies = lanes is not None and (lanes.axis in axes_of(e) or env.vector_position(e))
    if lanes is None or not varies:
        test = _scalar_test(env, e, n, scope)
        return LaneBounds(test if lanes is None else splat(b, test, lanes.count), test)
    step = _lane_step(env, e, lanes.axis)
    if step is not None:
        base, limit = env.index(e, scope), env.index(n, scope)
        mask = lanes_between(env.machine(scope, True), base, step, limit, lanes.count)
        last = b.add(base, number(step * (lanes.count - 1)))
        low, high = (base, last) if step >= 0 else (last, base)
        some = b.and_(b.icmp_signed("<", low, limit), b.icmp_signed(">=", high, number(0)))
        return LaneBounds(mask, some)
    mask = lane_limits(env, e, n, scope)
    if mask is not None:
        return LaneBounds(mask, any_lane(b, mask))
    at = env.index(e, scope, lanes=True)
    test = b.icmp_signed("<", at, splat(b, env.index(n, scope), lanes.count))
    if not nonnegative(e):
        test = b.and_(test, b.icmp_signed(">=", at, ir.Constant(at.type, None)))
    # Positions within rows: some are in bounds, unless a whole row is padding.
    has_row_positions = any(a.kind == "%" and lanes.axis in axes_of(a.args[0]) for a in atoms(e))
    return LaneBounds(test, ir.IntType(1)(1) if has_row_positions else any_lane(b, test))


def _lane_step(env: Environment, e: Index, axis: str) -> int | None:
    """Return the increment of an index from lane to lane, if a small constant.

    Else None.
    """
    if env.vector_position(e):
        return None
    step = coefficient(e, axis)
    return step if isinstance(step, int) and abs(step) <= FARTHEST_STEP else None
