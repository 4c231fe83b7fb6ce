"""Plan a graph, with a part in chunks of rows where that saves memory.

If the plan of the full graph would store values that exceed every cache, and something is summed
over their rows, `chunking.py` takes the graph apart. The parts are planned like any other graph and
put together as one plan: kernels before, one cluster whose body is a plan of its own and runs chunk
by chunk, kernels after. This is done for the memory; the decision records what it costs or saves in
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from smelt import knobs
from smelt.backend.machine import Machine
from smelt.fusion import memory, plan_single
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.checks import merge_plans, split_checks
from smelt.fusion.chunking import (
    CannotChunk,
    ChunkedGraph,
    ChunkedValue,
    NarrowSums,
    chunk_rows,
    rows_that_fit,
)
from smelt.fusion.decide import compared_times, decision, rename_decision
from smelt.fusion.loops import rename_loop
from smelt.fusion.plan import NOTHING, Body, Cluster, Donated, Plan
from smelt.fusion.predict import chunked_cost, chunked_traffic, costs
from smelt.fusion.recompute import MAX_SLOWER
from smelt.fusion.split_graph import split_graph, with_wide_sums
from smelt.fusion.state import SMALL_RATIO
from smelt.fusion.units import is_free, trace_of
from smelt.fusion.verify import verify
from smelt.graph.ir import Graph, Node
from smelt.graph.text import name_values
from smelt.journal.facts import Decision, Journal
from smelt.kernel.chunks import FIRST_ROW, WHOLE, Chunks, ChunkSlice, round_up_rows
from smelt.ops.create import Constant, Input
from smelt.types.expr import add
from smelt.types.expr import text as expr_text

CACHE_PARTS = 4
"""Number of parts that the last-level cache is divided into for a chunk.

A value that exceeds one part counts as uncached: values of a chunk share the cache with one another
and with the operands that are streamed.
"""
MAX_SLOWDOWN = 1.04
"""Largest slowdown accepted for chunks that keep less memory."""
BUDGET_DIVISORS = (4, 16, 64, 1)
"""Divisors of the kept bytes that are tried as budgets.

They are tried if the plan for the available memory does not fit it.
"""
ALIGNED = 384
"""Maximum bytes of alignment in a plan's memory and its chunks', with a chunk's first row."""
ALIGNED_RESULT = 128
"""Maximum bytes of alignment of a chunk's result that is kept before it is copied."""
SCARCE_CHUNKS = 4
"""Minimum bytes that a plan keeps, in chunks, for which rounds may take longer."""
SCARCE_SLOWER = 3.0
"""Largest ratio of times accepted for chunks instead of a plan that keeps so much."""
CHUNK_COUNTS = 5
"""Numbers of chunks of which the fastest is chosen."""
IO_TIME_FACTOR = 8
"""Ratio of kept bytes to input and output bytes that is worth a doubling of the time."""


def plan(
    graph: Graph,
    target: Machine,
    journal: Journal | None,
    hints: Mapping[str, int],
    *,
    fuse: bool = True,
    donated: Donated = NOTHING,
) -> Plan:
    """Return the plan of a graph, part of it in chunks where that saves memory.

    The arguments are those of `plan_single.plan`. Nothing is chunked without `fuse`, nor where
    operators are required to be one kernel. Checks of the graph are planned separately if they read
    little.
    """
    target = target.planning
    split = split_checks(graph, Hints(hints)) if fuse and graph.checks else None
    if split is None:
        return _plan(graph, target, journal, hints, fuse=fuse, donated=donated)
    checks = plan_single.plan(split[1], target, Journal(keep=False), hints)
    # checks run last: their inputs must not be overwritten
    checked_values = {n for c in checks.clusters for n in c.inputs}
    donated = {n: to for n, to in donated.items() if n not in checked_values}
    combined = merge_plans(
        _plan(split[0], target, journal, hints, fuse=fuse, donated=donated), checks
    )
    if knobs.VERIFY.get():
        verify(combined)
    return combined


