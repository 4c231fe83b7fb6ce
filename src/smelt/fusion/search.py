"""Search for clusters: greedily join the pair with the largest predicted gain.

A *unit* is an operator that computes; a *cluster* is a set of units that becomes one kernel.

1. Chains: a value with one reader, read at the reader's own position, joins that reader. This never
   loses, so the cost model is not consulted.
2. Producers, largest possible gain first: copied into all their readers if recomputing beats
   storing, else joined with the reader that gains most, and still stored there if others need them.
   Where neither gains, two producers of a reader may be copied together: matrix units multiply two
   converted operands in one product, and one beside an operand that is not converted in several.
3. Siblings: kernels that read the same array over the same axes.
4. Repeat from 2 until no candidate is predicted to gain.
5. Where predicted times are those of the schedules that will run, repeat from 2 by these alone.
   Hidden time leads the search past states of one time, but must not keep a faster kernel apart.

Clusters are numbered by one of their units; sets of units and of clusters are bit masks. Candidates
are ordered by gain, then by number, so equal graphs get equal plans.

`GainCache` keeps evaluated gains: one holds until one of the two clusters changes. When a cluster
takes up a third one, its bound grows by at most the third one's whole time. So most pairs of a
large graph are evaluated once. The bound is an estimate: more may be gained where a stream needs
all of its parts, or by another order of loops. Pairs that changed since they were evaluated are
therefore evaluated again at the end.

>>> tries = GainCache()
>>> tries.record(1, 2, -50.0)
>>> tries.record(3, 2, -70.0)
>>> tries.update_after_join(1, 30.0, {2: 10.0})
>>> tries.bound(2, 3), tries.bound(1, 2) == UNTRIED
(-40.0, True)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from smelt.fusion.bitsets import bits, closure, least
from smelt.fusion.cost_model import Cost, CostModel
from smelt.fusion.decide import Decisions
from smelt.fusion.fuse_chains import chains
from smelt.fusion.legal import CROSSING, FusionConstraints, Refusal, refuse_fault
from smelt.fusion.recompute import MAX_SLOWER, recompute_large_values
from smelt.fusion.refine import Refinement
from smelt.fusion.state import Cluster, Reach, State, Verdict
from smelt.fusion.stream_axes import carried_reductions
from smelt.fusion.units import Units
from smelt.python.dataclass import dataclass
from smelt.types.expr import text as expr_text

UNTRIED = 1e18
"""Bound of a pair that was never evaluated."""
NEVER = -UNTRIED
"""Bound of a pair that no kernel can hold, whatever is added."""


class GainCache:
    """Bounds and last gains of pairs of clusters."""

    def __init__(self) -> None:
        self.bounds: dict[int, dict[int, float]] = {}
        """Upper bounds by cluster and other cluster; symmetric."""
        self.exact: dict[tuple[int, int], float] = {}
        """Evaluated gains of pairs, the lower number first."""
        self.last: dict[int, dict[int, float]] = {}
        """Gains at the last evaluation of a pair, or of parts of it."""

    def bound(self, a: int, b: int) -> float:
        """Return an upper bound of the gain of joining two clusters."""
        return self.bounds.get(a, {}).get(b, UNTRIED)

    def last_gain(self, a: int, b: int) -> float:
        """Return the gain when two clusters, or parts of them, were last evaluated."""
        return self.last.get(a, {}).get(b, UNTRIED)

    def record(self, a: int, b: int, gain: float) -> None:
        """Record an evaluated gain."""
        self.set_bound(a, b, gain)
        self.exact[(a, b) if a < b else (b, a)] = gain
        self.last.setdefault(a, {})[b] = gain
        self.last.setdefault(b, {})[a] = gain

    def set_bound(self, a: int, b: int, gain: float) -> None:
        """Record an upper bound."""
        self.bounds.setdefault(a, {})[b] = gain
        self.bounds.setdefault(b, {})[a] = gain

    def update_after_join(self, p: int, objective_ns: float, readers: Mapping[int, float]) -> None:
        """Update bounds after cluster `p` became a part of others.

        `objective_ns` is what `p` took, `readers` maps the clusters that took it up to their own
        times.
        """
        for c in readers:
            for third, bound in self.bounds.get(c, {}).items():
                # update a pair that grows on both sides only once
                if third != p and (third not in readers or third < c):
                    self.set_bound(third, c, bound + objective_ns)
        for third, gain in self.last.pop(p, {}).items():
            del self.last[third][p]
            for c in readers:
                if third != c and self.last.get(c, {}).get(third, 0.0) < gain:
                    self.last.setdefault(c, {})[third] = gain
                    self.last[third][c] = gain
        for third, bound in self.bounds.pop(p, {}).items():
            del self.bounds[third][p]
            for c, reader_ns in readers.items():
                if third != c:
                    self.set_bound(third, c, min(self.bound(third, c), bound + reader_ns))

    def invalidate_changed(self) -> list[int]:
        """Invalidate the bound of every pair that changed since its evaluation.

        Pairs known to be illegal keep theirs. Returns the affected clusters.
        """
        affected: dict[int, None] = {}
        for a, others in self.bounds.items():
            for b in [b for b, most in others.items() if most != NEVER]:
                if self.exact.get((a, b) if a < b else (b, a)) != others[b]:
                    others[b] = UNTRIED
                    affected[a] = affected[b] = None
        return list(affected)

    def reset(self) -> None:
        """Start over, for clusters with new numbers."""
        self.bounds.clear()
        self.exact.clear()
        self.last.clear()


MAX_COPIES = 6
"""Maximum readers into which a producer is copied."""
MAX_READERS = 4
"""Maximum readers that a producer is tried to be joined with."""
MAX_PARTNERS = 4
"""Maximum producers of a reader that are tried to be copied together with another one."""
LARGE_PRODUCER = 24
"""Minimum units of a producer with reductions that is tried more sparingly.

