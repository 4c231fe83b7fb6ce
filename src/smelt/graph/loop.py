"""Define the loop operator: a graph that runs again and again on values it carries.

A step takes the carried values, one slice of each sequence, and constants; it returns the next
carried values and one slice of each stacked result. One node is one result of the loop (`which`);
nodes with equal operators and operands otherwise are results of one run.

>>> from smelt.graph.text import parse, text
>>> from smelt.types.dtype import f32
>>> step = parse('''graph step(c: f32[n], x: f32[n]) {
...   v0 = mul(c, 0.5:f32)
...   v1 = add(v0, x)
...   return v1, v1
... }''')
>>> loop = Loop(1, 1, (3,), False, 1, ("n",), (2,), Body(step))
>>> c, x = TensorType(f32, (2,)), TensorType(f32, (3, 2))
>>> loop.infer(c, x).shape
(3, 2)
>>> loop.reference({}, np.zeros(2, np.float32), np.ones((3, 2), np.float32))[:, 0]
array([1.  , 1.5 , 1.75], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.graph import interp
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import map_indices, map_type
from smelt.ops.create import Constant
from smelt.ops.spec import Array, Sizes, TensorOp
from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_
from smelt.types.expr import Expr, Index, evaluate, substitute
from smelt.types.tensor import Shape, TensorType

RunStep = Callable[[list[Array], Mapping[str, int]], list[Array]]
"""Computes a step from its operands and sizes."""


class Body:
    """Graph of a loop's step; bodies with the same operators are equal.

    The last carries are not for the user: they are positions that the steps read at, the first one
    out of bounds if there is any. `checks` has the range of each: its least and its end, in turn,
    in sizes of the body.
    """

    def __init__(self, graph: Graph, checks: Shape = ()) -> None:
        self.graph = graph
        self.checks = checks

    @cached_property
    def key(self) -> Hashable:
        """Everything in the graph except the origins of its nodes."""
        numbers: dict[Node, int] = {}
        parts: list[Hashable] = []
        for node in self.graph.nodes():
            operands = tuple(numbers[x] for x in node.inputs)
            parts.append((node.op, _typed_value(node.op), operands, node.type))
            numbers[node] = len(numbers)
        return tuple(parts), tuple(numbers[x] for x in self.graph.outputs), self.checks

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Body) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<body {self.graph.name}>"


def _typed_value(op: TensorOp) -> str:
    """Return the text of a constant's number: 0.0 and -0.0, 1 and True compare equal."""
    value = getattr(op, "value", None)
    return "" if value is None else repr(value)


