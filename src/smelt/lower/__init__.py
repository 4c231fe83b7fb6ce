"""Lowering: a cluster of the Plan becomes a Kernel."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.plan import Cluster
from smelt.kernel.ir import Kernel
from smelt.lower.define import define
from smelt.lower.roles import assign

__all__ = ["run"]


def run(cluster: Cluster, rounding: str, hints: Mapping[str, int]) -> Kernel:
    """The kernel of a cluster.  `hints` are sizes seen at the first call: they choose, for all
    sizes, whether a fold is split, and nothing else."""
    return assign(cluster.name, define(cluster, rounding), hints)
