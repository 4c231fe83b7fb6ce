"""Plan and lower a compiled graph again, for a machine that need not be there.

The program is simplified for that machine. A CPU computes what constants decide ahead, which is
left out; of a GPU's programs the workspaces alone are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt import fusion, knobs, lower, passes
from smelt.backend import Gpu, Machine
from smelt.explain.compiled import Compiled
from smelt.fusion.plan import Plan, cluster_sizes
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal
from smelt.kernel.ir import Kernel
from smelt.passes.constant_subgraph import split_constant_subgraph
from smelt.python.dataclass import dataclass


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
    journal = Journal(full=True)
    graph = _simplified(compiled, machine, sizes, journal)
    is_ahead = knobs.CONSTANTS.get() and not isinstance(machine, Gpu)
    rest = split_constant_subgraph(graph).graph if is_ahead else graph
    plan = fusion.plan(rest, machine, journal, sizes, fuse=bool(knobs.FUSE.get()))
    rounding = knobs.ROUNDING.get()
    kernels = tuple(
        None
        if c.is_extern or c.inner_plan is not None
        else lower.run(c, rounding, {**hints, **plan.sizes}, machine.tiling)
        for c, hints in zip(plan.all_clusters, cluster_sizes(plan, sizes), strict=True)
    )
    return DevicePlan(graph, plan, kernels, machine, journal, compiled.size_names)


def _simplified(
    compiled: Compiled, machine: Machine, sizes: Mapping[str, int], journal: Journal
) -> Graph:
    """Return the program after the passes for the machine, as the driver runs them."""
    program = None if compiled.executable is None else compiled.executable.graph
    if program is None:  # a part of another program, which has no graph of its own
        return compiled.graph
    graph = passes.run(program, journal, knobs.ROUNDING.get(), sizes, machine.tiling)
    if knobs.FUSE.get() and knobs.ROUNDING.get() != "exact":
        graph = fusion.fuse_loop_neighbors(graph, sizes, machine.tiling)
    return graph
