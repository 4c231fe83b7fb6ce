"""Contractions whose computed factors may be rounded, and those whose factors keep their bits."""

from __future__ import annotations

import pytest

from smelt import passes
from smelt.backend.gpus import gpu
from smelt.graph.ir import Graph
from smelt.graph.text import parse, text
from smelt.machine.tiling import CPU_TILING, Tiling
from smelt.passes.precision import round_factors

LINES = (
    "w = exp(x)",
    "a = cast(v) {dtype=f32}",
    's = contract(w, a) {spec="m,n; n,e -> m,e"}',
    "y = cast(s) {dtype=bf16}",
)


def weighted(returned: str = "y", v: str = "bf16", *lines: str) -> Graph:
    every = "\n  ".join((*(lines or LINES), f"return {returned}"))
    return parse(f"graph f(x: f32[m,n], v: {v}[n,e]) {{\n  {every}\n}}")


def is_marked(graph: Graph) -> bool:
    return "factors=bf16" in text(graph)


def test_computed_factor_of_a_rounded_result_is_marked():
    assert is_marked(round_factors(weighted()))
    scaled = (*LINES[:3], "t = tanh(s)", "y = cast(t) {dtype=bf16}")
    assert is_marked(round_factors(weighted("y", "bf16", *scaled)))


@pytest.mark.parametrize(
    "graph",
    [
        weighted("s"),
        weighted("y, s"),
        weighted("y", "f16"),
        weighted("y", "bf16", "w = permute(x) {perm=(0,1)}", *LINES[1:]),
        weighted("y", "bf16", "b = cast(x) {dtype=bf16}", "w = cast(b) {dtype=f32}", *LINES[1:]),
    ],
    ids=["wide result", "another wide result", "float16", "array of float32", "rounded before"],
)
def test_other_factors_keep_their_bits(graph: Graph):
    assert round_factors(graph) is graph


def test_pipeline_marks_for_machines_with_matrix_units_under_eager_rounding():
    def marks(rounding: passes.Rounding, tiling: Tiling) -> bool:
        return is_marked(passes.run(weighted(), None, rounding, {}, tiling))

    device = gpu("h100").tiling
    assert marks("eager", device)
    assert not any((marks("exact", device), marks("fast", device), marks("eager", CPU_TILING)))
