"""The plan of a graph whose kernels run once each: searched for, put in order, given memory.

What a search has found for a graph is data about its nodes; so of equal layers, all but two may be
left out while it goes on.

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

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.fusion import memory
from smelt.fusion.assemble import in_order, parts_of
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.cost import Model
from smelt.fusion.decide import Decisions
from smelt.fusion.legal import Wishes
from smelt.fusion.plan import NOTHING, Donated, Plan
from smelt.fusion.plan_for_sizes import MOST_UNITS, larger, may_gain, serves
from smelt.fusion.refine import Refinement
from smelt.fusion.repeated_layers import shortened
from smelt.fusion.require import require
from smelt.fusion.search import Search
from smelt.fusion.search_result import Found
from smelt.fusion.units import Units
from smelt.fusion.verify import disjoint, verify
from smelt.graph.ir import Graph, Node
from smelt.journal import Journal, Planned
from smelt.target import Target


def plan(
    graph: Graph,
    target: Target,
    journal: Journal | None,
    hints: Mapping[str, int],
    *,
    fuse: bool = True,
    donated: Donated = NOTHING,
    thrifty: bool = False,
) -> Plan:
    """The plan of a graph: right for all sizes, chosen for those of `hints`.

    `hints` are the sizes seen at the first call; one that is missing is guessed.  With `fuse`
    False every operator becomes a kernel.  Results may take the place of inputs in `donated`.
    A `thrifty` plan writes large values over others where it can, whatever time that takes.
    Decisions go into the plan and into `journal`.
    """
    start = perf_counter()
    recording = journal is None or journal.keep or bool(knobs.REQUIRE_FUSED.get())
    found = _found(graph, _Asked(target, Hints(hints), fuse, thrifty, recording))
    sizes = Hints(found.sizes or hints)
    clusters, launches = in_order(graph, found.parts, sizes)
    reuses = {n: old for p in found.parts for n, old in p.reuses.items()}
    slots = memory.assign(graph, clusters, launches, sizes, reuses, donated)
    result = Plan(graph, clusters, launches, tuple(found.decisions), slots, found.sizes)
    disjoint(result, sizes)
    if knobs.VERIFY.get():
        verify(result)
    if journal is not None:
        for fact in (*found.decisions, *memory.facts(result, sizes)):
            journal.record(fact)
        moved, apart = sum(p.moved for p in found.parts), sum(found.alone.values())
        count, seconds = len(found.alone), perf_counter() - start
        journal.record(Planned(graph.name, count, len(clusters), moved, apart, seconds))
    return result


@dataclass(frozen=True, slots=True)
class _Asked:
    """How kernels are to be searched for."""

    target: Target
    sizes: Hints
    fuse: bool
    thrifty: bool
    recording: bool
    shorter: bool = False
    """Whether it is not all of a program that they are searched for."""
    crowded: frozenset[Node] = frozenset()
    """Values that have more readers than the graph shows."""
    beside: int = 0
    """Bytes that a call touches beside the graph's inputs and outputs."""


def _found(graph: Graph, asked: _Asked) -> Found:
    """The kernels of a graph, from those of a shorter one where layers of it are equal."""
    demands = (knobs.MUST_FUSE, knobs.NEVER_FUSE, knobs.REQUIRE_FUSED)
    if asked.fuse and not any(knob.get() for knob in demands):
        for layers in shortened(graph) if len(graph.nodes()) > MOST_UNITS else ():
            crowded = {layers.short.get(n, n) for n in asked.crowded} | layers.shared
            given = {*graph.inputs, *graph.outputs} & layers.left_out
            beside = asked.beside + sum(at_hints(n.type.nbytes, asked.sizes) for n in given)
            less = replace(asked, shorter=True, crowded=frozenset(crowded), beside=beside)
            short = _found(layers.graph, less)
            if layers.run_together(short):
                break
            found = layers.expanded(short)
            if found is not None and len(found.alone) > MOST_UNITS:
                return found
    return _searched(graph, asked)


def _searched(graph: Graph, asked: _Asked) -> Found:
    """The kernels of a graph as it is."""
    units = Units(graph)
    required = knobs.REQUIRE_FUSED.get()
    wishes = Wishes(units, knobs.MUST_FUSE.get(), knobs.NEVER_FUSE.get(), required)
    crowded = sum(1 << units.number[n] for n in asked.crowded if n in units.number)
    target = asked.target

    def searched(sizes: Hints) -> Search:
        model = Model(units, target, sizes, asked.beside)
        return Search(units, model, wishes, Decisions(model, recording=asked.recording), crowded)

    search, chosen = searched(asked.sizes), Hints()
    if asked.fuse:
        search.run()
        more = (
            None
            if asked.shorter
            else larger(units, asked.sizes, min(target.l2_bytes, target.l3_bytes))
        )
        if more is not None and may_gain(search, (other := searched(more)).model):
            other.run()
            if serves(search, other):
                search, chosen = other, more
        if asked.thrifty:
            Refinement(search, search.decisions).overwrite()
    else:
        search.apart()
        search.decisions.off()
    clusters = [c for _, c in sorted(search.clusters.items())]
    require(wishes, [c.members for c in clusters], search.decisions)
    moved = [c.cost.moved for c in clusters]
    parts = parts_of(units, search.groups(), moved, search.reuses())
    alone = {u.node: search.moved_alone(u.number) for u in units.units}
    return Found(parts, search.decisions.found, alone, chosen)
