"""Sets of units -> the clusters and launches of a Plan.

The search works with numbers; here they become nodes again: views are pulled in, inputs and outputs
listed, clusters put in an order that frees memory early, and those that do not wait for one another
are started together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import at_hints, bits, least
from smelt.fusion.plan import Cluster
from smelt.fusion.search_result import Part
from smelt.fusion.units import Units
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Input
from smelt.types.tensor import Shape


@dataclass(frozen=True, slots=True)
class Group:
    """Units that become one cluster, and those of them that are written."""

    members: int
    stored: int
    walked: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Shapes (extent numbers) other than their own under which stored units are walked."""
    stream: tuple[int, int] | None = None
    """The streamed axis: a fold, and which of the axes that end in it."""


def parts_of(
    units: Units,
    groups: Sequence[Group],
    moved: Sequence[int],
    reuses: Mapping[Node, Sequence[Node]],
) -> list[Part]:
    """A cluster for each group, told how many bytes it moves and what its results may be written
    over."""
    times: dict[int, int] = {}
    for g in groups:
        for u in bits(g.members):
            times[u] = times.get(u, 0) + 1
    found: list[Part] = []
    for g, nbytes in zip(groups, moved, strict=True):
        cluster = _cluster(units, g, _reads(units, g), times)
        own = {n: reuses[n] for n in cluster.outputs if n in reuses}
        found.append(Part(cluster, units.values[least(g.members)], nbytes, own))
    return found


def in_order(
    graph: Graph, parts: Sequence[Part], hints: Mapping[str, int]
) -> tuple[tuple[Cluster, ...], tuple[tuple[int, ...], ...]]:
    """Clusters in execution order, and their numbers grouped by launch."""
    clusters: list[Cluster] = []
    launches: list[tuple[int, ...]] = []
    for step in _schedule(graph, parts, hints):
        launches.append(tuple(range(len(clusters), len(clusters) + len(step))))
        for k in step:
            clusters.append(replace(parts[k].cluster, name=f"k{len(clusters)}"))
    return tuple(clusters), tuple(launches)


def _reads(units: Units, group: Group) -> int:
    """Values that a group reads from memory."""
    found = 0
    for u in bits(group.members):
        for edge in units.unit(u).edges:
            found |= 1 << edge.producer
    return found & ~group.members


def _cluster(units: Units, group: Group, reads: int, times: Mapping[int, int]) -> Cluster:
    nodes: dict[Node, None] = {}
    for u in bits(group.members):
        nodes.update(dict.fromkeys(units.pulled(u)))
        nodes[units.values[u]] = None
    inside = tuple(sorted(nodes, key=units.order.__getitem__))
    inputs = tuple(units.values[v] for v in bits(reads))
    outputs = tuple(units.values[u] for u in bits(group.stored))
    again = tuple(units.values[u] for u in bits(group.members) if times[u] > 1)
    shapes: list[Shape] = []
    for u in bits(group.stored if group.walked else 0):
        own = units.values[u].type.shape
        axes = group.walked.get(u)
        shapes.append(own if axes is None else tuple(units.extents[e] for e in axes))
    stream = None if group.stream is None else (units.values[group.stream[0]], group.stream[1])
    return Cluster("", inside, inputs, outputs, again, tuple(shapes), stream)


# ---- order -----------------------------------------------------------------------------------


def _schedule(graph: Graph, parts: Sequence[Part], hints: Mapping[str, int]) -> list[list[int]]:
    """Steps of clusters that start together.  One whose time is free runs late if it writes more
    than it lets go, early otherwise."""
    clusters = [p.cluster for p in parts]
    writer = {n: k for k, c in enumerate(clusters) for n in c.outputs}
    before = [sorted({writer[n] for n in c.inputs if n in writer}) for c in clusters]
    after: list[list[int]] = [[] for _ in clusters]
    for k, earlier in enumerate(before):
        for e in earlier:
            after[e].append(k)
    order = _topological(before, after)
    early = [0] * len(clusters)
    for k in order:
        early[k] = 1 + max((early[e] for e in before[k]), default=-1)
    depth = max(early, default=0)
    late = [depth] * len(clusters)
    for k in reversed(order):
        late[k] = min((late[a] for a in after[k]), default=depth + 1) - 1
    place: dict[int, int] = {}
    results = set(graph.outputs)
    for k in reversed(order):
        last = min((place[a] for a in after[k]), default=late[k] + 1) - 1
        place[k] = last if _grows(clusters[k], results, hints) else early[k]
    for k in order:
        place[k] = max((place[e] + 1 for e in before[k]), default=place[k])
    return _steps(graph, parts, order, place)


def _topological(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    waits = [len(b) for b in before]
    ready = [k for k, n in enumerate(waits) if not n]
    order: list[int] = []
    for k in ready:
        order.append(k)
        for a in after[k]:
            waits[a] -= 1
            if not waits[a]:
                ready.append(a)
    return order


def _grows(cluster: Cluster, results: Collection[Node], hints: Mapping[str, int]) -> bool:
    """Whether a cluster leaves more intermediates in memory than it reads."""
    written = [n for n in cluster.outputs if n not in results]
    read = [n for n in cluster.inputs if not isinstance(n.op, Input)]
    written, read = (sum([at_hints(n.type.nbytes, hints) for n in ns]) for ns in (written, read))
    return written >= read


def _steps(
    graph: Graph, parts: Sequence[Part], order: Sequence[int], place: Mapping[int, int]
) -> list[list[int]]:
    """Clusters by place; a library call has a step of its own."""
    numbers = {n: k for k, n in enumerate(graph.nodes())}
    by_place: dict[int, list[int]] = {}
    for k in sorted(order, key=lambda k: (place[k], numbers[parts[k].first])):
        by_place.setdefault(place[k], []).append(k)
    steps: list[list[int]] = []
    for here in by_place.values():
        kernels = [k for k in here if not parts[k].cluster.is_extern]
        if kernels:
            steps.append(kernels)
        steps += [[k] for k in here if parts[k].cluster.is_extern]
    return steps
