"""The seam between array code and the compiler: a graph in, something that runs out."""

from __future__ import annotations

from collections.abc import Mapping

from smelt import driver
from smelt.driver import Compiled, size_names
from smelt.graph.ir import Graph

__all__ = ["Compiled", "compile_graph", "size_names"]


def compile_graph(
    graph: Graph, hints: Mapping[str, int], donate: tuple[int, ...] = ()
) -> Compiled:  # fmt: skip
    """Compile.  `hints` are the sizes of the call at hand; inputs in `donate` may be overwritten."""
    return driver.compile(graph, hints=hints, donate=donate)
