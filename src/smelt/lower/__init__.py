"""Lower a cluster of the plan to a kernel."""

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
    """Return the kernel of a cluster.

    `hints` are sizes seen at the first call. They decide, for all sizes, whether a reduction is
    split and whether vectors run across rows, and nothing else.
    """
    definition = define(cluster, rounding)
    if definition.joined is not None:
        return joining(cluster.name, definition, definition.joined)
    if cluster.stream is not None:
        kernel = stream(cluster.name, definition, definition.ended[cluster.stream], hints)
        return in_parts(kernel, hints)
    return assign(cluster.name, definition, hints)
