"""Reuse a gather for consecutive rows that read the same elements.

Scales and zero points of a weight's groups, and numbers that are packed several to a byte along the
reduction, are the same elements for several reduced positions.  If vectors run across the
reduction, their lanes are gathered, which takes as long as twenty other instructions; so the
gathered vector is stored, and gathered again only when its offset changes:

    s[j,k//128]    lanes along j, row after row k: gathered once for 128 rows

All lanes have a fixed stride, so that two vectors are equal if their first lanes are.

    cached_gathers = cache_gathers(env, row)        # before a loop over k
    read_cached(env, item, scope, m, read)          # inside
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, is_repeated
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.loopir.items import Item, Load
from smelt.codegen.llvm.nests.environment import CachedGather, Environment, Scope
from smelt.types.dtype import DType

Value = ir.Value
NOWHERE = -(1 << 62)
"""An offset that no element has."""


def cache_gathers(env: Environment, row: str) -> dict[Item, CachedGather]:
    """Allocate a cache for each load of a nest whose vectors consecutive rows share.

    All are empty at first.
    """
    b, caches, lanes = env.b, dict[Item, CachedGather](), env.s.lanes
    for item in env.items:
        if not _is_shared(env, item, row):
            continue
        vectors = dict[int, tuple[Value, Value]]()
        for count in sorted({lanes, lanes * env.nest.unroll}):
            kind = LLVMMachine(b, count, env.frame.target).register_type(item.dtype)
            with b.goto_entry_block():
                address, offset = (b.alloca(t) for t in (kind, I64))
            vectors[count] = address, offset
            b.store(I64(NOWHERE), offset)
        caches[item] = CachedGather(vectors)
    return caches


def _is_shared(env: Environment, item: Item, row: str) -> bool:
    """Return whether a load is strided along lanes and repeated along neighbouring rows."""
    v = env.nest.vector
    if not isinstance(item, Load) or v is None:
        return False
    access = item.access
    dtype = env.frame.dtypes[access.buffer]
    return (
        not access.limits
        and _is_unconverted(dtype, item.dtype)
        and v in item.axes
        and is_repeated(access.offset, row)
        and env.step(access, v) not in (None, 0, 1)
    )


def _is_unconverted(stored: DType, dtype: DType) -> bool:
    """Return whether elements are the same in registers and in memory."""
    return stored == dtype == dtype.compute and dtype.kind != "bool"


def read_cached(
    env: Environment, item: Load, scope: Scope, m: LLVMMachine, read: Callable[[], Value]
) -> Value:
    """Read a vector of a load through its gather cache.

    `read` loads it on a miss, and if it is masked or has a width that is not cached.
    """
    b, access, lanes = env.b, item.access, scope.lanes
    assert lanes is not None
    if lanes.mask is not None or lanes.count not in env.cached_gathers[item].vectors:
        return read()
    cache, kind = env.cached_gathers[item], m.register_type(item.dtype)
    address, offset = cache.vectors[lanes.count]
    current = scope.offset(access)
    with b.if_then(b.icmp_signed("!=", current, b.load(offset, typ=I64))):
        b.store(read(), address)
        b.store(current, offset)
    return b.load(address, typ=kind)
