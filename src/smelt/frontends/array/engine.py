"""The seam between array code and the compiler: a graph in, something that runs out.

The compiler is imported by the first compilation, not by `import smelt`: its code generator takes
longer to load than NumPy, and a program may only want a dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.graph.ir import Graph
from smelt.types.expr import sizes_of

if TYPE_CHECKING:
    from smelt.driver import Compiled

__all__ = ["compile_graph", "explaining", "size_names"]

Buffer = np.ndarray[Any, Any]


@cache
def _driver() -> Any:
    return import_module("smelt.driver")


@cache
def explaining() -> Any:
    """The package that turns a compiled graph into reports and texts."""
    return import_module("smelt.explain")


def compile_graph(
    graph: Graph, hints: Mapping[str, int], donate: Sequence[int] = ()
) -> Compiled:  # fmt: skip
    """Compile.  `hints` are sizes of the call at hand; inputs in `donate` may be overwritten."""
    return _driver().compile(graph, hints=hints, donate=tuple(donate))


def size_names(graph: Graph) -> tuple[str, ...]:
    """The size symbols of a graph, in order of first appearance in the inputs' shapes."""
    dims = [d for x in graph.inputs for d in x.type.shape]
    return tuple(dict.fromkeys(name for d in dims for name in sizes_of(d)))
