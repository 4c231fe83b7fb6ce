"""Ask the schedules of a GPU for the time of a region.

    total = time of the fastest schedules of the kernel that the region becomes

The planner has no model of its own: a region is lowered, and the back end prices the launches of
its kernel as it does when it compiles them. What is asked before a kernel exists (the bytes and
steps that any kernel takes at least) follows from the machine's rates.

Kernels that do the same to arrays of any shapes share launches: each counts as its part of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from smelt import knobs
from smelt.backend.gpu import INSTRUCTIONS, STATE_BYTES, Gpu, KernelTime
from smelt.errors import DeviceKernelError
from smelt.fusion.array_families import Families
from smelt.fusion.bitsets import Hints, bits
from smelt.fusion.cost_model import CHARGED, Cost, CostModel
from smelt.fusion.legal import refuse_cost
from smelt.fusion.plan import Cluster, Group, single_cluster
from smelt.fusion.region import Region
from smelt.fusion.schedule_model import ScheduleModel
from smelt.fusion.trace import STEP_COST
from smelt.fusion.units import Unit, Units
from smelt.machine.target import Kind, Level
from smelt.ops.combine import EXTREMES
from smelt.ops.cost import MOVE_COST
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, bf16, f32

UNPRINTED_NS = 1e9
"""Time of a kernel without a program: longer than any plan whose kernels have one."""


class PricedGpu(Gpu, ABC):
    """A GPU whose back end predicts the time of kernels."""

    @abstractmethod
    def kernel_time(
        self, cluster: Cluster, sizes: Mapping[str, int], cached: Collection[int]
    ) -> KernelTime:
        """Return the time of the kernel of a cluster.

        `cached` are numbers of its inputs and outputs, counted together, that rest in the shared
        cache. Raises DeviceKernelError for a cluster that is not printed.
        """


class DeviceModel(CostModel):
    """The cost model of a GPU.

    Nanoseconds of arithmetic are those of the whole device with every processor busy, so that it
    counts as one core.
    """

    prices_schedules = True

    def __init__(
        self, units: Units, machine: PricedGpu, hints: Hints, extra_bytes: int = 0
    ) -> None:
        super().__init__(units, machine, hints, extra_bytes, 1, machine.warp_size)
        self.gpu = machine
        self.step_ns = [0.0] * len(units.inputs)
        self.step_ns += [_step_ns(self, unit) for unit in units.units]
        self.arrays = Families(units, self.elements)
        self.families = self.arrays.numbers
        self.shared_reductions = self.arrays.members & units.reductions
        self.least_launch_ns = machine.launch_ns / self.arrays.largest

    def ns_per_byte(self, level: Level, kind: Kind, threads: int) -> float:
        """Return the inverse bandwidth; registers and shared memory are part of arithmetic."""
        return 1.0 / self.gpu.bandwidth(level, kind)

    # ---- kernels -------------------------------------------------------------------------------

    def call_cost(self, unit: Unit) -> Cost:
        """Return the cost of a library call: its traffic and its start."""
        u = unit.number
        read = {e.producer: self.nbytes[e.producer] for e in unit.edges}
        return self._cost(self._least_time({**read, u: self.nbytes[u]}), read, 1 << u)

    def map_cost(self, unit: Unit) -> Cost:
        """Return the cost of an elementwise operator on values of its own shape."""
        u = unit.number
        read = {v: self.nbytes[v] for v in bits(self.units.operands[u])}
        time = self._kernel_time(Group(1 << u, 1 << u))
        family = self.arrays.sizes[u] if self.arrays.members >> u & 1 else 1
        return self._cost(time, read, 1 << u, family=family)

    def cost(self, region: Region) -> Cost:
        """Return the time of a region by term."""
        region.work = 0.0  # the schedules count it
        if region.members & self.units.calls:
            return self.call_cost(self.units.unit(region.members.bit_length() - 1))
        read = self.read_bytes(region)
        family, kept_apart = self.arrays.of(region)
        rows = Cost()
        if not region.members & self.units.scatters:
            rows = self._row_cost(region, read)
        is_single = region.members & (region.members - 1) == 0
        time = KernelTime(UNPRINTED_NS)  # no kernel has rows that exceed memory
        if is_single or refuse_cost(self, rows) is None:
            time = self._kernel_time(Group(region.members, region.stored, region.walked))
        result = self._cost(time, read, region.stored, family=family)
        result.unshared_ns = kept_apart * self.gpu.launch_ns
        result.objective_ns += result.unshared_ns
        result.times, result.split, result.sweeps = rows.times, rows.split, rows.sweeps
        result.kept_bytes, result.row_bytes = rows.kept_bytes, rows.row_bytes
        return result

    def _row_cost(self, region: Region, read: Mapping[int, float]) -> Cost:
        """Return the bytes that a program keeps of a row, and the passes over it."""
        schedule = ScheduleModel(self.units, region, self.extents, self.tiling)
        schedule.assign_nests()
        result = Cost(times=max(map(max, schedule.reads_by_nest.values()), default=1))
        result.split = bool(schedule.split)
        result.kept_bytes = sum(
            schedule.row(region.masks[u][0]) * max(self.itemsize[u], f32.itemsize)
            for u in bits(schedule.kept)
        )
        result.row_bytes = result.kept_bytes + sum(
            schedule.row(m) * self.itemsize[v] for v in read for m in region.load_masks[v]
        )
        if result.times > 1 and not self.gpu.is_near(result.row_bytes):
            result.sweeps = (
                (result.times - 1) * sum(read.values()) * self.ns_per_byte("dram", "read", 1)
            )
        return result

    def stream_cost(self, region: Region, a: int, states: int, passes: int) -> Cost:
        """Return the cost of a region that streams axis `a`.

        A program carries `states` bytes, and passes over its row `passes` times.
        """
        streamed = next(
            (u, axes.index(a)) for u, axes in sorted(region.reduced_axis_order.items()) if a in axes
        )
        group = Group(region.members, region.stored, region.walked, streamed)
        result = self._cost(self._kernel_time(group), self.read_bytes(region), region.stored)
        result.times, result.stream = passes, a
        result.row_bytes = result.kept_bytes = states
        return result

    def loop_cost(self, cluster: Cluster) -> Cost:
        """Return the cost of a loop that is one kernel."""
        read = {v: self.nbytes[v] for v in map(self.units.number.__getitem__, cluster.inputs)}
        stored = sum(1 << self.units.number[n] for n in cluster.outputs)
        return self._cost(self._cluster_time(cluster), read, stored)

    def _kernel_time(self, group: Group) -> KernelTime:
        """Return the time of a group's kernel."""
        return self._cluster_time(single_cluster(self.units, group))

    def _cluster_time(self, cluster: Cluster) -> KernelTime:
        """Return the time of a cluster's kernel, a very long one if none is printed."""
        params = (*cluster.inputs, *cluster.outputs)
        numbers = [self.units.number[n] for n in params]
        cached = [k for k, v in enumerate(numbers) if self.resting_level[v] != "dram"]
        try:
            return self.gpu.kernel_time(cluster, self.hints, cached)
        except DeviceKernelError:
            least = self._least_time({v: float(self.nbytes[v]) for v in numbers})
            return KernelTime(least.launch + UNPRINTED_NS, least.busy, 0.0, least.busy)

    def _least_time(self, touched: Mapping[int, float]) -> KernelTime:
        """Return the time of a launch that only moves some bytes of values."""
        moving = sum(
            n * self.ns_per_byte(self.resting_level[v], "read", 1) for v, n in touched.items()
        )
        return KernelTime(self.gpu.launch_ns, moving, 0.0, moving)

    def _cost(
        self, time: KernelTime, read: Mapping[int, float], stored: int, *, family: int = 1
    ) -> Cost:
        """Return a kernel's cost; a `family` shares its launches and fills the device together."""
        launch, busy = time.launch / family, time.busy
        if family > 1:
            touched = {**read, **{u: float(self.nbytes[u]) for u in bits(stored)}}
            busy = self._least_time(touched).busy
        return Cost(
            launch + busy,
            launch + busy + (1.0 - CHARGED) * min(time.memory, time.arithmetic),
            launch,
            time.arithmetic,
            time.memory,
            read=int(sum(read.values())),
            written=sum(self.nbytes[u] for u in bits(stored)),
            tasks=time.programs,
        )

    # ---- questions of the search ----------------------------------------------------------------

    @property
    def joined_start_ns(self) -> float:
        """Return the time of a launch, which every kernel takes."""
        return self.gpu.launch_ns

    def least_ns(
        self, work: float, one_core: float, all_cores: float, full_ns: float, kernels: int
    ) -> float:
        """Return the least objective of kernels that keep every processor busy."""
        charged = work + all_cores - CHARGED * min(work, all_cores)
        return kernels * self.least_launch_ns + charged

    def state_level(self, nbytes: int, *, blocked: bool) -> Level | None:
        """Return `l1` for states that a program holds in registers and shared memory."""
        return "l1" if nbytes <= STATE_BYTES else None


