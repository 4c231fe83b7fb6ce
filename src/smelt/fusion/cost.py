"""Predict the time of a region on a CPU by a roofline model.

    total = launches + overlap(arithmetic, memory) with
    arithmetic = work of every unit at every position, in every pass, over the cores with tasks
    memory     = first touch of each array at the cache level where it rests
               + sweeps: rereads, at the level that holds the data between two passes
               + scratch: expensive values kept for a later pass
               + partials: results of a split reduction for its merge
               + streams: the cost of accessing too many arrays at once

Rates come from the `Target`, sizes are those of the hints. The constants below belong to the model;
those of the schedule are in `smelt.fusion.schedule_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from smelt.fusion.bitsets import Hints, bits
from smelt.fusion.cascade.term import Term as StreamTerm
from smelt.fusion.contraction_cost import (
    UNBLOCKED_COST,
    contraction_start_ns,
    converting_units,
    dot_factors,
    partial_tiles_ns,
    patches_ns,
)
from smelt.fusion.cost_model import CHARGED, Cost, CostModel, Loads
from smelt.fusion.operand_cost import GATHERED_NS, is_gathered, region_packing_ns, term_packing_ns
from smelt.fusion.range_outputs import shares_of_ranges
from smelt.fusion.region import Position, Region
from smelt.fusion.schedule_model import ScheduleModel
from smelt.fusion.trace import Term
from smelt.fusion.units import AT_ZERO, Unit, Units
from smelt.machine.target import Kind, Level, Target
from smelt.types.expr import Expr, Index, axis, evaluate, split_constant

OVERLAP = 0.95
"""Share of the shorter of arithmetic and memory time that hides behind the longer.

