"""The seam between array code and the compiler: a graph in, something that runs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from smelt.graph.ir import Graph
from smelt.types.expr import sizes_of

Buffer = np.ndarray[Any, Any]


class Executable(Protocol):
    """A compiled graph.  `sizes` are the values of its size symbols, in order of `size_names`."""

    def run(
        self,
        arrays: Sequence[Buffer],
        sizes: tuple[int, ...],
        out: Sequence[Buffer | None] | None = None,
    ) -> list[Buffer]: ...


def size_names(graph: Graph) -> tuple[str, ...]:
    """The size symbols of a graph, in order of first appearance in the inputs' shapes."""
    dims = [d for x in graph.inputs for d in x.type.shape]
    return tuple(dict.fromkeys(name for d in dims for name in sizes_of(d)))


class Interpreted:
    """Runs a graph operator by operator through the rows' references."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.size_names = size_names(graph)

    def run(
        self,
        arrays: Sequence[Buffer],
        sizes: tuple[int, ...],
        out: Sequence[Buffer | None] | None = None,
    ) -> list[Buffer]:
        named = dict(zip(self.size_names, sizes, strict=True))
        values: dict[Any, Buffer] = dict(zip(self.graph.inputs, arrays, strict=True))
        for node in self.graph.nodes():
            if node not in values:
                values[node] = node.op.reference(named, *(values[x] for x in node.inputs))
        results = [np.array(values[node], order="C") for node in self.graph.outputs]
        for place, target in enumerate(out or ()):
            if target is not None:
                target[...] = results[place]
                results[place] = target
        return results


def compile_graph(graph: Graph, donate: tuple[int, ...] = ()) -> Executable:
    """Compile; inputs in `donate` may be overwritten by a run."""
    return Interpreted(graph)
