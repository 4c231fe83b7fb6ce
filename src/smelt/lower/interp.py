"""A plan run by the kernels' interpreter: what its kernels say, cluster after cluster, in NumPy.

    results = run(plan, kernels, [x, y], {"n": 1000})

Library calls run by their references.  What runs in rounds does so here, block after block, with
sums over rows carried along: the oracle of the native rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.blocks import FIRST_ROW, WHOLE, Cut
from smelt.fusion.plan import Body, Cluster, Plan
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Node
from smelt.kernel import interp
from smelt.kernel.ir import Kernel
from smelt.ops.combine import BEGINS
from smelt.ops.spec import dims_at

__all__ = ["run"]

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]


def run(
    plan: Plan, kernels: Sequence[Kernel | None], arrays: Sequence[Array], sizes: Sizes
) -> list[Array]:
    """The results of a plan; `kernels` are one for each of `plan.every`, None for no kernel."""
    return _run(plan, dict(zip(plan.every, kernels, strict=True)), arrays, sizes)


def _run(
    plan: Plan, kernels: Mapping[Cluster, Kernel | None], arrays: Sequence[Array], sizes: Sizes
) -> list[Array]:
    known: dict[Node, Array] = dict(zip(plan.graph.inputs, arrays, strict=True))
    for cluster in plan.clusters:
        given = [known[n] for n in cluster.inputs]
        kernel = kernels[cluster]
        if cluster.body is not None:
            found = _rounds(cluster, cluster.body, kernels, given, sizes)
        elif kernel is None:
            found = _called(cluster, given, sizes)
        else:
            made = interp.run(kernel, given, sizes)
            found = [made[p.name] for p in kernel.outputs]
        for node, value in zip(cluster.outputs, found, strict=True):
            # a kernel may walk its result under another shape with the same elements in order
            known[node] = value.reshape(dims_at(node.type.shape, sizes))
    return [known[n] for n in plan.graph.outputs]


def _called(cluster: Cluster, given: Sequence[Array], sizes: Sizes) -> list[Array]:
    """A library call."""
    local = dict(zip(cluster.inputs, given, strict=True))
    for node in cluster.nodes:
        if node not in local:
            operands = [local[x] for x in node.inputs]
            local[node] = np.asarray(evaluate_node(node, operands, sizes))
    return [local[n] for n in cluster.outputs]


def _rounds(
    cluster: Cluster,
    body: Body,
    kernels: Mapping[Cluster, Kernel | None],
    given: list[Array],
    sizes: Sizes,
) -> list[Array]:
    """Block after block."""
    rounds = body.rounds
    found = [np.empty(dims_at(n.type.shape, sizes), n.type.dtype.numpy) for n in cluster.outputs]
    sums = [c for c in rounds.makes if c.axis == WHOLE]
    for c in sums:
        found[c.place][...] = BEGINS[c.combine](cluster.outputs[c.place].type.dtype)
    for low, high in rounds.each(sizes):
        arrays = [
            np.asarray(low, np.int64) if c.axis == FIRST_ROW else given[c.place][_at(c, low, high)]
            for c in rounds.reads
        ]
        arrays += [found[c.place].copy() for c in sums]
        made = _run(body.plan, kernels, arrays, {**sizes, rounds.rows: high - low})
        for c, value in zip(rounds.makes, made, strict=True):
            found[c.place][_at(c, low, high)] = value
    return found


def _at(cut: Cut, low: int, high: int) -> tuple[slice, ...]:
    if cut.axis == WHOLE:
        return ()
    return (*(slice(None),) * cut.axis, slice(low, high))
