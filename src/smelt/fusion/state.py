"""Clusters in the making: what each holds, who reads whom, and verdicts on sets of units.

Clusters are numbered by one of their units; sets of units and of clusters are bit masks.  A verdict
is found once for each set and remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.fusion import streamable_axes, streams
from smelt.fusion.assemble import Group
from smelt.fusion.bitsets import bits
from smelt.fusion.cost import Cost, Model
from smelt.fusion.fusion_barriers import Barriers
from smelt.fusion.isomorphism import Alike, Look, renamed
from smelt.fusion.legal import (
    CROSSING,
    FAST_MEMORY,
    Refusal,
    Wishes,
    refuse_cost,
    refuse_fault,
    refuse_region,
    refuse_sets,
)
from smelt.fusion.lower_bound import Bounds
from smelt.fusion.merge_flat_regions import join_flat
from smelt.fusion.reachability import Reach
from smelt.fusion.region import Region, look
from smelt.fusion.units import STILL, Edge, Unit, Units
from smelt.graph.ir import Node
from smelt.types.expr import Expr, atoms

MOST_ALIKE = 64
"""Units of a set beyond which looking for another that is like it takes longer than joining the
regions of two flat parts."""


@dataclass(slots=True)
class Verdict:
    """A set of units as one kernel: its cost, or why it is none (both if it could be one)."""

    found: Region
    cost: Cost | None = None
    refusal: Refusal | None = None
    looks: tuple[Look, Look] | None = None
    """Where `found` is the region of another set: what that one and this one look like."""
    key: tuple[int, int] = (0, 0)
    """The set, and those of it that are written."""

    @property
    def is_final(self) -> bool:
        """Whether no larger set is a kernel either: it was refused without a look at its axes."""
        return self.refusal is not None and self.cost is None and self.found.fault is None

    @property
    def region(self) -> Region:
        """Where its units are computed."""
        if self.looks is not None:
            self.found, self.looks = renamed(self.found, *self.looks), None
        return self.found


@dataclass(slots=True)
class Cluster:
    """A kernel in the making."""

    members: int
    stored: int
    """Members that are written, because somebody outside reads them."""
    reads: int
    """Values that it reads from memory."""
    size: float
    """Scalar operations, dear ones counted by their cost."""
    found: Verdict
    cost: Cost

    @property
    def region(self) -> Region:
        """Where its units are computed."""
        return self.found.region


SMALL = 8
"""A value is small beside one that is this many times its size."""
HELD = 2.0
"""What a value between kernels that outgrows every cache costs beyond its traffic, as a multiple of
it: it takes memory from the caller, and the first touch of that is dear."""


CHEAP = 4.0
"""Row cost of an element up to which a value that reads nothing is never worth a place in memory
(as the code generator's own limit for what it computes again)."""


class State:
    """The clusters of one graph."""

    def __init__(self, units: Units, model: Model, wishes: Wishes) -> None:
        self.units, self.model, self.wishes = units, model, wishes
        self.clusters: dict[int, Cluster] = {}
        self.holders: list[int] = [0] * len(units.values)
        """For each unit, the clusters that compute it."""
        self.readers: list[int] = [0] * len(units.values)
        """For each value, the clusters that read it from memory."""
        self.beyond = sum(1 << v for v, n in enumerate(model.nbytes) if n > model.target.l3_bytes)
        self.beyond &= ~units.outputs
        """Values between kernels that no cache holds."""
        self.alike = Alike(units, model)
        self.reach = Reach({})
        self.least = Bounds(model)
        self.barriers = Barriers(units)
        self.judged: dict[tuple[int, int], Verdict] = {}
        self.seen: dict[tuple[int, ...], tuple[tuple[int, int], Look]] = {}
        """For what a set looks like, the first such set that was judged."""
        self.asked = 0
        """Sets that were looked at, because none was like them."""
        self.maps: dict[tuple[int, ...], Cost] = {}
        """Costs of operators that map their operands, by what they look like."""
        self.walked: dict[tuple[int, int], Mapping[int, tuple[int, ...]]] = {}
        """Shapes other than their own under which sets have to walk their results."""

    # ---- clusters ------------------------------------------------------------------------------

    def place(self, c: int, members: int) -> None:
        """A new cluster, of units that no cluster has yet."""
        stored = 0
        for u in bits(members):
            users = self.units.users[u]
            if users & ~members or self.units.outputs >> u & 1 or not users:
                stored |= 1 << u
        self.put(c, self.judge(members, stored))

    def put(self, c: int, found: Verdict) -> None:
        """A new cluster, of a set that was judged."""
        members, stored = found.key
        reads, size = self.reads(members), self.size(members)
        self.clusters[c] = Cluster(members, stored, reads, size, found, found.cost or Cost())
        for u in bits(members):
            self.holders[u] |= 1 << c
        for v in bits(reads):
            self.readers[v] |= 1 << c

    def remove(self, c: int) -> None:
        """Takes a cluster away."""
        cluster = self.clusters.pop(c)
        for v in bits(cluster.reads):
            self.readers[v] &= ~(1 << c)
        for u in bits(cluster.members):
            self.holders[u] &= ~(1 << c)

    def reads(self, members: int) -> int:
        """Values that a set of units reads from outside."""
        found = 0
        for u in bits(members):
            found |= self.units.operands[u]
        return found & ~members

    def groups(self) -> list[Group]:
        """The clusters as sets, for assembly."""
        return [
            Group(c.members, c.stored, self.walked.get((c.members, c.stored), {}), _streamed(c))
            for _, c in sorted(self.clusters.items())
        ]

    def reuses(self) -> dict[Node, list[Node]]:
        """For each result of a flat kernel, the inputs that it may be written over: of its own
        type and read at its own positions only.  Of a kernel with folds, inputs of the graph that
        no other result reads, nor a fold, unless all are contractions, which visit what stands
        behind them once.  Of one that writes at computed places, what it writes into: what is
        written reads nothing there, unless the only place along each of those dimensions is
        known."""
        found: dict[Node, list[Node]] = {}
        values, inputs = self.units.values, len(self.units.inputs)
        for cluster in self.clusters.values():
            region = cluster.region
            products = all(self.units.unit(u).trace.dots for u in region.ended)
            for u in bits(region.stored):
                joins = self.units.unit(u).trace.joins
                if u not in region.places or u in region.parts:
                    continue
                place, kind = region.places[u], values[u].type
                first = any(t != STILL for t in place[0][:joins])
                if joins and not first:
                    continue
                others = 0 if region.flat else region.stored ^ 1 << u
                if not (joins or region.flat or products):
                    others |= sum(1 << f for f in region.ended)
                others = self._read_for(cluster.members, others)
                every = region.flat or first
                same = [
                    v
                    for v, read in region.loads.items()
                    if len(read) == 1
                    and read == place
                    and (every or (v < inputs and not others >> v & 1))
                ]
                found[values[u]] = [values[v] for v in same if values[v].type == kind]
        return found

    def _read_for(self, members: int, stored: int) -> int:
        """Values that some members need, members among them."""
        found = left = stored
        while left:
            u = left.bit_length() - 1
            left ^= 1 << u
            more = self.units.operands[u] & ~found
            found |= more
            left |= more & members
        return found

    def successors(self, c: int) -> int:
        """Clusters that read what `c` writes."""
        found = 0
        for u in bits(self.clusters[c].stored):
            found |= self.readers[u]
        return found

    def producers(self, c: int) -> int:
        """Clusters that write what `c` reads."""
        found = 0
        for v in bits(self.clusters[c].reads):
            found |= self.holders[v]
        return found

    def between(self, a: int, b: int) -> int:
        """Clusters that two would wait for as one, and that wait for it."""
        reach = self.reach
        found = reach.before[b] and reach.between(a, b, self.successors(a))
        return found | (reach.before[a] and reach.between(b, a, self.successors(b)))

    def held(self, values: int, stored: int = 0) -> float:
        """What it is worth in nanoseconds not to have some values in memory where only `stored` is
        written: those that no cache holds, of which only something much smaller is left."""
        found = 0.0
        model = self.model
        for v in bits(values & self.beyond):
            if model.nbytes[v] > SMALL * max((model.nbytes[u] for u in bits(stored)), default=0):
                found += model.write_ns(v, 1) + model.read_ns(v, model.nbytes[v], 1)
        return HELD * found

    def torn_fold(self, one: Cluster, other: Cluster) -> int:
        """A fold of one of two clusters that the other reads at several places, or -1."""
        for a, b in ((one, other), (other, one)):
            for u in bits(a.stored & b.reads & self.units.folds):
                if len(b.region.loads.get(u, ())) > 1:
                    return u
        return -1

    def is_made_of_nothing(self, producer: Cluster) -> bool:
        """Whether a producer reads no array and costs next to nothing, as a mask by positions does.

        It belongs to its readers even where reading it would be as cheap: where it has one value
        for a whole block, a stream does not look at it, or does not visit the block.
        """
        work = sum(self.units.unit(u).trace.cost for u in bits(producer.members))
        return not producer.reads and work <= CHEAP and not producer.members & self.units.folds

    def is_cheaper(self, chain: Cluster) -> bool:
        """Whether a chain takes less than its members one by one: what only maps always does."""
        region = chain.region
        if not chain.members & self.units.folds:
            return True
        inner, most = chain.members & ~chain.stored, chain.cost.burden
        if most <= self.least.alone(region, chain.members.bit_count(), inner):
            return True
        return most <= sum(self.alone(u).burden for u in bits(chain.members))

    # ---- verdicts ------------------------------------------------------------------------------

    def alone(self, u: int) -> Cost:
        """The cost of one operator by itself: quickly for those that only map their operands."""
        unit = self.units.unit(u)
        if unit.is_fold or unit.along >= 0 or not all(e.simple for e in unit.edges):
            return self.judge(1 << u, 1 << u).cost or Cost()
        looks = self.alike.alone(u)
        known = self.maps.get(looks)
        if known is None:
            known = self.maps[looks] = self.model.map(unit)
        return known

    def moved_alone(self, u: int) -> int:
        """Bytes that one operator by itself reads and writes."""
        model, unit = self.model, self.units.unit(u)
        volumes: dict[int, int] = {}
        for edge in unit.edges:
            n = prod([model.extents[unit.axes[a]] for a in _axes(unit, edge)])
            volumes[edge.producer] = volumes.get(edge.producer, 0) + n
        read = sum([min(n, model.elements[v]) * model.itemsize[v] for v, n in volumes.items()])
        return read + model.nbytes[u]

    def judge(self, members: int, stored: int, parts: Sequence[Cluster] = ()) -> Verdict:
        """A set of units as one kernel.  `parts` are two clusters that it joins, if any."""
        key = members, stored
        known = self.judged.get(key)
        if known is not None:
            return known
        size = self.size(members, parts)
        refusal = refuse_sets(self.units, members, size, self.wishes, self.barriers)
        if refusal is not None:
            known = Verdict(Region(members, stored), refusal=refusal)
        elif (like := self._like(key, parts)) is not None:
            known = like
        else:
            self.asked += 1
            region = self._region(members, stored, parts)
            refusal = refuse_region(self.units, region)
            cost = None
            if region.fault is None:
                cost = self.model.cost(region)
                refusal = refusal or refuse_cost(self.model, cost)
                if (streamed := self._streamed(region, cost, refusal)) is not None:
                    cost, refusal = streamed, None
                elif refusal is not None and refusal.reason == FAST_MEMORY and _is_exact():
                    details = {**refusal.details, "rounding": knobs.ROUNDING.get()}
                    refusal = Refusal("rounding-barrier", details)
            if members & (members - 1) == 0:
                refusal = None  # an operator by itself is always a kernel
            known = Verdict(region, cost, refusal)
        known.key = key
        self.judged[key] = known
        return known

    def _streamed(self, region: Region, cost: Cost, refusal: Refusal | None) -> Cost | None:
        """The cost of the region with an axis streamed, if that is legal and wins."""
        beyond = refusal is not None and refusal.reason == FAST_MEMORY
        if not streams.COMPILED or not region.ended or (refusal is not None and not beyond):
            return None
        if region.members & self.units.joined:
            return None
        if _is_exact():  # blocks would be added up before they join the rest
            return None
        if not beyond and not streamable_axes.worth_asking(self.model, region, cost):
            return None
        if not beyond and self.least.alone(region, 1) > cost.burden:
            return None
        found = streams.streamed(self.model, region, beyond=beyond)
        if found is None or (not beyond and found.burden > cost.burden):
            return None
        return found

    def _like(self, key: tuple[int, int], parts: Sequence[Cluster]) -> Verdict | None:
        """The verdict on a set that looks like another that is judged already."""
        if key[0].bit_count() > MOST_ALIKE and parts and all(part.region.flat for part in parts):
            return None
        look = self.alike.look(*key)
        if look is None:
            return None
        first, other = self.seen.setdefault(look.form, (key, look))
        known = self.judged.get(first)
        if known is None:
            return None
        walked = self.walked.get(first)
        if walked is not None:  # its extents are the very same
            self.walked[key] = {other.here(look, u): shape for u, shape in walked.items()}
        refusal, fault = known.refusal, known.found.fault
        if refusal is not None and fault is not None:  # in this set's own words
            refusal = refuse_fault(self.units, fault, other.here(look, known.found.at))
        return Verdict(known.found, known.cost, refusal, (other, look))

    def size(self, members: int, parts: Sequence[Cluster] = ()) -> float:
        """Scalar operations of a set."""
        size = self.units.size
        if not parts:
            return sum(size[u] for u in bits(members))
        one, other = parts
        return one.size + other.size - sum(size[u] for u in bits(one.members & other.members))

    def _region(self, members: int, stored: int, parts: Sequence[Cluster]) -> Region:
        """The region of a set: from those of its parts where that is possible."""
        flat = parts and parts[0].region.flat and parts[1].region.flat
        if flat and not members & self.units.joined:  # what ends its kernel: `look` asks for it
            one, other = (part.region for part in parts)
            found = join_flat(one, other, stored)
            if found is not None and found.members == members:
                found.work = one.work + other.work
                for u in bits(one.members & other.members):
                    found.work -= self.model.step_ns[u] * self.model.elements[u]
                return found
        key = members, stored
        known = self.units.looked.get(key)
        if known is None:
            region = look(self.units, members, stored)
            if region.fault == CROSSING:
                region = self._walked_otherwise(region)
            self.units.looked[key] = region, self.walked.get(key)
            return region
        region, walked = known  # at other sizes
        if walked is not None:
            self.walked[key] = walked
        return replace(region, work=-1.0, packing=0.0)

    def _walked_otherwise(self, region: Region) -> Region:
        """The region with its results walked under the shape of a member with as many elements,
        where folds then stand at positions of their own; `region` itself if there is none."""
        if all(isinstance(t, int) for t in region.places[region.at][0]):
            return region  # it is read at two places, which no shape makes one
        key = region.members, region.stored
        fold = self.units.unit(region.at)
        folds = map(self._shape, bits(region.members & self.units.folds))
        for shape in dict.fromkeys((fold.axes, fold.axes[: fold.rank], *folds)):
            alike = [u for u in bits(region.members) if self._shape(u) == shape]
            walked = {
                o: shape for o in bits(region.stored) if alike and self.units.regroups(o, alike[0])
            }
            if walked:
                other = look(self.units, *key, walked)
                if other.fault is None:
                    self.walked[key] = walked
                    return other
        return region

    def _shape(self, u: int) -> tuple[int, ...]:
        unit = self.units.unit(u)
        return unit.axes[: unit.rank]


def _axes(unit: Unit, edge: Edge) -> set[int]:
    """The axes of a unit along which it reads, those of computed positions included."""
    picks = dict(unit.trace.picks)
    found = {t for t in edge.terms if isinstance(t, int) and t != STILL}
    for x in (x for t in edge.terms if isinstance(t, Expr) for x in atoms(t)):
        if x.kind == "axis":
            found.add(int(x.name[1:]))
        elif x.kind == "value":
            found.update(picks[x.name])
    return found


def _is_exact() -> bool:
    return knobs.ROUNDING.get() == "exact"


def _streamed(cluster: Cluster) -> tuple[int, int] | None:
    """The streamed axis of a cluster: a fold, and which of the axes that end in it."""
    a = cluster.cost.stream
    ends = cluster.region.ends.items() if a >= 0 else ()
    return next(((u, axes.index(a)) for u, axes in sorted(ends) if a in axes), None)
