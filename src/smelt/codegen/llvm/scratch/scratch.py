"""Move registers to and from scratch: kept values, reduction states, stream states."""

from __future__ import annotations

from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.interleaved_loads import load_strided
from smelt.codegen.llvm.access.memory import (
    FARTHEST_STEP,
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
    lanes_before_end,
    number,
    opaque,
    splat,
)
from smelt.codegen.llvm.instructions.machine import LLVMMachine
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Item, StreamState, WindowRead
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.storage import Key
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Index

Value = ir.Value


def _slot(
    home: Environment, item: Item | StreamState, axes: tuple[str, ...], scope: Scope
) -> Value:
    """Return the element offset of the current position in a scratch array."""
    offset: Value = number(0)
    for a in axes:
        extent = home.frame.index(home.storage.extent(item, a))
        position = home.b.sub(scope.axis(a), home.start(item, a))
        offset = home.b.add(home.b.mul(offset, extent), position)
    return offset


def load_kept(home: Environment, key: Key, axes: tuple[str, ...], scope: Scope) -> Value:
    """Load from a scratch array: a vector where its last axis is the vector axis."""
    dtype = home.storage.arrays[key][1]
    memory = dtype.compute
    address = element_address(
        home.b, home.storage.at[key], _slot(home, key[0], axes, scope), memory
    )
    vector = scope.lanes is not None and scope.lanes.axis in axes
    m = home.machine(scope, vector)
    if not vector or scope.lanes is None:
        return load_scalar(m, address, memory, None)
    if axes[-1] == scope.lanes.axis:
        return load_vector(m, address, memory, scope.lanes.mask)
    offsets = _scratch_offsets(home, key, axes, scope)
    return gather(m, home.storage.at[key], offsets, memory, scope.lanes.mask)


def load_window(home: Environment, item: Item, scope: Scope) -> Value:
    """Load one position of a value which was computed for a window (compute_at)."""
    assert isinstance(item.payload, WindowRead)
    (source,), at = item.args, dict(item.payload.at)
    axes = home.s.materialised[source]
    memory = source.dtype.compute
    lanes = scope.lanes if scope.lanes is not None and scope.lanes.axis in item.axes else None
    offset, lane_steps = number(0), list[Value]()
    step: Index | None = 0
    for a in axes:
        extent = home.frame.index(home.storage.extent(source, a))
        position = home.index(at[a], scope) if a in at else scope.axis(a)
        offset = home.b.add(home.b.mul(offset, extent), home.b.sub(position, home.start(source, a)))
        if lanes is not None:
            step = coefficient(at[a], lanes.axis) if a in at else int(a == lanes.axis)
            assert step is not None
            lane_steps = [home.b.mul(s, extent) for s in lane_steps]
            lane_steps += [] if step == 0 else [home.frame.index(step)]
    base, m = home.storage.at[source, 0], home.machine(scope, lanes is not None)
    if lanes is None:
        return load_scalar(m, element_address(home.b, base, offset, memory), memory, None)
    if isinstance(step, int) and 0 < step <= FARTHEST_STEP:
        address = element_address(home.b, base, offset, memory)
        return load_strided(m, address, step, memory, lanes.mask)
    stride: Value = number(0)
    for s in lane_steps:
        stride = home.b.add(stride, s)
    steps = home.b.mul(splat(home.b, stride, lanes.count), iota(lanes.count))
    offsets = home.b.add(splat(home.b, offset, lanes.count), steps)
    return gather(m, base, offsets, memory, lanes.mask)


def store_kept(
    home: Environment, key: Key, axes: tuple[str, ...], value: Value, scope: Scope
) -> None:
    """Store a register in a scratch array."""
    memory = home.storage.arrays[key][1].compute
    address = element_address(
        home.b, home.storage.at[key], _slot(home, key[0], axes, scope), memory
    )
    vector = scope.lanes is not None and scope.lanes.axis in axes
    m = home.machine(scope, vector)
    if not vector or scope.lanes is None:
        store_scalar(m, address, value, memory, None)
    elif axes[-1] == scope.lanes.axis:
        store_vector(m, address, splat(home.b, value, scope.lanes.count), memory, scope.lanes.mask)
    else:
        offsets = _scratch_offsets(home, key, axes, scope)
        scatter(
            m,
            home.storage.at[key],
            offsets,
            splat(home.b, value, scope.lanes.count),
            memory,
            scope.lanes.mask,
        )


def _scratch_offsets(home: Environment, key: Key, axes: tuple[str, ...], scope: Scope) -> Value:
    """Return lane offsets in an array whose last axis is not the vector axis."""
    assert scope.lanes is not None
    step: Value = number(1)
    for a in axes[axes.index(scope.lanes.axis) + 1 :]:
        step = home.b.mul(step, home.frame.index(home.storage.extent(key[0], a)))
    lanes = scope.lanes.count
    return home.b.add(
        splat(home.b, _slot(home, key[0], axes, scope), lanes),
        home.b.mul(splat(home.b, step, lanes), iota(lanes)),
    )


def copy_elements(
    b: ir.IRBuilder, home: Environment, source: Value, to: Value, count: Value, dtype: DType
) -> None:
    """Copy elements from scratch to memory."""
    lanes = home.frame.target.vector_bytes // dtype.itemsize
    m = LLVMMachine(b, lanes, home.frame.target)

    def put(at: Value, mask: Value | None) -> None:
        value = load_vector(m, element_address(b, source, at, dtype), dtype, mask)
        store_vector(m, element_address(b, to, at, dtype), value, dtype, mask)

    each_vector(b, home, count, lanes, put)


def each_vector(b: ir.IRBuilder, home: Environment, count: Value, lanes: int, put: Any) -> None:
    """Emit `put(position, mask)` for all vectors of an array; only the last one is masked."""
    vectors_end = b.and_(count, number(-lanes))

    def masked(at: Value) -> None:
        left = opaque(b, b.sub(count, at))
        put(at, lanes_before_end(b, left, lanes))

    home.loop(number(0), vectors_end, lanes, lambda at: put(at, None))
    home.loop(vectors_end, count, lanes, masked)
