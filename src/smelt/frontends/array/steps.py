"""Record the step of a loop: a graph of its carries, slices and captured values.

The step is recorded inside whatever is recorded around it: it shares its sizes and guards, and
reads its values, which become constant operands of the loop.  Outside of `jit` the sizes of the
step are its own, so that one graph serves all of them.

>>> from smelt.frontends.array.value import leaf
>>> x = leaf(np.ones((2, 3), np.float32))
>>> step = record_step("step", lambda leaves: [(leaves[0] * 2.0).node], [x])
>>> step.graph.outputs[0].type, step.sizes
(TensorType(dtype=f32, shape=(s0, s1)), (2, 3))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.errors import LeakError
from smelt.frontends.array.array import Array
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.number import Number
from smelt.frontends.array.promote import default_value
from smelt.frontends.array.scope import Scope
from smelt.frontends.array.sizes import Sizes, rebuild_node
from smelt.frontends.array.value import STATE, Value, follow, intern
from smelt.graph import build
from smelt.graph.bounds_checks import collect_bounds_checks, refuse_out_of_bounds
from smelt.graph.generalize_shapes import generalize
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, with_sizes
from smelt.graph.walk import all_size_names
from smelt.knobs.steer import RECORDING
from smelt.ops.create import Constant, Input
from smelt.ops.elementwise import Cast
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, size
from smelt.types.tensor import Shape, TensorType


class StepScope(Scope):
    """Recording of a loop's step, inside the recording `outer` or outside of all."""

    def __init__(self, name: str, outer: Scope | None, *, takes_all: bool = False) -> None:
        super().__init__(name)
        self.outer = outer
        self.is_step = True
        self.takes_all = takes_all
        if outer is not None:
            self.depth = outer.depth + 1
            vars(self).update({k: v for k, v in vars(outer).items() if k in vars(Sizes())})

    def reads(self, scope: Scope) -> bool:
        """Return whether this recording is inside another one."""
        outer = self.outer
        return outer is not None and (outer is scope or outer.reads(scope))

    def capture(self, x: Value) -> Value:
        """Return a value from around the loop as a constant input of the step.

        Raises LeakError for a value of another recording.
        """
        if isinstance(x.op, Constant) and not x.shared:
            return x
        if self.outer is not None and x.scope is not self.outer:
            x = self.outer.capture(x)
            if isinstance(x.op, Constant):
                return x
        elif x.scope is not None and self.outer is None:
            raise LeakError(value=x.type_text, function=x.scope.name)
        captured = self.captured.get(x) or self._rerecorded.get(x)
        is_cast = x.scope is not None and isinstance(x.op, Cast)
        if captured is None and is_cast and x.inputs[0].type.dtype.bits < x.type.dtype.bits:
            # A step reads the shorter elements each time; 8-bit weights remain 8-bit weights.
            operands: Any = x.inputs
            captured = self._rerecorded[x] = self._record_here(x.op, operands)
        if captured is None:
            # Outside of `jit` its sizes are numbers: operators may have compared them already.
            type = x.type if self.outer is None else self.outer.type(x.type)
            captured = self.captured[x] = self.input(f"k{len(self.captured)}", type, None)
        return captured

    def operand(self, label: str, type: TensorType) -> Value:
        """Create an input of the step for a value of this type around the loop."""
        outer_shape = type.shape if self.outer is None else self.outer.shape(type.shape)
        shape = tuple(
            self.symbol(d) if self.outer is None and isinstance(d, int) and d > 1 else d
            for d in outer_shape
        )
        return self.input(label, intern(type.dtype, shape), None)

    def outside(self, x: Value) -> None:
        """Do nothing: a value around the loop is an operand as of now."""


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded step; `captured` are the values around the loop that it reads."""

    graph: Graph
    captured: tuple[Value, ...]
    names: tuple[str, ...]
    """Sizes in the graph."""
    sizes: Shape
    """Their values around the loop."""


def record_step(
    name: str,
    call: Callable[[list[Array]], Sequence[Value]],
    carry: Sequence[Value],
    sequences: Sequence[Value] = (),
    *,
    takes_all: bool = False,
) -> Step:
    """Record `call`, a function of a carry and of slices, as a graph.

    The first results are the next carry, whose sizes become those of `carry` if they are equal.
    Operators on values from around the loop alone are recorded there, and run once, unless
    `takes_all`.
    """
    operands, carries = (*carry, *sequences), len(carry)
    outer = STATE.scope
    for x in operands:
        if x.scope is not None and (outer is None or x.scope.depth > outer.depth):
            outer = x.scope
    scope = StepScope(name, outer, takes_all=takes_all)
    previous, STATE.scope = STATE.scope, scope
    recording = RECORDING.set(True)
    follow(1)
    try:
        leaves = [
            scope.operand(
                f"c{k}" if k < carries else f"x{k - carries}",
                x.type if k < carries else intern(x.type.dtype, x.type.shape[1:]),
            )
            for k, x in enumerate(operands)
        ]
        outputs = [
            x if x.scope is scope or isinstance(x.op, Constant) else scope.capture(x)
            for x in call([Array.of(x) for x in leaves])
        ]
        for before, after in zip(leaves[:carries], outputs):
            if before.type.rank == after.type.rank:
                for d, e in zip(before.type.shape, after.type.shape, strict=True):
                    scope.same(d, e)
        step = _finish(scope, leaves, outputs, carries)
    finally:
        STATE.scope = previous
        RECORDING.reset(recording)
        follow(-1)
        scope.close()
    return step


def result_value(x: Any) -> Value | None:
    """Return a leaf of a step's result as a value, None for a non-array."""
    if isinstance(x, Array):
        return x.node
    if isinstance(x, Number):
        return x.node(x.dtype)
    if isinstance(x, (bool, int, float)):
        return default_value(x, "a step's result")
    return from_host(x) if isinstance(x, (np.ndarray, np.generic)) else None