Its readers are tried in order of their last known gain, and a reader whose last gain does not
exceed the best found so far is skipped.
"""
MAX_SIBLINGS = 12
"""Maximum readers of one array that are tried in pairs."""
MAX_PRICED_SIBLINGS = 16
"""Maximum pairs that share little whose joined kernel is evaluated for the record alone."""
FORCED = 1e18
"""The gain of a join that the user demands."""
MIN_GAIN = 1e-6
"""Minimum gain in nanoseconds; less is rounding."""
TIE_SHARE = 1e-4
"""By how much one kernel that stores less may be slower than two, as a share of its time.

That is far below the model's error.
"""
TIE_GAIN = 2 * MIN_GAIN
"""The gain of such a join: all others come first."""
TAKE_SHARE = 0.99
"""Share of the largest remaining bound that a gain must reach to be taken.

Producers that share a reader each gain a little less whenever it grows; they are not evaluated
again for that difference.
"""


@dataclass(slots=True)
class Candidate:
    """A possible move: a producer joined with a reader or copied into its readers."""

    gain: float
    joined: tuple[tuple[int, Verdict], ...] = ()
    """The clusters that remain, by number, with their new verdicts."""
    refusal: Refusal | None = None
    copied: tuple[int, ...] = ()
    """The producers that are copied into these; none if one joins one of them."""


NO_MOVE = Candidate(0.0)


class Search(State):
    """Moves between the clusters of one graph."""

    def __init__(
        self,
        units: Units,
        model: CostModel,
        wishes: FusionConstraints,
        decisions: Decisions,
        crowded: int = 0,
        *,
        frugal: bool = False,
        recomputes: bool = False,
    ) -> None:
        super().__init__(units, model, wishes, frugal=frugal)
        decisions.views()
        self.decisions = decisions
        self.recomputes = recomputes
        self.always_stored = units.outputs | crowded
        """Values that are always stored: results, and those with readers outside the graph."""
        self.gain_cache = GainCache()
        self.costly_copies: dict[int, int] = {}
        """Producers that were better stored than recomputed, with their number of readers."""
        self.costly_pairs: set[tuple[int, ...]] = set()
        """The members of two producers and of their readers that are faster apart."""

    # ---- the run -------------------------------------------------------------------------------

    def separate_all(self) -> None:
        """Make every operator a cluster of its own."""
        for unit in self.units.units:
            self.add_cluster(unit.number, 1 << unit.number)

    def run(self) -> None:
        """Perform all joins that gain."""
        self._chains()
        self.reach = Reach({c: self.successors(c) for c in self.clusters})
        self._join(self.clusters)
        changed = Refinement(self, self.decisions).run()
        if self.model.tiling.recomputes_products:
            changed += recompute_large_values(
                self, self.decisions, MAX_SLOWER if self.recomputes else 1.0
            )
            changed = [c for c in changed if c in self.clusters]
        if self.model.prices_schedules:
            self.compare_by_time()
            self.costly_copies.clear()
            self.costly_pairs.clear()
            changed = [*self.clusters]
        if changed:
            self.reach = Reach({c: self.successors(c) for c in self.clusters})
            self.gain_cache.reset()
            producers = (p for c in changed for p in bits(self.producers(c)))
            self._join(dict.fromkeys((*changed, *producers)))
        self._join(
            self.gain_cache.invalidate_changed()
        )  # evaluate again: the cached bounds are estimates
        self._record_streams()
        self._record_refusals()

    def _join(self, pending: Iterable[int]) -> None:
        """Join pairs as long as one gains, starting with the given clusters."""
        pending = list(pending)
        while pending:
            self._producers(pending)
            pending = self._siblings()

    def _chains(self) -> None:
        """Join values with the cluster of their readers where that cannot lose."""
        if self.wishes.never:
            self.separate_all()
            return
        alone = self.units.ordered if self.wishes.exact else 0
        last = self.model.shared_reductions
        for c, members in chains(self.units, self.model.nbytes, alone, last).items():
            self.add_cluster(c, members)
            if members & (members - 1) == 0:
                continue
            if not self.is_cheaper(self.clusters[c]):
                self.remove(c)  # for example a reduction that is split only because of the join
                for u in bits(members):
                    self.add_cluster(u, 1 << u)
                continue
            self.decisions.chain(c, self.clusters[c])

    def _producers(self, start: Iterable[int]) -> None:
        """Move producers into their readers, the largest gain first.

        The queue holds an upper bound of each producer's gain. When a producer comes up, the cost
        model evaluates its best move. Unless that gain is close to the largest bound left, the
        producer returns to the queue with its true gain. It then keeps its rank even if one of its
        readers grows: it is evaluated again when it comes up, and otherwise every producer of a
        cluster would be evaluated whenever the cluster takes up one of them.
        """
        queue: list[tuple[float, int, int]] = []
        stamps: dict[int, int] = {}
        waiting: set[int] = set()
        """Producers in the queue with an evaluated gain."""

        def enqueue(c: int, bound: float) -> None:
            stamps[c] = stamps.get(c, 0) + 1
            waiting.discard(c)
            if bound > MIN_GAIN:
                heapq.heappush(queue, (-bound, c, stamps[c]))

        for c in start:
            if c in self.clusters:
                enqueue(c, self.gain_bound(c))
        while queue:
            _, c, stamp = heapq.heappop(queue)
            if c not in self.clusters or stamps[c] != stamp:
                continue
            move = self.best_move(c)
            if move.gain <= MIN_GAIN and self.model.tiling.rounds_factors:
                move = self.best_pair(c)
            if queue and move.gain < -TAKE_SHARE * queue[0][0]:
                enqueue(c, move.gain)
                if move.gain > MIN_GAIN:
                    waiting.add(c)
                continue
            if move.gain <= MIN_GAIN:
                continue
            changed = self.apply(c, move)
            affected = changed
            for k in bits(changed):
                affected |= self.producers(k)
            for k in bits(affected):
                if k not in waiting or changed >> k & 1:
                    enqueue(k, self.gain_bound(k))

    def gain_bound(self, p: int) -> float:
        """Return an upper bound of the gain from moving a producer.

        That is its own time and the reads of its results.
        """
        producer = self.clusters[p]
        if producer.members & self.units.calls:
            return 0.0
        total = 0.0
        for u in bits(producer.stored):
            count = (self.readers[u] & ~(1 << p)).bit_count()
            total += count * self.model.read_ns(u, self.model.nbytes[u], 1)
        total += self.uncached_ns(producer.stored)
        if self.wishes.must:
            return FORCED
        readers = bits(self.successors(p))
        count = len(readers)
        if self._may_copy(producer, count) and not self._was_costly(producer, count):
            return total + producer.cost.objective_ns
        most = 0.0
        for c in readers[:MAX_READERS]:
            pair_bound = self.gain_cache.bound(p, c)
            if pair_bound > most and not self.between(p, c):
                most = pair_bound
        return min(total + producer.cost.objective_ns, most)

    def _may_copy(self, producer: Cluster, readers: int) -> bool:
        not_copyable = (
            producer.stored & self.always_stored or producer.members & self.units.reductions
        )
        return 1 < readers <= MAX_COPIES and not not_copyable

    def _was_costly(self, producer: Cluster, readers: int) -> bool:
        """Return whether a producer was better stored than recomputed in this many readers.

        That stays true when the readers have grown.
        """
        return self.costly_copies.get(producer.members, readers + 1) <= readers

    def best_move(self, p: int) -> Candidate:
        """Return the best move of a producer."""
        best = NO_MOVE
        readers = bits(self.successors(p))
        producer = self.clusters[p]
        if self._may_copy(producer, len(readers)) and not self._was_costly(producer, len(readers)):
            best = self.evaluate_copy((p,), readers)
            if best.gain <= MIN_GAIN:
                self.costly_copies[producer.members] = len(readers)
                if best.joined:
                    self.decisions.record_costly_copy(
                        producer, [self.clusters[c] for c in readers], best.gain
                    )
        is_large = producer.members.bit_count() > LARGE_PRODUCER and not producer.region.flat
        candidates = readers[:MAX_READERS]
        if is_large:
            candidates = sorted(candidates, key=lambda c: -self.gain_cache.last_gain(p, c))
        for c in candidates:
            if is_large and self.gain_cache.last_gain(p, c) <= best.gain:
                continue
            move = self.evaluate_join(p, c)
            if move.gain > best.gain:
                best = move
        return best

    def evaluate_join(self, p: int, c: int, *, always: bool = False) -> Candidate:
        """Evaluate two clusters as one; values that others read are still stored.

        If a cached bound shows that nothing can be gained, the cost model is consulted only with
        `always`.
        """
        if not always and self.gain_cache.bound(p, c) <= MIN_GAIN:
            return NO_MOVE
        producer, reader = self.clusters[p], self.clusters[c]
        if between := self.between(p, c):
            between_unit = self.clusters[least(between)].members
            name = self.decisions.name(between_unit.bit_length() - 1)
            return Candidate(0.0, refusal=Refusal("acyclic", {"between": name}))
        if (reduction := self.multiply_read_reduction(producer, reader)) >= 0:
            return Candidate(0.0, refusal=refuse_fault(self.units, CROSSING, reduction))
        stored = self.stored_beyond(producer.stored | reader.stored, 1 << p | 1 << c)
        verdict = self.evaluate(producer.members | reader.members, stored, (producer, reader))
        joined = ((c, verdict),)
        if verdict.cost is None or verdict.refusal is not None:
            if verdict.is_final:
                self.gain_cache.set_bound(p, c, NEVER)
            return Candidate(0.0, joined, verdict.refusal)
        if self.wishes.must and self.wishes.demand(producer.members, reader.members):
            return Candidate(FORCED, joined)
        gain = producer.cost.objective_ns + reader.cost.objective_ns - verdict.cost.objective_ns
        dropped = (producer.stored | reader.stored) & ~stored
        gain += self.uncached_ns(dropped, stored)
        if not producer.stored & stored and self.is_cheap_generator(producer):
            gain = max(gain, producer.cost.objective_ns)
        if dropped and -TIE_SHARE * verdict.cost.objective_ns <= gain <= TIE_GAIN:
            gain = TIE_GAIN
        self.gain_cache.record(p, c, gain)
        return Candidate(gain, joined)

    def best_pair(self, p: int) -> Candidate:
        """Return the best copies of a producer and another one in all readers of both."""
        best = NO_MOVE
        for c in bits(self.successors(p))[:MAX_READERS]:
            partners = [q for q in bits(self.producers(c)) if q != p and self._may_vanish(q)]
            for q in partners[:MAX_PARTNERS] if self._may_vanish(p) else ():
                readers = bits((self.successors(p) | self.successors(q)) & ~(1 << p | 1 << q))
                pair = tuple(sorted((p, q)))
                members = tuple(self.clusters[k].members for k in (*pair, *readers))
                if members in self.costly_pairs or len(readers) > MAX_COPIES:
                    continue
                move = self.evaluate_copy(pair, readers)
                if move.gain <= MIN_GAIN:
                    self.costly_pairs.add(members)
                elif move.gain > best.gain:
                    best = move
        return best

    def _may_vanish(self, p: int) -> bool:
        """Return whether a producer is stored nowhere once all of its readers have copies."""
        producer = self.clusters[p]
        kept = self.always_stored | self.units.calls | self.units.reductions
        return not producer.members & kept

    def evaluate_copy(self, producers: tuple[int, ...], readers: Sequence[int]) -> Candidate:
        """Evaluate producers recomputed in each of their readers and stored nowhere."""
        copied = [self.clusters[p] for p in producers]
        gain = sum(k.cost.objective_ns for k in copied)
        joined: list[tuple[int, Verdict]] = []
        for c in readers:
            cluster = self.clusters[c]
            members = self._needed_members(copied, cluster)
            parts = (copied[0], cluster) if members == copied[0].members else ()
            verdict = self.evaluate(cluster.members | members, cluster.stored, parts)
            if verdict.cost is None or verdict.refusal is not None:
                return Candidate(0.0, refusal=verdict.refusal, copied=producers)
            gain += cluster.cost.objective_ns - verdict.cost.objective_ns
            joined.append((c, verdict))
        if len(copied) == 1 and self.is_cheap_generator(copied[0]):
            gain = max(gain, copied[0].cost.objective_ns)
        return Candidate(gain, tuple(joined), copied=producers)

    def _needed_members(self, producers: Sequence[Cluster], reader: Cluster) -> int:
        stored = computed = 0
        for k in producers:
            stored, computed = stored | k.stored, computed | k.members
        return closure(reader.reads & stored, self.units.operands, computed)

    def apply(self, p: int, move: Candidate, *, sibling: bool = False) -> int:
        """Carry out a move; return the clusters that changed."""
        self._record(p, move, sibling)
        objectives = {c: self.clusters[c].cost.objective_ns for c, _ in move.joined}
        for k in move.copied or (p,):
            self.gain_cache.update_after_join(k, self.clusters[k].cost.objective_ns, objectives)
            self.remove(k)
        changed = 0
        for c, verdict in move.joined:
            cluster = self.clusters[c]
            members, stored = verdict.key
            if not move.copied:
                self.reach.join(p, c)
            for u in bits(members & ~cluster.members):
                self.holders[u] |= 1 << c
            reads = self.reads(members)
            for v in bits(cluster.reads & ~reads):
                self.readers[v] &= ~(1 << c)
            for v in bits(reads & ~cluster.reads):
                self.readers[v] |= 1 << c
            cluster.members, cluster.stored, cluster.reads = members, stored, reads
            cluster.verdict, cluster.cost = verdict, verdict.cost or Cost()
            cluster.size = self.size(members)
            changed |= 1 << c
        for k in move.copied:
            self.reach.drop(k)
        return changed

    def _record(self, p: int, move: Candidate, sibling: bool) -> None:
        if move.copied:
            readers = [(self.clusters[c], verdict.cost or Cost()) for c, verdict in move.joined]
            for k in move.copied:
                reading = [r for r in readers if r[0].reads & self.clusters[k].stored]
                self.decisions.copied(self.clusters[k], reading, move.gain)
            return
        c, verdict = move.joined[0]
        self.decisions.joined(
            self.clusters[p],
            self.clusters[c],
            verdict.cost or Cost(),
            verdict.key[1],
            axis=self._streamed_extent(verdict),
            forced=move.gain == FORCED,
            siblings=sibling,
        )

    def _streamed_extent(self, verdict: Verdict) -> str:
        """Return the extent of the streamed axis as text."""
        if verdict.cost is None or verdict.cost.stream < 0:
            return ""
        number = verdict.region.axes[verdict.cost.stream]
        extent, size = self.units.extents[number], self.model.extents[number]
        return (
            f"{size:,} positions"
            if isinstance(extent, int)
            else f"{expr_text(extent)} ({size:,} positions)"
        )

    def _record_streams(self) -> None:
        """Record the treatment of the reductions over streamed axes."""
        for c in self.clusters.values() if self.decisions.recording else ():
            if c.cost.stream >= 0:
                extent = self._streamed_extent(c.verdict)
                reductions = carried_reductions(self.model, c.region, c.cost.stream)
                self.decisions.carried(extent, reductions, c.cost.objective_ns)

    # ---- siblings ------------------------------------------------------------------------------

    def _siblings(self) -> list[int]:
        """Join kernels that read the same arrays; return those that changed."""
        queue: list[tuple[float, int, int]] = []

        def enqueue(pairs: Iterable[tuple[int, int]]) -> None:
            for a, b in pairs:
                move = self.evaluate_siblings(a, b)
                if move.gain > MIN_GAIN:
                    heapq.heappush(queue, (-move.gain, a, b))

        changed: dict[int, None] = {}
        enqueue(self._sibling_pairs())
        while queue:
            gain, a, b = heapq.heappop(queue)
            if a not in self.clusters or b not in self.clusters:
                continue
            move = self.evaluate_siblings(a, b)
            if move.gain != -gain:  # one of the two has changed since
                enqueue([(a, b)])
                continue
            self.apply(a, move, sibling=True)
            changed[b] = None
            changed |= dict.fromkeys(bits(self.producers(b)))
            enqueue(self._sibling_pairs(b))
        return [c for c in changed if c in self.clusters]

    def _sibling_pairs(self, only: int = -1) -> list[tuple[int, int]]:
        """Return pairs of kernels that share an input, in order.

        With `only`, pairs of that kernel.
        """
        pairs: dict[tuple[int, int], None] = {}
        values = bits(self.clusters[only].reads) if only >= 0 else range(len(self.readers))
        for v in values:
            readers = self.readers[v]
            if readers & (readers - 1) == 0:
                continue
            fusible = [c for c in bits(readers) if not self.clusters[c].members & self.units.calls]
            for k, a in enumerate(fusible[:MAX_SIBLINGS]):
                for b in fusible[k + 1 : MAX_SIBLINGS]:
                    if only in (a, b, -1):
                        pairs[a, b] = None
        return list(pairs)

    def evaluate_siblings(self, a: int, b: int, *, always: bool = False) -> Candidate:
        """Evaluate two kernels that share inputs as one.

        They start together anyway, so of their launches only the cost of one more kernel is saved.
        Kernels that share less than half of what either reads are evaluated only where the user
        demands their join, or with `always`, which is also that of `evaluate_join`.
        """
        if not always and self.shares_little(a, b) and not self._is_demanded(a, b):
            return NO_MOVE
        first, second = self.clusters[a], self.clusters[b]
        move = self.evaluate_join(a, b, always=always)
        if not move.joined or move.gain == FORCED:
            return move
        after = move.joined[0][1].cost
        launches = first.cost.launch + second.cost.launch - (after.launch if after else 0.0)
        saved = min(launches, self.model.joined_start_ns)
        return Candidate(move.gain - launches + saved, move.joined, move.refusal)

    def shares_little(self, a: int, b: int) -> bool:
        """Return whether two kernels share less than half of what either reads."""
        first, second = self.clusters[a], self.clusters[b]
        return 2 * self._shared_bytes(a, b) < min(first.cost.read, second.cost.read)

    def _shared_bytes(self, a: int, b: int) -> int:
        shared = self.clusters[a].reads & self.clusters[b].reads
        return sum(self.model.nbytes[v] for v in bits(shared))

    def _is_demanded(self, a: int, b: int) -> bool:
        return bool(self.wishes.must) and self.wishes.demand(
            self.clusters[a].members, self.clusters[b].members
        )

    # ---- refusals ------------------------------------------------------------------------------

    def _record_refusals(self) -> None:
        """Record why each remaining pair stays apart."""
        if not self.decisions.recording:
            return
        self.decisions.record_costly_copies(self.holders)
        for p in sorted(self.clusters):
            for c in bits(self.successors(p)):
                self._record_refusal(p, c, self.evaluate_join(p, c, always=True), sibling=False)
        apart = [
            (a, b)
            for a, b in self._sibling_pairs()
            if not (self.successors(a) >> b | self.successors(b) >> a) & 1
        ]
        little = sorted(
            (p for p in apart if self.shares_little(*p)), key=lambda p: -self._shared_bytes(*p)
        )
        unpriced = {*little[MAX_PRICED_SIBLINGS:]}
        for a, b in apart:
            move = NO_MOVE if (a, b) in unpriced else self.evaluate_siblings(a, b, always=True)
            if (move is NO_MOVE or move.gain > 0.0) and (a, b) in little:
                self.decisions.share_little(self.clusters[a], self.clusters[b])
            else:
                self._record_refusal(a, b, move, sibling=True)

    def _record_refusal(self, a: int, b: int, move: Candidate, *, sibling: bool) -> None:
        after = move.joined[0][1].cost if move.joined else None
        if after is None and move.refusal is None:
            return
        first, second = self.clusters[a], self.clusters[b]
        self.decisions.split(first, second, after, move.refusal, move.gain, siblings=sibling)
