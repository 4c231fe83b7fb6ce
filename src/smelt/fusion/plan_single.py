"""Plan a graph whose kernels run once each: search, order, memory.

The result of a search is data about the nodes of a graph; so for repeated layers, all but two may
be left out during the search.

A program is planned once, with the sizes of its first call, and the plan serves all others. A
fusion that saves a launch for a few rows may slow down a call with many. So if the first call is
small, kernels are also searched for at larger sizes, and taken if they cost a small call little and
save a large one more.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m]) {
...   v0 = reduce.sum(x) {axes=(1,)}
...   v1 = reshape(v0) {shape=(n,1)}
...   v2 = div(x, v1)
...   return v2
... }''')
>>> from smelt.machine.target import Target
>>> result = plan(graph, Target.for_isa("avx2"), None, {"n": 4096, "m": 512})
>>> [[node.op.name for node in cluster.nodes] for cluster in result.clusters]
[['reduce.sum', 'reshape', 'div']]
>>> graph = parse('''graph f(x: f32[n,d], w: f32[d]) {
...   v0 = mul(x, w)
...   v1 = reduce.sum(v0) {axes=(1,)}
...   return v1
... }''')
>>> larger_sizes(Units(graph), Hints(n=64, d=8), 1 << 20)
{'n': 131072, 'd': 8}
>>> larger_sizes(Units(graph), Hints(n=1 << 20, d=8), 1 << 20) is None
True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from time import perf_counter

from smelt import knobs
from smelt.backend.machine import Machine
from smelt.errors import REASONS, FusionError
from smelt.fusion import memory
from smelt.fusion.bitsets import Hints, at_hints, bits, least
from smelt.fusion.cost import INLINE_LAUNCH_NS, INLINE_START_NS
from smelt.fusion.cost_model import Cost, CostModel
from smelt.fusion.decide import Decisions
from smelt.fusion.legal import FusionConstraints
from smelt.fusion.loops import group_results, plan_loops
from smelt.fusion.plan import (
    NOTHING,
    Donated,
    Plan,
    SearchResult,
    order_clusters,
    unplaced_clusters,
)
from smelt.fusion.predict import cost_model
from smelt.fusion.refine import Refinement
from smelt.fusion.repeated_layers import shorten
from smelt.fusion.search import Search
from smelt.fusion.state import Cluster, State
from smelt.fusion.streams import stream_cost
from smelt.fusion.units import Units
from smelt.fusion.verify import check_disjoint, verify
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.graph.source_names import called_names, source_names
from smelt.graph.text import name_values
from smelt.graph.walk import input_size_names
from smelt.journal.facts import Decision, Journal, Planned
from smelt.python.dataclass import dataclass
from smelt.python.origin import UNKNOWN
from smelt.types.expr import size


def require(wishes: FusionConstraints, clusters: Sequence[int], decisions: Decisions) -> None:
    """Raise FusionError if a demanded pair of units shares no cluster.

    If the two names match several operators, every operator and its readers must share a cluster.
    If none of them reads another, it suffices that two of them share one.
    """
    for first, second in wishes.required:
        for u, v in _separated_pairs(wishes, first, second, clusters):
            refusal = _last_refusal(decisions, clusters, u, v)
            row = REASONS["no-shared-data" if refusal is None else refusal.reason]
            sentence = row.explain(
                **({"shared": "no data"} if refusal is None else refusal.details)
            )
            node, graph = wishes.units.values[v], wishes.units.graph
            shown = {**name_values(graph), **source_names(graph)}
            called = called_names(graph.nodes())
            raise FusionError(
                a=f"{called[wishes.units.values[u]][0]} {shown[wishes.units.values[u]]}",
                b=f"{called[node][0]} {shown[node]}",
                sentence=sentence,
                reason=f"{row.code} {row.name}",
                origin=node.origin or wishes.units.values[u].origin or UNKNOWN,
            )


def _separated_pairs(
    wishes: FusionConstraints, first: int, second: int, clusters: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Iterate over pairs of units that must share a kernel and do not."""
    units = wishes.units
    adjacent = [
        (u, v)
        for producers, readers in ((first, second), (second, first))
        for u in bits(producers)
        for v in bits(units.users[u] & readers)
    ]
    for u, v in adjacent:
        if not any(c >> u & c >> v & 1 for c in clusters):
            yield u, v
    # the whole program: parts without shared data too
    if first and first == second and len(clusters) > 1:
        yield least(clusters[0]), least(clusters[1] & ~clusters[0] or clusters[1])
    elif not adjacent and first and second and not any(c & first and c & second for c in clusters):
        yield least(first), least(second)


def _last_refusal(decisions: Decisions, clusters: Sequence[int], u: int, v: int) -> Decision | None:
    """Return the last refusal about two units, or else about their clusters."""
    names = decisions.names
    split = [d for d in reversed(decisions.records) if d.verdict == "split"]
    for d in split:
        if {d.a, d.b} == {names[u], names[v]}:
            return d
    homes = [{names[k] for c in clusters if c >> x & 1 for k in bits(c)} for x in (u, v)]
    for d in split:
        if (d.a in homes[0] and d.b in homes[1]) or (d.a in homes[1] and d.b in homes[0]):
            return d
    return split[0] if split else None


