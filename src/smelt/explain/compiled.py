"""What a report needs of a compiled graph: a shape that the driver's result has.

The driver and this package are neighbours that do not import one another; whoever holds a compiled
graph hands it over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from smelt.errors import ArgumentError
from smelt.fusion.plan import Plan
from smelt.graph.ir import Graph
from smelt.graph.walk import sizes as sizes_of_graph
from smelt.journal import Journal
from smelt.kernel.ir import Kernel
from smelt.runtime.executable import Executable
from smelt.target import Target

__all__ = ["Array", "Compiled", "Sizes", "named_sizes"]

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int] | Sequence[int]


class Compiled(Protocol):
    """A graph with everything that was made of it on the way to native code."""

    @property
    def graph(self) -> Graph: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def kernels(self) -> tuple[Kernel | None, ...]: ...

    @property
    def target(self) -> Target: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def executable(self) -> Executable: ...

    @property
    def size_names(self) -> tuple[str, ...]: ...


def named_sizes(compiled: Compiled, sizes: Sizes | None) -> dict[str, int]:
    """Sizes by name: given so, or as values of `size_names` in order.

    Raises ArgumentError for a size that is missing, unknown or negative.
    """
    names = compiled.size_names
    if sizes is None:
        sizes = {}
    found = dict(sizes) if isinstance(sizes, Mapping) else dict(zip(names, sizes, strict=False))
    known = {*names, *sizes_of_graph(compiled.graph)}
    wrong = [n for n in found if n not in known] or [n for n in known if n not in found]
    if wrong or any(n < 0 for n in found.values()):
        asked = ", ".join(sorted(known)) or "none"
        raise ArgumentError(
            op=f"explain({compiled.graph.name})",
            argument="sizes",
            value=found,
            expected=f"a number for each size: {asked}",
        )
    return {n: int(found[n]) for n in [*names, *sorted(known - set(names))]}
