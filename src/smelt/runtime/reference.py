"""Run a graph by its operators' NumPy references, one after another.

Library calls run this way, as do programs that no kernels can be made for: slow but correct,
since it needs neither planner nor code generator.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\\n v0 = add(x, 1.0:f32)\\n return v0\\n}")
>>> call = reference_step("f", graph, (0,), (1,)).call
>>> y = np.empty(3, np.float32)
>>> call({"n": 3}, [np.arange(3, dtype=np.float32)], [y])
>>> y
array([1., 2., 3.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt import knobs
from smelt.errors import (
    FallbackWarning,
    raised_by_signal_handler,
    reason_of,
    warn_at_origin,
)
from smelt.graph.ir import Graph, Node
from smelt.runtime.plan_tables import CallStep

Array = np.ndarray[Any, Any]
Call = Callable[[Mapping[str, int], list[Array], list[Array]], None]


def reference_step(
    name: str, graph: Graph, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> CallStep:
    """Return a call step that runs a graph's operators, writing each result in place."""
    graph_inputs = set(graph.inputs)
    nodes = [n for n in graph.nodes() if n not in graph_inputs]

    def call(sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        values: dict[Node, Array] = dict(zip(graph.inputs, inputs, strict=True))
        targets = dict(zip(graph.outputs, outputs, strict=True))
        with np.errstate(all="ignore"):  # as in compiled code: no floating-point warnings
            for node in nodes:
                operands = (values[x] for x in node.inputs)
                values[node] = node.op.compute_into(targets.get(node), sizes, *operands)
        for node, place in zip(graph.outputs, outputs, strict=True):
            if place is not values[node]:
                place[...] = values[node]

    return CallStep(name, _single_operator(graph, nodes) or call, inputs, outputs)


def program_step(graph: Graph, inputs: tuple[int, ...], outputs: Mapping[int, Node]) -> CallStep:
    """Return a step that runs a whole program, whose results may overwrite its inputs.

    `outputs` maps value numbers to nodes.
    """
    step = reference_step(
        graph.name, Graph(graph.name, graph.inputs, (*outputs.values(),)), inputs, tuple(outputs)
    )

    def call(sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        unaliased = [
            x.copy() if any(np.may_share_memory(x, y) for y in outputs) else x for x in inputs
        ]
        step.call(sizes, unaliased, outputs)

    return step._replace(call=call)


def _single_operator(graph: Graph, nodes: Sequence[Node]) -> Call | None:
    """Return the call of a graph with one operator on its inputs, else None.

    Everything that can be decided ahead of the call is.
    """
    if len(nodes) != 1 or graph.outputs != (nodes[0],) or nodes[0].inputs != graph.inputs:
        return None
    computed = nodes[0].op.compute_into

    def call(sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        (target,) = outputs
        with np.errstate(all="ignore"):
            result = computed(target, sizes, *inputs)
        if result is not target:
            target[...] = result

    return call


def is_recoverable(error: Exception) -> bool:
    """Return whether to fall back after this error.

    Not without memory, in strict mode, or after an exception that a signal's handler raised.
    """
    return not (
        isinstance(error, MemoryError) or knobs.STRICT.get() or raised_by_signal_handler(error)
    )


def warn_fallback(what: str, error: Exception) -> None:
    """Warn that a fallback is used."""
    warn_at_origin(FallbackWarning(graph=what, reason=reason_of(error)))
