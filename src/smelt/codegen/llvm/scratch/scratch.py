"""Move registers to and from scratch: kept values, reduction states, stream states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from smelt.codegen.llvm.loopir.items import Item, StreamState, WindowRead, enclosing_regions
from smelt.codegen.llvm.scratch.workspace import Key
from smelt.types.affine import coefficient
from smelt.types.dtype import DType
from smelt.types.expr import Index

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

Value = ir.Value


class ScratchEmitter:
    """The scratch arrays of the task that `home` is emitting."""

    def __init__(self, home: NestEmitter) -> None:
        self.home, self.b = home, home.b
        self.task, self.storage = home.home, home.storage

    def start(self, owner: Item | StreamState, axis: str) -> Value:
        """Return the first position along an axis which a scratch array has."""
        starts = self.home.starts
        around = [r for r in enclosing_regions(self.storage.region(owner)) if (r, axis) in starts]
        return starts[around[-1] if around else None, axis]

    def slot(self, item: Item | StreamState, axes: tuple[str, ...], scope: Scope) -> Value:
        """Return the element offset of the current position in a scratch array."""
        offset: Value = number(0)
        for a in axes:
            extent = self.task.index(self.storage.extent(item, a))
            position = self.b.sub(scope.axis(a), self.start(item, a))
            offset = self.b.add(self.b.mul(offset, extent), position)
        return offset

    def reload(self, item: Item, scope: Scope) -> Value:
        """Return the register of a kept item."""
        axes = self.home.s.materialised[item]
        if self.storage.holds_states(item):
            return self.home.reductions.finished(item, scope)
        return self.load((item, 0), axes, scope)

    def load(self, key: Key, axes: tuple[str, ...], scope: Scope) -> Value:
        """Load from a scratch array: a vector where its last axis is the vector axis."""
        dtype = self.storage.arrays[key][1]
        memory = dtype.compute
        address = element_address(
            self.b, self.storage.at[key], self.slot(key[0], axes, scope), memory
        )
        vector = scope.lanes is not None and scope.lanes.axis in axes
        m = self.home.machine(scope, vector)
        if not vector or scope.lanes is None:
            return load_scalar(m, address, memory, None)
        if axes[-1] == scope.lanes.axis:
            return load_vector(m, address, memory, scope.lanes.mask)
        offsets = self._scratch_offsets(key, axes, scope)
        return gather(m, self.storage.at[key], offsets, memory, scope.lanes.mask)

    def load_window(self, item: Item, scope: Scope) -> Value:
        """Load one position of a value which was computed for a window (compute_at)."""
        assert isinstance(item.payload, WindowRead)
        (source,), at = item.args, dict(item.payload.at)
        axes = self.home.s.materialised[source]
        memory = source.dtype.compute
        lanes = scope.lanes if scope.lanes is not None and scope.lanes.axis in item.axes else None
        offset, lane_steps = number(0), list[Value]()
        step: Index | None = 0
        for a in axes:
            extent = self.task.index(self.storage.extent(source, a))
            position = self.home.index(at[a], scope) if a in at else scope.axis(a)
            offset = self.b.add(
                self.b.mul(offset, extent), self.b.sub(position, self.start(source, a))
            )
            if lanes is not None:
                step = coefficient(at[a], lanes.axis) if a in at else int(a == lanes.axis)
                assert step is not None
                lane_steps = [self.b.mul(s, extent) for s in lane_steps]
                lane_steps += [] if step == 0 else [self.task.index(step)]
        base, m = self.storage.at[source, 0], self.home.machine(scope, lanes is not None)
        if lanes is None:
            return load_scalar(m, element_address(self.b, base, offset, memory), memory, None)
        if isinstance(step, int) and 0 < step <= FARTHEST_STEP:
            address = element_address(self.b, base, offset, memory)
            return load_strided(m, address, step, memory, lanes.mask)
        stride: Value = number(0)
        for s in lane_steps:
            stride = self.b.add(stride, s)
        steps = self.b.mul(splat(self.b, stride, lanes.count), iota(lanes.count))
        offsets = self.b.add(splat(self.b, offset, lanes.count), steps)
        return gather(m, base, offsets, memory, lanes.mask)

    def store(self, key: Key, axes: tuple[str, ...], value: Value, scope: Scope) -> None:
        """Store a register in a scratch array."""
        memory = self.storage.arrays[key][1].compute
        address = element_address(
            self.b, self.storage.at[key], self.slot(key[0], axes, scope), memory
        )
        vector = scope.lanes is not None and scope.lanes.axis in axes
        m = self.home.machine(scope, vector)
        if not vector or scope.lanes is None:
            store_scalar(m, address, value, memory, None)
        elif axes[-1] == scope.lanes.axis:
            store_vector(
                m, address, splat(self.b, value, scope.lanes.count), memory, scope.lanes.mask
            )
        else:
            offsets = self._scratch_offsets(key, axes, scope)
            scatter(
                m,
                self.storage.at[key],
                offsets,
                splat(self.b, value, scope.lanes.count),
                memory,
                scope.lanes.mask,
            )

    def _scratch_offsets(self, key: Key, axes: tuple[str, ...], scope: Scope) -> Value:
        """Return lane offsets in an array whose last axis is not the vector axis."""
        assert scope.lanes is not None
        step: Value = number(1)
        for a in axes[axes.index(scope.lanes.axis) + 1 :]:
            step = self.b.mul(step, self.task.index(self.storage.extent(key[0], a)))
        lanes = scope.lanes.count
        return self.b.add(
            splat(self.b, self.slot(key[0], axes, scope), lanes),
            self.b.mul(splat(self.b, step, lanes), iota(lanes)),
        )


def copy_elements(
    b: ir.IRBuilder, home: NestEmitter, source: Value, to: Value, count: Value, dtype: DType
) -> None:
    """Copy elements from scratch to memory."""
    lanes = home.home.target.vector_bytes // dtype.itemsize
    m = LLVMMachine(b, lanes, home.home.target)

    def put(at: Value, mask: Value | None) -> None:
        value = load_vector(m, element_address(b, source, at, dtype), dtype, mask)
        store_vector(m, element_address(b, to, at, dtype), value, dtype, mask)

    each_vector(b, home, count, lanes, put)


def each_vector(b: ir.IRBuilder, home: NestEmitter, count: Value, lanes: int, put: Any) -> None:
    """Emit `put(position, mask)` for all vectors of an array; only the last one is masked."""
    vectors_end = b.and_(count, number(-lanes))

    def masked(at: Value) -> None:
        left = opaque(b, b.sub(count, at))
        put(at, lanes_before_end(b, left, lanes))

    home.loop(number(0), vectors_end, lanes, lambda at: put(at, None))
    home.loop(vectors_end, count, lanes, masked)
