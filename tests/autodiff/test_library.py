"""Derivatives of library calls: sorting and dense linear algebra, against differences, twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import GradientError

RNG = np.random.default_rng(2)
STEP = 2.0**-13


def spd(x: Any) -> Any:
    """A symmetric positive definite matrix made of any."""
    return x @ x.mT + 2 * sm.eye(x.shape[-1])


def concatenated(factors: tuple[Any, ...]) -> Any:
    """All factors in one vector; the directions of vectors do not jump under small changes."""
    return sm.concat([sm.reshape(f, (-1,)) for f in factors])


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "sort": (lambda x: sm.sort(x, axis=0), ((5, 3),)),
    "sort downwards": (lambda x: sm.sort(x, descending=True), ((2, 5),)),
    "inv": (lambda x: sm.linalg.inv(spd(x)), ((2, 3, 3),)),
    "det": (sm.linalg.det, ((2, 3, 3),)),
    "solve": (lambda x, y: sm.linalg.solve(spd(x), y), ((3, 3), (3, 2))),
    "solve for a vector": (lambda x, y: sm.linalg.solve(spd(x), y), ((3, 3), (3,))),
    "cholesky": (lambda x: sm.linalg.cholesky(spd(x)), ((2, 3, 3),)),
    "slogdet": (lambda x: sm.linalg.slogdet(spd(x)).logabsdet, ((2, 3, 3),)),
    "eigh": (lambda x: concatenated(sm.linalg.eigh(spd(x))), ((2, 3, 3),)),
    "eigvalsh": (lambda x: sm.linalg.eigvalsh(spd(x)), ((3, 3),)),
    "svd": (lambda x: concatenated(sm.linalg.svd(x, full_matrices=False)), ((2, 4, 3),)),
    "svd of wide": (lambda x: concatenated(sm.linalg.svd(x, full_matrices=False)), ((3, 5),)),
    "svdvals": (sm.linalg.svdvals, ((2, 3, 5),)),
    "qr": (lambda x: concatenated(sm.linalg.qr(x)), ((2, 5, 3),)),
    "pinv": (sm.linalg.pinv, ((4, 3),)),
    "nuclear norm": (lambda x: sm.linalg.matrix_norm(x, ord="nuc"), ((3, 4),)),
    "matrix_power": (lambda x: sm.linalg.matrix_power(spd(x), -2), ((3, 3),)),
}


def total(name: str, xs: tuple[Any, ...]) -> Any:
    y = CASES[name][0](*xs)
    return sm.sum(sm.sin(y * 0.3) * 2)


def squared_slopes(name: str, xs: tuple[Any, ...]) -> Any:
    places = tuple(range(len(xs)))
    return sum(sm.sum(g * g) for g in sm.grad(lambda *ys: total(name, ys), places)(*xs))


@pytest.mark.parametrize("function", [total, squared_slopes], ids=["once", "twice"])
@pytest.mark.parametrize("name", CASES)
def test_against_differences(name: str, function: Any) -> None:
    arrays = [RNG.normal(size=s) for s in CASES[name][1]]
    ways = [RNG.choice([-1.0, 1.0], a.shape) for a in arrays]
    places = tuple(range(len(arrays)))
    slopes = sm.grad(lambda *xs: function(name, xs), places)(*arrays)
    actual = sum(float(sm.sum(g * w)) for g, w in zip(slopes, ways, strict=True))
    above, below = (
        float(function(name, tuple(sm.asarray(a + s * STEP * w) for a, w in zip(arrays, ways))))
        for s in (1, -1)
    )
    wanted = (above - below) / (2 * STEP)
    assert abs(actual - wanted) <= 1e-4 * max(1, abs(wanted)), (actual, wanted)


def test_complete_factors_have_no_derivative() -> None:
    x = sm.asarray(RNG.normal(size=(4, 2)))
    with pytest.raises(GradientError):
        sm.grad(lambda x: sm.sum(sm.linalg.svd(x).U))(x)
    with pytest.raises(GradientError, match="more columns"):
        sm.grad(lambda x: sm.sum(sm.linalg.qr(x).Q))(x.T)


def test_positions_have_no_derivative() -> None:
    """Integers carry none, and `searchsorted` gives integers."""
    x = sm.asarray([3.0, 1.0, 2.0])
    slope = sm.grad(lambda x: sm.sum(x * sm.astype(sm.argsort(x), sm.float64)))(x)
    np.testing.assert_array_equal(np.asarray(slope), [1, 2, 0])
    with pytest.raises(GradientError):
        sm.grad(lambda x: sm.searchsorted(x, 1.5))(x)
