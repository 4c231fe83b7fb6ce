"""Refine clusters by moves that joining pairs cannot find.

Greedy joining ends where no pair gains. Two kinds of better plans remain.

1. Runs: neighbours that gain only all together, such as kernels that read the same arrays one after
   another. Clusters are put in topological order; that sequence may be cut anywhere without
   creating a cycle, so the best cuts are found exactly, by dynamic programming.
2. Splits: a cluster that took up a reduction before something better came along. One of its
   reductions or results becomes a kernel of its own, or the rest joins a neighbour.

A third kind is used where memory is short, whatever the time (`Refinement.split_for_overwrite`): a
large value that is an elementwise function of another becomes a kernel of its own, which overwrites
that one.

The number of evaluations is limited in proportion to the number of units, and lower bounds avoid
many of them. Runs and splits are taken only if they are predicted to gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.fusion.bitsets import bits, closure
from smelt.fusion.decide import Decisions
from smelt.fusion.legal import MAX_CODE_SIZE, MAX_OPERANDS
from smelt.fusion.state import SMALL_RATIO, Cluster, State, Verdict, topological_order
from smelt.python.dataclass import dataclass

RUN_LOOKS, SPLIT_LOOKS = 3, 1
"""Evaluation budgets for runs and for splits, in members of the evaluated sets per unit.

The time of an evaluation grows with the members of the set.
"""
MIN_LOOKS = 1200
"""Minimum budget, for small graphs."""
MAX_NEIGHBOURS = 4
"""Maximum neighbours that a part of a cluster is tried to be joined with."""
MIN_SHARED_SHARE = 0.05
"""Minimum share of two clusters' time that their shared traffic and a launch must make up."""
FLAT_DISCOUNT = 16
"""Members of a flat set that cost as much to evaluate as one member of another set."""
GIVE_UP_RATIO = 1.25
"""Threshold on the ratio of a run's time to its clusters' time: growing it is given up above.

It must be exceeded twice in a row. What such runs recompute in every pass over their rows only
grows with them.
"""
MIN_GAIN_SHARE, MIN_SPLIT_GAIN_SHARE = 0.03, 0.2
"""Minimum gain of a move as a share of the time it affects; less is within the model's error.

The second holds for moves that add a kernel.
"""


@dataclass(slots=True)
class Move:
    """Clusters to remove and sets to add instead."""

    gain: float
    old: tuple[int, ...]
    new: tuple[Verdict, ...]


