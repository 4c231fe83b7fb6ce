"""The reverse sweep: from the cotangents of results to those of arguments.

`tape` lists what lies between; `reverse` walks it backwards and asks each operator's row for its
`pullback`.  New operators carry the origin of the operator that they come from, so that a report
shows the user's forward line.

>>> from smelt.graph.text import parse, text
>>> print(
...     text(
...         gradient(
...             parse(
...                 "graph f(x: f32[n]) {\\n a = sin(x)\\n b = reduce.sum(a) {axes=(0,)}\\n"
...                 " return b\\n}"
...             )
...         )
...     )
... )
graph f_gradient(x: f32[n], g0: f32[]) {
  v0 = sin(x) : f32[n]
  v1 = reduce.sum(v0) {axes=(0,)} : f32[]
  v2 = reshape(g0) {shape=(1,)} : f32[1]
  v3 = expand(v2) {shape=(n,)} : f32[n]
  v4 = cos(x) : f32[n]
  v5 = mul(v3, v4) : f32[n]
  return v1, v5
}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from smelt.autodiff.builder import Builder
from smelt.errors import GradientError, InternalError
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.ops.spec import TensorOp


class Step(NamedTuple):
    """An operator between arguments and results, with the operands it had when it was noted."""

    node: Node
    op: TensorOp
    inputs: tuple[Node, ...]


def tape(outputs: Iterable[Node], wrt: Iterable[Node]) -> list[Step]:
    """The operators by which `outputs` depend on `wrt` through floats, operands first."""
    active = set(wrt)
    steps: list[Step] = []
    seen = set(active)
    stack = [(node, False) for node in outputs]
    while stack:
        node, ready = stack.pop()
        if ready:
            if node.type.dtype.is_float and any(x in active for x in node.inputs):
                active.add(node)
                steps.append(Step(node, node.op, node.inputs))
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((x, False) for x in reversed(node.inputs) if x not in seen)
    return steps


def reverse(
    b: Builder, steps: Sequence[Step], cotangents: Mapping[Node, Node], wrt: Sequence[Node]
) -> list[Node | None]:
    """The cotangents of `wrt` from those of results; None where nothing depends on it.

    Raises GradientError, with the user's line, for an operator without a derivative.
    """
    found: dict[Node, Node] = dict(cotangents)
    active = {*wrt, *(step.node for step in steps)}
    for node, op, inputs in reversed(steps):
        g = found.get(node)
        if g is None:
            continue
        b.origin = node.origin
        wanted = tuple(x in active for x in inputs)
        try:
            parts = op.pullback(b, g, node, inputs, wanted)
        except GradientError as error:
            if node.origin is not None:
                error.origin = node.origin
            raise
        for x, part in zip(inputs, parts, strict=True):
            if part is None or x not in active:
                continue
            if b.type(part) != b.type(x):
                raise InternalError(
                    f"the cotangent of {x} by {op.name} is {part}", origin=node.origin
                )
            before = found.get(x)
            found[x] = part if before is None else b.add(before, part)
    return [found.get(x) for x in wrt]


def gradient(graph: Graph, wrt: Sequence[Node] | None = None) -> Graph:
    """The outputs of `graph` and their vector-Jacobian products.

    Args:
        graph: what is differentiated.
        wrt: inputs to differentiate by; by default all that are floats.

    Returns:
        A graph that takes, after the inputs, a cotangent for each float output, and gives, after
        the outputs, the cotangent of each of `wrt` (zeros where nothing depends on it).
    """
    by = [x for x in graph.inputs if x.type.dtype.is_float] if wrt is None else list(wrt)
    b = Builder()
    seeds: dict[Node, Node] = {}
    given: list[Node] = []
    for k, node in enumerate(graph.outputs):
        if not node.type.dtype.is_float:
            continue
        seed = build.input(f"g{k}", node.type, origin=node.origin)
        given.append(seed)
        seeds[node] = b.add(seeds[node], seed) if node in seeds else seed
    found = reverse(b, tape(graph.outputs, by), seeds, by)
    zeros = (b.expand(b.constant(0.0, x.type.dtype), x.type.shape) for x in by)
    results = [z if y is None else y for y, z in zip(found, zeros, strict=True)]
    return Graph(
        f"{graph.name}_gradient", (*graph.inputs, *given), (*graph.outputs, *results), graph.facts
    )
