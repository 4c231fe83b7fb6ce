"""The questions that the planner asks about the time of kernels, for any machine.

A cost model belongs to one graph at the sizes of the hints. `smelt.fusion.cost` answers for a CPU,
`smelt.fusion.device_cost` for a GPU; the search, its bounds and the derivation of streams know
this class alone.

>>> from smelt.fusion.region import build_region
>>> from smelt.fusion.cost import Model
>>> from smelt.graph.text import parse
>>> from smelt.machine.target import Target
>>> text = "graph f(x: f32[n]) { v0 = exp(x) : f32[n] v1 = abs(v0) : f32[n] return v1 }"
>>> units = Units(parse(text))
>>> model = Model(units, Target.for_isa("avx2"), Hints(n=1 << 20))
>>> together, least = build_region(units, 0b110, 0b100), Bounds(model)
>>> round(model.cost(together).objective_ns - least.single(together, 1), 6)
0.0
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import prod
from typing import TypeAlias

from smelt.backend.machine import Kind, Level, Machine
from smelt.fusion.bitsets import Hints, at_hints, bits
from smelt.fusion.cascade.term import Term
from smelt.fusion.region import Region
from smelt.fusion.units import AT_ZERO, Edge, Unit, Units
from smelt.graph.ir import Node
from smelt.ops.cost import DATA_DEPENDENT_SHARE
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_
from smelt.types.expr import Expr, Index, atoms

CHARGED = 0.5
"""Share of the shorter of arithmetic and memory time that does not count in comparing kernels.

Repeated arithmetic and unnecessary bytes count in part even where they hide.
"""
REUSE_DISTANCE = 3
"""Bytes moved between writing a value and reading it again, in multiples of its size."""
MIN_REREAD_SHARE = 0.06
"""Minimum share of a kernel's time in rereads for which streaming is evaluated.

Deriving a stream takes longer than everything else in planning.
"""

Loads: TypeAlias = Mapping[Term, tuple[int, tuple[Index, ...]]]
"""Terms that are loads, with the number of the value and the position of the load."""

_TERMS = ("launch", "arithmetic", "touch", "sweeps", "scratch", "partials", "streams")


@dataclass(slots=True)
class Cost:
    """Predicted nanoseconds of a kernel by term, and the numbers behind them."""

    total: float = 0.0
    objective_ns: float = 0.0
    """The total plus a part of what hides behind something else: the search objective.

    Time that hides now may no longer hide after the next join.
    """
    launch: float = 0.0
    arithmetic: float = 0.0
    touch: float = 0.0
    sweeps: float = 0.0
    scratch: float = 0.0
    partials: float = 0.0
    streams: float = 0.0
    read: int = 0
    written: int = 0
    tasks: int = 1
    row_bytes: int = 0
    """Working set of one task in bytes."""
    kept_bytes: int = 0
    """The part of it that is values kept between passes."""
    times: int = 1
    """Number of passes of a task over its row."""
    split: bool = False
    stream: int = -1
    """The axis of the region whose reductions are carried block by block; -1 for none."""
    packing: float = 0.0
    """The part of the arithmetic that packs operands of contractions repeatedly."""
    unshared_ns: float = 0.0
    """Launches that arrays of one formula would share without it: a part of the objective."""

    @property
    def moved(self) -> int:
        """Return the bytes read and written in main memory."""
        return self.read + self.written

    def terms(self) -> dict[str, float]:
        """Return the terms in nanoseconds, for a report."""
        return {name: round(getattr(self, name), 1) for name in _TERMS}


class ValueSizes:
    """The sizes of one graph's axes and values at those of the hints."""

    def __init__(self, units: Units, hints: Hints) -> None:
        self.units, self.hints = units, hints
        self.extents = [at_hints(e, hints) for e in units.extents]
        self.itemsize = [node.type.dtype.itemsize for node in units.values]
        self.elements = [
            max(prod([at_hints(e, hints) for e in node.type.shape]), 0) for node in units.values
        ]
        self.nbytes = [n * b for n, b in zip(self.elements, self.itemsize, strict=True)]

    def read_bytes(self, region: Region) -> dict[int, int]:
        """Return the bytes of each value that a region reads, each element once."""
        read = region.elements_read(self.elements, self.extents)
        return {v: n * self.itemsize[v] for v, n in read}

    def moved_bytes(self, region: Region) -> int:
        """Return the bytes that one kernel or library call reads and writes."""
        if region.members & self.units.calls:
            return self.unfused_bytes(region.members.bit_length() - 1)
        written = sum(self.nbytes[u] for u in bits(region.stored))
        return written + sum(self.read_bytes(region).values())

    def unfused_bytes(self, u: int) -> int:
        """Return the bytes that one operator reads and writes as a kernel of its own."""
        unit = self.units.unit(u)
        if unit.is_library:
            return self.nbytes[u] + sum(self.nbytes[e.producer] for e in unit.edges)
        volumes: dict[int, int] = {}
        for edge in unit.edges:
            n = prod([self.extents[unit.axes[a]] for a in _axes_read(unit, edge)])
            volumes[edge.producer] = volumes.get(edge.producer, 0) + n
        read = sum([min(n, self.elements[v]) * self.itemsize[v] for v, n in volumes.items()])
        return read + self.nbytes[u]


