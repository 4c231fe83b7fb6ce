"""±0, ±inf, NaN, subnormal and largest numbers: compiled exact functions have NumPy's bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.scalar_values import special
from tests.codegen.test_math_rows import bits
from tests.trust import measured

import smelt as sm
import smelt.numpy as snp
from smelt.types.dtype import DType, f16, f32, f64

UNARY: dict[str, Callable[..., Any]] = {
    **{
        name: lambda np, x, name=name: getattr(np, name)(x)
        for name in (
            "absolute",
            "negative",
            "positive",
            "sign",
            "ceil",
            "floor",
            "rint",
            "trunc",
            "fix",
            "sqrt",
            "reciprocal",
            "square",
            "isnan",
            "isinf",
            "isfinite",
            "signbit",
            "fabs",
            "nan_to_num",
            "angle",
        )
    },
    "clip 0 to 1": lambda np, x: np.clip(x, 0, 1),
    "clip -0 to 1": lambda np, x: np.clip(x, -0.0, 1),
    "clip -1 to 0": lambda np, x: np.clip(x, -1, 0),
    "remainder by 1": lambda np, x: x % 1,
    "remainder by -1": lambda np, x: x % -1,
    "floored": lambda np, x: x // 2,
    "floored by -2": lambda np, x: x // -2,
    "divmod": lambda np, x: np.divmod(x, 2)[1],
    "modf": lambda np, x: np.modf(x)[0],
    "times 0": lambda np, x: x * 0,
    "times -1": lambda np, x: x * -1,
    "plus 0": lambda np, x: x + 0,
    "plus -0": lambda np, x: x + -0.0,
    "from 0": lambda np, x: 0 - x,
    "from -0": lambda np, x: -0.0 - x,
    "by -0": lambda np, x: x / -0.0,
    "1 by": lambda np, x: 1 / x,
    "minus itself": lambda np, x: x - x,
    "plus its negative": lambda np, x: x + (-x),
    "negative difference": lambda np, x: -(x - 1),
    "squared": lambda np, x: x**2,
    "copysign": lambda np, x: np.copysign(x, -0.0),
    "where": lambda np, x: np.where(x > 0, x, x * -0.0),
    "sum of two": lambda np, x: np.sum(np.stack([x, x], 1), 1),
    "sum of three": lambda np, x: np.sum(np.stack([x, x, x], 1), 1),
}
ORDERED: dict[str, Callable[..., Any]] = {
    "maximum of 0": lambda np, x: np.maximum(x, 0),
    "0 and maximum": lambda np, x: np.maximum(0.0, x),
    "minimum of -0": lambda np, x: np.minimum(x, -0.0),
    "clip from 0": lambda np, x: np.clip(x, 0, None),
    "clip to 0": lambda np, x: np.clip(x, None, 0),
    "maximum of two": lambda np, x: np.maximum(np.maximum(x, 0.0), -0.0),
}
"""They return the second of two zeros, as NumPy's loops for float32 and float64 do."""
BINARY: dict[str, Callable[..., Any]] = {
    name: lambda np, x, y, name=name: getattr(np, name)(x, y)
    for name in (
        "add",
        "subtract",
        "multiply",
        "divide",
        "floor_divide",
        "remainder",
        "fmod",
        "copysign",
        "equal",
        "less",
        "greater_equal",
    )
}
ORDERED_PAIRS: dict[str, Callable[..., Any]] = {
    name: lambda np, x, y, name=name: getattr(np, name)(x, y) for name in ("maximum", "minimum")
} | {
    "both orders": lambda np, x, y: np.copysign(np.maximum(x, y), np.maximum(y, x)),
    "clip": lambda np, x, y: np.clip(x, y, None),
    "bounded": lambda np, x, y: np.minimum(np.maximum(x, y), y),
}


@pytest.mark.parametrize("dtype", [f32, f16, pytest.param(f64, marks=pytest.mark.nightly)], ids=str)
@pytest.mark.parametrize("arity", [1, 2])
def test_special_numbers_have_numpys_bits(arity: int, dtype: DType) -> None:
    table, ordered = ((UNARY, ORDERED), (BINARY, ORDERED_PAIRS))[arity - 1]
    if dtype != f16:
        table = table | ordered
    x = special(dtype)
    operands = (np.tile(x, 3),) if arity == 1 else (np.repeat(x, len(x)), np.tile(x, len(x)))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5 has one for `fix`
        wanted = [np.asarray(f(np, *operands)) for f in table.values()]
    results = sm.jit(lambda *xs: tuple(f(snp, *xs) for f in table.values()))(*operands)
    for name, result, want in zip(table, results, wanted, strict=True):
        assert result.dtype == want.dtype, name
        differs = np.flatnonzero(bits(result, result.dtype) != bits(want, result.dtype))
        cases = [
            (tuple(o[k] for o in operands), np.asarray(result)[k], want[k]) for k in differs[:2]
        ]
        assert not cases, (name, cases)
    measured("results compared", len(table) * len(operands[0]))


@pytest.mark.parametrize("x", [3.4028234663852886e38, -1e38, 1e-45, 8.0])
def test_cube_roots_of_extremes_are_finite(x: float) -> None:
    np.testing.assert_allclose(
        np.asarray(snp.cbrt(np.float32(x))), np.cbrt(np.float32(x)), rtol=3e-7
    )


def test_sums_of_equal_infinities_of_exponentials() -> None:
    for x in (np.inf, -np.inf):
        assert snp.logaddexp2(x, x) == x
