"""Counts and sums in gradients of half types: 70,000 is more than float16 has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import smelt as sm
import smelt.numpy as snp

COUNT = 70_000
WHERE = np.zeros(COUNT, np.int64)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "max": sm.max,
    "min": sm.min,
    "mean": sm.mean,
    "var": sm.var,
    "median": snp.median,
    "quantile": lambda x: snp.quantile(x, 0.7),
    "nanmean": snp.nanmean,
    "norm": sm.linalg.vector_norm,
    "largest": lambda x: sm.linalg.vector_norm(x, ord=np.inf),
    "take": lambda x: sm.mean(sm.take(x, WHERE)),
}
"""Functions of many equal numbers."""


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_equal_halves_count_them_all(name: str, dtype: Any) -> None:
    x = np.full(COUNT, 1.5)
    value, slope = sm.value_and_grad(FUNCTIONS[name])(x.astype(dtype))
    exact_value, exact_slope = sm.value_and_grad(FUNCTIONS[name])(x)
    unit = float(ml_dtypes.finfo(dtype).eps)
    for actual, want in ((value, exact_value), (slope, exact_slope)):
        assert actual.dtype == np.dtype(dtype)
        least = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        np.testing.assert_allclose(
            np.asarray(actual).astype(float), np.asarray(want), rtol=unit, atol=least
        )
