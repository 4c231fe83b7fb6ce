"""Which units become one kernel: a queue of producers by predicted gain.

1. Chains: a value with one reader, read where it stands, joins its reader.  Nothing is lost by it,
   so no time is spent on asking the model.
2. Producers, dearest first: copied into all their readers, if computing again beats storing; else
   joined with the reader that gains most, written there if others need it.
3. Siblings: kernels that read the same array over the same axes.
4. Again from 2, until no candidate is predicted to gain.

Clusters are numbered by one of their units; sets of units and of clusters are bit masks.  The order
of candidates is that of gains, then of numbers: equal graphs give equal plans.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m]) {
...   v0 = reduce.sum(x) {axes=(1,)}
...   v1 = reshape(v0) {shape=(n,1)}
...   v2 = div(x, v1)
...   return v2
... }''')
>>> result = plan(graph, Target.for_isa("avx2"), None, {"n": 4096, "m": 512})
>>> [[node.op.name for node in cluster.nodes] for cluster in result.clusters]
[['reduce.sum', 'reshape', 'div']]
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter

from smelt import knobs
from smelt.fusion import memory
from smelt.fusion.assemble import Group, clusters_of
from smelt.fusion.cost import Cost, Model
from smelt.fusion.decide import Decisions
from smelt.fusion.legal import Refusal, Wishes, refuse_cost, refuse_region, refuse_sets
from smelt.fusion.plan import Plan
from smelt.fusion.reach import Reach
from smelt.fusion.region import Region, look
from smelt.fusion.sets import Hints, bits
from smelt.fusion.units import Units
from smelt.graph.ir import Graph
from smelt.journal import Journal, Planned
from smelt.target import Target

MOST_COPIES = 6
"""Readers beyond which a producer is not copied into each of them."""
MOST_SIBLINGS = 12
"""Readers of one array that are tried in pairs."""
CHAIN_STREAMS = 12
"""Arrays that a chain may read before the model is asked about every further join."""
CHAIN_SIZE = 200.0
"""Scalar operations that a chain may hold before the model is asked."""
CROSSING = "reduction-crossing"
FORCED = 1e18
"""The gain of a join that the user demands."""
AGAIN = 0.5
"""Part of repeated arithmetic that counts although it would hide behind memory."""
LEAST_GAIN = 1e-6
"""Nanoseconds below which a gain is rounding."""


@dataclass(slots=True)
class Cluster:
    """A kernel in the making."""

    members: int
    stored: int
    """Members that are written, because somebody outside reads them."""
    reads: int
    cost: Cost
    version: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """What would become of a set of clusters."""

    gain: float
    joined: tuple[tuple[int, int, int, Cost], ...] = ()
    """For each cluster that remains: its number, members, stored units and cost."""
    refusal: Refusal | None = None
    copies: bool = False


def plan(
    graph: Graph,
    target: Target,
    journal: Journal | None,
    hints: Mapping[str, int],
    *,
    fuse: bool = True,
) -> Plan:
    """The plan of a graph: right for all sizes, chosen for those of `hints`.

    `hints` are the sizes seen at the first call; one that is missing is guessed.  With `fuse`
    False every operator becomes a kernel.  Decisions go into the plan and into `journal`.
    """
    start = perf_counter()
    sizes = Hints(hints)
    units = Units(graph)
    model = Model(units, target, sizes)
    wishes = Wishes(units, knobs.MUST_FUSE.get(), knobs.NEVER_FUSE.get())
    decisions = Decisions(model, recording=journal is None or journal.keep)
    search = Search(units, model, wishes, decisions)
    if fuse:
        search.run()
    else:
        decisions.off()
    clusters, launches = clusters_of(units, search.groups(), sizes)
    slots = memory.assign(graph, clusters, launches, sizes)
    result = Plan(graph, clusters, launches, tuple(decisions.found), slots)
    if journal is not None:
        for decision in decisions.found:
            journal.record(decision)
        moved = sum(c.cost.read + c.cost.written for c in search.clusters.values())
        seconds = perf_counter() - start
        count = len(units.units)
        journal.record(
            Planned(graph.name, count, len(clusters), moved, search.apart_bytes, seconds)
        )
    return result


def again_ns(arithmetic: float) -> float:
    """What computing something again costs a plan beyond its time now: arithmetic that hides
    behind memory today stands in the way of the next join."""
    return AGAIN * max(arithmetic, 0.0)


class Search:
    """The clusters of one graph, and the moves between them."""

    def __init__(self, units: Units, model: Model, wishes: Wishes, decisions: Decisions) -> None:
        self.units, self.model, self.wishes, self.decisions = units, model, wishes, decisions
        self.clusters: dict[int, Cluster] = {}
        self.holders: list[int] = [0] * len(units.values)
        """For each unit, the clusters that compute it."""
        self.readers: list[int] = [0] * len(units.values)
        """For each value, the clusters that read it from memory."""
        self.judged: dict[tuple[int, int], tuple[Cost | None, Refusal | None]] = {}
        self.walked: dict[tuple[int, int], Mapping[int, tuple[int, ...]]] = {}
        """Shapes other than their own under which sets have to walk their results."""
        self.reach = Reach({})
        for unit in units.units:
            self._place(unit.number, 1 << unit.number)
        self.apart_ns = sum(c.cost.total for c in self.clusters.values())
        self.apart_bytes = sum(c.cost.read + c.cost.written for c in self.clusters.values())

    # ---- clusters ------------------------------------------------------------------------------

    def _place(self, c: int, members: int) -> None:
        """A new cluster that owns all its members."""
        for u in bits(members):
            self.holders[u] = 1 << c
        stored = 0
        for u in bits(members):
            users = self.units.users[u]
            if users & ~members or self.units.outputs >> u & 1 or not users:
                stored |= 1 << u
        cost, _ = self.judge(members, stored)
        self.clusters[c] = Cluster(members, stored, self.reads(members), cost or Cost())
        for v in bits(self.clusters[c].reads):
            self.readers[v] |= 1 << c

    def reads(self, members: int) -> int:
        """Values that a set of units reads from outside."""
        found = 0
        for u in bits(members):
            found |= self.units.operands[u]
        return found & ~members

    def groups(self) -> list[Group]:
        """The clusters as sets, for assembly."""
        return [
            Group(c.members, c.stored, self.walked.get((c.members, c.stored), {}))
            for _, c in sorted(self.clusters.items())
        ]

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

    def judge(self, members: int, stored: int) -> tuple[Cost | None, Refusal | None]:
        """The cost of a set as one kernel, or why it is none.  Both if only its size forbids it."""
        key = members, stored
        known = self.judged.get(key)
        if known is None:
            cost: Cost | None = None
            refusal = refuse_sets(self.units, members, self.wishes)
            if refusal is None:
                region = look(self.units, members, stored)
                if region.fault == CROSSING:
                    region = self._walked_otherwise(region)
                refusal = refuse_region(self.units, region)
                if region.fault is None:
                    cost = self.model.cost(region)
                    refusal = refusal or refuse_cost(self.model, cost)
            if members.bit_count() == 1:
                refusal = None
            known = self.judged[key] = cost, refusal
        return known

    def _walked_otherwise(self, region: Region) -> Region:
        """The region with its results walked under the shape of a member with as many elements,
        where folds then stand at positions of their own; `region` itself if there is none."""
        key = region.members, region.stored
        for u in bits(region.members):
            shape = self.units.unit(u).axes[: self.units.unit(u).rank]
            walked = {o: shape for o in bits(region.stored) if self.units.regroups(o, u)}
            if walked and walked not in self.walked.get(key, ()):
                other = look(self.units, *key, walked)
                if other.fault is None:
                    self.walked[key] = walked
                    return other
        return region

    # ---- the run -------------------------------------------------------------------------------

    def run(self) -> None:
        """All joins that gain."""
        self._chains()
        self.reach = Reach({c: self.successors(c) for c in self.clusters})
        fresh: Iterable[int] = list(self.clusters)
        while True:
            self._producers(fresh)
            fresh = self._siblings()
            if not fresh:
                break
        self._refusals()

    def _chains(self) -> None:
        """Joins values with their only readers where that is no question."""
        units = self.units
        if self.wishes.never:
            return
        homes = {unit.number: unit.number for unit in units.units}
        sets = {unit.number: 1 << unit.number for unit in units.units}
        size = list(units.size)
        users: dict[int, int] = {}
        inputs = [ops.bit_count() for ops in units.operands]
        for unit in reversed(units.units):
            p = unit.number
            user = units.users[p].bit_length() - 1
            if units.users[p].bit_count() != 1 or units.outputs >> p & 1:
                continue
            if not self._follows(p, user):
                continue
            home = homes[user]
            streams = inputs[home] + inputs[p] - 1
            if streams > CHAIN_STREAMS or size[home] + size[p] > CHAIN_SIZE:
                continue
            size[home] += size[p]
            inputs[home] = streams
            homes[p] = home
            users[p] = user
            sets[home] |= sets.pop(p)
        for c, members in sets.items():
            if members.bit_count() > 1:
                apart = [self.clusters.pop(u).cost for u in bits(members)]
                for v in bits(members | self.reads(members)):
                    self.readers[v] &= ~members
                self._place(c, members)
                joins = [(p, users[p]) for p in bits(members) if p != c]
                self.decisions.chain(joins, self.clusters[c], apart)

    def _follows(self, p: int, c: int) -> bool:
        """Whether unit `c` reads unit `p` exactly once at each of its positions."""
        unit, user = self.units.unit(p), self.units.unit(c)
        if unit.is_library or user.is_library or unit.along >= 0:
            return False
        edges = [e for e in user.edges if e.producer == p]
        if len(edges) != 1 or not edges[0].simple:
            return False
        walked = {k for k, e in enumerate(user.axes) if e != self.units.one}
        if {t for t in edges[0].terms if t != -1} != walked:  # type: ignore[comparison-overlap]
            return False
        shared = bool(self.units.users[c].bit_count() > 1)
        dearer = self.model.nbytes[c] > self.model.nbytes[p]
        return not (shared and dearer) and not (unit.is_fold and user.is_fold)

    def _producers(self, fresh: Iterable[int]) -> None:
        """Moves producers into their readers, the largest gain first."""
        queue: list[tuple[float, int, int]] = []

        def ask(c: int) -> None:
            found = self.best(c)
            if found.gain > LEAST_GAIN:
                heapq.heappush(queue, (-found.gain, c, self.clusters[c].version))

        for c in fresh:
            if c in self.clusters:
                ask(c)
        while queue:
            gain, c, version = heapq.heappop(queue)
            cluster = self.clusters.get(c)
            if cluster is None or cluster.version != version:
                continue
            move = self.best(c)
            if move.gain <= LEAST_GAIN:
                continue
            if move.gain < -gain - LEAST_GAIN:
                heapq.heappush(queue, (-move.gain, c, version))
                continue
            changed = self.apply(c, move)
            again = changed
            for k in bits(changed):
                again |= self.producers(k)
            for k in bits(again):
                if k in self.clusters:
                    ask(k)

    def best(self, p: int) -> Candidate:
        """The best thing to do with a producer and its readers."""
        readers = [c for c in bits(self.successors(p)) if c != p]
        best = Candidate(0.0)
        if not readers or self.clusters[p].members & self.units.calls:
            return best
        if 1 < len(readers) <= MOST_COPIES and not self.clusters[p].stored & self.units.outputs:
            best = max(best, self.copied(p, readers), key=lambda m: m.gain)
        for c in readers[: 2 * MOST_COPIES]:
            best = max(best, self.joined(p, c), key=lambda m: m.gain)
        return best

    def joined(self, p: int, c: int) -> Candidate:
        """Two clusters as one; what others read of either is still written."""
        one, other = self.clusters[p], self.clusters[c]
        between = self.reach.between(p, c, self.successors(p))
        between |= self.reach.between(c, p, self.successors(c))
        if between:
            third = self.clusters[next(bits(between))].members
            name = self.decisions.name(third.bit_length() - 1)
            return Candidate(0.0, refusal=Refusal("acyclic", {"between": name}))
        stored = 0
        outside = ~(1 << p | 1 << c)
        for u in bits(one.stored | other.stored):
            needed = self.readers[u] & outside or self.units.outputs >> u & 1
            if needed or not self.units.users[u]:
                stored |= 1 << u
        members = one.members | other.members
        cost, refusal = self.judge(members, stored)
        if cost is None or refusal is not None:
            return Candidate(0.0, ((c, members, stored, cost or Cost()),), refusal)
        gain = one.cost.total + other.cost.total - cost.total
        gain -= again_ns(cost.arithmetic - one.cost.arithmetic - other.cost.arithmetic)
        if self.wishes.must and self.wishes.demand(one.members, other.members):
            gain = FORCED
        return Candidate(gain, ((c, members, stored, cost),))

    def copied(self, p: int, readers: list[int]) -> Candidate:
        """A producer computed again in each of its readers, and written nowhere."""
        producer = self.clusters[p]
        gain = producer.cost.total
        more = -producer.cost.arithmetic
        joined: list[tuple[int, int, int, Cost]] = []
        for c in readers:
            cluster = self.clusters[c]
            members = cluster.members | self._needed(producer, cluster)
            cost, refusal = self.judge(members, cluster.stored)
            if cost is None or refusal is not None:
                return Candidate(0.0, refusal=refusal, copies=True)
            gain += cluster.cost.total - cost.total
            more += cost.arithmetic - cluster.cost.arithmetic
            joined.append((c, members, cluster.stored, cost))
        return Candidate(gain - again_ns(more), tuple(joined), copies=True)

    def _needed(self, producer: Cluster, reader: Cluster) -> int:
        """The members of a producer that one reader needs."""
        found = 0
        pending = reader.reads & producer.stored
        while pending:
            u = pending.bit_length() - 1
            pending ^= 1 << u
            found |= 1 << u
            pending |= self.units.operands[u] & producer.members & ~found
        return found

    def apply(self, p: int, move: Candidate, *, beside: bool = False) -> int:
        """Carries out a move; returns the clusters that changed."""
        producer = self.clusters[p]
        self._record(p, move, beside)
        for v in bits(producer.reads):
            self.readers[v] &= ~(1 << p)
        for u in bits(producer.members):
            self.holders[u] &= ~(1 << p)
        changed = 0
        for c, members, stored, cost in move.joined:
            cluster = self.clusters[c]
            if not move.copies:
                self.reach.join(p, c)
            for u in bits(members & ~cluster.members):
                self.holders[u] |= 1 << c
            reads = self.reads(members)
            for v in bits(cluster.reads & ~reads):
                self.readers[v] &= ~(1 << c)
            for v in bits(reads & ~cluster.reads):
                self.readers[v] |= 1 << c
            cluster.members, cluster.stored, cluster.reads = members, stored, reads
            cluster.cost = cost
            cluster.version += 1
            changed |= 1 << c
        if move.copies:
            self.reach.drop(p)
        del self.clusters[p]
        return changed

    def _record(self, p: int, move: Candidate, beside: bool) -> None:
        producer = self.clusters[p]
        if move.copies:
            readers = [(self.clusters[c], cost) for c, _, _, cost in move.joined]
            self.decisions.copied(producer, readers, move.gain)
            return
        c, _, stored, cost = move.joined[0]
        self.decisions.joined(
            producer, self.clusters[c], cost, stored, forced=move.gain == FORCED, beside=beside
        )

    # ---- siblings ------------------------------------------------------------------------------

    def _siblings(self) -> list[int]:
        """Joins kernels that read the same arrays; returns those that changed."""
        changed: dict[int, None] = {}
        while True:
            best: tuple[float, int, int, Candidate] | None = None
            for a, b in self._pairs():
                move = self.beside(a, b)
                if move.gain > LEAST_GAIN and (best is None or move.gain > best[0]):
                    best = move.gain, a, b, move
            if best is None:
                break
            _, a, b, move = best
            self.apply(a, move, beside=True)
            changed[b] = None
            for k in bits(self.producers(b)):
                changed[k] = None
        return [c for c in changed if c in self.clusters]

    def _pairs(self) -> list[tuple[int, int]]:
        """Pairs of kernels that share an input, in order."""
        found: dict[tuple[int, int], None] = {}
        for readers in self.readers:
            if readers & (readers - 1) == 0:
                continue
            able = [c for c in bits(readers) if not self.clusters[c].members & self.units.calls]
            for k, a in enumerate(able[:MOST_SIBLINGS]):
                for b in able[k + 1 : MOST_SIBLINGS]:
                    found[a, b] = None
        return list(found)

    def beside(self, a: int, b: int) -> Candidate:
        """Two kernels that share inputs as one.  They start together anyway: no launch is saved."""
        one, other = self.clusters[a], self.clusters[b]
        shared = sum(self.model.nbytes[v] for v in bits(one.reads & other.reads))
        if 2 * shared < min(one.cost.read, other.cost.read):
            return Candidate(0.0)
        move = self.joined(a, b)
        if not move.joined or move.gain == FORCED:
            return move
        launches = one.cost.launch + other.cost.launch - move.joined[0][3].launch
        return Candidate(move.gain - launches, move.joined, move.refusal)

    # ---- what was refused ----------------------------------------------------------------------

    def _refusals(self) -> None:
        """Records why each remaining pair stays apart."""
        if not self.decisions.recording:
            return
        for p in sorted(self.clusters):
            for c in bits(self.successors(p)):
                self._refuse(p, c, self.joined(p, c), beside=False)
        for a, b in self._pairs():
            if not (self.successors(a) >> b | self.successors(b) >> a) & 1:
                self._refuse(a, b, self.beside(a, b), beside=True)

    def _refuse(self, a: int, b: int, move: Candidate, *, beside: bool) -> None:
        after = move.joined[0][3] if move.joined and move.joined[0][3].total else None
        if after is None and move.refusal is None:
            return
        self.decisions.split(self.clusters[a], self.clusters[b], after, move.refusal, beside=beside)
