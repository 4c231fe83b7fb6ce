"""Reductions over axes without elements, compared with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import ShapeError, SmeltError

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*empty.*"),
]
SHAPES = (0,), (0, 3), (3, 0), (0, 0), (2, 0, 3)
AXES = None, 0, 1, -1, (0, 1)
REDUCTIONS = [
    "all", "any", "argmax", "argmin", "average", "count_nonzero", "flip", "max", "mean", "median",
    "min", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian",
    "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "prod", "std", "sum", "var",
]  # fmt: skip
QUANTILES = {"quantile": 0.5, "percentile": 50, "nanquantile": 0.5, "nanpercentile": 50}
NORMS = [{"ord": p} for p in (2, 1, 0, 3, np.inf, -np.inf, -1)]


def _result(call: Callable[[], Any]) -> Any:
    try:
        return np.asarray(call())
    except Exception as error:  # noqa: BLE001 - NumPy's errors are of several classes
        return error


def _check(
    f: Callable[..., Any], g: Callable[..., Any], shape: tuple[int, ...], *args: Any, **kw: Any
) -> None:
    x = np.zeros(shape)
    ours, theirs = (
        _result(lambda: f(sm.asarray(x), *args, **kw)),
        _result(lambda: g(x, *args, **kw)),
    )
    where = shape, kw
    if isinstance(theirs, Exception):
        is_more = not isinstance(ours, Exception)  # a value where NumPy has none
        assert is_more or isinstance(ours, SmeltError), where
        return
    assert not isinstance(ours, Exception), (where, ours)
    assert ours.dtype == theirs.dtype, where
    np.testing.assert_array_equal(ours, theirs, str(where))
    assert ours.shape == theirs.shape, where


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_nothing(name: str) -> None:
    f, g = getattr(sm, name), getattr(np, name)
    takes_keepdims = "keepdims" in inspect.signature(f).parameters
    for shape in SHAPES:
        for axis in AXES:
            _check(f, g, shape, axis=axis)
        if takes_keepdims:
            _check(f, g, shape, axis=0, keepdims=True)


@pytest.mark.parametrize("name", QUANTILES)
def test_quantiles_of_nothing(name: str) -> None:
    f, g = getattr(sm, name), getattr(np, name)
    for shape in SHAPES:
        for axis in AXES:
            _check(f, g, shape, QUANTILES[name], axis=axis)
    if name.startswith("nan"):
        result = f(sm.zeros((0, 3)), [QUANTILES[name]] * 2, axis=0)
        np.testing.assert_array_equal(result, np.full((2, 3), np.nan))
    else:
        with pytest.raises(ShapeError, match="no elements"):
            f(sm.zeros((0, 3)), QUANTILES[name], axis=0)


@pytest.mark.parametrize("options", NORMS)
def test_norms_of_nothing(options: dict[str, Any]) -> None:
    for shape in SHAPES:
        for axis in (None, 0, -1):
            f, g = sm.linalg.vector_norm, np.linalg.vector_norm
            _check(f, g, shape, axis=axis, **options)


@pytest.mark.parametrize("dtype", ["float16", "int64", "bool"])
def test_medians_of_nothing_have_the_dtype_of_medians(dtype: str) -> None:
    for f in (sm.median, sm.nanmedian):
        x, full = sm.zeros((0, 3), dtype=dtype), sm.ones((2, 3), dtype=dtype)
        assert f(x, axis=0).dtype == f(full, axis=0).dtype
        assert np.isnan(np.asarray(f(x, axis=0))).all()


def test_recordings_distinguish_empty_axes() -> None:
    f = sm.jit(lambda x: (sm.median(x, axis=0), sm.nanquantile(x, 0.5, axis=0)))
    for rows in (2, 0, 3, 0):
        x = np.ones((rows, 3))
        for result in f(x):
            np.testing.assert_array_equal(result, np.full(3, 1.0 if rows else np.nan))


def test_gradients_of_medians_of_nothing() -> None:
    assert sm.grad(lambda x: sm.sum(sm.median(x, axis=0)))(sm.zeros((0, 3))).shape == (0, 3)
