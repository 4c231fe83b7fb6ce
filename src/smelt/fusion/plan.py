"""Define the plan: clusters, launches, the buffers between them, and the decisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import TypeAlias

from smelt.fusion.bitsets import at_hints, bits, least
from smelt.fusion.units import Units
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.journal.facts import Decision
from smelt.kernel.chunks import Chunks
from smelt.ops.create import Input
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index
from smelt.types.tensor import Shape

Donate: TypeAlias = tuple[int | tuple[int, int], ...]
"""Inputs, by index, whose memory results may take over.

A pair names an input and the only result, by index, that may take its memory.
"""
Donated: TypeAlias = Mapping[Node, Node | None]
"""Donated inputs by node, with the only result that may take their memory, or None for any."""
NOTHING: Donated = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Operators that become one kernel or one library call.

    `nodes` are in execution order. `inputs` are values from outside, `outputs` those of its values
    that are stored because somebody outside needs them. Values in neither are never materialised.
    `recomputed` are nodes that another cluster computes too.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    recomputed: tuple[Node, ...] = ()
    shapes: tuple[Shape, ...] = ()
    """For each output, the shape under which the kernel iterates over it and stores it.

    Either its own, or another one with the same elements in the same row-major order. Empty: every
    output's own.
    """
    stream: tuple[Node, int] | None = None
    """The axis that is processed block by block with carried reductions.

    A reduction, and the index among the axes that it reduces.
    """
    body: Body | None = None
    """The plan that runs chunk by chunk instead of one kernel.

    The operands and results that its chunks cut are `inputs` and `outputs`, by index.
    """

    loop: LoopBody | None = None
    """For the results of a loop, how its step runs; None until that is planned."""

    def shape(self, number: int) -> Shape:
        """Return the shape under which the kernel iterates over output `number`."""
        return self.shapes[number] if self.shapes else self.outputs[number].type.shape

    @property
    def is_extern(self) -> bool:
        """Return whether it is one library call instead of a kernel."""
        return self.loop is None and any(not n.op.fusible for n in self.nodes)

    @property
    def inner_plan(self) -> Plan | None:
        """Return the plan that runs in its place, again and again."""
        if self.body is not None:
            return self.body.plan
        return None if self.loop is None else self.loop.plan

    def inner_sizes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return the sizes of its inner plan: those of a full chunk, or of a loop's step."""
        if self.body is not None:
            return self.body.block_sizes(sizes)
        return sizes if self.loop is None else self.loop.op.step_sizes(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """The plan that a cluster runs for one chunk of rows after another.

    Its graph has the sizes of the full graph, and one for the rows of a chunk.
    """

    chunks: Chunks
    plan: Plan
    of: Mapping[Node, Node]
    """The operators of the cluster by the nodes of the body that compute them."""

    def block_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a full chunk."""
        return {**sizes, self.chunks.rows: self.chunks.block}


@dataclass(frozen=True, slots=True, eq=False)
class LoopBody:
    """How the step of a loop runs: inside one kernel, or by a plan of its own."""

    op: Loop
    """The loop; `which` is that of any of its results."""
    wanted: tuple[int, ...]
    """The results that are stored, in the order of the cluster's outputs."""
    plan: Plan | None = None
    """The plan of a step for its own sizes; None if the loop is one kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """The memory of a value between clusters.

    It is at `offset` bytes (an expression over sizes) of the arena or of a result that is not
    written yet (`within`), or in a buffer of its own (`offset` None) if it is a result of the
    graph.
    """

    node: Node
    nbytes: Index
    offset: Index | None
    first: int
    """Number of the cluster that writes it."""
    last: int
    """Number of the last cluster that reads it."""
    reuses: Node | None = None
    """The value whose memory it takes over in place; `first` is that one's last reader.

    For a result of the graph, an input that the caller donated.
    """
    within: Node | None = None
    """The result in whose memory it lives until that one is written."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Clusters in execution order, their launches and their memory.

    `launches` groups the numbers of independent clusters that start together.
    """

    graph: Graph
    clusters: tuple[Cluster, ...]
    launches: tuple[tuple[int, ...], ...]
    decisions: tuple[Decision, ...] = ()
    slots: tuple[Slot, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes that the kernels are chosen for, if other than those of the first call."""

    @property
    def all_clusters(self) -> tuple[Cluster, ...]:
        """Return all clusters, followed by those within chunked clusters and loops.

        Clusters with a plan of their own are included as they are.
        """
        plans = (c.inner_plan for c in self.clusters)
        within = (c for plan in plans if plan is not None for c in plan.all_clusters)
        return (*self.clusters, *within)

    @property
    def checks(self) -> tuple[int, ...]:
        """Return the numbers of clusters that compute only checks of the graph."""
        check_nodes = {*self.graph.check_outputs}
        return tuple(k for k, c in enumerate(self.clusters) if check_nodes.issuperset(c.outputs))

    @property
    def chunked_clusters(self) -> tuple[tuple[int, Body], ...]:
        """Return the clusters that run in chunks, by number."""
        return tuple((k, c.body) for k, c in enumerate(self.clusters) if c.body is not None)


def cluster_sizes(plan: Plan, sizes: Mapping[str, int]) -> list[Mapping[str, int]]:
    """Return the sizes that each cluster of `plan.all_clusters` is lowered and compiled for.

    Clusters of chunks also know the rows of a chunk; those of a loop's step have their own sizes.
    """
    result: list[Mapping[str, int]] = [sizes] * len(plan.clusters)
    for c in plan.clusters:
        if c.inner_plan is not None:
            result += cluster_sizes(c.inner_plan, c.inner_sizes(sizes))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class UnplacedCluster:
    """A cluster without a place in the execution order yet."""

    cluster: Cluster
    first: Node
    """Its first operator."""
    bytes_moved: int
    """Bytes that it reads and writes."""
    reuses: Mapping[Node, Sequence[Node]]
    """For each of its results, the inputs that it may overwrite."""

    def relocate(self, place: Callable[[Node], Node], order: Mapping[Node, int]) -> UnplacedCluster:
        """Return the same cluster of other nodes, sorted by their order.

        `place` maps each node to its counterpart.
        """
        c, key = self.cluster, order.__getitem__
        nodes = tuple(sorted(map(place, c.nodes), key=key))
        inputs = tuple(sorted(map(place, c.inputs), key=key))
        outputs = tuple(map(place, c.outputs))
        stream = None if c.stream is None else (place(c.stream[0]), c.stream[1])
        recomputed = tuple(map(place, c.recomputed))
        return UnplacedCluster(
            Cluster(c.name, nodes, inputs, outputs, recomputed, c.shapes, stream),
            place(self.first),
            self.bytes_moved,
            {place(n): tuple(map(place, old)) for n, old in self.reuses.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """Kernels for a whole graph."""

    parts: Sequence[UnplacedCluster]
    decisions: Sequence[Decision]
    unfused_bytes: Mapping[Node, int]
    """Bytes that each operator reads and writes if it is a kernel of its own."""
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes that the kernels are chosen for, if other than those of the first call."""


# ---- from sets of units to the clusters of a plan -----------------------------------------------
#
# The search works with numbers; here they become nodes again: views are inlined, inputs and outputs
# listed, clusters ordered so that memory is freed early, and independent clusters grouped to start
# together.


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
