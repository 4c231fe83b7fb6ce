"""Predict whether a region may stream an axis, and at what cost.

To stream an axis is to process it block by block while its reductions are carried. Where rows
exceed fast memory, every further pass over them reads main memory again, and what a later pass
needs cannot be kept. The cascade (`smelt.fusion.cascade`) says how many passes the reductions need
at least. Arithmetic is counted term by term for each pass, memory as in `smelt.fusion.cost`. Block
sizes are those that `smelt.lower.stream` will choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from smelt.fusion.bitsets import bits
from smelt.fusion.cascade.block_sparsity import VisitRange, visit_range
from smelt.fusion.cascade.collect import NotCollected
from smelt.fusion.cascade.finite_masks import find_finite_mask
from smelt.fusion.cascade.states import State, inner_columns, state_row_bytes
from smelt.fusion.cascade.term import Term, width
from smelt.fusion.contraction_cost import UNBLOCKED_COST, edge_axes, unblocked_contractions
from smelt.fusion.cost import (
    OVERLAP,
    SHORT_ROW_LANE_NS,
    TRANSPOSED_LANE_NS,
    WIDE_SUM_COST,
    Model,
)
from smelt.fusion.cost_model import Cost, CostModel
from smelt.fusion.device_cost import DeviceModel
from smelt.fusion.mask_coverage import MaskCoverage
from smelt.fusion.operand_cost import GATHERED_NS, gathered_reads, summed_axes
from smelt.fusion.region import Position, Region
from smelt.fusion.schedule_model import ScheduleModel
from smelt.fusion.stream_axes import (
    DerivedStream,
    derive_stream,
    has_products,
    streamable,
)
from smelt.fusion.trace import STEP_COST, is_window_term
from smelt.graph.walk import reachable
from smelt.machine.target import Level
from smelt.machine.tiling import rows_axis
from smelt.ops.combine import COMBINES
from smelt.ops.cost import DATA_DEPENDENT_SHARE, MOVE_COST
from smelt.ops.scalar import SCALARS
from smelt.types.expr import Expr, evaluate, may_overlap

MASKING = 0.1
"""Share of the cost of masks and positions that remains in a stream.

