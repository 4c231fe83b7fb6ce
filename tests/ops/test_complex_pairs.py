"""Rules of complex numbers against NumPy's complex arithmetic, on random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.ops import complex_pairs

XP = complex_pairs.namespace(np, atan2=np.arctan2)
_NUMPYS = {"sign": lambda z: z / abs(z), "abs": np.abs}
_PARTS = st.floats(-30, 30, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
_NUMBERS = st.lists(st.tuples(_PARTS, _PARTS), min_size=1, max_size=8)


def pair_of(z: Any) -> tuple[Any, Any]:
    return z.real.copy(), z.imag.copy()


def assert_close(actual: Any, wanted: Any) -> None:
    error = np.abs(actual - wanted)
    assert (error <= 1e-12 * np.maximum(np.abs(wanted), 1)).all(), (actual, wanted)


@pytest.mark.parametrize("name", complex_pairs.FUNCTIONS)
@settings(max_examples=20, deadline=None)
@given(numbers=_NUMBERS)
def test_functions_agree_with_numpy(name: str, numbers: Any) -> None:
    z = np.array([complex(*x) for x in numbers])
    z = z[np.abs(z) > 0]
    with np.errstate(all="ignore"):
        wanted = (_NUMPYS.get(name) or getattr(np, name))(z)
        actual: Any = complex_pairs.FUNCTIONS[name](XP, pair_of(z))
        actual = actual[0] + 1j * actual[1] if isinstance(actual, tuple) else actual
    assert_close(actual * 1.0, wanted * 1.0)


@pytest.mark.parametrize("name", ["sin", "cos", "tan", "sinh", "cosh", "tanh"])
def test_zeros_have_numpys_signs(name: str) -> None:
    parts = [0.0, -0.0, 0.5, -0.5, 2.0, -2.0, 4.0, -4.0]
    z = np.array([complex(a, b) for a in parts for b in parts])
    wanted: Any = getattr(np, name)(z)
    actual: Any = complex_pairs.FUNCTIONS[name](XP, pair_of(z))
    for a, b in zip(actual, (wanted.real, wanted.imag), strict=True):
        zero = b == 0.0
        assert (np.signbit(a) == np.signbit(b))[zero].all()


@np.errstate(all="ignore")
@settings(max_examples=60, deadline=None)
@given(numbers=_NUMBERS, other=st.tuples(_PARTS, _PARTS), exponent=st.integers(-5, 5))
def test_operators_agree_with_numpy(numbers: Any, other: Any, exponent: int) -> None:
    z, w = np.array([complex(*x) for x in numbers]), complex(*other)
    z, w = z + (z == 0), w + (w == 0)
    x, y = pair_of(z), pair_of(np.full_like(z, w))
    real = x[0], None
    for rule, f in (
        (complex_pairs.add, lambda a, b: a + b),
        (complex_pairs.subtract, lambda a, b: a - b),
        (complex_pairs.multiply, lambda a, b: a * b),
        (lambda a, b: complex_pairs.divide(XP, a, b), lambda a, b: a / b),
    ):
        assert_close(np.array(rule(x, y)), np.array(pair_of(f(z, w))))
        assert_close(np.array(rule(real, y)), np.array(pair_of(f(z.real, w))))
    power = complex_pairs.power(XP, x, exponent)
    assert (power is None) == (exponent == 0)
    if power is not None:
        wanted = z**exponent
        assert (np.abs(power[0] + 1j * power[1] - wanted) <= 1e-12 * np.abs(wanted)).all()


def test_a_real_operand_has_no_imaginary_part_to_compute_with() -> None:
    assert complex_pairs.multiply((np.inf, None), (1.0, 2.0)) == (np.inf, np.inf)
    assert all(np.isnan(complex_pairs.multiply((np.inf, 0.0), (1.0, 0.0))) == (False, True))
    assert complex_pairs.subtract((1.0, None), (1.0, 2.0)) == (0.0, -2.0)
