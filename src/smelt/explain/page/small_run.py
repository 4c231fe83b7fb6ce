"""Run a compiled program at a small size in the interpreter, and record every statement.

    run = small_run(compiled, data, unfused)

The fused kernels and those of the program without fusion compute the same values from the same
arrays. Sizes shrink; the kernels and their statements stay what they are, but blocks shrink too, so
that a stream still has several of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import SmeltError
from smelt.explain.compiled import Compiled
from smelt.explain.data import ReportData
from smelt.explain.page.recorder import Recorder, numbers_of
from smelt.explain.page_data import KernelRun, SmallRun, StepArray
from smelt.explain.unfused import UnfusedCluster
from smelt.fusion.plan import Cluster
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Node
from smelt.kernel import interp
from smelt.kernel.ir import Block, Dot, Kernel, Param, Reduce, Scan, Stream
from smelt.kernel.memory import Trace
from smelt.kernel.text_print import text
from smelt.kernel.walk import blocks, statements, values_of, visit
from smelt.ops.create import Constant, Input
from smelt.ops.spec import dims_at
from smelt.types.expr import evaluate, sizes_of

__all__ = ["small_run"]

MAX_CELLS = 4096
"""Most elements of an array at the small size."""
MAX_STEPS = 240
"""Most recorded steps of all kernels of one side."""
VISITS = 4
"""Blocks that a stream has, if its axis is long enough."""
SEED = 3

Array = np.ndarray[Any, Any]
Values = Mapping[Node, Array]


def small_run(compiled: Compiled, data: ReportData, unfused: Sequence[UnfusedCluster]) -> SmallRun:
    """Run a program at the first small sizes that it allows.

    If there are none, the result has only a note.
    """
    note = "no size of this program can be made smaller"
    for sizes in _candidates(compiled, data.sizes):
        nodes = compiled.plan.graph.nodes()
        largest = max(nodes, key=lambda n: int(np.prod(dims_at(n.type.shape, sizes))))
        if np.prod(dims_at(largest.type.shape, sizes)) > MAX_CELLS:
            note = f"{largest.type} is too large to play: its sizes are fixed in the program"
            continue
        try:
            return _run(compiled, sizes, unfused)
        except SmeltError as error:
            note = f"the program does not run at small sizes: {error}"
    return SmallRun(sizes={}, fused=(), unfused=(), note=note)


def _candidates(compiled: Compiled, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes to try: longer for axes that are reduced, then alike for all, then the real."""
    reduced = _reduced_sizes(compiled)
    last = {
        s for n in compiled.plan.graph.nodes() if n.type.shape for s in sizes_of(n.type.shape[-1])
    }
    yield {
        s: min(n, 8 if s in reduced else 4 if s in last else 3 if len(sizes) < 3 else 2)
        for s, n in sizes.items()
    }
    for length in (8, 4, 16):
        yield {s: min(n, length) for s, n in sizes.items()}
    yield dict(sizes)


def _reduced_sizes(compiled: Compiled) -> set[str]:
    """Return sizes of axes that a kernel reduces or streams."""
    names: set[str] = set()
    for kernel in compiled.kernels:
        if kernel is None:
            continue
        streams = [s for s in statements(kernel) if isinstance(s, Stream)]
        axes = {b.axis for s in streams for b in s.blocks}
        if not axes:
            for s in statements(kernel):
                for v in (inner for value in values_of(s) for inner in visit(value)):
                    if isinstance(v, Reduce | Dot):
                        axes.update(v.over)
                    elif isinstance(v, Scan):
                        axes.add(v.along)
        names.update(s for a in axes for s in sizes_of(kernel.axis(a).extent))
    return names


