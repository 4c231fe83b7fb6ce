"""Random programs, each forced into one kernel, between forbidden pages, on every instruction set.

The planner would refuse many of these unions; the code generator must get them right all the same,
because it is the planner's prices that change, not what a kernel may hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse_graph, one_cluster
from tests.property.oracles import agree, interpret, sizes_at, spread
from tests.strategies.graphs import Program, graphs

from smelt import passes
from smelt.errors import VerifyError
from smelt.graph.ir import Graph
from smelt.graph.text import text
from smelt.kernel.text import text as kernel_text

Array = np.ndarray[Any, Any]
CASES = 40
FLAVOURS = ("counting", "uniform", "normal", "panels")
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def one_kernel(
    graph: Graph, isa: str, hint: int, *, streaming: bool = False
) -> SingleKernel | None:
    """The program as one kernel; None if something is in it that no kernel holds: a library call,
    a scan that is read at shifted positions, writes at computed places before the end."""
    graph = passes.run(graph, None, "eager")
    cluster = one_cluster(graph)
    if cluster.is_extern or not cluster.nodes:
        return None
    try:
        return fuse_graph(graph, isa, hint=hint, streaming=streaming)
    except VerifyError as error:
        if "shifted" in error.message or "does not end" in error.message:
            return None
        raise


def tolerance(graph: Graph, arrays: list[Array], sizes: dict[str, int]) -> list[Array]:
    """How far apart correct runs may be: `spread`, and what the last bits of the inputs do."""
    result = spread(graph, arrays, sizes)
    exact = [v.astype("f8") for v in interpret(graph, arrays, sizes)]
    rng = np.random.default_rng(5)
    for _ in range(4):
        moved = [_moved(a, rng) for a in arrays]
        for k, v in enumerate(interpret(graph, moved, sizes)):
            with np.errstate(all="ignore"):
                off = np.abs(v.astype("f8") - exact[k])
            result[k] = np.maximum(result[k], 16 * np.where(np.isnan(off), np.inf, off))
    return result


def _moved(a: Array, rng: np.random.Generator) -> Array:
    eps = _EPS.get(str(a.dtype))
    if eps is None:
        return a
    with np.errstate(all="ignore"):
        noise = rng.integers(-8, 9, a.shape) * (eps / 2)
        return np.asarray(a.astype("f8") * (1 + noise)).astype(a.dtype)


@pytest.mark.parametrize(
    ("isa", "part", "hint", "streaming"),
    [
        (RUNNABLE[0], 0, 64, False),
        (RUNNABLE[0], 1, 64, True),
        (RUNNABLE[0], 2, 1 << 20, False),
        (RUNNABLE[-2:][0], 3, 64, True),
        (RUNNABLE[-1], 4, 1 << 20, False),
    ],
)
def test_any_program_is_one_kernel(isa: str, part: int, hint: int, streaming: bool) -> None:
    """Results are stored past the caches where `streaming`, however small they are."""

    @seed(part)
    @settings(
        max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(graphs(max_nodes=9, flavours=FLAVOURS))
    def judge(program: Program) -> None:
        graph, arrays = program
        kernel = one_kernel(graph, isa, hint, streaming=streaming)
        if kernel is None:
            return
        shown = f"{text(kernel.graph)}\n{kernel_text(kernel.kernel)}"
        sizes = sizes_at(graph, arrays)
        actual = kernel.run(arrays, sizes)
        wanted, allowed = interpret(graph, arrays, sizes), tolerance(graph, arrays, sizes)
        for k, (a, b) in enumerate(zip(wanted, actual, strict=True)):
            problem = agree(a, b, allowed[k])
            assert not problem, f"output {k}: {problem}\n{shown}"
        cluster = one_cluster(kernel.graph)
        read = [
            a for node, a in zip(kernel.graph.inputs, arrays, strict=True) if node in cluster.inputs
        ]
        places = [kernel.graph.outputs.index(node) for node in cluster.outputs]
        for at_end in (True, False):
            inside = run_guarded(kernel, read, at_end=at_end, one_by_one=at_end, sizes=sizes)
            for place, again in zip(places, inside, strict=True):
                assert same(actual[place], again), shown

    judge()


def same(a: Array, b: Array) -> bool:
    """Equal bits, but for the sign and payload of NaN."""
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a.astype("f8"), b.astype("f8"), equal_nan=True))
