"""Interface between array code and the compiler: compile graphs, locate errors.

The run time is imported by the first graph that runs, not by `import smelt`, and the compiler by
the first graph without a cached plan: loading the code generator takes longer than loading NumPy,
and a program may only need a dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from smelt import knobs
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
from smelt.graph.bounds_checks import BoundsChecks
from smelt.graph.ir import Graph, Node
from smelt.ops.spec import dims_at
from smelt.packages.installed import import_compiler
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import

if TYPE_CHECKING:
    from smelt.compiler.driver import Compiled
    from smelt.compiler.warm import CachedProgram
    from smelt.fusion.plan import Donate
    from smelt.runtime.memory import Spans

Buffer = np.ndarray[Any, Any]
RUN_ERRORS = ExternError, OutOfMemory
"""Errors of a run that concern one line of the program."""
COMPILER_ERRORS = InternalError, CodegenError, VerifyError, UnsupportedError
"""Errors of the compiler itself, which users cannot fix; Python's exceptions count as such too."""


@cache
def _compiler() -> Any:
    return fork_safe_import("smelt.compiler.warm")


def _reference_runner() -> Any:
    return fork_safe_import("smelt.runtime.reference")


@cache
def _memory() -> Any:
    return fork_safe_import("smelt.runtime.memory")


def spans_of(arrays: Sequence[Buffer | None]) -> Spans:
    """Return the memory of arrays, to ask which of them share it."""
    return cast("Spans", _memory().Spans(arrays))


def raise_out_of_bounds(
    looks: BoundsChecks, inputs: Sequence[Node], arrays: Sequence[Buffer]
) -> NoReturn:
    """Raise OutsideError, which names the position that is out of bounds."""
    fork_safe_import("smelt.graph.locate_failure").raise_first_out_of_bounds(looks, inputs, arrays)
    raise AssertionError("unreachable")


def locate_error(
    error: SmeltError,
    graph: Graph,
    arrays: Sequence[Buffer],
    sizes: Mapping[str, int],
    compiled: Compiled | CachedProgram,
    used: Sequence[int],
) -> None:
    """Set the line and the value that an error of a run is about.

    `graph` and `sizes` are those of the program at hand; the plan, run with the sizes `used`, may
    have been made for another program.
    """
    locate = fork_safe_import("smelt.graph.locate_failure")
    if isinstance(error, ExternError):
        origin = locate.failed_call_origin(error.fields.get("op"), graph, arrays)
    else:
        plan_sizes = dict(zip(compiled.size_names, used, strict=True))
        values = [v for v in compiled.executable.values if v.place != "input"]
        stored = {(dims_at(v.shape, plan_sizes), v.dtype) for v in values}
        node = locate.largest_stored_value(graph.outputs, sizes, stored)
        origin = None if node is None else node.origin
        if node is not None:
            largest = locate.describe_value(node, sizes)
            if error.detail:
                error.detail = f"{error.detail}; {largest}"
            else:
                error.fields = {**error.fields, "largest": largest}
    error.origin = origin or error.origin


def choose_input_layouts(
    graph: Graph, orders: Sequence[tuple[int, ...] | None]
) -> tuple[Graph, Permutations | None]:
    """Return a graph for inputs in permuted memory orders, and the permutations.

    Returns the graph itself, which reads such inputs with strides, and None if the results would
    not get the same order.
    """
    if any(orders) and not graph.checks:
        permuted = fork_safe_import("smelt.passes.input_layouts").apply_input_layouts(graph, orders)
        if permuted is not None:
            return permuted[0], Permutations(tuple(orders), permuted[1])
    return graph, None


@dataclass(frozen=True, slots=True)
class Permutations:
    """Permutations between the dimensions of a program's arrays and those of its graph."""

    inputs: tuple[tuple[int, ...] | None, ...]
    """For each dimension of an input of the graph, the dimension of the array."""
    outputs: tuple[tuple[int, ...] | None, ...]
    """For each dimension of a result, the dimension of the graph's output."""

    def permute_inputs(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Permute arrays to the graph's inputs; further inputs stay as they are."""
        permuted = [x if p is None else x.transpose(p) for x, p in zip(buffers, self.inputs)]
        return [*permuted, *buffers[len(permuted) :]]

    def permute_outputs(self, out: Sequence[Buffer | None]) -> list[Buffer | None]:
        """Permute arrays of `out=` to the graph's outputs."""
        return [
            x if p is None or x is None else x.transpose(sorted(range(len(p)), key=p.__getitem__))
            for x, p in zip_longest(out, self.outputs)
        ]

    def permute_results(self, results: Sequence[Buffer]) -> list[Buffer]:
        """Permute the graph's outputs to the program's results."""
        return [x if p is None else x.transpose(p) for x, p in zip(results, self.outputs)]


@cache
def reporting() -> Any:
    """Import the module that reports recordings to whoever listens."""
    return fork_safe_import("smelt.frontends.array.recording_log")


@cache
def explain_package() -> Any:
    """Import the package that produces reports and texts of a compiled graph."""
    return import_compiler("smelt.explain.api")


def compile_graph(
    graph: Graph, hints: Mapping[str, int], donate: Donate = ()
) -> Compiled | CachedProgram:
    """Compile a graph.

    Args:
        graph: the graph.
        hints: sizes of the call at hand.
        donate: inputs that may be overwritten, some by one result only.

    If the compiler fails, each operator gets a kernel of its own, with a warning.  Raises
    InternalError, about a line of the program, if that fails too.
    """

    def compiled() -> Compiled | CachedProgram:
        return _compiler().compile(graph, hints=hints, donate=tuple(donate))

    try:
        return compiled()
    except Exception as error:
        is_users_error = isinstance(error, SmeltError) and not isinstance(error, COMPILER_ERRORS)
        if is_users_error or not _reference_runner().is_recoverable(error):
            raise
        failure = error
    try:
        with knobs.config(fuse=False):
            unfused = compiled()
    except Exception as error:
        origin = next((x.origin for x in graph.outputs if x.origin is not None), None)
        what = f"no kernels can be made of {graph.name}: {reason_of(error)}"
        raise InternalError(what, origin=origin) from error
    _reference_runner().warn_fallback(f"{graph.name} as one", failure)
    return unfused
