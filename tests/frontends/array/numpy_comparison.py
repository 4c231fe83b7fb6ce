"""Run one function with NumPy and with Smelt as its namespace and compare the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import smelt as sm

MODES = ("lazy", "jit")


def run(mode: str, f: Callable[..., Any], *arrays: Any) -> Any:
    """`f(sm, *arrays)` recorded lazily or by `sm.jit`."""
    if mode == "lazy":
        return f(sm, *(sm.asarray(a) for a in arrays))
    return sm.jit(lambda *xs: f(sm, *xs))(*arrays)


def leaves(x: Any) -> list[Any]:
    if isinstance(x, (tuple, list)):
        return [leaf for item in x for leaf in leaves(item)]
    return [x]


def check(
    mode: str, f: Callable[..., Any], *arrays: Any, rtol: float = 1e-12, atol: float = 1e-12
) -> None:
    """Same shapes, dtypes and values as NumPy's, up to the given error."""
    with np.errstate(all="ignore"):
        wanted = leaves(f(np, *arrays))
    actual = leaves(run(mode, f, *arrays))
    assert len(wanted) == len(actual)
    for a, b in zip(wanted, actual, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert b.shape == a.shape
        assert b.dtype == a.dtype
        if a.dtype.kind in "fV":
            np.testing.assert_allclose(
                b.astype(np.float64), a.astype(np.float64), rtol=rtol, atol=atol
            )
        else:
            np.testing.assert_array_equal(b, a)
