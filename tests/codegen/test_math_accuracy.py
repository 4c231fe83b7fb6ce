"""No function exceeds the error it promises (R8); the long form is `accuracy.py --whole`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.accuracy import SAMPLES, measure_double, measure_single
from tests.codegen.compile_scalar import LEVELS, compile_row
from tests.codegen.scalar_values import ULP_F32, ULP_F64

from smelt.ops.scalar import SCALARS
from smelt.types.dtype import f32, f64

STRIDE = 1021
"""A prime: about four million float32 values a function, of all mantissas."""


@pytest.mark.parametrize("name", ULP_F32)
def test_float32(name: str) -> None:
    worst = measure_single(name, STRIDE)
    assert worst.count > 4_000_000
    assert worst.ulps <= ULP_F32[name], worst.at


@pytest.mark.nightly
@pytest.mark.parametrize("name", ULP_F32)
def test_float32_at_length(name: str) -> None:
    worst = measure_single(name, 61)
    assert worst.ulps <= ULP_F32[name], worst.at


@pytest.mark.parametrize("name", SAMPLES)
def test_float64(name: str) -> None:
    worst = measure_double(name, 600)
    assert worst.ulps <= ULP_F64[name], worst.at


@pytest.mark.skipif("avx2" not in LEVELS, reason="no AVX2 on this machine")
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sin", "sigmoid"])
def test_float32_without_avx512(name: str) -> None:
    worst = measure_single(name, 40961, "avx2")
    assert worst.ulps <= ULP_F32[name], worst.at


def test_powers_of_small_integers_are_exact() -> None:
    for dtype, top in ((f32, 24), (f64, 53)):
        base, exponent = np.meshgrid(np.arange(-12, 13), np.arange(0, 30))
        exact = base.astype(object) ** exponent.astype(object)
        keep = np.array([abs(v) < 2**top for v in exact.ravel()]).reshape(exact.shape)
        power = compile_row(SCALARS["pow"], (dtype, dtype))
        got = power(base[keep].astype(dtype.numpy), exponent[keep].astype(dtype.numpy))
        np.testing.assert_array_equal(got, exact[keep].astype(dtype.numpy))


def test_logarithms_and_exponentials_of_two_are_exact() -> None:
    n = np.arange(-149, 128)
    x = (2.0**n).astype(np.float32)
    np.testing.assert_array_equal(compile_row(SCALARS["log2"], (f32,))(x), n)
    np.testing.assert_array_equal(compile_row(SCALARS["exp2"], (f32,))(n.astype(np.float32)), x)
    n = np.arange(-1074, 1024)
    x = np.ldexp(1.0, n)
    np.testing.assert_array_equal(compile_row(SCALARS["log2"], (f64,))(x), n)
    np.testing.assert_array_equal(compile_row(SCALARS["exp2"], (f64,))(n.astype(np.float64)), x)


def test_decimal_logarithms_of_powers_of_ten_are_exact() -> None:
    n = np.arange(0, 11)
    ten = compile_row(SCALARS["log10"], (f32,))((10.0**n).astype(np.float32))
    np.testing.assert_array_equal(ten, n)
    n = np.arange(0, 23)
    ten = compile_row(SCALARS["log10"], (f64,))(np.array([float(10 ** int(k)) for k in n]))
    np.testing.assert_array_equal(ten, n)


def test_huge_angles_keep_their_accuracy() -> None:
    x = np.array([1e5, 123456.789, 1e10, 3e20, 1e30, 3.4e38, -1e35], np.float32)
    for name in ("sin", "cos", "tan"):
        want = SCALARS[name].numpy(x)
        got = compile_row(SCALARS[name], (f32,))(x)
        np.testing.assert_allclose(got, want, rtol=3e-7)
