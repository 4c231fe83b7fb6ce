"""Predict the time of a region on a GPU.

    total = launches + max(arithmetic, memory) * idle
    arithmetic = work of every unit at every position, at the rate of the unit that does it
    memory     = the longer of main memory and the shared cache, which all bytes pass:
                 first touch of each array, in main memory or the cache where it rests
               + tiles: what the programs of a product read again, from the shared cache
               + sweeps: later passes over rows that no program keeps
               + partials: results of a split reduction for its merge, and what the merge computes
                 besides, by as many programs as it has

Kernels that do the same to arrays of any shapes share launches: each counts as its part of one.

Rates and the factor for idle processors are the machine's (`smelt.backend.gpu`), the structure of
a kernel that of `smelt.fusion.schedule_model` with the machine's tiling: nothing is packed, vectors
have no lanes to fill, and parallelism is programs, not threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from smelt.backend.gpu import (
    CACHE_LATENCY_NS,
    INSTRUCTIONS,
    SECTOR_BYTES,
    STATE_BYTES,
    THREAD_BYTES,
    Gpu,
    KernelWork,
    combined_bytes,
)
from smelt.fusion.array_families import Families
from smelt.fusion.bitsets import Hints, bits
from smelt.fusion.cascade.term import Term
from smelt.fusion.cost_model import CHARGED, Cost, CostModel, Loads
from smelt.fusion.device_arithmetic import step_ns, term_ns
from smelt.fusion.device_product_tiles import most_programs, tile_factor
from smelt.fusion.device_splits import merge_work, partial_bytes, scanned_parts, split_k_parts
from smelt.fusion.device_traffic import kept_bytes, reads, traffic
from smelt.fusion.region import Region
from smelt.fusion.scatter import scatter_tasks, update_axes
from smelt.fusion.schedule_model import ScheduleModel
from smelt.fusion.trace import STEP_COST
from smelt.fusion.units import Unit, Units
from smelt.machine.target import Kind, Level
from smelt.types.dtype import f32

ATOMIC_BYTES = (4, 8)
"""Bytes of an integer that atomic operations change."""
ATOMIC_INSTRUCTIONS = 8.0
"""Vector instructions per element of a result that updates are added to in memory."""
POSITION_BYTES = 8
"""Bytes of a position at which an update is combined with a result."""
HALVED_TILE_ROWS = 64
"""Rows of the smallest tile of a stream with many rows: schedules try it and one of 128."""


class DeviceModel(CostModel):
    """The cost model of a GPU.

    Nanoseconds of arithmetic are those of the whole device with every processor busy, so that it
    counts as one core.
    """

    counts_lanes = False
    packed_stream_factor = 1.0
    splits_any_stream = False

    def __init__(self, units: Units, machine: Gpu, hints: Hints, extra_bytes: int = 0) -> None:
        super().__init__(units, machine, hints, extra_bytes, 1, machine.warp_size)
        self.gpu = machine
        slowdown = machine.vector_gflops / machine.double_gflops
        self.wide_sum_cost = max(type(self).wide_sum_cost, slowdown / INSTRUCTIONS)
        self.step_ns = [0.0] * len(units.inputs)
        self.step_ns += [step_ns(self, unit) for unit in units.units]
        self.arrays = Families(units, self.elements)
        self.families = self.arrays.numbers
        self.shared_reductions = self.arrays.members & units.reductions
        self.least_launch_ns = machine.launch_ns / self.arrays.largest

    def ns_per_byte(self, level: Level, kind: Kind, threads: int) -> float:
        """Return the inverse bandwidth; registers and shared memory are part of arithmetic."""
        return 1.0 / self.gpu.bandwidth(level, kind)

    # ---- kernels -------------------------------------------------------------------------------

    def _cost(
        self,
        work: KernelWork,
        read: int,
        written: int,
        *,
        touch: float,
        sweeps: float = 0.0,
        partials: float = 0.0,
        family: int = 1,
    ) -> Cost:
        """Return the cost of a kernel, with parts of its memory time before idling.

        A `family` of kernels shares its launches and fills the device together.
        """
        together = replace(work, programs=work.programs * family)
        time = self.gpu.time(together)
        idle, _ = self.gpu.idle_factors(together)
        hidden = min(time.memory, time.arithmetic)
        launch = time.launch / family
        total = time.total - time.launch + launch
        return Cost(
            total,
            total + (1.0 - CHARGED) * hidden,
            launch,
            time.arithmetic,
            read=read,
            written=written,
            tasks=work.programs,
            touch=touch * idle,
            sweeps=sweeps * idle,
            partials=partials * idle,
        )

    def call_cost(self, unit: Unit) -> Cost:
        """Return the cost of a library call: its traffic and its start."""
        u = unit.number
        read = {e.producer: float(self.nbytes[e.producer]) for e in unit.edges}
        memory, cache, touch = traffic(self, {**read, u: self.nbytes[u]})
        programs = self.tiling.map_tasks(self.elements[u])
        work = KernelWork(memory, cache, 0.0, programs)
        return self._cost(work, int(sum(read.values())), self.nbytes[u], touch=touch)

    def map_cost(self, unit: Unit) -> Cost:
        """Return the cost of an elementwise operator on values of its own shape."""
        u = unit.number
        read = {v: float(self.nbytes[v]) for v in bits(self.units.operands[u])}
        memory, cache, touch = traffic(self, {**read, u: self.nbytes[u]})
        arithmetic = self.step_ns[u] * self.elements[u]
        work = KernelWork(memory, cache, arithmetic, self.tiling.map_tasks(self.elements[u]))
        family = self.arrays.sizes[u] if self.arrays.members >> u & 1 else 1
        return self._cost(work, int(sum(read.values())), self.nbytes[u], touch=touch, family=family)

    def _scatter_cost(self, region: Region) -> Cost:
        """Return the cost of a scatter kernel, whose updates are combined in memory.

        Integers are by atomic operations, after a launch for first values; others are one row
        after another.
        """
        u = region.stored.bit_length() - 1
        touched, updates = {u: float(self.nbytes[u])}, 0
        for v, masks in region.load_masks.items():
            volumes = [prod([self.extents[region.axes[a]] for a in bits(m)]) for m in masks]
            updates = max(updates, *volumes)
            touched[v] = min(self.elements[v], sum(volumes)) * self.itemsize[v]
        region.work = updates * self.gpu.element_ns(ATOMIC_INSTRUCTIONS, f32)
        memory, cache, touch = traffic(self, touched)
        shared, rows = update_axes(self, region)
        width = prod([self.extents[region.axes[a]] for a in rows])
        dtype = self.units.unit(u).node.type.dtype
        is_atomic = not dtype.is_float and self.itemsize[u] in ATOMIC_BYTES
        rereads = combined_bytes(updates, self.itemsize[u], width)
        batches, parts = (1, 1) if is_atomic else scatter_tasks(self, region, shared, width)
        visits = updates / max(width, 1)
        rereads += (parts - 1) * visits * POSITION_BYTES
        work = KernelWork(
            memory,
            cache + rereads,
            region.work,
            self.tiling.map_tasks(updates),
            launches=2,
            steps=0.0 if is_atomic else visits / (parts * batches),
        )
        read = int(sum(n for v, n in touched.items() if v != u))
        return self._cost(
            work, read, self.nbytes[u], touch=touch, sweeps=rereads / self.gpu.cache_gbs
        )

    def cost(self, region: Region) -> Cost:
        """Return the time of a region by term. Sets its `work` unless that is known."""
        if region.members & self.units.calls:
            return self.call_cost(self.units.unit(region.members.bit_length() - 1))
        if region.members & self.units.scatters:
            return self._scatter_cost(region)
        schedule = ScheduleModel(self.units, region, self.extents, self.tiling)
        schedule.assign_nests()
        if region.work < 0:
            region.work = schedule.work(self.step_ns, STEP_COST)
        programs, parts = schedule.tasks(), split_k_parts(self, schedule)
        scans = scanned_parts(self, schedule)
        programs *= parts * scans
        family, kept_apart = self.arrays.of(region)
        late, merged = merge_work(self, schedule) if schedule.split else (KernelWork(), 0.0)
        touched, tiles, row_bytes, swept = reads(self, schedule)
        read = int(sum(touched.values()))
        again = traffic(self, touched)[:2] if scans > 1 else (0.0, 0.0)
        for u in bits(region.stored):
            touched[u] = touched.get(u, 0.0) + self.nbytes[u]
        memory, cache, touch = (
            a + b for a, b in zip(traffic(self, touched), (*again, 0.0), strict=True)
        )
        kept = kept_bytes(self, schedule)
        row_bytes += kept
        sweeps = swept if not self.gpu.is_near(int(row_bytes)) else 0.0
        level = self.gpu.level(int(row_bytes) * min(programs, 2 * self.gpu.processors))
        partials = 2.0 * partial_bytes(self, schedule, parts)
        in_memory = sweeps if level == "dram" else 0.0
        in_cache = tiles + partials + (0.0 if level == "dram" else sweeps)
        work = KernelWork(
            max(memory + in_memory - late.memory_bytes, 0.0),
            max(cache + in_cache - late.cache_bytes, 0.0),
            max(region.work * tile_factor(self, region) - late.arithmetic_ns, 0.0),
            programs,
            2 if schedule.split or parts > 1 or scans > 1 else 1,
            schedule.has_contractions,
            parts * most_programs(self, schedule),
            sum(self.itemsize[v] < f32.itemsize for v in region.loads) * schedule.has_contractions,
        )
        gbs = self.gpu.cache_gbs
        result = self._cost(
            work,
            read,
            sum(self.nbytes[u] for u in bits(region.stored)),
            touch=touch,
            sweeps=tiles / gbs + sweeps * self.ns_per_byte(level, "read", 1),
            partials=partials / gbs,
            family=family,
        )
        late = replace(late, cache_bytes=late.cache_bytes + merged)
        merge = replace(self.gpu.time(late), launch=0.0).total
        result.partials += merge
        result.total += merge
        result.objective_ns += merge + kept_apart * self.gpu.launch_ns
        result.row_bytes, result.kept_bytes = int(row_bytes), kept
        result.times = max(map(max, schedule.reads_by_nest.values()), default=1)
        result.split = bool(schedule.split) or parts > 1
        return result

    # ---- questions of the search and of streams --------------------------------------------------

    @property
    def joined_start_ns(self) -> float:
        """Return the time of a launch, which every kernel takes."""
        return self.gpu.launch_ns

    @property
    def gathered_ns(self) -> float:
        """Return the time of an element that is gathered: a sector of the shared cache."""
        return SECTOR_BYTES / self.gpu.cache_gbs

    def least_ns(
        self, work: float, one_core: float, all_cores: float, full_ns: float, kernels: int
    ) -> float:
        """Return the least objective of kernels that keep every processor busy."""
        charged = work + all_cores - CHARGED * min(work, all_cores)
        return kernels * self.least_launch_ns + charged

    def state_level(self, nbytes: int, *, blocked: bool) -> Level | None:
        """Return `l1` for states that a program holds in registers and shared memory."""
        return "l1" if nbytes <= STATE_BYTES else None

    def term_ns(
        self,
        t: Term,
        cost: float,
        times: float,
        itemsize: int,
        sizes: Mapping[str, int],
        loads: Loads,
    ) -> float:
        """Return the time of computing a term, with every processor busy."""
        return term_ns(self, t, cost, times, sizes, loads)

    def shared_level(self, level: Level) -> Level:
        """Return the shared cache: programs of a wave visit the same blocks at the same time."""
        return "l2"

    def packing_ns(
        self,
        t: Term,
        sizes: Mapping[str, int],
        still: frozenset[str],
        loads: Loads,
        times: Callable[[frozenset[str]], float],
    ) -> float:
        """Return 0: tiles are read into shared memory as they are."""
        return 0.0

    def merge_ns(self, parts: int, nbytes: int, tasks: int, rows: int) -> float:
        """Return the time of a launch that reads what parts of tasks have written.

        A warp reads the states of a row, one part after another.
        """
        moved = float(parts * nbytes)
        of_warp = moved / rows / (THREAD_BYTES * self.gpu.warp_size) * CACHE_LATENCY_NS
        return self.gpu.launch_ns + max(2.0 * moved * tasks / self.gpu.cache_gbs, of_warp)

    def stream_threads(self, work: float, floor: float, tasks: int) -> int:
        """Return 1: times are those of the whole device."""
        return 1

    def stream_time(
        self,
        work: float,
        memory: float,
        threads: int,
        tasks: int,
        launches: int,
        *,
        tile: tuple[int, int],
    ) -> tuple[float, float, float, float]:
        """Return launch time, arithmetic time, total and objective."""
        if prod(tile):
            most = tasks * max(tile[0] // HALVED_TILE_ROWS, 1)
            idle, slow = self.gpu.product_idle(tasks, prod(tile), most)
        else:
            idle = slow = self.gpu.idle(tasks)
        launch, arithmetic, moving = launches * self.gpu.launch_ns, work * slow, memory * idle
        hidden = min(arithmetic, moving)
        total = launch + max(arithmetic, moving)
        return launch, arithmetic, total, total + (1.0 - CHARGED) * hidden
