"""Split a kernel's operators into programs: all together, or cut at a value.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m]) {
...   v0 = exp(x)
...   v1 = reduce.sum(v0) {axes=(1,)}
...   v2 = sqrt(v1)
...   return v2
... }''')
>>> [[g.outputs[0].op.name for g in cut.graphs] for cut in cuts(graph)]
[['exp', 'sqrt'], ['reduce.sum', 'sqrt']]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.fusion.plan import Cluster
from smelt.fusion.units import Units
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import with_inputs
from smelt.ops.create import Input
from smelt.python.dataclass import dataclass

__all__ = ["Cut", "cuts", "program_of"]


@dataclass(frozen=True)
class Cut:
    """Two programs that compute what one does, the second from results of the first.

    `reads` has, for each input of the second program, whether it is an input of the original, and
    the index among those inputs or the first program's results. `output_sources` has, for each
    result of the original, the program that computes it and the index among its results.
    """

    at: str
    graphs: tuple[Graph, Graph]
    first_inputs: tuple[int, ...]
    """Indices of the original's inputs that the first program reads."""
    reads: tuple[tuple[bool, int], ...]
    output_sources: tuple[tuple[int, int], ...]


def program_of(cluster: Cluster, original: Graph) -> tuple[Graph, tuple[Node, ...]]:
    """Return a cluster's operators as a graph, and the values that are its inputs."""
    graph, sources = _subgraph(cluster.name, cluster.outputs, frozenset(cluster.inputs), original)
    return graph, sources


def cuts(graph: Graph) -> Iterator[Cut]:
    """Yield the splits of a graph at a reduction, its input, or a shared value.

    The second part reads that value and reductions of the first part, and recomputes other values;
    if it makes a difference, also a version that reads all of them.
    """
    units = Units(graph)
    inside = {n: k for k, n in enumerate(units.values) if not isinstance(n.op, Input)}
    outputs = frozenset(graph.outputs)
    seen: set[tuple[frozenset[Node], frozenset[Node]]] = set()
    for node, u in inside.items():
        users = units.users[u]
        ends = users & units.reductions or units.reductions >> u & 1 or users & (users - 1)
        if not ends or not users:
            continue
        first = _ancestors([node], frozenset(inside), frozenset(graph.inputs))
        reductions = frozenset(n for n in first if units.reductions >> inside[n] & 1) | {node}
        for stored in (reductions, first):
            late = [n for n in graph.outputs if n not in first]
            read_values = _frontier(late, stored)
            early = frozenset(n for n in outputs if n in first)
            key = frozenset(first), read_values | early
            if late and read_values and key not in seen:
                seen.add(key)
                yield _make_cut(graph, node, read_values, early)


def _make_cut(graph: Graph, node: Node, read: frozenset[Node], early: frozenset[Node]) -> Cut:
    order = {n: k for k, n in enumerate(graph.nodes())}
    ends = tuple(sorted(read | early, key=order.__getitem__))
    one, first_inputs = _subgraph("one", ends, frozenset(), graph)
    late = tuple(n for n in graph.outputs if n not in early)
    other, sources = _subgraph("other", late, read, graph)
    places = {n: k for k, n in enumerate(graph.inputs)}
    reads = tuple((False, ends.index(n)) if n in read else (True, places[n]) for n in sources)
    gives = tuple((0, ends.index(n)) if n in early else (1, late.index(n)) for n in graph.outputs)
    return Cut(node.op.name, (one, other), tuple(places[n] for n in first_inputs), reads, gives)


def _subgraph(
    name: str, outputs: Sequence[Node], stops: frozenset[Node], graph: Graph
) -> tuple[Graph, tuple[Node, ...]]:
    """Return the graph of some outputs, with original inputs and the `stops` as its inputs."""
    copies: dict[Node, Node] = {}
    inputs: dict[Node, Node] = {}

    def visit(node: Node) -> Node:
        if node not in copies:
            if isinstance(node.op, Input):
                copies[node] = inputs[node] = node
            elif node in stops:
                copies[node] = inputs[node] = build.input(f"c{len(inputs)}", node.type)
            else:
                copies[node] = with_inputs(node, tuple(visit(x) for x in node.inputs))
        return copies[node]

    ends = tuple(visit(n) for n in outputs)
    return Graph(name, tuple(inputs.values()), ends, graph.facts), tuple(inputs)


def _ancestors(
    ends: Sequence[Node], inside: frozenset[Node], stops: frozenset[Node]
) -> frozenset[Node]:
    """Return the nodes of `inside` that the `ends` depend on, these included."""
    seen: set[Node] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node not in seen and node not in stops:
            seen.add(node)
            pending += node.inputs
    return frozenset(seen & inside)


def _frontier(ends: Sequence[Node], stored: frozenset[Node]) -> frozenset[Node]:
    """Return the first nodes of `kept` on the paths from `ends` to their inputs."""
    frontier: set[Node] = set()
    seen: set[Node] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node in stored:
            frontier.add(node)
        elif node not in seen:
            seen.add(node)
            pending += node.inputs
    return frozenset(frontier)
