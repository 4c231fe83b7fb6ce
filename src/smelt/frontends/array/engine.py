"""The seam between array code and the compiler: a graph in, something that runs out.

The run time is imported by the first graph that runs, not by `import smelt`, and the compiler by
the first one that has no plan in the cache: its code generator takes longer to load than NumPy, and
a program may only want a dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.errors import (
    CodegenError,
    ExternError,
    InternalError,
    OutOfMemory,
    SmeltError,
    UnsupportedError,
    VerifyError,
    reason_of,
)
from smelt.graph.bounds_checks import Looks
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import size_names
from smelt.imports import imported
from smelt.ops.spec import dims_at

if TYPE_CHECKING:
    from smelt.driver import Compiled
    from smelt.fusion.plan import Donate
    from smelt.warm import Found

__all__ = [
    "FAILURES",
    "MISTAKES",
    "Turns",
    "blame",
    "compile_graph",
    "explaining",
    "outside",
    "size_names",
    "turned",
]

Buffer = np.ndarray[Any, Any]
FAILURES = ExternError, OutOfMemory
"""What a run may raise that is about one line of the program."""
MISTAKES = InternalError, CodegenError, VerifyError, UnsupportedError
"""Errors of ours that are no answer to the user, as exceptions of Python are not."""


@cache
def _compiler() -> Any:
    return imported("smelt.warm")


def _references() -> Any:
    return imported("smelt.runtime.reference")


def outside(looks: Looks, inputs: Sequence[Node], arrays: Sequence[Buffer]) -> NoReturn:
    """Raises OutsideError, which tells the position."""
    imported("smelt.graph.locate_out_of_bounds").named(looks, inputs, arrays)
    raise AssertionError("unreachable")


def blame(
    error: SmeltError,
    graph: Graph,
    arrays: Sequence[Buffer],
    sizes: Mapping[str, int],
    compiled: Compiled | Found,
    used: Sequence[int],
) -> None:
    """Tell an error of a run which line it is about, by the graph of the program at hand and its
    `sizes`: the plan, run with the sizes `used`, may have been made for another one."""
    failed = imported("smelt.graph.locate_failure")
    if isinstance(error, ExternError):
        origin = failed.caller(error.fields.get("op"), graph, arrays)
    else:
        known = dict(zip(compiled.size_names, used, strict=True))
        values = [v for v in compiled.executable.values if v.place != "input"]
        stored = {(dims_at(v.shape, known), v.dtype) for v in values}
        node = failed.largest(graph.outputs, sizes, stored)
        origin = None if node is None else node.origin
        if node is not None:
            _tell(error, failed.told(node, sizes))
    error.origin = origin or error.origin


def _tell(error: SmeltError, what: str) -> None:
    """Has an error about memory say which value it is about."""
    if error.detail:
        error.detail = f"{error.detail}; {what}"
    else:
        error.fields = {**error.fields, "largest": what}


def turned(graph: Graph, orders: Sequence[tuple[int, ...] | None]) -> tuple[Graph, Turns | None]:
    """The graph for inputs that lie in memory in other orders than that of their dimensions, and
    how; the graph as it is, which reads them with strides, where results would not lie so too."""
    if any(orders) and not graph.checks:
        found = imported("smelt.passes.input_layouts").turned(graph, orders)
        if found is not None:
            return found[0], Turns(tuple(orders), found[1])
    return graph, None


@dataclass(frozen=True, slots=True)
class Turns:
    """Which dimensions of a program's arrays are those of its graph, for arrays that are turned."""

    inputs: tuple[tuple[int, ...] | None, ...]
    """For each dimension of an input of the graph, which one of the array it is."""
    outputs: tuple[tuple[int, ...] | None, ...]
    """For each dimension of a result, which one of the graph's output it is."""

    def read(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The arrays as the graph reads them; those beyond its turned inputs stay."""
        given = [x if p is None else x.transpose(p) for x, p in zip(buffers, self.inputs)]
        return [*given, *buffers[len(given) :]]

    def places(self, out: Sequence[Buffer | None]) -> list[Buffer | None]:
        """The arrays for results as the graph writes them."""
        return [
            x if p is None or x is None else x.transpose(sorted(range(len(p)), key=p.__getitem__))
            for x, p in zip_longest(out, self.outputs)
        ]

    def written(self, results: Sequence[Buffer]) -> list[Buffer]:
        """What the graph has written, as the program's results."""
        return [x if p is None else x.transpose(p) for x, p in zip(results, self.outputs)]


@cache
def explaining() -> Any:
    """The package that turns a compiled graph into reports and texts."""
    return imported("smelt.explain")


def compile_graph(graph: Graph, hints: Mapping[str, int], donate: Donate = ()) -> Compiled | Found:
    """Compile.  `hints` are sizes of the call at hand; inputs in `donate` may be overwritten,
    some of them by one result alone.

    Where the compiler fails, each operator gets a kernel of its own, and a warning tells so.
    Raises InternalError, about a line of the program, where not even that can be done."""

    def compiled() -> Compiled | Found:
        return _compiler().compile(graph, hints=hints, donate=tuple(donate))

    try:
        return compiled()
    except Exception as error:
        told = isinstance(error, SmeltError) and not isinstance(error, MISTAKES)
        if told or not _references().is_spared(error):
            raise
        failure = error
    try:
        with knobs.config(fuse=False):
            found = compiled()
    except Exception as error:
        origin = next((x.origin for x in graph.outputs if x.origin is not None), None)
        what = f"no kernels can be made of {graph.name}: {reason_of(error)}"
        raise InternalError(what, origin=origin) from error
    _references().tell_spared(f"{graph.name} as one", failure)
    return found
