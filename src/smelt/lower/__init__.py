"""Lower a cluster of the plan to a kernel."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.plan import Cluster
from smelt.kernel.ir import Kernel
from smelt.lower.assign_axes import assign
from smelt.lower.define import define
from smelt.lower.kernel_reuse import cluster_signature, reuse_kernel
from smelt.lower.recurrence import recurrence
from smelt.lower.round_factors import round_factors
from smelt.lower.scatter import scatter_kernel
from smelt.lower.split_stream import split_over_grid
from smelt.lower.stream import stream
from smelt.machine.tiling import CPU_TILING, Tiling

__all__ = ["cluster_signature", "reuse_kernel", "run"]


def run(
    cluster: Cluster, rounding: str, hints: Mapping[str, int], tiling: Tiling = CPU_TILING
) -> Kernel:
    """Return the kernel of a cluster, with the blocks that suit a machine.

    `hints` are sizes seen at the first call. They decide, for all sizes, whether a reduction is
    split and whether vectors run across rows, and nothing else.
    """
    kernel = _unrounded(cluster, rounding, hints, tiling)
    return round_factors(kernel) if tiling.rounds_factors else kernel


def _unrounded(cluster: Cluster, rounding: str, hints: Mapping[str, int], tiling: Tiling) -> Kernel:
    if cluster.loop is not None:
        return recurrence(cluster, cluster.loop, rounding, tiling)
    definition = define(cluster, rounding)
    if definition.scatter is not None:
        return scatter_kernel(cluster.name, definition, definition.scatter, tiling)
    if cluster.stream is not None:
        axis = definition.reduced_axes[cluster.stream]
        kernel = stream(cluster.name, definition, axis, hints, tiling)
        return split_over_grid(kernel, hints, tiling)
    return assign(cluster.name, definition, hints, tiling)
