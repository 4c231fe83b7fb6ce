"""Layers that follow one another and are equal: two of them are planned, the others are like them.

The operators of a deep network come in equal runs.  *Copies* are such runs: operator by operator
the same, reading the same places of their own copy and of the one before it, arrays of their own of
the same types, and the same values from in front of all copies.  Behind the last copy nobody reads
any other.  Without the copies between the first and the last one a graph is the same but shorter;
its kernels tell those of the whole, unless the first and the last copy came out differently.  The
first layer is often none of the copies: it reads what no layer gives.

>>> from smelt.graph.text import parse
>>> arrays = ", ".join(f"w{k}: f32[8,8]" for k in range(1, 10))
>>> layers = " ".join(
...     f'''
... m{k} = contract(t{k - 1}, w{k}) {{spec="m,k; k,n -> m,n"}}
... t{k} = tanh(m{k})'''
...     for k in range(1, 10)
... )
>>> graph = parse(f"graph f(t0: f32[n,8], {arrays}) {{ {layers} return t9 }}")
>>> short = next(shortened(graph))
>>> len(short.copies), [node.op.name for node in short.graph.nodes() if node.inputs]
(8, ['contract', 'tanh', 'contract', 'tanh', 'contract', 'tanh'])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from smelt.fusion.decide import renamed
from smelt.fusion.plan import Cluster
from smelt.fusion.search_result import Found, Part
from smelt.fusion.units import is_free
from smelt.graph.ir import Graph, Node
from smelt.graph.text import name_values
from smelt.journal import Decision
from smelt.ops.create import Constant, Input

LEAST_COPIES = 7
"""Copies from which on most are left out: a value that all of them read has more readers than are
ever asked about one by one, in either graph."""
CONTEXT = 6
"""Operators in a row by which equal places of two copies are recognized."""
PERIODS = 3
"""Distances between equal places that are looked at, the most frequent first."""
BORDERS = (0, 1)
"""Copies at either end that are planned as what stands around the others: where those at the ends
differ, the next ones may not."""
BEFORE, FIRST, LAST = -1, 0, 1
"""The copies of a shortened graph, and what is in front of them in the place of another copy."""


def shortened(graph: Graph) -> Iterator[Layers]:
    """The ways of leaving copies out of a graph, the shortest first."""
    copies = _copies(graph)
    for border in BORDERS if copies else ():
        if len(copies) - 2 * border >= LEAST_COPIES:
            yield Layers(graph, copies[border : len(copies) - border])


class Layers:
    """A graph without the copies between the first and the last one."""

    def __init__(self, whole: Graph, copies: Sequence[Sequence[Node]]) -> None:
        self.whole, self.copies = whole, copies
        first, last, before = copies[0], copies[-1], copies[-2]
        self.left_out = {n for copy in copies[1:-1] for n in copy}
        self.short = dict(zip(before, first, strict=True))
        """What stands in the shorter graph for nodes of the whole that are not in it."""
        self.behind: set[Node] = set()
        """Nodes of the shorter graph behind the copies."""
        nodes = whole.nodes()
        self.order = {n: k for k, n in enumerate(nodes)}
        start = self.order[last[0]]
        inside = {*last}
        for node in nodes[start:]:
            inputs = tuple([self.short.get(x, x) for x in node.inputs])
            made = node if inputs == node.inputs else Node(node.op, inputs, node.type, node.origin)
            if made is not node:
                self.short[node] = made
            if node not in inside:
                self.behind.add(made)
        self.graph = replace(
            whole,
            inputs=tuple([x for x in whole.inputs if x not in self.left_out]),
            outputs=tuple([self.short.get(x, x) for x in whole.outputs if x not in self.left_out]),
        )
        self.long = {made: node for node, made in self.short.items() if node not in self.left_out}
        self.places = {x: (BEFORE, k) for x, k in _handed(first, copies[1]).items()}
        self.places |= {node: (FIRST, k) for k, node in enumerate(first)}
        """Which copy the nodes of the shorter graph belong to, and which of its nodes they are."""
        self.places |= {self.short.get(node, node): (LAST, k) for k, node in enumerate(last)}

    @property
    def shared(self) -> set[Node]:
        """What stands in front of the copies and is read by each of them."""
        found: set[Node] = set()
        inside = {*self.copies[1], *self.copies[0]}
        pending = [x for n in self.copies[1] for x in n.inputs if x not in inside]
        while pending:
            node = pending.pop()
            if is_free(node):
                pending += node.inputs
            elif not isinstance(node.op, Input):
                found.add(node)
        return found

    def _at(self, node: Node, turn: int, *, again: bool = True) -> Node:
        """The node of the whole that one of the shorter graph stands for where its last copy is
        copy number `turn`: `again` if what is said of other copies is said of that one."""
        copy, k = self.places.get(node, (BEFORE, -1))
        if copy == BEFORE and (k < 0 or turn == 1 or not again):
            return self.long.get(node, node)
        return self.copies[turn - 1 + copy][k]

    def _places(self, nodes: Sequence[Node]) -> list[Callable[[Node], Node]]:
        """Where in the whole what is said of some nodes is true: in the place of every copy but the
        first, unless something is said of the first copy alone, or of what stands behind."""
        touched = {self.places.get(n, (BEFORE,))[0] for n in nodes}
        count = len(self.copies)
        if LAST in touched and self.behind.isdisjoint(nodes):
            return [partial(self._at, turn=turn) for turn in range(1, count)]
        turn = 1 if FIRST in touched and LAST not in touched else count - 1
        return [partial(self._at, turn=turn, again=False)]

    def run_together(self, short: Found) -> bool:
        """Whether a kernel is made of both copies and of what stands behind: of more copies, if
        there were more."""
        for part in short.parts:
            nodes = part.cluster.nodes
            touched = {self.places.get(n, (BEFORE,))[0] for n in nodes}
            if touched >= {FIRST, LAST} and not self.behind.isdisjoint(nodes):
                return True
        return False

    def expanded(self, short: Found) -> Found | None:
        """What was found for the whole, by what was found for the shorter graph, in which no kernel
        runs through the copies; None where the two copies differ."""
        parts: list[Part] = []
        sides: tuple[Counter[object], Counter[object]] = Counter(), Counter()
        to_next: Counter[object] = Counter()
        to_rest: Counter[object] = Counter()
        for part in short.parts:
            nodes = part.cluster.nodes
            found = [self._side(part, FIRST), self._side(part, LAST)]
            behind = any(n in self.behind for n in nodes)
            for side, here in zip(sides, found, strict=True):
                side.update([here] if here else ())
            if all(found):
                to_next[found[FIRST]] += 1
            elif found[LAST] and behind:
                to_rest[found[LAST]] += 1
            places = self._places(nodes)
            if len(places) > 1 and not self._is_repeated(part.cluster):
                return None
            parts += [part.at(place, self.order) for place in places]
        if sides[FIRST] != sides[LAST] or to_next != to_rest:
            return None
        alone = {
            place(n): nbytes for n, nbytes in short.alone.items() for place in self._places((n,))
        }
        return Found(parts, self._decisions(short.decisions), alone)

    def _is_repeated(self, cluster: Cluster) -> bool:
        """Whether the kernel in the place of other copies reads what they read, and writes nothing
        but what is theirs."""
        inside = all(self.places.get(n, (BEFORE,))[0] != BEFORE for n in cluster.outputs)
        return inside and all(
            self._at(x, 2) is y
            for n in cluster.nodes
            for x, y in zip(n.inputs, self._at(n, 2).inputs, strict=True)
        )

    def _side(self, part: Part, copy: int) -> tuple[tuple[int, ...], ...] | None:
        """The nodes of a kernel that belong to one copy, and those that it writes."""
        inside, outputs = (
            tuple([p[1] for n in nodes if (p := self.places.get(n)) is not None and p[0] == copy])
            for nodes in (part.cluster.nodes, part.cluster.outputs)
        )
        return (inside, outputs) if inside else None

    def _decisions(self, short: Sequence[Decision]) -> list[Decision]:
        """The decisions about the whole."""
        if not short:
            return []
        names = name_values(self.whole)
        known = {
            name: node
            for node, name in name_values(self.graph).items()
            if not isinstance(node.op, Constant)
        }

        def told(d: Decision, place: Callable[[Node], Node]) -> Decision:
            def name(text: str) -> str:
                node = known.get(text)
                return text if node is None else names[place(node)]

            a, b = place(known[d.a]), place(known[d.b])
            return renamed(d, name, a.origin, b.origin)

        return [told(d, place) for d in short for place in self._places((known[d.a], known[d.b]))]


def _handed(first: Sequence[Node], second: Sequence[Node]) -> dict[Node, int]:
    """What the first copy reads where others read the copy before them, and which node of that."""
    place = {n: k for k, n in enumerate(first)}
    found: dict[Node, set[int]] = {}
    for n, m in zip(first, second, strict=True):
        for x, y in zip(n.inputs, m.inputs, strict=True):
            if x not in place:
                found.setdefault(x, set()).add(place.get(y, -1))
    return {x: k for x, (k, *more) in found.items() if k >= 0 and not more}


# ---- copies --------------------------------------------------------------------------------------


def _copies(graph: Graph) -> list[list[Node]]:
    """The nodes of each copy, in order, then the arrays that it alone reads; nothing if there are
    too few copies."""
    nodes = [n for n in graph.nodes() if not isinstance(n.op, Input)]
    start, period, count = _longest(_labels(graph, nodes))
    if count < LEAST_COPIES:
        return []
    place = {n: k - start for k, n in enumerate(nodes)}
    runs = [nodes[start + k * period :][:period] for k in range(count)]
    follows = _Follows(place, period)
    last = next((k for k in range(1, count) if not follows.all(runs[k - 1], runs[k], k)), count)
    first, last = _alike_outside(graph, runs[:last])
    runs, end = runs[first:last], start + last * period
    left_out = {n for run in runs[:-1] for n in run}
    late = any(x in left_out for n in nodes[end:] for x in n.inputs)
    if len(runs) < LEAST_COPIES or late or not left_out.isdisjoint(graph.asked):
        return []
    return _with_arrays(nodes[: start + first * period], runs, nodes[end:], graph.outputs)


def _alike_outside(graph: Graph, runs: Sequence[Sequence[Node]]) -> tuple[int, int]:
    """The longest row of runs of which all but the last give the same results away: the first, and
    the one behind."""
    outputs = {*graph.outputs}
    given = [[n in outputs for n in run] for run in runs]
    found, start = (0, 0), 0
    for k in range(1, len(runs) + 1):
        if k == len(runs) or given[k] != given[start]:
            found = max(found, (start, min(k + 1, len(runs))), key=lambda f: f[1] - f[0])
            start = k
    return found


def _labels(graph: Graph, nodes: Sequence[Node]) -> list[int]:
    """A number for each node, equal for those that may stand for one another."""
    known: dict[object, int] = {}
    given = {x: known.setdefault(_kind(x), len(known)) for x in graph.inputs}
    return [
        known.setdefault((n.op, n.type, tuple([given.get(x, -1) for x in n.inputs])), len(known))
        for n in nodes
    ]


def _kind(node: Node) -> tuple[object, ...]:
    """What has to be equal of two inputs."""
    assert isinstance(node.op, Input)
    return (node.type, node.op.strides, node.op.constant)


def _longest(labels: Sequence[int]) -> tuple[int, int, int]:
    """Where labels repeat, after how many of them and how often, so that most can be left out."""
    distances: Counter[int] = Counter()
    seen: dict[tuple[int, ...], int] = {}
    for k in range(len(labels) - CONTEXT + 1):
        here = tuple(labels[k : k + CONTEXT])
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


class _Follows:
    """Tells whether one run of nodes is a copy of the one before it."""

    def __init__(self, place: dict[Node, int], period: int) -> None:
        self.place, self.period = place, period
        """Places of nodes that are no inputs, from the first copy's first one on."""

    def all(self, before: Sequence[Node], run: Sequence[Node], number: int) -> bool:
        """Whether a run, the copy of that number, reads as the one before it does: arrays aside."""
        place = self.place
        return all(
            isinstance(x.op, Input) or self._is_read_alike(place[x], place[y], number)
            for old, new in zip(before, run, strict=True)
            for x, y in zip(old.inputs, new.inputs, strict=True)
        )

    def _is_read_alike(self, x: int, y: int, number: int) -> bool:
        if x == y:
            return x < 0  # it stands in front of all copies
        if number == 1 and x < 0:
            return 0 <= y < self.period  # the first copy begins with what others get from theirs
        return y == x + self.period and x >= 0 and y >= (number - 1) * self.period


