"""Plan deep networks by planning two of their repeated layers.

Operators of a deep network come in runs that repeat. *Copies* are such runs: equal operator by
operator, reading the same positions of their own copy and of the previous one, arrays of their own
of equal types, and the same values from before all copies. After the last copy nothing reads any
other copy. Without the copies between the first and the last, a graph is equal but shorter. Its
kernels determine those of the full graph, unless the first and the last copy were planned
differently. The first layer is often not a copy: it reads what no layer produces.

>>> from smelt.graph.text import parse
>>> arrays = ", ".join(f"w{k}: f32[8,8]" for k in range(1, 10))
>>> layers = " ".join(
...     f'''
... m{k} = contract(t{k - 1}, w{k}) {{spec="m,k; k,n -> m,n"}}
... t{k} = tanh(m{k})'''
...     for k in range(1, 10)
... )
>>> graph = parse(f"graph f(t0: f32[n,8], {arrays}) {{ {layers} return t9 }}")
>>> short = next(shorten(graph))
>>> len(short.copies), [node.op.name for node in short.graph.nodes() if node.inputs]
(8, ['contract', 'tanh', 'contract', 'tanh', 'contract', 'tanh'])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from smelt.fusion.decide import rename_decision
from smelt.fusion.plan import Cluster, SearchResult, UnplacedCluster
from smelt.fusion.units import is_free
from smelt.graph.ir import Graph, Node
from smelt.graph.text import name_values
from smelt.graph.walk import reachable
from smelt.journal.facts import Decision
from smelt.ops.create import Constant, Input

MIN_COPIES = 7
"""Minimum copies for most of them to be left out.

A value that all of them read has then more readers than are ever evaluated one by one, in either
graph.
"""
LAYER_CONTEXT = 6
"""Number of consecutive operators by which corresponding positions of two copies are recognised."""
PERIODS = 3
"""Number of distances between corresponding positions that are tried, the most frequent first."""
BORDERS = (0, 1)
"""Numbers of copies at either end that are not treated as copies.

