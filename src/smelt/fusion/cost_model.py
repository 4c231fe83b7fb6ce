"""The questions that the planner asks about the time of kernels, for any machine.

A cost model belongs to one graph at the sizes of the hints. `smelt.fusion.cost` answers for a CPU,
`smelt.fusion.device_cost` for a GPU; the search, its bounds and the derivation of streams know
this class alone.
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
from smelt.python.dataclass import dataclass
from smelt.types.expr import Expr, Index, atoms

CHARGED = 0.5
"""Share of the shorter of arithmetic and memory time that does not count in comparing kernels.

Repeated arithmetic and unnecessary bytes count in part even where they hide.
"""
REUSE_DISTANCE = 3
"""Bytes moved between writing a value and reading it again, in multiples of its size."""

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
