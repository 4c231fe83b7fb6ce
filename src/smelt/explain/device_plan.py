"""Plan and lower a compiled graph again, for a machine that need not be there.

The graph is the one that the CPU's plan is for: after the passes, without what constants decide.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt import fusion, knobs, lower
from smelt.backend import Machine
from smelt.dataclass import dataclass
from smelt.explain.compiled import Compiled
from smelt.fusion.plan import Plan, cluster_sizes
from smelt.graph.ir import Graph
from smelt.journal import Journal, PassRan
from smelt.kernel.ir import Kernel

__all__ = ["DevicePlan", "plan_for_device"]


@dataclass(frozen=True, slots=True, eq=False)
class DevicePlan:
    """The plan and kernels of a graph for another machine; nothing of it runs."""

    graph: Graph
    plan: Plan
    kernels: tuple[Kernel | None, ...]
    target: Machine
    journal: Journal
    size_names: tuple[str, ...]
    executable: None = None


def plan_for_device(compiled: Compiled, machine: Machine, sizes: Mapping[str, int]) -> DevicePlan:
    """Return the plan and kernels of a compiled graph for another machine."""
    graph = compiled.plan.graph
    journal = Journal(full=True)
    for fact in compiled.journal.of(PassRan):
        journal.record(fact)
    plan = fusion.plan(graph, machine, journal, sizes, fuse=bool(knobs.FUSE.get()))
    rounding = knobs.ROUNDING.get()
    kernels = tuple(
        None
        if c.is_extern or c.inner_plan is not None
        else lower.run(c, rounding, {**hints, **plan.sizes}, machine.tiling)
        for c, hints in zip(plan.all_clusters, cluster_sizes(plan, sizes), strict=True)
    )
    return DevicePlan(compiled.graph, plan, kernels, machine, journal, compiled.size_names)