@dataclass(frozen=True)
class Loop(TensorOp):
    """Result number `which` of a body that runs for each slice, or under a condition.

    Without a length it runs while the first carry is true. Operands are the initial carries, then
    the sequences, whose slices are taken along their first dimension, then constants. Results are
    the final carries, then the stacked results, then for each carry its values before all steps,
    stacked.
    """

    doc: ClassVar[str] = "a step that runs again and again on the values it carries"
    fusible: ClassVar[bool] = False
    carries: int
    slices: int
    length: Shape
    """The number of steps; () to run while the first carry, a bool of rank 0, is true."""
    reverse: bool
    which: int
    names: tuple[str, ...]
    """Sizes in the body, whose values here are `sizes`."""
    sizes: Shape
    body: Body

    @staticmethod
    def parse(body: Graph, checks: Shape = (), **attributes: Any) -> Loop:
        """Return the operator with attributes as in the text form.

        Raises TypeError for a body that is not a graph.
        """
        if not isinstance(body, Graph) or not isinstance(checks, tuple):
            raise TypeError(f"body is a graph, not {body!r}")
        return Loop(body=Body(body, checks), **attributes)

    def attributes(self) -> dict[str, Any]:
        checks = {"checks": self.body.checks} if self.body.checks else {}
        return {**super().attributes(), **checks, "body": self.body.graph}

    @property
    def checked(self) -> tuple[tuple[Loop, Index, Index], ...]:
        """The results that are positions to check, each with its least value and its end."""
        names, bounds = self.binding, self.body.checks
        first = self.carries - len(bounds) // 2
        ranges = [substitute(e, names, "size") if isinstance(e, Expr) else e for e in bounds]
        return tuple(
            (replace(self, which=first + k), low, end)
            for k, (low, end) in enumerate(zip(ranges[::2], ranges[1::2], strict=True))
        )

    def step_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes in the body."""
        return {n: int(evaluate(e, sizes)) for n, e in self.binding.items()}

    @property
    def binding(self) -> Mapping[str, Index]:
        """The value of each size in the body."""
        return dict(zip(self.names, self.sizes, strict=True))

    @property
    def results(self) -> int:
        """Number of results that the body has, without the stacked carries."""
        return len(self.body.graph.outputs)

    @property
    def runs_once(self) -> bool:
        """Whether it runs at most once: the first carry is false after a step."""
        last = self.body.graph.outputs[0].op if not self.length else None
        return isinstance(last, Constant) and not last.value

    def saved(self, carry: int) -> Loop:
        """Return the operator of the stacked values of a carry before all steps."""
        return replace(self, which=self.results + carry)

    @property
    def operand_types(self) -> tuple[TensorType, ...]:
        """Types of the operands."""
        types = [self._here(x.type) for x in self.body.graph.inputs]
        last = self.carries + self.slices
        return tuple(
            TensorType(t.dtype, (*self.length, *t.shape)) if self.carries <= k < last else t
            for k, t in enumerate(types)
        )

    def result_type(self, which: int) -> TensorType:
        """Return the type of a result."""
        graph = self.body.graph
        saved = which - self.results
        step = self._here((graph.outputs[which] if saved < 0 else graph.inputs[saved]).type)
        if which < self.carries:
            return step
        return TensorType(step.dtype, (*self.length, *step.shape))

    def _here(self, kind: TensorType) -> TensorType:
        names = self.binding
        return map_type(kind, lambda e: substitute(e, names, "size"))

    def infer(self, *inputs: TensorType) -> TensorType:
        self._check_counts()
        types = self.operand_types
        if len(inputs) != len(types):
            raise ShapeError(
                op=self.name,
                operands=", ".join(map(str, inputs)),
                reason=f"the step takes {len(types)} values",
            )
        for k, (actual, expected) in enumerate(zip(inputs, types, strict=True)):
            if actual != expected:
                raise ShapeError(
                    op=self.name,
                    operands=str(actual),
                    reason=f"operand {k} of the step is {expected}",
                )
        return self.result_type(self.which)

    def _check_counts(self) -> None:
        """Raise ShapeError for numbers that do not fit the body."""
        graph, carries = self.body.graph, self.carries
        if not (
            0 <= carries <= min(len(graph.inputs), len(graph.outputs))
            and 0 <= self.slices <= len(graph.inputs) - carries
            and 0 <= self.which < len(graph.outputs) + (carries if self.length else 0)
            and len(self.length) <= 1
            and len(self.names) == len(self.sizes)
            and len(self.body.checks) <= 2 * carries
        ):
            raise ShapeError(f"loop: its numbers do not fit a step of {len(graph.inputs)} values")
        for k, (before, after) in enumerate(zip(graph.inputs[:carries], graph.outputs)):
            if before.type != after.type:
                raise ShapeError(f"loop: carry {k} is {before.type}, then {after.type}")
        if not self.length:
            first = graph.inputs[0].type if carries else None
            if first != TensorType(bool_) or self.slices or len(graph.outputs) != carries:
                raise ShapeError("loop: without a length, the first carry says whether to go on")

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return self.run(sizes, inputs)[self.which]

    def run(
        self, sizes: Sizes, inputs: Sequence[Array], step: RunStep | None = None
    ) -> list[Array]:
        """Return all results; `step` computes a step, by default the graph's interpreter does."""
        run_step = partial(interp.run, self.body.graph) if step is None else step
        count = self.carries
        carry = [np.asarray(x) for x in inputs[:count]]
        sequences, constants = inputs[count : count + self.slices], inputs[count + self.slices :]
        here = self.step_sizes(sizes)
        if not self.length:
            while bool(carry[0]):
                carry = run_step([*carry, *constants], here)[:count]
            return carry
        length = int(evaluate(self.length[0], sizes))
        stacked = [
            np.empty(tuple(int(evaluate(d, sizes)) for d in t.shape), t.dtype.numpy)
            for t in map(self.result_type, range(count, self.results + count))
        ]
        for t in reversed(range(length)) if self.reverse else range(length):
            results = run_step([*carry, *(x[t] for x in sequences), *constants], here)
            for target, value in zip(stacked, [*results[count:], *carry], strict=True):
                target[t] = value
            carry = results[:count]
        return [*carry, *stacked]


def loop_key(node: Node) -> Hashable:
    """Return the key of the run that a node belongs to, or None."""
    op = node.op
    return (replace(op, which=0), node.inputs) if isinstance(op, Loop) else None


def instantiate(loop: Loop) -> Graph:
    """Return the body with the sizes that it has where the loop is."""
    return with_sizes(loop.body.graph, loop.binding)


def with_sizes(graph: Graph, sizes: Mapping[str, Index]) -> Graph:
    """Return a graph with expressions in place of its sizes."""

    def here(e: Expr) -> Index:
        return substitute(e, sizes, "size")

    new: dict[Node, Node] = {}
    for node in graph.nodes():
        op = map_indices(node.op, here)
        operands = tuple(new[x] for x in node.inputs)
        new[node] = Node(op, operands, map_type(node.type, here), node.origin)
    inputs, outputs = (tuple(new[x] for x in side) for side in (graph.inputs, graph.outputs))
    return Graph(graph.name, inputs, outputs)