def _finish(
    scope: StepScope, leaves: Sequence[Value], outputs: Sequence[Value], carries: int
) -> Step:
    inputs = [*leaves, *scope.captured.values()]
    rebuilt: dict[Node, Node] = {}
    for x in inputs:
        assert isinstance(x.op, Input)
        rebuilt[x] = build.input(x.op.label, scope.type(x.type), None, x.origin)
    for x in Graph("walk", (), tuple(outputs)).nodes():
        if x not in rebuilt:
            rebuilt[x] = rebuild_node(scope, x, rebuilt)
    graph = Graph(scope.name, tuple(rebuilt[x] for x in inputs), tuple(rebuilt[x] for x in outputs))
    reads = collect_bounds_checks(graph.outputs)
    if not all(scope.holds(0, "<=", room) for room in reads.sizes):
        refuse_out_of_bounds(reads.readers)
    dims = [d for x in graph.inputs for d in x.type.shape]
    if scope.outer is None and any(isinstance(d, int) and d > 1 for d in dims):
        graph, values = _generalized(scope, graph, carries)
        return Step(graph, tuple(scope.captured), tuple(values), tuple(values.values()))
    names = all_size_names(graph)
    short = {name: size(f"s{k}") for k, name in enumerate(names)}
    sizes = tuple(
        scope.hint(size(n)) if scope.outer is None else scope.canon(size(n)) for n in names
    )
    return Step(
        with_sizes(graph, short),
        tuple(scope.captured),
        tuple(f"s{k}" for k in range(len(names))),
        sizes,
    )


def _generalized(scope: Scope, graph: Graph, carries: int) -> tuple[Graph, Mapping[str, Index]]:
    """Return the graph of a step with sizes in place of numbers, and their values.

    A captured array has numbers, and what it meets in an operator is fixed to them.
    """
    exact = with_sizes(graph, {n: scope.hint(size(n)) for n in all_size_names(graph)})
    pairs = zip(exact.inputs[:carries], exact.outputs)
    # An operator on a carry before and after the step says that their sizes are equal.
    equal = [build.map("eq", a, b) for a, b in pairs if a.type == b.type]
    joined = Graph(exact.name, exact.inputs, (*exact.outputs, *equal))
    key = (
        Body(joined).key,
        tuple(x.origin and (x.origin.instruction or x.origin.place) for x in joined.nodes()),
    )
    cached = _GENERALIZED.get(key)
    if cached is None:
        general = next(generalize(joined), None)
        cached = exact, {}
        if general is not None:
            outputs = general.graph.outputs[: len(exact.outputs)]
            cached = Graph(exact.name, general.graph.inputs, outputs), general.sizes
        if len(_GENERALIZED) >= _MAX_GENERALIZED:
            _GENERALIZED.clear()
        _GENERALIZED[key] = cached
    return cached


_GENERALIZED: dict[Hashable, tuple[Graph, Mapping[str, Index]]] = {}
"""General graphs of steps, by their numbers, operators and lines."""
_MAX_GENERALIZED = 256
