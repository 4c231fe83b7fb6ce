"""Traffic of each cluster's operators without fusion, the baseline of every comparison.

The same planner makes a plan without fusion at the same sizes; its kernels are lowered, and their
bytes counted as those of the fused ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt import fusion, knobs, lower
from smelt.dataclass import dataclass
from smelt.explain.traffic import traffic
from smelt.fusion.plan import Cluster, Plan
from smelt.graph.ir import Node
from smelt.target import Target
from smelt.types.expr import evaluate

__all__ = ["UnfusedTraffic", "call_bytes", "unfused_traffic"]

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UnfusedTraffic:
    """Bytes and arrays (read or written) of a cluster's operators without fusion."""

    nbytes: int = 0
    transfers: int = 0

    def __add__(self, other: UnfusedTraffic) -> UnfusedTraffic:
        return UnfusedTraffic(self.nbytes + other.nbytes, self.transfers + other.transfers)


def unfused_traffic(plan: Plan, target: Target, sizes: Sizes) -> list[UnfusedTraffic]:
    """Return one entry per cluster; an operator in several clusters counts in the first."""
    with knobs.config(require_fused=()):  # the demand concerns the real plan only
        single = fusion.plan(plan.graph, target, None, sizes, fuse=False)
    home: dict[Node, int] = {}
    for number, cluster in enumerate(plan.clusters):
        for node in cluster.nodes:
            home.setdefault(node, number)
    result = [UnfusedTraffic()] * len(plan.clusters)
    for cluster in single.clusters:
        number = home.get(cluster.outputs[0]) if cluster.outputs else None
        if number is not None:
            result[number] += _cluster_traffic(cluster, sizes)
    return result


def _cluster_traffic(cluster: Cluster, sizes: Sizes) -> UnfusedTraffic:
    transfers = len(cluster.inputs) + len(cluster.outputs)
    if cluster.is_extern:
        return UnfusedTraffic(call_bytes(cluster, sizes), transfers)
    return UnfusedTraffic(traffic(lower.run(cluster, "eager", sizes), sizes).nbytes, transfers)


def call_bytes(cluster: Cluster, sizes: Sizes) -> int:
    """Return the bytes of a library call: its inputs and outputs in full."""
    return sum(int(evaluate(n.type.nbytes, sizes)) for n in (*cluster.inputs, *cluster.outputs))
