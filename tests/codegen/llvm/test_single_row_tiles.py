"""Products of a single row: several sums for each accumulator, and short operands unrolled."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.codegen.llvm.test_contractions import inner_loops, matrices, whole_numbers

import smelt as sm
from smelt.codegen.build import asm_text, code_variants
from smelt.machine.target import Isa, Target

DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32}
DESCENT = """graph f(x: f64[k,n], y: f64[k], w: f64[n]) {
  s = contract(x, w) {spec="k,n; n -> k"}
  p = sub(s, y)
  g = contract(x, p) {spec="k,n; k -> n"}
  return g
}"""
"""A step of gradient descent: both products read the rows of x."""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 17, 33, 70])
def test_a_row_times_a_matrix(n: int, dtype: str, isa: Isa) -> None:
    kernel = fuse(matrices(dtype, "k; k,n -> n"), isa)
    for k in (1, 2, 3, 4, 5, 31, 256, 257, 1030):
        x, y = (whole_numbers(s, DTYPES[dtype], k) for s in ((k,), (k, n)))
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, [x, y], at_end=at_end)
            np.testing.assert_array_equal(actual, x @ y)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_narrow_tiles_add_up_independent_sums(isa: Isa) -> None:
    """One loop over k has four multiply-adds for one vector of columns, into four registers."""
    kernel = fuse(matrices("f64", "k; k,n -> n"), isa)
    loops = inner_loops(asm_text(kernel.kernel, Target.for_isa(isa)))
    sums = [
        re.findall(r"(?:fmadd\w*pd|vaddpd|addpd).*%([xyz]mm\d+)$", loop, re.MULTILINE)
        for loop in loops
    ]
    assert any(len(s) >= 4 and len({*s}) >= 4 for s in sums)


def test_sums_of_narrow_tiles_are_accurate() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(200_001), rng.standard_normal((200_001, 3))
    actual = sm.jit(lambda x, y: x @ y)(sm.asarray(x), sm.asarray(y))
    exact = (x.astype(np.longdouble)[:, None] * y).sum(0)
    np.testing.assert_allclose(np.asarray(actual), exact.astype(float), rtol=0, atol=1e-10)


def test_constants_that_unroll_one_of_two_products_are_kept() -> None:
    """The second product alone, whose tiles serve all sizes, has code for all sizes only."""
    target = Target.for_isa("avx512")
    kernel = fuse(DESCENT, "avx512")
    sizes = {"k": 100_000, "n": 4}
    forms = [form for form, *_ in code_variants(kernel.kernel, target, sizes)]
    assert any("n=4" in form for form in forms)
    alone = fuse(matrices("f64", "k; k,n -> n"), "avx512")
    assert not any("n=4" in form for form, *_ in code_variants(alone.kernel, target, sizes))
    assert not any("n=" in f for f, *_ in code_variants(kernel.kernel, target, {**sizes, "n": 9}))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9])
def test_both_products_of_a_step_are_right_for_short_rows(n: int) -> None:
    rng = np.random.default_rng(n)

    def step(x: Any, y: Any, w: Any) -> Any:
        return x.T @ (1 / (1 + sm.exp(-(x @ w))) - y)

    for k in (1, 5, 512, 10_007):
        x, y, w = rng.standard_normal((k, n)), rng.standard_normal(k), rng.standard_normal(n)
        expected = x.T @ (1 / (1 + np.exp(-(x @ w))) - y)
        actual = sm.jit(step)(*map(sm.asarray, (x, y, w)))
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-11, atol=1e-11)
