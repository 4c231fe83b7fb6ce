"""When reductions of few columns leave the kernel of a product.

With many rows they are kernels whose vectors run along rows; with few rows they stay, and one
kernel starts once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm


def softmax(x: Any, w: Any) -> Any:
    return sm.nn.softmax(x @ w, axis=-1)


def inputs_of(rows: int, columns: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    shapes = (rows, 64), (64, columns)
    x, w = (rng.standard_normal(s, dtype=np.float32) for s in shapes)
    return x, w


@pytest.mark.parametrize(
    ("rows", "columns", "kernels"), [(8192, 3, 2), (8192, 10, 2), (8192, 256, 1), (8, 3, 1)]
)
def test_kernels(rows: int, columns: int, kernels: int) -> None:
    x, w = inputs_of(rows, columns)
    assert len(sm.explain(softmax, x, w).kernels) == kernels
    s = x.astype(np.float64) @ w
    e = np.exp(s - s.max(-1, keepdims=True))
    wanted = e / e.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(sm.jit(softmax)(x, w)), wanted, rtol=1e-4, atol=1e-6)
