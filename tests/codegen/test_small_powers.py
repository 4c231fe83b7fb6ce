"""Powers with a small number as exponent are multiplied out, and nearly rounded once."""

import numpy as np
import pytest

import smelt as sm

EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e-45, -1e-39, 3e38, -3e38, 1e308]
WIDE = {"f4": 40.0, "f8": 300.0}
"""Decades that the bases span on both sides of one."""
LIMIT = {"f4": 0.5001, "f8": 0.55}
"""Units in the last place: float64 keeps two numbers and adds them at the end."""


def _bases(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    near = rng.standard_normal(20_000)
    far = rng.standard_normal(20_000) * 10.0 ** rng.uniform(-WIDE[dtype], WIDE[dtype], 20_000)
    with np.errstate(over="ignore"):
        return np.concatenate([near, far, EDGES]).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("exponent", [-1, 0.5, *range(3, 9)])
def test_power_is_rounded_once(dtype: str, exponent: float) -> None:
    x = _bases(dtype)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), np.longdouble(exponent))
        want = exact.astype(dtype)
    actual = np.asarray(sm.jit(lambda x: x**exponent)(x))
    odd = ~np.isfinite(want) | (want == 0)
    np.testing.assert_array_equal(actual[odd], want[odd])
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(np.where(odd, want, actual)))
    unit = np.spacing(np.abs(want[~odd]))
    error = np.abs(actual[~odd].astype(np.longdouble) - exact[~odd]) / unit
    tiny = np.finfo(dtype).tiny * 2.0**8
    assert error[np.abs(want[~odd]) >= tiny].max() <= LIMIT[dtype]
    assert error.max() <= (LIMIT[dtype] if dtype == "f4" else 1.5)


def test_a_number_known_at_run_time_gives_the_general_power() -> None:
    x = np.linspace(0.1, 4, 1000, dtype=np.float32)
    y = np.float32(3)
    general = np.asarray(sm.jit(lambda x, y: x**y)(x, np.full_like(x, y)))
    exact = np.asarray(sm.jit(lambda x: x**3)(x))
    assert np.abs(general - exact).max() <= np.spacing(exact.max())
