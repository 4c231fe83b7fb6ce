"""No function exceeds the error it promises (R8); the long form is `accuracy.py --whole`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.accuracy import SAMPLES, measure_double, measure_single
from tests.codegen.compile_scalar import LEVELS, compile_row
from tests.codegen.scalar_values import ULP_F32, ULP_F64, ulps

from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, f32, f64

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


@pytest.mark.parametrize("isa", LEVELS[1:-1])
@pytest.mark.parametrize("name", ["log", "log2", "log10", "pow"])
def test_float64_without_avx512(name: str, isa: str) -> None:
    """Tables are read lane by lane there, or divisions take their place."""
    worst = measure_double(name, 600, isa)
    assert worst.ulps <= ULP_F64[name], worst.at


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_extreme_powers(dtype: DType, isa: str) -> None:
    """What neither a product with a logarithm nor its sign tells is as C99 says."""
    numbers = [0.0, 5e-324, 1e-45, 1e-310, 0.5, 1 - 2.0**-24, 1.0, 1 + 2.0**-23, 2.0, 3.0, 1e300]
    numbers += [2.0**31 + 1, 2.0**52 + 1, 1e-300, 1e38, np.inf, np.nan, 1e9, 2.5]
    with np.errstate(all="ignore"):
        values = np.array([*numbers, *(-v for v in numbers)]).astype(dtype.numpy)
        x, y = (a.ravel() for a in np.meshgrid(values, values))
        want = np.power(x.astype(np.longdouble), y.astype(np.longdouble)).astype(dtype.numpy)
    lanes = 64 // dtype.itemsize
    for width in (lanes, lanes // 2, 3 * lanes // 2, None):
        got = compile_row(SCALARS["pow"], (dtype, dtype), width, isa)(x, y)
        assert ulps(got, want).max() <= 1
        np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[got == 0]))


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
