"""Kernels that lowering makes of random programs: read back, verified, and right.

The interpreter of graphs judges the interpreter of kernels; with a large size hinted, folds are
split over the grid.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.strategies.graphs import graphs

from smelt import fusion, lower, passes
from smelt.compiler.driver import host, input_size_names
from smelt.graph.interp import evaluate_node
from smelt.graph.ir import Graph, Node
from smelt.journal.facts import Journal
from smelt.kernel.interp import run
from smelt.kernel.ir import Apply, Kernel, Update
from smelt.kernel.text import parse, text
from smelt.kernel.verify import verify
from smelt.kernel.walk import statements, states
from smelt.types.dtype import bool_

Case = tuple[Kernel, list[np.ndarray], list[np.ndarray]]


def sizes_of(graph: Graph, arrays: list[np.ndarray]) -> dict[str, int]:
    pairs = ((x.type.shape, a.shape) for x, a in zip(graph.inputs, arrays, strict=True))
    dims = [(str(d), k) for shape, lengths in pairs for d, k in zip(shape, lengths, strict=True)]
    return {name: k for name, k in dims if name in input_size_names(graph)}


def lowered(graph: Graph, arrays: list[np.ndarray], hint: int) -> Iterator[Case]:
    """The kernels of a graph, their inputs and what they have to give."""
    sizes, hints = sizes_of(graph, arrays), dict.fromkeys(input_size_names(graph), hint)
    graph = passes.run(graph, Journal(), "eager")
    values: dict[Node, np.ndarray] = dict(zip(graph.inputs, arrays, strict=True))

    def value(node: Node) -> np.ndarray:
        if node not in values:
            values[node] = evaluate_node(node, [value(x) for x in node.inputs], sizes)
        return values[node]

    for cluster in fusion.plan(graph, host(), Journal(), hints, fuse=True).clusters:
        if not cluster.is_extern:
            kernel = lower.run(cluster, "eager", hints)
            yield kernel, [value(x) for x in cluster.inputs], [value(x) for x in cluster.outputs]


def check(kernel: Kernel, inputs: list[np.ndarray], outputs: list[np.ndarray], sizes) -> None:
    shown = text(kernel)
    assert parse(shown) == kernel, shown
    verify(kernel)
    actual = run(kernel, [np.asarray(a) for a in inputs], sizes, order="backward")
    for p, wanted in zip(kernel.outputs, outputs, strict=True):
        tolerance = 2e-2 if p.dtype.itemsize <= 2 else 1e-4  # a rounding of the stored type
        np.testing.assert_allclose(
            actual[p.name].astype(np.float64),
            np.asarray(wanted).astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            err_msg=shown,
        )


def folds_bools_in_parts(kernel: Kernel) -> bool:
    """Test for a split maximum of bools, which has no operator that could merge parts."""
    return any(
        isinstance(s, Update)
        and isinstance(s.value, Apply)
        and s.value.op in ("max", "min")
        and states(kernel)[s.state].dtype == bool_
        for s in statements(kernel)
    )


@pytest.mark.parametrize("hint", [64, 1 << 20])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=8))
def test_lowered_kernels(hint, program):
    graph, arrays = program
    for kernel, inputs, outputs in lowered(graph, arrays, hint):
        if not folds_bools_in_parts(kernel):
            check(kernel, inputs, outputs, sizes_of(graph, arrays))
