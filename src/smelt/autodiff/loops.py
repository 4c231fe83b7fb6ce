"""Differentiate loops: the step's gradient runs in the opposite order, on the saved carries.

The loop of the gradient carries the cotangents of the carries, and sums of the cotangents of
constants: before they are reduced to the shape of a constant that a step broadcasts to that of a
carry, so that a recurrence's gradient is one too. Its sequences are the carries before each step,
which the loop itself stacks, the slices, and the cotangents of stacked results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from smelt.autodiff.builder import Builder
from smelt.autodiff.tape import Step
from smelt.errors import GradientError
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, Loop, loop_key
from smelt.graph.walk import map_indices, map_type, with_inputs
from smelt.ops.create import Constant
from smelt.ops.reduce import Reduce
from smelt.ops.spec import TensorOp
from smelt.ops.view import Reshape
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_
from smelt.types.expr import Expr, Index, substitute
from smelt.types.tensor import Shape, TensorType

Gradient = Callable[[Graph, Sequence[Node]], Graph]
"""Makes the graph of a graph's outputs and vector-Jacobian products."""


def first_results(steps: Sequence[Step]) -> Mapping[Node, tuple[Step, ...]]:
    """Return for the first result of each loop in `steps` all of its results."""
    runs: dict[object, list[Step]] = {}
    for step in steps:
        if isinstance(step.op, Loop):
            runs.setdefault(loop_key(step.node), []).append(step)
    return {run[0].node: tuple(run) for run in runs.values()}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The step's gradient by operand: numbers of carries, slices and constants of floats."""

    carries: tuple[int, ...]
    slices: tuple[int, ...]
    constants: tuple[int, ...]


def loop_cotangents(
    b: Builder,
    gradient: Gradient,
    loop: Loop,
    inputs: tuple[Node, ...],
    cotangents: Mapping[int, Node],
    needed: Sequence[bool],
) -> list[Node | None]:
    """Return the cotangents of a loop's operands from those of its results, by number.

    Raises GradientError for a loop whose number of steps is not known.
    """
    once = _runs_once(loop)
    if not loop.length and not once:
        raise GradientError(
            op="while_loop",
            reason="the number of steps, and so of saved carries, is not known",
            hint="Use sm.scan, or sm.fori_loop with bounds that are numbers.",
        )
    graph = loop.body.graph
    first_constant = loop.carries + loop.slices
    floats = [x.type.dtype.is_float for x in graph.inputs]
    parts = _Parts(
        tuple(k for k in range(loop.carries) if floats[k]),
        tuple(k for k in range(loop.carries, first_constant) if floats[k] and needed[k]),
        tuple(k for k in range(first_constant, len(inputs)) if floats[k] and needed[k]),
    )
    step = _Reverse(loop, gradient, parts, cotangents)
    result: list[Node | None] = [None] * len(inputs)
    if once:
        run, operands = step.once(), [inputs[0], *step.initial(b, inputs), *inputs[1:]]
        places = (*parts.carries, *parts.constants)
        for at, k in enumerate(places):
            result[k] = b.apply(replace(run, which=1 + at), *operands)
        return result
    run = step.loop()
    saved = [b.apply(loop.saved(k), *inputs) for k in range(loop.carries)]
    operands = [
        *step.initial(b, inputs),
        *saved,
        *inputs[loop.carries : first_constant],
        *(cotangents[k] for k in step.stacked),
        *inputs[first_constant:],
    ]
    for at, k in enumerate((*parts.carries, *parts.constants, *parts.slices)):
        result[k] = b.apply(replace(run, which=at), *operands)
    for k, (_, reductions) in step.sums.items():
        for op in reductions:
            total = result[k]
            assert total is not None
            result[k] = b.apply(map_indices(op, step.here), total)
    return result


def _runs_once(loop: Loop) -> bool:
    """Return whether a loop without a length runs its step at most once."""
    op = loop.body.graph.outputs[0].op if loop.carries else None
    return not loop.length and isinstance(op, Constant) and not op.value


