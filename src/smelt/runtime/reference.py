"""A graph that runs by its operators' references, one after another, in NumPy.

It is how library calls run, and what is left where no kernels can be made of a program: slow, and
right, for it needs neither planner nor code generator.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\\n v0 = add(x, 1.0:f32)\\n return v0\\n}")
>>> call = by_reference("f", graph, (0,), (1,)).call
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
from smelt.errors import FallbackWarning, reason_of, tell
from smelt.graph.ir import Graph, Node
from smelt.runtime.steps import CallStep

__all__ = ["by_reference", "in_place_of", "is_spared", "tell_spared"]

Array = np.ndarray[Any, Any]
Call = Callable[[Mapping[str, int], list[Array], list[Array]], None]


def by_reference(
    name: str, graph: Graph, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> CallStep:
    """The operators of a graph, each result into its place."""
    given = set(graph.inputs)
    nodes = [n for n in graph.nodes() if n not in given]

    def call(sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        known: dict[Node, Array] = dict(zip(graph.inputs, inputs, strict=True))
        places = dict(zip(graph.outputs, outputs, strict=True))
        with np.errstate(all="ignore"):  # as in compiled code: no warnings of arithmetic
            for node in nodes:
                operands = (known[x] for x in node.inputs)
                known[node] = node.op.computed(places.get(node), sizes, *operands)
        for node, place in zip(graph.outputs, outputs, strict=True):
            if place is not known[node]:
                place[...] = known[node]

    return CallStep(name, _lone(graph, nodes) or call, inputs, outputs)


def in_place_of(graph: Graph, inputs: tuple[int, ...], outputs: Mapping[int, Node]) -> CallStep:
    """The whole of a program, whose results, by number, may be written over its inputs."""
    step = by_reference(
        graph.name, Graph(graph.name, graph.inputs, (*outputs.values(),)), inputs, tuple(outputs)
    )

    def call(sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        apart = [x.copy() if any(np.may_share_memory(x, y) for y in outputs) else x for x in inputs]
        step.call(sizes, apart, outputs)

    return step._replace(call=call)


def _lone(graph: Graph, nodes: Sequence[Node]) -> Call | None:
    """The call of one operator on the inputs as they are: what there is to decide, decided."""
    if len(nodes) != 1 or graph.outputs != (nodes[0],) or nodes[0].inputs != graph.inputs:
        return None
    computed = nodes[0].op.computed

    def call(sizes: Mapping[str, int], inputs: list[Array], outputs: list[Array]) -> None:
        (place,) = outputs
        with np.errstate(all="ignore"):
            made = computed(place, sizes, *inputs)
        if made is not place:
            place[...] = made

    return call


def is_spared(error: Exception) -> bool:
    """Whether to go on where something cannot be made: not where memory has run out, or where
    strictness is asked for."""
    return not (isinstance(error, MemoryError) or knobs.STRICT.get())


def tell_spared(what: str, error: Exception) -> None:
    """Warns of what could not be made."""
    tell(FallbackWarning(graph=what, reason=reason_of(error)))