Blocks that they rule out are not visited; in others they are mostly not computed. Parts that do not
vary along the rows cost nothing.
"""
PACKED_STREAM_FACTOR = 1.04
"""Factor on the cost of streamed contractions, whose blocks are packed one by one."""
SLOW_COLUMNS = 4.0
"""Slowdown of double-precision elements beyond their size where column sums are in memory."""


def cheapest_stream(model: CostModel, region: Region, *, beyond: bool) -> Cost | None:
    """Return the least cost of a region with one of its reduced axes streamed.

    None if none can be. None too if a single block covers every axis, unless a row exceeds fast
    memory (`beyond`), a mask restricts the blocks, or a contraction consumes what is computed in
    one pass.
    """
    best: Cost | None = None
    if region.scanned or region.windows:
        return None
    window_terms = [t for t in _operand_terms(model, region) if is_window_term(t)]
    if any(map(may_overlap, window_terms)) or (window_terms and not beyond):
        return None  # tasks are blocks of windows, whose short rows are kept
    masked, products = model.is_masked(region), has_products(model, region)
    short, short_consumed = model.tiling.short_stream, model.tiling.short_consumed_stream
    for a in streamable(model, region):
        n = model.extents[region.axes[a]]
        is_long = not products or n > short
        is_consumed = n > short_consumed and _is_consumed(model, region, a)
        relieves_memory = beyond and (not products or n > short_consumed)
        is_stored_along = any(region.masks[u][0] >> a & 1 for u in bits(region.stored))
        # results along the axis are stored at every position
        may_skip = masked and not is_stored_along
        if not (relieves_memory or may_skip or is_long or is_consumed):
            continue
        try:
            prediction = _predict(model, region, a)
        except NotCollected:
            continue
        if not prediction.cascade.states:
            continue  # nothing is carried: the reductions belong to computed positions
        is_useful = (
            relieves_memory
            or (is_long and prediction.visits > 1)
            or (may_skip and prediction.is_cut())
        )
        cost = prediction.cost() if is_useful or is_consumed else None
        if cost is not None and not is_useful and cost.times > 1:
            continue  # as many passes over a row as without a stream
        if cost is not None and (best is None or cost.objective_ns < best.objective_ns):
            best = cost
    return best


def _is_consumed(model: CostModel, region: Region, a: int) -> bool:
    """Return whether a contraction over an axis reads other reductions."""
    return any(
        model.units.unit(u).trace.dots and ends >> a & 1 and region.levels[u] > 1
        for u, ends in region.reduced_axes.items()
    )


def stream_cost(model: CostModel, region: Region, a: int) -> Cost:
    """Return the cost with axis number `a` streamed, or without if no states fit."""
    return _predict(model, region, a).cost() or model.cost(region)


def _predict(model: CostModel, region: Region, a: int) -> _Prediction:
    return _Prediction(model, region, a, derive_stream(model.units, region, a))


def _operand_terms(model: CostModel, region: Region) -> Iterator[int | Expr]:
    """Iterate over the index terms at which contractions read their operands."""
    for u in region.reduced_axes:
        unit = model.units.unit(u)
        if unit.trace.dots:
            yield from (t for edge in unit.edges for t in edge.terms)


class _Prediction:
    """Predicts the cost of one streamed axis."""

    def __init__(
        self, model: CostModel, region: Region, a: int, derived_stream: DerivedStream
    ) -> None:
        self.model, self.region, self.a, self.made = model, region, a, derived_stream
        self.found, self.cascade = collected, cascade = (
            derived_stream.collected,
            derived_stream.cascade,
        )
        self.name = f"a{a}"
        self.sizes = {f"a{k}": model.extents[e] for k, e in enumerate(region.axes)}
        inside = inner_columns(
            cascade.states,
            collected.roots.values(),
            self.name,
            self.sizes,
            model.tiling.max_stream_sums,
        )
        self.grid = {f"a{k}" for k in bits(region.grid & ~(1 << a))} - inside
        self.cut: dict[str, int] = {}
        """Grid axes of which a task takes a block, with the block's size."""
        self.is_single = all(t.dtype.itemsize < 8 for t in collected.loads if t.dtype.is_float)
        self.extra = self._extra_reductions()
        self.block = self._choose_blocks()
        self.visits = -(-self.sizes[self.name] // self.block)
        blocks = {**self.cut, self.name: self.block}
        self.in_task = {n: min(size, blocks.get(n, size)) for n, size in self.sizes.items()}
        self.lanes = _LaneUse(model, region, a, self.block)
        self.parts = self._split_parts()
        self.is_columns = (
            bool(self.cut) and self.block == model.tiling.column_rows and self.parts == 1
        )
        self.held = self._visited_one_by_one()
        self.still = frozenset(self.grid) - frozenset(self.cut) | self.held
        self.slow = self._unblocked()
        in_task = self.lanes.along in self.sizes and self.lanes.along not in {*self.grid, *self.cut}
        self.empty = (
            self.lanes.lane_overhead(self._task_elements([self.lanes.along])) if in_task else 1.0
        )
        self.shares = MaskCoverage(self.sizes, {**self.cut, self.name: self.block}, model.hints)

    def cost(self) -> Cost | None:
        """Return the cost, None where the states do not fit."""
        model, region = self.model, self.region
        states = self._state_bytes()
        level = model.state_level(states, blocked=bool(self.cut))
        if level is None:
            return None
        passes, self.packing = list(self._passes()), 0.0
        if isinstance(model, DeviceModel):
            return model.stream_cost(region, self.a, states, len(passes))
        whole, stream_parts = self._tasks(len(passes))
        task_count = whole * stream_parts * self.parts
        visited = list(map(self._visited_share, passes))
        outside = self._outside_passes(passes)
        seen_shares = list(map(self._seen_shares, passes))
        work = sum(map(self._work_ns, passes, visited, seen_shares)) + self._work_ns(
            outside, 1.0, {}, 1
        )
        work += sum(map(self._evaluations, gathered_reads(region))) * len(passes) * GATHERED_NS
        work += self.lanes.transposed_ns(len(passes))
        read = 0
        floor = model.read_values_ns(region.loads, 1)
        threads = self.cpu.threads(work, floor, task_count)
        touch = rereads = 0.0
        read_values: set[int] = set()
        for terms, share in zip((*passes, outside), (*visited, 1.0), strict=True):
            for t in terms:
                if t in self.found.loads:
                    v = self.found.loads[t][0]
                    first, again = self._read(t, v, threads, v not in read_values)
                    touch, rereads = touch + first, rereads + again * share
                    read += 0 if v in read_values else self._distinct(t, v)
                    read_values.add(v)
        rereads += self._carrying(level, states, task_count, threads)
        written = sum(model.nbytes[u] for u in bits(region.stored))
        touch += model.write_values_ns(bits(region.stored), threads)
        has_dots = any(model.units.unit(u).trace.dots for u in region.reduced_axes)
        cost = self.cpu.cost_of(
            work,
            threads,
            touch,
            rereads,
            launches=2 if self.parts > 1 else 1,
            read=read,
            written=written,
            tasks=task_count,
            row_bytes=states,
            kept_bytes=states,
            times=len(passes),
            split=self.parts > 1,
            stream=self.a,
            packing=self.packing / threads,
        )
        if has_dots and any(self.sizes[a] > model.tiling.thin for a in self.cut):
            cost.objective_ns *= PACKED_STREAM_FACTOR
        return cost

    @property
    def cpu(self) -> Model:
        """Return the model whose terms are counted here; those of others price kernels."""
        assert isinstance(self.model, Model)
        return self.model

    def is_cut(self) -> bool:
        """Return whether masks restrict what is visited, and no result is stored along the axis.

        Then even a single block may save work.
        """
        states = self.cascade.states
        if not states or any(s.pass_index for s in states):
            return False
        visited = self._visible(states)
        return any(t is not None for t in (visited.start, visited.stop, visited.position_is_used))

    def _visible(self, states: Sequence[State]) -> VisitRange:
        """Return the part of the axis that the pass of some states visits."""
        key = tuple(s.block for s in states), self.still, bool(self.held)
        visited = self.made.visit_cache.get(key)
        if visited is None:
            terms, pass_index = self.found.terms, states[0].pass_index
            visited = visit_range(terms, states, self.name, self.still)
            finite = find_finite_mask(
                terms, self.cascade.states, pass_index, visited, self.name, self.still
            )
            if finite is not None and not self.held:
                visited = finite.visited  # fully masked rows are rare: the fallback is not charged
            self.made.visit_cache[key] = visited
        return visited

    def _extra_reductions(self) -> set[Term]:
        """Return double-precision reductions beyond one for each reduction of the region."""
        seen: set[Term] = set()
        extra: set[Term] = set()
        for s in self.cascade.states:
            if s.reduction in seen and s.dtype.bits > s.block.args[0].dtype.bits:
                extra.add(s.block)
            seen.add(s.reduction)
        return extra

    def _split_parts(self) -> int:
        """Return the number of parts that the axis is split into over tasks.

        As in `smelt.lower.stream`: only for one pass of independent reductions and few tasks
        otherwise.
        """
        states, size = self.cascade.states, self.sizes[self.name]
        if not states or any(
            s.pass_index != states[0].pass_index or not s.merges_alone(self.name) for s in states
        ):
            return 1
        if any(self.model.units.unit(u).trace.dots for u in self.region.reduced_axes):
            return 1
        if self._is_stored_along():
            return 1
        work, tiling = prod(self.sizes.values()), self.model.tiling
        if (
            prod(self._tasks(1)) >= tiling.min_tasks
            or size < tiling.max_parts
            or work < tiling.split_elements
        ):
            return 1
        return self.lanes.order.part_count(self.a)

    # ---- blocks --------------------------------------------------------------------------------

    def _choose_blocks(self) -> int:
        """Block the grid; return how many positions of the streamed axis one block takes."""
        units, tiling = self.model.units, self.model.tiling
        row_axis = rows_axis(
            self._row_axes(), [n for n in self.sizes if n in self.grid], self.sizes
        )
        if row_axis is not None:
            is_consumed = any(
                self.model.units.unit(u).trace.dots and self.a in ends
                for u, ends in self.region.reduced_axis_order.items()
            )
            carried = state_row_bytes(self.cascade.states, self.sizes, self.grid)
            self.cut[row_axis], block = tiling.stream_block(carried, is_contracted=is_consumed)
            return block
        in_task = {n: s for n, s in self.sizes.items() if n not in self.grid}
        row_elements = width(self.made.all_terms, self.name, in_task)
        if any(units.unit(u).trace.dots for u in self.region.reduced_axes):
            return tiling.stream_task_rows(row_elements)
        rank = max(
            (len(p) for positions in self.region.loads.values() for p in positions), default=0
        )
        fastest = {
            f"a{p[-1]}"
            for positions in self.region.loads.values()
            for p in positions
            if p and len(p) == rank
        }
        last_axis = max(self.grid, key=lambda n: int(n[1:]), default="")
        if self.name in fastest or last_axis not in fastest:
            return tiling.stream_block_rows(row_elements)
        self.cut[last_axis] = tiling.stream_columns
        return tiling.column_rows

    def _row_axes(self) -> Iterator[set[str]]:
        """Iterate over axes of only one operand, in contractions along the streamed axis."""
        region, streamed = self.region, 1 << self.a
        for u, over in region.reduced_axes.items():
            unit = self.model.units.unit(u)
            if not unit.trace.dots or len(unit.edges) != 2:
                continue
            sides = [edge_axes(region, u, edge) for edge in unit.edges]
            for one, other in (sides, sides[::-1]):
                if over & streamed or other & ~one & streamed:
                    yield {f"a{k}" for k in bits(one & ~other & ~streamed)}

    def _task_elements(self, axes: Iterable[str]) -> int:
        """Return the elements along axes that one task holds at a time."""
        count = 1
        for n in axes:
            if n in self.cut:
                count *= min(self.sizes[n], self.cut[n])
            elif n == self.name:
                count *= min(self.sizes[n], self.block)
            elif n not in self.grid:
                count *= self.sizes[n]
        return count

    def _evaluations(self, axes: frozenset[str]) -> float:
        """Return how often something along axes is computed by all tasks together."""
        count = 1.0
        for n in axes | self.grid:
            if n in axes or n not in self.cut:
                count *= self.sizes[n]
            else:
                count *= -(-self.sizes[n] // self.cut[n])
        return count

    def _tasks(self, rereads: int) -> tuple[int, int]:
        """Return the tasks without parts, and the parts of a split stream with contractions."""
        tasks, tiling = int(self._evaluations(frozenset())), self.model.tiling
        dots = any(state.block.kind == "dot" for state in self.cascade.states)
        if not dots or rereads > 1 or not tiling.splits_stream((tasks,), self.visits):
            return tasks, 1
        return tasks, int(evaluate(tiling.stream_parts(self.visits, tasks), {}))

    def _is_stored_along(self) -> bool:
        """Return whether results are stored at every position of the axis."""
        stored = bits(self.region.stored)
        return any(m >> self.a & 1 for u in stored for m in self.region.masks.get(u, ()))

    def _carrying(self, level: Level, states: int, tasks: int, threads: int) -> float:
        """Return the nanoseconds of moving states that exceed a core's own caches.

        In each block they are loaded and stored, and so is the contribution that is added; outside
        of the pass they are set and read once.
        """
        if level in ("l1", "l2"):
            return 0.0
        moved_bytes = states * (4.0 * self.visits + 2.0) * tasks
        return moved_bytes * self.model.ns_per_byte(level, "copy", threads)

    def _state_bytes(self) -> int:
        states = self.cascade.states
        return sum(self._task_elements(s.block.axes) * s.dtype.itemsize for s in states)

    # ---- passes --------------------------------------------------------------------------------

    def _passes(self) -> Iterator[list[Term]]:
        """Iterate over the terms that each pass evaluates, including the reductions of blocks."""
        root_passes = {
            u: self.cascade.pass_of(t) for u, t in self.found.roots.items() if self.name in t.axes
        }
        for pass_index in sorted(
            {s.pass_index for s in self.cascade.states} | set(root_passes.values())
        ):
            roots = [self.found.roots[u] for u, k in root_passes.items() if k == pass_index]
            states = [s for s in self.cascade.states if s.pass_index == pass_index]
            merged_alone = [s for s in states if self.parts > 1 and s.best_state is not None]
            blocks = [s.reduction if s in merged_alone else s.block for s in states]
            carries = [s.carry for s in states if s.carry and s not in merged_alone]
            evaluated = dict.fromkeys([*blocks, *carries, *roots])
            pending = [*(a for b in blocks for a in b.args), *carries, *roots]
            while pending:
                t = pending.pop()
                if not t.is_reduction:  # reductions of earlier passes are finished
                    evaluated[t] = None
                    pending += [a for a in t.args if a not in evaluated]
            yield list(evaluated)

    def _outside_passes(self, passes: Iterable[list[Term]]) -> list[Term]:
        """Return the terms that no pass evaluates: computed once from finished reductions."""
        in_passes = {t for terms in passes for t in terms}

        def operands(t: Term) -> tuple[Term, ...]:
            return (self.cascade.finals[t],) if t.is_reduction else t.args

        visited = reachable(self.found.roots.values(), operands)
        return [t for t in visited if t not in in_passes and not t.is_reduction]

    def _visited_share(self, terms: list[Term]) -> float:
        """Return the share of the axis that one pass visits, averaged over some tasks."""
        states = [s for s in self.cascade.states if s.block in terms]
        if not states or any(t in terms for t in self.found.roots.values()):
            return 1.0
        visited = self._visible(states)
        if visited.start is None and visited.stop is None and visited.position_is_used is not None:
            return DATA_DEPENDENT_SHARE
        return self.shares.mean_share(visited.start, visited.stop, self.name)

    def _seen_shares(self, terms: list[Term]) -> dict[str, float]:
        """Return the shares of other axes that the blocks of one pass read."""
        others = [n for n in self.sizes if n not in self.grid and n != self.name]
        return self.shares.shares_read(
            self.found.terms,
            dict.fromkeys(terms),
            self.cascade.states,
            self.found.roots.values(),
            self.name,
            others,
            self.still,
        )

    def _work_ns(
        self, terms: list[Term], share: float, seen: dict[str, float], visits: int = 0
    ) -> float:
        """Return the nanoseconds of one pass on one core.

        The pass visits a share of the axis and reads shares of others (`visited`). What does not
        vary along the axis is computed once per block, in each of `visits` blocks (default: all).
        """

        def times(axes: frozenset[str]) -> float:
            total_ns = self._evaluations(axes) * (self.empty if self.lanes.along in axes else 1.0)
            if self.name not in axes:
                return total_ns * (visits or self.visits)
            return total_ns * prod(p for n, p in seen.items() if n in axes)

        total_ns = 0.0
        for t in terms:
            axes, cost = t.axes, 0.0
            if t not in self.slow:
                loads = self.found.loads
                packing = self.cpu.packing_ns(t, self.sizes, self.still, loads, times)
                self.packing, total_ns = self.packing + packing, total_ns + packing
            match t.kind:
                case "apply":
                    cost = SCALARS[t.op].cost
                case "cast":
                    cost = MOVE_COST if t.dtype.bits < 64 else WIDE_SUM_COST / 2
                case "reduce":
                    axes, cost = axes | set(t.over), SCALARS[COMBINES[t.op].scalar].cost
                    cost += WIDE_SUM_COST if t in self.extra else 0.0
                case "dot":
                    axes = axes | set(t.over)
                    cost = UNBLOCKED_COST if t in self.slow else STEP_COST
                case "opaque" if isinstance(t.value, tuple) and t.value[0] == "reduce":
                    reduction, axes = COMBINES.get(t.value[1]), axes | set(t.value[2])
                    step = UNBLOCKED_COST if t in self.slow else STEP_COST
                    cost = step if reduction is None else SCALARS[reduction.scalar].cost
                    cost += WIDE_SUM_COST if self._is_short_sum(t) else 0.0
                case _:
                    pass
            if cost:
                itemsize = max(a.dtype.itemsize for a in (t.args or (t,)))
                # Integer sums are work; positions, which an arg-reduction carries, count as masks.
                operands = (
                    t.args if t.kind in ("apply", "cast") else t.args[1:] * (t.kind == "reduce")
                )
                if not all(a.dtype.is_float for a in operands):
                    cost *= MASKING if axes & set(self.cut) else 0.0
                if itemsize == 8 and t.dtype.is_float and self.is_single and self.is_columns:
                    cost *= SLOW_COLUMNS
                total_ns += self.cpu.target.compute_ns(cost, times(axes), itemsize)
        return total_ns * share

    def _is_short_sum(self, t: Term) -> bool:
        """Return whether a term sums few terms, each in double precision, in every lane."""
        _, combine, over = t.value
        return (
            combine in COMBINES
            and COMBINES[combine].wide
            and t.args[0].dtype.is_float
            and t.args[0].dtype.itemsize < 8
            and (self.lanes.order.has_contractions or self.lanes.along not in over)
            and prod(self.sizes[n] for n in over) <= self.model.tiling.short_row
        )

    def _unblocked(self) -> set[Term]:
        """Return the contractions that run as plain reductions instead of blocked."""
        products: dict[Term, tuple[frozenset[str], frozenset[str]]] = {}
        for t in self.made.all_terms:
            if (over := summed_axes(t)) and len(t.args) == 2:
                left_axes, right_axes = (a.axes - {*over} for a in t.args)
                products[t] = left_axes, right_axes
        fixed_axes = self.still | {self.name} if self.block == 1 else self.still
        order = [f"a{k}" for k in range(len(self.region.axes))]
        numbers = unblocked_contractions(
            [*products.values()], self.grid, self.grid | fixed_axes, order
        )
        return {t for k, t in enumerate(products) if k in numbers}

    def _visited_one_by_one(self) -> frozenset[str]:
        """Return shorter axes whose positions are visited one at a time.

        `smelt.lower.mask_bounds` does so.
        """
        states, name = self.cascade.states, self.name
        is_simple = all(s.carry is None and s.pass_index == 0 for s in states)
        if not states or not is_simple or not any(s.block.kind == "dot" for s in states):
            return frozenset()
        stored_along = [t.axes for t in self.found.roots.values() if name in t.axes]
        return frozenset(
            n
            for n, size in self.sizes.items()
            if n not in (name, *self.grid)
            and size <= self.sizes[name]
            and all({n, name} <= {*s.block.over} for s in states)
            and all(n in axes for axes in stored_along)
        )

    # ---- memory --------------------------------------------------------------------------------

    def _distinct(self, t: Term, v: int) -> int:
        elements = prod(self.sizes[n] for n in t.axes)
        return min(elements, self.model.elements[v]) * self.model.itemsize[v]

    def _read(self, t: Term, v: int, threads: int, first: bool) -> tuple[float, float]:
        """Return the nanoseconds of reading a value in one pass: first touch, and rereads."""
        model = self.model
        nbytes = self._distinct(t, v)
        row_bytes = model.itemsize[v]
        for n in t.axes - self.grid:
            row_bytes *= self.sizes[n]
        level = model.machine.level(row_bytes * threads, threads)
        reread_ns = 0.0
        moved_bytes = self._evaluations(t.axes) * model.itemsize[v] if t.axes else 0.0
        if moved_bytes > nbytes and level != "l1":
            reread_ns = (moved_bytes - nbytes) * model.ns_per_byte(level, "read", threads)
        if first:
            first_ns = model.read_ns(v, nbytes, threads)
            return first_ns, max(0.0, reread_ns - OVERLAP * first_ns)
        if level == "dram":
            return 0.0, reread_ns + model.read_ns(v, nbytes, threads)
        return 0.0, reread_ns + nbytes * model.ns_per_byte(level, "read", threads)


class _LaneUse:
    """The vector lanes in blocks of `block` positions of a region's axis `a`.

    Vectors run along the axis of most contiguous accesses. If that axis is short, or the block is,
    most lanes are idle, and arrays that are contiguous along another axis are accessed with a cache
    line per lane.
    """

    def __init__(self, model: CostModel, region: Region, a: int, block: int) -> None:
        self.model, self.region, self.a, self.block = model, region, a, block
        self.order = ScheduleModel(model.units, region, model.extents, model.tiling)
        self.along = f"a{self.order.vector.bit_length() - 1}"
        """The axis that vectors run along."""

    def lane_overhead(self, task_elements: int) -> float:
        """Return the lanes per lane that has an element, without contractions.

        `task_elements` are the elements of the axis that a task holds at once.
        """
        if self.order.has_contractions or self.order.lane_axis:
            return 1.0
        size, lanes = max(task_elements, 1), self.model.lanes
        return -(-size // lanes) * lanes / size

    def transposed_ns(self, passes: int) -> float:
        """Return the nanoseconds of elements that lanes load or store with a cache line each."""
        if self.order.has_contractions:
            return 0.0  # packing transposes operands anyway
        model, region = self.model, self.region
        if self.order.lane_axis:  # lanes run along the streamed axis: tasks take one position of it
            return (
                SHORT_ROW_LANE_NS
                * passes
                * sum(
                    self.order.volume(mask | region.grid)
                    for v, positions in region.loads.items()
                    for position, mask in zip(positions, region.load_masks[v], strict=True)
                    if self.a in position[:-1]
                )
            )
        loaded = sum(
            self.order.volume(mask)
            for v, positions in region.loads.items()
            for position, mask in zip(positions, region.load_masks[v], strict=True)
            if self._is_far(position)
        )
        stored = [u for u in bits(region.stored) if self._is_far(region.positions[u][0])]
        return TRANSPOSED_LANE_NS * (loaded * passes + sum(model.elements[u] for u in stored))

    def _is_far(self, position: Position) -> bool:
        """Return whether each lane accesses a cache line of its own.

        Vectors run along another axis than the position's last, or each block has too few positions
        of that one to fill a vector.
        """
        order = self.order
        if not order.vector >> self.a & 1 or self.block >= self.model.lanes:
            return order.is_transposed(position)
        others = self.region.all_axes & ~self.region.grid & ~order.vector
        other_terms = [t for t in position if isinstance(t, int) and t >= 0 and others >> t & 1]
        return position[-1:] == (self.a,) and bool(other_terms)
