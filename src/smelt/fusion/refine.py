"""Moves that joining pairs cannot find: several clusters at once, and clusters taken apart again.

Greedy joining ends where no pair gains.  Two kinds of better plans lie beyond that.

1. Runs: neighbours that gain only all together, such as kernels that read the same arrays in turn.
   Clusters are put in a row in which producers stand before readers; a row may be cut anywhere
   without closing a cycle, so the best cuts are found exactly, by dynamic programming.
2. Splits: a cluster that took up a fold before something better came along.  One of its folds or
   results becomes a kernel of its own, by itself or because what is left then joins a neighbour.

A third kind is made where memory is short, whatever the model says of its time: a large value that
is mapped from another one becomes a kernel that does nothing else, which writes it in that one's
place.  The model is asked in proportion to the number of units, of large sets fewer times, and not
at all where the least that units take tells the answer; the first two take only what is predicted
to gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import bits
from smelt.fusion.cost import INLINE_LAUNCH_NS
from smelt.fusion.decide import Decisions
from smelt.fusion.legal import CODE, OPERANDS
from smelt.fusion.reachability import in_order
from smelt.fusion.state import SMALL, Cluster, State, Verdict

RUN_LOOKS, SPLIT_LOOKS = 3, 1
"""Members, for each unit of the graph, of the sets that may be asked about as runs and as parts of
clusters: what a question takes grows with them."""
LEAST_LOOKS = 1200
"""The same for a small graph."""
MOST_NEIGHBOURS = 4
"""Neighbours that a part of a cluster is tried to be joined with."""
WORTH = 0.05
"""Part of the time of two clusters that the traffic between them and a launch must make up."""
FLAT = 16
"""How many members of a set that maps one space take as long as one of any other set."""
HOPELESS = 1.25
"""How much more than its clusters take apart a run that folds may take, twice in a row, to be grown
further: what such runs compute again in every sweep over their rows only grows with them."""
ENOUGH, MORE = 0.03, 0.2
"""Part of the time of what it touches that a move must gain, since less is within the model's
error: where it makes no kernel more, and where it does."""


@dataclass(slots=True)
class Move:
    """Clusters that go, and sets that come instead."""

    gain: float
    old: tuple[int, ...]
    new: tuple[Verdict, ...]


class Refinement:
    """Improves the clusters of a finished search."""

    def __init__(self, state: State, decisions: Decisions) -> None:
        self.state, self.units, self.decisions = state, state.units, decisions
        self.left = self._looks(RUN_LOOKS)
        self.least = state.least
        self.next = max((len(self.units.values), *(c + 1 for c in state.clusters)))
        self.gone: set[tuple[int, int]] = set()
        """Clusters that were given up: none comes again, so that moves cannot go in a circle."""
        self.hopeless: set[tuple[object, ...]] = set()
        """What clusters that are best left as they are look like, with their neighbours."""
        self.places: dict[int, int] = {}
        """Where clusters stand in a row, producers before readers; empty until that is asked."""

    def run(self) -> list[int]:
        """Takes the moves that gain; returns the clusters that came of them."""
        fresh = [c for move in self._runs() for c in self._take(move)]
        self.left = self._looks(SPLIT_LOOKS)
        pending = [] if self.state.wishes.must else self._by_slack()
        while pending and self.left > 0:
            c = pending.pop()
            move = self._split(c) if c in self.state.clusters else None
            if move is not None and self._is_acyclic(move):
                found = self._take(move)
                fresh += found
                pending += found
        return [c for c in fresh if c in self.state.clusters]

    def _looks(self, each: int) -> int:
        """Members of sets that may be asked about."""
        return max(LEAST_LOOKS, each * len(self.units.units))

    def _by_slack(self) -> list[int]:
        """The clusters, last those that take most beyond the least that their units take."""
        clusters = self.state.clusters
        slack = {
            c: k.cost.burden - self.least.alone(k.region, 1) for c, k in sorted(clusters.items())
        }
        return sorted(slack, key=lambda c: slack[c])

    def overwrite(self) -> None:
        """Takes clusters apart so that large values are written over others that nobody reads any
        more: by kernels that map them, which run last of those that read them."""
        for c in sorted(self.state.clusters):
            found = self._over(c)
            if found is not None and self._is_acyclic(found[0]):
                move, value, old = found
                members = [v.key[0] for v in move.new]
                self.decisions.over(self.state.clusters[c], members, value, old)
                self._replace(move)

    def _over(self, c: int) -> tuple[Move, int, int] | None:
        """A cluster's move, the value that is written over another one, and that one."""
        cluster, units = self.state.clusters[c], self.units
        nbytes = self.state.model.nbytes
        kept = [u for k in self.state.clusters.values() for u in bits(k.stored & ~units.outputs)]
        most = max((nbytes[u] for u in kept), default=0)
        if cluster.region.flat or cluster.members & units.calls:
            return None
        for u in bits(cluster.stored & ~units.outputs):
            if nbytes[u] * SMALL <= most:
                continue
            new = self._mapped_last(cluster, u)
            at = next((k for k, v in enumerate(new) if v.region.stored == 1 << u), -1)
            if at < 0 or not new[at].region.flat:
                continue
            region = new[at].region
            for old in bits(cluster.reads):
                read, kind = region.loads.get(old, []), units.values[old].type
                mapped = len(read) == 1 and read == region.places[u]
                again = any(old in v.region.loads for v in new[at + 1 :])
                if (
                    mapped
                    and not again
                    and old >= len(units.inputs)
                    and kind == units.values[u].type
                ):
                    return Move(0.0, (c,), tuple(new)), u, old
        return None

    def _mapped_last(self, cluster: Cluster, u: int) -> list[Verdict]:
        """A cluster as up to three: what `u` needs or what does not need it, the maps that make
        `u` of that, and what reads it; none if one of them is no kernel."""
        units, members = self.units, cluster.members & ~(1 << u)
        maps = self._closure(1 << u, cluster.members & ~units.folds | 1 << u)
        behind = self.state.reads(maps) & members
        others = cluster.stored & ~(1 << u)
        early = sum(
            1 << r for r in bits(others) if not self._closure(1 << r, cluster.members) >> u & 1
        )
        first = self._closure(behind | early, members)
        late = others & ~first
        rest = self._closure(late, members & ~(behind | early))
        parts = ((first, behind | early), (maps, 1 << u), (rest, late))
        found = [self._judge(part, stored) for part, stored in parts if part]
        judged = [v for v in found if v is not None]
        return judged if len(judged) == len(found) else []

    def _judge(self, members: int, stored: int, parts: Sequence[Cluster] = ()) -> Verdict | None:
        """A verdict that is a kernel, None if there is none or too much was asked."""
        if self.left <= 0:
            return None
        before = self.state.asked
        found = self.state.judge(members, stored, parts)
        if self.state.asked > before:
            self.left -= members.bit_count() // (FLAT if found.found.flat else 1)
        return found if found.cost is not None and found.refusal is None else None

    # ---- runs ----------------------------------------------------------------------------------

    def _runs(self) -> list[Move]:
        """Neighbours in a row that are better together, though no two of them are."""
        clusters = self.state.clusters
        row = in_order({c: self.state.successors(c) for c in clusters})
        best: list[tuple[float, int]] = [(0.0, 0)]
        found: dict[tuple[int, int], Verdict] = {}
        for end in range(1, len(row) + 1):
            best.append((best[-1][0] + clusters[row[end - 1]].cost.burden, end - 1))
        for start in range(len(row)):
            before = clusters[row[start]].cost.burden
            for end, verdict in self._grown(row, start):
                before += clusters[row[end - 1]].cost.burden
                if verdict.cost is not None and verdict.cost.burden < (1 - ENOUGH) * before:
                    found[start, end] = verdict
        for end in range(1, len(row) + 1):
            best[end] = (best[end - 1][0] + clusters[row[end - 1]].cost.burden, end - 1)
            for start in range(end - 1):
                verdict = found.get((start, end))
                if verdict is not None and verdict.cost is not None:
                    best[end] = min(best[end], (best[start][0] + verdict.cost.burden, start))
        moves: list[Move] = []
        end = len(row)
        while end:
            start = best[end][1]
            if end - start > 1:
                gain = sum(clusters[c].cost.burden for c in row[start:end])
                gain -= best[end][0] - best[start][0]
                moves.append(Move(gain, tuple(row[start:end]), (found[start, end],)))
            end = start
        return moves

    def _grown(self, row: Sequence[int], start: int) -> Iterator[tuple[int, Verdict]]:
        """The runs that begin at a place in the row: where they end, and what they are.  Where one
        of them streams, more than traffic may be saved: what a mask rules out."""
        state = self.state
        whole = state.clusters[row[start]]
        streams = whole.cost.stream >= 0
        old = 1 << row[start]
        apart, worse = whole.cost.burden, 0
        for end in range(start + 2, len(row) + 1):
            c = row[end - 1]
            other = state.clusters[c]
            members = whole.members | other.members
            if members & self.units.calls or whole.size + other.size > CODE:
                return
            shared = self._traffic(whole.stored & other.reads | whole.reads & other.reads)
            least = min(whole.cost.burden, other.cost.burden)
            streams = streams or other.cost.stream >= 0
            if not shared or (not streams and shared + other.cost.launch < WORTH * least):
                return
            reads = (whole.reads | other.reads) & ~members
            old |= 1 << c
            stored = self._stored(whole.stored | other.stored, old)
            if reads.bit_count() + stored.bit_count() > OPERANDS:
                return
            found = self._judge(members, stored, (whole, other))
            if found is None or found.cost is None:
                return
            size = state.size(members, (whole, other))
            whole = Cluster(members, stored, reads, size, found, found.cost)
            yield end, found
            apart += other.cost.burden
            hopeless = found.region.ended and found.cost.burden > HOPELESS * apart
            worse = worse + 1 if hopeless else 0
            if worse > 1:
                return

    def _traffic(self, values: int) -> float:
        """Nanoseconds of reading some values once."""
        model = self.state.model
        return sum(model.read_ns(v, model.nbytes[v], model.cores) for v in bits(values))

    def _stored(self, stored: int, inside: int, also: int = 0) -> int:
        """Those of some values that clusters other than `inside` read, or nobody, or that `also`
        are read."""
        units = self.units
        return sum(
            1 << u
            for u in bits(stored)
            if self.state.readers[u] & ~inside
            or (units.outputs | also) >> u & 1
            or not units.users[u]
        )

    # ---- splits --------------------------------------------------------------------------------

    def _split(self, c: int) -> Move | None:
        """The best way to take a cluster apart."""
        cluster = self.state.clusters[c]
        if cluster.members & self.units.calls or cluster.members & (cluster.members - 1) == 0:
            return None
        near = self._neighbours(c)
        around = self._around(c, near)
        if around in self.hopeless:
            return None
        best = self._best_split(c, [n for n in near if self._may_gain(c, n)])
        if best is None and around is not None and self.left > 0:
            self.hopeless.add(around)
        return best

    def _around(self, c: int, near: Sequence[int]) -> tuple[object, ...] | None:
        """What a cluster and its neighbours look like, each by itself and together: where nothing
        gains, nothing does where it is the same.  None if nothing else can look like that, or not
        all that happens there is a matter of looks."""
        state = self.state
        if self.gone or state.wishes.never:
            return None
        clusters = [state.clusters[n] for n in (c, *near)]
        members = stored = inside = 0
        for n, k in zip((c, *near), clusters, strict=True):
            members, stored, inside = members | k.members, stored | k.stored, inside | 1 << n
        look = state.alike.look(members, self._stored(stored, inside))
        if look is None:
            return None
        place = {u: k for k, u in enumerate(bits(members))}
        sets = [s for k in clusters for s in (k.members, k.stored)]
        sets.append(stored & self.units.outputs)
        return (look.form, *[tuple([place[u] for u in bits(s)]) for s in sets])

    def _best_split(self, c: int, near: Sequence[int]) -> Move | None:
        """The best way to take a cluster apart, perhaps with one of its neighbours."""
        cluster = self.state.clusters[c]
        best: Move | None = None
        if not near and not self._may_gain(c):
            return None
        for cut in self._cuts(cluster):
            sets = self._sets(cluster, cut)
            if not sets:
                continue
            kept = sets[0][1] & ~cluster.stored
            able = [n for n in near if self._may_gain(c, n, kept)] if kept else near
            ways = list(self._ways(c, able, sets))
            if not ways and not self._may_gain(c, kept=kept):
                continue
            one, other = (self._judge(*part) for part in sets)
            if one is None or other is None:
                continue
            for move in self._moves(c, ways, (one, other), 0.0 if best is None else best.gain):
                before = sum(self.state.clusters[k].cost.burden for k in move.old)
                enough = ENOUGH if len(move.new) <= len(move.old) else MORE
                if self.gone.intersection([v.key for v in move.new]):
                    continue
                if move.gain > enough * before and (best is None or move.gain > best.gain):
                    best = move
        return best

    def _may_gain(self, c: int, n: int = -1, kept: int = 0) -> bool:
        """Whether a cluster taken apart, or one and its neighbour `n` otherwise than they are, may
        gain enough: not if they take little more than their units do in any two kernels of which
        one writes values that are `kept` for the other."""
        cluster = self.state.clusters[c]
        if n < 0:
            least = self.least.alone(cluster.region, 2, kept)
            return cluster.cost.burden - least > MORE * cluster.cost.burden
        other = self.state.clusters[n]
        both, before = cluster.stored | other.stored, cluster.cost.burden + other.cost.burden
        stored = self._stored(both, 1 << c | 1 << n)
        least = self.least.both(cluster.region, other.region, stored, 2, kept)
        return before - least + self.state.held(both) > ENOUGH * before

    def _cuts(self, cluster: Cluster) -> Iterator[int]:
        """Members that may be where a cluster is cut: each of its folds and results, and what folds
        of finished folds read, for rows end there; that by one and all together, for it takes
        several where several numbers of each row are summed up."""
        cuts = cluster.members & self.units.folds
        ends = 0
        if self.state.held(cluster.reads):
            for u in bits(cuts):
                if cluster.region.levels.get(u, 0) > 1:
                    ends |= self.units.operands[u] & cluster.members
        if cluster.stored & (cluster.stored - 1):
            cuts |= cluster.stored
        yield from (1 << u for u in bits(cuts | ends))
        if ends & (ends - 1):
            yield ends

    def _sets(self, cluster: Cluster, cut: int) -> tuple[tuple[int, int], ...]:
        """Some members with all that they need, and what is left, which reads them: both with what
        is written of them; nothing where one of the two would be."""
        first = self._closure(cut, cluster.members)
        roots = cluster.stored & ~first
        once = self._once(first, roots) | cut
        rest = self._closure(roots, cluster.members & ~once)
        kept = cluster.stored & first | self.state.reads(rest) & once
        if not roots or (first | rest) != cluster.members or not kept:
            return ()
        return (first, kept), (rest, roots)

    def _once(self, members: int, roots: int) -> int:
        """Members that are read from memory rather than computed again beside `roots`: folds, and
        what is small."""
        nbytes = self.state.model.nbytes
        most = max(nbytes[r] for r in bits(roots)) if roots else 0
        small = sum(1 << v for v in bits(members) if SMALL * nbytes[v] <= most)
        return members & self.units.folds | small

    def _closure(self, wanted: int, members: int) -> int:
        """Members that some of them need."""
        found = 0
        pending = wanted & members
        while pending:
            u = pending.bit_length() - 1
            found |= 1 << u
            pending = (pending | self.units.operands[u] & members) & ~found
        return found

    def _ways(
        self, c: int, near: Sequence[int], sets: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int, int]]:
        """How one of two parts of a cluster may be joined with a neighbour: with which one, what is
        written then, and the number of the part.  Only where they share something, and where no
        kernels wait for one another in a circle."""
        clusters, reads = self.state.clusters, self.state.reads
        for n in near:
            cluster = clusters[n]
            for k, (members, own) in enumerate(sets):
                read = reads(members)
                if not (cluster.stored & read | own & cluster.reads | read & cluster.reads):
                    continue
                left = sets[1 - k]
                stored = self._stored(own | cluster.stored, 1 << c | 1 << n, reads(left[0]))
                if not self._is_circle(c, n, (members | cluster.members, stored), left):
                    yield n, stored, k

    def _moves(
        self,
        c: int,
        ways: Sequence[tuple[int, int, int]],
        parts: tuple[Verdict, Verdict],
        most: float,
    ) -> Iterator[Move]:
        """The two parts as they are, and either joined with a neighbour where that may gain more
        than `most`."""
        clusters, state = self.state.clusters, self.state
        one, other = parts
        assert one.cost is not None and other.cost is not None
        apart = one.cost.burden + other.cost.burden
        before = clusters[c].cost.burden
        more = (one.region.stored | other.region.stored) & ~clusters[c].stored
        yield Move(before - apart - state.held(more, other.region.stored), (c,), parts)
        for n, stored, k in ways:
            cluster, part, left = clusters[n], parts[k], parts[1 - k]
            assert part.cost is not None and left.cost is not None
            region, both = part.region, clusters[c].stored | cluster.stored
            gain = before + cluster.cost.burden - left.cost.burden + state.held(both)
            gain -= self.least.both(region, cluster.region, stored, 1)
            if gain <= max(most, ENOUGH * (before + cluster.cost.burden)):
                continue
            found = self._judge(region.members | cluster.members, stored)
            if found is not None and found.cost is not None:
                gain = before + cluster.cost.burden - left.cost.burden - found.cost.burden
                gone = both & ~left.region.stored & ~found.region.stored
                gain += state.held(gone, found.region.stored)
                reads = state.reads(region.members)
                if not (cluster.stored & reads | region.stored & cluster.reads):
                    # they start together anyway
                    saved = part.cost.launch + cluster.cost.launch - found.cost.launch
                    gain -= max(0.0, saved - INLINE_LAUNCH_NS)
                yield Move(gain, (c, n), (left, found))

    def _neighbours(self, c: int) -> list[int]:
        """Clusters that share much traffic with one, the most first."""
        state = self.state
        cluster = state.clusters[c]
        shared: dict[int, float] = {}
        for v in bits(cluster.reads | cluster.stored):
            spent = self._traffic(1 << v) + state.held(1 << v)
            for n in bits(state.readers[v] | state.holders[v]):
                shared[n] = shared.get(n, 0.0) + spent
        found: list[int] = []
        for n, spent in shared.items():
            other = state.clusters[n]
            most = spent + min(cluster.cost.launch, other.cost.launch)
            if (
                n != c
                and not other.members & self.units.calls
                and most > WORTH * (cluster.cost.burden + other.cost.burden)
            ):
                found.append(n)
        return sorted(found, key=lambda n: -shared[n])[:MOST_NEIGHBOURS]

    # ---- carrying out --------------------------------------------------------------------------

    def _is_circle(self, c: int, n: int, joined: tuple[int, int], left: tuple[int, int]) -> bool:
        """Whether a part of cluster `c` as one kernel with `n` would wait for itself, by way of
        what is left of `c` or of other clusters: told from what each computes and writes."""
        state = self.state
        if not self.places:
            row = in_order({k: state.successors(k) for k in state.clusters})
            self.places = {k: place for place, k in enumerate(row)}
        last = max(self.places[c], self.places[n])  # who comes later does not lead back
        wanted, needed = state.reads(joined[0]), state.reads(left[0])
        written = everything = joined[1]
        seen = 1 << c | 1 << n
        while written and not written & wanted:
            more = left[1] if written & needed else 0
            for v in bits(written):
                for k in bits(state.readers[v] & ~seen):
                    seen |= 1 << k
                    more |= state.clusters[k].stored if self.places[k] < last else 0
            written = more & ~everything
            everything |= more
        return bool(written)

    def _is_acyclic(self, move: Move) -> bool:
        """Whether the clusters still wait for one another in one direction after a move."""
        clusters = self.state.clusters
        sets = [(k.stored, k.reads) for c, k in clusters.items() if c not in move.old]
        sets += [(v.key[1], self.state.reads(v.key[0])) for v in move.new]
        written = 0
        pending = sets
        ours = sum(1 << u.number for u in self.units.units)
        while pending:
            waiting = [s for s in pending if s[1] & ours & ~written]
            if len(waiting) == len(pending):
                return False
            for stored, reads in pending:
                if not reads & ours & ~written:
                    written |= stored
            pending = waiting
        return True

    def _take(self, move: Move) -> list[int]:
        """Carries out a move; returns the numbers of the new clusters."""
        before = [self.state.clusters[c] for c in move.old]
        self.decisions.refined(before, [found.key[0] for found in move.new], move.gain)
        return self._replace(move)

    def _replace(self, move: Move) -> list[int]:
        """Puts the new clusters in the places of the old ones; returns their numbers."""
        for c in move.old:
            cluster = self.state.clusters[c]
            self.gone.add((cluster.members, cluster.stored))
            self.state.remove(c)
        fresh: list[int] = []
        self.places = {}
        for found in move.new:
            self.state.put(self.next, found)
            fresh.append(self.next)
            self.next += 1
        return fresh
