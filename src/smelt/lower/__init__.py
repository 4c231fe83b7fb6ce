"""Lowering: a cluster of the Plan becomes a Kernel."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.plan import Cluster
from smelt.kernel.ir import Kernel
from smelt.lower.assign_axes import assign
from smelt.lower.define import define
from smelt.lower.kernel_reuse import again, spelled
from smelt.lower.scatter import joining
from smelt.lower.split_stream import in_parts
from smelt.lower.stream import stream

__all__ = ["again", "run", "spelled"]


def run(cluster: Cluster, rounding: str, hints: Mapping[str, int]) -> Kernel:
    """The kernel of a cluster.  `hints` are sizes seen at the first call: they choose, for all
    sizes, whether a fold is split and whether vectors take a row each, and nothing else."""
    found = define(cluster, rounding)
    if found.joined is not None:
        return joining(cluster.name, found, found.joined)
    if cluster.stream is not None:
        made = stream(cluster.name, found, found.ended[cluster.stream], hints)
        return in_parts(made, hints)
    return assign(cluster.name, found, hints)