The constant is XLA's.
"""
INLINE_NS = 8_000.0
"""Maximum work, in nanoseconds, of a kernel in the calling thread (the runtime's limit)."""
INLINE_LAUNCH_NS = 400.0
"""Charge for a kernel that starts in the calling thread.

Its code has to be loaded into the cache. A plan made for a small first call also serves all others.
"""
INLINE_START_NS = 80.0
"""Time to start one more kernel of a call that is repeated."""
HARDWARE_STREAMS = 20
"""Maximum arrays accessed at once that hardware prefetchers keep track of."""
ACROSS = 1.5
"""Cost of reading an array across its rows, in blocks, relative to along them."""
TRANSPOSED_LANE_NS = 1.5
"""Nanoseconds per element that a lane loads from, or stores to, a cache line of its own.

Applies in every pass where reductions leave no tiles to transpose.
"""
SHORT_ROW_LANE_NS = 0.03
"""Nanoseconds per element that lanes load from short rows, one row per lane.

Full cache lines are read and shuffled.
"""
FEW_NS = 20.0
"""Nanoseconds per row of a product that is reduced over few columns.

The result waits for a partially filled vector.
"""
SMALL_RESULT_COLUMNS = 16
"""Maximum columns for which `FEW_NS` applies."""
VISIT_NS = 0.8
"""Nanoseconds to examine a scatter's target position, and as many to start an update that applies.
"""
NEARBY_POSITIONS = 16
"""Largest distance of two reads, in positions, at which they share lines of the L1 cache."""
SERIAL = 32
"""Time of a step of a scan along a row, relative to a vectorised step: each waits for the last."""
WIDE_SUM_COST = 3.0
"""Cost of a single-precision term that a sum converts to double precision: conversions, and twice
as many steps. A sum along vectors adds several terms in their own type first."""
SINGLE_POSITION = (False,)
"""The reuse flags of a single position."""
STATE_SHARE = 0.5
"""Share of the second-level cache that the states of a block of rows may fill."""
PARTIAL_BYTES = 8
"""Bytes of a partial result, which is kept in double precision."""


class Model(CostModel):
    """The cost model of a CPU.

    `extra_bytes` are touched by a call in addition to the graph's inputs and outputs.
    """

    def __init__(self, units: Units, target: Target, hints: Hints, extra_bytes: int = 0) -> None:
        lanes = max(target.vector_bytes // 4, 1)
        super().__init__(units, target, hints, extra_bytes, max(1, target.cores), lanes)
        self.target = target
        self.converting: dict[int, int] = {}
        """Contractions of integers by dot-product instructions, and the units they need for it."""
        factors = dot_factors(target)
        self.dot_factor = float(4 // factors[0].itemsize) if factors else 1.0
        """Multiply-adds of short integers in an instruction, relative to those of full ones."""
        for unit in units.units if factors else ():
            if (converting := converting_units(units, unit, factors)) is not None:
                self.converting[unit.number] = converting
        self.step_ns = [0.0] * len(units.inputs)
        self.step_ns += [self._step(unit) for unit in units.units]
        self._rates: dict[tuple[Level, Kind, int], float] = {}

    def _step(self, unit: Unit) -> float:
        """Return the nanoseconds of one element or reduction step on one core."""
        width = unit.node.type.dtype.compute.itemsize
        for e in unit.edges:
            width = max(width, self.units.values[e.producer].type.dtype.compute.itemsize)
        step = self.target.compute_ns(unit.trace.cost, 1.0, min(width, 8))
        step /= self.dot_factor if unit.number in self.converting else 1.0
        return step * SERIAL if 0 <= unit.scan_axis == unit.rank - 1 else step

    # ---- parts ---------------------------------------------------------------------------------

    def ns_per_byte(self, level: Level, kind: Kind, threads: int) -> float:
        """Return the inverse bandwidth; writes to main memory may be non-temporal."""
        key = level, kind, threads
        ns = self._rates.get(key)
        if ns is None:
            rate = self.target.bandwidth(level, kind, threads)
            if level == "dram" and kind == "write":
                rate = max(rate, self.target.nt_store_gbs)
            ns = self._rates[key] = 1.0 / rate
        return ns

    def call_cost(self, unit: Unit) -> Cost:
        """Return the cost of a library call: its traffic and its start.

        The rest is the same in every plan.
        """
        operands = [e.producer for e in unit.edges]
        read = sum(self.nbytes[v] for v in operands)
        touch = self.read_values_ns(operands, self.cores) + self.write_ns(unit.number, self.cores)
        launch = self.target.dispatch_ns
        return Cost(
            launch + touch,
            launch + touch,
            launch=launch,
            touch=touch,
            tasks=self.cores,
            read=read,
            written=self.nbytes[unit.number],
        )

    def map_cost(self, unit: Unit) -> Cost:
        """Return the cost of an elementwise operator on values of its own shape."""
        u = unit.number
        operands = list(bits(self.units.operands[u]))
        work = self.step_ns[u] * self.elements[u]
        read = sum(self.nbytes[v] for v in operands)
        serial_ns = self.read_values_ns(operands, 1) + self.write_ns(u, 1)
        tasks = -(-self.elements[u] // self.tiling.map_block)
        threads = 1 if work + serial_ns < INLINE_NS else max(min(tasks, self.cores), 1)
        touch = self.read_values_ns(operands, threads) + self.write_ns(u, threads)
        return self.cost_of(work, threads, touch, read=read, written=self.nbytes[u], tasks=tasks)

    def scatter_cost(self, region: Region) -> Cost:
        """Return the cost of a scatter kernel, which applies one update after another."""
        region.work, tasks, random = _scatter_work(self, region)
        inline = region.work < INLINE_NS
        threads = 1 if inline else min(tasks, self.cores)
        read = self.read_bytes(region)
        touch = sum(self.read_ns(v, nbytes, threads) for v, nbytes in read.items())
        u = region.stored.bit_length() - 1
        touch += self.write_ns(u, threads)
        rereads = random * self.ns_per_byte(self.target.level(self.nbytes[u], 1), "copy", threads)
        return self.cost_of(
            region.work,
            threads,
            touch,
            rereads,
            read=sum(read.values()),
            written=self.nbytes[u],
            tasks=tasks,
        )

    # ---- questions of the search and of streams --------------------------------------------------

    @property
    def joined_start_ns(self) -> float:
        """Return the charge for a kernel that starts in the calling thread."""
        return INLINE_LAUNCH_NS

    def least_ns(
        self, work: float, one_core: float, all_cores: float, full_ns: float, kernels: int
    ) -> float:
        """Return the least objective: in the calling thread, or on all cores."""
        start = min(self.target.launch_ns, INLINE_LAUNCH_NS)
        threaded = self.target.launch_ns + (kernels - 1) * start
        # a kernel outside of the calling thread takes at least INLINE_NS, possibly by recomputing
        threaded += max(_charged(work / self.cores, all_cores), (INLINE_NS - full_ns) / self.cores)
        if kernels == 1 and (work >= INLINE_NS or work + one_core >= INLINE_NS):
            return threaded
        return min(threaded, kernels * INLINE_LAUNCH_NS + _charged(work, one_core))

    def state_level(self, nbytes: int, *, blocked: bool) -> Level | None:
        """Return the cache level of states, None if they do not fit."""
        level = self.target.level(nbytes)
        if blocked and nbytes > self.target.l2_bytes * STATE_SHARE:
            return None  # full rows of a result are carried: storing them is as good
        if level not in ("l1", "l2"):
            level = self.target.level(nbytes * self.cores)  # each core has its own states
        return None if level == "dram" else level

    def packing_ns(
        self,
        t: StreamTerm,
        sizes: Mapping[str, int],
        still: frozenset[str],
        loads: Loads,
        times: Callable[[frozenset[str]], float],
    ) -> float:
        """Return the time of packing the operands of a contraction into panels."""
        return term_packing_ns(self.target, t, sizes, still, loads, times, self.units.constants)

    def threads(self, work: float, floor: float, tasks: int) -> int:
        """Return one thread for little work, else one for each task."""
        return 1 if work < INLINE_NS and work + floor < INLINE_NS else min(tasks, self.cores)

    def cost_of(
        self,
        work: float,
        threads: int,
        touch: float,
        sweeps: float = 0.0,
        scratch: float = 0.0,
        partials: float = 0.0,
        streams: float = 0.0,
        *,
        launches: int = 1,
        **numbers: Any,
    ) -> Cost:
        """Return a kernel's cost by its arithmetic on one core and its memory terms.

        Its objective differs from its time in how much of the shorter hides.
        """
        launch = launches * (self.target.launch_ns if threads > 1 else INLINE_LAUNCH_NS)
        arithmetic = work / threads
        memory = touch + sweeps + scratch + partials + streams
        hidden = min(arithmetic, memory)
        total = launch + arithmetic + memory - OVERLAP * hidden
        objective_ns = total + (OVERLAP - CHARGED) * hidden
        terms = (launch, arithmetic, touch, sweeps, scratch, partials, streams)
        return Cost(total, objective_ns, *terms, **numbers)

    # ---- total ---------------------------------------------------------------------------------

    def cost(self, region: Region) -> Cost:
        """Return the time of a region by term. Sets its `work` unless that is known."""
        if region.members & self.units.calls:
            return self.call_cost(self.units.unit(region.members.bit_length() - 1))
        if region.members & self.units.scatters:
            return self.scatter_cost(region)
        schedule = ScheduleModel(self.units, region, self.extents, self.tiling)
        schedule.assign_nests()
        if region.work < 0:
            start_ns = (
                contraction_start_ns(self.units, region, schedule.volume)
                if schedule.has_contractions
                else 0.0
            )
            region.work = schedule.work(self._steps(region, schedule), UNBLOCKED_COST, start_ns)
            region.work *= schedule.lane_overhead(self.lanes)
            if schedule.has_contractions:
                fixed = region.grid & ~schedule.cut_axes
                region.packing = region_packing_ns(
                    self.target,
                    self.units,
                    region,
                    schedule.sizes,
                    fixed,
                    schedule.evaluations,
                    depthwise=schedule.depthwise,
                )
                region.work += region.packing

                def work(u: int, axes: int) -> float:
                    return self.step_ns[u] * schedule.evaluations(axes)

                region.work += partial_tiles_ns(
                    self.units,
                    region,
                    schedule.sizes,
                    self.target.vector_bytes,
                    self.tiling.thin,
                    work,
                )
                if not schedule.depthwise:
                    region.work += patches_ns(self.units, region, work)
        tasks = schedule.tasks()
        floor = self.read_values_ns(region.loads, 1) + self.write_values_ns(bits(region.stored), 1)
        threads = self.threads(region.work, floor, tasks)
        traffic = _Traffic(self, region, schedule, threads)
        partials = self._partials(region, schedule)
        count = len(region.loads) + region.stored.bit_count()
        streams = max(0.0, count / HARDWARE_STREAMS - 1.0) * traffic.touch
        return self.cost_of(
            region.work + traffic.lanes_ns + FEW_NS * _rows_of_few(schedule),
            threads,
            traffic.touch,
            traffic.sweeps,
            traffic.scratch,
            partials,
            streams,
            launches=2 if schedule.split else 1,
            read=traffic.read,
            written=traffic.written,
            tasks=tasks,
            row_bytes=traffic.row,
            kept_bytes=traffic.kept,
            times=max(map(max, schedule.reads_by_nest.values()), default=1),
            split=bool(schedule.split),
            packing=region.packing / threads,
        )

    def _steps(self, region: Region, schedule: ScheduleModel) -> Sequence[float]:
        """Return the nanoseconds of one step of each unit.

        For units computed only for results that are ranges, averaged over all their positions.
        """
        short = schedule.short_sums() if region.reduced_axes else ()
        full = [
            u
            for u, converting in self.converting.items()
            if region.members >> u & 1 and converting & ~region.members
        ]
        if not region.parts and not full and not short:
            return self.step_ns
        step_ns = list(self.step_ns)
        for u in short:
            step_ns[u] += self.target.compute_ns(WIDE_SUM_COST, 1.0, self.itemsize[u])
        for u in full:
            step_ns[u] *= self.dot_factor
        if not region.parts:
            return step_ns
        shares = shares_of_ranges(
            self.units, region.members, region.stored, region.parts, self.extents
        )
        for u, share in shares.items():
            step_ns[u] *= share
        return step_ns

    def _partials(self, region: Region, schedule: ScheduleModel) -> float:
        """Return the time of writing and reading the partial results of a split reduction."""
        total = 0.0
        for u, ended in region.reduced_axes.items():
            if ended & schedule.split:
                total += schedule.parts * schedule.volume(region.masks[u][0]) * PARTIAL_BYTES
        return 2 * total * self.ns_per_byte("l2", "copy", 1)


def _charged(work: float, traffic: float) -> float:
    """Return the charge for both where a part of the shorter hides behind the longer."""
    return work + traffic - CHARGED * min(work, traffic)


class _Traffic:
    """The bytes that a region moves, and the nanoseconds of moving them."""

    def __init__(self, model: Model, region: Region, schedule: ScheduleModel, threads: int) -> None:
        self.touch = self.sweeps = self.lanes_ns = rows = repeated_ns = 0.0
        """Nanoseconds by bandwidth; `lanes_ns` is time for elements that lanes access singly."""
        self.read = self.row = 0
        transposes = not region.reduced_axes or schedule.has_contractions
        all_mask = region.all_axes if not schedule.reads_by_nest else -1
        axis = schedule.vector.bit_length() - 1
        for v, positions in region.loads.items():
            masks = region.load_masks[v]
            itemsize = model.itemsize[v]
            if all_mask and masks == [all_mask] and positions[0][-1] == axis:
                nbytes = model.nbytes[v]  # each element once, in memory order
                self.read += nbytes
                self.touch += model.read_ns(v, nbytes, threads)
                self.row += schedule.row(all_mask) * itemsize
                continue
            distinct_elements = min(model.elements[v], sum(map(schedule.volume, masks)))
            nbytes = distinct_elements * itemsize
            self.read += nbytes
            across = ACROSS if schedule.is_across(positions) else 1.0
            self.touch += model.read_ns(v, nbytes, threads) * across
            self.row += sum([schedule.row(m) for m in masks]) * itemsize
            pass_index = schedule.reads_by_nest.get(v)
            exclusive = _near_earlier(positions) if len(positions) > 1 else SINGLE_POSITION
            for k, (position, mask) in enumerate(zip(positions, masks, strict=True)):
                loaded = schedule.evaluations(mask)
                if loaded > distinct_elements and any(not isinstance(t, int) for t in position):
                    loaded = min(loaded, model.elements[v])  # out-of-bounds lanes are masked off
                if k == 0 and loaded > distinct_elements:
                    level = model.target.level(nbytes, 1)
                    if level != "l1":  # data in L1 is as cheap as in registers
                        rate = model.ns_per_byte(level, "read", threads)
                        repeated_ns += (loaded - distinct_elements) * itemsize * rate
                times = 1 if pass_index is None else pass_index[k]
                lane_ns = _lane_ns(
                    schedule, position, mask, loaded, packs=transposes, alone=model.cores == 1
                )
                self.lanes_ns += times * lane_ns
                if times == 1 and exclusive[k]:
                    continue
                rows += max(times - (k == 0), 0) * loaded * itemsize
        kept_values = [(region.masks[u][0], max(model.itemsize[u], 4)) for u in bits(schedule.kept)]
        sizes = {
            u: schedule.row(axes) * itemsize
            for u, (axes, itemsize) in zip(bits(schedule.kept), kept_values, strict=True)
        }
        exclusive = [n for u, n in sizes.items() if schedule.independent_contractions >> u & 1]
        self.kept = sum(sizes.values()) - sum(exclusive) + max(exclusive, default=0)
        self.row += self.kept
        self.scratch = 0.0
        if rows > 0 or kept_values:
            resting = model.target.level(self.row * threads, threads)
            self.sweeps = rows * model.ns_per_byte(resting, "read", threads)
            moved = sum(schedule.evaluations(axes) * itemsize for axes, itemsize in kept_values)
            self.scratch = 2 * moved * model.ns_per_byte(resting, "copy", threads)
        self.written = 0
        for u in bits(region.stored):
            self.written += model.nbytes[u]
            self.touch += model.write_ns(u, threads)
            if not transposes and schedule.is_transposed(region.positions[u][0]):
                self.lanes_ns += model.elements[u] * TRANSPOSED_LANE_NS
        self.sweeps += max(0.0, repeated_ns - OVERLAP * self.touch)


def _lane_ns(
    schedule: ScheduleModel,
    position: Position,
    mask: int,
    loaded: float,
    *,
    packs: bool,
    alone: bool,
) -> float:
    """Return the nanoseconds of one pass over elements that lanes access one by one.

    Short rows are charged only on a single core: with more, a kernel that stores nothing instead
    keeps fewer of them busy.
    """
    picks = schedule.region.data_positions
    if alone and schedule.lane_axis and schedule.lane_axis.bit_length() - 1 in position[:-1]:
        return schedule.evaluations(mask) * SHORT_ROW_LANE_NS
    if not packs and schedule.is_transposed(position):
        return loaded * TRANSPOSED_LANE_NS
    return loaded * GATHERED_NS if picks and is_gathered(position, picks, mask) else 0.0


@lru_cache(maxsize=256)
def _rows_of_few(schedule: ScheduleModel) -> int:
    """Return the rows of products reduced over all of a few columns, summed over reductions.

    A reduction without products is unrolled instead, with vectors across rows.
    """
    if (
        not schedule.has_contractions
        or schedule.split
        or not 1 < schedule.volume(schedule.vector) <= SMALL_RESULT_COLUMNS
    ):
        return 0
    region = schedule.region
    reductions = [
        u
        for u, over in region.reduced_axes.items()
        if over == schedule.vector and not schedule.units.unit(u).trace.dots
    ]
    return sum(schedule.volume(region.masks[u][0]) for u in reductions)


def _axis(t: int) -> Index:
    return axis(f"a{t}", 0)


def _index(term: Term) -> Index:
    """Return a term of a position as an expression over axes."""
    if isinstance(term, Expr):
        return term
    return 0 if term == AT_ZERO else _axis(term)


@lru_cache(maxsize=4096)
def _without_constants(position: Position) -> tuple[tuple[object, ...], tuple[int, ...]]:
    """Return the terms of a position without their constants, and the constants."""
    parts = [split_constant(_index(t)) for t in position]
    return tuple(terms for terms, _ in parts), tuple(number for _, number in parts)


def _near_earlier(positions: Sequence[Position]) -> list[bool]:
    """Return for each position whether it is close to an earlier one, hence in L1."""
    is_near: list[bool] = []
    by_terms: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for position in positions:
        terms, constants = _without_constants(position)
        others = by_terms.setdefault(terms, [])
        # most positions come in order
        is_near.append(
            any(
                all(abs(a - b) <= NEARBY_POSITIONS for a, b in zip(constants, other, strict=True))
                for other in reversed(others)
            )
        )
        others.append(constants)
    return is_near


def _scatter_work(model: CostModel, region: Region) -> tuple[float, int, float]:
    """Return nanoseconds of arithmetic on one core, tasks, and bytes updated in random order.

    Updates are applied one by one (`smelt.lower.scatter`). What is computed for them is vectorised
    along their rows where these are long. The rows are split into parts; for each part all target
    positions are examined.
    """
    sizes = [model.extents[e] for e in region.axes]
    u = region.stored.bit_length() - 1
    unit, reduced = model.units.unit(u), region.reduced_axes.get(u, 0)  # 0: a single update
    counted = unit.trace.position_axes  # the axis of updates that a position counts, or -1
    leading = next((k for k, a in enumerate(counted) if a < 0), len(counted))
    shared = [region.reduced_axis_order[u][a - unit.rank] if a >= 0 else -1 for a in counted]
    rest = (t for t in region.positions[u][0][unit.trace.scatter_dims :] if isinstance(t, int))
    row_axes = [a for a in (*shared[leading:], *rest) if a >= 0]
    row_mask = sum(1 << a for a in {*row_axes})
    width = prod([sizes[a] for a in row_axes])
    vector, row = (1 << row_axes[-1], sizes[row_axes[-1]]) if row_axes else (0, 1)
    lanes = model.lanes

    def steps(mask: int) -> float:
        """Return the elements that vectors compute for something along some axes."""
        count = prod([sizes[a] for a in bits(mask)])
        if not mask & reduced:
            return float(count)
        if not mask & vector:
            return float(count * lanes)
        return count / row * (-(-row // lanes) * lanes)

    work = sum(
        model.step_ns[v] * steps(m) for v, masks in region.masks.items() if v != u for m in masks
    )
    work += model.step_ns[u] * steps(reduced | row_mask)
    batches = prod([sizes[a] for a in shared[:leading]])
    rows = model.elements[u] // max(width * batches, 1)
    parts = int(evaluate(model.tiling.scatter_parts(rows, width, in_batches=leading > 0), {}))
    updates = prod([sizes[a] for a in bits(reduced & ~row_mask)])
    work += updates * VISIT_NS * (parts + 1)
    return work, parts * batches, updates * width * float(model.itemsize[u])
