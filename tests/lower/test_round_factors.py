"""Factors of products of a half type on GPUs: which are rounded to it, and what that changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.checked_triton import launch

import smelt as sm
from smelt.codegen.triton.source import triton_source
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse, text
from smelt.lower.round_factors import round_factors

WEIGHTED = """
kernel weighted(x: bf16[m,n], v: bf16[n,e]) -> y: bf16[m,e]
  grid m/16
  stream n/32 with l = 0 [m], s = 0 [m,e]
    w = {w}
    l' = l + sum(w over n)
    s' = s + dot(w, v[n,e] over n as {factors})
  y[m,e] = s / l
"""


def weighted(w: str = "exp(x[m,n])", factors: str = "bf16") -> Kernel:
    return parse(WEIGHTED.format(w=w, factors=factors).strip())


def test_factor_of_a_half_type_is_rounded_and_its_sum_is_not():
    rounded = text(round_factors(weighted()))
    assert "s' = s + dot(bf16(w), v[n,e] over n as bf16)" in rounded
    assert "l' = l + sum(w over n)" in rounded


@pytest.mark.parametrize(
    "kernel",
    [weighted(factors="f32"), weighted("bf16(exp(x[m,n]))"), weighted("f32(x[m,n])")],
    ids=["all bits", "rounded before", "elements"],
)
def test_other_factors_stay(kernel: Kernel):
    assert round_factors(kernel) == kernel


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_attention_multiplies_once_on_a_gpu(target: str):
    def products(rounding: str) -> int:
        with sm.config(device_code=False, rounding=rounding):
            specs = map(sm.spec, ("bf16[2,2048,64]",) * 3)
            (kernel,) = sm.explain(sm.nn.attention, *specs, target=target).kernels
        return kernel.source.count("tl.dot(")

    assert products("eager") == products("fast") == 2


def test_rounded_weights_have_the_error_of_bfloat16():
    """Printed programs and the interpreter round weights and results, by 2^-8 at most."""
    rounded, random = round_factors(weighted()), np.random.default_rng(4)
    x, v = (random.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((40, 90), (90, 24)))
    (y,) = launch(triton_source(rounded), [x, v])
    w = np.exp(x.astype(np.float64))
    wanted = w @ v.astype(np.float64) / w.sum(1, keepdims=True)
    size = w @ abs(v.astype(np.float64)) / w.sum(1, keepdims=True)
    for result in (y, run(rounded, [x, v])["y"]):
        assert (abs(result.astype(np.float64) - wanted) <= 2.0**-7 * size).all()
