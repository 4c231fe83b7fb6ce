"""Sums and differences of bools: NumPy forms them by "or" and "xor" in places, else as integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt.numpy as snp

V = np.array([1, 1, 0, 1, 1, 1, 0, 1], bool)
W = np.array([0, 1, 1, 1, 0, 1, 1, 1], bool)
M = np.array([[1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 0]], bool)
X = np.arange(8.0) ** 2

CASES: dict[str, Callable[[Any], Any]] = {
    "trapezoid": lambda np: (np.trapezoid(V), np.trapezoid(V, X), np.trapezoid(M, axis=0)),
    "trapezoid at bools": lambda np: (np.trapezoid(V, W), np.trapezoid(X, V)),
    "diff": lambda np: (np.diff(V), np.diff(V, 2), np.diff(M, axis=0), np.diff(V, prepend=True)),
    "convolve": lambda np: (
        np.convolve(V, W),
        np.convolve(V, W, "same"),
        np.correlate(V, W, "full"),
    ),
    "dot": lambda np: (np.dot(V, W), np.dot(M, M), np.inner(M, M), np.vdot(V, W), np.vecdot(M, M)),
    "products": lambda np: (np.matmul(M, M), np.outer(V, W), np.kron(V, W), np.tensordot(M, M, 1)),
    "power": lambda np: np.linalg.matrix_power(M, 3),
    "multi_dot": lambda np: np.linalg.multi_dot([M, M, M]),
    "einsum": lambda np: (np.einsum("ij,jk", M, M), np.einsum("ij->i", M), np.einsum("ii", M)),
    "sum": lambda np: (np.sum(V), np.sum(V, dtype=bool), np.sum(M, 0), np.nansum(V), np.trace(M)),
    "prod": lambda np: (np.prod(V), np.prod(M, 1), np.prod(V, dtype=bool), np.nanprod(V)),
    "running": lambda np: (np.cumsum(V), np.cumprod(V), np.cumsum(V, dtype=bool), np.nancumsum(V)),
    "mean": lambda np: (np.mean(V), np.var(V), np.std(M, 0), np.average(V), np.median(V)),
    "average": lambda np: (np.average(V, weights=W), np.average(X, weights=W)),
    "cov": lambda np: (np.cov(V, W), np.corrcoef(V, W)),
    "norm": lambda np: (np.linalg.norm(V), np.linalg.norm(V, 1), np.linalg.norm(V, 0)),
    "bincount": lambda np: (np.bincount(V), np.bincount(np.arange(8) % 3, weights=V)),
    "interp": lambda np: np.interp([0.5], [0.0, 1.0], [True, False]),
    "polynomials": lambda np: (np.polyval(V[:3], W), np.polymul(V, W), np.polyadd(V, W)),
    "add": lambda np: (np.add(V, W), np.multiply(V, W), np.add.outer(V, W), np.add.reduce(V)),
    "divide": lambda np: (np.divide(V, W), np.floor_divide(V, W), np.remainder(V, W)),
    "count": lambda np: (np.count_nonzero(V), np.all(V), np.any(M, 0), np.bitwise_xor.reduce(V)),
}


@pytest.mark.parametrize("name", CASES)
def test_bools_are_summed_as_numpy_sums_them(name: str) -> None:
    with np.errstate(all="ignore"):
        want, actual = CASES[name](np), CASES[name](snp)
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (actual, want)), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-14)
