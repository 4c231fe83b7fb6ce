"""Split axes that vectors run along: few columns, and short rows that are folded first."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

Function = Callable[[Any, Any], Any]


def _log_sum_exp(xp: Any, x: Any) -> Any:
    top = xp.max(x, axis=1, keepdims=True)
    return xp.log(xp.sum(xp.exp(x - top), axis=1)) + top[:, 0]


FEW_COLUMNS: dict[str, Function] = {
    "sum": lambda xp, x: xp.sum(x, axis=0),
    "max": lambda xp, x: xp.max(x, axis=0),
    "two": lambda xp, x: (xp.min(x * 2, axis=0), xp.mean(x * x, axis=0)),
    "variance": lambda xp, x: xp.var(x, axis=0),
    "any": lambda xp, x: xp.any(x > 2, axis=0),
}
SHORT_ROWS: dict[str, Function] = {
    "mean of maxima": lambda xp, x: xp.mean(xp.max(x, axis=1)),
    "mean of log-sum-exp": lambda xp, x: xp.mean(_log_sum_exp(xp, x)),
    "last winner": lambda xp, x: xp.max(xp.argmax(x, axis=1)),
    "columns of shares": lambda xp, x: xp.sum(
        x / (1 + xp.max(xp.abs(x), axis=1, keepdims=True)), axis=0
    ),
}
SIZES = [(40_000, 3), (8_191, 5), (300, 7), (1, 2), (0, 3), (5_000, 40), (256, 1)]
"""The first decides the form; the others run the same code, whatever their rows are."""


@pytest.mark.parametrize("name", [*FEW_COLUMNS, *SHORT_ROWS])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_vectors_along_a_split_axis_agree_with_numpy(name: str, dtype: str) -> None:
    function = {**FEW_COLUMNS, **SHORT_ROWS}[name]
    compiled = sm.jit(lambda x: function(sm, x))
    for size in SIZES:
        if not size[0] and name not in ("sum", "any", "columns of shares"):
            continue  # no winner, no mean of nothing
        x = np.random.default_rng(size[0]).standard_normal(size).astype(dtype)
        want, result = function(np, x.astype("f8")), compiled(x)
        pairs = zip(want, result, strict=True) if isinstance(want, tuple) else [(want, result)]
        # A sum of n numbers about 1 large errs by rounding them and the result, not by n.
        tolerance = 4 * np.finfo(dtype).eps * max(np.sqrt(size[0]), 1)
        for a, b in pairs:
            np.testing.assert_allclose(np.asarray(b), a, rtol=tolerance, atol=tolerance)


def test_few_columns_and_short_rows_are_loaded_across_rows() -> None:
    x = np.zeros((40_000, 3), np.float32)
    for function in (FEW_COLUMNS["sum"], SHORT_ROWS["mean of maxima"]):
        (kernel,) = sm.explain(sm.jit(lambda x, f=function: f(sm, x)), x).kernels
        assert "stream n0/256 of p" in kernel.text
        assert "masked.gather" in kernel.llvm


def test_few_long_rows_are_read_along_themselves() -> None:
    x = np.zeros((4, 40_000), np.float32)
    (kernel,) = sm.explain(sm.jit(lambda x: sm.sum(x, axis=1)), x).kernels
    assert "split(n1" in kernel.text and "masked.gather" not in kernel.llvm
