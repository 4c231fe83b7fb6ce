"""Derivative columns against finite differences of the reference columns, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smelt.ops.scalar import SCALARS

Array = Any


class NumpyAlgebra:
    """The `Algebra` of derivatives on float64 arrays: every row by its reference."""

    def const(self, value: float) -> Array:
        return np.float64(value)

    def __getattr__(self, name: str) -> Callable[..., Array]:
        return SCALARS[name].numpy


RNG = np.random.default_rng(7)
BETWEEN = RNG.uniform(-0.9, 0.9, 50)
POSITIVE = RNG.uniform(0.2, 4.0, 50)
WIDE = RNG.uniform(-4.0, 4.0, 50)
OTHER = RNG.uniform(-4.0, 4.0, 50)

DOMAIN: dict[str, tuple[Array, ...]] = {
    **dict.fromkeys(("asin", "acos", "atanh"), (BETWEEN,)),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt"), (POSITIVE,)),
    "acosh": (POSITIVE + 1,),
    "pow": (POSITIVE, OTHER),
    "ldexp": (WIDE, RNG.integers(-3, 3, 50).astype(np.int32)),
    "select": (WIDE > 0, WIDE, OTHER),
    "fma": (WIDE, OTHER, WIDE[::-1]),
}


def _arguments(name: str) -> tuple[Array, ...]:
    if name in DOMAIN:
        return DOMAIN[name]
    return (WIDE,) if SCALARS[name].arity == 1 else (WIDE, OTHER)


SMOOTH = [
    (name, place)
    for name, row in SCALARS.items()
    if row.derivative
    for place, partial in enumerate(row.derivative)
    if partial and name != "nextafter"
]


@pytest.mark.parametrize(("name", "place"), SMOOTH)
def test_partial_derivative(name: str, place: int) -> None:
    """Central differences are good to about h² = 1e-8 here."""
    row = SCALARS[name]
    assert row.derivative is not None
    partial = row.derivative[place]
    assert partial is not None
    args = _arguments(name)
    step = 1e-4
    above, below = list(args), list(args)
    above[place], below[place] = args[place] + step, args[place] - step
    numeric = (row.numpy(*above) - row.numpy(*below)) / (2 * step)
    exact = np.broadcast_to(partial(NumpyAlgebra(), *args, row.numpy(*args)), numeric.shape)
    smooth = np.abs(numeric) < 500  # away from the jumps of floor and the poles of tan
    assert smooth.sum() >= 40
    np.testing.assert_allclose(exact[smooth], numeric[smooth], rtol=2e-5, atol=2e-5)


OF_KERNELS = {
    "exp_far",
    "exp_whole",
    "exp_over",
    "exp_moved",
    "exp2_whole",
    "exp2_byte",
    "exp2_over",
    "exp2_moved",
}
"""Rows that only kernels have: carried sums of exponentials."""


def test_all_float_functions_have_a_derivative() -> None:
    without = {name for name, row in SCALARS.items() if row.derivative is None}
    assert without == {
        "and", "eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "lt", "ne", "not", "or",
        "philox", "shl", "shr", "signbit", "xor", *OF_KERNELS,
    }  # fmt: skip


def test_ties_share_the_derivative_of_max_and_min() -> None:
    one = np.ones(3)
    for name in ("max", "min"):
        row = SCALARS[name]
        assert row.derivative is not None
        for partial in row.derivative:
            assert partial is not None
            np.testing.assert_array_equal(partial(NumpyAlgebra(), one, one, one), one / 2)


def test_power_has_finite_derivatives_at_zero() -> None:
    row = SCALARS["pow"]
    assert row.derivative is not None
    base, exponent = np.array([0.0, 0.0, 0.0]), np.array([0.0, 1.0, 2.0])
    by_base, by_exponent = row.derivative
    assert by_base is not None
    assert by_exponent is not None
    result = row.numpy(base, exponent)
    np.testing.assert_array_equal(by_base(NumpyAlgebra(), base, exponent, result), [0, 1, 0])
    np.testing.assert_array_equal(by_exponent(NumpyAlgebra(), base, exponent, result), [0, 0, 0])
