"""Sets of units -> the clusters and launches of a Plan.

The search works with numbers; here they become nodes again: views are pulled in, inputs and outputs
listed, clusters put in an order that frees memory early, and those that do not wait for one another
are started together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from smelt.dataclass import dataclass
from smelt.fusion.plan import Cluster
from smelt.fusion.sets import at_hints, bits
from smelt.fusion.units import Units
from smelt.graph.ir import Node
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


def clusters_of(
    units: Units, groups: Sequence[Group], hints: Mapping[str, int]
) -> tuple[tuple[Cluster, ...], tuple[tuple[int, ...], ...]]:
    """Clusters in execution order, and their numbers grouped by launch."""
    reads = [_reads(units, g) for g in groups]
    order = _schedule(units, groups, reads, hints)
    times: dict[int, int] = {}
    for g in groups:
        for u in bits(g.members):
            times[u] = times.get(u, 0) + 1
    clusters: list[Cluster] = []
    launches: list[tuple[int, ...]] = []
    for step in order:
        launches.append(tuple(range(len(clusters), len(clusters) + len(step))))
        for k in step:
            name = f"k{len(clusters)}"
            clusters.append(_cluster(name, units, groups[k], reads[k], times))
    return tuple(clusters), tuple(launches)


def _reads(units: Units, group: Group) -> int:
    """Values that a group reads from memory."""
    found = 0
    for u in bits(group.members):
        for edge in units.unit(u).edges:
            found |= 1 << edge.producer
    return found & ~group.members


def _cluster(
    name: str, units: Units, group: Group, reads: int, times: Mapping[int, int]
) -> Cluster:
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
    return Cluster(name, inside, inputs, outputs, again, tuple(shapes), stream)


# ---- order -----------------------------------------------------------------------------------


def _schedule(
    units: Units, groups: Sequence[Group], reads: Sequence[int], hints: Mapping[str, int]
) -> list[list[int]]:
    """Steps of groups that start together.  A group whose time is free runs late if it writes more
    than it lets go, early otherwise."""
    writer = {u: k for k, g in enumerate(groups) for u in bits(g.stored)}
    before = [sorted({writer[v] for v in bits(r) if v in writer}) for r in reads]
    after: list[list[int]] = [[] for _ in groups]
    for k, earlier in enumerate(before):
        for e in earlier:
            after[e].append(k)
    order = _topological(before, after)
    early = [0] * len(groups)
    for k in order:
        early[k] = 1 + max((early[e] for e in before[k]), default=-1)
    depth = max(early, default=0)
    late = [depth] * len(groups)
    for k in reversed(order):
        late[k] = min((late[a] for a in after[k]), default=depth + 1) - 1
    place: dict[int, int] = {}
    for k in reversed(order):
        last = min((place[a] for a in after[k]), default=late[k] + 1) - 1
        place[k] = last if _grows(units, groups[k], reads[k], hints) else early[k]
    for k in order:
        place[k] = max((place[e] + 1 for e in before[k]), default=place[k])
    return _steps(units, groups, order, place)


def _topological(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    waits = [len(b) for b in before]
    ready = [k for k, n in enumerate(waits) if not n]
    order: list[int] = []
    while ready:
        k = ready.pop(0)
        order.append(k)
        for a in after[k]:
            waits[a] -= 1
            if not waits[a]:
                ready.append(a)
    return order


def _grows(units: Units, group: Group, reads: int, hints: Mapping[str, int]) -> bool:
    """Whether a group leaves more intermediates in memory than it reads."""
    written = sum(at_hints(units.values[u].type.nbytes, hints)
                  for u in bits(group.stored & ~units.outputs))  # fmt: skip
    read = sum(at_hints(units.values[v].type.nbytes, hints)
               for v in bits(reads) if v >= len(units.inputs))  # fmt: skip
    return written >= read


def _steps(
    units: Units, groups: Sequence[Group], order: Sequence[int], place: Mapping[int, int]
) -> list[list[int]]:
    """Groups by place; a library call has a step of its own."""
    by_place: dict[int, list[int]] = {}
    for k in sorted(order, key=lambda k: (place[k], groups[k].members & -groups[k].members)):
        by_place.setdefault(place[k], []).append(k)
    steps: list[list[int]] = []
    for here in by_place.values():
        kernels = [k for k in here if not is_call(units, groups[k])]
        if kernels:
            steps.append(kernels)
        steps += [[k] for k in here if is_call(units, groups[k])]
    return steps


def is_call(units: Units, group: Group) -> bool:
    """Whether a group is a library call."""
    return any(units.unit(u).is_library for u in bits(group.members))
