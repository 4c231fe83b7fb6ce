"""Factors that a GPU rounds to the type of the other one, and those that keep their bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.checked_triton import launch
from tests.codegen.llvm.single_kernel import one_cluster

import smelt as sm
from smelt import lower
from smelt.backend.gpus import gpu
from smelt.codegen.triton.source import triton_source
from smelt.graph.text import parse as parse_graph
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse, text
from smelt.lower.round_factors import round_factors
from smelt.machine.tiling import CPU_TILING

WEIGHTED = """
kernel weighted(x: {x}[m,n], v: {v}[n,e]) -> y: {y}[m,e]
  grid m/16
  stream n/32 with l = 0 [m], s = 0 [m,e]
    w = {w}
    l' = l + sum(w over n)
    s' = s + dot(w, v[n,e] over n)
  y[m,e] = s / l
"""


def weighted(x: str = "bf16", v: str = "bf16", y: str = "bf16", w: str = "exp(x[m,n])") -> Kernel:
    return parse(WEIGHTED.format(x=x, v=v, y=y, w=w).strip())


def test_computed_factor_of_a_bfloat16_result_is_rounded_and_its_sum_is_not():
    rounded = text(round_factors(weighted(x="f32")))
    assert "s' = s + dot(bf16(w), v[n,e] over n)" in rounded
    assert "l' = l + sum(w over n)" in rounded


@pytest.mark.parametrize(
    "kernel",
    [
        weighted(y="f32"),
        weighted(v="f32"),
        weighted(v="f16", y="f16"),
        weighted(x="f32", w="f32(x[m,n])"),
        weighted(w="bf16(exp(x[m,n]))"),
    ],
    ids=["wide result", "wide factor", "float16", "array of float32", "rounded before"],
)
def test_other_factors_keep_their_bits(kernel: Kernel):
    assert round_factors(kernel) is kernel


def test_a_second_result_of_more_bits_keeps_a_factor_as_it_is():
    kernel = weighted()
    wide = text(kernel).replace("-> y: bf16[m,e]", "-> y: bf16[m,e], z: f32[m,e]")
    assert round_factors(parse(wide + "\n  z[m,e] = s")) == parse(wide + "\n  z[m,e] = s")


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_attention_multiplies_once_on_a_gpu(target: str):
    def products(rounding: str) -> int:
        with sm.config(device_code=False, rounding=rounding):
            specs = map(sm.spec, ("bf16[2,2048,64]",) * 3)
            (kernel,) = sm.explain(sm.nn.attention, *specs, target=target).kernels
        return kernel.source.count("tl.dot(")

    assert products("eager") == products("fast") == 2


def test_other_machines_and_roundings_are_as_they_were():
    graph = parse_graph(
        "graph f(x: bf16[m,n], v: bf16[n,e]) {\n  a = cast(x) {dtype=f32}\n  w = exp(a)\n"
        '  b = cast(v) {dtype=f32}\n  s = contract(w, b) {spec="m,k; k,n -> m,n"}\n'
        "  y = cast(s) {dtype=bf16}\n  return y\n}"
    )
    cluster, sizes = one_cluster(graph), {"m": 64, "n": 64, "e": 64}
    device = gpu("h100").tiling

    def rounds(rounding: str, tiling=device) -> bool:
        return "dot(bf16(" in text(lower.run(cluster, rounding, sizes, tiling))

    assert rounds("eager")
    assert not any((rounds("exact"), rounds("fast"), rounds("eager", CPU_TILING)))


def test_rounded_weights_have_the_error_of_bfloat16():
    """Printed programs and the interpreter agree; weights and results move by 2^-8 at most."""
    kernel = weighted()
    rounded, random = round_factors(kernel), np.random.default_rng(4)
    x, v = (random.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((40, 90), (90, 24)))
    (y,) = launch(triton_source(rounded), [x, v])
    w = np.exp(x.astype(np.float64))
    wanted = w @ v.astype(np.float64) / w.sum(1, keepdims=True)
    size = w @ abs(v.astype(np.float64)) / w.sum(1, keepdims=True)
    for result in (y, run(rounded, [x, v])["y"]):
        assert (abs(result.astype(np.float64) - wanted) <= 2.0**-7 * size).all()
