"""Attention with extreme sinks, and with nothing visible.

The sink is a term of the sum or a column of the row, and scores lie near it or far beyond.  NaN is
where NumPy has it in single precision; elsewhere the error is at most a few times as large as
NumPy's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.catalogue.test_e_attention import Array

import smelt as sm

HEADS, LENGTH, DIM = 2, 150, 16
SINKS = {
    "near": (0.0, 1.0),
    "nothing": (-np.inf, 2.0),
    "everything": (np.inf, 0.0),
    "far": (-300.0, 300.0),
    "nan": (np.nan, 0.0),
}
Attention = Callable[..., Any]


def scores(xp: Any, q: Any, k: Any, mask: Any, off: Any) -> Any:
    return xp.where(mask, xp.matmul(q, xp.matrix_transpose(k)) + off, -np.inf)


def term(xp: Any, q: Any, k: Any, v: Any, sink: Any, mask: Any, off: Any) -> Any:
    s, c = scores(xp, q, k, mask, off), xp.expand_dims(sink, axis=(1, 2))
    top = xp.maximum(xp.max(s, axis=-1, keepdims=True), c)
    e = xp.exp(s - top)
    return xp.matmul(e / (xp.sum(e, axis=-1, keepdims=True) + xp.exp(c - top)), v)


def column(xp: Any, q: Any, k: Any, v: Any, sink: Any, mask: Any, off: Any) -> Any:
    s = scores(xp, q, k, mask, off)
    c = xp.broadcast_to(xp.expand_dims(sink, axis=(1, 2)), (*s.shape[:-1], 1))
    row = xp.concat([s, c], axis=-1)
    e = xp.exp(row - xp.max(row, axis=-1, keepdims=True))
    return xp.matmul((e / xp.sum(e, axis=-1, keepdims=True))[..., :-1], v)


def operands(scale: float, sink: tuple[float, float]) -> list[Array]:
    """Queries, keys, values, sinks and a mask with rows of no key and of one."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((HEADS, LENGTH, DIM), np.float32) for _ in range(3))
    mask = rng.random((HEADS, LENGTH, LENGTH)) < 0.5
    mask[0, 5] = mask[1, 7] = mask[0, 9] = False
    mask[0, 9, 3] = True
    return [q * np.float32(scale), k, v, np.array(sink, np.float32), mask]


@pytest.mark.parametrize("off", [0.0, -200.0, 300.0])
@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("attention", [term, column])
def test_edges_are_numpy_s(attention: Attention, sink: str, scale: float, off: float) -> None:
    arrays = [*operands(scale, SINKS[sink]), np.float32(off)]
    with np.errstate(all="ignore"):
        narrow = attention(np, *arrays)
        wide = attention(np, *(a.astype(float) if a.dtype == np.float32 else a for a in arrays))
    actual = np.asarray(sm.jit(lambda *a: attention(sm, *a))(*arrays))
    assert np.array_equal(np.isnan(actual), np.isnan(narrow))
    there = ~np.isnan(narrow)
    ours, theirs = (np.abs(x - wide)[there].max(initial=0) for x in (actual, narrow))
    assert ours <= 4 * theirs + 1e-5
    assert np.isnan(narrow).any() == (sink not in ("near", "far"))
