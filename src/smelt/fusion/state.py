"""Maintain clusters during the search: what they hold, who reads them, what they cost.

`Reach` says which clusters wait for which, so that no join closes a cycle. A `Verdict` is the price
of a set of units as one kernel, or why it is none; each set is judged once, and isomorphic sets
share theirs. `State` has the clusters, and stores what somebody outside of one reads.

Clusters are numbered by one of their units; sets of units and of clusters are bit masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smelt import knobs
from smelt.fusion import streams
from smelt.fusion.bitsets import bits, closure
from smelt.fusion.cost_model import Bounds, Cost, CostModel
from smelt.fusion.isomorphism import Isomorphism, Signature, rename_region
from smelt.fusion.legal import (
    CROSSING,
    FAST_MEMORY,
    Barriers,
    FusionConstraints,
    Refusal,
    refuse_cost,
    refuse_fault,
    refuse_region,
    refuse_sets,
)
from smelt.fusion.plan import Group
from smelt.fusion.region import Region, build_region, join_flat
from smelt.fusion.units import AT_ZERO, Units
from smelt.graph.ir import Node
from smelt.python.dataclass import dataclass


class Reach:
    """Ancestors and descendants of clusters, by number, updated as clusters join.

    Two clusters may be joined unless a path leads from one to the other through a third: the joined
    kernel would wait for itself. It is not enough that every cluster is convex by itself.

    >>> chain = Reach({0: 0b010, 1: 0b100, 2: 0})
    >>> chain.between(0, 2, chain.after[0]), chain.between(0, 1, chain.after[0])
    (2, 0)
    """

    def __init__(self, successors: Mapping[int, int]) -> None:
        """Build from the set of readers of each cluster."""
        self.after: dict[int, int] = dict.fromkeys(successors, 0)
        self.before: dict[int, int] = dict.fromkeys(successors, 0)
        order = _readers_first(successors)
        for c in order:
            for s in bits(successors[c]):
                self.after[c] |= self.after[s] | 1 << s
        for c in reversed(order):
            for s in bits(successors[c]):
                self.before[s] |= self.before[c] | 1 << c

    def between(self, a: int, b: int, successors: int) -> int:
        """Return the clusters that read `a` and that `b` depends on.

        A joined kernel would wait for these.
        """
        return successors & self.before[b] & ~(1 << a)

    def join(self, a: int, b: int) -> None:
        """Make `a` a part of `b`; the number `a` is not used any more.

        Clusters that precede or follow both already know what the other one brings. In a chain of
        clusters that is nearly all of them, so only the others are updated.
        """
        of_a, of_b = (self.after[a], self.before[a]), (self.after[b], self.before[b])
        after = (of_a[0] | of_b[0]) & ~(1 << a | 1 << b)
        before = (of_a[1] | of_b[1]) & ~(1 << a | 1 << b)
        this = 1 << b
        for c in bits(before & (of_a[1] ^ of_b[1])):
            if c in self.after:
                self.after[c] |= after | this
        for c in bits(after & (of_a[0] ^ of_b[0])):
            if c in self.before:
                self.before[c] |= before | this
        self.after[b], self.before[b] = after, before
        self.drop(a)

    def drop(self, a: int) -> None:
        """Remove `a`, which was copied into all its readers."""
        del self.after[a], self.before[a]


def topological_order(successors: Mapping[int, int]) -> list[int]:
    """Return the clusters in topological order, each before its readers."""
    return _readers_first(successors)[::-1]


def _readers_first(successors: Mapping[int, int]) -> list[int]:
    order: list[int] = []
    done = 0
    for start in successors:
        stack = [start]
        while stack:
            c = stack[-1]
            unfinished = [s for s in bits(successors[c]) if not done >> s & 1]
            if unfinished and not done >> c & 1:
                stack += unfinished
                continue
            stack.pop()
            if not done >> c & 1:
                done |= 1 << c
                order.append(c)
    return order


MAX_ALIKE = 64
"""Maximum units of a set for which an isomorphic set is looked up.

