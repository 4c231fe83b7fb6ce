"""Attention and regression whose weights are divided by their sum, with no maximum: one kernel that
stores no weight, and numbers where plain code has them, however large or small the weights are.

Weights are carried under a power of 2 near their running sum (`fusion/cascade/weighed.py`): without
it, products of large ones would be infinite and those of small ones vanish.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.catalogue.test_e_attention import Array

import smelt as sm
from smelt.kernel.ir import Stream
from smelt.kernel.text import parse

HEADS, LENGTH, DIM = 2, 1100, 16
WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda xp, s: xp.exp(s),
    "relu": lambda xp, s: xp.maximum(s, xp.zeros_like(s)),
    "square": lambda xp, s: s * s,
    "sigmoid": lambda xp, s: 1 / (1 + xp.exp(-s)),
    "bell": lambda xp, s: xp.exp(-(s * s)),
    "signed": lambda xp, s: s,
}


def attention(weight: str, masked: bool, scale: float = 0.25) -> Callable[..., Any]:
    def code(q: Any, k: Any, v: Any) -> Any:
        xp: Any = np if isinstance(q, np.ndarray) else sm
        s = xp.matmul(q, xp.matrix_transpose(k)) * scale
        if masked:
            i, j = xp.arange(s.shape[-2]), xp.arange(s.shape[-1])
            nothing = -np.inf if weight in ("exp", "sigmoid", "bell") else 0.0
            s = xp.where(i[:, None] >= j[None, :], s, nothing)
        e = WEIGHTS[weight](xp, s)
        return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)

    return code


def operands(length: int = LENGTH, dtype: type = np.float32) -> list[Array]:
    rng = np.random.default_rng(length)
    return [rng.standard_normal((HEADS, length, DIM)).astype(dtype) for _ in range(3)]


def plain(code: Callable[..., Any], arrays: list[Array], dtype: type = np.float64) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(code(*(a.astype(dtype) for a in arrays)))


def streams(report: Any) -> int:
    return sum(isinstance(s, Stream) for k in report.kernels for s in parse(k.text).body)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weight", list(WEIGHTS)[:-1])
def test_one_kernel_stores_no_weights(weight: str, masked: bool) -> None:
    specs = [sm.spec("f32[4,1024,64]")] * 3
    report = sm.explain(attention(weight, masked), *specs)
    (kernel,) = report.kernels
    assert streams(report) == 1
    assert (" to last(" in kernel.text) == masked


@pytest.mark.parametrize("length", [7, LENGTH])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weight", list(WEIGHTS)[:-1])
def test_values_are_those_of_double_precision(weight: str, masked: bool, length: int) -> None:
    code, arrays = attention(weight, masked), operands(length)
    want, rough = plain(code, arrays), plain(code, arrays, np.float32)
    got = np.asarray(sm.jit(code)(*arrays))
    assert (np.isnan(got) == np.isnan(rough)).all()
    off = np.nanmax(np.abs(rough - want), initial=0.0)
    assert np.nanmax(np.abs(got - want), initial=0.0) <= 4 * off + 4e-6


def test_signed_weights_too() -> None:
    code, arrays = attention("signed", False), operands()
    arrays[0], arrays[1] = abs(arrays[0]) + 1, arrays[1] + np.float32(0.5)
    want = plain(code, arrays)
    got = np.asarray(sm.jit(code)(*arrays))
    assert np.allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))


@pytest.mark.parametrize("away", [-85.0, -60.0, 60.0, 80.0])
@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_weights_of_any_size_are_in_range(away: float, size: float) -> None:
    def code(q: Any, k: Any, v: Any, off: Any) -> Any:
        xp: Any = np if isinstance(q, np.ndarray) else sm
        e = xp.exp(xp.matmul(q, xp.matrix_transpose(k)) * 0.25 + off)
        return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)

    q, k, v = operands()
    off = np.float32(away) + np.zeros(LENGTH, np.float32)
    off[LENGTH // 2 :] -= np.float32(np.sign(away) * 20)
    arrays = [q * np.float32(0.1), k, v * np.float32(size), off]
    assert len(sm.explain(code, *arrays).kernels) == 1
    want, rough = plain(code, arrays), plain(code, arrays, np.float32)
    got = np.asarray(sm.jit(code)(*arrays))
    assert np.abs(got - want).max() <= 4 * np.abs(rough - want).max() + 4e-6 * size


def test_odd_rows_are_as_in_plain_code() -> None:
    """Rows of zeros, of infinities, of NaN, and sums beyond single precision."""

    def code(q: Any, k: Any, v: Any, off: Any) -> Any:
        xp: Any = np if isinstance(q, np.ndarray) else sm
        e = xp.exp(xp.matmul(q, xp.matrix_transpose(k)) * 0.25 + off)
        return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)

    q, k, v = operands()
    off = np.zeros((LENGTH, LENGTH), np.float32)
    off[3], off[4], off[5] = -np.inf, -150, 88
    off[6, 700], off[7, 700], off[8, 2] = np.nan, np.inf, 95
    off[9, :-1], off[10, 1:] = -np.inf, -np.inf
    arrays = [q * np.float32(0.01), k, v, off]
    assert len(sm.explain(code, *arrays).kernels) == 1
    want = plain(code, arrays, np.float32)
    got = np.asarray(sm.jit(code)(*arrays))
    assert (np.isnan(got) == np.isnan(want)).all()
    assert np.isnan(want[:, [3, 4, 6, 7, 8]]).all() and (want[:, 5] == 0).all()
    assert np.allclose(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_double_precision_has_its_own_reach() -> None:
    code, arrays = attention("exp", False, 12.0), operands(600, np.float64)
    want = plain(code, arrays)
    assert np.allclose(np.asarray(sm.jit(code)(*arrays)), want, rtol=1e-12, atol=1e-12)


def test_few_queries_are_split_over_keys() -> None:
    code, (q, k, v) = attention("square", False), operands(20_000)
    arrays = [q[:, :1], k, v]
    got, want = np.asarray(sm.jit(code)(*arrays)), plain(code, arrays)
    assert np.allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_product_of_two_weights_stays_divided_first() -> None:
    """It may be infinite where each over the sum is not."""

    def code(q: Any, k: Any, v: Any) -> Any:
        s = sm.matmul(q, sm.matrix_transpose(k))
        e, f = sm.exp(s), sm.exp(s * 0.5)
        return sm.matmul(e / sm.sum(e, axis=-1, keepdims=True) * f, v)

    report = sm.explain(code, *[sm.spec("f32[4,1024,64]")] * 3)
    assert streams(report) == 0 or len(report.kernels) > 1
