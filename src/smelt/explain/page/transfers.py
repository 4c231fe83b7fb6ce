"""Count accesses to every value in memory, with fusion and without.

    rows = transfers(report.data, compiled)

Sums over the rows equal the totals of the report.
"""

from __future__ import annotations

from collections import Counter

from smelt.explain.data import ReportData
from smelt.explain.page_data import Transfer
from smelt.explain.unfused import UnfusedCluster
from smelt.graph.ir import Node

__all__ = ["transfers"]


def transfers(
    data: ReportData, nodes: tuple[Node, ...], unfused: list[UnfusedCluster]
) -> tuple[Transfer, ...]:
    """Return a row for each value in memory, in the order of the graph."""
    counts: Counter[tuple[int, str]] = Counter()
    for k in data.kernels:
        if k.within is None and k.kind != "check":
            for p in k.params:
                if p.node is not None:
                    counts[p.node, f"{p.role}"] += 1
                    counts[p.node, f"{p.role} bytes"] += p.touched_bytes
    number = {node: k for k, node in enumerate(nodes)}
    for cluster in unfused:
        if data.kernels[cluster.home].kind == "check":
            continue
        sides = ("in", cluster.inputs, cluster.read), ("out", cluster.outputs, cluster.written)
        for role, values, bytes_of_values in sides:
            for value, nbytes in zip(values, bytes_of_values, strict=True):
                counts[number[value], f"{role} unfused"] += 1
                counts[number[value], f"{role} bytes unfused"] += nbytes
    return tuple(
        Transfer(
            node=n,
            reads=counts[n, "in"],
            read_bytes=counts[n, "in bytes"],
            writes=counts[n, "out"],
            written_bytes=counts[n, "out bytes"],
            reads_unfused=counts[n, "in unfused"],
            read_bytes_unfused=counts[n, "in bytes unfused"],
            writes_unfused=counts[n, "out unfused"],
            written_bytes_unfused=counts[n, "out bytes unfused"],
            least_bytes=_least_bytes(data, n, counts),
        )
        for n in sorted({node for node, _ in counts})
    )


def _least_bytes(data: ReportData, n: int, counts: Counter[tuple[int, str]]) -> int:
    """Return the bytes of an input, read once, or of a result, written once."""
    if data.nodes[n].kind == "input":
        return min(counts[n, "in bytes"], data.nodes[n].nbytes)
    return data.nodes[n].nbytes if data.nodes[n].output else 0
