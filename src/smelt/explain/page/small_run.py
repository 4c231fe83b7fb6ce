"""Run a compiled program at a small size in the interpreter, and record every statement.

    run = small_run(compiled, data, unfused)

The fused kernels and those of the program without fusion compute the same values from the same
arrays. Sizes shrink; the kernels and their statements stay what they are, but blocks shrink too, so
that a stream still has several of them. A program whose sizes are fixed is generalised first: the
same clusters are lowered again over sizes that can shrink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from smelt import knobs, lower
from smelt.errors import SmeltError
from smelt.explain.compiled import Compiled
from smelt.explain.data import ReportData
from smelt.explain.page.differences import (
    difference_of,
    final_values,
    reduced_nodes,
    unfused_tile,
)
from smelt.explain.page.recorder import Recorder, numbers_of
from smelt.explain.page_data import GridBlock, KernelRun, SmallRun, Step, StepArray
from smelt.explain.unfused import UnfusedCluster
from smelt.explain.units import show_count
from smelt.fusion.plan import Cluster
from smelt.graph.generalize_shapes import Generalized, generalize
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Node
from smelt.kernel import interp
from smelt.kernel.evaluate import Tile
from smelt.kernel.ir import Block, Kernel, Param, Stream
from smelt.kernel.memory import Trace
from smelt.kernel.text_print import text
from smelt.kernel.walk import blocks, joined_axes, statements, visit_body
from smelt.machine.tiling import Tiling
from smelt.ops.create import Constant, Input
from smelt.ops.spec import dims_at
from smelt.python.dataclass import dataclass
from smelt.types.expr import evaluate, size, sizes_of

MAX_CELLS = 4096
"""Maximum elements of an array at the small size."""
MAX_KERNELS = 12
"""Maximum fused kernels that are run: the first of a program with more."""
COMFORTABLE_CELLS = 512
"""Maximum elements of an array for which no smaller size is looked for."""
MAX_GRID_BLOCKS = 20_000
"""Maximum blocks of all grids of a run: the interpreter takes about half a millisecond for each."""
MAX_STEPS = 240
"""Maximum recorded steps of all kernels of one side."""
VISITS = 4
"""Blocks that a stream has, if its axis is long enough."""
SEED = 3

Array = np.ndarray[Any, Any]
Values = Mapping[Node, Array]


@dataclass(frozen=True, slots=True)
class _Program:
    """Clusters with their kernels, of the plan and of the plan without fusion.

    `nodes` and their `names` are in the report's order, `sizes` those of the report, `original`
    what sizes with new names stand for. `note` says which parts are left out.
    """

    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    sizes: Mapping[str, int]
    fused: tuple[tuple[int, Cluster, Kernel], ...]
    unfused: tuple[tuple[Cluster, Kernel], ...]
    original: Mapping[str, int]
    note: str


def small_run(
    compiled: Compiled,
    data: ReportData,
    unfused: Sequence[UnfusedCluster],
    arrays: Mapping[str, Array] | None = None,
) -> SmallRun:
    """Run a program at the first small sizes that it allows.

    If there are none, the result has only a note.

    `arrays` are inputs to run with, by name; they decide the sizes of their dimensions.
    """
    seen: list[_Program] = []
    for program in _programs(compiled, data, unfused):
        seen.append(program)
        run = _small_run(program, arrays or {}, COMFORTABLE_CELLS)
        if isinstance(run, SmallRun):
            return run
    note = ""
    for program in seen:
        run = _small_run(program, arrays or {}, MAX_CELLS)
        if isinstance(run, SmallRun):
            return run
        note = run
    return SmallRun(sizes={}, original={}, fused=(), unfused=(), note=note)


def _small_run(program: _Program, arrays: Mapping[str, Array], most_cells: int) -> SmallRun | str:
    """Return a run in which no value has more elements, or why there is none."""
    if not program.fused:
        return program.note or "The program has no kernel: nothing is computed."
    note = "No size of this program can be made smaller."
    empty = {n for n in program.nodes if not prod(dims_at(n.type.shape, program.sizes))}
    for sizes in _candidates(program, arrays):
        counts = [prod(dims_at(n.type.shape, sizes)) for n in program.nodes]
        cells, large = max((n, k) for k, n in enumerate(counts))
        if any(n <= 0 for n, node in zip(counts, program.nodes, strict=True) if node not in empty):
            continue  # a window that is larger than the image, say
        if cells > most_cells:
            dims = ",".join(map(str, dims_at(program.nodes[large].type.shape, sizes)))
            note = (
                f"{program.names[large]} cannot be made smaller than "
                f"{program.nodes[large].type.dtype.name}[{dims}], because a constant shape or a "
                f"window fixes its sizes; a page shows at most {most_cells:,} elements of a value."
            )
            continue
        run = [kernel for _, _, kernel in program.fused] + [k for _, k in program.unfused]
        grid_blocks = sum(_grid_blocks(kernel, sizes) for kernel in run)
        if grid_blocks > MAX_GRID_BLOCKS:
            note = (
                f"At its small sizes the program has {grid_blocks:,} blocks; a page plays at most "
                f"{MAX_GRID_BLOCKS:,}."
            )
            continue
        try:
            return _run(program, sizes, arrays)
        except SmeltError as error:
            note = f"The program does not run at small sizes: {error}."
    return note


def _programs(
    compiled: Compiled, data: ReportData, unfused: Sequence[UnfusedCluster]
) -> Iterator[_Program]:
    """Yield the program as it was compiled, then with sizes for its fixed numbers."""
    plan = compiled.plan
    kernels = compiled.kernels[: len(plan.clusters)]
    computing = [
        (k, cluster, kernel)
        for k, (cluster, kernel) in enumerate(zip(plan.clusters, kernels, strict=True))
        if kernel is not None and k not in plan.checks
    ]
    shown = {k for k, _, _ in computing[:MAX_KERNELS]}
    missing = sum(kernel is None for kernel in kernels)
    notes: list[str] = []
    if len(shown) < len(computing):
        notes.append(f"The first {len(shown)} of {len(computing)} kernels are shown.")
    if missing:
        parts = show_count(missing, "library call or chunked part")
        notes.append(f"{parts} not shown: there is no kernel text.")
    program = _Program(
        nodes=plan.graph.nodes(),
        names=tuple(n.label for n in data.nodes),
        sizes=data.sizes,
        fused=tuple(computing[:MAX_KERNELS]),
        unfused=tuple(
            (c.cluster, c.kernel) for c in unfused if c.kernel is not None and c.home in shown
        ),
        original={},
        note=" ".join(notes),
    )
    yield program
    clusters = [*(c for _, c, _ in program.fused), *(c for c, _ in program.unfused)]
    general = next(generalize(plan.graph, hints=data.sizes, any_size=True), None)
    if general is None or any(c.loop is not None for c in clusters):  # steps have a fixed count
        return
    try:
        generalized = _generalized(program, general, compiled.target.tiling)
    except SmeltError:  # an operator that is lowered at fixed sizes only
        return
    yield generalized


def _generalized(program: _Program, general: Generalized, tiling: Tiling) -> _Program:
    """Return the program over the sizes of a general graph, with kernels lowered again."""
    sizes = {name: int(evaluate(e, program.sizes)) for name, e in general.sizes.items()}
    fused = [(k, _general_cluster(c, general)) for k, c, _ in program.fused]
    unfused = [_general_cluster(c, general) for c, _ in program.unfused]
    return replace(
        program,
        nodes=tuple(general.nodes[n] for n in program.nodes),
        sizes=sizes,
        fused=tuple((k, c, lower.run(c, knobs.ROUNDING.get(), sizes, tiling)) for k, c in fused),
        unfused=tuple((c, lower.run(c, "eager", sizes, tiling)) for c in unfused),
        original=sizes,
    )


def _general_cluster(cluster: Cluster, general: Generalized) -> Cluster:
    new = general.nodes
    shapes = {n.type.shape: new[n].type.shape for n in (*cluster.nodes, *cluster.inputs)}
    iterated = [shapes.get(shape) for shape in cluster.shapes]
    nodes, inputs, outputs, recomputed = (
        tuple(new[n] for n in side)
        for side in (cluster.nodes, cluster.inputs, cluster.outputs, cluster.recomputed)
    )
    stream = None if cluster.stream is None else (new[cluster.stream[0]], cluster.stream[1])
    return Cluster(
        cluster.name,
        nodes,
        inputs,
        outputs,
        recomputed,
        tuple(s for s in iterated if s is not None) if None not in iterated else (),
        stream,
    )


def _candidates(program: _Program, arrays: Mapping[str, Array]) -> Iterator[dict[str, int]]:
    """Yield sizes to try: longer for axes that are reduced, then alike for all, then the real."""
    reduced = _reduced_sizes(program)
    last = {s for n in program.nodes if n.type.shape for s in sizes_of(n.type.shape[-1])}
    sizes = program.sizes
    array_sizes = _sizes_of_arrays(program, arrays)
    long = 8 if len(sizes) < 6 else 4 if len(sizes) < 9 else 3
    yield {
        s: min(
            n, long if s in reduced else 4 if s in last else 3 if len(sizes) < 3 or n == 3 else 2
        )
        for s, n in sizes.items()
    } | array_sizes
    for length in (8, 4, 3, 16):
        yield {s: min(n, length) for s, n in sizes.items()} | array_sizes
    yield dict(sizes)


def _sizes_of_arrays(program: _Program, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return the sizes that dimensions of arrays have, where a dimension is one size."""
    sizes: dict[str, int] = {}
    for node, name in zip(program.nodes, program.names, strict=True):
        if isinstance(node.op, Input) and name in arrays:
            for d, n in zip(node.type.shape, arrays[name].shape, strict=False):
                sizes |= {s: n for s in sizes_of(d) if d == size(s)}
    return sizes