def _with_arrays(
    before: Sequence[Node],
    runs: Sequence[Sequence[Node]],
    behind: Sequence[Node],
    outputs: Sequence[Node],
) -> list[list[Node]]:
    """The runs with the arrays that they bring: those that differ from copy to copy, and that at
    most the next copy reads as well.  Nothing where one of them is read in front or behind, unless
    it is the last copy's, or the copies do not all read them alike."""
    given = [_arrays(run) for run in runs]
    first = {*given[0]}
    shared = first.intersection(*given[1:])
    brings = [x not in first for x in given[1]]
    own = [[*dict.fromkeys(x for x, new in zip(g, brings, strict=True) if new)] for g in given]
    place = {x: (c, k) for c, arrays in enumerate(own) for k, x in enumerate(arrays)}
    early, late = {*_arrays(before)}, {*_arrays(behind), *outputs}
    if len(place) != sum(map(len, own)) or not (early | shared).isdisjoint(place):
        return []
    if any(not late.isdisjoint(arrays) for arrays in own[:-1]):
        return []
    wanted = [p if (p := place.get(x)) is None else (1 - p[0], p[1]) for x in given[1]]
    for c, g in enumerate(given):
        for x, told in zip(g, wanted, strict=True):
            if told is None and x not in shared:
                return []
            if told is not None and place.get(x) != (c - told[0], told[1]) and c - told[0] >= 0:
                return []
    if any(x in shared and y is not x for g in given for x, y in zip(given[0], g, strict=True)):
        return []
    return [[*run, *arrays] for run, arrays in zip(runs, own, strict=True)]


def _arrays(nodes: Sequence[Node]) -> list[Node]:
    """The inputs that some nodes read, once for each time."""
    return [x for n in nodes for x in n.inputs if isinstance(x.op, Input)]
