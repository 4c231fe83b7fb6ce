"""Read the lanes of a load: contiguous, equal, strided, permuted, or gathered."""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.interleaved_loads import load_strided
from smelt.codegen.llvm.access.memory import (
    element_address,
    gather,
    load_scalar,
    load_vector,
)
from smelt.codegen.llvm.access.permute_gather import read_permuted
from smelt.codegen.llvm.access.prefetch import PREFETCH_BYTES, prefetch_ahead
from smelt.codegen.llvm.access.proven_bounds import LaneBounds, inside_limits
from smelt.codegen.llvm.instructions.indexing import iota, splat
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import lane_numbers, pick_from
from smelt.codegen.llvm.loopir.items import Access, Item, contiguous_pair
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.loop.passes.group_loads import FARTHEST_STEP
from smelt.types.dtype import DType, i16, i32
from smelt.types.expr import Index

Value = ir.Value


def read_lanes(
    env: Environment,
    access: Access,
    scope: Scope,
    m: LLVMMachine,
    dtype: DType,
    inside: LaneBounds | None,
) -> Value:
    """Read all lanes of an access; lanes out of bounds or masked are zero."""
    lanes = scope.lanes
    assert lanes is not None
    b, base = env.b, env.frame.buffers[access.buffer]
    mask = and_masks(b, lanes.mask, inside and inside.mask)
    step = env.step(access, lanes.axis, lanes.count)
    if step == 1:
        address = element_address(b, base, scope.offset(access), dtype)
        if inside is not None:
            address = b.select(inside.some, address, base)
        vector = load_vector(m, address, dtype, mask)
        if mask is None:
            prefetch_ahead(env, access, address, dtype, lanes.count)
        return vector
    if step == 0 and mask is None:
        address = element_address(b, base, scope.offset(access), dtype)
        value = load_scalar(LLVMMachine(b, None, m.target), address, dtype, None)
        return splat(b, value, lanes.count)
    if isinstance(step, int) and 0 < abs(step) <= FARTHEST_STEP:
        address = element_address(b, base, scope.offset(access), dtype)
        return load_strided(m, address, step, dtype, mask, PREFETCH_BYTES)
    permuted_lanes = read_permuted(env, access, scope, m, dtype) if step is None else None
    if permuted_lanes is not None:
        return permuted_lanes
    offsets = lane_offsets(env, access, step, scope)
    picked = pick_from(m, dtype, base, env.frame.lengths.get(access.buffer, 0), offsets)
    if picked is None:
        return gather(m, base, offsets, dtype, mask)
    zero = ir.Constant(m.register_type(dtype), None)
    return picked if mask is None else b.select(mask, picked, zero)


def read_pairs(env: Environment, item: Item, scope: Scope, m: LLVMMachine) -> Value | None:
    """Read pairs of short numbers that are contiguous from lane to lane, or return None."""
    b, lanes, pair = env.b, scope.lanes, contiguous_pair(item)
    if lanes is None or m.lanes is None or pair is None or env.step(pair[0], lanes.axis) != 2:
        return None
    first, second = pair
    dtype, base = env.frame.dtypes[first.buffer], env.frame.buffers[first.buffer]
    address = element_address(b, base, scope.offset(first), dtype)
    inside = inside_limits(env, first, scope, True)
    if inside is not None:
        address = b.select(inside.some, address, base)
    mask = and_masks(b, lanes.mask, inside and inside.mask)
    if first.limits == second.limits:
        return load_vector(m, address, i32, mask)
    ends = inside_limits(env, second, scope, True)
    last = and_masks(b, lanes.mask, ends and ends.mask)
    if mask is not None or last is not None:
        all_lanes = ir.Constant(ir.VectorType(ir.IntType(1), lanes.count), [1] * lanes.count)
        picks = lane_numbers([j // 2 + j % 2 * lanes.count for j in range(2 * lanes.count)])
        mask = b.shuffle_vector(mask or all_lanes, last or all_lanes, picks)
    wide = LLVMMachine(b, 2 * lanes.count, m.target)
    return b.bitcast(load_vector(wide, address, i16, mask), m.register_type(i32))


def lane_offsets(env: Environment, access: Access, step: Index | None, scope: Scope) -> Value:
    """Return the offsets of all lanes of an access that is not contiguous."""
    assert scope.lanes is not None
    lanes = scope.lanes.count
    fixed = splat(env.b, scope.offset(access), lanes)
    if step is None:
        loose = env.groups[access][len(env.nest.order)]
        return env.b.add(fixed, splat(env.b, env.index(loose, scope, lanes=True), lanes))
    stride = splat(env.b, env.index(step, scope), lanes)
    return env.b.add(fixed, env.b.mul(stride, iota(lanes)))


def and_masks(b: ir.IRBuilder, first: Value | None, second: Value | None) -> Value | None:
    """Return the conjunction of two masks, None meaning all lanes."""
    if first is None or second is None:
        return second if first is None else first
    return b.and_(first, second)