def _run(
    compiled: Compiled, sizes: Mapping[str, int], unfused: Sequence[UnfusedCluster]
) -> SmallRun:
    graph = compiled.plan.graph
    values = _evaluate(graph.nodes(), sizes)
    number = {node: k for k, node in enumerate(graph.nodes())}
    clusters = compiled.plan.clusters
    checks = compiled.plan.checks
    pairs = zip(clusters, compiled.kernels[: len(clusters)], strict=True)
    fused = [
        (k, cluster, kernel)
        for k, (cluster, kernel) in enumerate(pairs)
        if kernel is not None and k not in checks
    ]
    separate = [
        (None, c.cluster, c.kernel)
        for c in unfused
        if c.kernel is not None and c.home not in checks
    ]
    sides = [
        tuple(
            _run_kernel(k, cluster, kernel, values, number, sizes, MAX_STEPS // len(side))
            for k, cluster, kernel in side
        )
        for side in (fused, separate)
    ]
    calls = sum(k is None for k in compiled.kernels[: len(clusters)])
    note = f"{calls} library calls or chunked parts are left out" if calls else ""
    return SmallRun(sizes=dict(sizes), fused=sides[0], unfused=sides[1], note=note)


def _evaluate(nodes: Sequence[Node], sizes: Mapping[str, int]) -> dict[Node, Array]:
    """Return all values of the graph, from inputs that are alike in every run."""
    random = np.random.default_rng(SEED)
    values: dict[Node, Array] = {}
    for node in nodes:
        if isinstance(node.op, Input):
            values[node] = _input(node, sizes, random)
        else:
            values[node] = evaluate_node(node, [values[x] for x in node.inputs], sizes)
    return values


def _input(node: Node, sizes: Mapping[str, int], random: np.random.Generator) -> Array:
    """Return an array of short numbers: quarters from -2 to 2, or small positions."""
    shape, dtype = dims_at(node.type.shape, sizes), node.type.dtype
    if dtype.is_float:
        return (random.integers(-8, 9, shape) / 4).astype(dtype.numpy)
    return np.asarray(random.integers(0, 2, shape)).astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class _Names:
    """A kernel's arrays by name, with their nodes."""

    arrays: Mapping[str, Array]
    nodes: Mapping[str, int | None]


def _run_kernel(
    k: int | None,
    cluster: Cluster,
    kernel: Kernel,
    values: Values,
    number: Mapping[Node, int],
    sizes: Mapping[str, int],
    steps: int,
) -> KernelRun:
    names = _arrays(cluster, kernel, values, number, sizes)
    nodes = {j: number[n] for j, n in enumerate(cluster.nodes)}
    recorder = Recorder(kernel, max(steps, 12))
    trace = Trace()
    outputs = interp.run(
        kernel,
        names.arrays,
        sizes,
        grid_sizes=_small_blocks(kernel, sizes),
        trace=trace,
        observer=recorder,
    )
    recorder.finish()
    arrays = [_step_array(p, names.arrays[p.name], names, "in") for p in kernel.inputs]
    arrays += [_step_array(p, outputs[p.name], names, "out") for p in kernel.outputs]
    return KernelRun(
        kernel=k,
        name=cluster.name if k is not None else cluster.nodes[-1].op.name,
        text=text(kernel),
        nodes=tuple(n for j, n in nodes.items() if not isinstance(cluster.nodes[j].op, Constant)),
        arrays=tuple(arrays),
        loaded=sum(a.elements for a in trace.loads.values()),
        stored=sum(a.elements for a in trace.stores.values()),
        blocks=tuple(recorder.blocks),
        steps=tuple(
            replace(s, node=None if s.node is None else nodes.get(s.node)) for s in recorder.steps
        ),
        complete=recorder.complete,
    )


def _arrays(
    cluster: Cluster,
    kernel: Kernel,
    values: Values,
    number: Mapping[Node, int],
    sizes: Mapping[str, int],
) -> _Names:
    """Return a kernel's inputs in its parameters' shapes, and the nodes of all parameters."""
    arrays: dict[str, Array] = {}
    nodes: dict[str, int | None] = {}
    for param, node in zip(kernel.inputs, cluster.inputs, strict=True):
        shape = tuple(int(evaluate(d, sizes)) for d in param.shape)
        arrays[param.name] = values[node].reshape(shape)
        nodes[param.name] = number[node]
    for param, node in zip(kernel.outputs, cluster.outputs, strict=True):
        nodes[param.name] = number[node]
    return _Names(arrays, nodes)


def _step_array(param: Param, array: Array, names: _Names, role: Any) -> StepArray:
    return StepArray(
        name=param.name,
        node=names.nodes[param.name],
        shape=tuple(array.shape),
        dtype=param.dtype.name,
        role=role,
        values=numbers_of(array),
    )


def _small_blocks(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return block lengths that cut streams into `VISITS` blocks and other axes into two."""
    grid = {b.axis for b in kernel.grid if isinstance(b, Block)}
    lengths: dict[str, int] = {}
    for b in blocks(kernel):
        n = int(evaluate(kernel.axis(b.axis).extent, sizes))
        lengths[b.axis] = max(1, -(-n // (2 if b.axis in grid else VISITS)))
    return {a: n for a, n in lengths.items() if n > 1}