def _step_ns(model: DeviceModel, unit: Unit) -> float:
    """Return the least nanoseconds of one element or reduction step.

    Vector lanes, special functions and matrix units add up; in double precision, special functions
    are polynomials.
    """
    traced, gpu = unit.trace, model.gpu
    extreme = SCALARS[traced.combine].cost - MOVE_COST if traced.combine in EXTREMES else 0.0
    types = [model.units.values[e.producer].type.dtype for e in unit.edges]
    widest = max((unit.node.type.dtype, *types), key=lambda t: (t.itemsize, t.is_float))
    cost, specials = traced.cost - STEP_COST * traced.dots - extreme, 0.0
    if widest.is_float and widest.itemsize <= f32.itemsize:
        cost, specials = cost - traced.special_cost, traced.specials * gpu.special_ns
    if not traced.dots:
        least = gpu.element_ns(INSTRUCTIONS * max(cost, 0.0), widest) + specials
        # a position is joined into one of the results
        return least / max(model.elements[unit.number], 1) if unit.is_scatter else least
    loaded = [_loaded_type(model, e.producer) for e in unit.edges]
    if len(loaded) != 2:
        return 0.0
    rounding = knobs.ROUNDING.get()
    is_narrow = rounding == "fast" or (rounding == "eager" and bf16 in loaded)
    return gpu.product_ns(*loaded, is_narrow=is_narrow)


def _loaded_type(model: DeviceModel, v: int) -> DType:
    """Return the type of a value before conversions, which a tile holds in memory's type."""
    while v >= len(model.units.inputs) and model.units.unit(v).trace.is_conversion:
        before = model.units.unit(v).edges[0].producer
        if model.itemsize[before] > model.itemsize[v]:
            break
        v = before
    return model.units.values[v].type.dtype