class _Reverse:
    """Builder of the gradient's step."""

    def __init__(
        self, loop: Loop, gradient: Gradient, parts: _Parts, cotangents: Mapping[int, Node]
    ) -> None:
        self.forward, self.parts, self.cotangents = loop, parts, cotangents
        graph = loop.body.graph
        wrt = [graph.inputs[k] for k in (*parts.carries, *parts.slices, *parts.constants)]
        self.vjp = gradient(graph, wrt)
        self.stacked = sorted(k for k in cotangents if k >= loop.carries)
        self.carried = [build.input(f"d{k}", graph.inputs[k].type) for k in parts.carries]
        self.sums: dict[int, tuple[TensorType, tuple[TensorOp, ...]]] = {}
        """For each constant, the type of the sum of its cotangents, and the reductions of that."""
        self.inputs = [build.input(f"v{k}", x.type) for k, x in enumerate(graph.inputs)]
        self.stacked_inputs = {
            k: build.input(
                f"g{k}",
                (graph.outputs[k] if k < loop.results else graph.inputs[k - loop.results]).type,
            )
            for k in self.stacked
        }

    def here(self, e: Expr) -> Index:
        """Return a size of the step in terms of those around the loop."""
        return substitute(e, self.forward.binding, "size")

    def _cotangents(self, *, delays_sums: bool) -> tuple[list[Node], list[Node], list[Node]]:
        """Return the next cotangents of carries, the sums of constants, those of slices."""
        graph, parts = self.forward.body.graph, self.parts
        count = len(graph.inputs)
        new = dict(zip(self.vjp.inputs[:count], self.inputs, strict=True))
        carried = dict(zip(parts.carries, self.carried, strict=True))
        float_outputs = [k for k, x in enumerate(graph.outputs) if x.type.dtype.is_float]
        for k, seed in zip(float_outputs, self.vjp.inputs[count:], strict=True):
            cotangent = carried.get(k) if k < self.forward.carries else self.stacked_inputs.get(k)
            new[seed] = _zeros(seed) if cotangent is None else cotangent
        outputs = _rebuilt(self.vjp, new)[len(graph.outputs) :]
        n, m = len(parts.carries), len(parts.slices)
        carries, slices, constants = outputs[:n], outputs[n : n + m], outputs[n + m :]
        for at, k in enumerate(parts.carries):
            saved = self.stacked_inputs.get(self.forward.results + k)
            if saved is not None:
                carries[at] = build.map("add", carries[at], saved)
        shapes = {graph.inputs[k].type.shape for k in parts.carries}
        sums: list[Node] = []
        for k, cotangent in zip(parts.constants, constants, strict=True):
            value, reductions = _before_sums(cotangent, shapes if delays_sums else set())
            self.sums[k] = value.type, reductions
            self.carried.append(build.input(f"d{k}", value.type))
            sums.append(build.map("add", self.carried[-1], value))
        return carries, sums, slices

    def loop(self) -> Loop:
        """Return the loop of the gradient, in the opposite order."""
        carries, sums, slices = self._cotangents(delays_sums=True)
        f = self.forward
        first = f.carries + f.slices
        sequences = [*self.inputs[:first], *self.stacked_inputs.values()]
        graph = Graph(
            f"{f.body.graph.name}_gradient",
            (*self.carried, *sequences, *self.inputs[first:]),
            (*carries, *sums, *slices),
        )
        return Loop(
            len(self.carried),
            len(sequences),
            f.length,
            not f.reverse,
            0,
            f.names,
            f.sizes,
            Body(graph),
        )

    def once(self) -> Loop:
        """Return the gradient of a step that runs at most once, under the same condition."""
        carries, sums, _ = self._cotangents(delays_sums=False)
        go, *others = self.inputs
        stop = build.constant(False, bool_)
        graph = Graph(
            f"{self.forward.body.graph.name}_gradient",
            (go, *self.carried, *others),
            (stop, *carries, *sums),
        )
        f = self.forward
        return Loop(1 + len(self.carried), 0, (), False, 0, f.names, f.sizes, Body(graph))

    def initial(self, b: Builder, inputs: Sequence[Node]) -> list[Node]:
        """Return the cotangents of the last carries, and zeros for the sums of constants."""
        result: list[Node] = []
        for k in (*self.parts.carries, *self.parts.constants):
            cotangent = self.cotangents.get(k) if k < self.forward.carries else None
            kind = b.type(inputs[k])
            if k in self.sums:
                kind = map_type(self.sums[k][0], self.here)
            zero = b.constant(0.0, kind.dtype)
            result.append(b.expand(zero, kind.shape) if cotangent is None else cotangent)
        return result


def _before_sums(x: Node, shapes: set[Shape]) -> tuple[Node, tuple[TensorOp, ...]]:
    """Return what is summed, if it has one of the shapes, and the reductions."""
    value, reductions = x, list[TensorOp]()
    while isinstance(value.op, Reshape) or (isinstance(value.op, Reduce) and value.op.row.wide):
        if isinstance(value.op, Reduce) and value.op.combine != "sum":
            break
        reductions.insert(0, value.op)
        (value,) = value.inputs
        if value.type.shape in shapes:
            return value, tuple(reductions)
    return x, ()


def _zeros(like: Node) -> Node:
    b = Builder()
    return b.expand(b.constant(0.0, like.type.dtype), like.type.shape)


def _rebuilt(graph: Graph, new: dict[Node, Node]) -> list[Node]:
    """Return the outputs of a graph on other inputs."""
    for node in graph.nodes():
        if node not in new:
            new[node] = with_inputs(node, tuple(new[x] for x in node.inputs))
    return [new[x] for x in graph.outputs]