def _axes_read(unit: Unit, edge: Edge) -> set[int]:
    """Return the axes along which an edge reads, including those of computed positions."""
    data_positions = dict(unit.trace.data_positions)
    axes = {t for t in edge.terms if isinstance(t, int) and t != AT_ZERO}
    for x in (x for t in edge.terms if isinstance(t, Expr) for x in atoms(t)):
        if x.kind == "axis":
            axes.add(int(x.name[1:]))
        elif x.kind == "value":
            axes.update(data_positions[x.name])
    return axes


class CostModel(ValueSizes, ABC):
    """The cost model of one graph on one machine, at the sizes of the hints.

    `extra_bytes` are touched by a call in addition to the graph's inputs and outputs.
    """

    prices_schedules = False
    """Whether totals are those of the schedules that will run: no hidden time counts in the end."""
    shared_reductions = 0
    """Reductions that start together with others by the same formula, rather than with readers."""

    def __init__(
        self, units: Units, machine: Machine, hints: Hints, extra_bytes: int, cores: int, lanes: int
    ) -> None:
        super().__init__(units, hints)
        self.machine, self.tiling = machine, machine.tiling
        self.cores, self.lanes = cores, lanes
        self.extents = [max(n, 1) for n in self.extents]
        outside = extra_bytes + sum(self.nbytes[: len(units.inputs)])
        outside += sum(self.nbytes[u] for u in bits(units.outputs))
        self.resting_level: list[Level] = []
        """The level of memory at which each value rests before a kernel reads it."""
        for v, n in enumerate(self.nbytes):
            is_intermediate = v >= len(units.inputs) and not units.outputs >> v & 1
            reach = min(REUSE_DISTANCE * n, max(outside, n)) if is_intermediate else outside
            self.resting_level.append(machine.level(reach, self.cores))
        self.families = [-1] * len(units.values)
        """A number for values whose kernels share launches with those of equal number, else -1."""
        self.step_ns: list[float] = []
        """Nanoseconds of one element or reduction step of each value's operator on one core."""

    def read_ns(self, v: int, nbytes: float, threads: int) -> float:
        """Return the time of the first touch of bytes of a value."""
        return nbytes * self.ns_per_byte(self.resting_level[v], "read", threads)

    def write_ns(self, v: int, threads: int) -> float:
        """Return the time of writing a full value."""
        return self.nbytes[v] * self.ns_per_byte(self.resting_level[v], "write", threads)

    def read_values_ns(self, values: Iterable[int], threads: int) -> float:
        """Return the time of the first touch of whole values."""
        return sum([self.read_ns(v, self.nbytes[v], threads) for v in values])

    def write_values_ns(self, values: Iterable[int], threads: int) -> float:
        """Return the time of writing whole values."""
        return sum([self.write_ns(v, threads) for v in values])

    @abstractmethod
    def ns_per_byte(self, level: Level, kind: Kind, threads: int) -> float:
        """Return the inverse bandwidth of a level for some threads."""

    # ---- kernels -------------------------------------------------------------------------------

    def is_masked(self, region: Region) -> bool:
        """Return whether a region reads or computes any condition."""
        conditions = self.units.conditions
        return bool(conditions) and not (
            conditions.isdisjoint(region.loads) and conditions.isdisjoint(region.masks)
        )

    def stream_may_gain(self, region: Region, cost: Cost) -> bool:
        """Return whether streaming may beat a legal schedule without it.

        That is so if rows exceed fast memory, or if a contraction consumes what another one
        produces, or a masked reduction does, whose blocks can be skipped.
        """
        reread_ns = cost.sweeps + cost.scratch + cost.partials
        if (
            not self.machine.is_near(cost.row_bytes)
            and reread_ns > MIN_REREAD_SHARE * cost.objective_ns
        ):
            return True
        products = [u for u in region.reduced_axes if self.units.unit(u).trace.dots]
        axes = 0
        for u in products:
            axes |= region.masks[u][0]
        consumers = region.reduced_axes if self.is_masked(region) else products
        return any(region.reduced_axes[u] & axes and region.levels[u] > 1 for u in consumers)

    @abstractmethod
    def cost(self, region: Region) -> Cost:
        """Return the time of a region by term. Sets its `work` unless that is known."""

    @abstractmethod
    def call_cost(self, unit: Unit) -> Cost:
        """Return the cost of a library call: its traffic and its start."""

    @abstractmethod
    def map_cost(self, unit: Unit) -> Cost:
        """Return the cost of an elementwise operator on values of its own shape."""

    @property
    @abstractmethod
    def joined_start_ns(self) -> float:
        """Time that one more kernel of a plan takes at least."""

    @abstractmethod
    def least_ns(
        self, work: float, one_core: float, all_cores: float, full_ns: float, kernels: int
    ) -> float:
        """Return the least objective of `kernels` kernels with given work and traffic.

        `work` is arithmetic on one core, `one_core` and `all_cores` the traffic with one and with
        all; the arrays in full take one core at most `full_ns`.
        """

    # ---- streams -------------------------------------------------------------------------------

    @abstractmethod
    def state_level(self, nbytes: int, *, blocked: bool) -> Level | None:
        """Return where a task keeps the states of a stream.

        `blocked` tasks take blocks of rows. None if the states do not fit.
        """


