"""Which lanes of an access are inside its array: the tests that margins and joined arrays need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir

from smelt.codegen.llvm.indexing import number, splat
from smelt.codegen.llvm.items import Access
from smelt.codegen.llvm.memory import FARTHEST_STEP, lanes_between
from smelt.codegen.llvm.scope import Scope
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of, nonnegative

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = Any


def inside_limits(home: NestEmitter, access: Access, scope: Scope, vector: bool) -> Value | None:
    """A mask (or bit) of the lanes whose positions are inside; None where nothing is tested."""
    found: Value | None = None
    for e, n in access.limits:
        test = _test(home, e, n, scope, vector)
        found = test if found is None else home.b.and_(found, test)
    return found


def _test(home: NestEmitter, e: Index, n: Index, scope: Scope, vector: bool) -> Value:
    b, lanes = home.b, scope.lanes if vector else None
    along = lanes is not None and (lanes.axis in axes_of(e) or home.vector_position(e))
    if lanes is None or not along:
        at = home.index(e, scope)
        test = b.icmp_signed("<", at, home.index(n, scope))
        if not nonnegative(e):
            test = b.and_(test, b.icmp_signed(">=", at, number(0)))
        return test if lanes is None else splat(b, test, lanes.count)
    step = _lane_step(home, e, lanes.axis)
    if step is not None:
        base, limit = home.index(e, scope), home.index(n, scope)
        return lanes_between(home.machine(scope, True), base, step, limit, lanes.count)
    at = home.index(e, scope, lanes=True)
    test = b.icmp_signed("<", at, splat(b, home.index(n, scope), lanes.count))
    if not nonnegative(e):
        test = b.and_(test, b.icmp_signed(">=", at, ir.Constant(at.type, None)))
    return test


def _lane_step(home: NestEmitter, e: Index, axis: str) -> int | None:
    """How much an index grows from lane to lane, if that is one small number."""
    if home.vector_position(e):
        return None
    step = coefficient(e, axis)
    return step if isinstance(step, int) and abs(step) <= FARTHEST_STEP else None
