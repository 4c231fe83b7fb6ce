"""Read small strides as full vectors, out of which lanes are shuffled.

Columns of rows of 3 are 3 elements apart.  Loads of a nest with the same stride and less than a
stride apart form one group (a "comb"): its vectors are read once for all of them, and if the group
leaves no gap they are plain loads, which the hardware prefetcher follows.

    x[3*n], x[3*n + 1], x[3*n + 2]    are three vectors, of which each takes every third element
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import (
    element_address,
    intrinsic,
    opaque_mask,
    prefetch,
)
from smelt.codegen.llvm.access.prefetch import CACHE_LINE, PREFETCH_BYTES
from smelt.codegen.llvm.instructions.indexing import I64
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.registers import lane_numbers
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Item, Load
from smelt.codegen.llvm.nests.environment import Environment, InterleavedLoads, LoadGroup
from smelt.loop.passes.group_loads import MAX_STEP, groups_of, is_dense
from smelt.types.dtype import DType
from smelt.types.expr import Index, constant_term, sub

Value = ir.Value
I1, I32 = ir.IntType(1), ir.IntType(32)


def nest_load_groups(env: Environment, items: Iterable[Item]) -> InterleavedLoads:
    """Return the groups of interleaved loads among items of the current nest."""
    return group_loads(items, lambda a: env.step(a, env.nest.vector or ""))


def group_loads(
    items: Iterable[Item], step_of: Callable[[Access], Index | None]
) -> InterleavedLoads:
    """Group the loads with positive strides."""
    members_of: dict[tuple[str, int, Index], dict[int, Access]] = {}
    for item in items:
        if not isinstance(item, Load) or item.access.limits:
            continue
        access = item.access
        step = step_of(access)
        if isinstance(step, int) and 1 < step <= MAX_STEP:
            at = constant_term(access.offset)
            base = sub(access.offset, at)
            members_of.setdefault((access.buffer, step, base), {})[at] = access
    return {
        members[at]: (LoadGroup(members[group[0]], step, group), at)
        for (_, step, _), members in members_of.items()
        for group in groups_of(members, step)
        if is_dense(step, len(group))
        for at in group
    }


def read_group(
    env: Environment, access: Access, scope: Scope, m: LLVMMachine, dtype: DType
) -> Value | None:
    """Read the elements of a load that belongs to a group; None for others."""
    group = env.load_groups.get(access)
    if group is None or scope.lanes is None:
        return None
    comb, tooth = group
    assert comb.first in env.accesses, "the offset of another place would be read"
    base = env.frame.buffers[access.buffer]
    address = element_address(env.b, base, scope.offset(comb.first), dtype)
    teeth = tuple(at - comb.offsets[0] for at in comb.offsets)
    tooth -= comb.offsets[0]
    mask = scope.lanes.mask
    raw = _select_offset(m, address, comb.step, teeth, tooth, dtype, mask, PREFETCH_BYTES)
    return m.load_convert(raw, dtype)


def load_strided(
    m: LLVMMachine,
    address: Value,
    step: int,
    dtype: DType,
    mask: Value | None,
    far: int = 0,
    group: Sequence[int] = (0,),
) -> Value:
    """Read every `step`-th element from an address on, backwards if negative.

    Full vectors are read, of which nothing is touched but the elements of a group of loads; what is
    `far` bytes ahead is prefetched.
    """
    b, lanes = m.builder, m.lanes or 1
    kind = m.raw_type(dtype)
    if step > 0:
        first = min(group)
        teeth = tuple(at - first for at in group)
        start = element_address(b, address, I64(first), dtype) if first else address
        raw = _select_offset(m, start, step, teeth, -first, dtype, mask, far)
        return m.load_convert(raw, dtype)
    reverse = lane_numbers(list(range(lanes))[::-1])
    start = element_address(b, address, I64(step * (lanes - 1)), dtype)
    reversed_mask = None if mask is None else b.shuffle_vector(mask, mask, reverse)
    raw = _select_offset(m, start, -step, (0,), 0, dtype, reversed_mask, -far)
    return m.load_convert(b.shuffle_vector(raw, ir.Constant(kind, ir.Undefined), reverse), dtype)


def _select_offset(
    m: LLVMMachine,
    address: Value,
    step: int,
    teeth: tuple[int, ...],
    tooth: int,
    dtype: DType,
    mask: Value | None,
    far: int,
) -> Value:
    """Select the elements of all lanes at one distance.

    From vectors of which only the elements of the group are touched.
    """
    b, lanes = m.builder, m.lanes or 1
    result: Value | None = None
    lane_at: dict[int, int] = {}
    for v in range(step):
        element_numbers = [i * step + tooth - v * lanes for i in range(lanes)]
        element_at = {
            i: element for i, element in enumerate(element_numbers) if 0 <= element < lanes
        }
        if not element_at:
            continue
        piece = _load_piece(m, address, v, step, teeth, dtype, mask, 0 if tooth else far)
        if result is None:
            result, lane_at = piece, element_at
            continue
        picks = [lane_at[i] if i in lane_at else lanes + element_at.get(i, 0) for i in range(lanes)]
        result = b.shuffle_vector(result, piece, lane_numbers(picks))
        lane_at = {i: i for i in (*lane_at, *element_at)}
    assert result is not None
    order = [lane_at[i] for i in range(lanes)]
    return (
        result
        if order == [*range(lanes)]
        else b.shuffle_vector(result, result, lane_numbers(order))
    )


def _load_piece(
    m: LLVMMachine,
    address: Value,
    v: int,
    step: int,
    teeth: tuple[int, ...],
    dtype: DType,
    mask: Value | None,
    far: int,
) -> Value:
    """Load the `v`-th contiguous vector of a load group, masking elements of no load.

    Lines `far` bytes away are prefetched: masked loads do not train AMD's hardware prefetcher, and
    LLVM reorders the others so that addresses go back and forth.
    """
    b, lanes = m.builder, m.lanes or 1
    kind = m.raw_type(dtype)
    at = element_address(b, address, I64(v * lanes), dtype) if v else address
    if mask is None and far:  # in a main loop
        for k in range(0, lanes * dtype.itemsize, CACHE_LINE):
            prefetch(b, b.gep(at, [I64(far + k)], source_etype=ir.IntType(8)), near=True)
    if mask is None and len(teeth) == step:
        return b.load(at, align=dtype.itemsize, typ=kind)
    no_lanes = ir.Constant(ir.VectorType(I1, lanes), None)
    all_lanes = ir.Constant(ir.VectorType(I1, lanes), [1] * lanes)
    element_numbers = range(v * lanes, (v + 1) * lanes)
    mask_lanes = [p // step if p % step in teeth else lanes for p in element_numbers]
    part = b.shuffle_vector(all_lanes if mask is None else mask, no_lanes, lane_numbers(mask_lanes))
    part = part if mask is None else opaque_mask(m, part)
    return intrinsic(
        b,
        f"llvm.masked.load.{kind.intrinsic_name}.p0",
        kind,
        [at, I32(dtype.itemsize), part, ir.Constant(kind, None)],
    )