# ---- lower bounds -------------------------------------------------------------------------------
#
# However units are divided among kernels, each is computed once, their outside values are read
# once, and what others read of them is written once. If clusters take hardly more than that,
# neither splitting them nor joining parts of them can gain, and the cost model is not consulted.
#
#     least = starts + work + traffic - uncharged part of the shorter of the two
#
# A kernel in the calling thread has one core, any other kernel all of them. A stream may skip
# blocks that masks rule out, if the units have a reduction that another one of them reads. What
# positions rule out is unknown before the stream is derived: then only the traffic counts. Of what
# data rules out, the model assumes a fixed share to be visited, and charges little for masks.


@dataclass(frozen=True, slots=True, eq=False)
class LowerBound:
    """The least work and traffic of some units in any kernels."""

    members: int
    work: dict[int, float]
    """Nanoseconds of each unit on one core."""
    total: float
    """Their sum."""
    unmasked: float
    """Nanoseconds of the units that no mask is computed from."""
    read: int
    """Values that are read from outside."""
    reads: dict[int, tuple[float, float]]
    """Nanoseconds of reading each of them with one core and with all cores."""
    one_core: float
    all_cores: float
    """Sum of these with all cores."""
    written: int
    full_ns: float
    """Most nanoseconds of one core to read every value and write every result in full.

    The arrays of no kernel of these units take longer.
    """
    is_masked: bool


