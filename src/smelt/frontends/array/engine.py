"""The seam between array code and the compiler: a graph in, something that runs out.

The run time is imported by the first graph that runs, not by `import smelt`, and the compiler by
the first one that has no plan in the cache: its code generator takes longer to load than NumPy, and
a program may only want a dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from smelt.graph.inside import Looks
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import size_names

if TYPE_CHECKING:
    from smelt.driver import Compiled
    from smelt.warm import Found

__all__ = ["compile_graph", "explaining", "outside", "size_names"]

Buffer = np.ndarray[Any, Any]


@cache
def _compiler() -> Any:
    return import_module("smelt.warm")


def outside(looks: Looks, inputs: Sequence[Node], arrays: Sequence[Buffer]) -> NoReturn:
    """Raises OutsideError, which tells the position."""
    import_module("smelt.graph.outside").named(looks, inputs, arrays)
    raise AssertionError("unreachable")


@cache
def explaining() -> Any:
    """The package that turns a compiled graph into reports and texts."""
    return import_module("smelt.explain")


def compile_graph(
    graph: Graph, hints: Mapping[str, int], donate: Sequence[int] = ()
) -> Compiled | Found:  # fmt: skip
    """Compile.  `hints` are sizes of the call at hand; inputs in `donate` may be overwritten."""
    return _compiler().compile(graph, hints=hints, donate=tuple(donate))
