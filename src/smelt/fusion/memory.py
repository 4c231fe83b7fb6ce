"""Where values between clusters live: one arena, offsets as expressions over sizes."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.plan import Cluster, Slot
from smelt.graph.ir import Graph, Node
from smelt.types.expr import Index, add, floordiv, mul

LINE = 64


def rounded(nbytes: Index) -> Index:
    """Bytes rounded up to whole cache lines."""
    return mul(floordiv(add(nbytes, LINE - 1), LINE), LINE)


def assign(
    graph: Graph,
    clusters: tuple[Cluster, ...],
    launches: tuple[tuple[int, ...], ...],
    hints: Mapping[str, int],
) -> tuple[Slot, ...]:
    """A slot for each value that a cluster writes."""
    del launches, hints
    last: dict[Node, int] = {}
    for k, cluster in enumerate(clusters):
        for node in cluster.inputs:
            last[node] = k
    results = set(graph.outputs)
    slots: list[Slot] = []
    top: Index = 0
    for k, cluster in enumerate(clusters):
        for node in cluster.outputs:
            nbytes = node.type.nbytes
            if node in results:
                slots.append(Slot(node, nbytes, None, k, len(clusters) - 1))
                continue
            slots.append(Slot(node, nbytes, top, k, last.get(node, k)))
            top = add(top, rounded(nbytes))
    return tuple(slots)
