"""The interface that a report needs of a compiled graph; the driver's result implements it.

The driver and this package do not import each other; whoever has a compiled graph passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from smelt.backend import Machine
from smelt.errors import ArgumentError
from smelt.fusion.plan import Plan
from smelt.graph.ir import Graph
from smelt.graph.walk import all_size_names as sizes_of_graph
from smelt.journal.facts import Journal
from smelt.kernel.ir import Kernel
from smelt.runtime.executable import Executable

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int] | Sequence[int]


class Compiled(Protocol):
    """A compiled graph with all its intermediate representations."""

    @property
    def graph(self) -> Graph: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def kernels(self) -> tuple[Kernel | None, ...]: ...

    @property
    def target(self) -> Machine: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def executable(self) -> Executable | None: ...

    @property
    def size_names(self) -> tuple[str, ...]: ...


def named_sizes(
    compiled: Compiled, sizes: Sizes | None, graph: Graph | None = None
) -> dict[str, int]:
    """Return sizes by name, from a mapping or from values in the order of `size_names`.

    They are those of the compiled graph, or of another `graph` of the program.

    Raises ArgumentError for a size that is missing, unknown or negative.
    """
    names, graph = compiled.size_names, graph or compiled.graph
    if sizes is None:
        sizes = {}
    result = dict(sizes) if isinstance(sizes, Mapping) else dict(zip(names, sizes, strict=False))
    expected = {*names, *sizes_of_graph(graph)}
    wrong = [n for n in result if n not in expected] or [n for n in expected if n not in result]
    if wrong or any(n < 0 for n in result.values()):
        listed = ", ".join(sorted(expected)) or "none"
        raise ArgumentError(
            op=f"explain({graph.name})",
            argument="sizes",
            value=result,
            expected=f"a number for each size: {listed}",
        )
    return {n: int(result[n]) for n in [*names, *sorted(expected - set(names))]}