For more it is faster to join the regions of two flat parts.
"""


@dataclass(slots=True)
class Verdict:
    """The evaluation of a set of units as one kernel.

    Its cost, or the reason why it is not a kernel, or both if it could be one.
    """

    source_region: Region
    cost: Cost | None = None
    refusal: Refusal | None = None
    looks: tuple[Signature, Signature] | None = None
    """If `verdict` is the region of an isomorphic set: the signatures of that set and of this
    one."""
    key: tuple[int, int] = (0, 0)
    """The set, and those of its units that are stored."""

    @property
    def is_final(self) -> bool:
        """Return whether no larger set is a kernel either.

        That is so if it was refused without building a region.
        """
        return self.refusal is not None and self.cost is None and self.source_region.fault is None

    @property
    def region(self) -> Region:
        """Return the region of the set."""
        if self.looks is not None:
            self.source_region, self.looks = rename_region(self.source_region, *self.looks), None
        return self.source_region


@dataclass(slots=True)
class Cluster:
    """A cluster during the search."""

    members: int
    stored: int
    """Members that are stored because a reader outside needs them."""
    reads: int
    """Values that it reads from memory."""
    size: float
    """Scalar operations, expensive ones counted by their cost."""
    verdict: Verdict
    cost: Cost

    @property
    def region(self) -> Region:
        """Return the region of the cluster."""
        return self.verdict.region


SMALL_RATIO = 8
"""Minimum ratio of sizes for the smaller of two values to count as small."""
UNCACHED_PENALTY = 2.0
"""Cost of a value between kernels that exceeds every cache, as a multiple of its traffic.

It takes memory from the caller, and touching that for the first time is expensive.
"""
FRUGAL_PENALTY = 1e6
"""The same where memory counts before time, for every value."""


CHEAP_ELEMENT_COST = 4.0
"""Maximum cost of an element of a value that reads nothing and is never worth storing.

