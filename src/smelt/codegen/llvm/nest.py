"""Emit one loop nest, each value at the outermost loop where it is invariant.

The loops of a nest are emitted by the transformations of `smelt.codegen.llvm.loops`; contractions
by the drivers of `smelt.codegen.llvm.products`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.affine_predicates import compare_lanes
from smelt.codegen.llvm.access.gather_cache import read_cached
from smelt.codegen.llvm.access.memory import (
    element_address,
    load_scalar,
    scatter,
    store_scalar,
    store_vector,
)
from smelt.codegen.llvm.access.nontemporal import align_peel, prefetch_for_write
from smelt.codegen.llvm.access.permute_gather import lane_index
from smelt.codegen.llvm.access.proven_bounds import (
    clamp_position,
    inside_limits,
    run_bounds_versions,
)
from smelt.codegen.llvm.access.vector_loads import and_masks, lane_offsets, read_lanes, read_pairs
from smelt.codegen.llvm.folding import ReductionEmitter, power_of_two
from smelt.codegen.llvm.instructions.dot_product import pack_pairs
from smelt.codegen.llvm.instructions.indexing import (
    IndexEmitter,
    LaneAxis,
    depth_terms,
    number,
    splat,
)
from smelt.codegen.llvm.instructions.machine import LLVMMachine, emit
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, StoreItem
from smelt.codegen.llvm.loops.batched_reduce import batchable_rows, run_batched
from smelt.codegen.llvm.loops.full_unroll import is_fully_unrolled, run_tail, tail_mask, vectors_of
from smelt.codegen.llvm.loops.partition_padding import run_padded_row
from smelt.codegen.llvm.loops.poll import nest_loop
from smelt.codegen.llvm.loops.split_store_ranges import (
    run_in_place,
    run_in_range,
    single_range_items,
    store_in_range,
)
from smelt.codegen.llvm.loops.versioning import (
    is_select,
    live_items,
    run_versions,
    version_condition,
)
from smelt.codegen.llvm.nest_loops import run_as_loops
from smelt.codegen.llvm.nests.environment import (
    AxisRanges,
    Environment,
    Frame,
)
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.storage import Storage
from smelt.codegen.llvm.products.direct_store import find_direct_stores, run_unless_stored
from smelt.codegen.llvm.products.drivers import driver_of
from smelt.codegen.llvm.schedule.in_place_updates import find_in_place_update
from smelt.codegen.llvm.schedule.mask_ranges import (
    allocate_ranges,
    find_row_groups,
    for_each_row_group,
)
from smelt.codegen.llvm.schedule.transposed_strip import for_each_strip
from smelt.codegen.llvm.scratch.scratch import load_kept, load_window, store_kept
from smelt.codegen.llvm.scratch.transpose import emit_transposed_loops, load_transposed_row
from smelt.codegen.llvm.streams import edge
from smelt.errors import InternalError
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
        self.reductions = self._reductions = ReductionEmitter(self)
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
                run_in_range, self, nest.store_range, lambda: self._run_versions(nest, scope)
            )
            run_unless_stored(self, nest, emit_range)
            return
        run = partial(self._run_versions, nest, scope)
        if self.row_groups:
            run = partial(for_each_row_group, self, nest, run)
        update = None if self.s.products else find_in_place_update(nest, self.s)
        if update is None:
            run_unless_stored(self, nest, run)
        else:
            run_in_place(self, update, run)

    def _run_versions(self, nest: Nest, scope: Scope | None) -> None:
        """Emit a nest in versions by a uniform condition, if it has one."""
        is_plain = not any(isinstance(i, ssa.UniformSelect) for i in nest.items)
        is_plain = is_plain or nest.transposed or nest.has_states
        question = None if is_plain else version_condition(nest)
        if question is None and nest.strips:
            for_each_strip(self, nest, lambda: self._run_nest(nest, scope))
        elif question is None:
            self._run_nest(nest, scope)
        elif not run_as_loops(self, nest, scope or self.top):
            inside = Scope(scope or self.top)
            run_versions(self, question, inside, lambda: self._run_nest(nest, inside))

    def _run_nest(self, nest: Nest, scope: Scope | None) -> None:
        if run_as_loops(self, nest, scope or self.top):
            return
        if self.late_store is not None and self.late_store.host is nest:
            raise InternalError("the nest that stores the previous task's rows is not printed")
        top = self.open(nest, scope)
        self._run_loops(top, 0)
        self._reductions.after(nest)

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
        self._reductions.before(nest)
        top = Scope(scope or self.top)
        self.enter(top, 0)
        return top

    def _run_loops(self, scope: Scope, depth: int, ready: bool = False) -> None:
        """Emit the loops of a nest from `depth` on.

        `ready`: loads of the two innermost loops have been transposed.
        """
        order = self.nest.order
        if depth == len(order):
            self.body(scope)
            return
        name = order[depth]
        if depth == len(order) - 2 and self.nest.transposed and not ready:
            emit_transposed_loops(self, scope, lambda: self._run_loops(scope, depth, ready=True))
            return
        self._reductions.open(depth)
        if name == self.nest.vector:
            if any(a.limits for a in self.accesses):
                run_bounds_versions(self, scope, lambda: self._run_vectors(scope, depth))
            else:
                self._run_vectors(scope, depth)
        else:

            def inside(position: Value) -> None:
                inner = Scope(scope, {name: position})
                self.enter(inner, depth + 1)
                self._run_loops(inner, depth + 1)

            if self.nest.reductions and (rows := batchable_rows(self, depth)):
                run_batched(self, name, rows, inside)
            elif depth == 0:
                nest_loop(self, name, self.ranges[name], 1, inside)
            else:
                self.loop(*self.ranges[name], 1, inside)
        self._reductions.close(scope, depth)

    def _run_vectors(self, scope: Scope, depth: int) -> None:
        """Emit a loop over full unrolled vectors, then masked ones."""
        name, wide = self.nest.order[depth], self.s.lanes * self.nest.unroll
        low, high = self.ranges[name]

        def at(
            count: int, masked: bool, alignment: int = 1, end: Value = high
        ) -> Callable[[Value], None]:
            def inside(position: Value) -> None:
                mask = tail_mask(self, end, position, count) if masked else None
                lanes = Lanes(name, position, count, mask, alignment)
                inner = Scope(scope, {name: position}, lanes=lanes)
                self.enter(inner, depth + 1)
                self.body(inner)

            return inside

        if self.nest.single_use and run_padded_row(self, scope, at):
            return
        extent = self.s.phase.axes[name]
        if isinstance(extent, int) and is_fully_unrolled(self.s, self.nest, self.items):
            for first, count in vectors_of(self.s.lanes, self.nest, extent):
                at(count, True)(number(first))
            return

        def walk(low: Value, middle: Value, alignment: int) -> None:
            inside = at(wide, False, self.loop_alignment(name, alignment))
            if depth == 0:
                nest_loop(self, name, (low, middle), wide, inside)
            else:
                self.loop(low, middle, wide, inside)

        def singly(low: Value, end: Value, masked: bool) -> None:
            self.loop(low, end, self.s.lanes, at(self.s.lanes, masked, 1, end))

        middle = low
        if power_of_two(wide):
            loops = partial(walk, alignment=wide), singly
            middle = align_peel(self, (low, high), wide, loops, scope)
        run_tail(self, (middle, high), at)

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
            return self.reductions.finished(item, scope)
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
        """Emit a load: transposed, scalar, from a gather cache, or of all lanes."""
        access = item.access
        dtype, base = self.frame.dtypes[access.buffer], self.frame.buffers[access.buffer]
        vector = self.is_vector(item, scope)
        if item in self.nest.transposed:
            return load_transposed_row(self, item, scope)
        inside = inside_limits(self, access, scope, vector) if access.limits else None
        if not vector or scope.lanes is None:
            # A uniform condition of a block is evaluated before its nest is open.
            at = scope.offset(access) or self.index(access.offset, scope)
            address = element_address(self.b, base, at, dtype)
            value = load_scalar(m, address, dtype, inside and inside.mask)
        elif item in self.cached_gathers:
            return read_cached(
                self, item, scope, m, lambda: read_lanes(self, access, scope, m, dtype, None)
            )
        else:
            value = read_lanes(self, access, scope, m, dtype, inside)
        if inside is not None and not access.gives_zero:
            value = m.select(inside.mask, value, m.const(item.dtype, access.other))
        return value

    def _store(self, s: StoreItem, scope: Scope) -> None:
        vector = scope.lanes is not None
        if s.where is None or not store_in_range(self, s, scope):
            value = self.get(s.value, scope, vector)
            where = None if s.where is None else self.get(s.where, scope, vector)
            self.put(s, value, where, scope)

    def put(self, s: StoreItem, value: Value, where: Value | None, scope: Scope) -> None:
        """Store a value, or its lanes, where a condition holds."""
        dtype, base = self.frame.dtypes[s.access.buffer], self.frame.buffers[s.access.buffer]
        m = self.machine(scope, scope.lanes is not None)
        if scope.lanes is None:
            address = element_address(self.b, base, scope.offset(s.access), dtype)
            store_scalar(m, address, value, dtype, where)
            return
        mask = and_masks(self.b, scope.lanes.mask, where)
        step = self.step(s.access, scope.lanes.axis)
        if step == 1:
            address = element_address(self.b, base, scope.offset(s.access), dtype)
            if self.prefetches_stores and mask is None:
                prefetch_for_write(self, address, dtype, scope.lanes.count)
            store_vector(m, address, value, dtype, mask, bypass=self.nontemporal)
        else:
            scatter(m, base, lane_offsets(self, s.access, step, scope), value, dtype, mask)

    # ---- the innermost body ----------------------------------------------------------------------

    def body(self, scope: Scope) -> None:
        """Emit the innermost body: values, saves, reductions, stores, and updates of states."""
        has_conditions = any(s.where is not None for s in self.nest.stores)
        inside = single_range_items(self, scope) if has_conditions else ()
        for item in self.items:
            if item not in inside:
                self.get(item, scope, False)
        self.save(scope)
        for reduction in self.nest.reductions:
            self._reductions.step(reduction, scope)
        for s in self.nest.stores:
            self._store(s, scope)
        new = [self.get(x.value, scope, False) for x in self.nest.state_updates]
        for setting, value in zip(self.nest.state_updates, new, strict=True):
            store_kept(
                self, (setting.state, 0), self.storage.state_axes(setting.state), value, scope
            )
        for item in self.nest.scalars:
            self.top.define(item, self.get(item, scope, False))

    def save(self, scope: Scope) -> None:
        """Store what later nests need."""
        for item in self.saves:
            value = self.get(item, scope, False)
            if self.nest.packed and self.products is not None:
                self.products.put(self.nest, value, scope)
            else:
                store_kept(self, (item, 0), self.s.materialised[item], value, scope)
