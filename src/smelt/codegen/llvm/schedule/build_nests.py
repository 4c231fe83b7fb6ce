"""Build the loop nests of a phase: which loops, over which axes, computing what.

A reduction is a barrier: what reads its result belongs to a later *level*.  All roots (reductions,
stores, values kept for later) of one level over the same local axes share one loop *nest*.  A value
that a later nest needs is recomputed if that is cheap, and materialised in scratch memory
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from smelt.codegen.llvm.access.vector_axis import (
    candidates,
    choose_vector_axis,
    is_irregular,
    lanes_of,
    load_transpose_axis,
)
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.compute_at import finish_sums
from smelt.codegen.llvm.loopir.items import (
    Item,
    Phase,
    StateUpdate,
    StoreItem,
    unvarying_axes,
    visited_axes,
)
from smelt.codegen.llvm.loopir.rewrite import Draft
from smelt.codegen.llvm.loopir.store_ranges import Range, stored_range
from smelt.codegen.llvm.loops.collapse_short_rows import collapse_short_rows, is_map
from smelt.codegen.llvm.loops.distribute import STAGE_UNROLL, distribute
from smelt.codegen.llvm.loops.partition_selects import is_split
from smelt.codegen.llvm.loops.unroll_columns import shares_costly, unroll_columns
from smelt.codegen.llvm.loops.unroll_factor import (
    choose_unroll,
    lanes_of_runs,
    limit_unroll_to_runs,
)
from smelt.codegen.llvm.nests.contraction import Contraction, Products
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.nests.product_plan import ProductPlan
from smelt.codegen.llvm.schedule.contract import Variant, plan_contractions
from smelt.codegen.llvm.schedule.conv_plan import plan_convolutions
from smelt.codegen.llvm.schedule.depthwise import plan_depthwise
from smelt.codegen.llvm.schedule.depthwise_separable import plan_depthwise_separable
from smelt.codegen.llvm.schedule.operands import is_transposed_load
from smelt.codegen.llvm.schedule.task_tiling import (
    fit_stream_blocks,
    is_gather,
    task_blocks,
    transpose_side,
)
from smelt.codegen.llvm.schedule.transposed_strip import strip_loads
from smelt.codegen.llvm.schedule.unroll_small_reductions import unroll_short_dots
from smelt.loop.passes.group_loads import FARTHEST_STEP
from smelt.machine.blocks import window_reach
from smelt.machine.target import Target
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass, replace
from smelt.types.expr import Index, axes_of, coefficient


def memory_axis(nest: Nest, v: str) -> str | None:
    """Return a stride-1 axis for a nest whose accesses are strided along `v`.

    The nest reduces or stores what it loads.  Nothing else that it reads may vary along both axes:
    the layout of contraction results does not matter to it then.  None if there is no such axis.
    """
    inside = {*nest.items}
    others = [a for i in (*nest.items, *nest.reductions) for a in i.args if a not in inside]
    others += [s.value for s in nest.stores if s.value not in inside]
    if nest.state_updates or nest.saves:
        return None
    loads = [i.access.offset for i in nest.items if isinstance(i, ssa.Load) and v in i.axes]
    stored = [s.access.offset for s in nest.stores]
    if not loads or any(coefficient(x, v) in (0, 1) for x in loads + stored):
        return None
    both = [x.axes for x in others if v in x.axes]
    return next(
        (
            a
            for a in nest.order
            if _is_contiguous(loads, stored, a) and not any(a in axes for axes in both)
        ),
        None,
    )


def _is_contiguous(loads: Sequence[Index], stored: Sequence[Index], a: str) -> bool:
    """Return whether an axis has stride 1 in stores and short strides in loads."""
    steps = [coefficient(x, a) for x in loads]
    if not all(coefficient(x, a) == 1 for x in stored):
        return False
    has_short_strides = all(isinstance(n, int) and 0 < n <= FARTHEST_STEP for n in steps)
    return has_short_strides and (bool(stored) or set(steps) == {1})


def results_axis(nest: Nest, v: str) -> str | None:
    """Return the stride-1 axis of all stores, for a nest that only stores scratch values.

    The values are contiguous along `v` in scratch, and no memory access along `v` varies along the
    returned axis: gathering from a few rows of scratch beats scattering to as many rows of memory.
    """
    if not nest.stores or nest.reductions or nest.state_updates or nest.saves:
        return None
    stored = [s.access.offset for s in nest.stores]
    loads = [i.access.offset for i in nest.items if isinstance(i, ssa.Load)]
    along = [x for x in stored + loads if coefficient(x, v) == 1]
    return next(
        (
            a
            for a in nest.order
            if all(coefficient(x, a) == 1 for x in stored)
            and not any(a in axes_of(x) for x in along)
        ),
        None,
    )


def carried_axis(nest: Nest, v: str, phase: Phase, lane_axes: Mapping[Item, str]) -> str | None:
    """Return the vector axis of the contractions that a nest's states accumulate.

    None unless it is one axis other than `v`.  `lane_axes` maps each contraction to the vector axis
    of its result.
    """
    states = [x.state for x in nest.state_updates]
    if nest.stores or nest.reductions or nest.saves or not states:
        return None
    values = [x.value for x in phase.state_updates if x.state in states]
    axes = {lane_axes[i] for value in values for i in (value, *value.args) if i in lane_axes}
    return axes.pop() if len(axes) == 1 and axes <= {*nest.order} - {v} else None


def innermost_axes(nest: Nest, v: str | None) -> list[str]:
    """Return the axes to run innermost, outer to inner.

    Those ended by the reductions that end the vector axis, if any do; the more reductions end an
    axis, the further in it is.
    """
    overs = [{*f.over} for f in nest.reductions]
    overs = [o for o in overs if v in o] or overs
    axes = [a for a in nest.order if any(a in o for o in overs)]
    return sorted(axes, key=lambda a: sum(a in o for o in overs))


def scan_axes(of: Nest | Phase) -> set[str]:
    """Return the axes of scans: they are walked in order from the first position."""
    scans = [i for i in of.items if isinstance(i, ssa.Scan)]
    return {a for s in scans for a in s.over}


MAX_PACK_RECOMPUTE_CYCLES = 8.0
"""Maximum cycles for one vector of a packed operand that is recomputed: less than an exponential,
more than a normalisation."""
MAX_RECOMPUTE_CYCLES = 2.4
"""Maximum cycles for one vector for which recomputing a value beats keeping it in L1 or L2: the sum
of two arrays is recomputed, that of three is kept."""
ROUND_CYCLES = 1.5
"""Cycles for one vector to round to a half type and continue in float32."""


def schedule(phase: Phase, target: Target, form: Variant = "") -> Schedule:
    """Schedule a phase: choose plans of contractions, the vector axis, task blocks, and nests."""
    products, has_short_sums = Products(), _has_short_sums(phase)
    if has_short_sums:
        phase, depthwise = plan_depthwise(phase, target, form)
        if not depthwise:
            phase, depthwise = plan_depthwise_separable(phase, target)
        products = Products(packed=depthwise)
    if not products:
        draft = Draft(unroll_short_dots(phase) if has_short_sums else phase)
        convolutions = {} if phase.regions() else plan_convolutions(draft, target, form)
        products = Products(packed=convolutions)
        if not products:
            products = Products(blocked=plan_contractions(draft, target, form))
        if phase.window_positions:
            finish_sums(draft)
        phase, products = draft.phase, products.renewed(draft.latest)
        if any(c.m == phase.lanes for c in products.blocked):
            # Rows of a contraction: a block of them is not a vector.
            phase = replace(phase, lanes=None)
    if not products and is_map(phase, scans=True):
        phase = _with_longer_rows(phase, target)
    vector = choose_vector_axis(phase, candidates(phase))
    draft = Draft(phase)
    fit_stream_blocks(draft, vector)
    phase, products = draft.phase, products.renewed(draft.latest)
    if products and phase.stores:
        stored = {a for s in phase.stores for a in s.axes}
        # Contractions with most axes first: a matrix-vector product has no contiguous rows.
        lane_axes = [products[i].result_axis for i in sorted(products, key=lambda i: -len(i.axes))]
        vector = next((n for n in lane_axes if n in stored), lane_axes[0])
    cut = task_blocks(phase, products, vector, target)
    if cut.transpose_axis is not None:
        # Neighbouring tasks read neighbouring runs of the same rows.
        others = (a for a in phase.grid if a != cut.transpose_axis)
        phase = replace(phase, grid=(*others, cut.transpose_axis))
    local = {a: n for a, n in phase.axes.items() if a not in phase.grid}
    for a, (_, length) in phase.cut.items():
        local[a] = length
    local |= cut.max_extents
    local |= {
        a: window_reach(local[r.axis], r.step, r.length) for a, r in phase.window_positions.items()
    }
    local = {a: local[a] for a in phase.axes if a in local}
    # A vector must not reach into the next packed panel, which has the lanes of the accumulators:
    # fewer if these are wider than the results (int64 rounded to float32).
    lanes = min([lanes_of(phase, target), *(c.tile.lanes for c in products.values())])
    planner = _Planner(phase, local, vector, lanes, cut.transpose_axis, products, cut.rows)
    return planner.run(cut.block)


def _has_short_sums(phase: Phase) -> bool:
    """Return whether a contraction may be a window or unrolled: all its terms are counted."""
    sums = (i.over for i in phase.items if isinstance(i, ssa.Dot))
    return any(all(isinstance(phase.axes[a], int) for a in over) for over in sums)


def _with_longer_rows(phase: Phase, target: Target) -> Phase:
    """Return a map whose short rows are unrolled by columns, or collapsed, if that pays."""
    lanes, scans = lanes_of(phase, target), any(isinstance(i, ssa.Scan) for i in phase.items)
    unrolled = unroll_columns(phase, lanes) if scans or shares_costly(phase) else None
    if unrolled is None and not scans:
        unrolled = collapse_short_rows(phase, target) or unroll_columns(phase, lanes)
    return unrolled or phase


@dataclass(eq=False)
class _Group:
    """Roots that share a nest, as they are collected: the nest before its loops are arranged."""

    level: int
    order: tuple[str, ...]
    time: int = 0
    vector: str | None = None
    store_range: Range | None = None
    product: ProductPlan | None = None
    packs: tuple[_Group, ...] = ()
    packed: str = ""
    single_use: bool = False
    reductions: list[ssa.Reduction] = field(default_factory=list[ssa.Reduction])
    saves: list[Item] = field(default_factory=list[Item])
    stores: list[StoreItem] = field(default_factory=list[StoreItem])
    state_updates: list[StateUpdate] = field(default_factory=list[StateUpdate])
    scalars: list[Item] = field(default_factory=list[Item])
    items: tuple[Item, ...] = ()
    pairs: bool = True

    def save_once(self, item: Item) -> None:
        """Add a value that is computed once for each position, where windows read it."""
        self.saves.append(item)
        self.single_use = True

    def compute(self, items: tuple[Item, ...]) -> None:
        """Set what the nest computes."""
        self.items = items

    def split(self, others: list[ssa.Reduction], *, pairs: bool) -> _Group:
        """Move some reductions to a group of their own, and return it."""
        self.reductions = [f for f in self.reductions if f not in others]
        return _Group(self.level, self.order, self.time, reductions=others, pairs=pairs)

    def nest(self) -> Nest:
        """Return the nest of these roots, without vectors or unrolling."""
        return Nest(
            self.level,
            self.order,
            self.vector,
            reductions=tuple(self.reductions),
            saves=tuple(self.saves),
            stores=tuple(self.stores),
            items=self.items,
            product=self.product,
            packs=tuple(pack.nest() for pack in self.packs),
            packed=self.packed,
            single_use=self.single_use,
            state_updates=tuple(self.state_updates),
            scalars=tuple(self.scalars),
            pairs=self.pairs,
            time=self.time,
            store_range=self.store_range,
        )


class _Planner:
    """Groups the roots of a phase into nests, and arranges the loops of each."""

    def __init__(
        self,
        phase: Phase,
        local: dict[str, Index],
        vector: str | None,
        lanes: int,
        across: str | None,
        products: Products,
        rows: frozenset[str],
    ) -> None:
        self.phase, self.local, self.vector, self.lanes = phase, local, vector, lanes
        self.transpose_axis, self.products, self.rows = across, products, rows
        self.kept: dict[Item, tuple[str, ...]] = {}
        self.groups: dict[tuple[int, object], _Group] = {}
        self.separate = self._separate_items()
        self.stored = {c.left: c.left_axes for c in products.blocked if c.direct or c.stored_pitch}
        """Operands that a nest stores for a contraction, with their axes in scratch."""
        self.stored |= {c.right: c.right_order() for c in products.blocked if self._is_shared(c)}
        self.first: list[int] = []
        self.last: list[int] = []
        self.levels = self._levels()

    def run(self, block: dict[str, Index]) -> Schedule:
        """Build the schedule."""
        self.block = block
        for reduction in (i for i in self.phase.items if isinstance(i, ssa.Reduce)):
            self._nest_for(self.levels[reduction] - 1, self._domain(reduction)).reductions.append(
                reduction
            )
        for number, item in enumerate(self.products):
            self._add_contraction(number, item)
        for s in self.phase.stores:
            level = max(self.first[s.time], *(self.levels[i] for i in (s.value, s.where) if i))
            domain = s.axes & self._local_axes(s.time)
            within = stored_range(s) if self.products and s.where is not None else None
            if within is not None and within.axis in domain - scan_axes(self.phase):
                self._nest_for(level, domain, within).stores.append(replace(s, where=None))
                continue
            self._nest_for(level, domain).stores.append(s)
        for setting in self.phase.state_updates:
            domain = setting.state.axes & self._local_axes(setting.time)
            self._nest_for(self.last[setting.time], domain).state_updates.append(setting)
        for guide, time in self.phase.stream_bounds():
            self._nest_for(self.last[time], frozenset()).scalars.append(guide)
        for level in range(max(k[0] for k in self.groups), -1, -1):
            for nest in [n for (at, _), n in self.groups.items() if at == level]:
                self._collect_items(nest)
        order = sorted(self.groups, key=self._run_order)
        groups = [x for k in order for x in self._split_reductions(self.groups[k])]
        nests = tuple(
            limit_unroll_to_runs(self._arranged(x.nest()), self.lanes, block) for x in groups
        )
        return Schedule(self.phase, self.lanes, self.products, block, self.local, nests, self.kept)

    def _run_order(self, key: tuple[int, object]) -> tuple[int, int]:
        """Return the sort key of a nest: its level, then nests that update states.

        States with more axes are updated first, because their updates read states with fewer axes.
        """
        nest = self.groups[key]
        return key[0], len(self.phase.axes) - len(nest.order) if nest.state_updates else -1

    def _local_axes(self, time: int) -> set[str]:
        """Return the axes that have several positions at once in a segment."""
        return set(self.local) - unvarying_axes(self.phase.segments[time])

    def _add_contraction(self, number: int, item: Item) -> None:
        """Add a nest for a contraction, and the nests that pack its operands."""
        c = self.products[item]
        level, time = self.levels[item] - 1, item.time
        once = not self.products.blocked
        left, right = (
            _Group(
                level, order, time, order[-1], packed=side, saves=[operand], single_use=single_use
            )
            for order, operand, side, single_use in (
                (c.left_order(), c.left, "left", False),
                (c.right_order(), c.right, "right", once),
            )
        )
        self.groups[level, number] = _Group(level, (), time, product=c, packs=(left, right))
        self._materialise(item)

    def _levels(self) -> dict[Item, int]:
        """Compute the levels of all items; `first` and `last` are those of each segment."""
        levels: dict[Item, int] = {}
        for time in range(len(self.phase.segments)):
            low = self.last[-1] + 1 if self.last else 0
            high = low
            for item in (i for i in self.phase.items if i.time == time):
                used = ((a, isinstance(item, ssa.Dot) and a in self.stored) for a in item.args)
                operand_level = max((levels[a] + before for a, before in used), default=low)
                is_barrier = isinstance(item, (ssa.Reduce, ssa.Dot)) or item in self.separate
                is_barrier |= isinstance(item, ssa.WindowRead) and not isinstance(
                    item.args[0], ssa.Dot
                )
                levels[item] = max(operand_level, low) + is_barrier
                high = max(high, levels[item])
            self.first.append(low)
            self.last.append(high)
        return levels

    def _is_shared(self, c: Contraction) -> bool:
        """Return whether a stream also reduces the costly right operand of a GEMV, its blocks.

        The product reads it in place: without a copy, both would compute it.
        """
        time = c.item.time
        return (
            c.is_gemv
            and isinstance(self.phase.segments[time], ssa.Region)
            and c.right.axes & self._local_axes(time) == {c.k, c.n}
            and any(
                isinstance(i, ssa.Reduce) and i.time == time and c.right in i.args
                for i in self.phase.items
            )
            and self._is_costly(c.right, MAX_PACK_RECOMPUTE_CYCLES)
        )

    def _separate_items(self) -> set[Item]:
        """Return the items that get nests of their own, to be computed once.

        - Scans that a contraction packs, block by block, or that something with more axes reads.
        - Costly values that would be recomputed by loops over axes that they do not have.
        - Gathers in a phase of scalar operators alone, which other loops would repeat.
        - Loads with irregular lanes (`x[k//8]`), which would be repeated for each row.
        """
        separate = set[Item]()
        reader_axes: dict[Item, set[str]] = {i: set(self._domain(i)) for i in self.phase.items}
        for s in self.phase.stores:
            roots = [self.phase.positions[n] for n in s.access.positions]
            for item in (*roots, s.value, *([s.where] if s.where else [])):
                reader_axes[item] |= s.axes & self._local_axes(s.time)
        for setting in self.phase.state_updates:
            reader_axes[setting.value] |= setting.state.axes & self._local_axes(setting.time)
        scalar = not self.phase.regions() and all(
            not isinstance(i, ssa.Reduction) for i in self.phase.items
        )
        for item in reversed(self.phase.items):
            repeats = isinstance(item, ssa.Scan) or (scalar and is_gather(item, self.vector))
            extra_axes = reader_axes[item] - self._domain(item)
            if not self.products and is_irregular(item, self.vector):
                # In maps: if there certainly are several rows.
                repeats |= any(
                    n != 1 and (isinstance(n, int) or not scalar)
                    for n in map(self.local.get, extra_axes)
                )
            if extra_axes and (repeats or self._is_costly_to_repeat(item, extra_axes)):
                separate.add(item)
            inner = isinstance(item, ssa.Reduce) or item in separate
            for a in item.args:
                reader_axes[a] |= (
                    {"packed"}
                    if isinstance(item, ssa.Dot)
                    else self._domain(item)
                    if inner
                    else reader_axes[item]
                )
        return separate

    def _is_costly_to_repeat(self, item: Item, beyond: set[str]) -> bool:
        """Return whether loops over `beyond` would recompute a costly item.

        The vector axis must be one of the item's own axes, so that no loop outside of `beyond`
        could hold it.  Or its rows alone fill vectors, as those of a contraction.
        """
        domain = self._domain(item)
        rows = [n for a in domain if isinstance(n := self.local[a], int)] if self.products else []
        filled = self.vector in domain or max(rows, default=0) >= self.lanes
        outside = any(self.local.get(a, 1) != 1 for a in beyond)
        return outside and filled and self._is_costly(item, MAX_PACK_RECOMPUTE_CYCLES)

    def _domain(self, item: Item) -> frozenset[str]:
        """Return the local axes that a reduction or a materialised value is computed over."""
        axes = item.axes.union(*(a.axes for a in item.args if isinstance(item, ssa.Reduce)))
        return axes.union(ssa.over_axes(item)) & self._local_axes(item.time)

    def _nest_for(self, level: int, domain: frozenset[str], within: Range | None = None) -> _Group:
        """Return the nest of a level over a domain; create it if missing."""
        key = (level, domain if within is None else (domain, within))
        if key not in self.groups:
            order = tuple(a for a in self.phase.axes if a in domain)
            time = next(t for t, last in enumerate(self.last) if level <= last)
            self.groups[key] = _Group(level, order, time, store_range=within)
        return self.groups[key]

    def _collect_items(self, nest: _Group) -> None:
        """Collect what a nest computes, and materialise what is costly."""
        for pack in nest.packs:
            self._collect_items(pack)
        items: set[Item] = set()
        roots = [a for f in nest.reductions for a in f.args] + list(nest.saves)
        for s in nest.stores:
            roots += [s.value] + ([s.where] if s.where else [])
            roots += [self.phase.positions[n] for n in s.access.positions]
        roots += [setting.value for setting in nest.state_updates] + nest.scalars
        for item in roots:
            self._require(item, nest, items)
        nest.compute(tuple(i for i in self.phase.items if i in items))

    def _split_reductions(self, nest: _Group) -> list[_Group]:
        """Move reductions that cannot share the nest's loops to nests of their own.

        Axes that a reduction ends together with the vector axis are innermost, so that its
        accumulator is in registers; of two such reductions, one must end all axes of the other.
        Loops of scans, which run in order, have no states in arrays and carry no best position in
        registers; nor do those of the latter have states in arrays.
        """
        v = self._choose_vector(nest.nest())
        nested: list[set[str]] = []
        others: list[ssa.Reduction] = []
        for reduction in nest.reductions:
            over = {*reduction.over}
            if v in over and not all(over <= o or o <= over for o in nested):
                others.append(reduction)
            elif v in over:
                nested.append(over)
        ordered = self._ordered(nest.nest(), v)
        best = [r for r in nest.reductions if r.row.positional and ordered.in_registers(r)]
        scans = any(isinstance(i, ssa.Scan) for i in nest.items)
        in_arrays = [r for r in nest.reductions if not (r in others or ordered.in_registers(r))]
        in_arrays = in_arrays if scans or best else []
        others += [r for r in best if scans and r not in others]
        self._keep_scans(nest, [*in_arrays, *others])
        if not (others or in_arrays):
            return [nest]
        # The order of additions stays that of loops that are not jammed.
        other = nest.split([*others, *in_arrays], pairs=not in_arrays)
        for one in (nest, other):
            self._collect_items(one)
        return [*self._split_reductions(nest), *self._split_reductions(other)]

    def _keep_scans(self, nest: _Group, readers: list[ssa.Reduction]) -> None:
        """Materialise the scans of a nest that some of its reductions read."""
        read = {a for r in readers for a in r.args}
        for item in reversed(nest.items):
            if item not in read:
                continue
            if isinstance(item, ssa.Scan):
                self.separate.add(item)
                if item not in self.kept:
                    self._materialise(item)
                    nest.saves.append(item)
            read.update(item.args)

    def _choose_vector(self, nest: Nest) -> str | None:
        """Return the vector axis of a nest: never a scan's axis if there are others."""
        domain = nest.order
        if not domain:
            return None
        v = (
            self.vector
            if self.vector in domain
            else self._product_axis(domain) or choose_vector_axis(self.phase, set(domain))
        )
        if self.products and v is not None:
            lane_axes = {i: c.result_axis for i, c in self.products.items()}
            v = (
                memory_axis(nest, v)
                or results_axis(nest, v)
                or carried_axis(nest, v, self.phase, lane_axes)
                or v
            )
        serial = scan_axes(nest)
        others = [a for a in domain if a not in serial]
        return v if v not in serial or serial == {v} else others[-1] if others else None

    def _product_axis(self, domain: tuple[str, ...]) -> str | None:
        """Return the axis along which the result of a contraction is contiguous in scratch."""
        lane_axes = [
            c.result_axis for c in self.products.values() if {c.m, c.result_axis} <= set(domain)
        ]
        return lane_axes[0] if lane_axes else None

    def _require(self, item: Item, nest: _Group, items: set[Item]) -> None:
        """Add an item and its operands to a nest, unless they are materialised.

        A costly item is materialised by an earlier nest instead.
        """
        if item in items:
            return
        if isinstance(item, (ssa.Reduce, ssa.Dot)):
            if item.axes & self._local_axes(item.time) and item not in self.kept:
                self._materialise(item)
            return
        if isinstance(item, ssa.WindowRead):
            items.add(item)
            self._keep_window_input(item.args[0])
            return
        if item in self.separate and (item not in nest.saves or nest.packed):
            if item not in self.kept:
                self._materialise(item)
                self._nest_for(self.levels[item] - 1, self._domain(item)).saves.append(item)
            return
        if item in self.stored and (item not in nest.saves or nest.packed):
            if item not in self.kept:
                self._materialise(item)
                self._nest_for(self.levels[item], self._domain(item)).saves.append(item)
            return
        late = self.levels[item] < nest.level and bool(item.axes & self._local_axes(item.time))
        if late and not nest.single_use and (item not in nest.saves or nest.packed):
            if item not in self.kept and self._is_costly(
                item, MAX_PACK_RECOMPUTE_CYCLES if nest.packed else MAX_RECOMPUTE_CYCLES
            ):
                self._materialise(item)
                self._nest_for(self.levels[item], self._domain(item)).saves.append(item)
            if item in self.kept:
                return
        items.add(item)
        for a in item.args:
            self._require(a, nest, items)

    def _keep_window_input(self, item: Item) -> None:
        """Materialise a value that windows read, for all positions, in an earlier nest."""
        if item not in self.kept:
            self._materialise(item)
            if not isinstance(item, (ssa.Reduce, ssa.Dot)):
                self._nest_for(self.levels[item], self._domain(item)).save_once(item)

    def _materialise(self, item: Item) -> None:
        """Record the scratch axes of an item, outer to inner."""
        if item in self.products:
            self.kept[item] = self.products[item].axes
            return
        if item in self.stored:
            self.kept[item] = self.stored[item]
            return
        axes = item.axes & self._local_axes(item.time)
        self.kept[item] = tuple(
            sorted((a for a in self.phase.axes if a in axes), key=lambda a: a == self.vector)
        )

    def _is_costly(self, item: Item, limit: float) -> bool:
        """Return whether an item costs more than a limit to recompute.

        Even if costly operands with fewer axes are materialised.
        """
        return self._cost(item, item.axes & self._local_axes(item.time), limit, {}) > limit

    def _cost(
        self, item: Item, wide: frozenset[str], limit: float, costs: dict[Item, float]
    ) -> float:
        """Return the cycles for one vector of an item, from memory and finished reductions.

        Operands without all of `unroll` axes that cost more than `limit` count as materialised.
        `costs` caches results: the number of paths grows exponentially along chains of items that
        are read twice.
        """
        cost = costs.get(item)
        if cost is None:
            cost = costs[item] = self._cost_of(item, wide, limit, costs)
        return cost

    def _cost_of(
        self, item: Item, wide: frozenset[str], limit: float, costs: dict[Item, float]
    ) -> float:
        if item in self.kept or isinstance(item, (ssa.Reduce, ssa.Dot)):
            return 0.0
        if not item.axes & self._local_axes(item.time) - self.rows:
            return 0.0
        if isinstance(item, ssa.Scan):
            return float("inf")
        if all(is_gather(item, a) for a in item.axes & self._local_axes(item.time)):
            return (
                2 * MAX_PACK_RECOMPUTE_CYCLES if wide <= item.axes else 0.0
            )  # a gather, however loops run
        own_cost = (
            SCALARS[item.op].cost
            if isinstance(item, ssa.Apply)
            else 0.5
            if isinstance(item, (ssa.Load, ssa.Cast, ssa.StateRead, ssa.WindowRead, ssa.KPair))
            else 0.0
        )
        if isinstance(item, ssa.Cast) and item.to.compute != item.to:
            own_cost = ROUND_CYCLES
        total = own_cost + sum(self._cost(a, wide, limit, costs) for a in item.args)
        return 0.0 if not wide <= item.axes and total > limit else total

    def _arranged(self, nest: Nest) -> Nest:
        """Choose the vector axis, the loop order and the unroll factor of a nest."""
        if nest.product is not None:
            packs = tuple(self._arranged_pack(pack, nest.product) for pack in nest.packs)
            nest = replace(nest, packs=packs)
        if not nest.order:
            return nest
        v, serial = self._choose_vector(nest), scan_axes(nest)
        nest = self._transposing(self._ordered(nest, v), v)
        stages = () if is_split(nest) else distribute(nest)
        visited = visited_axes(self.phase.segments[nest.time])
        pairs = nest.pairs and v not in serial
        pairs &= not any(visited & {*f.over} for f in nest.reductions)
        nest = replace(nest, stages=stages, pairs=pairs)
        unroll = STAGE_UNROLL if stages else 2 if v in serial else choose_unroll(nest, self.lanes)
        if nest.transposed and not nest.strips:
            unroll = min(unroll, transpose_side(self.lanes) // self.lanes)
        return replace(nest, unroll=unroll)

    def _ordered(self, nest: Nest, v: str | None) -> Nest:
        """Return a nest with its loops in order, given its vector axis."""
        serial, ended = scan_axes(nest), innermost_axes(nest, v)
        others = [a for a in nest.order if a != v]
        order = (
            *(a for a in others if a not in ended and a not in serial),
            *(a for a in others if a in serial and a not in ended),
            *(a for a in ended if a != v),
            *((v,) if v is not None else ()),
        )
        return replace(nest, vector=v, order=order)

    def _transposing(self, nest: Nest, v: str | None) -> Nest:
        """Return a nest with the loads that it transposes, tile by tile or in strips."""
        row, others = self.transpose_axis, [a for a in nest.order if a != v]
        plain = not (innermost_axes(nest, v) or scan_axes(nest))
        if row is not None and row in others and v == self.vector and v is not None and plain:
            transposed = (i for i in nest.items if load_transpose_axis(i, self.phase, v) == row)
            order = (*(a for a in self.phase.axes if a in others and a != row), row, v)
            return replace(nest, order=order, transposed=tuple(transposed))
        if not self.products or not any(is_gather(i, v) for i in nest.items):
            return nest
        strips = tuple(strip_loads(nest, {*self.kept}, self.local, self.lanes))
        return replace(nest, transposed=strips, strips=bool(strips))

    def _arranged_pack(self, pack: Nest, c: ProductPlan) -> Nest:
        """Choose the unroll factor and transposed loads of a packing nest, whose order is fixed."""
        unroll = c.unroll_of_packing
        fixed = pack.packed == "right" and not c.transposes_packing
        if pack.single_use or len(pack.order) != 2 or fixed:
            return replace(pack, unroll=unroll)
        other, vector = pack.order
        run_lanes = lanes_of_runs(self.block, other, self.lanes)
        transposed = tuple(i for i in pack.items if is_transposed_load(i, vector, other, run_lanes))
        if transposed:
            unroll = min(unroll, transpose_side(self.lanes) // self.lanes)
        return replace(pack, unroll=unroll, transposed=transposed)