Where those at the ends are planned differently, the next ones may not be.
"""
BEFORE, FIRST, LAST = -1, 0, 1
"""The copies of a shortened graph: the first, the last, and what precedes them."""


def shorten(graph: Graph) -> Iterator[Layers]:
    """Iterate over shortened versions of a graph, the shortest first."""
    copies = _copies(graph)
    for border in BORDERS if copies else ():
        if len(copies) - 2 * border >= MIN_COPIES:
            yield Layers(graph, copies[border : len(copies) - border])


class Layers:
    """A graph without the copies between the first and the last one."""

    def __init__(self, full: Graph, copies: Sequence[Sequence[Node]]) -> None:
        self.whole, self.copies = full, copies
        first, last, before = copies[0], copies[-1], copies[-2]
        self.left_out = {n for copy in copies[1:-1] for n in copy}
        self.short = dict(zip(before, first, strict=True))
        """Nodes of the shortened graph by the nodes of the full graph that are not in it."""
        self.behind: set[Node] = set()
        """Nodes of the shortened graph after the copies."""
        nodes = full.nodes()
        self.order = {n: k for k, n in enumerate(nodes)}
        start = self.order[last[0]]
        last_copy = {*last}
        for node in nodes[start:]:
            inputs = tuple([self.short.get(x, x) for x in node.inputs])
            counterpart = (
                node if inputs == node.inputs else Node(node.op, inputs, node.type, node.origin)
            )
            if counterpart is not node:
                self.short[node] = counterpart
            if node not in last_copy:
                self.behind.add(counterpart)
        self.graph = replace(
            full,
            inputs=tuple([x for x in full.inputs if x not in self.left_out]),
            outputs=tuple([self.short.get(x, x) for x in full.outputs if x not in self.left_out]),
        )
        self.long = {
            counterpart: node
            for node, counterpart in self.short.items()
            if node not in self.left_out
        }
        self.places = {x: (BEFORE, k) for x, k in _values_from_before(first, copies[1]).items()}
        self.places |= {node: (FIRST, k) for k, node in enumerate(first)}
        """For nodes of the shortened graph: the copy they belong to, and their index in it."""
        self.places |= {self.short.get(node, node): (LAST, k) for k, node in enumerate(last)}

    @property
    def shared(self) -> set[Node]:
        """Return the values before the copies that each of them reads."""
        copy_nodes = {*self.copies[1], *self.copies[0]}
        read = [x for n in self.copies[1] for x in n.inputs if x not in copy_nodes]
        behind = reachable(read, lambda node: node.inputs if is_free(node) else ())
        return {x for x in behind if not is_free(x) and not isinstance(x.op, Input)}

    def _full_node(self, node: Node, layer: int, *, repeated: bool = True) -> Node:
        """Return the full graph's node for a node of the shortened graph.

        The last copy of the shortened graph stands for copy number `layer`. With `repeated`, facts
        about other copies are transferred to that one.
        """
        copy, index = self.places.get(node, (BEFORE, -1))
        if copy == BEFORE and (index < 0 or layer == 1 or not repeated):
            return self.long.get(node, node)
        return self.copies[layer - 1 + copy][index]

    def _target_maps(self, nodes: Sequence[Node]) -> list[Callable[[Node], Node]]:
        """Return the node maps that transfer a fact about nodes to the full graph.

        One for every copy but the first, unless the fact is about the first copy alone or about
        what follows the copies.
        """
        touched = {self.places.get(n, (BEFORE,))[0] for n in nodes}
        count = len(self.copies)
        if LAST in touched and self.behind.isdisjoint(nodes):
            return [partial(self._full_node, layer=layer) for layer in range(1, count)]
        layer = 1 if FIRST in touched and LAST not in touched else count - 1
        return [partial(self._full_node, layer=layer, repeated=False)]

    def crosses_copies(self, short: SearchResult) -> bool:
        """Return whether a kernel holds nodes of both copies and of what follows.

        With more copies it would hold nodes of more.
        """
        for part in short.parts:
            nodes = part.cluster.nodes
            touched = {self.places.get(n, (BEFORE,))[0] for n in nodes}
            if touched >= {FIRST, LAST} and not self.behind.isdisjoint(nodes):
                return True
        return False

    def expand(self, short: SearchResult) -> SearchResult | None:
        """Return the result for the full graph from that of the shortened one.

        No kernel may cross the copies. None where the two copies were planned differently.
        """
        parts: list[UnplacedCluster] = []
        sides: tuple[Counter[object], Counter[object]] = Counter(), Counter()
        to_next: Counter[object] = Counter()
        to_rest: Counter[object] = Counter()
        for part in short.parts:
            nodes = part.cluster.nodes
            copies = [self._nodes_of_copy(part, FIRST), self._nodes_of_copy(part, LAST)]
            is_after = any(n in self.behind for n in nodes)
            for side, nodes_here in zip(sides, copies, strict=True):
                side.update([nodes_here] if nodes_here else ())
            if all(copies):
                to_next[copies[FIRST]] += 1
            elif copies[LAST] and is_after:
                to_rest[copies[LAST]] += 1
            targets = self._target_maps(nodes)
            if len(targets) > 1 and not self._is_repeated(part.cluster):
                return None
            parts += [part.relocate(target, self.order) for target in targets]
        if sides[FIRST] != sides[LAST] or to_next != to_rest:
            return None
        alone = {
            target(n): nbytes
            for n, nbytes in short.unfused_bytes.items()
            for target in self._target_maps((n,))
        }
        return SearchResult(parts, self._decisions(short.decisions), alone)

    def _is_repeated(self, cluster: Cluster) -> bool:
        """Return whether a kernel, moved to other copies, reads and writes what they do."""
        writes_copies = all(self.places.get(n, (BEFORE,))[0] != BEFORE for n in cluster.outputs)
        return writes_copies and all(
            self._full_node(x, 2) is y
            for n in cluster.nodes
            for x, y in zip(n.inputs, self._full_node(n, 2).inputs, strict=True)
        )

    def _nodes_of_copy(
        self, part: UnplacedCluster, copy: int
    ) -> tuple[tuple[int, ...], ...] | None:
        """Return the nodes of a kernel in one copy, and those it stores."""
        own_nodes, outputs = (
            tuple([p[1] for n in nodes if (p := self.places.get(n)) is not None and p[0] == copy])
            for nodes in (part.cluster.nodes, part.cluster.outputs)
        )
        return (own_nodes, outputs) if own_nodes else None

    def _decisions(self, short: Sequence[Decision]) -> list[Decision]:
        """Return the decisions about the full graph."""
        if not short:
            return []
        names = name_values(self.whole)
        nodes_by_name = {
            name: node
            for node, name in name_values(self.graph).items()
            if not isinstance(node.op, Constant)
        }

        def transferred(d: Decision, place: Callable[[Node], Node]) -> Decision:
            def name(text: str) -> str:
                node = nodes_by_name.get(text)
                return text if node is None else names[place(node)]

            a, b = place(nodes_by_name[d.a]), place(nodes_by_name[d.b])
            return rename_decision(d, name, a.origin, b.origin)

        return [
            transferred(d, place)
            for d in short
            for place in self._target_maps((nodes_by_name[d.a], nodes_by_name[d.b]))
        ]


def _values_from_before(first: Sequence[Node], second: Sequence[Node]) -> dict[Node, int]:
    """Return what the first copy reads where others read the copy before.

    Each value comes with the index of the node that others read.
    """
    indices = {n: k for k, n in enumerate(first)}
    read_as: dict[Node, set[int]] = {}
    for n, m in zip(first, second, strict=True):
        for x, y in zip(n.inputs, m.inputs, strict=True):
            if x not in indices:
                read_as.setdefault(x, set()).add(indices.get(y, -1))
    return {x: k for x, (k, *more) in read_as.items() if k >= 0 and not more}


# ---- copies --------------------------------------------------------------------------------------


def _copies(graph: Graph) -> list[list[Node]]:
    """Return the nodes of each copy in order, then the arrays that it alone reads.

    Empty if there are too few copies.
    """
    nodes = [n for n in graph.nodes() if not isinstance(n.op, Input)]
    start, period, count = _longest_repetition(_labels(graph, nodes))
    if count < MIN_COPIES:
        return []
    indices = {n: k - start for k, n in enumerate(nodes)}
    runs = [nodes[start + k * period :][:period] for k in range(count)]
    follows = _CopyTest(indices, period)
    end_copy = next((k for k in range(1, count) if not follows.all(runs[k - 1], runs[k], k)), count)
    first, end_copy = _same_outputs(graph, runs[:end_copy])
    runs, end_index = runs[first:end_copy], start + end_copy * period
    left_out = {n for run in runs[:-1] for n in run}
    is_read_later = any(x in left_out for n in nodes[end_index:] for x in n.inputs)
    if len(runs) < MIN_COPIES or is_read_later or not left_out.isdisjoint(graph.check_outputs):
        return []
    return _with_own_arrays(nodes[: start + first * period], runs, nodes[end_index:], graph.outputs)


def _same_outputs(graph: Graph, runs: Sequence[Sequence[Node]]) -> tuple[int, int]:
    """Return the longest sequence of runs of which all but the last return equal results.

    The first, and the one after the last.
    """
    outputs = {*graph.outputs}
    is_output = [[n in outputs for n in run] for run in runs]
    longest, start = (0, 0), 0
    for k in range(1, len(runs) + 1):
        if k == len(runs) or is_output[k] != is_output[start]:
            longest = max(longest, (start, min(k + 1, len(runs))), key=lambda f: f[1] - f[0])
            start = k
    return longest


def _labels(graph: Graph, nodes: Sequence[Node]) -> list[int]:
    """Return a number for each node, equal for nodes that may correspond."""
    numbers: dict[object, int] = {}
    input_labels = {x: numbers.setdefault(_input_kind(x), len(numbers)) for x in graph.inputs}
    return [
        numbers.setdefault(
            (n.op, n.type, tuple([input_labels.get(x, -1) for x in n.inputs])), len(numbers)
        )
        for n in nodes
    ]


def _input_kind(node: Node) -> tuple[object, ...]:
    """Return what must be equal for two inputs to correspond."""
    assert isinstance(node.op, Input)
    return (node.type, node.op.strides, node.op.constant)


def _longest_repetition(labels: Sequence[int]) -> tuple[int, int, int]:
    """Return start, period and count of the repetition that leaves out most nodes."""
    distances: Counter[int] = Counter()
    seen: dict[tuple[int, ...], int] = {}
    for k in range(len(labels) - LAYER_CONTEXT + 1):
        here = tuple(labels[k : k + LAYER_CONTEXT])
        if here in seen:
            distances[k - seen[here]] += 1
        seen[here] = k
    best = 0, 1, 0
    for period, _ in distances.most_common(PERIODS):
        start = 0
        for k in range(len(labels) - period + 1):
            if k < len(labels) - period and labels[k] == labels[k + period]:
                continue
            count = (k - start) // period + 1
            if (count - 2) * period > (best[2] - 2) * best[1]:
                best = start, period, count
            start = k + 1
    return best


class _CopyTest:
    """Tests whether a run of nodes is a copy of the previous one."""

    def __init__(self, place: dict[Node, int], period: int) -> None:
        self.place, self.period = place, period
        """Indices of nodes other than inputs, from the first node of the first copy."""

    def all(self, previous: Sequence[Node], run: Sequence[Node], number: int) -> bool:
        """Return whether a run, copy `number`, reads as the previous one does.

        Arrays are not compared.
        """
        place = self.place
        return all(
            isinstance(x.op, Input) or self._is_read_alike(place[x], place[y], number)
            for old, new in zip(previous, run, strict=True)
            for x, y in zip(old.inputs, new.inputs, strict=True)
        )

    def _is_read_alike(self, x: int, y: int, number: int) -> bool:
        if x == y:
            return x < 0  # it precedes all copies
        if number == 1 and x < 0:
            # the first copy reads from before what others read from their predecessor
            return 0 <= y < self.period
        return y == x + self.period and x >= 0 and y >= (number - 1) * self.period


def _with_own_arrays(
    before: Sequence[Node],
    runs: Sequence[Sequence[Node]],
    behind: Sequence[Node],
    outputs: Sequence[Node],
) -> list[list[Node]]:
    """Return the runs together with the arrays that belong to them.

    These differ from copy to copy, and at most the next copy reads them as well. Empty where one of
    them is read before or after the copies (unless it is the last copy's), or where the copies do
    not all read them alike.
    """
    arrays_read = [_arrays(run) for run in runs]
    first = {*arrays_read[0]}
    shared = first.intersection(*arrays_read[1:])
    is_own = [x not in first for x in arrays_read[1]]
    own_arrays = [
        [*dict.fromkeys(x for x, new in zip(g, is_own, strict=True) if new)] for g in arrays_read
    ]
    owner = {x: (c, k) for c, arrays in enumerate(own_arrays) for k, x in enumerate(arrays)}
    read_before, read_after = {*_arrays(before)}, {*_arrays(behind), *outputs}
    if len(owner) != sum(map(len, own_arrays)) or not (read_before | shared).isdisjoint(owner):
        return []
    if any(not read_after.isdisjoint(arrays) for arrays in own_arrays[:-1]):
        return []
    expected = [p if (p := owner.get(x)) is None else (1 - p[0], p[1]) for x in arrays_read[1]]
    for c, g in enumerate(arrays_read):
        for x, target in zip(g, expected, strict=True):
            if target is None and x not in shared:
                return []
            if (
                target is not None
                and owner.get(x) != (c - target[0], target[1])
                and c - target[0] >= 0
            ):
                return []
    if any(
        x in shared and y is not x
        for g in arrays_read
        for x, y in zip(arrays_read[0], g, strict=True)
    ):
        return []
    return [[*run, *arrays] for run, arrays in zip(runs, own_arrays, strict=True)]


def _arrays(nodes: Sequence[Node]) -> list[Node]:
    """Return the inputs that some nodes read, once per read."""
    return [x for n in nodes for x in n.inputs if isinstance(x.op, Input)]