def _reduced_sizes(program: _Program) -> set[str]:
    """Return sizes of axes that a kernel reduces or streams."""
    names: set[str] = set()
    for _, _, kernel in program.fused:
        streams = [s for s in statements(kernel) if isinstance(s, Stream)]
        axes = {b.axis for s in streams for b in s.blocks}
        if not axes:
            axes = {a for v in visit_body(kernel) for a in joined_axes(v)}
        names.update(s for a in axes for s in sizes_of(kernel.axis(a).extent))
    return names


def _run(program: _Program, sizes: Mapping[str, int], arrays: Mapping[str, Array]) -> SmallRun:
    values = _evaluate(program, sizes, arrays)
    number = {node: k for k, node in enumerate(program.nodes)}
    unfused = _Side(dict(values), number, sizes, MAX_STEPS // max(len(program.unfused), 1))
    separate = [unfused.run(None, c, kernel, {}) for c, kernel in program.unfused]
    fused = _Side(dict(values), number, sizes, MAX_STEPS // max(len(program.fused), 1))
    together = [fused.run(k, c, kernel, unfused.results) for k, c, kernel in program.fused]
    return SmallRun(
        sizes=dict(sizes),
        original=dict(program.original),
        fused=tuple(together),
        unfused=tuple(separate),
        note=program.note,
    )


def _evaluate(
    program: _Program, sizes: Mapping[str, int], arrays: Mapping[str, Array]
) -> dict[Node, Array]:
    """Return all values of the graph, from inputs that are alike in every run."""
    random = np.random.default_rng(SEED)
    values: dict[Node, Array] = {}
    for node, name in zip(program.nodes, program.names, strict=True):
        if isinstance(node.op, Input):
            shape = dims_at(node.type.shape, sizes)
            array = arrays.get(name)
            if array is None or array.shape != shape:
                array = _input(node, sizes, random)
            values[node] = np.asarray(array, node.type.dtype.numpy)
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


class _Side:
    """Runs the kernels of a program, with or without fusion, one after another.

    `values` are those of the graph, replaced by what kernels store; `results` are these alone.
    """

    def __init__(
        self,
        values: dict[Node, Array],
        number: Mapping[Node, int],
        sizes: Mapping[str, int],
        steps: int,
    ) -> None:
        self.values, self.number, self.sizes = values, number, sizes
        self.steps = max(steps, 12)
        self.results: dict[Node, Array] = {}

    def run(self, k: int | None, cluster: Cluster, kernel: Kernel, expected: Values) -> KernelRun:
        """Run and record a kernel; compare its steps with the `expected` values of nodes."""
        names = _arrays(cluster, kernel, self.values, self.number, self.sizes)
        recorder = Recorder(kernel, self.steps)
        trace = Trace()
        outputs = interp.run(
            kernel,
            names.arrays,
            self.sizes,
            grid_sizes=_small_blocks(kernel, self.sizes),
            trace=trace,
            observer=recorder,
        )
        recorder.finish()
        for param, node in zip(kernel.outputs, cluster.outputs, strict=True):
            shape = dims_at(node.type.shape, self.sizes)
            self.values[node] = self.results[node] = outputs[param.name].reshape(shape)
        arrays = [_step_array(p, names.arrays[p.name], names, "in") for p in kernel.inputs]
        arrays += [_step_array(p, outputs[p.name], names, "out") for p in kernel.outputs]
        steps = recorder.steps
        if k is not None:
            pairs = zip(recorder.steps, recorder.tiles, strict=True)
            stored = dict(zip((p.name for p in kernel.outputs), cluster.outputs, strict=True))
            compare = _Comparison(
                kernel,
                cluster,
                stored,
                outputs,
                expected,
                reduced_nodes(kernel, cluster),
                final_values(kernel),
                recorder.blocks,
            )
            steps = [compare.step(s, tile) for s, tile in pairs]
        return KernelRun(
            kernel=k,
            name=cluster.name if k is not None else cluster.nodes[-1].op.name,
            text=text(kernel),
            nodes=tuple(self.number[n] for n in cluster.nodes if not isinstance(n.op, Constant)),
            arrays=tuple(arrays),
            loaded=sum(a.elements for a in trace.loads.values()),
            stored=sum(a.elements for a in trace.stores.values()),
            blocks=tuple(recorder.blocks),
            block_count=recorder.block_count,
            steps=tuple(
                replace(s, node=None if s.node is None else self.number[cluster.nodes[s.node]])
                for s in steps
            ),
            complete=recorder.complete,
        )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares steps of a fused kernel with results of the program without fusion."""

    kernel: Kernel
    cluster: Cluster
    stored: Mapping[str, Node]
    outputs: Mapping[str, Array]
    expected: Values
    reduced: Mapping[str, Node]
    """The reduction that a carried value accumulates."""
    named: frozenset[str]
    """The last value of each operator: those before it are its operands."""
    blocks: Sequence[GridBlock]

    def step(self, step: Step, tile: Tile | None) -> Step:
        """Return the step with its difference, if the program without fusion has the value."""
        if step.kind == "store":
            cells = [c for accessed in step.stores for c in accessed.cells]
            expected = self.expected.get(self.stored[step.name])
            if expected is None or any(a.array != step.name for a in step.stores):
                return step
            fused = self.outputs[step.name].reshape(-1)[cells]
            difference = difference_of(fused, expected.reshape(-1)[cells])
            return replace(step, compared=True, difference=difference)
        node = None
        if step.kind == "state" and step.visit:
            node = self.reduced.get(step.name)
        elif step.kind == "value" and step.node is not None and step.name in self.named:
            node = self.cluster.nodes[step.node]
        if node is None or tile is None or node not in self.expected:
            return step
        if step.block >= len(self.blocks):
            return step
        ranges = self.blocks[step.block].ranges
        part = unfused_tile(tile, self.kernel, node, self.expected[node], ranges)
        if part is None:
            return step
        difference = difference_of(tile.data, part)
        if difference is not None and difference.kind == "interim" and step.kind == "value":
            return step  # the statement computes something else for this operator
        return replace(step, compared=True, difference=difference)


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


def _grid_blocks(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Return the number of blocks of a kernel's grid, parts of split axes not counted."""
    lengths = _small_blocks(kernel, sizes)
    extents = [
        (int(evaluate(kernel.axis(b.axis).extent, sizes)), lengths.get(b.axis, b.size))
        for b in kernel.grid
        if isinstance(b, Block)
    ]
    return prod(-(-n // (length or max(n, 1))) for n, length in extents)


def _small_blocks(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return block lengths that cut streams into `VISITS` blocks and other axes into two."""
    grid = {b.axis for b in kernel.grid if isinstance(b, Block)}
    lengths: dict[str, int] = {}
    for b in blocks(kernel):
        n = int(evaluate(kernel.axis(b.axis).extent, sizes))
        lengths[b.axis] = max(1, -(-n // (2 if b.axis in grid else VISITS)))
    return {a: n for a, n in lengths.items() if n > 1}
