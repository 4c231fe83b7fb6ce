"""The least that units take, whatever kernels they are in: what no question need be asked about.

However units are divided among kernels, each is computed once, what they read from outside is read
once, and what others read of them is written once.  Where clusters take hardly more than that,
neither taking them apart nor joining parts of them otherwise can gain, and the model is not asked.

    least = starts + work + traffic - what is not charged of the shorter of the two

A kernel in the calling thread has one core, any other one all of them.  A stream may skip blocks
that masks rule out, if the units have what a stream needs, a fold that another one of them reads.
What positions rule out nobody knows before the stream is derived: there only the traffic counts.
Of what data rule out, the model knows a part that is visited, and charges little for masks.

>>> from smelt.fusion.region import look
>>> from smelt.fusion.bitsets import Hints
>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> from smelt.target import Target
>>> text = "graph f(x: f32[n]) { v0 = exp(x) : f32[n] v1 = abs(v0) : f32[n] return v1 }"
>>> units = Units(parse(text))
>>> model = Model(units, Target.for_isa("avx2"), Hints(n=1 << 20))
>>> together, least = look(units, 0b110, 0b100), Bounds(model)
>>> round(model.cost(together).burden - least.alone(together, 1), 6)
0.0
"""

from __future__ import annotations

from math import prod

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import bits
from smelt.fusion.cost import CHARGED, INLINE_LAUNCH_NS, INLINE_NS, Model
from smelt.fusion.mask_coverage import TOLD
from smelt.fusion.region import Region
from smelt.fusion.streamable_axes import is_masked
from smelt.graph.ir import Node
from smelt.types.dtype import bool_


@dataclass(frozen=True, slots=True, eq=False)
class Least:
    """What some units do in any kernels."""

    members: int
    work: dict[int, float]
    """Nanoseconds of each unit on one core."""
    total: float
    """Those of all."""
    told: float
    """Those of the units that no mask is made of."""
    read: int
    """Values that are read from outside."""
    reads: dict[int, tuple[float, float]]
    """Nanoseconds that reading each of them takes one core and all cores."""
    one: float
    every: float
    """Those of all of them."""
    written: int
    whole: float
    """Nanoseconds that one core takes at most to read each value whole, and to write each result:
    arrays take no kernel of these units longer."""
    is_masked: bool


