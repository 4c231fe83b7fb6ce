"""Entries of a report: the clusters of a plan, those of chunks and of loops' steps last.

A chunked part is one entry that covers all chunks; the kernels of one chunk are entries too, with
the nodes of the full graph and the sizes of the first chunk. A loop is one entry that covers all
steps, and so are the kernels of one step, unless the loop is one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.backend import Machine
from smelt.backend.machine import Level
from smelt.explain.compiled import Compiled
from smelt.explain.traffic import Touched, Traffic
from smelt.explain.work import Work, work
from smelt.fusion.cost import INLINE_LAUNCH_NS, INLINE_START_NS, Cost
from smelt.fusion.plan import Body, Cluster, LoopBody, Plan
from smelt.fusion.predict import chunked_traffic, predictions
from smelt.graph.ir import Node
from smelt.kernel.ir import Kernel
from smelt.python.dataclass import dataclass
from smelt.types.expr import evaluate

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """A cluster over nodes of the full graph, its kernel and its sizes."""

    number: int
    cluster: Cluster
    kernel: Kernel | None
    sizes: Sizes
    predicted_ns: float
    levels: Mapping[Node, Level]
    """The level of memory where each value of the plan rests before a kernel reads it."""
    within: int | None = None
    rounds: int = 1
    work: Work | None = None
    """For a chunked part, the work of all chunks."""
    chunk: Cluster | None = None
    """For a kernel of a chunk, its cluster in the body, where values are blocks of rows."""

    @property
    def arrays(self) -> Cluster:
        """Return the cluster whose inputs and outputs the kernel reads and writes."""
        return self.cluster if self.chunk is None else self.chunk

    @property
    def resting(self) -> tuple[Level, ...]:
        """Return where each array rests that the kernel reads, and then those that it writes."""
        arrays = (*self.arrays.inputs, *self.arrays.outputs)
        return tuple(self.levels.get(n, "dram") for n in arrays)


def entries(compiled: Compiled, sizes: Sizes) -> list[Entry]:
    """Return one entry per cluster of `plan.every`, in order."""
    plan, kernels = compiled.plan, compiled.kernels
    costs, levels = predict(plan, compiled.target, sizes)
    result = [
        Entry(k, c, kernels[k], sizes, cost.total, levels)
        for k, (c, cost) in enumerate(zip(plan.clusters, costs, strict=True))
    ]
    for number, cluster in enumerate(plan.clusters):
        if cluster.loop is not None and cluster.loop.plan is not None:
            _add_steps(result, number, cluster.loop, compiled)
        if cluster.body is None:
            continue
        body, first = cluster.body, len(result)
        chunk_kernels = kernels[first : first + len(body.plan.clusters)]
        chunk_counts = body.chunks.lengths(sizes)
        rows = max(chunk_counts, default=0)
        chunk_sizes = {**sizes, body.chunks.rows: rows}
        costs, levels = predict(body.plan, compiled.target, chunk_sizes)
        for k, c in enumerate(body.plan.clusters):
            result.append(
                Entry(
                    first + k,
                    _in_full_graph(c, body),
                    chunk_kernels[k],
                    chunk_sizes,
                    costs[k].total,
                    levels,
                    number,
                    chunk_counts.total(),
                    chunk=c,
                )
            )
        result[number] = replace(
            result[number],
            rounds=chunk_counts.total(),
            work=sum(
                (chunked_work(k, body, sizes) for k in chunk_kernels if k is not None), Work()
            ),
        )
    return result


def _add_steps(result: list[Entry], number: int, loop: LoopBody, compiled: Compiled) -> None:
    """Add the entries of a loop's step, then those of the loops in it."""
    assert loop.plan is not None
    parent, first = result[number], len(result)
    steps = int(evaluate(loop.op.length[0], parent.sizes)) if loop.op.length else 1
    sizes = loop.op.step_sizes(parent.sizes)
    costs, levels = predict(loop.plan, compiled.target, sizes)
    for k, (c, cost) in enumerate(zip(loop.plan.clusters, costs, strict=True)):
        kernel = compiled.kernels[first + k]
        listed = replace(c, nodes=(), recomputed=(), shapes=(), stream=None)
        step = Entry(first + k, listed, kernel, sizes, cost.total, levels, number, steps, chunk=c)
        result.append(step)
    result[number] = replace(
        parent, rounds=steps, predicted_ns=steps * sum(cost.total for cost in costs)
    )
    for k, c in enumerate(loop.plan.clusters):
        if c.loop is not None and c.loop.plan is not None:
            _add_steps(result, first + k, c.loop, compiled)


def chunked_work(kernel: Kernel, body: Body, sizes: Sizes) -> Work:
    """Return the work of a kernel in all chunks of a body."""
    total = Work()
    for rows, count in body.chunks.lengths(sizes).items():
        chunk_work = work(kernel, {**sizes, body.chunks.rows: rows})
        total += Work(chunk_work.flops * count, chunk_work.transcendentals * count)
    return total


def entry_traffic(cluster: Cluster, sizes: Sizes, target: Machine) -> Traffic:
    """Return the traffic of a library call or of a chunked part.

    A call moves its operands and results in full.
    """

    def touched(nodes: tuple[Node, ...], nbytes: tuple[int, ...] | None) -> dict[str, Touched]:
        full_bytes = [int(evaluate(n.type.nbytes, sizes)) for n in nodes]
        return {
            str(k): Touched(int(evaluate(n.type.elements, sizes)), touched_bytes)
            for k, (n, touched_bytes) in enumerate(zip(nodes, nbytes or full_bytes, strict=True))
        }

    read, written = (
        (None, None)
        if cluster.body is None
        else chunked_traffic(cluster, sizes, target.cache_bytes)
    )
    return Traffic(touched(cluster.inputs, read), touched(cluster.outputs, written))


def _in_full_graph(cluster: Cluster, body: Body) -> Cluster:
    """Return a chunk's cluster with the corresponding nodes of the full graph.

    Nodes without a counterpart (the number of the first row, and what is computed from it) are
    dropped from what it computes; as inputs and outputs they stay what they are.
    """

    def nodes(chunk_nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(body.of[n] for n in chunk_nodes if n in body.of))

    inputs, outputs = (
        tuple(body.of.get(n, n) for n in side) for side in (cluster.inputs, cluster.outputs)
    )
    return replace(
        cluster,
        nodes=nodes(cluster.nodes),
        inputs=inputs,
        outputs=outputs,
        recomputed=nodes(cluster.recomputed),
        shapes=(),
        stream=None,
    )


def predict(
    plan: Plan, target: Machine, sizes: Mapping[str, int]
) -> tuple[list[Cost], Mapping[Node, Level]]:
    """Return the predicted cost of every cluster, and where the plan's values rest.

    The cost of a chunked cluster includes all chunks.
    """
    costs, levels = predictions(plan, target, sizes)
    return [_repeated(c) for c in costs], levels


def _repeated(cost: Cost) -> Cost:
    """Return the cost with the launch time of repeated calls instead of the planner's charge."""
    starts, rest = divmod(cost.launch, INLINE_LAUNCH_NS)
    if rest or starts not in (1, 2):
        return cost  # it is launched on other threads, or is a library call
    launch = starts * INLINE_START_NS
    return replace(cost, total=cost.total - cost.launch + launch, launch=launch)
