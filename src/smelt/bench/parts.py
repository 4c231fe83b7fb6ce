"""A kernel's operators as programs: all together, each alone, and cut in two at one of its values.

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

from smelt.dataclass import dataclass
from smelt.fusion.plan import Cluster
from smelt.fusion.units import Units
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import renew
from smelt.ops.create import Input

__all__ = ["Cut", "cuts", "program_of"]


@dataclass(frozen=True)
class Cut:
    """Two programs that compute what one does, the second from results of the first.

    `reads` says for each input of the second where it comes from: an input of the whole, or a
    result of the first.  `gives` says the same of each result of the whole: the program, and which
    of its results.
    """

    at: str
    graphs: tuple[Graph, Graph]
    given: tuple[int, ...]
    """The whole's inputs, by place, that the first reads."""
    reads: tuple[tuple[bool, int], ...]
    gives: tuple[tuple[int, int], ...]


def program_of(cluster: Cluster, whole: Graph) -> tuple[Graph, tuple[Node, ...]]:
    """The operators of a cluster as a graph of their own, and the values that are its inputs."""
    graph, sources = _graph(cluster.name, cluster.outputs, frozenset(cluster.inputs), whole)
    return graph, sources


def cuts(graph: Graph) -> Iterator[Cut]:
    """The ways to compute a graph in two parts, the first of which ends in one value: a fold, what
    a fold reads, or what several read.

    What the second part needs of the first is read if it is that value or a fold, and computed
    again if it is not; then, where that is another way, all of it is read.
    """
    units = Units(graph)
    inside = {n: k for k, n in enumerate(units.values) if not isinstance(n.op, Input)}
    outputs = frozenset(graph.outputs)
    seen: set[tuple[frozenset[Node], frozenset[Node]]] = set()
    for node, u in inside.items():
        users = units.users[u]
        ends = users & units.folds or units.folds >> u & 1 or users & (users - 1)
        if not ends or not users:
            continue
        first = _needed([node], frozenset(inside), frozenset(graph.inputs))
        folds = frozenset(n for n in first if units.folds >> inside[n] & 1) | {node}
        for kept in (folds, first):
            late = [n for n in graph.outputs if n not in first]
            read = _frontier(late, kept)
            early = frozenset(n for n in outputs if n in first)
            key = frozenset(first), read | early
            if late and read and key not in seen:
                seen.add(key)
                yield _cut(graph, node, read, early)


def _cut(graph: Graph, node: Node, read: frozenset[Node], early: frozenset[Node]) -> Cut:
    order = {n: k for k, n in enumerate(graph.nodes())}
    ends = tuple(sorted(read | early, key=order.__getitem__))
    one, given = _graph("one", ends, frozenset(), graph)
    late = tuple(n for n in graph.outputs if n not in early)
    other, sources = _graph("other", late, read, graph)
    places = {n: k for k, n in enumerate(graph.inputs)}
    reads = tuple((False, ends.index(n)) if n in read else (True, places[n]) for n in sources)
    gives = tuple((0, ends.index(n)) if n in early else (1, late.index(n)) for n in graph.outputs)
    return Cut(node.op.name, (one, other), tuple(places[n] for n in given), reads, gives)


def _graph(
    name: str, outputs: Sequence[Node], stops: frozenset[Node], whole: Graph
) -> tuple[Graph, tuple[Node, ...]]:
    """What some outputs need of a graph, down to its inputs and to values that are inputs now."""
    made: dict[Node, Node] = {}
    inputs: dict[Node, Node] = {}

    def visit(node: Node) -> Node:
        if node not in made:
            if isinstance(node.op, Input):
                made[node] = inputs[node] = node
            elif node in stops:
                made[node] = inputs[node] = build.input(f"c{len(inputs)}", node.type)
            else:
                made[node] = renew(node, tuple(visit(x) for x in node.inputs))
        return made[node]

    ends = tuple(visit(n) for n in outputs)
    return Graph(name, tuple(inputs.values()), ends, whole.facts), tuple(inputs)


def _needed(
    ends: Sequence[Node], inside: frozenset[Node], stops: frozenset[Node]
) -> frozenset[Node]:
    """Those of `inside` that some values need, these included."""
    seen: set[Node] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node not in seen and node not in stops:
            seen.add(node)
            pending += node.inputs
    return frozenset(seen & inside)


def _frontier(ends: Sequence[Node], kept: frozenset[Node]) -> frozenset[Node]:
    """The first of `kept` that some values meet on the way to what they need."""
    found: set[Node] = set()
    seen: set[Node] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node in kept:
            found.add(node)
        elif node not in seen:
            seen.add(node)
            pending += node.inputs
    return frozenset(found)
