"""Traffic of each cluster's operators without fusion, the baseline of every comparison.

The same planner makes a plan without fusion at the same sizes; its kernels are lowered, and their
bytes counted as those of the fused ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt import fusion, knobs, lower
from smelt.backend import Machine
from smelt.explain.traffic import traffic
from smelt.fusion.plan import Cluster, Plan
from smelt.graph.ir import Node
from smelt.kernel.ir import Kernel
from smelt.python.dataclass import dataclass
from smelt.types.expr import evaluate

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UnfusedTraffic:
    """Bytes and arrays (read or written) of a cluster's operators without fusion."""

    nbytes: int = 0
    transfers: int = 0

    def __add__(self, other: UnfusedTraffic) -> UnfusedTraffic:
        return UnfusedTraffic(self.nbytes + other.nbytes, self.transfers + other.transfers)


@dataclass(frozen=True, slots=True)
class UnfusedCluster:
    """A cluster of the plan without fusion, with the bytes of each input and output.

    `home` is the cluster of the fused plan that it counts for; `kernel` is None for a library call.
    """

    home: int
    cluster: Cluster
    kernel: Kernel | None
    read: tuple[int, ...]
    written: tuple[int, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The values that it reads."""
        return self.cluster.inputs

    @property
    def outputs(self) -> tuple[Node, ...]:
        """The values that it writes."""
        return self.cluster.outputs


def unfused_traffic(plan: Plan, target: Machine, sizes: Sizes) -> list[UnfusedTraffic]:
    """Return one entry per cluster; an operator in several clusters counts in the first."""
    result = [UnfusedTraffic()] * len(plan.clusters)
    for c in unfused_clusters(plan, target, sizes):
        transfers = len(c.inputs) + len(c.outputs)
        result[c.home] += UnfusedTraffic(sum(c.read) + sum(c.written), transfers)
    return result


def unfused_clusters(plan: Plan, target: Machine, sizes: Sizes) -> list[UnfusedCluster]:
    """Return the clusters of the plan without fusion, in order."""
    with knobs.config(require_fused=()):  # the demand concerns the real plan only
        single = fusion.plan(plan.graph, target, None, sizes, fuse=False)
    home: dict[Node, int] = {}
    for number, cluster in enumerate(plan.clusters):
        for node in cluster.nodes:
            home.setdefault(node, number)
    result: list[UnfusedCluster] = []
    for cluster in single.clusters:
        number = home.get(cluster.outputs[0]) if cluster.outputs else None
        if number is None:
            continue
        if cluster.is_extern or cluster.inner_plan is not None:
            read, written = (
                tuple(int(evaluate(n.type.nbytes, sizes)) for n in side)
                for side in (cluster.inputs, cluster.outputs)
            )
            result.append(UnfusedCluster(number, cluster, None, read, written))
            continue
        kernel = lower.run(cluster, "eager", sizes, target.tiling)
        moved = traffic(kernel, sizes)
        read, written = (
            tuple(t.nbytes for t in side.values()) for side in (moved.loads, moved.stores)
        )
        result.append(UnfusedCluster(number, cluster, kernel, read, written))
    return result
