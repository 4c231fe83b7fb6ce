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
    FULL_TILE,
    INSTRUCTIONS,
    MIN_MATRIX_SIDE,
    SECTOR_BYTES,
    THREAD_BYTES,
    TILE,
    Gpu,
    KernelWork,
    combined_bytes,
    scan_parts,
    tile_share,
)
from smelt.fusion.array_families import Families
from smelt.fusion.bitsets import Hints, bits
from smelt.fusion.cascade.term import Term
from smelt.fusion.cost_model import CHARGED, Cost, CostModel, Loads
from smelt.fusion.region import Region
from smelt.fusion.scatter import scatter_tasks, update_axes
from smelt.fusion.schedule_model import ScheduleModel
from smelt.fusion.splittable_axes import members_before, splittable_axes
from smelt.fusion.trace import STEP_COST
from smelt.fusion.units import Unit, Units
from smelt.ops.combine import COMBINES
from smelt.ops.cost import SPECIAL_COST
from smelt.target import Kind, Level
from smelt.types.dtype import DType, f32
from smelt.types.expr import Expr, axes_of, evaluate

SCAN_INSTRUCTIONS = 10.0
"""Instructions per element of a scan: a tree of shuffles within a program."""
PARTIAL_BYTES = 8
"""Bytes of a partial result, which is kept in double precision."""
ATOMIC_BYTES = (4, 8)
"""Bytes of an integer that atomic operations change."""
ATOMIC_INSTRUCTIONS = 8.0
"""Vector instructions per element of a result that updates are added to in memory."""
POSITION_BYTES = 8
"""Bytes of a position at which an update is combined with a result."""
HALVED_TILE_ROWS = 64
"""Rows of the smallest tile of a stream with many rows: schedules try it and one of 128."""
STATE_BYTES = 128 << 10
"""Most bytes of states that a program carries in registers and shared memory."""


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
        self.step_ns += [self._step(unit) for unit in units.units]
        self.arrays = Families(units, self.elements)
        self.families = self.arrays.numbers
        self.shared_reductions = self.arrays.members & units.reductions
        self.least_launch_ns = machine.launch_ns / self.arrays.largest

    def ns_per_byte(self, level: Level, kind: Kind, threads: int) -> float:
        """Return the inverse bandwidth; registers and shared memory are part of arithmetic."""
        return 1.0 / self.gpu.bandwidth(level, kind)

    # ---- arithmetic ----------------------------------------------------------------------------

    def _step(self, unit: Unit) -> float:
        """Return the nanoseconds of one element or reduction step, with every processor busy."""
        traced = unit.trace
        dtype = self._widest(unit)
        cost = traced.cost - traced.special_cost - STEP_COST * traced.dots
        if unit.scan_axis >= 0:
            cost += SCAN_INSTRUCTIONS / INSTRUCTIONS
        total_ns = self.gpu.element_ns(INSTRUCTIONS * max(cost, 0.0), dtype)
        total_ns += self._special_ns(traced.specials, traced.special_cost, dtype)
        if not traced.dots:
            return total_ns
        sides = self._tile_sides(unit)
        # what is computed of an operand serves a whole row or column of the tile
        return total_ns / min(*sides, FULL_TILE) + self._product_ns(unit, sides)

    def _widest(self, unit: Unit) -> DType:
        """Return the type of the widest operand or result."""
        types = [self.units.values[e.producer].type.dtype for e in unit.edges]
        return max((unit.node.type.dtype, *types), key=lambda t: (t.itemsize, t.is_float))

    def _special_ns(self, count: int, cost: float, dtype: DType) -> float:
        """Return the time of special functions; in double precision they are polynomials."""
        if dtype.is_float and dtype.itemsize <= f32.itemsize:
            return count * self.gpu.special_ns
        return self.gpu.element_ns(INSTRUCTIONS * cost, dtype)

    def _product_ns(self, unit: Unit, sides: tuple[int, int]) -> float:
        """Return the time of one multiply-add of a contraction, by types and tile."""
        types = [self._loaded_type(e.producer) for e in unit.edges]
        if len(types) != 2:
            return self.gpu.element_ns(1.0, self._widest(unit))
        return self.gpu.product_ns(types[0], types[1], *sides)

    def _tile_sides(self, unit: Unit) -> tuple[int, int]:
        """Return the rows and columns of a contraction's result that a tile may have.

        A block of windows has positions of one axis, and is padded to a power of two.
        """
        if len(unit.edges) != 2:
            return 1, 1
        left, right = (_axes_read(e.terms) for e in unit.edges)
        sides: list[int] = []
        for e, side in zip(unit.edges, (left - right, right - left), strict=True):
            lengths = [self.extents[unit.axes[k]] for k in side if k < unit.rank]
            has_windows = any(isinstance(t, Expr) for t in e.terms)
            padded = max((1 << (n - 1).bit_length() for n in lengths), default=1)
            sides.append(padded if has_windows else prod(lengths))
        return sides[0], sides[1]

    def _loaded_type(self, v: int) -> DType:
        """Return the type of a value before conversions, which a tile holds in memory's type."""
        while v >= len(self.units.inputs) and self.units.unit(v).trace.is_conversion:
            before = self.units.unit(v).edges[0].producer
            if self.itemsize[before] > self.itemsize[v]:
                break
            v = before
        return self.units.values[v].type.dtype

    def _term_type(self, t: Term, loads: Loads) -> DType:
        """Return the type of a term before conversions."""
        while t.kind == "cast" and t.args[0].dtype.itemsize <= t.dtype.itemsize:
            (t,) = t.args
        return self.units.values[loads[t][0]].type.dtype if t in loads else t.dtype

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

    def _touched(self, v: int, nbytes: float) -> tuple[float, float]:
        """Return bytes of a value by where it rests: main memory, shared cache."""
        return (nbytes, 0.0) if self.resting_level[v] == "dram" else (0.0, nbytes)

    def _traffic(self, touched: Mapping[int, float]) -> tuple[float, float, float]:
        """Return bytes in main memory, bytes in the shared cache, and their time."""
        pairs = [self._touched(v, n) for v, n in touched.items()]
        memory, cache = (sum(side) for side in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        return memory, cache, memory / self.gpu.memory_gbs + cache / self.gpu.cache_gbs

    def call_cost(self, unit: Unit) -> Cost:
        """Return the cost of a library call: its traffic and its start."""
        u = unit.number
        read = {e.producer: float(self.nbytes[e.producer]) for e in unit.edges}
        memory, cache, touch = self._traffic({**read, u: self.nbytes[u]})
        programs = self._programs(self.elements[u])
        work = KernelWork(memory, cache, 0.0, programs)
        return self._cost(work, int(sum(read.values())), self.nbytes[u], touch=touch)

    def map_cost(self, unit: Unit) -> Cost:
        """Return the cost of an elementwise operator on values of its own shape."""
        u = unit.number
        read = {v: float(self.nbytes[v]) for v in bits(self.units.operands[u])}
        memory, cache, touch = self._traffic({**read, u: self.nbytes[u]})
        arithmetic = self.step_ns[u] * self.elements[u]
        work = KernelWork(memory, cache, arithmetic, self._programs(self.elements[u]))
        family = self.arrays.sizes[u] if self.arrays.members >> u & 1 else 1
        return self._cost(work, int(sum(read.values())), self.nbytes[u], touch=touch, family=family)

    def _programs(self, elements: int) -> int:
        """Return the programs of an elementwise kernel."""
        return max(-(-elements // self.tiling.map_block), 1)

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
        memory, cache, touch = self._traffic(touched)
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
            self._programs(updates),
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
        programs, parts = schedule.tasks(), self._split_k(region, schedule)
        scans = self._scan_parts(region, schedule)
        programs *= parts * scans
        family, kept_apart = self.arrays.of(region)
        late, merged = self._merge_work(region, schedule) if schedule.split else (KernelWork(), 0.0)
        touched, tiles, row_bytes, swept = self._reads(region, schedule)
        read = int(sum(touched.values()))
        again = self._traffic(touched)[:2] if scans > 1 else (0.0, 0.0)
        for u in bits(region.stored):
            touched[u] = touched.get(u, 0.0) + self.nbytes[u]
        memory, cache, touch = (
            a + b for a, b in zip(self._traffic(touched), (*again, 0.0), strict=True)
        )
        kept = self._kept_bytes(schedule)
        row_bytes += kept
        sweeps = swept if not self.gpu.is_near(int(row_bytes)) else 0.0
        level = self.gpu.level(int(row_bytes) * min(programs, 2 * self.gpu.processors))
        partials = 2.0 * self._partial_bytes(region, schedule)
        if parts > 1:
            partials += sum(
                2.0 * parts * PARTIAL_BYTES * self.elements[u] for u in region.reduced_axes
            )
        in_memory = sweeps if level == "dram" else 0.0
        in_cache = tiles + partials + (0.0 if level == "dram" else sweeps)
        work = KernelWork(
            max(memory + in_memory - late.memory_bytes, 0.0),
            max(cache + in_cache - late.cache_bytes, 0.0),
            max(region.work * self._consumed_factor(region) - late.arithmetic_ns, 0.0),
            programs,
            2 if schedule.split or parts > 1 or scans > 1 else 1,
            schedule.has_contractions,
            parts * self._most_programs(region, schedule),
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

    def _consumed_lengths(self, region: Region) -> list[int]:
        """Return the lengths of axes of products' results along which the same kernel reduces."""
        products = [u for u in region.reduced_axes if self.units.unit(u).trace.dots]
        first = min((region.levels[u] for u in products), default=0)
        return [
            min(self.extents[region.axes[a]] for a in bits(axes))
            for u, axes in region.reduced_axes.items()
            if products and u not in products and region.levels[u] > first and axes
        ]

    def _consumed_factor(self, region: Region) -> float:
        """Return the factor on products whose results the same kernel reduces: smaller tiles.

        A tile has such an axis as a whole, or a block of a long one. With few positions it is none.
        """
        consumed = self._consumed_lengths(region)
        most = TILE[0] * TILE[1]
        if consumed and min(consumed) < MIN_MATRIX_SIDE:
            most = MIN_MATRIX_SIDE**2
        elif consumed and max(consumed) > TILE[1]:
            most = prod(self.tiling.produced_block)
        factor = 1.0
        for u in region.reduced_axes:
            if self.units.unit(u).trace.dots:
                short, long = sorted(self._tile_sides(self.units.unit(u)))
                tile = min(short, TILE[0]) * min(long, TILE[1])
                factor = max(factor, tile_share(tile) / tile_share(min(tile, most)))
        return factor

    def _most_programs(self, region: Region, schedule: ScheduleModel) -> int:
        """Return the programs of products whose tiles are the smallest for matrix units."""
        if self._consumed_lengths(region):
            return schedule.volume(region.grid) // MIN_MATRIX_SIDE
        most = 1
        for u in region.reduced_axes:
            if self.units.unit(u).trace.dots:
                sides = self._tile_sides(self.units.unit(u))
                tiles = prod(-(-n // MIN_MATRIX_SIDE) for n in sides)
                most = max(most, self.elements[u] // max(prod(sides), 1) * tiles)
        return min(most, schedule.volume(region.grid))

    def _merge_work(self, region: Region, schedule: ScheduleModel) -> tuple[KernelWork, float]:
        """Return what the merge of a split reduction computes without the split axis.

        Arrays beside it are read, reduced and stored by the merge. One that reduces has a program
        for each position of the grid; others have the shape of their results, each program of which
        merges the states that it reads: last the bytes of those that are read again.
        """
        split = self._lowered_split(region, schedule)
        parts = members_before(self.units, region, split)
        arithmetic, touched, again, reduces = 0.0, dict[int, float](), 0, False
        merged = [u for u, ended in region.reduced_axes.items() if ended & split]
        states = max((schedule.volume(region.masks[u][0]) for u in merged), default=0)
        programs = max(schedule.tasks() // schedule.parts, 1)
        for u, masks in region.masks.items():
            axes = masks[0] | region.reduced_axes.get(u, 0)
            if parts >> u & 1 or axes & split:
                continue
            arithmetic += self.step_ns[u] * schedule.evaluations(axes)
            reduces |= u in region.reduced_axes
            if region.stored >> u & 1:
                touched[u] = float(self.nbytes[u])
                again += max(schedule.volume(masks[0]) - states, 0)
                programs = max(programs, self._programs(self.elements[u]))
            for v in bits(self.units.operands[u] & ~region.members):
                volumes = [schedule.volume(m) for m in region.load_masks[v] if not m & split]
                touched[v] = float(min(self.elements[v], sum(volumes)) * self.itemsize[v])
        memory, cache, _ = self._traffic(touched)
        if reduces:
            programs = max(schedule.tasks() // schedule.parts, 1)
        work = KernelWork(memory, cache, arithmetic, programs)
        return work, float(again * schedule.parts * PARTIAL_BYTES)

    def _lowered_split(self, region: Region, schedule: ScheduleModel) -> int:
        """Return the axis that lowering splits, as a mask.

        Of reductions over several sets of axes it is one that few of them may have.
        """
        if len({*region.reduced_axes.values()}) < 2:
            return schedule.split
        positions = [p for read in region.loads.values() for p in read]
        rank = max(map(len, positions), default=0)
        last = {p[-1] for p in positions if p and len(p) == rank}
        candidates = [a for a in splittable_axes(self.units, region) if schedule.is_one_pass(a)]
        least = dict.fromkeys(candidates, self.tiling.max_parts)
        least |= {a: n * self.tiling.min_lane_rows for a, n in least.items() if a in last}
        long = [a for a in candidates if schedule.sizes[a] >= least[a]]
        strided = [a for a in candidates if a not in last] or candidates
        if long:
            return 1 << schedule.slowest(long)
        return 1 << max(strided, key=lambda a: schedule.sizes[a])

    def _scan_parts(self, region: Region, schedule: ScheduleModel) -> int:
        """Return the parts of a scanned axis along which all results are stored."""
        scanned = region.scanned
        stored = (region.masks[u][0] for u in bits(region.stored))
        if not scanned or region.all_reduced & scanned or not all(m & scanned for m in stored):
            return 1
        return scan_parts(schedule.tasks(), schedule.volume(scanned))

    def _split_k(self, region: Region, schedule: ScheduleModel) -> int:
        """Return the parts of the reduction axis of a lone product, as lowering splits it."""
        if not schedule.has_contractions or len(region.reduced_axes) != 1:
            return 1
        ((_, reduced),) = region.reduced_axes.items()
        longest = max((self.extents[region.axes[a]] for a in bits(reduced)), default=1)
        if schedule.tasks() >= self.tiling.min_product_tasks or longest < self.tiling.min_split_k:
            return 1
        return int(evaluate(self.tiling.split_k_parts(longest, schedule.tasks()), {}))

    def _reads(
        self, region: Region, schedule: ScheduleModel
    ) -> tuple[dict[int, float], float, float, float]:
        """Return the bytes of each value that is read, and of further reads.

        Those are tiles that several programs of a product read, the row of one program, and later
        passes over rows.
        """
        touched: dict[int, float] = {}
        tiles = row_bytes = swept = 0.0
        for v, positions in region.loads.items():
            masks, itemsize = region.load_masks[v], self.itemsize[v]
            distinct = min(self.elements[v], sum(map(schedule.volume, masks)))
            touched[v] = float(distinct * itemsize)
            row_bytes += sum([schedule.row(m) for m in masks]) * itemsize
            passes = schedule.reads_by_nest.get(v)
            for k, (position, mask) in enumerate(zip(positions, masks, strict=True)):
                loaded = schedule.evaluations(mask)
                if any(not isinstance(t, int) for t in position):
                    loaded = min(loaded, 2.0 * self.elements[v])  # windows share their lines
                times = 1 if passes is None else passes[k]
                tiles += max(loaded - distinct, 0.0) * itemsize * (schedule.has_contractions)
                swept += max(times - (k == 0), 0) * loaded * itemsize
        return touched, tiles, row_bytes, swept

    def _kept_bytes(self, schedule: ScheduleModel) -> int:
        """Return the bytes of values that a program keeps between passes over its rows."""
        region = schedule.region
        return sum(
            schedule.row(region.masks[u][0]) * max(self.itemsize[u], f32.itemsize)
            for u in bits(schedule.kept)
        )

    def _partial_bytes(self, region: Region, schedule: ScheduleModel) -> float:
        """Return the bytes of the partial results of a split reduction."""
        return float(
            sum(
                schedule.parts * schedule.volume(region.masks[u][0]) * PARTIAL_BYTES
                for u, ended in region.reduced_axes.items()
                if ended & schedule.split
            )
        )

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
        dtype = max((a.dtype for a in t.args or (t,)), key=lambda d: d.itemsize)
        if len(t.args) == 2 and _is_product(t):
            left, right = t.args
            rows, columns = (
                prod([sizes[n] for n in side if n in sizes])
                for side in (left.axes - right.axes, right.axes - left.axes)
            )
            types = self._term_type(left, loads), self._term_type(right, loads)
            return times * self.gpu.product_ns(types[0], types[1], rows, columns)
        if t.kind == "apply" and cost >= SPECIAL_COST:
            return times * self._special_ns(1, cost, dtype)
        return times * self.gpu.element_ns(INSTRUCTIONS * cost, dtype)

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


def _is_product(t: Term) -> bool:
    """Return whether a term is a contraction of two operands."""
    if t.kind == "opaque" and isinstance(t.value, tuple) and t.value[0] == "reduce":
        return t.value[1] not in COMBINES
    return t.kind == "dot"


def _axes_read(terms: tuple[int | Expr, ...]) -> set[int]:
    """Return the axes that the terms of a read depend on."""
    named = {int(x[1:]) for t in terms if isinstance(t, Expr) for x in axes_of(t)}
    return named | {t for t in terms if isinstance(t, int) and t >= 0}


__all__ = ["DeviceModel"]
