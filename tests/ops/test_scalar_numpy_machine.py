"""The NumPy machine: exact fused multiply-add, scaling, splitting, division."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.codegen.scalar_values import special
from tests.ops.numpy_machine import NumpyMachine

from smelt.types.dtype import DType, bool_, f32, f64, i32, u8

MACHINE = NumpyMachine()


def _exact(a: float, b: float, c: float, dtype: DType) -> Fraction:
    return Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_fma_rounds_once(dtype: DType) -> None:
    """The result is the nearest number: no neighbour is closer to the exact value."""
    rng = np.random.default_rng(11)
    size = 400
    a, b = (rng.standard_normal(size).astype(dtype.numpy) for _ in range(2))
    near = -(a.astype(np.float64) * b).astype(dtype.numpy)  # heavy cancellation
    c = np.where(np.arange(size) % 2 == 0, near, rng.standard_normal(size)).astype(dtype.numpy)
    scales = 2.0 ** rng.integers(-60, 60, size)
    a = (a * scales).astype(dtype.numpy)
    c = (c * scales).astype(dtype.numpy)
    got = MACHINE.fma(a, b, c)
    for x, y, z, r in zip(a, b, c, got, strict=True):
        exact = _exact(x, y, z, dtype)
        error = abs(Fraction(float(r)) - exact)
        for direction in (-np.inf, np.inf):
            other = np.nextafter(r, dtype.numpy.type(direction))
            assert error <= abs(Fraction(float(other)) - exact), (x, y, z)


def test_fma_at_the_ends_of_the_range() -> None:
    huge, tiny = np.float64(1.7e308), np.float64(5e-324)
    assert MACHINE.fma(huge, np.float64(2), -huge) == huge
    assert MACHINE.fma(huge, huge, np.float64(0)) == np.inf
    assert MACHINE.fma(tiny, np.float64(0.5), tiny) == 2 * tiny  # a tie, to even
    assert np.isnan(MACHINE.fma(np.float64(np.inf), np.float64(0), np.float64(1)))
    assert MACHINE.fma(np.float32(3e38), np.float32(2), np.float32(-3e38)) == np.float32(3e38)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_split_puts_numbers_back_together(dtype: DType) -> None:
    x = np.abs(special(dtype))
    x = x[np.isfinite(x) & (x > 0)]
    fraction, exponent = MACHINE.split(x)
    assert ((fraction >= 0.75) & (fraction < 1.5)).all()
    np.testing.assert_array_equal(np.ldexp(fraction, exponent.astype(int)), x)
    zero = np.zeros(1, dtype.numpy)
    assert MACHINE.split(zero)[1] == -np.inf
    assert np.isnan(MACHINE.split(-np.ones(1, dtype.numpy))[0])


def test_integer_division_truncates() -> None:
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    np.testing.assert_array_equal(MACHINE.divide_int(a, b, signed=True), [3, -3, -3, 3])
    wrapped = np.array([250, 7], np.uint8).view(np.int8)
    np.testing.assert_array_equal(
        MACHINE.divide_int(wrapped, np.array([3, 2], np.int8), signed=False).view(np.uint8), [83, 3]
    )


def test_constants_wrap_and_round() -> None:
    assert MACHINE.const(u8, -1) == 255
    assert MACHINE.const(i32, 1 << 31) == np.int32(-(1 << 31))
    assert MACHINE.const(f32, 0.1) == np.float32(0.1)
    assert MACHINE.const(bool_, 1) == np.True_
