"""The choice between a short and a long vector axis, and which sizes are constants."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.native import native_kernel
from tests.codegen.llvm.single_kernel import RUNNABLE

from smelt.codegen.build import code_variants
from smelt.codegen.llvm.access.vector_axis import candidates, choose_vector_axis
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.text import parse
from smelt.machine.target import Isa, Target

PICKED = """
kernel k(x: f32[n,3], at: i64[3]) -> y: f32[n,3]
  grid n, j in 3/4096
  v0 = at[j]
  p1 = position(v0, 3)
  v1 = x[n,p1]
  y[n,j] = v1
"""
SHARED = """
kernel k(x: f32[n,3], w: f32[n]) -> y: f32[3]
  grid j in 3
  stream n/512 with s = 0 [j]
    v0 = w[n]
    v1 = exp(v0)
    v2 = x[n,j]
    v3 = v1 * v2
    s' = s + sum(v3 over n)
  y[j] = s
"""
PLAIN = """
kernel k(x: f32[n,3]) -> y: f32[n,3]
  grid n, j in 3/4096
  v0 = x[n,j]
  v1 = exp(v0)
  y[n,j] = v1
"""


@pytest.mark.parametrize(("code", "axis"), [(PICKED, "n"), (SHARED, "n"), (PLAIN, "j")])
def test_vectors_run_along_the_long_axis_where_a_short_one_wastes_them(
    code: str, axis: str
) -> None:
    """Vectors run along the long axis if a short one wastes lanes.

    Elements of a short row are gathered, or a value shared by a row would take a vector of its own;
    plain rows are the same either way.
    """
    (phase,) = program(parse(code)).phases
    assert choose_vector_axis(phase, candidates(phase)) == axis


WEIGHTED = """
kernel k(x: f32[r,c], z: f32[m,c], v: f32[m,d]) -> y: f32[r,d]
  axis r, d, m, c
  grid r/64
  v0 = x[r,c]
  stream m/512 with s = 0 [r,d]
    v1 = z[m,c]
    v2 = v0 - v1
    v3 = square(v2)
    v4 = sum(v3 over c)
    v5 = v[m,d]
    s' = s + dot(v4, v5 over m)
  y[r,d] = s
"""


def test_short_sizes_of_no_product_are_numbers_beside_products() -> None:
    """A reduction over three positions is unrolled beside a product.

    The product keeps the code for all sizes.
    """
    target = Target.for_isa("avx512", cores=2)
    variants = code_variants(parse(WEIGHTED), target, {"r": 512, "c": 3, "m": 2048, "d": 16})
    reported = {variant.partition("@")[2] for variant, *_ in variants}
    assert reported - {""} == {"c=3"}
    assert not any(
        "@" in variant
        for variant, *_ in code_variants(parse(WEIGHTED), target, {"c": 300, "d": 16})
    )


BATCH = """
kernel k(x: f32[b,m,k], y: f32[b,k,n]) -> z: f32[b,m,n]
  grid b, m, n
  v0 = x[b,m,k]
  v1 = y[b,k,n]
  z[b,m,n] = dot(v0, v1 over k)
"""


def test_sizes_of_batches_of_small_products_are_numbers() -> None:
    """Their tiles address by numbers; longer ones keep to the code for all sizes."""
    target = Target.for_isa("avx512", cores=2)
    (first, limits, _), *_ = code_variants(
        parse(BATCH), target, {"b": 100, "m": 16, "n": 16, "k": 12}
    )
    plain, _, message = first.partition("@")
    assert plain == "small"
    assert {*message.split(",")} == {"m=16", "n=16", "k=12"}
    assert all(n in str(limits) for n in "mnk")
    larger = {"b": 100, "m": 16, "n": 200, "k": 12}
    assert not any("n=" in variant for variant, *_ in code_variants(parse(BATCH), target, larger))


ANCHORED = """
kernel k(x: f32[n,256], w: f32[512,256]) -> y: f32[n,512], z: f32[n]
  axis n, k in 512, j in 256
  grid n/192
  v0 = x[n,j]
  v1 = sum(v0 over j)
  v2 = v0 - v1
  v3 = w[0,j]
  v4 = dot(v2, v3 over j)
  stream k/256 with s = f64(0) [n]
    v5 = w[k,j]
    v6 = dot(v2, v5 over j)
    v7 = v6 - v4
    v8 = square(v7)
    s' = s + sum(v8 over k as f64)
    y[n,k] = v6
  v9 = f32(s)
  z[n] = v9