class Bounds:
    """Lower bounds of the regions of one graph."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.known: dict[tuple[int, int], LowerBound] = {}
        units = model.units
        self.ruling = sum(1 << u.number for u in units.units if _compares_integers(u.node))
        """Conditions that positions may decide for a full block."""
        self.plain = sum(1 << u.number for u in units.units if _is_floating(u.node))
        """Units that involve floating-point numbers alone: no part of a mask."""

    def of(self, region: Region) -> LowerBound:
        """Return the lower bound of a region's units."""
        key = region.members, region.stored
        bound = self.known.get(key)
        if bound is None:
            bound = self.known[key] = self._compute(region)
        return bound

    def single(self, region: Region, kernels: int, exchanged: int = 0) -> float:
        """Return the least nanoseconds of `kernels` kernels that are all of a region together.

        Each of the `exchanged` values is written by one of them and read by another.
        """
        bound = self.of(region)
        share = self._unmasked_share(bound.members, is_masked=bound.is_masked)
        work = bound.total if share == 1.0 else share * bound.unmasked
        one_core, all_cores = self._reread_ns(region, exchanged)
        one_core, all_cores = bound.one_core + one_core, bound.all_cores + all_cores
        return self._objective_ns(
            work, one_core, all_cores, bound.full_ns, bound.written | exchanged, kernels
        )

    def pair(
        self, first: Region, second: Region, written: int, kernels: int, exchanged: int = 0
    ) -> float:
        """Return the least nanoseconds of two regions in `kernels` kernels that store `written`.

        The `exchanged` values belong to the first region.
        """
        a, b = self.of(first), self.of(second)
        one_core, all_cores = self._reread_ns(first, exchanged)
        one_core, all_cores = (
            one_core + a.one_core + b.one_core,
            all_cores + a.all_cores + b.all_cores,
        )
        for v in bits(a.read & b.read):
            x, y = a.reads[v], b.reads[v]
            one_core, all_cores = one_core - min(x[0], y[0]), all_cores - min(x[1], y[1])
        for x, y in ((a, b), (b, a)):
            for v in bits(x.read & y.members):
                one_core, all_cores = one_core - x.reads[v][0], all_cores - x.reads[v][1]
        share = self._unmasked_share(a.members | b.members, is_masked=a.is_masked or b.is_masked)
        work, common = a.unmasked + b.unmasked, a.members & b.members & self.plain
        if share == 1.0:
            work, common = a.total + b.total, a.members & b.members
        for u in bits(common) if share else ():
            work -= min(a.work.get(u, 0.0), b.work.get(u, 0.0))
        work *= share
        return self._objective_ns(
            work, one_core, all_cores, a.full_ns + b.full_ns, written | exchanged, kernels
        )

    def _unmasked_share(self, members: int, *, is_masked: bool) -> float:
        """Return the least share of the work of some units that masks leave."""
        units = self.model.units
        if not is_masked or not any(
            units.users[f] & members for f in bits(members & units.reductions)
        ):
            return 1.0
        return 0.0 if members & self.ruling else DATA_DEPENDENT_SHARE

    def _reread_ns(self, region: Region, values: int) -> tuple[float, float]:
        """Return the time to read members of a region with one core and with all."""
        model = self.model
        one_core = all_cores = 0.0
        for u in bits(values):
            if u not in region.masks:  # joined flat regions know the positions of results only
                continue
            volumes = [
                prod([model.extents[region.axes[a]] for a in bits(m)]) for m in region.masks[u]
            ]
            nbytes = min(*volumes, model.elements[u]) * model.itemsize[u]
            one_core += model.read_ns(u, nbytes, 1)
            all_cores += model.read_ns(u, nbytes, model.cores)
        return one_core, all_cores

    def _objective_ns(
        self,
        work: float,
        one_core: float,
        all_cores: float,
        full_ns: float,
        written: int,
        kernels: int,
    ) -> float:
        model = self.model
        for u in bits(written):
            one_core += model.write_ns(u, 1)
            all_cores += model.write_ns(u, model.cores)
        return model.least_ns(work, one_core, all_cores, full_ns, kernels)

    def _compute(self, region: Region) -> LowerBound:
        model = self.model
        sizes = [model.extents[e] for e in region.axes]
        volumes: dict[int, int] = {0: 1}

        def volume(mask: int) -> int:
            product = volumes.get(mask)
            if product is None:
                product = volumes[mask] = prod([sizes[a] for a in bits(mask)])
            return product

        work: dict[int, float] = {}
        for u, masks in region.masks.items():
            times = min(max(map(volume, masks)), model.elements[u])
            work[u] = model.step_ns[u] * times * volume(region.reduced_axes.get(u, 0))
        reads: dict[int, tuple[float, float]] = {}
        read = 0
        for v, masks in region.load_masks.items():
            nbytes = min(max(map(volume, masks)), model.elements[v]) * model.itemsize[v]
            reads[v] = model.read_ns(v, nbytes, 1), model.read_ns(v, nbytes, model.cores)
            read |= 1 << v
        full_ns = model.read_values_ns(bits(read | region.members), 1)
        full_ns += model.write_values_ns(bits(region.members), 1)
        return LowerBound(
            region.members,
            work,
            sum(work.values()),
            sum([ns for u, ns in work.items() if self.plain >> u & 1]),
            read,
            reads,
            sum([x for x, _ in reads.values()]),
            sum([x for _, x in reads.values()]),
            region.stored,
            full_ns,
            model.is_masked(region),
        )


def _compares_integers(node: Node) -> bool:
    """Return whether a condition compares integers, as positions are."""
    return node.type.dtype == bool_ and any(x.type.dtype.kind == "int" for x in node.inputs)


def _is_floating(node: Node) -> bool:
    """Return whether an operator reads and computes floating-point numbers only."""
    return node.type.dtype.is_float and all(x.type.dtype.is_float for x in node.inputs)