class Bounds:
    """Least times of the regions of one graph."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.known: dict[tuple[int, int], Least] = {}
        self.start = min(model.target.launch_ns, INLINE_LAUNCH_NS)
        units = model.units
        self.ruling = sum(1 << u.number for u in units.units if _is_ruling(u.node))
        """Conditions that positions may decide for a whole block."""
        self.plain = sum(1 << u.number for u in units.units if _is_plain(u.node))
        """Units that are made of floating-point numbers alone: no part of a mask."""

    def of(self, region: Region) -> Least:
        """What the units of a region do at least."""
        key = region.members, region.stored
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._of(region)
        return found

    def alone(self, region: Region, kernels: int, kept: int = 0) -> float:
        """Nanoseconds of so many kernels, at least, that are all of a region together; of values
        that are `kept` one of them writes each and another one reads it."""
        found = self.of(region)
        share = self._share(found.members, is_masked=found.is_masked)
        work = found.total if share == 1.0 else share * found.told
        alone, every = self._again(region, kept)
        alone, every = found.one + alone, found.every + every
        return self._burden(work, alone, every, found.whole, found.written | kept, kernels)

    def both(self, one: Region, other: Region, written: int, kernels: int, kept: int = 0) -> float:
        """The same of the units of two regions, of which `written` are written; what is `kept` are
        some of the first one's."""
        a, b = self.of(one), self.of(other)
        alone, every = self._again(one, kept)
        alone, every = alone + a.one + b.one, every + a.every + b.every
        for v in bits(a.read & b.read):
            x, y = a.reads[v], b.reads[v]
            alone, every = alone - min(x[0], y[0]), every - min(x[1], y[1])
        for x, y in ((a, b), (b, a)):
            for v in bits(x.read & y.members):
                alone, every = alone - x.reads[v][0], every - x.reads[v][1]
        share = self._share(a.members | b.members, is_masked=a.is_masked or b.is_masked)
        work, both = a.told + b.told, a.members & b.members & self.plain
        if share == 1.0:
            work, both = a.total + b.total, a.members & b.members
        for u in bits(both) if share else ():
            work -= min(a.work.get(u, 0.0), b.work.get(u, 0.0))
        work *= share
        return self._burden(work, alone, every, a.whole + b.whole, written | kept, kernels)

    def _share(self, members: int, *, is_masked: bool) -> float:
        """The least part of the work of some units that masks leave of it."""
        units = self.model.units
        if not is_masked or not any(units.users[f] & members for f in bits(members & units.folds)):
            return 1.0
        return 0.0 if members & self.ruling else TOLD

    def _again(self, region: Region, kept: int) -> tuple[float, float]:
        """Nanoseconds of reading some members of a region, by one core and by all."""
        model = self.model
        alone = every = 0.0
        for u in bits(kept):
            if u not in region.masks:  # joined of flat ones, which know their results' places only
                continue
            volumes = [
                prod([model.extents[region.axes[a]] for a in bits(m)]) for m in region.masks[u]
            ]
            nbytes = min(*volumes, model.elements[u]) * model.itemsize[u]
            alone += model.read_ns(u, nbytes, 1)
            every += model.read_ns(u, nbytes, model.cores)
        return alone, every

    def _burden(
        self, work: float, one: float, every: float, whole: float, written: int, kernels: int
    ) -> float:
        model = self.model
        for u in bits(written):
            one += model.write_ns(u, 1)
            every += model.write_ns(u, model.cores)
        threaded = model.target.launch_ns + (kernels - 1) * self.start
        # what is not run in the calling thread takes long enough, be it that it computes more
        threaded += max(_charged(work / model.cores, every), (INLINE_NS - whole) / model.cores)
        if kernels == 1 and (work >= INLINE_NS or work + one >= INLINE_NS):
            return threaded
        return min(threaded, kernels * INLINE_LAUNCH_NS + _charged(work, one))

    def _of(self, region: Region) -> Least:
        model = self.model
        sizes = [model.extents[e] for e in region.axes]
        volumes: dict[int, int] = {0: 1}

        def volume(mask: int) -> int:
            found = volumes.get(mask)
            if found is None:
                found = volumes[mask] = prod([sizes[a] for a in bits(mask)])
            return found

        work: dict[int, float] = {}
        for u, masks in region.masks.items():
            times = min(max(map(volume, masks)), model.elements[u])
            work[u] = model.step_ns[u] * times * volume(region.ended.get(u, 0))
        reads: dict[int, tuple[float, float]] = {}
        read = 0
        for v, masks in region.load_masks.items():
            nbytes = min(max(map(volume, masks)), model.elements[v]) * model.itemsize[v]
            reads[v] = model.read_ns(v, nbytes, 1), model.read_ns(v, nbytes, model.cores)
            read |= 1 << v
        whole = sum([model.read_ns(v, model.nbytes[v], 1) for v in bits(read | region.members)])
        whole += sum([model.write_ns(u, 1) for u in bits(region.members)])
        return Least(
            region.members,
            work,
            sum(work.values()),
            sum([ns for u, ns in work.items() if self.plain >> u & 1]),
            read,
            reads,
            sum([x for x, _ in reads.values()]),
            sum([x for _, x in reads.values()]),
            region.stored,
            whole,
            is_masked(model, region),
        )


def _is_ruling(node: Node) -> bool:
    """Whether a condition compares integers, as positions are."""
    return node.type.dtype == bool_ and any(x.type.dtype.kind == "int" for x in node.inputs)


def _is_plain(node: Node) -> bool:
    """Whether an operator reads and makes nothing but floating-point numbers."""
    return node.type.dtype.is_float and all(x.type.dtype.is_float for x in node.inputs)


def _charged(work: float, traffic: float) -> float:
    """What is charged of both where the shorter hides behind the longer."""
    return work + traffic - CHARGED * min(work, traffic)
