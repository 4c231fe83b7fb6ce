"""Fuse elementwise operators into the recurrences that they feed or read.

What is computed for each slice of a sequence, and what is computed from each stacked result alone,
becomes part of the step, so that neither is stored.  Only steps that become one kernel take their
neighbours: the kernels of any other step would do more work in each of many runs.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(c: f32[n], x: f32[t,n]) {
...   v0 = mul(x, 2.0:f32)
...   v1 = loop(c, v0) {carries=1, slices=1, length=(t,), reverse=false, which=1, names=("s",),
...     sizes=(n,), body=graph step(c: f32[s], x: f32[s]) {
...       v0 = add(c, x)
...       return v0, v0
...     }}
...   v2 = neg(v1)
...   return v2
... }''')
>>> [node.op.name for node in fuse_loop_neighbors(graph, {"n": 5000}).nodes()]
['input', 'input', 'loop']
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.loops import is_elementwise, is_recurrence
from smelt.fusion.space import reads
from smelt.fusion.units import trace_of
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, Loop, loop_key
from smelt.graph.walk import reachable, substitute_nodes, users, with_inputs
from smelt.machine.tiling import CPU_TILING, Tiling
from smelt.ops.create import Constant
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, axis, product
from smelt.types.tensor import Shape, TensorType

CHEAP_COST = 2.0
"""Cost of an operator that a step takes however few elements run in parallel."""


def fuse_loop_neighbors(
    graph: Graph, sizes: Mapping[str, int], tiling: Tiling = CPU_TILING
) -> Graph:
    """Return the graph with elementwise neighbours inside the steps of recurrences.

    `sizes` are those of a call; they decide whether a costly operator is worth it.
    """
    hints = Hints(sizes)
    while any(isinstance(x.op, Loop) for x in graph.nodes()):
        changed = _fuse_one(graph, hints, tiling)
        if changed is None:
            break
        graph = changed
    for run in _recurrences(graph):
        graph = substitute_nodes(graph, _with_whole_constants(run))
    return graph


def _with_whole_constants(run: _Run) -> dict[Node, Node]:
    """Return the results of a loop whose constants have the shape of its carries.

    Short rows, which fill no vectors, are then one axis with those around them. A step reads
    constants once, before the loop.
    """
    op, graph = run.op, run.op.body.graph
    shape = next((x.type.shape for x in graph.inputs[: op.carries] if x.type.shape), ())
    around = next((x.type.shape for x in run.inputs[: op.carries] if x.type.shape), ())
    first = op.carries + op.slices
    readers = users(graph)
    new: dict[Node, Node] = {}
    operands = list(run.inputs)
    for k, x in enumerate(graph.inputs[first:], first):
        plain = all(not r.op.is_view for r in readers[x]) and x not in graph.outputs
        if len(shape) > 1 and readers[x] and plain and x.type.shape not in ((), shape):
            new[x] = build.input(x.op.attributes()["label"], TensorType(x.type.dtype, shape))
            operands[k] = build.expand(run.inputs[k], around)
    if not new:
        return {}
    inputs = tuple(new.get(x, x) for x in graph.inputs)
    for node in graph.nodes():
        if node not in new:
            new[node] = with_inputs(node, tuple(new[x] for x in node.inputs))
    body = Body(Graph(graph.name, inputs, tuple(new[x] for x in graph.outputs)), op.body.checks)
    return {
        node: build.apply(replace(node.op, body=body), *operands, origin=node.origin)
        for node in run.results
        if isinstance(node.op, Loop)
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """A loop with the nodes that are its results."""

    op: Loop
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]


def _fuse_one(graph: Graph, hints: Hints, tiling: Tiling) -> Graph | None:
    """Return the graph with one more operator inside a loop, None if there is none."""
    readers = users(graph)
    outputs = set(graph.outputs)
    for run in _recurrences(graph):
        for k in range(run.op.carries, run.op.carries + run.op.slices):
            producer = run.inputs[k]
            inside = all(r in run.results for r in readers[producer])
            fits = producer not in outputs and run.inputs.count(producer) == 1
            if inside and fits and _is_worth_it(producer, run, hints, tiling):
                changed = _Step(run).take_producer(k)
                if changed is not None:
                    return substitute_nodes(graph, changed)
        for node in run.results:
            reading = set(readers[node])
            if node in outputs or len(reading) != 1 or not _is_stacked(node):
                continue
            (reader,) = reading
            if _is_worth_it(reader, run, hints, tiling) and not _reads_others(reader, run):
                changed = _Step(run).take_reader(reader)
                if changed is not None:
                    return substitute_nodes(graph, changed)
    return None


def _recurrences(graph: Graph) -> list[_Run]:
    runs: dict[Hashable, list[Node]] = {}
    for node in graph.nodes():
        if isinstance(node.op, Loop):
            runs.setdefault(loop_key(node), []).append(node)
    result: list[_Run] = []
    for nodes in runs.values():
        op = nodes[0].op
        assert isinstance(op, Loop)
        wanted = [n.op.which for n in nodes if isinstance(n.op, Loop)]
        if op.length and is_recurrence(op.body.graph, op.carries, wanted):
            result.append(_Run(op, nodes[0].inputs, tuple(nodes)))
    return result


def _is_worth_it(node: Node, run: _Run, hints: Hints, tiling: Tiling) -> bool:
    """Return whether a node is an elementwise operator that a step can take."""
    op = node.op
    if op.is_view or op.is_source or not op.fusible or not is_elementwise(node):
        return False
    axes = tuple(axis(f"o{d}", n) for d, n in enumerate(node.type.shape))
    for operand, index in reads(node):  # operands are aligned from the right, as for broadcasting
        last = axes[len(axes) - len(index) :]
        dims = node.inputs[operand].type.shape
        if any(e != (0 if d == 1 else a) for e, d, a in zip(index, dims, last, strict=True)):
            return False
    first = run.results[0]
    shape = first.type.shape[1 if _is_stacked(first) else 0 :]
    is_parallel = at_hints(product(shape), hints) >= tiling.min_parallel_carry
    return is_parallel or trace_of(node).cost <= CHEAP_COST


def _is_stacked(node: Node) -> bool:
    return isinstance(node.op, Loop) and node.op.which >= node.op.carries


def _reads_others(reader: Node, run: _Run) -> bool:
    """Return whether an operand, other than stacked results, depends on the loop."""
    results = set(run.results)
    operands = [x for x in reader.inputs if not (x in results and _is_stacked(x))]
    return any(x in results for x in reachable(operands, lambda node: node.inputs))


class _Step:
    """A step that takes over an operator."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        graph = run.op.body.graph
        first = run.op.carries + run.op.slices
        self.carries = list(graph.inputs[: run.op.carries])
        self.slices = list(graph.inputs[run.op.carries : first])
        self.constants = list(graph.inputs[first:])
        self.operands = list(run.inputs)
        self.labels = {x.op.attributes()["label"] for x in graph.inputs}

    def take_producer(self, k: int) -> dict[Node, Node] | None:
        """Compute a slice in the step; return what replaces the loop's results."""
        op, graph = self.run.op, self.run.op.body.graph
        producer, old = self.run.inputs[k], graph.inputs[k]
        values = self._values(producer, old.type.shape)
        if values is None:
            return None
        new = {old: build.apply(producer.op, *values, origin=producer.origin)}
        if new[old].type != old.type:
            return None
        for node in graph.nodes():
            if node not in new:
                new[node] = with_inputs(node, tuple(new[x] for x in node.inputs))
        at = k - op.carries
        del self.slices[at], self.operands[k]
        return self._rebuilt(tuple(new[x] for x in graph.outputs), 0, {})

    def take_reader(self, reader: Node) -> dict[Node, Node] | None:
        """Compute a reader of stacked results in the step; return what replaces the results."""
        graph, op = self.run.op.body.graph, self.run.op
        stacked = next(x for x in reader.inputs if x in self.run.results and _is_stacked(x))
        assert isinstance(stacked.op, Loop)
        like = self._in_step(stacked)
        if reader.type.shape != stacked.type.shape:
            return None
        values = self._values(reader, like.type.shape)
        if values is None:
            return None
        result = build.apply(reader.op, *values, origin=reader.origin)
        if result.type.shape != like.type.shape:
            return None
        return self._rebuilt((*graph.outputs, result), 1, {reader: op.results})

    def _in_step(self, result: Node) -> Node:
        op, graph = result.op, self.run.op.body.graph
        assert isinstance(op, Loop)
        saved = op.which - op.results
        return graph.inputs[saved] if saved >= 0 else graph.outputs[op.which]

    def _values(self, node: Node, shape: Shape) -> list[Node] | None:
        """Return an operator's operands in the step, adding slices and constants to it.

        `shape` is that of its result in the step. None if an operand has no slices.
        """
        values: list[Node] = []
        for x in node.inputs:
            if x in self.run.results and _is_stacked(x):
                values.append(self._in_step(x))
                continue
            if isinstance(x.op, Constant):
                values.append(x)
                continue
            inner = _inner_shape(x.type.shape, node.type.shape, shape)
            if inner is None:
                return None
            is_slice = x.type.rank == node.type.rank and x.type.shape[0] == self.run.op.length[0]
            if not is_slice and x.type.rank == node.type.rank:
                return None
            values.append(self._input(TensorType(x.type.dtype, inner), is_slice=is_slice))
            last = len(self.carries) + len(self.slices) - 1
            self.operands.insert(last if is_slice else len(self.operands), x)
        return values

    def _input(self, kind: TensorType, *, is_slice: bool) -> Node:
        name, k = "u", len(self.labels)
        while f"{name}{k}" in self.labels:
            k += 1
        self.labels.add(f"{name}{k}")
        new = build.input(f"{name}{k}", kind)
        (self.slices if is_slice else self.constants).append(new)
        return new

    def _rebuilt(
        self, outputs: Sequence[Node], more: int, readers: Mapping[Node, int]
    ) -> dict[Node, Node]:
        """Return the results of the new loop by the nodes that they replace."""
        op = self.run.op
        inputs = (*self.carries, *self.slices, *self.constants)
        graph = Graph(op.body.graph.name, inputs, tuple(outputs))
        body = Body(graph, op.body.checks)
        loop = replace(op, slices=len(self.slices), body=body)
        operands = tuple(self.operands)

        def result(which: int, origin: Node) -> Node:
            return build.apply(replace(loop, which=which), *operands, origin=origin.origin)

        changed: dict[Node, Node] = {}
        for node in self.run.results:
            assert isinstance(node.op, Loop)
            which = node.op.which
            changed[node] = result(which + more if which >= op.results else which, node)
        return changed | {node: result(which, node) for node, which in readers.items()}


def _inner_shape(outer: Shape, around: Shape, inside: Shape) -> Shape | None:
    """Return an operand's shape in a step, aligned from the right with the result's."""
    dims: list[Index] = []
    for d, e, n in zip(reversed(outer), reversed(around[1:]), reversed(inside), strict=False):
        if d not in (1, e):
            return None
        dims.append(n if d == e else 1)
    return tuple(reversed(dims))
