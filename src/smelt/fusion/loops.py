"""Plan loops: one cluster for all results of a run, and how its step runs.

A step that computes each element from the same element of the values it carries is a *recurrence*:
the loop becomes one kernel, parallel over the elements, with the carried values in registers. The
step of any other loop is planned as a graph of its own and runs again and again, unless the machine
predicts that one kernel is faster, whose tasks have whole axes of the carries in registers.

>>> from smelt.graph.text import parse
>>> step = parse('''graph step(c: f32[n], x: f32[n], a: f32[]) {
...   v0 = mul(c, a)
...   v1 = add(v0, x)
...   v2 = flip(c) {axes=(0,)}
...   return v1, v2
... }''')
>>> is_recurrence(step, 1, (1,)), is_recurrence(step, 1, (0,))
(False, True)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from smelt.backend.machine import Machine
from smelt.errors import DeviceKernelError
from smelt.fusion.device_cost import PricedGpu
from smelt.fusion.plan import Cluster, Group, LoopBody, Plan
from smelt.fusion.predict import costs
from smelt.fusion.trace import reads
from smelt.fusion.units import Units, trace_of
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop, loop_key
from smelt.ops.create import Constant, Input
from smelt.types.expr import Index, axis, evaluate, substitute

MAX_OPERATORS = 400
"""Maximum operators of a step that becomes one kernel: registers would not hold its values."""


def group_results(
    units: Units, groups: Sequence[Group], moved: Sequence[int]
) -> tuple[list[Group], list[int]]:
    """Join the results of each loop into one group; return groups and bytes moved."""
    first: dict[Hashable, int] = {}
    joined: list[Group] = []
    nbytes: list[int] = []
    for group, count in zip(groups, moved, strict=True):
        node = units.values[group.members.bit_length() - 1]
        key = loop_key(node)
        at = len(joined) if key is None else first.setdefault(key, len(joined))
        if at == len(joined):
            joined.append(group)
            nbytes.append(count)
        else:
            before = joined[at]
            joined[at] = replace(
                before,
                members=before.members | group.members,
                stored=before.stored | group.stored,
            )
            nbytes[at] += count
    return joined, nbytes


def plan_loops(
    clusters: Sequence[Cluster],
    sizes: Mapping[str, int],
    target: Machine,
    plan_step: Callable[[Graph, Mapping[str, int]], Plan],
) -> tuple[Cluster, ...]:
    """Return the clusters, those of loops with the plan of their step.

    `plan_step` plans a graph for sizes.
    """
    return tuple(_with_step(c, sizes, target, plan_step) if c.is_extern else c for c in clusters)


def _with_step(
    cluster: Cluster,
    sizes: Mapping[str, int],
    target: Machine,
    plan_step: Callable[[Graph, Mapping[str, int]], Plan],
) -> Cluster:
    loop = cluster.outputs[0].op
    if not isinstance(loop, Loop):
        return cluster
    wanted = tuple(n.op.which for n in cluster.outputs if isinstance(n.op, Loop))
    whole = replace(cluster, loop=LoopBody(loop, wanted))
    if loop.length and is_recurrence(loop.body.graph, loop.carries, wanted):
        return whole
    here = loop.step_sizes(sizes)
    graph = step_graph(loop, wanted)
    plan = plan_step(graph, here)
    if isinstance(target, PricedGpu) and loop.length and is_one_program(graph):
        steps = int(evaluate(loop.length[0], sizes))
        try:
            one_ns = target.kernel_time(whole, sizes, ()).total
        except DeviceKernelError:
            one_ns = inf
        if one_ns < steps * sum(c.total for c in costs(plan, target, here)):
            return whole
    return replace(cluster, loop=LoopBody(loop, wanted, _with_names(plan, cluster.name)))


def rename_loop(cluster: Cluster, name: str) -> LoopBody | None:
    """Return the loop of a cluster that gets another name, which its step's clusters follow."""
    loop = cluster.loop
    if loop is None or loop.plan is None:
        return loop
    return replace(loop, plan=_with_names(loop.plan, name, f"{cluster.name}_"))


def is_one_program(step: Graph) -> bool:
    """Return whether a program may compute all steps: it finds each operand without data."""
    nodes = [x for x in step.nodes() if not isinstance(x.op, (Input, Constant))]
    return len(nodes) <= MAX_OPERATORS and all(
        x.op.fusible and not (traced := trace_of(x)).scatter_dims and not traced.data_positions
        for x in nodes
    )


def _with_names(plan: Plan, prefix: str, old: str = "") -> Plan:
    """Return a plan with names that no cluster around it has: a prefix replaces an old one."""
    clusters: list[Cluster] = []
    for c in plan.clusters:
        if c.loop is not None and c.loop.plan is not None:
            c = replace(c, loop=replace(c.loop, plan=_with_names(c.loop.plan, prefix, old)))
        elif c.body is not None:
            c = replace(c, body=replace(c.body, plan=_with_names(c.body.plan, prefix, old)))
        clusters.append(replace(c, name=f"{prefix}_{c.name.removeprefix(old)}"))
    return replace(plan, clusters=tuple(clusters))


def step_graph(loop: Loop, wanted: Iterable[int]) -> Graph:
    """Return the graph of a step with the results that somebody needs: carries come first."""
    graph = loop.body.graph
    stacked = sorted({k for k in wanted if loop.carries <= k < loop.results})
    outputs = (*graph.outputs[: loop.carries], *(graph.outputs[k] for k in stacked))
    return Graph(graph.name, graph.inputs, outputs)


def is_recurrence(graph: Graph, carries: int, wanted: Sequence[int]) -> bool:
    """Return whether a step computes elements independently of each other.

    `wanted` are the results of the loop that are stored: they have one shape, that of the carries
    without those of one element, and an element of them or of a next carry depends on the same
    element of the carries.
    """
    nodes = [x for x in graph.nodes() if not isinstance(x.op, (Input, Constant))]
    if len(nodes) > MAX_OPERATORS or not all(map(is_elementwise, nodes)):
        return False
    results = len(graph.outputs)
    stored = [graph.inputs[k - results] if k >= results else graph.outputs[k] for k in wanted]
    shapes = {x.type.shape for x in (*graph.inputs[:carries], *graph.outputs[:carries])}
    space = {x.type.shape for x in stored} | {s for s in shapes if any(d != 1 for d in s)}
    if len(space) > 1:
        return False
    needed = (*graph.outputs[:carries], *stored)
    return all(_keeps_place(x, dict.fromkeys(graph.inputs[:carries])) for x in needed)


def is_elementwise(node: Node) -> bool:
    """Return whether an operator computes elements without reducing or looking up."""
    return node.op.fusible and trace_of(node).is_elementwise


def _keeps_place(output: Node, carries: Mapping[Node, None]) -> bool:
    """Return whether an element of `output` depends on the same element of the carries alone."""
    here: tuple[Index, ...] = tuple(
        axis(f"o{d}", n) if n != 1 else 0 for d, n in enumerate(output.type.shape)
    )
    stack: list[tuple[Node, tuple[Index, ...]]] = [(output, here)]
    seen = set(stack)
    while stack:
        node, at = stack.pop()
        if node in carries:
            single = all(d == 1 for d in node.type.shape)
            if not single and (at != here or node.type.shape != output.type.shape):
                return False
        if isinstance(node.op, Input):
            continue
        axes = {f"o{d}": e for d, e in enumerate(at)}
        for operand, index in reads(node):
            read = node.inputs[operand], tuple(substitute(e, axes) for e in index)
            if read not in seen:
                seen.add(read)
                stack.append(read)
    return True
