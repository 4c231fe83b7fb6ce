"""The layout of a thread's scratch memory: where each array is, and how far it extends.

`smelt.codegen.llvm.scratch.workspace` lays it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TypeGuard

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import opaque
from smelt.codegen.llvm.instructions.reductions import Accumulator, make_accumulator
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, Region, StreamState, unvarying_axes
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index, add, floordiv, mul, product, sub

Value = ir.Value
Key = tuple[Item | StreamState, int]


@dataclass(frozen=True, eq=False)
class Storage:
    """Offsets, types and addresses of the arrays in a thread's scratch memory."""

    s: Schedule
    takes_over: Mapping[Item, Item]
    """Arrays whose memory another array takes over, with the item which does."""
    pitches: Mapping[Item, Index]
    """Elements between the rows of transposed strips."""
    arrays: Mapping[Key, tuple[Index, DType]] = field(
        default_factory=dict[Key, tuple[Index, DType]]
    )
    """Offset in bytes, and element type, of each array."""
    operands: Mapping[Key, Index] = field(default_factory=dict[Key, Index])
    """Bytes of arrays which tiles read past what was packed (see `zero_operands`)."""
    nbytes: Index = 0
    at: Mapping[Key, Value] = field(default_factory=dict[Key, Value])
    """The address of each array."""

    def extent(self, owner: Item | StreamState, axis: str) -> Index:
        """Return an array's extent along an axis; products have room for full register tiles."""
        if isinstance(owner, StreamState):
            return self.s.span(owner.region, axis)
        packed = next((c for c in self.s.products.packed if c.item is owner), None)
        if packed is not None:
            return packed.scratch_extent(axis, self.s.local)
        span = self.s.span(self.s.region(owner), axis)
        c = next((c for c in self.s.blocked if c.item is owner), None)
        owner = self.takes_over.get(owner, owner)
        for other in self.s.blocked:
            if owner is other.left and (other.direct or other.stored_pitch):
                c = other  # full tiles, at the operand's row stride
                if axis == c.left_axes[-1]:
                    return c.direct or c.stored_pitch
                if not c.m_contiguous:
                    break
        if c is None or axis not in (c.m, c.n):
            return span
        step = c.tile.rows if axis == c.m else c.tile.columns
        return mul(floordiv(add(span, step - 1), step), step)

    def rows(self, c: Contraction) -> Index:
        """Return how many rows of a product are in scratch."""
        return 1 if c.m is None else self.extent(c.item, c.m)

    def region(self, owner: Item | StreamState) -> Region | None:
        """Return the region in which an array is filled."""
        return owner.region if isinstance(owner, StreamState) else self.s.region(owner)

    def state_axes(self, state: StreamState) -> tuple[str, ...]:
        """Return the local axes of a state, the vector axis last."""
        fixed_axes = unvarying_axes(state.region)
        local_axes = [a for a in self.s.local if a in state.axes and a not in fixed_axes]
        setters = [n for n in self.s.nests if any(x.state is state for x in n.state_updates)]
        vector = setters[0].vector if setters else None
        return tuple(sorted(local_axes, key=lambda a: a == vector))

    def accumulator_of(self, item: ssa.Reduction) -> Accumulator:
        """Return the accumulator of a reduction or scan item."""
        in_order = len(item.over) == 1 or self._is_in_order(item, item.over)
        places = product(self.s.phase.axes[a] for a in item.over)
        return make_accumulator(
            item.row,
            item.args[0].dtype,
            item.dtype,
            plain=item.plain,
            in_order=in_order,
            places=places,
        )

    def _is_in_order(self, item: Item, over: tuple[str, ...]) -> bool:
        """Return whether loops meet the elements of a reduction in the order of positions."""
        nest = next(n for n in self.s.nests if item in n.reductions)
        return tuple(a for a in nest.order if a in over) == over

    def holds_states(self, item: Item) -> TypeGuard[ssa.Reduction]:
        """Return whether an array holds accumulator states rather than finished values."""
        if not isinstance(item, ssa.Reduce):
            return False
        nest = next(n for n in self.s.nests if item in n.reductions)
        return not nest.in_registers(item)

    def parts(self, item: Item) -> tuple[DType, ...]:
        """Return the types of the arrays which a kept item needs."""
        return self.accumulator_of(item).parts if self.holds_states(item) else (item.dtype,)

    def with_addresses(
        self, b: ir.IRBuilder, scratch: Value, index: Callable[[Index], Value]
    ) -> Storage:
        """Emit the addresses of all arrays, each from the one before it.

        They are opaque to LLVM, which would otherwise recompute them in loops from sizes of blocks
        and their quotients.
        """
        last: Index = 0
        offsets: dict[Index, Value] = {last: index(last)}
        addresses: dict[Key, Value] = {}
        for key, (offset, _) in self.arrays.items():
            if isinstance(offset, int):
                offsets[offset] = index(offset)
            elif offset not in offsets:
                offsets[offset] = opaque(b, b.add(offsets[last], index(sub(offset, last))))
                last = offset
            addresses[key] = b.gep(scratch, [offsets[offset]], source_etype=ir.IntType(8))
        return replace(self, at=addresses)

    def moved(self, b: ir.IRBuilder, nbytes: Value) -> Storage:
        """Return the same arrays, a number of bytes further on."""
        byte = ir.IntType(8)
        addresses = {key: b.gep(p, [nbytes], source_etype=byte) for key, p in self.at.items()}
        return replace(self, at=addresses)