class Refinement:
    """Refines the clusters of a finished search."""

    def __init__(self, state: State, decisions: Decisions) -> None:
        self.state, self.units, self.decisions = state, state.units, decisions
        self.budget = self._budget(RUN_LOOKS)
        self.least = state.lower_bounds
        self.next = max((len(self.units.values), *(c + 1 for c in state.clusters)))
        self.removed: set[tuple[int, int]] = set()
        """Clusters that were replaced: none is built again, so moves cannot cycle."""
        self.hopeless: set[tuple[object, ...]] = set()
        """Signatures of clusters with their neighbours for which no split gains."""
        self.topological_index: dict[int, int] = {}
        """Topological index of each cluster; empty until needed."""

    def run(self) -> list[int]:
        """Take the moves that gain; return the clusters they created."""
        created = [c for move in self._best_runs() for c in self._take(move)]
        self.budget = self._budget(SPLIT_LOOKS)
        pending = [] if self.state.wishes.must else self._by_slack()
        while pending and self.budget > 0:
            c = pending.pop()
            move = self._split(c) if c in self.state.clusters else None
            if move is not None and self._is_acyclic(move):
                added = self._take(move)
                created += added
                pending += added
        return [c for c in created if c in self.state.clusters]

    def _budget(self, each: int) -> int:
        """Return how many members of sets may be evaluated."""
        return max(MIN_LOOKS, each * len(self.units.units))

    def _by_slack(self) -> list[int]:
        """Return the clusters in order of their time above the lower bound, largest last."""
        clusters = self.state.clusters
        slack = {
            c: k.cost.objective_ns - self.least.single(k.region, 1)
            for c, k in sorted(clusters.items())
        }
        return sorted(slack, key=lambda c: slack[c])

    def split_for_overwrite(self) -> None:
        """Split clusters so that large values overwrite others that are not read any more.

        The kernel that overwrites is elementwise and runs after all other readers.
        """
        for c in sorted(self.state.clusters):
            candidate = self._overwriting_move(c)
            if candidate is not None and self._is_acyclic(candidate[0]):
                move, value, overwritten = candidate
                members = [v.key[0] for v in move.new]
                self.decisions.over(self.state.clusters[c], members, value, overwritten)
                self._replace(move)

    def _overwriting_move(self, c: int) -> tuple[Move, int, int] | None:
        """Return a cluster's move, the value that overwrites another one, and that one."""
        cluster, units = self.state.clusters[c], self.units
        nbytes = self.state.model.nbytes
        stored = [u for k in self.state.clusters.values() for u in bits(k.stored & ~units.outputs)]
        largest = max((nbytes[u] for u in stored), default=0)
        if cluster.region.flat or cluster.members & units.calls:
            return None
        for u in bits(cluster.stored & ~units.outputs):
            if nbytes[u] * SMALL_RATIO <= largest:
                continue
            new = self._mapped_last(cluster, u)
            index = next((k for k, v in enumerate(new) if v.region.stored == 1 << u), -1)
            if index < 0 or not new[index].region.flat:
                continue
            region = new[index].region
            for overwritten in bits(cluster.reads):
                reads, value_type = (
                    region.loads.get(overwritten, []),
                    units.values[overwritten].type,
                )
                is_elementwise = len(reads) == 1 and reads == region.positions[u]
                read_later = any(overwritten in v.region.loads for v in new[index + 1 :])
                if (
                    is_elementwise
                    and not read_later
                    and overwritten >= len(units.inputs)
                    and value_type == units.values[u].type
                ):
                    return Move(0.0, (c,), tuple(new)), u, overwritten
        return None

    def _mapped_last(self, cluster: Cluster, u: int) -> list[Verdict]:
        """Split a cluster into up to three kernels around the elementwise computation of `u`.

        They are: what `u` needs or what does not need it; the elementwise units that compute `u`;
        what reads it. Empty if one of them is not a kernel.
        """
        units, members = self.units, cluster.members & ~(1 << u)
        mapped = closure(1 << u, units.operands, cluster.members & ~units.reductions | 1 << u)
        operands = self.state.reads(mapped) & members
        other_results = cluster.stored & ~(1 << u)
        early_results = sum(
            1 << r
            for r in bits(other_results)
            if not closure(1 << r, units.operands, cluster.members) >> u & 1
        )
        before = closure(operands | early_results, units.operands, members)
        late_results = other_results & ~before
        after = closure(late_results, units.operands, members & ~(operands | early_results))
        parts = ((before, operands | early_results), (mapped, 1 << u), (after, late_results))
        verdicts = [self._evaluate(part, stored) for part, stored in parts if part]
        kernels = [v for v in verdicts if v is not None]
        return kernels if len(kernels) == len(verdicts) else []

    def _evaluate(self, members: int, stored: int, parts: Sequence[Cluster] = ()) -> Verdict | None:
        """Return the verdict on a set if it is a kernel, else None.

        Also None if the budget is spent.
        """
        if self.budget <= 0:
            return None
        before = self.state.evaluated_regions
        verdict = self.state.evaluate(members, stored, parts)
        if self.state.evaluated_regions > before:
            self.budget -= members.bit_count() // (
                FLAT_DISCOUNT if verdict.source_region.flat else 1
            )
        return verdict if verdict.cost is not None and verdict.refusal is None else None

    # ---- runs ----------------------------------------------------------------------------------

    def _best_runs(self) -> list[Move]:
        """Return consecutive clusters that are faster together, though no two of them are."""
        clusters = self.state.clusters
        order = topological_order({c: self.state.successors(c) for c in clusters})
        best: list[tuple[float, int]] = [(0.0, 0)]
        verdicts: dict[tuple[int, int], Verdict] = {}
        for end in range(1, len(order) + 1):
            best.append((best[-1][0] + clusters[order[end - 1]].cost.objective_ns, end - 1))
        for start in range(len(order)):
            total_ns = clusters[order[start]].cost.objective_ns
            for end, verdict in self._grow_run(order, start):
                total_ns += clusters[order[end - 1]].cost.objective_ns
                if (
                    verdict.cost is not None
                    and verdict.cost.objective_ns < (1 - MIN_GAIN_SHARE) * total_ns
                ):
                    verdicts[start, end] = verdict
        for end in range(1, len(order) + 1):
            best[end] = (best[end - 1][0] + clusters[order[end - 1]].cost.objective_ns, end - 1)
            for start in range(end - 1):
                verdict = verdicts.get((start, end))
                if verdict is not None and verdict.cost is not None:
                    best[end] = min(best[end], (best[start][0] + verdict.cost.objective_ns, start))
        moves: list[Move] = []
        end = len(order)
        while end:
            start = best[end][1]
            if end - start > 1:
                gain = sum(clusters[c].cost.objective_ns for c in order[start:end])
                gain -= best[end][0] - best[start][0]
                moves.append(Move(gain, tuple(order[start:end]), (verdicts[start, end],)))
            end = start
        return moves

    def _grow_run(self, order: Sequence[int], start: int) -> Iterator[tuple[int, Verdict]]:
        """Iterate over runs from an index of the order, with end and verdict.

        Where one of the clusters streams, more than traffic may be saved: blocks that a mask rules
        out.
        """
        state, model = self.state, self.state.model
        run = state.clusters[order[start]]
        streams = run.cost.stream >= 0
        included = 1 << order[start]
        separate_ns, hopeless_steps = run.cost.objective_ns, 0
        for end in range(start + 2, len(order) + 1):
            c = order[end - 1]
            other = state.clusters[c]
            members = run.members | other.members
            if members & self.units.calls or run.size + other.size > MAX_CODE_SIZE:
                return
            reads = (run.reads | other.reads) & ~members
            included |= 1 << c
            stored = self.state.stored_beyond(run.stored | other.stored, included)
            shared_values = bits((run.stored | run.reads) & other.reads)
            shared = model.read_values_ns(shared_values, model.cores)
            unstored_ns = model.write_values_ns(bits(run.stored & ~stored), model.cores)
            saved = shared + unstored_ns + other.cost.launch
            least = min(run.cost.objective_ns, other.cost.objective_ns)
            streams = streams or other.cost.stream >= 0
            if not shared or (not streams and saved < MIN_SHARED_SHARE * least):
                return
            if reads.bit_count() + stored.bit_count() > MAX_OPERANDS:
                return
            verdict = self._evaluate(members, stored, (run, other))
            if verdict is None or verdict.cost is None:
                return
            size = state.size(members, (run, other))
            run = Cluster(members, stored, reads, size, verdict, verdict.cost)
            yield end, verdict
            separate_ns += other.cost.objective_ns
            is_hopeless = (
                verdict.region.reduced_axes
                and verdict.cost.objective_ns > GIVE_UP_RATIO * separate_ns
            )
            hopeless_steps = hopeless_steps + 1 if is_hopeless else 0
            if hopeless_steps > 1:
                return

    # ---- splits --------------------------------------------------------------------------------

    def _split(self, c: int) -> Move | None:
        """Return the best way to split a cluster, None if none gains."""
        cluster = self.state.clusters[c]
        if cluster.members & self.units.calls or cluster.members & (cluster.members - 1) == 0:
            return None
        neighbours = self._neighbours(c)
        signature = self._neighbourhood_signature(c, neighbours)
        if signature in self.hopeless:
            return None
        best = self._best_split(c, [n for n in neighbours if self._may_gain(c, n)])
        if best is None and signature is not None and self.budget > 0:
            self.hopeless.add(signature)
        return best

    def _neighbourhood_signature(
        self, c: int, neighbours: Sequence[int]
    ) -> tuple[object, ...] | None:
        """Return the signature of a cluster with its neighbours, each and together.

        Where one of two such groups gains nothing, the other does not either. None if there is no
        signature or not everything depends on it.
        """
        state = self.state
        if self.removed or state.wishes.never:
            return None
        clusters = [state.clusters[n] for n in (c, *neighbours)]
        members = stored = inside = 0
        for n, k in zip((c, *neighbours), clusters, strict=True):
            members, stored, inside = members | k.members, stored | k.stored, inside | 1 << n
        signature = state.isomorphism.signature(members, self.state.stored_beyond(stored, inside))
        if signature is None:
            return None
        index = {u: k for k, u in enumerate(bits(members))}
        sets = [s for k in clusters for s in (k.members, k.stored)]
        sets.append(stored & self.units.outputs)
        return (signature.form, *[tuple([index[u] for u in bits(s)]) for s in sets])

    def _best_split(self, c: int, neighbours: Sequence[int]) -> Move | None:
        """Return the best way to split a cluster, possibly joining a part with a neighbour."""
        cluster = self.state.clusters[c]
        best: Move | None = None
        if not neighbours and not self._may_gain(c):
            return None
        for cut_units in self._cut_points(cluster):
            sets = self._split_at(cluster, cut_units)
            if not sets:
                continue
            exchanged = sets[0][1] & ~cluster.stored
            candidates = (
                [n for n in neighbours if self._may_gain(c, n, exchanged)]
                if exchanged
                else neighbours
            )
            options = list(self._join_options(c, candidates, sets))
            if not options and not self._may_gain(c, exchanged=exchanged):
                continue
            first, second = (self._evaluate(*part) for part in sets)
            if first is None or second is None:
                continue
            for move in self._moves(
                c, options, (first, second), 0.0 if best is None else best.gain
            ):
                old_ns = sum(self.state.clusters[k].cost.objective_ns for k in move.old)
                min_share = (
                    MIN_GAIN_SHARE if len(move.new) <= len(move.old) else MIN_SPLIT_GAIN_SHARE
                )
                if self.removed.intersection([v.key for v in move.new]):
                    continue
                if move.gain > min_share * old_ns and (best is None or move.gain > best.gain):
                    best = move
        return best

    def _may_gain(self, c: int, n: int = -1, exchanged: int = 0) -> bool:
        """Return whether splitting a cluster, or regrouping it with neighbour `n`, may gain enough.

        It may not if they take little more than the lower bound for their units in any two kernels,
        of which one stores the values `exchanged` for the other.
        """
        cluster = self.state.clusters[c]
        if n < 0:
            least = self.least.single(cluster.region, 2, exchanged)
            return (
                cluster.cost.objective_ns - least > MIN_SPLIT_GAIN_SHARE * cluster.cost.objective_ns
            )
        other = self.state.clusters[n]
        both, old_ns = (
            cluster.stored | other.stored,
            cluster.cost.objective_ns + other.cost.objective_ns,
        )
        stored = self.state.stored_beyond(both, 1 << c | 1 << n)
        least = self.least.pair(cluster.region, other.region, stored, 2, exchanged)
        return old_ns - least + self.state.uncached_ns(both) > MIN_GAIN_SHARE * old_ns

    def _cut_points(self, cluster: Cluster) -> Iterator[int]:
        """Iterate over sets of members at which a cluster may be cut.

        These are each of its reductions and results, and the operands of reductions that read
        finished reductions, for rows end there: one at a time and all together, since several are
        needed where several numbers of each row are summed. The operands count only where such
        reductions leave few tasks, or where rows are uncached. So are the operands of a scatter
        whose programs all compute them at every position, as on a GPU.
        """
        candidates = cluster.members & self.units.reductions
        operands = 0
        if self._has_few_tasks(cluster) or self.state.uncached_ns(cluster.reads):
            for u in bits(candidates):
                if cluster.region.levels.get(u, 0) > 1:
                    operands |= self.units.operands[u] & cluster.members
        if self.state.model.tiling.recomputes_products:  # programs share no part of a row
            for u in bits(cluster.members & self.units.scatters):
                operands |= self.units.operands[u] & cluster.members
        if cluster.stored & (cluster.stored - 1):
            candidates |= cluster.stored
        yield from (1 << u for u in bits(candidates | operands))
        if operands & (operands - 1):
            yield operands

    def _has_few_tasks(self, cluster: Cluster) -> bool:
        """Return whether reductions leave too few tasks, or split an axis to have enough."""
        return cluster.cost.split or cluster.cost.tasks < self.state.model.cores

    def _split_at(self, cluster: Cluster, cut: int) -> tuple[tuple[int, int], ...]:
        """Split a cluster at some members: up to them, and the rest, which reads them.

        Each part comes with what it stores. Empty if one of the parts would be.
        """
        before = closure(cut, self.units.operands, cluster.members)
        roots = cluster.stored & ~before
        loaded = self._loaded_members(before, roots) | cut
        after = closure(roots, self.units.operands, cluster.members & ~loaded)
        exchanged = cluster.stored & before | self.state.reads(after) & loaded
        if not roots or (before | after) != cluster.members or not exchanged:
            return ()
        return (before, exchanged), (after, roots)

    def _loaded_members(self, members: int, roots: int) -> int:
        """Return the members that the rest loads instead of recomputing.

        These are reductions and small values.
        """
        nbytes = self.state.model.nbytes
        largest = max(nbytes[r] for r in bits(roots)) if roots else 0
        small = sum(1 << v for v in bits(members) if SMALL_RATIO * nbytes[v] <= largest)
        return members & self.units.reductions | small

    def _join_options(
        self, c: int, neighbours: Sequence[int], sets: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int, int]]:
        """Iterate over ways to join a part of a cluster with a neighbour.

        Yields the neighbour, what is stored then, and the number of the part. Only if they share a
        value and no cycle of kernels results.
        """
        clusters, reads = self.state.clusters, self.state.reads
        for n in neighbours:
            cluster = clusters[n]
            for k, (members, part_stored) in enumerate(sets):
                part_reads = reads(members)
                if not (
                    cluster.stored & part_reads
                    | part_stored & cluster.reads
                    | part_reads & cluster.reads
                ):
                    continue
                rest = sets[1 - k]
                stored = self.state.stored_beyond(
                    part_stored | cluster.stored, 1 << c | 1 << n, reads(rest[0])
                )
                if not self._creates_cycle(c, n, (members | cluster.members, stored), rest):
                    yield n, stored, k

    def _moves(
        self,
        c: int,
        options: Sequence[tuple[int, int, int]],
        parts: tuple[Verdict, Verdict],
        min_gain: float,
    ) -> Iterator[Move]:
        """Iterate over moves: the two parts as they are, and each joined with a neighbour.

        Joins are evaluated only where they may gain more than `min_gain`.
        """
        clusters, state = self.state.clusters, self.state
        first, second = parts
        assert first.cost is not None and second.cost is not None
        separate_ns = first.cost.objective_ns + second.cost.objective_ns
        old_ns = clusters[c].cost.objective_ns
        added = (first.region.stored | second.region.stored) & ~clusters[c].stored
        yield Move(
            old_ns - separate_ns - state.uncached_ns(added, second.region.stored), (c,), parts
        )
        for n, stored, k in options:
            cluster, part, rest = clusters[n], parts[k], parts[1 - k]
            assert part.cost is not None and rest.cost is not None
            region, both = part.region, clusters[c].stored | cluster.stored
            gain = (
                old_ns
                + cluster.cost.objective_ns
                - rest.cost.objective_ns
                + state.uncached_ns(both)
            )
            gain -= self.least.pair(region, cluster.region, stored, 1)
            if gain <= max(min_gain, MIN_GAIN_SHARE * (old_ns + cluster.cost.objective_ns)):
                continue
            verdict = self._evaluate(region.members | cluster.members, stored)
            if verdict is not None and verdict.cost is not None:
                gain = (
                    old_ns
                    + cluster.cost.objective_ns
                    - rest.cost.objective_ns
                    - verdict.cost.objective_ns
                )
                dropped = both & ~rest.region.stored & ~verdict.region.stored
                gain += state.uncached_ns(dropped, verdict.region.stored)
                reads = state.reads(region.members)
                if not (cluster.stored & reads | region.stored & cluster.reads):
                    # kernels of one launch start together anyway
                    saved = part.cost.launch + cluster.cost.launch - verdict.cost.launch
                    gain -= max(0.0, saved - state.model.joined_start_ns)
                yield Move(gain, (c, n), (rest, verdict))

    def _neighbours(self, c: int) -> list[int]:
        """Return the clusters that share much traffic with one, the most first.

        For a cluster of few tasks also those whose results it reads, whatever the traffic: without
        its last reductions it has more tasks.
        """
        state, model = self.state, self.state.model
        cluster = state.clusters[c]
        shared: dict[int, float] = {}
        for v in bits(cluster.reads | cluster.stored):
            traffic_ns = model.read_ns(v, model.nbytes[v], model.cores) + state.uncached_ns(1 << v)
            for n in bits(state.readers[v] | state.holders[v]):
                shared[n] = shared.get(n, 0.0) + traffic_ns
        neighbours: list[int] = []
        has_few_tasks = self._has_few_tasks(cluster)
        for n, traffic_ns in shared.items():
            other = state.clusters[n]
            max_gain = traffic_ns + min(cluster.cost.launch, other.cost.launch)
            may_regain_tasks = has_few_tasks and cluster.reads & other.stored
            if (
                n != c
                and not other.members & self.units.calls
                and (
                    may_regain_tasks
                    or max_gain
                    > MIN_SHARED_SHARE * (cluster.cost.objective_ns + other.cost.objective_ns)
                )
            ):
                neighbours.append(n)
        return sorted(neighbours, key=lambda n: -shared[n])[:MAX_NEIGHBOURS]

    # ---- carrying out --------------------------------------------------------------------------

    def _creates_cycle(
        self, c: int, n: int, joined: tuple[int, int], rest: tuple[int, int]
    ) -> bool:
        """Return whether joining a part of cluster `c` with `n` closes a cycle.

        A path may lead through the rest of `c` or through other clusters.
        """
        state = self.state
        if not self.topological_index:
            order = topological_order({k: state.successors(k) for k in state.clusters})
            self.topological_index = {k: place for place, k in enumerate(order)}
        last = max(
            self.topological_index[c], self.topological_index[n]
        )  # later clusters cannot lead back
        reads, rest_reads = state.reads(joined[0]), state.reads(rest[0])
        written = all_written = joined[1]
        seen = 1 << c | 1 << n
        while written and not written & reads:
            next_written = rest[1] if written & rest_reads else 0
            for v in bits(written):
                for k in bits(state.readers[v] & ~seen):
                    seen |= 1 << k
                    next_written |= (
                        state.clusters[k].stored if self.topological_index[k] < last else 0
                    )
            written = next_written & ~all_written
            all_written |= next_written
        return bool(written)

    def _is_acyclic(self, move: Move) -> bool:
        """Return whether the clusters remain acyclic after a move."""
        clusters = self.state.clusters
        sets = [(k.stored, k.reads) for c, k in clusters.items() if c not in move.old]
        sets += [(v.key[1], self.state.reads(v.key[0])) for v in move.new]
        written = 0
        pending = sets
        units_mask = sum(1 << u.number for u in self.units.units)
        while pending:
            waiting = [s for s in pending if s[1] & units_mask & ~written]
            if len(waiting) == len(pending):
                return False
            for stored, reads in pending:
                if not reads & units_mask & ~written:
                    written |= stored
            pending = waiting
        return True

    def _take(self, move: Move) -> list[int]:
        """Carry out a move and record it; return the numbers of the new clusters."""
        old = [self.state.clusters[c] for c in move.old]
        self.decisions.refined(old, [verdict.key[0] for verdict in move.new], move.gain)
        return self._replace(move)

    def _replace(self, move: Move) -> list[int]:
        """Replace the old clusters by the new ones; return their numbers."""
        for c in move.old:
            cluster = self.state.clusters[c]
            self.removed.add((cluster.members, cluster.stored))
            self.state.remove(c)
        created: list[int] = []
        self.topological_index = {}
        for verdict in move.new:
            self.state.add_evaluated(self.next, verdict)
            created.append(self.next)
            self.next += 1
        return created
