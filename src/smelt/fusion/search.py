"""Which units become one kernel: a queue of producers by predicted gain.

1. Chains: a value with one reader, read where it stands, joins its reader.  Nothing is lost by it,
   so no time is spent on asking the model.
2. Producers, dearest first: copied into all their readers, if computing again beats storing; else
   joined with the reader that gains most, written there if others need it.
3. Siblings: kernels that read the same array over the same axes.
4. Again from 2, until no candidate is predicted to gain.

Clusters are numbered by one of their units; sets of units and of clusters are bit masks.  The order
of candidates is that of gains, then of numbers: equal graphs give equal plans.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import bits, least
from smelt.fusion.cost import INLINE_LAUNCH_NS, Cost, Model
from smelt.fusion.decide import Decisions
from smelt.fusion.fuse_chains import chains
from smelt.fusion.gain_cache import NEVER, Tries
from smelt.fusion.legal import Refusal, Wishes, refuse_torn
from smelt.fusion.reachability import Reach
from smelt.fusion.reduction_notes import steps
from smelt.fusion.refine import Refinement
from smelt.fusion.state import Cluster, State, Verdict
from smelt.fusion.units import Units
from smelt.types.expr import text as expr_text

MOST_COPIES = 6
"""Readers beyond which a producer is not copied into each of them."""
MOST_READERS = 4
"""Readers that a producer is tried to be joined with."""
LARGE = 24
"""Members of a producer that folds beyond which readers with which it, or a part of it, has gained
less than with another one are not tried again before that one."""
MOST_SIBLINGS = 12
"""Readers of one array that are tried in pairs."""
FORCED = 1e18
"""The gain of a join that the user demands."""
LEAST_GAIN = 1e-6
"""Nanoseconds below which a gain is rounding."""
CLOSE = 0.99
"""Part of the largest gain that may be left that a gain has to be to be taken: producers that share
a reader all gain a little less whenever it grows, and are not asked for that difference again."""


@dataclass(slots=True)
class Candidate:
    """What would become of a producer and its readers."""

    gain: float
    joined: tuple[tuple[int, Verdict], ...] = ()
    """The clusters that remain, by number, as they would be."""
    refusal: Refusal | None = None
    copies: bool = False


NO_MOVE = Candidate(0.0)


class Search(State):
    """The moves between the clusters of one graph."""

    def __init__(
        self, units: Units, model: Model, wishes: Wishes, decisions: Decisions, crowded: int = 0
    ) -> None:
        super().__init__(units, model, wishes)
        decisions.views()
        self.decisions = decisions
        self.kept = units.outputs | crowded
        """Values that are written anyway: for the caller, or for more readers than are here."""
        self.tries = Tries()
        self.dear: dict[int, int] = {}
        """Producers that were better stored than computed again, and in how many readers."""

    # ---- the run -------------------------------------------------------------------------------

    def apart(self) -> None:
        """Every operator by itself."""
        for unit in self.units.units:
            self.place(unit.number, 1 << unit.number)

    def run(self) -> None:
        """All joins that gain."""
        self._chains()
        self.reach = Reach({c: self.successors(c) for c in self.clusters})
        self._join(self.clusters)
        fresh = Refinement(self, self.decisions).run()
        if fresh:
            self.reach = Reach({c: self.successors(c) for c in self.clusters})
            self.tries.forget()
            near = (p for c in fresh for p in bits(self.producers(c)))
            self._join(dict.fromkeys((*fresh, *near)))
        self._join(self.tries.renew())  # what a try promised at most is no proof
        self._carried()
        self._refusals()

    def _join(self, fresh: Iterable[int]) -> None:
        """Joins pairs as long as one gains, beginning with some clusters."""
        fresh = list(fresh)
        while fresh:
            self._producers(fresh)
            fresh = self._siblings()

    def _chains(self) -> None:
        """Joins values with the cluster of their readers where that is no question."""
        if self.wishes.never:
            self.apart()
            return
        for c, members in chains(self.units, self.model.nbytes).items():
            self.place(c, members)
            if members & (members - 1) == 0:
                continue
            if not self.is_cheaper(self.clusters[c]):
                self.remove(c)  # such as a fold that is split for being glued to others
                for u in bits(members):
                    self.place(u, 1 << u)
                continue
            self.decisions.chain(c, self.clusters[c])

    def _producers(self, fresh: Iterable[int]) -> None:
        """Moves producers into their readers, the largest gain first.

        The queue holds what a producer may gain at most until it comes up; only then the model is
        asked, and unless its true gain is about the largest, the producer goes back with that.
        There it waits for its turn even if a reader grows meanwhile: it is asked again anyway when
        that comes, and else all that a cluster reads would be asked about whenever it takes up one
        of them.
        """
        queue: list[tuple[float, int, int]] = []
        stamps: dict[int, int] = {}
        waiting: set[int] = set()
        """Producers in the queue whose gain the model has told."""

        def ask(c: int, most: float) -> None:
            stamps[c] = stamps.get(c, 0) + 1
            waiting.discard(c)
            if most > LEAST_GAIN:
                heapq.heappush(queue, (-most, c, stamps[c]))

        for c in fresh:
            if c in self.clusters:
                ask(c, self.bound(c))
        while queue:
            _, c, stamp = heapq.heappop(queue)
            if c not in self.clusters or stamps[c] != stamp:
                continue
            move = self.best(c)
            if queue and move.gain < -CLOSE * queue[0][0]:
                ask(c, move.gain)
                if move.gain > LEAST_GAIN:
                    waiting.add(c)
                continue
            if move.gain <= LEAST_GAIN:
                continue
            changed = self.apply(c, move)
            again = changed
            for k in bits(changed):
                again |= self.producers(k)
            for k in bits(again):
                if k not in waiting or changed >> k & 1:
                    ask(k, self.bound(k))

    def bound(self, p: int) -> float:
        """The most that moving a producer can gain: its own time and the reading of its results."""
        producer = self.clusters[p]
        if producer.members & self.units.calls:
            return 0.0
        found = 0.0
        for u in bits(producer.stored):
            count = (self.readers[u] & ~(1 << p)).bit_count()
            found += count * self.model.read_ns(u, self.model.nbytes[u], 1)
        found += self.held(producer.stored)
        if self.wishes.must:
            return FORCED
        readers = bits(self.successors(p))
        count = len(readers)
        if self._may_copy(producer, count) and not self._was_dear(producer, count):
            return found + producer.cost.burden
        most = 0.0
        for c in readers[:MOST_READERS]:
            tried = self.tries.most(p, c)
            if tried > most and not self.between(p, c):
                most = tried
        return min(found + producer.cost.burden, most)

    def _may_copy(self, producer: Cluster, readers: int) -> bool:
        """Whether a producer may be computed again in each of its readers."""
        kept = producer.stored & self.kept or producer.members & self.units.folds
        return 1 < readers <= MOST_COPIES and not kept

    def _was_dear(self, producer: Cluster, readers: int) -> bool:
        """Whether a producer was better stored than computed again in as many readers: so it is
        when they have grown."""
        return self.dear.get(producer.members, readers + 1) <= readers

    def best(self, p: int) -> Candidate:
        """The best thing to do with a producer and its readers."""
        best = NO_MOVE
        readers = bits(self.successors(p))
        producer = self.clusters[p]
        if self._may_copy(producer, len(readers)) and not self._was_dear(producer, len(readers)):
            best = self.copied(p, readers)
            if best.gain <= LEAST_GAIN:
                self.dear[producer.members] = len(readers)
                if best.joined:
                    self.decisions.dear(producer, [self.clusters[c] for c in readers], best.gain)
        slow = producer.members.bit_count() > LARGE and not producer.region.flat
        tried = readers[:MOST_READERS]
        if slow:
            tried = sorted(tried, key=lambda c: -self.tries.guess(p, c))
        for c in tried:
            if slow and self.tries.guess(p, c) <= best.gain:
                continue
            move = self.joined(p, c)
            if move.gain > best.gain:
                best = move
        return best

    def joined(self, p: int, c: int, *, asked: bool = False) -> Candidate:
        """Two clusters as one; what others read of either is still written.

        Where an earlier try shows that nothing can be gained, the model is only bothered if the
        numbers are `asked` for.
        """
        if not asked and self.tries.most(p, c) <= LEAST_GAIN:
            return NO_MOVE
        one, other = self.clusters[p], self.clusters[c]
        if between := self.between(p, c):
            third = self.clusters[least(between)].members
            name = self.decisions.name(third.bit_length() - 1)
            return Candidate(0.0, refusal=Refusal("acyclic", {"between": name}))
        if (crossing := self.torn_fold(one, other)) >= 0:
            return Candidate(0.0, refusal=refuse_torn(self.units, crossing))
        stored = 0
        outside = ~(1 << p | 1 << c)
        for u in bits(one.stored | other.stored):
            needed = self.readers[u] & outside or self.units.outputs >> u & 1
            if needed or not self.units.users[u]:
                stored |= 1 << u
        found = self.judge(one.members | other.members, stored, (one, other))
        joined = ((c, found),)
        if found.cost is None or found.refusal is not None:
            if found.is_final:
                self.tries.note(p, c, NEVER)
            return Candidate(0.0, joined, found.refusal)
        if self.wishes.must and self.wishes.demand(one.members, other.members):
            return Candidate(FORCED, joined)
        gain = one.cost.burden + other.cost.burden - found.cost.burden
        gain += self.held((one.stored | other.stored) & ~stored, stored)
        if not one.stored & stored and self.is_made_of_nothing(one):
            gain = max(gain, one.cost.burden)
        self.tries.tried(p, c, gain)
        return Candidate(gain, joined)

    def copied(self, p: int, readers: Sequence[int]) -> Candidate:
        """A producer computed again in each of its readers, and written nowhere."""
        producer = self.clusters[p]
        gain = producer.cost.burden
        joined: list[tuple[int, Verdict]] = []
        for c in readers:
            cluster = self.clusters[c]
            needed = self._needed(producer, cluster)
            parts = (producer, cluster) if needed == producer.members else ()
            found = self.judge(cluster.members | needed, cluster.stored, parts)
            if found.cost is None or found.refusal is not None:
                return Candidate(0.0, refusal=found.refusal, copies=True)
            gain += cluster.cost.burden - found.cost.burden
            joined.append((c, found))
        if self.is_made_of_nothing(producer):
            gain = max(gain, producer.cost.burden)
        return Candidate(gain, tuple(joined), copies=True)

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
        self._record(p, move, beside)
        grown = {c: self.clusters[c].cost.burden for c, _ in move.joined}
        self.tries.joined(p, self.clusters[p].cost.burden, grown)
        self.remove(p)
        changed = 0
        for c, found in move.joined:
            cluster = self.clusters[c]
            members, stored = found.key
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
            cluster.found, cluster.cost = found, found.cost or Cost()
            cluster.size = self.size(members)
            changed |= 1 << c
        if move.copies:
            self.reach.drop(p)
        return changed

    def _record(self, p: int, move: Candidate, beside: bool) -> None:
        producer = self.clusters[p]
        if move.copies:
            readers = [(self.clusters[c], found.cost or Cost()) for c, found in move.joined]
            self.decisions.copied(producer, readers, move.gain)
            return
        c, found = move.joined[0]
        self.decisions.joined(
            producer,
            self.clusters[c],
            found.cost or Cost(),
            found.key[1],
            axis=self._streamed_extent(found),
            forced=move.gain == FORCED,
            beside=beside,
        )

    def _streamed_extent(self, found: Verdict) -> str:
        """The extent of the streamed axis in words."""
        if found.cost is None or found.cost.stream < 0:
            return ""
        number = found.region.axes[found.cost.stream]
        extent, size = self.units.extents[number], self.model.extents[number]
        return (
            f"{size:,} positions"
            if isinstance(extent, int)
            else f"{expr_text(extent)} ({size:,} positions)"
        )

    def _carried(self) -> None:
        """Records what becomes of the folds over streamed axes."""
        for c in self.clusters.values() if self.decisions.recording else ():
            if c.cost.stream >= 0:
                extent = self._streamed_extent(c.found)
                found = steps(self.model, c.region, c.cost.stream)
                self.decisions.carried(extent, found, c.cost.burden)

    # ---- siblings ------------------------------------------------------------------------------

    def _siblings(self) -> list[int]:
        """Joins kernels that read the same arrays; returns those that changed."""
        queue: list[tuple[float, int, int]] = []

        def ask(pairs: Iterable[tuple[int, int]]) -> None:
            for a, b in pairs:
                move = self.beside(a, b)
                if move.gain > LEAST_GAIN:
                    heapq.heappush(queue, (-move.gain, a, b))

        changed: dict[int, None] = {}
        ask(self._pairs())
        while queue:
            gain, a, b = heapq.heappop(queue)
            if a not in self.clusters or b not in self.clusters:
                continue
            move = self.beside(a, b)
            if move.gain != -gain:  # one of the two has changed since
                ask([(a, b)])
                continue
            self.apply(a, move, beside=True)
            changed[b] = None
            changed |= dict.fromkeys(bits(self.producers(b)))
            ask(self._pairs(b))
        return [c for c in changed if c in self.clusters]

    def _pairs(self, only: int = -1) -> list[tuple[int, int]]:
        """Pairs of kernels that share an input, in order; of one kernel and others with `only`."""
        found: dict[tuple[int, int], None] = {}
        values = bits(self.clusters[only].reads) if only >= 0 else range(len(self.readers))
        for v in values:
            readers = self.readers[v]
            if readers & (readers - 1) == 0:
                continue
            able = [c for c in bits(readers) if not self.clusters[c].members & self.units.calls]
            for k, a in enumerate(able[:MOST_SIBLINGS]):
                for b in able[k + 1 : MOST_SIBLINGS]:
                    if only in (a, b, -1):
                        found[a, b] = None
        return list(found)

    def beside(self, a: int, b: int, *, asked: bool = False) -> Candidate:
        """Two kernels that share inputs as one.  They start together anyway: of their launches only
        what a kernel of its own costs is saved.  For `asked` see `joined`."""
        one, other = self.clusters[a], self.clusters[b]
        shared = sum(self.model.nbytes[v] for v in bits(one.reads & other.reads))
        if 2 * shared < min(one.cost.read, other.cost.read):
            return Candidate(0.0)
        move = self.joined(a, b, asked=asked)
        if not move.joined or move.gain == FORCED:
            return move
        after = move.joined[0][1].cost
        launches = one.cost.launch + other.cost.launch - (after.launch if after else 0.0)
        more = min(launches, INLINE_LAUNCH_NS)
        return Candidate(move.gain - launches + more, move.joined, move.refusal)

    # ---- what was refused ----------------------------------------------------------------------

    def _refusals(self) -> None:
        """Records why each remaining pair stays apart."""
        if not self.decisions.recording:
            return
        self.decisions.keep_dear(self.holders)
        for p in sorted(self.clusters):
            for c in bits(self.successors(p)):
                self._refuse(p, c, self.joined(p, c, asked=True), beside=False)
        for a, b in self._pairs():
            if not (self.successors(a) >> b | self.successors(b) >> a) & 1:
                self._refuse(a, b, self.beside(a, b, asked=True), beside=True)

    def _refuse(self, a: int, b: int, move: Candidate, *, beside: bool) -> None:
        after = move.joined[0][1].cost if move.joined else None
        if after is None and move.refusal is None:
            return
        one, other = self.clusters[a], self.clusters[b]
        self.decisions.split(one, other, after, move.refusal, move.gain, beside=beside)
