"""Plan a graph whose kernels run once each: search, order, memory.

The result of a search is data about the nodes of a graph; so for repeated layers, all but two may
be left out during the search.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

from smelt import knobs
from smelt.backend.machine import Machine
from smelt.fusion import memory
from smelt.fusion.assemble import order_clusters, unplaced_clusters
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.decide import Decisions
from smelt.fusion.legal import FusionConstraints
from smelt.fusion.loops import group_results, plan_loops
from smelt.fusion.plan import NOTHING, Donated, Plan, SearchResult
from smelt.fusion.plan_for_sizes import MAX_UNITS, is_better_for_both, larger_sizes, may_gain
from smelt.fusion.predict import cost_model
from smelt.fusion.refine import Refinement
from smelt.fusion.repeated_layers import shorten
from smelt.fusion.require import require
from smelt.fusion.search import Search
from smelt.fusion.units import Units
from smelt.fusion.verify import check_disjoint, verify
from smelt.graph.ir import Graph, Node
from smelt.journal.facts import Journal, Planned
from smelt.python.dataclass import dataclass


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
    clusters = plan_loops(
        clusters,
        sizes,
        target,
        lambda step, at: plan(step, target, Journal(keep=False), at, fuse=fuse),
    )
    reuses = {n: inputs for p in search_result.parts for n, inputs in p.reuses.items()}
    slots = memory.assign(graph, clusters, launches, sizes, reuses, donated)
    result = Plan(
        graph, clusters, launches, tuple(search_result.decisions), slots, search_result.sizes
    )
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
    groups, moved = group_results(units, search.groups(), moved)
    parts = unplaced_clusters(units, groups, moved, search.reuses())
    unfused_bytes = {u.node: search.unfused_bytes(u.number) for u in units.units}
    return SearchResult(parts, search.decisions.records, unfused_bytes, chosen)
