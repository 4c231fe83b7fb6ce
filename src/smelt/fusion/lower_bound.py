"""Bound from below the time of a set of units in any kernels.

However units are divided among kernels, each is computed once, their outside values are read once,
and what others read of them is written once. If clusters take hardly more than that, neither
splitting them nor joining parts of them can gain, and the cost model is not consulted.

    least = starts + work + traffic - uncharged part of the shorter of the two

A kernel in the calling thread has one core, any other kernel all of them. A stream may skip blocks
that masks rule out, if the units have a reduction that another one of them reads. What positions
rule out is unknown before the stream is derived: then only the traffic counts. Of what data rules
out, the model assumes a fixed share to be visited, and charges little for masks.

>>> from smelt.fusion.region import build_region
>>> from smelt.fusion.bitsets import Hints
>>> from smelt.fusion.cost import Model
>>> from smelt.fusion.units import Units
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

from math import prod

from smelt.fusion.bitsets import bits
from smelt.fusion.cost_model import CostModel
from smelt.fusion.region import Region
from smelt.fusion.stream_axes import is_masked
from smelt.graph.ir import Node
from smelt.ops.cost import DATA_DEPENDENT_SHARE
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_


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
            is_masked(model, region),
        )


def _compares_integers(node: Node) -> bool:
    """Return whether a condition compares integers, as positions are."""
    return node.type.dtype == bool_ and any(x.type.dtype.kind == "int" for x in node.inputs)


def _is_floating(node: Node) -> bool:
    """Return whether an operator reads and computes floating-point numbers only."""
    return node.type.dtype.is_float and all(x.type.dtype.is_float for x in node.inputs)