Equals the code generator's own limit for what it recomputes.
"""


class State:
    """The clusters of one graph."""

    def __init__(
        self, units: Units, model: CostModel, wishes: FusionConstraints, *, frugal: bool = False
    ) -> None:
        self.units, self.model, self.wishes = units, model, wishes
        self.penalty, self.size_ratio = (
            (FRUGAL_PENALTY, 0) if frugal else (UNCACHED_PENALTY, SMALL_RATIO)
        )
        self.clusters: dict[int, Cluster] = {}
        self.holders: list[int] = [0] * len(units.values)
        """For each unit, the clusters that compute it."""
        self.readers: list[int] = [0] * len(units.values)
        """For each value, the clusters that read it from memory."""
        self.uncached_values = sum(
            1 << v for v, n in enumerate(model.nbytes) if frugal or n > model.machine.cache_bytes
        )
        self.uncached_values &= ~units.outputs
        """Values between kernels that exceed every cache."""
        self.isomorphism = Isomorphism(units, model)
        self.reach = Reach({})
        self.lower_bounds = Bounds(model)
        self.barriers = Barriers(units)
        self.verdicts: dict[tuple[int, int], Verdict] = {}
        self.seen: dict[tuple[int, ...], tuple[tuple[int, int], Signature]] = {}
        """For each signature, the first set that was evaluated with it."""
        self.evaluated_regions = 0
        """Number of sets whose region was evaluated because no isomorphic set was known."""
        self.map_costs: dict[tuple[int, ...], Cost] = {}
        """Costs of elementwise operators by signature."""
        self.by_time = False
        """Whether kernels are compared by their time alone, without what hides in it."""

    # ---- clusters ------------------------------------------------------------------------------

    def add_cluster(self, c: int, members: int) -> None:
        """Add a cluster of units that no cluster holds yet."""
        stored = 0
        for u in bits(members):
            users = self.units.users[u]
            if users & ~members or self.units.outputs >> u & 1 or not users:
                stored |= 1 << u
        self.add_evaluated(c, self.evaluate(members, stored))

    def add_evaluated(self, c: int, verdict: Verdict) -> None:
        """Add a cluster of an evaluated set."""
        members, stored = verdict.key
        reads, size = self.reads(members), self.size(members)
        self.clusters[c] = Cluster(members, stored, reads, size, verdict, verdict.cost or Cost())
        for u in bits(members):
            self.holders[u] |= 1 << c
        for v in bits(reads):
            self.readers[v] |= 1 << c

    def remove(self, c: int) -> None:
        """Remove a cluster."""
        cluster = self.clusters.pop(c)
        for v in bits(cluster.reads):
            self.readers[v] &= ~(1 << c)
        for u in bits(cluster.members):
            self.holders[u] &= ~(1 << c)

    def reads(self, members: int) -> int:
        """Return the values that a set of units reads from outside."""
        operands = 0
        for u in bits(members):
            operands |= self.units.operands[u]
        return operands & ~members

    def groups(self) -> list[Group]:
        """Return the clusters as sets for assembly."""
        return [
            Group(
                c.members,
                c.stored,
                c.region.walked,
                _stream_cost(c),
            )
            for _, c in sorted(self.clusters.items())
        ]

    def reuses(self) -> dict[Node, list[Node]]:
        """Return for each result of a kernel the inputs that it may overwrite.

        Such an input has the result's type and is read at the result's position only. In a flat
        kernel any such input qualifies. In a kernel with reductions, only inputs of the graph that
        no other result and no reduction reads; reductions do not count if all of them are
        contractions, which read an operand only once. A scatter may overwrite its destination,
        since its updates read nothing there, unless all dimensions that it indexes have extent 1.
        """
        overwritable: dict[Node, list[Node]] = {}
        values, inputs = self.units.values, len(self.units.inputs)
        for cluster in self.clusters.values():
            region = cluster.region
            products = all(self.units.unit(u).trace.dots for u in region.reduced_axes)
            for u in bits(region.stored):
                joins = self.units.unit(u).trace.scatter_dims
                if u not in region.positions or u in region.parts:
                    continue
                position, kind = region.positions[u], values[u].type
                at_start = any(t != AT_ZERO for t in position[0][:joins])
                if joins and not at_start:
                    continue
                other_readers = 0 if region.flat else region.stored ^ 1 << u
                if not (joins or region.flat or products):
                    other_readers |= sum(1 << f for f in region.reduced_axes)
                other_readers = self._needed_for(cluster.members, other_readers)
                any_value = region.flat or at_start
                candidates = [
                    v
                    for v, read in region.loads.items()
                    if len(read) == 1
                    and read == position
                    and (any_value or (v < inputs and not other_readers >> v & 1))
                ]
                overwritable[values[u]] = [values[v] for v in candidates if values[v].type == kind]
        return overwritable

    def _needed_for(self, members: int, stored: int) -> int:
        """Return the values that some members depend on, including the members themselves."""
        needed = closure(stored, self.units.operands, members)
        for u in bits(needed):
            needed |= self.units.operands[u]
        return needed

    def stored_beyond(self, stored: int, inside: int, always: int = 0) -> int:
        """Return those of some values that must be stored.

        These are values that clusters outside `inside` read, that nobody reads, or that are in
        `always`.
        """
        units = self.units
        return sum(
            1 << u
            for u in bits(stored)
            if self.readers[u] & ~inside or (units.outputs | always) >> u & 1 or not units.users[u]
        )

    def successors(self, c: int) -> int:
        """Return the clusters that read what `c` stores."""
        clusters = 0
        for u in bits(self.clusters[c].stored):
            clusters |= self.readers[u]
        return clusters

    def producers(self, c: int) -> int:
        """Return the clusters that store what `c` reads."""
        clusters = 0
        for v in bits(self.clusters[c].reads):
            clusters |= self.holders[v]
        return clusters

    def between(self, a: int, b: int) -> int:
        """Return the clusters that would be in a cycle with the union of two.

        The union would wait for them, and they for it.
        """
        reach = self.reach
        clusters = reach.before[b] and reach.between(a, b, self.successors(a))
        return clusters | (reach.before[a] and reach.between(b, a, self.successors(b)))

    def uncached_ns(self, values: int, stored: int = 0) -> float:
        """Return the gain in nanoseconds of not keeping some uncached values in memory.

        Only values count that exceed every cache (or all, if memory counts before time) and of
        which only something much smaller is stored.
        """
        total_ns = 0.0
        model = self.model
        for v in bits(values & self.uncached_values):
            if model.nbytes[v] > self.size_ratio * max(
                (model.nbytes[u] for u in bits(stored)), default=0
            ):
                total_ns += model.write_ns(v, 1) + model.read_ns(v, model.nbytes[v], 1)
        return self.penalty * total_ns

    def multiply_read_reduction(self, first: Cluster, second: Cluster) -> int:
        """Return a reduction of one cluster that the other reads at several positions, or -1."""
        for a, b in ((first, second), (second, first)):
            for u in bits(a.stored & b.reads & self.units.reductions):
                if len(b.region.loads.get(u, ())) > 1:
                    return u
        return -1

    def is_cheap_generator(self, producer: Cluster) -> bool:
        """Return whether a producer reads no array and costs almost nothing.

        Such as a mask by positions. It belongs to its readers even where loading it would be as
        cheap: where it is constant in a block, a stream skips it or the block.
        """
        work = sum(self.units.unit(u).trace.cost for u in bits(producer.members))
        return (
            not producer.reads
            and work <= CHEAP_ELEMENT_COST
            and not producer.members & self.units.reductions
        )

    def is_cheaper(self, chain: Cluster) -> bool:
        """Return whether a chain is faster than its members as single kernels."""
        region = chain.region
        if not chain.members & self.units.reductions:
            return True
        unstored, objective_ns = chain.members & ~chain.stored, chain.cost.objective_ns
        if objective_ns <= self.lower_bounds.single(region, chain.members.bit_count(), unstored):
            return True
        return objective_ns <= sum(self.single_cost(u).objective_ns for u in bits(chain.members))

    # ---- verdicts ------------------------------------------------------------------------------

    def compare_by_time(self) -> None:
        """Compare kernels by predicted time alone from now on, and by launches not shared."""
        self.by_time = True
        for verdict in self.verdicts.values():
            verdict.cost = self._compared(verdict.cost)
        for cluster in self.clusters.values():
            cluster.cost = cluster.verdict.cost or Cost()

    def _compared(self, cost: Cost | None) -> Cost | None:
        """Return a cost with the objective by which kernels are compared."""
        if cost is None or not self.by_time:
            return cost
        return replace(cost, objective_ns=cost.total + cost.unshared_ns)

    def single_cost(self, u: int) -> Cost:
        """Return the cost of one operator as a kernel; cheap to compute for elementwise ones."""
        unit = self.units.unit(u)
        if unit.is_reduction or unit.scan_axis >= 0 or not all(e.simple for e in unit.edges):
            return self.evaluate(1 << u, 1 << u).cost or Cost()
        signature = self.isomorphism.alone(u)
        cost = self.map_costs.get(signature)
        if cost is None:
            cost = self.map_costs[signature] = self.model.map_cost(unit)
        return cost

    def evaluate(self, members: int, stored: int, parts: Sequence[Cluster] = ()) -> Verdict:
        """Return the verdict on a set of units as one kernel.

        `parts` are the two clusters that it joins, if any.
        """
        key = members, stored
        verdict = self.verdicts.get(key)
        if verdict is not None:
            return verdict
        size = self.size(members, parts)
        refusal = refuse_sets(self.units, members, size, self.wishes, self.barriers)
        if refusal is not None:
            verdict = Verdict(Region(members, stored), refusal=refusal)
        elif (isomorphic := self._from_isomorphic(key, parts)) is not None:
            verdict = isomorphic
        else:
            self.evaluated_regions += 1
            region = self._region(members, stored, parts)
            refusal = refuse_region(self.units, region)
            cost = None
            if region.fault is None:
                cost = self.model.cost(region)
                refusal = refusal or refuse_cost(self.model, cost)
                if (stream_cost := self._stream_cost(region, cost, refusal)) is not None:
                    cost, refusal = stream_cost, None
                elif refusal is not None and refusal.reason == FAST_MEMORY and _is_exact():
                    details = {**refusal.details, "rounding": knobs.ROUNDING.get()}
                    refusal = Refusal("rounding-barrier", details)
            if members & (members - 1) == 0:
                refusal = None  # a single operator is always a kernel
            verdict = Verdict(region, self._compared(cost), refusal)
        verdict.key = key
        self.verdicts[key] = verdict
        return verdict

    def _stream_cost(self, region: Region, cost: Cost, refusal: Refusal | None) -> Cost | None:
        """Return the cost with an axis streamed, if that is legal and faster."""
        exceeds_memory = refusal is not None and refusal.reason == FAST_MEMORY
        if not region.reduced_axes or (refusal is not None and not exceeds_memory):
            return None
        if region.members & self.units.scatters:
            return None
        if _is_exact():  # exact rounding: partial sums of blocks would change the result
            return None
        if not exceeds_memory and not self.model.stream_may_gain(region, cost):
            return None
        if not exceeds_memory and self.lower_bounds.single(region, 1) > cost.objective_ns:
            return None
        cost_ns = streams.cheapest_stream(self.model, region, beyond=exceeds_memory)
        if cost_ns is None or (not exceeds_memory and cost_ns.objective_ns > cost.objective_ns):
            return None
        return cost_ns

    def _from_isomorphic(self, key: tuple[int, int], parts: Sequence[Cluster]) -> Verdict | None:
        """Return the verdict on a set that is isomorphic to an evaluated one."""
        if key[0].bit_count() > MAX_ALIKE and parts and all(part.region.flat for part in parts):
            return None
        signature = self.isomorphism.signature(*key)
        if signature is None:
            return None
        first, first_signature = self.seen.setdefault(signature.form, (key, signature))
        verdict = self.verdicts.get(first)
        if verdict is None:
            return None
        refusal, fault = verdict.refusal, verdict.source_region.fault
        if refusal is not None and fault is not None:  # expressed with this set's values
            refusal = refuse_fault(
                self.units,
                fault,
                first_signature.translate(signature, verdict.source_region.fault_unit),
            )
        return Verdict(verdict.source_region, verdict.cost, refusal, (first_signature, signature))

    def size(self, members: int, parts: Sequence[Cluster] = ()) -> float:
        """Return the scalar operations of a set."""
        size = self.units.size
        if not parts:
            return sum(size[u] for u in bits(members))
        first, second = parts
        return first.size + second.size - sum(size[u] for u in bits(first.members & second.members))

    def _region(self, members: int, stored: int, parts: Sequence[Cluster]) -> Region:
        """Return the region of a set, built from its parts' regions if both are flat."""
        flat = parts and parts[0].region.flat and parts[1].region.flat
        if (
            flat and not members & self.units.scatters
        ):  # `signature` checks that a scatter ends its kernel
            first, second = (part.region for part in parts)
            joined = join_flat(first, second, stored)
            if joined is not None and joined.members == members:
                joined.work = first.work + second.work
                for u in bits(first.members & second.members):
                    joined.work -= self.model.step_ns[u] * self.model.elements[u]
                return joined
        key = members, stored
        cached = self.units.region_cache.get(key)
        if cached is None:
            region = build_region(self.units, members, stored)
            if region.fault == CROSSING:
                region = self._with_result_shapes(region)
            self.units.region_cache[key] = region
            return region
        return replace(cached, work=-1.0, packing=0.0)  # built by a search at other sizes

    def _with_result_shapes(self, region: Region) -> Region:
        """Iterate over results under another member's shape, where that makes the region legal.

        The shape must have as many elements; reductions may then stand at positions of their own.
        Returns `region` itself if no shape helps.
        """
        if all(isinstance(t, int) for t in region.positions[region.fault_unit][0]):
            return region  # it is read at two positions, which no shape unites
        key = region.members, region.stored
        reduction = self.units.unit(region.fault_unit)
        shapes = map(self._shape, bits(region.members & self.units.reductions))
        for shape in dict.fromkeys((reduction.axes, reduction.axes[: reduction.rank], *shapes)):
            matching = [u for u in bits(region.members) if self._shape(u) == shape]
            result_shapes = {
                o: shape
                for o in bits(region.stored)
                if matching and self.units.regroups(o, matching[0])
            }
            if result_shapes:
                reshaped = build_region(self.units, *key, result_shapes)
                if reshaped.fault is None:
                    return reshaped
        return region

    def _shape(self, u: int) -> tuple[int, ...]:
        unit = self.units.unit(u)
        return unit.axes[: unit.rank]


def _is_exact() -> bool:
    return knobs.ROUNDING.get() == "exact"


def _stream_cost(cluster: Cluster) -> tuple[int, int] | None:
    """Return the streamed axis of a cluster: a reduction, and the index among its axes."""
    axis = cluster.cost.stream
    reductions = cluster.region.reduced_axis_order.items() if axis >= 0 else ()
    return next(((u, axes.index(axis)) for u, axes in sorted(reductions) if axis in axes), None)
