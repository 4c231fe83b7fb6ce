"""Propagate cotangents from results back to arguments.

`tape` lists the operators in between; `reverse` walks it backwards and calls each operator's
`pullback`. Values that results do not depend on (`gauge`) are left out. New operators carry the
origin of the operator that they come from, so that a report shows the forward line.

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

from collections.abc import Mapping, Sequence

from smelt.autodiff.builder import Builder
from smelt.autodiff.gauge import gauges
from smelt.autodiff.loops import first_results, loop_cotangents
from smelt.autodiff.tape import Step, tape
from smelt.errors import GradientError, InternalError
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop


def reverse(
    b: Builder, steps: Sequence[Step], cotangents: Mapping[Node, Node], wrt: Sequence[Node]
) -> list[Node | None]:
    """Return the cotangents of `wrt` from those of results; None where nothing depends on it.

    Raises GradientError, with the user's line, for an operator without a derivative.
    """
    totals: dict[Node, Node] = dict(cotangents)
    active = {*wrt, *(step.node for step in steps)}
    steps = [Step(node, b.resolve_sizes(op), inputs) for node, op, inputs in steps]
    active.difference_update(gauges(steps, cotangents, wrt, b.type))
    b.record_steps(steps)
    runs = first_results(steps)
    for node, op, inputs in reversed(steps):
        g = totals.get(node)
        if isinstance(op, Loop):  # its results are differentiated together, at the first one
            seeds = _by_result(runs.get(node, ()), totals)
        else:
            seeds = {0: g} if g is not None and node in active else {}
        if not seeds:
            continue
        b.origin = None if node.origin is None else node.origin.without_name()
        required = tuple(x in active for x in inputs)
        try:
            if isinstance(op, Loop):
                parts = loop_cotangents(b, gradient, op, inputs, seeds, required)
            else:
                assert g is not None
                parts = op.pullback(b, g, node, inputs, required)
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
            total = totals.get(x)
            totals[x] = part if total is None else b.add(total, part)
    return [totals.get(x) for x in wrt]


def _by_result(run: Sequence[Step], totals: Mapping[Node, Node]) -> dict[int, Node]:
    """Return the cotangents of a loop's results by their numbers."""
    numbered = [(s.op.which, s.node) for s in run if isinstance(s.op, Loop)]
    return {which: totals[node] for which, node in numbered if node in totals}


def gradient(graph: Graph, wrt: Sequence[Node] | None = None) -> Graph:
    """Return a graph of the outputs of `graph` and their vector-Jacobian products.

    Args:
        graph: what is differentiated.
        wrt: inputs to differentiate by; by default all that are floats.

    Returns:
        A graph that takes, after the inputs, a cotangent for each float output, and gives, after
        the outputs, the cotangent of each of `wrt` (zeros where nothing depends on it).
    """
    variables = [x for x in graph.inputs if x.type.dtype.is_float] if wrt is None else list(wrt)
    b = Builder()
    seeds: dict[Node, Node] = {}
    cotangents: list[Node] = []
    for k, node in enumerate(graph.outputs):
        if not node.type.dtype.is_float:
            continue
        seed = build.input(f"g{k}", node.type, origin=node.origin)
        cotangents.append(seed)
        seeds[node] = b.add(seeds[node], seed) if node in seeds else seed
    gradients = reverse(b, tape(graph.outputs, variables), seeds, variables)
    zeros = (b.expand(b.constant(0.0, x.type.dtype), x.type.shape) for x in variables)
    results = [z if y is None else y for y, z in zip(gradients, zeros, strict=True)]
    return Graph(
        f"{graph.name}_gradient",
        (*graph.inputs, *cotangents),
        (*graph.outputs, *results),
        graph.facts,
    )
