"""The least that units take, whatever kernels they are in: what no question need be asked about.

However units are divided among kernels, each is computed once, what they read from outside is read
once, and what others read of them is written once.  Where clusters take hardly more than that,
neither taking them apart nor joining parts of them otherwise can gain, and the model is not asked.

    least = starts + work + traffic - what is not charged of the shorter of the two

A kernel in the calling thread has one core, any other one all of them.  Masks may rule out work of
folds, by as much as nobody knows before a stream is derived: there only the traffic counts.

>>> from smelt.fusion.region import look
>>> from smelt.fusion.sets import Hints
>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> from smelt.target import Target
>>> text = "graph f(x: f32[n]) { v0 = exp(x) : f32[n] v1 = abs(v0) : f32[n] return v1 }"
>>> units = Units(parse(text))
>>> model = Model(units, Target.for_isa("avx2"), Hints(n=1 << 20))
>>> together, least = look(units, 0b110, 0b100), Bounds(model)
>>> round(model.cost(together).burden - least.burden(least.of(together), 1), 6)
0.0
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.dataclass import dataclass
from smelt.fusion.along import is_masked
from smelt.fusion.cost import CHARGED, INLINE_LAUNCH_NS, INLINE_NS, Model
from smelt.fusion.region import Region
from smelt.fusion.sets import bits


@dataclass(frozen=True, slots=True, eq=False)
class Least:
    """What some units do in any kernels."""

    work: Mapping[int, float]
    """Nanoseconds of each unit on one core."""
    reads: Mapping[int, int]
    """Bytes of each value that is read from outside."""
    writes: int
    """Values that are written."""
    masked: bool


class Bounds:
    """Least times of the regions of one graph."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.known: dict[tuple[int, int], Least] = {}

    def of(self, region: Region) -> Least:
        """What the units of a region do at least."""
        key = region.members, region.stored
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._of(region)
        return found

    def both(self, one: Least, other: Least, writes: int) -> Least:
        """The units of two regions, of which `writes` are written."""
        work = {**one.work, **other.work}
        reads = {v: n for v, n in one.reads.items() if v not in other.work}
        for v, n in other.reads.items():
            if v not in one.work and n > reads.get(v, 0):
                reads[v] = n
        return Least(work, reads, writes, one.masked or other.masked)

    def burden(self, least: Least, kernels: int) -> float:
        """Nanoseconds that so many kernels take at least which are all of it together."""
        model = self.model
        folds = least.masked and any(model.units.folds >> u & 1 for u in least.work)
        work = 0.0 if folds else sum(least.work.values())
        one, every = self._traffic(least, 1), self._traffic(least, model.cores)
        start = min(model.target.launch_ns, INLINE_LAUNCH_NS)
        inside = kernels * INLINE_LAUNCH_NS + _charged(work, one)
        threaded = model.target.launch_ns + (kernels - 1) * start
        threaded += _charged(work / model.cores, every)
        if kernels == 1 and (work >= INLINE_NS or work + one >= INLINE_NS):
            return threaded
        return min(inside, threaded)

    def _traffic(self, least: Least, threads: int) -> float:
        model = self.model
        found = sum([model.read_ns(v, n, threads) for v, n in least.reads.items()])
        return found + sum([model.write_ns(u, threads) for u in bits(least.writes)])

    def _of(self, region: Region) -> Least:
        model = self.model
        sizes = [model.extents[e] for e in region.axes]
        volumes: dict[int, int] = {}

        def volume(mask: int) -> int:
            found = volumes.get(mask)
            if found is None:
                found = 1
                for a in bits(mask):
                    found *= sizes[a]
                volumes[mask] = found
            return found

        work: dict[int, float] = {}
        for u, masks in region.masks.items():
            times = min(max(map(volume, masks)), model.elements[u])
            work[u] = model.step_ns[u] * times * volume(region.ended.get(u, 0))
        reads = {
            v: min(max(map(volume, masks)), model.elements[v]) * model.itemsize[v]
            for v, masks in region.load_masks.items()
        }
        return Least(work, reads, region.stored, is_masked(model, region))


def _charged(work: float, traffic: float) -> float:
    """What is charged of both where the shorter hides behind the longer."""
    return work + traffic - CHARGED * min(work, traffic)