def _plan(
    graph: Graph,
    target: Machine,
    journal: Journal | None,
    hints: Mapping[str, int],
    *,
    fuse: bool,
    donated: Donated,
) -> Plan:
    """Return the plan of a graph, leaving its checks where they are."""
    unchunked = plan_single.plan(graph, target, journal, hints, fuse=fuse, donated=donated)
    defaults = Hints(hints)
    available = _available_bytes(unchunked, defaults) if fuse else None
    if target.chunk_bytes is None and available is None:
        return unchunked
    exact = knobs.ROUNDING.get() == "exact"  # chunks would add partial sums in another order
    if not fuse or exact or knobs.REQUIRE_FUSED.get():
        if available is None:
            return unchunked
        return _frugal_plan(unchunked, target, journal, hints, donated)
    candidate = _fitting_plan(unchunked, target, defaults, donated, available)
    if available is None and target.tiling.recomputes_products:
        again = _recomputing_plan(unchunked, candidate, target, hints, donated)
        if again is not None:
            return _recorded(again, journal)
    if available is not None:
        kept = candidate if isinstance(candidate, Plan) else unchunked
        if not _fits(kept, defaults, available):
            frugal = _frugal_plan(unchunked, target, journal, hints, donated)
            if total_kept_bytes(frugal, defaults) < total_kept_bytes(kept, defaults):
                return frugal
    if isinstance(candidate, Decision):
        return _with_decision(unchunked, candidate, journal)
    if candidate is None:
        return unchunked
    if knobs.VERIFY.get():
        verify(candidate)
    decision = candidate.decisions[-1]
    return _with_decision(replace(candidate, decisions=candidate.decisions[:-1]), decision, journal)


def _recomputing_plan(
    unchunked: Plan,
    chunked: Plan | Decision | None,
    target: Machine,
    hints: Mapping[str, int],
    donated: Donated,
) -> Plan | None:
    """Return a plan that recomputes large values instead of storing them, or chunks of them.

    None if no value is large, if the plan keeps one, or is slower than chunks, or much slower.
    """
    defaults = Hints(hints)
    most = target.chunk_bytes or target.cache_bytes

    def keeps_large(plan: Plan) -> bool:
        slots = (s for s in plan.slots if s.offset is not None)
        return any(at_hints(s.nbytes, defaults) > most for s in slots)

    if not keeps_large(unchunked):
        return None
    again = plan_single.plan(unchunked.graph, target, None, hints, donated=donated, recomputes=True)
    fills = _fills_memory(total_kept_bytes(unchunked, defaults), target)
    most_ns = (SCARCE_SLOWER if fills else MAX_SLOWER) * _objective_ns(unchunked, target, defaults)
    if isinstance(chunked, Plan):
        most_ns = min(most_ns, _objective_ns(chunked, target, defaults))
    is_slow = _objective_ns(again, target, defaults) > most_ns
    return None if keeps_large(again) or is_slow else again


def _frugal_plan(
    unchunked: Plan,
    target: Machine,
    journal: Journal | None,
    hints: Mapping[str, int],
    donated: Donated,
) -> Plan:
    """Return a plan that recomputes instead of storing, if it keeps less memory.

    It is the same for every limit.
    """
    defaults = Hints(hints)
    frugal = plan_single.plan(unchunked.graph, target, None, hints, donated=donated, frugal=True)
    if total_kept_bytes(frugal, defaults) >= total_kept_bytes(unchunked, defaults):
        return unchunked
    return _recorded(frugal, journal)


def _recorded(plan: Plan, journal: Journal | None) -> Plan:
    """Record the decisions of a plan that was made without the journal."""
    if journal is not None:
        for d in plan.decisions:
            journal.record(d)
    return plan


