"""Interpret a plan in NumPy: run its kernels cluster after cluster.

    results = run(plan, kernels, [x, y], {"n": 1000})

Library calls run by their references. Row chunks run one after another here, with sums over rows
carried along: the reference for native chunking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.fusion.plan import Body, Cluster, LoopBody, Plan
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Node
from smelt.kernel import interp
from smelt.kernel.chunks import FIRST_ROW, WHOLE, ChunkSlice
from smelt.kernel.ir import Kernel
from smelt.ops.combine import SCALAR_IDENTITIES
from smelt.ops.spec import dims_at

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]


def run(
    plan: Plan, kernels: Sequence[Kernel | None], arrays: Sequence[Array], sizes: Sizes
) -> list[Array]:
    """Return the results of a plan.

    `kernels` has one entry per cluster of `plan.all_clusters`, None for a library call.
    """
    return _run(plan, dict(zip(plan.all_clusters, kernels, strict=True)), arrays, sizes)


def _run(
    plan: Plan, kernels: Mapping[Cluster, Kernel | None], arrays: Sequence[Array], sizes: Sizes
) -> list[Array]:
    values: dict[Node, Array] = dict(zip(plan.graph.inputs, arrays, strict=True))
    for cluster in plan.clusters:
        operands = [values[n] for n in cluster.inputs]
        kernel = kernels[cluster]
        if cluster.body is not None:
            results = _run_chunks(cluster, cluster.body, kernels, operands, sizes)
        elif cluster.loop is not None and cluster.loop.plan is not None:
            results = _run_steps(cluster, cluster.loop, cluster.loop.plan, kernels, operands, sizes)
        elif kernel is None:
            results = _run_call(cluster, operands, sizes)
        else:
            outputs = interp.run(kernel, operands, sizes)
            results = [outputs[p.name] for p in kernel.outputs]
        for node, value in zip(cluster.outputs, results, strict=True):
            # a kernel may store its result under another shape with the same elements in order
            values[node] = value.reshape(dims_at(node.type.shape, sizes))
    return [values[n] for n in plan.graph.outputs]


def _run_call(cluster: Cluster, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    values = dict(zip(cluster.inputs, arrays, strict=True))
    for node in cluster.nodes:
        if node not in values:
            operands = [values[x] for x in node.inputs]
            values[node] = np.asarray(evaluate_node(node, operands, sizes))
    return [values[n] for n in cluster.outputs]


def _run_steps(
    cluster: Cluster,
    loop: LoopBody,
    plan: Plan,
    kernels: Mapping[Cluster, Kernel | None],
    operands: list[Array],
    sizes: Sizes,
) -> list[Array]:
    """Run the plan of a loop's step again and again."""
    op, values = loop.op, dict(zip(cluster.inputs, operands, strict=True))
    stacked = sorted({k for k in loop.wanted if op.carries <= k < op.results})

    def step(arrays: list[Array], step_sizes: Sizes) -> list[Array]:
        outputs = _run(plan, kernels, arrays, step_sizes)
        rows = dict(zip((*range(op.carries), *stacked), outputs, strict=True))
        unread = [np.zeros((), x.type.dtype.numpy) for x in op.body.graph.outputs]
        return [rows.get(k, unread[k]) for k in range(op.results)]

    results = op.run(sizes, [values[x] for x in cluster.outputs[0].inputs], step)
    return [results[k] for k in loop.wanted]


def _run_chunks(
    cluster: Cluster,
    body: Body,
    kernels: Mapping[Cluster, Kernel | None],
    operands: list[Array],
    sizes: Sizes,
) -> list[Array]:
    """Run a cluster's body for each row chunk."""
    chunking = body.chunks
    results = [np.empty(dims_at(n.type.shape, sizes), n.type.dtype.numpy) for n in cluster.outputs]
    sums = [c for c in chunking.makes if c.axis == WHOLE]
    for c in sums:
        results[c.place][...] = SCALAR_IDENTITIES[c.combine](cluster.outputs[c.place].type.dtype)
    for low, high in chunking.ranges(sizes):
        arrays = [
            np.asarray(low, np.int64)
            if c.axis == FIRST_ROW
            else operands[c.place][_chunk_slice(c, low, high)]
            for c in chunking.reads
        ]
        arrays += [results[c.place].copy() for c in sums]
        outputs = _run(body.plan, kernels, arrays, {**sizes, chunking.rows: high - low})
        for c, value in zip(chunking.makes, outputs, strict=True):
            results[c.place][_chunk_slice(c, low, high)] = value
    return results


def _chunk_slice(cut: ChunkSlice, low: int, high: int) -> tuple[slice, ...]:
    if cut.axis == WHOLE:
        return ()
    return (*(slice(None),) * cut.axis, slice(low, high))