"""


def test_rows_of_a_product_are_no_vectors() -> None:
    """A column of a product that others are summed about has rows alone: what is stored and folded
    beside the product runs along its lines all the same, in blocks as of the product alone."""
    (phase,) = program(parse(ANCHORED)).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    assert nests.block == {"n": 192}
    assert [n.vector for n in nests.nests if n.order == ("n", "j") and n.reductions] == ["j"]
    assert [n.vector for n in nests.nests if n.order == ("n", "k") and n.stores] == ["k"]


@pytest.mark.parametrize("isa", RUNNABLE)
def test_what_sums_about_a_column_is_right(isa: Isa) -> None:
    kernel = native_kernel(parse(ANCHORED), isa)
    rng = np.random.default_rng(1)
    w = rng.standard_normal((512, 256)).astype(np.float32)
    for n in (1, 200, 401):
        x = rng.standard_normal((n, 256)).astype(np.float32)
        actual = kernel({"x": x, "w": w})
        y = (x - x.astype("f8").sum(1, keepdims=True)) @ w.T
        np.testing.assert_allclose(actual["y"], y, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(actual["z"], ((y - y[:, :1]) ** 2).sum(1), rtol=1e-4)


SQUEEZED = """
kernel k(x: f32[n,16,h*STEP,w*STEP], c: f32[5,16]) -> y: f32[n,16,h,w], z: f32[n,5]
  axis n, j in 16, h, w, u in 5
  grid n
  v0 = x[n,j,h*STEP,w*STEP]
  v1 = max(v0, 0)
  y[n,j,h,w] = v1
  v2 = sum(v1 over h, w)
  v3 = c[u,j]
  v4 = dot(v2, v3 over j)
  z[n,u] = v4
"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("step", [1, 2])
def test_what_is_stored_and_summed_for_a_product_runs_along_its_lines(step: int, isa: Isa) -> None:
    """However the results of the product lie: here its columns are the images of a batch, which
    lie far apart (squeeze and excitation)."""
    kernel = parse(SQUEEZED.replace("*STEP", f"*{step}" * (step > 1)))
    (phase,) = program(kernel).phases
    nests = schedule(phase, Target.for_isa(isa))
    (vector,) = [n.vector for n in nests.nests if n.stores and n.reductions]
    assert vector not in ("n", "j")
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 9, (19, 16, 7 * step, 9 * step)).astype(np.float32)
    c = rng.integers(-9, 9, (5, 16)).astype(np.float32)
    actual = native_kernel(kernel, isa)({"x": x, "c": c}, {"h": 7, "w": 9})
    expected = np.maximum(x[:, :, ::step, ::step], 0)
    np.testing.assert_array_equal(actual["y"], expected)
    np.testing.assert_array_equal(actual["z"], expected.sum((2, 3)) @ c.T)


CENTRED = """
kernel k(x: f32[n,40], c: f32[3,40]) -> y: f32[n], z: f32[n,3]
  axis n, j in 40, u in 3
  grid n
  v0 = x[n,j]
  v1 = max(v0 over j)
  v2 = v0 - v1
  v3 = square(v2)
  v4 = sum(v3 over j)
  y[n] = v4
  v5 = c[u,j]
  v6 = dot(v2, v5 over j)
  z[n,u] = v6
"""


def test_a_value_of_each_row_does_not_move_reductions_to_columns() -> None:
    """What is folded less a fold of its row: one number is read for all lanes of a line."""
    kernel = parse(CENTRED)
    (phase,) = program(kernel).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    assert [n.vector for n in nests.nests if n.reductions] == ["j", "j"]
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 9, (67, 40)).astype(np.float32)
    c = rng.integers(-9, 9, (3, 40)).astype(np.float32)
    actual = native_kernel(kernel, RUNNABLE[0])({"x": x, "c": c})
    less = x - x.max(1, keepdims=True)
    np.testing.assert_array_equal(actual["y"], (less * less).sum(1))
    np.testing.assert_array_equal(actual["z"], less @ c.T)
