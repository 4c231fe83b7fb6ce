"""Convert sets of units into the clusters and launches of a plan.

The search works with numbers; here they become nodes again: views are inlined, inputs and outputs
listed, clusters ordered so that memory is freed early, and independent clusters grouped to start
together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from smelt.fusion.bitsets import at_hints, bits, least
from smelt.fusion.plan import Cluster, UnplacedCluster
from smelt.fusion.units import Units
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Input
from smelt.python.dataclass import dataclass
from smelt.types.tensor import Shape


@dataclass(frozen=True, slots=True)
class Group:
    """Units that become one cluster, and those of them that are stored."""

    members: int
    stored: int
    result_shapes: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Shapes (extent numbers) other than their own under which stored units are iterated over."""
    stream: tuple[int, int] | None = None
    """The streamed axis: a reduction, and the index among the axes that it reduces."""


def unplaced_clusters(
    units: Units,
    groups: Sequence[Group],
    moved: Sequence[int],
    reuses: Mapping[Node, Sequence[Node]],
) -> list[UnplacedCluster]:
    """Return a cluster for each group.

    Each has the bytes that it moves and the inputs that its results may overwrite.
    """
    cluster_counts: dict[int, int] = {}
    for g in groups:
        for u in bits(g.members):
            cluster_counts[u] = cluster_counts.get(u, 0) + 1
    parts: list[UnplacedCluster] = []
    for g, nbytes in zip(groups, moved, strict=True):
        cluster = _cluster(units, g, _reads(units, g), cluster_counts)
        own_reuses = {n: reuses[n] for n in cluster.outputs if n in reuses}
        parts.append(UnplacedCluster(cluster, units.values[least(g.members)], nbytes, own_reuses))
    return parts


def single_cluster(units: Units, group: Group) -> Cluster:
    """Return the cluster of a group beside which nothing is computed."""
    return _cluster(units, group, _reads(units, group), dict.fromkeys(bits(group.members), 1))


def order_clusters(
    graph: Graph, parts: Sequence[UnplacedCluster], hints: Mapping[str, int], least_late_bytes: int
) -> tuple[tuple[Cluster, ...], tuple[tuple[int, ...], ...]]:
    """Return clusters in execution order, and their numbers grouped by launch.

    One that writes fewer than `least_late_bytes` for others runs as early as it may.
    """
    clusters: list[Cluster] = []
    launches: list[tuple[int, ...]] = []
    for step in _schedule(graph, parts, hints, least_late_bytes):
        launches.append(tuple(range(len(clusters), len(clusters) + len(step))))
        for k in step:
            clusters.append(replace(parts[k].cluster, name=f"k{len(clusters)}"))
    return tuple(clusters), tuple(launches)


def _reads(units: Units, group: Group) -> int:
    operands = 0
    for u in bits(group.members):
        for edge in units.unit(u).edges:
            operands |= 1 << edge.producer
    return operands & ~group.members


def _cluster(units: Units, group: Group, reads: int, times: Mapping[int, int]) -> Cluster:
    nodes: dict[Node, None] = {}
    for u in bits(group.members):
        nodes.update(dict.fromkeys(units.pulled(u)))
        nodes[units.values[u]] = None
    ordered = tuple(sorted(nodes, key=units.order.__getitem__))
    inputs = tuple(units.values[v] for v in bits(reads))
    outputs = tuple(units.values[u] for u in bits(group.stored))
    recomputed = tuple(units.values[u] for u in bits(group.members) if times[u] > 1)
    shapes: list[Shape] = []
    for u in bits(group.stored if group.result_shapes else 0):
        own_shape = units.values[u].type.shape
        axes = group.result_shapes.get(u)
        shapes.append(own_shape if axes is None else tuple(units.extents[e] for e in axes))
    stream = None if group.stream is None else (units.values[group.stream[0]], group.stream[1])
    return Cluster("", ordered, inputs, outputs, recomputed, tuple(shapes), stream)


# ---- order -----------------------------------------------------------------------------------


def _schedule(
    graph: Graph, parts: Sequence[UnplacedCluster], hints: Mapping[str, int], least_late_bytes: int
) -> list[list[int]]:
    """Return steps of clusters that start together.

    A cluster with slack runs late if it writes much, and more than it frees, early otherwise.
    """
    clusters = [p.cluster for p in parts]
    writer = {n: k for k, c in enumerate(clusters) for n in c.outputs}
    predecessors = [sorted({writer[n] for n in c.inputs if n in writer}) for c in clusters]
    successors: list[list[int]] = [[] for _ in clusters]
    for k, earlier in enumerate(predecessors):
        for e in earlier:
            successors[e].append(k)
    order = _topological(predecessors, successors)
    earliest = [0] * len(clusters)
    for k in order:
        earliest[k] = 1 + max((earliest[e] for e in predecessors[k]), default=-1)
    depth = max(earliest, default=0)
    latest = [depth] * len(clusters)
    for k in reversed(order):
        latest[k] = min((latest[a] for a in successors[k]), default=depth + 1) - 1
    step: dict[int, int] = {}
    results = set(graph.outputs)
    for k in reversed(order):
        latest_step = min((step[a] for a in successors[k]), default=latest[k] + 1) - 1
        grows = _grown_bytes(clusters[k], results, hints) >= least_late_bytes
        step[k] = latest_step if grows else earliest[k]
    for k in order:
        step[k] = max((step[e] + 1 for e in predecessors[k]), default=step[k])
    return _steps(graph, parts, order, step)


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


def _grown_bytes(cluster: Cluster, results: Collection[Node], hints: Mapping[str, int]) -> int:
    """Return the bytes of intermediates that a cluster leaves, beyond those that it reads."""
    written = [n for n in cluster.outputs if n not in results]
    read = [n for n in cluster.inputs if not isinstance(n.op, Input)]
    written, read = (sum([at_hints(n.type.nbytes, hints) for n in ns]) for ns in (written, read))
    return written - read


def _steps(
    graph: Graph, parts: Sequence[UnplacedCluster], order: Sequence[int], step: Mapping[int, int]
) -> list[list[int]]:
    """Return clusters by step; a library call has a step of its own."""
    node_order = {n: k for k, n in enumerate(graph.nodes())}
    by_place: dict[int, list[int]] = {}
    for k in sorted(order, key=lambda k: (step[k], node_order[parts[k].first])):
        by_place.setdefault(step[k], []).append(k)
    steps: list[list[int]] = []
    for concurrent in by_place.values():
        kernels = [k for k in concurrent if not parts[k].cluster.is_extern]
        if kernels:
            steps.append(kernels)
        steps += [[k] for k in concurrent if parts[k].cluster.is_extern]
    return steps