# ---- larger sizes -------------------------------------------------------------------------------

SMALL_CALL, LARGE_CALL = 1 << 16, 1 << 20
"""Maximum elements of the largest value of a small call, and minimum of a large one.

The largest value of a small call also fits in a core's own cache, at four bytes an element. That of
a large call exceeds the caches and gives all cores work.
"""
MAX_UNITS = 60
"""Maximum units for which kernels are searched for twice."""
MIN_ROWS = 16
"""Smallest size that may grow; smaller ones belong to the program, such as image channels."""
REGRET = 1.25
"""Largest slowdown of a small call for the benefit of large ones."""
GAIN = 1.25
"""Minimum product of both speedups, a call of either size counting the same.

Less is within the model's error.
"""


def larger_sizes(units: Units, hints: Hints, cache: int) -> Hints | None:
    """Return sizes of a large call, None if the first call is large.

    Also None if a size is unknown. `cache` is the size of a core's own cache in bytes. The numbers
    of rows of arrays grow, or the largest size if all arrays have few rows.
    """
    names = input_size_names(units.graph)
    if len(units.units) > MAX_UNITS or not names or any(n not in hints for n in names):
        return None
    large_names = [n for n in names if hints[n] >= MIN_ROWS]
    row_counts = {x.type.shape[0] for x in units.inputs if x.type.rank > 1}
    largest = max(hints[n] for n in names)
    grown = [n for n in large_names if size(n) in row_counts] or [
        n for n in large_names if hints[n] == largest
    ]
    if not grown or _elements(units, hints) > min(SMALL_CALL, cache // 4):
        return None
    sizes = hints
    while max(_elements(units, sizes), *(sizes[n] for n in grown)) < LARGE_CALL:
        sizes = Hints({**sizes, **{n: 2 * sizes[n] for n in grown}})
    return sizes


def _elements(units: Units, hints: Hints) -> int:
    """Return the elements of the largest value."""
    return max(prod(at_hints(n, hints) for n in x.type.shape) for x in units.values)


def may_gain(first: State, larger_model: CostModel) -> bool:
    """Return whether kernels searched for at larger sizes may be much faster there.

    Not if those found at the first call's sizes take little more than the graph's arithmetic or
    arrays, each once.
    """
    units, cores = first.units, larger_model.cores
    work = sum(
        larger_model.step_ns[u.number]
        * larger_model.elements[u.number]
        * prod(larger_model.extents[e] for e in u.reduced_extents)
        for u in units.units
    )
    traffic_ns = larger_model.read_values_ns(range(len(units.inputs)), cores)
    traffic_ns += larger_model.write_values_ns(bits(units.outputs), cores)
    return _plan_ns(larger_model, first) > GAIN * max(work / cores, traffic_ns)


def is_better_for_both(first: State, other: State) -> bool:
    """Return whether `other`, found at larger sizes, is better for calls of both sizes together."""
    if first.groups() == other.groups():
        return False
    first_small, first_large = _plan_ns(first.model, first), _plan_ns(other.model, first)
    other_small, other_large = _plan_ns(first.model, other), _plan_ns(other.model, other)
    return (
        other_small <= REGRET * first_small
        and GAIN * other_small * other_large <= first_small * first_large
    )


def _plan_ns(model: CostModel, state: State) -> float:
    """Return the nanoseconds of all kernels at the sizes of a model.

    A start in the calling thread is charged as for repeated calls, INLINE_START_NS.
    """
    is_own = model is state.model
    costs = [
        c.cost if is_own and c.cost.stream >= 0 else _cost(model, c)
        for c in state.clusters.values()
    ]
    inline = sum(c.launch for c in costs if c.launch <= 2 * INLINE_LAUNCH_NS)
    return sum(c.objective_ns for c in costs) - inline * (1 - INLINE_START_NS / INLINE_LAUNCH_NS)


def _cost(model: CostModel, cluster: Cluster) -> Cost:
    """Return the cost of a cluster's kernel at the sizes of another model.

    The axis that it streams stays, if it can be streamed there. `work` is reset because a region
    caches what its own model computed.
    """
    region, axis = replace(cluster.region, work=-1.0), cluster.cost.stream
    return stream_cost(model, region, axis) if axis >= 0 else model.cost(region)


# ---- the plan -----------------------------------------------------------------------------------


def plan(
    graph: Graph,
    target: Machine,
    journal: Journal | None,
    hints: Mapping[str, int],
    *,
    fuse: bool = True,
    donated: Donated = NOTHING,
    thrifty: bool = False,
    frugal: bool = False,
    recomputes: bool = False,
) -> Plan:
    """Return the plan of a graph: correct for all sizes, chosen for those of `hints`.

    `hints` are the sizes seen at the first call; a missing one is guessed. With `fuse` False every
    operator becomes a kernel. Results may take the place of inputs in `donated`. A `thrifty` plan
    overwrites large values where it can, whatever the time; a `frugal` one recomputes values
    rather than store them, and one that `recomputes` does so for those that exceed every cache, in
    twice the time at most. Decisions go into the plan and into `journal`.
    """
    start = perf_counter()
    recording = journal is None or journal.keep or bool(knobs.REQUIRE_FUSED.get())
    search_result = _search_layers(
        graph, _SearchOptions(target, Hints(hints), fuse, thrifty, frugal, recomputes, recording)
    )
    sizes = Hints(search_result.sizes or hints)
    late = target.tiling.least_late_bytes
    clusters, launches = order_clusters(graph, search_result.parts, sizes, late)
    if Loop in graph.kinds():

        def plan_step(step: Graph, at: Mapping[str, int]) -> Plan:
            return plan(step, target, Journal(keep=False), at, fuse=fuse)

        clusters = plan_loops(clusters, sizes, target, plan_step)
    reuses = {n: inputs for p in search_result.parts for n, inputs in p.reuses.items()}
    slots = memory.assign(graph, clusters, launches, sizes, reuses, donated)
    result = Plan(
        graph, clusters, launches, tuple(search_result.decisions), slots, search_result.sizes
    )
    if len(slots) > 1:
        check_disjoint(result, sizes)
    if knobs.VERIFY.get():
        verify(result)
    if journal is not None:
        for fact in (*search_result.decisions, *memory.facts(result, sizes)):
            journal.record(fact)
        moved, unfused_bytes = (
            sum(p.bytes_moved for p in search_result.parts),
            sum(search_result.unfused_bytes.values()),
        )
        count, seconds = len(search_result.unfused_bytes), perf_counter() - start
        journal.record(Planned(graph.name, count, len(clusters), moved, unfused_bytes, seconds))
    return result


@dataclass(frozen=True, slots=True)
class _SearchOptions:
    """Options of the search for kernels."""

    target: Machine
    sizes: Hints
    fuse: bool
    thrifty: bool
    frugal: bool
    recomputes: bool
    recording: bool
    shorter: bool = False
    """Whether the graph is a shortened version of the program."""
    crowded: frozenset[Node] = frozenset()
    """Values that have more readers than the graph shows."""
    beside: int = 0
    """Bytes that a call touches besides the graph's inputs and outputs."""


def _search_layers(graph: Graph, options: _SearchOptions) -> SearchResult:
    """Return the kernels of a graph, from a shorter one where layers of it repeat."""
    demands = (knobs.MUST_FUSE, knobs.NEVER_FUSE, knobs.REQUIRE_FUSED)
    if options.fuse and not any(knob.get() for knob in demands):
        for layers in shorten(graph) if len(graph.nodes()) > MAX_UNITS else ():
            crowded = {layers.short.get(n, n) for n in options.crowded} | layers.shared
            outside_values = {*graph.inputs, *graph.outputs} & layers.left_out
            beside = options.beside + sum(
                at_hints(n.type.nbytes, options.sizes) for n in outside_values
            )
            shorter_options = replace(
                options, shorter=True, crowded=frozenset(crowded), beside=beside
            )
            short = _search_layers(layers.graph, shorter_options)
            if layers.crosses_copies(short):
                break
            expanded = layers.expand(short)
            if expanded is not None and len(expanded.unfused_bytes) > MAX_UNITS:
                return expanded
    return _search_graph(graph, options)


def _search_graph(graph: Graph, options: _SearchOptions) -> SearchResult:
    units = Units(graph)
    required = knobs.REQUIRE_FUSED.get()
    wishes = FusionConstraints(units, knobs.MUST_FUSE.get(), knobs.NEVER_FUSE.get(), required)
    crowded = sum(1 << units.number[n] for n in options.crowded if n in units.number)
    target = options.target

    def new_search(sizes: Hints) -> Search:
        model = cost_model(units, target, sizes, options.beside)
        decisions = Decisions(model, recording=options.recording)
        return Search(
            units,
            model,
            wishes,
            decisions,
            crowded,
            frugal=options.frugal,
            recomputes=options.recomputes,
        )

    search, chosen = new_search(options.sizes), Hints()
    if options.fuse:
        search.run()
        call_sizes = (
            None
            if options.shorter
            else larger_sizes(units, options.sizes, min(target.fast_bytes, target.cache_bytes))
        )
        if call_sizes is not None and may_gain(search, (other := new_search(call_sizes)).model):
            other.run()
            if is_better_for_both(search, other):
                search, chosen = other, call_sizes
        if options.thrifty:
            Refinement(search, search.decisions).split_for_overwrite()
    else:
        search.separate_all()
        search.decisions.off()
    clusters = [c for _, c in sorted(search.clusters.items())]
    require(wishes, [c.members for c in clusters], search.decisions)
    moved = [c.cost.moved for c in clusters]
    groups = search.groups()
    if Loop in units.graph.kinds():
        groups, moved = group_results(units, groups, moved)
    parts = unplaced_clusters(units, groups, moved, search.reuses())
    unfused_bytes = {u.node: search.model.unfused_bytes(u.number) for u in units.units}
    return SearchResult(parts, search.decisions.records, unfused_bytes, chosen)