def _fitting_plan(
    unchunked: Plan, target: Machine, hints: Hints, donated: Donated, available: int | None
) -> Plan | Decision | None:
    """Return a chunked plan within the available memory, or the decision against it.

    Without a limit this is `_chunked_plan`. Otherwise fixed budgets are tried, the same for every
    limit, and the first plan that fits is taken, or the one that keeps least. The error then
    reports a limit that would suffice: with it, the same plan is found again.
    """
    if available is None:
        return _chunked_plan(unchunked, target, hints, donated, None)
    first_try = (
        _chunked_plan(unchunked, target, hints, donated, available) if available > 0 else None
    )
    if isinstance(first_try, Plan) and _fits(first_try, hints, available):
        return first_try
    unchunked_bytes, smallest = total_kept_bytes(unchunked, hints), None
    for divisor in BUDGET_DIVISORS:
        candidate = _chunked_plan(
            unchunked, target, hints, donated, max(unchunked_bytes // divisor, 1)
        )
        if not isinstance(candidate, Plan):
            first_try = candidate or first_try
        elif _fits(candidate, hints, available):
            return candidate
        elif smallest is None or total_kept_bytes(candidate, hints) < total_kept_bytes(
            smallest, hints
        ):
            smallest = candidate
    return smallest or first_try


def _chunked_plan(
    unchunked: Plan,
    target: Machine,
    hints: Hints,
    donated: Donated,
    available: int | None,
    *,
    widens: bool = True,
) -> Plan | Decision | None:
    """Return a plan whose chunks keep at most `available` bytes; its last decision describes them.

    If there is none, the decision that says why, or None where nobody would expect chunks. Raises
    NarrowSums where chunks need wider sums and none may be made (`widens`).
    """
    most = target.chunk_bytes or target.cache_bytes
    value_bytes = most if available is None else min(max(available // CACHE_PARTS, 1), most)
    large = [
        s.node
        for s in unchunked.slots
        if s.offset is not None and at_hints(s.nbytes, hints) > value_bytes
    ]
    if not large:
        return None
    large.sort(key=lambda n: -at_hints(n.type.nbytes, hints))
    try:
        limits = value_bytes, available
        candidate = _plan_chunks(unchunked, large, target, hints, donated, limits, widens=widens)
    except CannotChunk as refused:
        if isinstance(refused, NarrowSums):
            raise
        if not _is_summed(unchunked.graph, large[0]):
            return None
        return _refused(unchunked, large[0], str(refused), hints)
    if candidate is None:
        return None
    return replace(
        candidate,
        decisions=(*candidate.decisions, _accepted(unchunked, candidate, large, target, hints)),
    )


def _plan_chunks(
    unchunked: Plan,
    large: Sequence[Node],
    target: Machine,
    hints: Hints,
    donated: Donated,
    limits: tuple[int, int | None],
    *,
    widens: bool,
) -> Plan | None:
    """Return the plan that computes the `large` values in chunks.

    `limits` are the bytes of a large value, and the memory limit, with which the plan is taken
    whatever its time. None or CannotChunk as in `chunk_graph`, NarrowSums as in `_chunked_plan`.

    Chunks of tokens accumulate the gradient of a classifier's weights in a wider type, chunks of
    words that of the tokens. Where accumulators are a large part of the machine's memory, the axis
    is taken whose chunks keep least, in twice the time at most.
    """
    available = limits[1]
    fills = _fills_memory(total_kept_bytes(unchunked, hints), target)

    def composed(axes: Sequence[int] | None) -> tuple[Plan, ChunkedGraph] | None:
        graph, values = unchunked.graph, list(large)
        while True:
            split = split_graph(
                graph, values, target, hints, limits[0], axes, saves_memory=fills, widens=widens
            )
            if split is None:
                return None
            graph, cut, values = split
            try:
                return _compose(unchunked, graph, cut, values, target, hints, donated, limits), cut
            except NarrowSums as narrow:  # those of a part that runs before or after
                if not widens:
                    raise
                graph, values = with_wide_sums(graph, narrow, values)

    def along(axes: Sequence[int]) -> Iterator[Plan]:
        for axis in axes:
            try:
                other = composed((axis,))
            except CannotChunk:
                continue
            if other is not None:
                yield other[0]

    every = range(large[0].type.rank)
    try:
        chosen = composed(None)
        if chosen is None:
            return None
        first, cut = chosen
        if cut.recomputes and available is None:
            _check_worth(unchunked, first, target, hints)
    except CannotChunk as refused:
        if isinstance(refused, NarrowSums) or available is not None or not fills:
            raise
        most_ns = SCARCE_SLOWER * _objective_ns(unchunked, target, hints)
        plans = [p for p in along(every) if _objective_ns(p, target, hints) <= most_ns]
        if not plans:
            raise
        return min(plans, key=lambda p: total_kept_bytes(p, hints))
    if available is not None or not _fills_memory(total_kept_bytes(first, hints), target):
        return first
    most_ns = MAX_SLOWER * _objective_ns(first, target, hints)
    others = along([a for a in every if a != cut.axis])
    plans = [first, *(p for p in others if _objective_ns(p, target, hints) <= most_ns)]
    return min(plans, key=lambda p: total_kept_bytes(p, hints))


def _compose(
    unchunked: Plan,
    graph: Graph,
    cut: ChunkedGraph,
    values: Sequence[Node],
    target: Machine,
    hints: Hints,
    donated: Donated,
    limits: tuple[int, int | None],
) -> Plan:
    """Return the plan of a split graph; `limits` as in `_plan_chunks`.

    Raises CannotChunk where the graph was changed, or some large `values` are outside of the
    chunks, and these keep as much as none.
    """
    results = dict(zip(unchunked.graph.outputs, graph.outputs, strict=True))
    donated_now = {n: to if to is None else results[to] for n, to in donated.items()}
    plan = _Composer(graph, cut, target, hints, *limits).plan(donated_now)
    changed = graph is not unchunked.graph or not {*values} <= {*cut.members}
    if changed and total_kept_bytes(plan, hints) >= total_kept_bytes(unchunked, hints):
        raise CannotChunk(
            "rounds would keep as much, in sums that are wider or values that stand apart"
        )
    return plan


def _objective_ns(plan: Plan, target: Machine, hints: Hints) -> float:
    """Return the nanoseconds of a plan that a search minimises."""
    return sum(c.objective_ns for c in costs(plan, target, hints))


def _available_bytes(unchunked: Plan, hints: Hints) -> int | None:
    """Return the bytes left for values between kernels, if the plan keeps more.

    None if there is no limit or the plan fits; 0 or less where results alone exceed the limit.
    """
    limit = knobs.MAX_EXTRA_MEMORY.get()
    if limit is None:
        return None
    results = {n for n in unchunked.graph.outputs if not isinstance(n.op, Input)}
    available = limit - sum(at_hints(n.type.nbytes, hints) for n in results)
    return available if available < total_kept_bytes(unchunked, hints) else None


def _check_worth(unchunked: Plan, chunked: Plan, target: Machine, hints: Hints) -> None:
    """Raise CannotChunk unless chunks that recompute something save enough memory for their time.

    They may take twice the time at most, three times where a large part of the machine's memory is
    kept, and less where few uncached bytes are kept in relation to what is read and written in any
    case.
    """
    graph = unchunked.graph
    old_bytes, new_bytes = total_kept_bytes(unchunked, hints), total_kept_bytes(chunked, hints)
    io_bytes = sum(at_hints(n.type.nbytes, hints) for n in {*graph.inputs, *graph.outputs})
    slowdown = _objective_ns(chunked, target, hints) / _objective_ns(unchunked, target, hints)
    uncached_bytes = max(old_bytes - target.cache_bytes, 0)
    max_slowdown = min(1 + uncached_bytes / (IO_TIME_FACTOR * max(io_bytes, 1)), MAX_SLOWER)
    if _fills_memory(old_bytes, target):
        max_slowdown = SCARCE_SLOWER
    if 2 * new_bytes > old_bytes or slowdown > max(max_slowdown, MAX_SLOWDOWN):
        raise CannotChunk(
            f"sums that rounds need of all rows would have to be made before, of the same value; "
            f"that takes {slowdown:.2f} times as long and keeps {new_bytes:,} "
            f"instead of {old_bytes:,} bytes, which `max_extra_memory` asks for"
        )


def _fills_memory(nbytes: int, target: Machine) -> bool:
    """Return whether bytes that a plan keeps fill much of a device's memory."""
    most = target.chunk_bytes if target.tiling.recomputes_products else None
    return most is not None and nbytes > SCARCE_CHUNKS * most


def total_kept_bytes(candidate: Plan, hints: Hints) -> int:
    """Return the bytes that a plan keeps between kernels, including those of its chunks."""
    chunk_bytes = (
        arena_bytes(body.plan, Hints(body.block_sizes(hints)))
        for _, body in candidate.chunked_clusters
    )
    return arena_bytes(candidate, hints) + max(chunk_bytes, default=0)


def _fits(candidate: Plan, hints: Hints, available: int) -> bool:
    """Return whether a plan keeps so many bytes at most while it runs.

    Results of chunks that are not contiguous in their arrays are kept before they are copied.
    """
    apart = (
        sum(
            at_hints(n.type.nbytes, Hints(body.block_sizes(hints))) + ALIGNED_RESULT
            for n, c in zip(body.plan.graph.outputs, body.chunks.makes, strict=True)
            if c.axis > 0
        )
        for _, body in candidate.chunked_clusters
    )
    return total_kept_bytes(candidate, hints) + max(apart, default=0) + ALIGNED <= available


def _with_decision(candidate: Plan, decision: Decision, journal: Journal | None) -> Plan:
    if journal is not None:
        journal.record(decision)
    if journal is not None and not journal.keep:
        return candidate
    return replace(candidate, decisions=(*candidate.decisions, decision))


# ---- composing the parts -------------------------------------------------------------------------


class _Composer:
    """Plans the parts of a graph and composes them."""

    def __init__(
        self,
        graph: Graph,
        parts: ChunkedGraph,
        target: Machine,
        hints: Hints,
        value_bytes: int,
        available: int | None,
    ) -> None:
        self.graph, self.parts, self.target, self.hints = graph, parts, target, hints
        self.value_bytes, self.available = value_bytes, available
        """What a chunk should keep, and what the plan may keep, in bytes."""
        self.names = name_values(graph)
        self.places = {n: k for k, n in enumerate(graph.nodes())}
        self.clusters: list[Cluster] = []
        self.launches: list[tuple[int, ...]] = []
        self.reuses: dict[Node, Sequence[Node]] = {}
        self.decisions: list[Decision] = []

    def plan(self, donated: Donated) -> Plan:
        """Plan the part before, the chunks, and the part after."""
        parts = self.parts
        self._add_once(parts.before)
        self._add_chunks()
        self._add_once(parts.after)
        slots = memory.assign(
            self.graph, self.clusters, self.launches, self.hints, self.reuses, donated
        )
        return Plan(
            self.graph, self._with_recomputed(), tuple(self.launches), tuple(self.decisions), slots
        )

    def _with_recomputed(self) -> tuple[Cluster, ...]:
        """Return the clusters with the nodes that other clusters compute too."""
        times = Counter(n for c in self.clusters for n in c.nodes)
        return tuple(
            replace(c, recomputed=tuple(n for n in c.nodes if times[n] > 1 and not is_free(n)))
            for c in self.clusters
        )

    def _add_once(self, part: Graph) -> None:
        """Add the clusters of a part that runs once."""
        if not part.outputs:
            return
        planned = self._planned(part)
        first = len(self.clusters)
        for k, c in enumerate(planned.clusters):
            name = f"k{first + k}"
            self.clusters.append(
                Cluster(
                    name,
                    self._in_order(c.nodes),
                    self._nodes(c.inputs),
                    self._nodes(c.outputs),
                    self._nodes(c.recomputed),
                    c.shapes,
                    None if c.stream is None else (self._node(c.stream[0]), c.stream[1]),
                    None if c.body is None else self._inside(_with_names(name, c.body)),
                    rename_loop(c, name),
                )
            )
        self.launches += [tuple(first + k for k in group) for group in planned.launches]
        for slot in planned.slots:
            if slot.reuses is not None:
                self.reuses[self._node(slot.node)] = (self._node(slot.reuses),)
        self._record(planned)

    def _inside(self, body: Body) -> Body:
        """Return the body of a part's chunks, whose nodes compute those of the full graph."""
        return replace(body, of={n: self._node(x) for n, x in body.of.items()})

    def _planned(self, part: Graph) -> Plan:
        """Return the plan of a part that runs once, possibly chunked itself.

        Raises NarrowSums for sums that its chunks need wider, where it fills the memory otherwise.
        """
        recomputes = part is self.parts.before and self.parts.recomputes
        if recomputes or self.target.tiling.recomputes_products:
            unchunked = plan_single.plan(part, self.target, None, self.hints)
            # tried once only: that plan might have a part before its chunks as well
            available = self._limit_before(unchunked)
            fills = _fills_memory(total_kept_bytes(unchunked, self.hints), self.target)
            try:
                candidate = _chunked_plan(
                    unchunked, self.target, self.hints, NOTHING, available, widens=not fills
                )
            except NarrowSums as narrow:
                raise NarrowSums(self._nodes([*narrow.sums])) from None
            if not isinstance(candidate, Plan):
                return unchunked
            if candidate.graph is part:
                return replace(candidate, decisions=candidate.decisions[:-1])
        return plan_single.plan(part, self.target, None, self.hints)

    def _limit_before(self, candidate: Plan) -> int | None:
        """Return the limit for the part before the chunks, None if it fits."""
        fits = self.available is None or total_kept_bytes(candidate, self.hints) <= self.available
        return None if fits else self.available

    def _add_chunks(self) -> None:
        """Add the chunked cluster that keeps least, of those about as fast as the fastest."""
        name = f"k{len(self.clusters)}"
        candidates = [self._cluster(name, *body_only) for body_only in self._bodies(thrifty=False)]
        if any(map(self._keeps_several_values, candidates)):
            candidates += [
                self._cluster(name, *body_only) for body_only in self._bodies(thrifty=True)
            ]
        if self.available is not None:
            fitting = [c for c in candidates if self._chunk_bytes(c) <= self.available]
            candidates = fitting or [min(candidates, key=self._chunk_bytes)]
        burdens = {c: self._objective_ns(c) for c in candidates}
        max_ns, step = MAX_SLOWDOWN * min(burdens.values()), max(self.value_bytes // SMALL_RATIO, 1)
        fast_enough = [c for c in candidates if burdens[c] <= max_ns]
        cluster = min(fast_enough, key=lambda c: (self._chunk_bytes(c) // step, burdens[c]))
        if self.target.chunk_bytes is not None:
            cluster = self._in_full_waves(cluster)
        assert cluster.body is not None
        body = cluster.body.plan
        self._record(body)
        self.launches.append((len(self.clusters),))
        body_only = replace(cluster.body, plan=replace(body, decisions=()))
        self.clusters.append(replace(cluster, body=body_only))

    def _in_full_waves(self, cluster: Cluster) -> Cluster:
        """Return a cluster in the number of chunks that is predicted to be fastest.

        A device's last wave of programs may be nearly empty, and is a large part of short chunks.
        """
        assert cluster.body is not None
        body, extent = cluster.body, at_hints(self.parts.extent, self.hints)
        fewest = body.chunks.lengths(self.hints).total()
        rows = (-(-extent // n) for n in range(fewest, fewest + CHUNK_COUNTS))
        lengths = dict.fromkeys(round_up_rows(n, body.chunks.multiples) for n in rows)
        others = (
            replace(cluster, body=replace(body, chunks=replace(body.chunks, block=n)))
            for n in lengths
            if n < body.chunks.block
        )
        return min((cluster, *others), key=self._objective_ns)

    def _bodies(self, *, thrifty: bool) -> Iterator[tuple[Plan, int]]:
        """Iterate over plans of the body (see `plan_single.plan`), each with its rows per chunk.

        First the rows for which the kept values fit (estimated from the full plan, then from the
        body's plan). Then as many rows that a chunk keeps about as much as it accumulates into,
        since every chunk reads and writes that.
        """
        parts, budget = self.parts, self.value_bytes * 3 // 4
        multiple, depth = multiples = self.target.tiling.chunk_multiples
        rows = first = chunk_rows(parts, self.hints, budget, multiple)
        half = round_up_rows(-(-at_hints(parts.extent, self.hints) // 2), multiples)
        candidate, kept_bytes = self._body(rows, thrifty)
        fitting_rows = min(rows_that_fit(kept_bytes, rows, budget, multiple), max(half, first))
        yield candidate, fitting_rows
        if fitting_rows != rows:
            rows = fitting_rows
            candidate, kept_bytes = self._body(rows, thrifty)
            fitting_rows = min(rows_that_fit(kept_bytes, rows, budget, multiple), max(half, first))
            yield candidate, fitting_rows
        sums = sum(at_hints(p.node.type.nbytes, self.hints) for p in parts.written if p.combine)
        accumulating_rows = rows_that_fit(kept_bytes, rows, sums + sums // 4, multiple)
        accumulating_rows = min(
            accumulating_rows - accumulating_rows % depth
            if accumulating_rows > depth
            else accumulating_rows,
            half,
        )
        if accumulating_rows > fitting_rows:
            yield self._body(accumulating_rows, thrifty)[0], accumulating_rows

    def _body(self, rows: int, thrifty: bool) -> tuple[Plan, int]:
        """Return the body's plan for `rows`, and the bytes kept between its kernels."""
        parts, target = self.parts, self.target
        accumulators = dict.fromkeys(
            p.accumulator for p in parts.written if p.accumulator is not None
        )
        hints = Hints({**self.hints, parts.rows: rows})
        shared = target.with_cache(target.cache_bytes // CACHE_PARTS)
        candidate = plan_single.plan(
            parts.body, shared, None, hints, donated=accumulators, thrifty=thrifty
        )
        return candidate, arena_bytes(candidate, hints)

    def _cluster(self, name: str, body: Plan, rows: int) -> Cluster:
        parts = self.parts
        inputs = tuple(dict.fromkeys(p.node for p in parts.reads if p.axis != FIRST_ROW))
        outputs = tuple(p.node for p in parts.written)
        reads = tuple(_cut(p, inputs) for p in parts.reads)
        makes = tuple(_cut(p, outputs) for p in parts.written)
        multiples = self.target.tiling.chunk_multiples
        chunks = Chunks(reads, makes, parts.extent, parts.rows, rows, multiples)
        inside = {n: parts.of[n] for n in parts.body.nodes() if n in parts.of}
        chunk_body = _with_names(name, Body(chunks, body, inside))
        return Cluster(name, parts.members, inputs, outputs, body=chunk_body)

    def _chunk_bytes(self, cluster: Cluster) -> int:
        """Return the bytes that a chunk keeps between its kernels."""
        assert cluster.body is not None
        return arena_bytes(cluster.body.plan, Hints(cluster.body.block_sizes(self.hints)))

    def _keeps_several_values(self, cluster: Cluster) -> bool:
        """Return whether a chunk keeps noticeably more than its largest value at some time."""
        assert cluster.body is not None
        body, hints = cluster.body.plan, Hints(cluster.body.block_sizes(self.hints))
        sizes = [at_hints(s.nbytes, hints) for s in body.slots if s.offset is not None]
        largest = max(sizes, default=0)
        return arena_bytes(body, hints) - largest > largest // SMALL_RATIO

    def _objective_ns(self, cluster: Cluster) -> float:
        """Return the nanoseconds of all chunks of a cluster.

        Operands that every chunk reads in full are packed by every kernel that reads them, with no
        arithmetic to hide behind.
        """
        assert cluster.body is not None
        chunks, body = cluster.body.chunks, cluster.body.plan
        chunk_count = chunks.lengths(self.hints).total()
        shared = {x for x, c in zip(body.graph.inputs, chunks.reads) if c.axis == WHOLE}
        repacked = sum(
            at_hints(x.type.nbytes, self.hints)
            for c in body.clusters
            for x in c.inputs
            if x in shared
        )
        packing_ns = chunk_count * self.target.transfer_ns(repacked, 0)
        return chunked_cost(cluster.body, self.target, self.hints).objective_ns + packing_ns

    def _node(self, node: Node) -> Node:
        return self.parts.of.get(node, node)

    def _nodes(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(map(self._node, nodes))

    def _in_order(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Return the full graph's nodes in its order."""
        return tuple(sorted(self._nodes(nodes), key=self.places.__getitem__))

    def _record(self, planned: Plan) -> None:
        """Record the decisions about a part with the names of the full graph."""
        part_names = name_values(planned.graph)
        full_names = {
            name: self.names.get(self._node(n), f"chunk.{name}")
            for n, name in part_names.items()
            if not isinstance(n.op, Constant)
        }
        self.decisions += [
            rename_decision(d, lambda text: full_names.get(text, text), d.a_origin, d.origin)
            for d in planned.decisions
        ]


def _with_names(name: str, body: Body) -> Body:
    """Return the body of a cluster with its inner clusters named after it."""
    names = ((f"{name}_{k}", c) for k, c in enumerate(body.plan.clusters))
    clusters = tuple(replace(c, name=n, loop=rename_loop(c, n)) for n, c in names)
    return replace(body, plan=replace(body.plan, clusters=clusters))


def arena_bytes(body: Plan, hints: Hints) -> int:
    """Return the size of the arena: the bytes that a plan keeps between its kernels."""
    return max(
        (
            at_hints(add(s.offset, s.nbytes), hints)
            for s in body.slots
            if s.offset is not None and s.within is None
        ),
        default=0,
    )


def _cut(part: ChunkedValue, values: Sequence[Node]) -> ChunkSlice:
    index = -1 if part.axis == FIRST_ROW else values.index(part.node)
    return ChunkSlice(index, part.axis, part.combine)


# ---- the decision --------------------------------------------------------------------------------


def _reader(graph: Graph, value: Node) -> Node:
    return next(n for n in graph.nodes() if value in n.inputs)


def _is_summed(graph: Graph, value: Node) -> bool:
    """Return whether a later reduction ends the rows of a value.

    Only then would anybody expect chunks.
    """
    rows = next((n for n in value.type.shape if n != 1), None)
    dependents = {value}
    for node in graph.nodes():
        operands = [x for x in node.inputs if x in dependents]
        if any(rows in x.type.shape for x in operands) and rows not in node.type.shape:
            traced = trace_of(node)
            if traced.reductions or traced.dots:
                return True
        if operands:
            dependents.add(node)
    return False


def _refused(unchunked: Plan, value: Node, reason: str, hints: Hints) -> Decision:
    names, reader = name_values(unchunked.graph), _reader(unchunked.graph, value)
    nbytes = at_hints(value.type.nbytes, hints)
    details = {"value": names[value], "bytes": nbytes, "how": reason}
    saved = 2 * nbytes
    return decision(names, value, reader, "split", "not-in-rounds", details, saves_bytes=saved)


def _accepted(
    unchunked: Plan, chunked: Plan, large: Sequence[Node], target: Machine, hints: Hints
) -> Decision:
    names, value = name_values(unchunked.graph), large[0]
    reader = _reader(unchunked.graph, value)
    *_, (number, body) = chunked.chunked_clusters
    cluster = chunked.clusters[number]
    avoided_bytes = sum(at_hints(n.type.nbytes, hints) for n in large if n not in cluster.outputs)
    io_bytes = sum(at_hints(n.type.nbytes, hints) for n in (*cluster.inputs, *cluster.outputs))
    moved = chunked_traffic(cluster, hints, target.cache_bytes)
    extra_bytes = sum(n for side in moved for n in side) - io_bytes
    fused_ns, split_ns = (_objective_ns(p, target, hints) for p in (chunked, unchunked))
    details = {
        "value": names[value],
        "bytes": avoided_bytes,
        "rows": body.chunks.block,
        "extent": expr_text(body.chunks.extent),
        "again": extra_bytes,
        "rounds": body.chunks.lengths(hints).total(),
    }
    return decision(
        names,
        value,
        reader,
        "fused",
        "rounds",
        details,
        saves_bytes=2 * avoided_bytes,
        costs_bytes=extra_bytes,
        **compared_times(split_ns, fused_ns),
    )
