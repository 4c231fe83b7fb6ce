"""Move registers to and from scratch: kept values, reduction states, stream states."""

from __future__ import annotations

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.interleaved_loads import load_strided
from smelt.codegen.llvm.access.memory import (
    element_address,
    gather,
    load_scalar,
    load_vector,
    scatter,
    store_scalar,
    store_vector,
)
from smelt.codegen.llvm.instructions.indexing import (
    iota,
    number,
    splat,
)
from smelt.codegen.llvm.loopir.items import Item, StreamState, WindowRead
from smelt.codegen.llvm.nests.environment import Environment, Key, Scope
from smelt.loop.passes.group_loads import FARTHEST_STEP
from smelt.types.expr import Index, coefficient

Value = ir.Value


def _slot(env: Environment, item: Item | StreamState, axes: tuple[str, ...], scope: Scope) -> Value:
    """Return the element offset of the current position in a scratch array."""
    offset: Value = number(0)
    for a in axes:
        extent = env.extent(item, a)
        position = env.b.sub(scope.axis(a), env.start(item, a))
        offset = env.b.add(env.b.mul(offset, extent), position)
    return offset


def load_kept(env: Environment, key: Key, axes: tuple[str, ...], scope: Scope) -> Value:
    """Load from a scratch array: a vector where its last axis is the vector axis."""
    dtype = env.storage.arrays[key][1]
    memory = dtype.compute
    address = element_address(env.b, env.storage.at[key], _slot(env, key[0], axes, scope), memory)
    vector = scope.lanes is not None and scope.lanes.axis in axes
    m = env.machine(scope, vector)
    if not vector or scope.lanes is None:
        return load_scalar(m, address, memory, None)
    if axes[-1] == scope.lanes.axis:
        return load_vector(m, address, memory, scope.lanes.mask)
    offsets = _scratch_offsets(env, key, axes, scope)
    return gather(m, env.storage.at[key], offsets, memory, scope.lanes.mask)


def load_window(env: Environment, item: WindowRead, scope: Scope) -> Value:
    """Load one position of a value which was computed for a window (compute_at)."""
    (source,), at = item.args, dict(item.at)
    axes = env.s.materialised[source]
    memory = source.dtype.compute
    lanes = scope.lanes if scope.lanes is not None and scope.lanes.axis in item.axes else None
    offset, lane_steps = number(0), list[Value]()
    step: Index | None = 0
    for a in axes:
        extent = env.extent(source, a)
        position = env.index(at[a], scope) if a in at else scope.axis(a)
        offset = env.b.add(env.b.mul(offset, extent), env.b.sub(position, env.start(source, a)))
        if lanes is not None:
            step = coefficient(at[a], lanes.axis) if a in at else int(a == lanes.axis)
            assert step is not None
            lane_steps = [env.b.mul(s, extent) for s in lane_steps]
            lane_steps += [] if step == 0 else [env.frame.index(step)]
    base, m = env.storage.at[source, 0], env.machine(scope, lanes is not None)
    if lanes is None:
        return load_scalar(m, element_address(env.b, base, offset, memory), memory, None)
    if isinstance(step, int) and 0 < step <= FARTHEST_STEP:
        address = element_address(env.b, base, offset, memory)
        return load_strided(m, address, step, memory, lanes.mask)
    stride: Value = number(0)
    for s in lane_steps:
        stride = env.b.add(stride, s)
    steps = env.b.mul(splat(env.b, stride, lanes.count), iota(lanes.count))
    offsets = env.b.add(splat(env.b, offset, lanes.count), steps)
    return gather(m, base, offsets, memory, lanes.mask)


def store_kept(
    env: Environment, key: Key, axes: tuple[str, ...], value: Value, scope: Scope
) -> None:
    """Store a register in a scratch array."""
    memory = env.storage.arrays[key][1].compute
    address = element_address(env.b, env.storage.at[key], _slot(env, key[0], axes, scope), memory)
    vector = scope.lanes is not None and scope.lanes.axis in axes
    m = env.machine(scope, vector)
    if not vector or scope.lanes is None:
        store_scalar(m, address, value, memory, None)
    elif axes[-1] == scope.lanes.axis:
        store_vector(m, address, splat(env.b, value, scope.lanes.count), memory, scope.lanes.mask)
    else:
        offsets = _scratch_offsets(env, key, axes, scope)
        scatter(
            m,
            env.storage.at[key],
            offsets,
            splat(env.b, value, scope.lanes.count),
            memory,
            scope.lanes.mask,
        )


def _scratch_offsets(env: Environment, key: Key, axes: tuple[str, ...], scope: Scope) -> Value:
    """Return lane offsets in an array whose last axis is not the vector axis."""
    assert scope.lanes is not None
    step: Value = number(1)
    for a in axes[axes.index(scope.lanes.axis) + 1 :]:
        step = env.b.mul(step, env.extent(key[0], a))
    lanes = scope.lanes.count
    return env.b.add(
        splat(env.b, _slot(env, key[0], axes, scope), lanes),
        env.b.mul(splat(env.b, step, lanes), iota(lanes)),
    )
