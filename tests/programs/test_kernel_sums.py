"""Sums of distance kernels (Gaussian, Laplace, forces between bodies).

No product makes the weights, yet they are computed once for all columns, in tiles, with lanes along
the points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm


def squares(x: Any, y: Any) -> Any:
    return sm.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)


def gaussian(x: Any, y: Any, v: Any) -> Any:
    return sm.exp(-squares(x, y)) @ v


def regression(x: Any, y: Any, v: Any) -> Any:
    weights = sm.exp(-squares(x, y))
    return (weights @ v) / sm.sum(weights, axis=-1, keepdims=True)


def laplace(x: Any, y: Any, v: Any) -> Any:
    return sm.exp(-sm.sum(sm.abs(x[:, None, :] - y[None, :, :]), axis=-1)) @ v


def nearest(x: Any, y: Any, v: Any) -> Any:
    return sm.nn.softmax(-squares(x, y), axis=-1) @ v


def forces(x: Any, y: Any, v: Any) -> Any:
    pull = v[:, 0] * (squares(x, y) + 0.1) ** -1.5
    return sm.sum(pull[:, :, None] * (y[None, :, :] - x[:, None, :]), axis=1)


def in_numpy(code: Callable[..., Any], x: Any, y: Any, v: Any) -> Any:
    x, y, v = (a.astype(np.float64) for a in (x, y, v))
    apart = x[:, None, :] - y[None, :, :]
    far = (apart**2).sum(-1)
    if code is laplace:
        return np.exp(-abs(apart).sum(-1)) @ v
    if code is forces:
        return ((v[:, 0] * (far + 0.1) ** -1.5)[:, :, None] * -apart).sum(1)
    weights = np.exp(-far)
    return weights @ v / (1 if code is gaussian else weights.sum(-1, keepdims=True))


CODES = (gaussian, regression, laplace, nearest, forces)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("rows", "points", "width", "columns"),
    [(200, 1500, 3, 16), (65, 1030, 2, 1), (1, 2000, 3, 5), (7, 1100, 8, 70), (130, 1, 3, 4)],
)
def test_against_float64(
    code: Callable[..., Any], rows: int, points: int, width: int, columns: int
) -> None:
    rng = np.random.default_rng(rows)
    x, y = (rng.random((n, width)).astype(np.float32) for n in (rows, points))
    v = rng.random((points, columns)).astype(np.float32)  # of one sign: nothing cancels
    if code is forces:
        y += 1  # nor here
    actual = np.asarray(sm.jit(code)(x, y, v))
    wanted = in_numpy(code, x, y, v)
    # a distance's, a power's and a sum's roundings; no exponent is beyond 3 · width
    limit = (points**0.5 * 4 + 12 * width + 40) * 2.0**-24
    np.testing.assert_allclose(actual, wanted, rtol=limit, atol=0)


@pytest.mark.parametrize("code", [gaussian, regression, nearest])
def test_tasks_take_rows_of_points_and_all_columns(code: Callable[..., Any]) -> None:
    """The weights of 64 rows are made once: columns are inside, however many rows there are."""
    rng = np.random.default_rng(0)
    x, y = (rng.random((n, 3)).astype(np.float32) for n in (512, 2048))
    v = rng.random((2048, 16)).astype(np.float32)
    (kernel,) = sm.explain(code, x, y, v).kernels
    grid = next(line for line in kernel.text.splitlines() if line.strip().startswith("grid"))
    assert grid.split() == ["grid", "n0/64"]
