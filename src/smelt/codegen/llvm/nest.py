"""Emit one loop nest, each value at the outermost loop where it is invariant.

The loops of a nest are printed from the language of loops (`nest_loops.py`); products are emitted
by drivers, which are the loops around register tiles:

| driver | blocks and operands |
|---|---|
| `blocked` | blocks of both operands, packed or in place; also in streams, in groups, GEMV |
| `fused` | all of k in registers, or blocks of k with sums in scratch between them |
| `small_m_swapped` | few rows, and a right operand stored along k, which is broadcast in place |
| `nchw`, `nhwc` | a window of an image instead of rows, found by a table of positions |
| `depthwise` | a window and no sum over channels: packed, in place, or transposed |
| `depthwise_fused` | the same, row by row for the product that reads its results |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.affine_predicates import compare_lanes
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_scalar,
)
from smelt.codegen.llvm.access.permute_gather import lane_index
from smelt.codegen.llvm.access.proven_bounds import (
    clamp_position,
    inside_limits,
)
from smelt.codegen.llvm.access.vector_loads import read_lanes, read_pairs
from smelt.codegen.llvm.instructions.dot_product import pack_pairs
from smelt.codegen.llvm.instructions.indexing import (
    IndexEmitter,
    LaneAxis,
    depth_terms,
    splat,
)
from smelt.codegen.llvm.instructions.machine import LLVMMachine, emit
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.loops.partition_selects import is_select, live_items
from smelt.codegen.llvm.loops.split_store_ranges import (
    run_in_place,
    run_in_range,
)
from smelt.codegen.llvm.nest_loops import run_as_loops
from smelt.codegen.llvm.nests.environment import (
    AxisRanges,
    Environment,
    Frame,
    Scope,
    Storage,
    VectorPacker,
)
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.product_plan import Driver, ProductPlan
from smelt.codegen.llvm.products.blocked_gemm import BlockedGemm
from smelt.codegen.llvm.products.depthwise import Depthwise
from smelt.codegen.llvm.products.direct_store import find_direct_stores, run_unless_stored
from smelt.codegen.llvm.products.fused_gemm import FusedGemm
from smelt.codegen.llvm.products.implicit_gemm_nchw import ImplicitGemmNchw
from smelt.codegen.llvm.products.implicit_gemm_nhwc import ImplicitGemmNhwc
from smelt.codegen.llvm.products.small_m_swapped import SmallMSwappedGemm
from smelt.codegen.llvm.schedule.in_place_updates import find_in_place_update
from smelt.codegen.llvm.schedule.mask_ranges import (
    allocate_ranges,
    find_row_groups,
    for_each_row_group,
)
from smelt.codegen.llvm.schedule.transposed_strip import for_each_strip
from smelt.codegen.llvm.scratch.scratch import load_kept, load_window
from smelt.codegen.llvm.streams import edge
from smelt.ops.cast import cast
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import i64
from smelt.types.expr import Atom, Index

Value = ir.Value


class NestEmitter(Environment):
    """Emits the nests of one task in order; loop-free values are shared between them."""

    def __init__(self, frame: Frame, ranges: AxisRanges, top: Scope, storage: Storage) -> None:
        super().__init__(frame, ranges, top, storage)
        row_groups = find_row_groups(self.s) if self.s.phase.regions() else []
        self.row_groups = [allocate_ranges(self, groups) for groups in row_groups]
        self.direct = find_direct_stores(self)

    # ---- loops -----------------------------------------------------------------------------------

    def run(self, nest: Nest, scope: Scope | None = None) -> None:
        """Emit one nest, inside the loops of `scope`."""
        if nest.product is not None:
            self.products = driver = driver_of(self, nest, nest.product)
            driver.run()
            return
        if nest.store_range is not None:
            emit_range = partial(
                run_in_range, self, nest.store_range, lambda: self._run_loops(nest, scope)
            )
            run_unless_stored(self, nest, emit_range)
            return
        run = partial(self._run_loops, nest, scope)
        if self.row_groups:
            run = partial(for_each_row_group, self, nest, run)
        update = None if self.s.products else find_in_place_update(nest, self.s)
        if update is None:
            run_unless_stored(self, nest, run)
        else:
            run_in_place(self, update, run)

    def _run_loops(self, nest: Nest, scope: Scope | None) -> None:
        """Emit the loops of a nest, perhaps strip by strip."""
        run = partial(run_as_loops, self, nest, scope or self.top)
        if nest.strips:
            for_each_strip(self, nest, run)
        else:
            run()

    def open(self, nest: Nest, scope: Scope | None = None) -> Scope:
        """Make a nest the current one, and emit what is invariant in its loops."""
        self.nest, self.saves = nest, nest.saves
        self.items = (
            live_items(nest, self.known_conditions) if self.known_conditions else nest.items
        )
        self.live_items = frozenset(self.items)
        self.accesses = self.find_accesses(self.items)
        self.groups = {
            a: depth_terms(a.offset, self._depth_of, len(nest.order) + 1) for a in self.accesses
        }
        top = Scope(scope or self.top)
        self.enter(top, 0)
        return top

    def enter(self, scope: Scope, depth: int) -> None:
        """Emit what is invariant when `depth` loops are open.

        Accesses that are irregular along lanes do the rest lane by lane.
        """
        for access in self.accesses:
            if access in scope.offsets:
                continue
            above = scope.offset(access)
            lanes = scope.lanes
            irregular = lanes is not None and self.step(access, lanes.axis, lanes.count) is None
            term = 0 if irregular else self.groups[access][depth]
            if term == 0 and above is not None:
                continue
            offset = self.index(term, scope)
            scope.locate(access, offset if above is None else self.b.add(above, offset))
        for item in self.items:
            if self.depth(item) == depth and scope.value(item) is None:
                scope.define(item, self._compute(item, scope))

    # ---- index values ----------------------------------------------------------------------------

    def index(self, e: Index, scope: Scope, *, lanes: bool = False) -> Value:
        """Emit an index expression; with `lanes`, as a vector along the vector axis."""
        if lanes and (lane_values := lane_index(self, e, scope)) is not None:
            return lane_values

        def leaf(atom: Atom) -> Value:
            if atom.kind == "size":
                return self.frame.sizes[atom.name]
            if atom.kind == "value":
                return self.get(self.s.phase.positions[atom.name], scope, False)
            return scope.axis(atom.name)

        lanes_here = scope.lanes if lanes else None
        along = LaneAxis(lanes_here.axis, lanes_here.count) if lanes_here else None
        return IndexEmitter(self.b, leaf, self.frame.entry.found, along).emit(e)

    # ---- values ----------------------------------------------------------------------------------

    def get(self, item: Item, scope: Scope, vector: bool) -> Value:
        """Return the register of an item: available, in scratch, or computed here.

        Broadcast if `vector`.
        """
        register = scope.value(item)
        if register is None:
            register = scope.define(item, self._compute(item, scope))
        if vector and scope.lanes is not None:
            return splat(self.b, register, scope.lanes.count)
        return register

    def reload(self, item: Item, scope: Scope) -> Value:
        """Return the register of a kept item, from scratch."""
        if self.storage.holds_states(item):
            accumulator, axes = self.storage.accumulator_of(item), self.s.materialised[item]
            keys = ((item, k) for k in range(len(accumulator.parts)))
            state = [load_kept(self, key, axes, scope) for key in keys]
            vector = scope.lanes is not None and scope.lanes.axis in axes
            return accumulator.finish(self.machine(scope, vector), state)
        return load_kept(self, (item, 0), self.s.materialised[item], scope)

    def _compute(self, item: Item, scope: Scope) -> Value:
        if item in self.s.materialised and item not in self.live_items:
            return self.reload(item, scope)
        vector = self.is_vector(item, scope)
        m = self.machine(scope, vector)
        match item:
            case ssa.Const(value=value):
                return m.const(item.dtype, value)
            case ssa.IndexValue(index=index):
                return cast(m, self.index(index, scope, lanes=vector), i64, item.dtype)
            case ssa.Load():
                return self._load(item, scope, m)
            case ssa.StateRead(state=state):
                return load_kept(self, (state, 0), self.storage.state_axes(state), scope)
            case ssa.WindowRead():
                return load_window(self, item, scope)
            case ssa.BlockEdge():
                return edge(self, item)
            case _:
                return self._compute_from_operands(item, scope, m)

    def _compute_from_operands(self, item: Item, scope: Scope, m: LLVMMachine) -> Value:
        """Emit an item that is a function of its operands."""
        vector = self.is_vector(item, scope)
        if self.known_conditions and is_select(item) and item.args[0] in self.known_conditions:
            return self.get(
                item.args[1 if self.known_conditions[item.args[0]] else 2], scope, vector
            )
        if vector and (value := compare_lanes(self, item, scope)) is not None:
            return value
        args = [self.get(a, scope, vector) for a in item.args]
        if isinstance(item, ssa.Operation):
            return emit(SCALARS[item.op], m, [a.dtype for a in item.args], args)
        if isinstance(item, ssa.Cast):
            return cast(m, args[0], item.args[0].dtype, item.to)
        if isinstance(item, ssa.KPair):
            return read_pairs(self, item, scope, m) or pack_pairs(m, args)
        assert isinstance(item, ssa.Position), item
        return args[0] if item.inside else clamp_position(self, m, args[0], item, scope)

    # ---- memory ----------------------------------------------------------------------------------

    def _load(self, item: ssa.Load, scope: Scope, m: LLVMMachine) -> Value:
        """Emit a load: a scalar, or all lanes."""
        access = item.access
        dtype, base = self.frame.dtypes[access.buffer], self.frame.buffers[access.buffer]
        vector = self.is_vector(item, scope)
        inside = inside_limits(self, access, scope, vector) if access.limits else None
        if not vector or scope.lanes is None:
            # A uniform condition of a block is evaluated before its nest is open.
            at = scope.offset(access) or self.index(access.offset, scope)
            address = element_address(self.b, base, at, dtype)
            value = load_scalar(m, address, dtype, inside and inside.mask)
        else:
            value = read_lanes(self, access, scope, m, dtype, inside)
        if inside is not None and not access.gives_zero:
            value = m.select(inside.mask, value, m.const(item.dtype, access.other))
        return value


# ---- drivers of products -------------------------------------------------------------------------


class ProductDriver(VectorPacker, Protocol):
    """Emits one product of a task."""

    def run(self) -> None:
        """Emit the product: pack, multiply, and store sums or what an epilogue makes of them."""
        ...


DRIVERS: Final[dict[Driver, Callable[[Environment, Nest, Any], ProductDriver]]] = {
    "blocked": BlockedGemm,
    "fused": FusedGemm,
    "small_m_swapped": SmallMSwappedGemm,
    "nchw": ImplicitGemmNchw,
    "nhwc": ImplicitGemmNhwc,
    "depthwise": Depthwise,
    "depthwise_fused": Depthwise,
}


def driver_of(env: Environment, nest: Nest, c: ProductPlan) -> ProductDriver:
    """Return the emitter of a product in the task that `env` is emitting."""
    return DRIVERS[c.driver](env, nest, c)
