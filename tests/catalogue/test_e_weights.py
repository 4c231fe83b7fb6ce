"""Attention and regression with weights divided by their sum, without a maximum.

They are one kernel that stores no weight, with numbers wherever plain code has them, however large
or small the weights are.

Weights are carried under a power of 2 near their running sum (`fusion/cascade/scaling.py`):
without it, products of large ones would be infinite and those of small ones vanish.
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
from smelt.runtime.host import host

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
    with sm.config(target="avx512"):  # planned, not run
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
        xp: Any = np if isinstance(q, np.ndarray) else sm
        s = xp.matmul(q, xp.matrix_transpose(k))
        e, f = xp.exp(s), xp.exp(s * 0.5)
        return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True) * f, v)

    report = sm.explain(code, *[sm.spec("f32[4,1024,64]")] * 3)
    text = next(k.text for k in report.kernels if " -> y: f32[4,1024,64]" in k.text)
    assert streams(report) == 0 and 0 < text.index(" / ") < text.index("dot(")
    q, k, v = (np.full((1, 70, 1), 8.0, np.float32) for _ in range(3))
    k[0, :, 0] = 10 - np.arange(70) % 7  # e is 10^35 at most, e * f would be 10^52
    want = plain(code, [q, k, v])
    assert np.isfinite(want).all()
    assert np.allclose(np.asarray(sm.jit(code)(q, k, v)), want, rtol=1e-4)


DISTANCES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum of squares": lambda xp, x, t: xp.sum((x[:, None, :] - t[None]) ** 2, axis=-1),
    "sum of sizes": lambda xp, x, t: xp.sum(xp.abs(x[:, None, :] - t[None]), axis=-1),
    "norm": lambda xp, x, t: xp.linalg.vector_norm(x[:, None, :] - t[None], axis=-1),
    "product": lambda xp, x, t: (
        xp.sum(x * x, axis=1)[:, None]
        + xp.sum(t * t, axis=1)
        - 2 * xp.matmul(x, xp.matrix_transpose(t))
    ),
}
BELLS: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda xp, d: xp.exp(-2 * d),
    "rational": lambda xp, d: 1 / (1 + d),
    "hat": lambda xp, d: xp.maximum(3 - d, xp.zeros_like(d)),
    "hat squared": lambda xp, d: xp.maximum(3 - d, xp.zeros_like(d)) ** 2,
    "box": lambda xp, d: xp.astype(d < 2.0, d.dtype),
    "power": lambda xp, d: (1 + xp.abs(d)) ** -1.5,
}
MEANS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "first": lambda xp, w, y: xp.matmul(w / xp.sum(w, axis=1, keepdims=True), y),
    "last": lambda xp, w, y: xp.matmul(w, y) / xp.sum(w, axis=1, keepdims=True),
    "by one over": lambda xp, w, y: xp.matmul(w * (1 / xp.sum(w, axis=1, keepdims=True)), y),
    "with some more": lambda xp, w, y: xp.matmul(w / (xp.sum(w, axis=1, keepdims=True) + 1e-8), y),
    "by the mean": lambda xp, w, y: (
        xp.matmul(w / xp.mean(w, axis=1, keepdims=True), y) / w.shape[1]
    ),
    "turned": lambda xp, w, y: xp.matmul(
        xp.matrix_transpose(y), xp.matrix_transpose(w / xp.sum(w, axis=1, keepdims=True))
    ),
}
WAYS = [
    *(("sum of squares", bell, "first") for bell in BELLS),
    *((distance, "exp", "first") for distance in list(DISTANCES)[1:]),
    *(("sum of squares", "exp", mean) for mean in list(MEANS)[1:]),
]


@pytest.mark.parametrize(("distance", "bell", "mean"), WAYS)
def test_means_weighed_by_distance_store_no_weights(distance: str, bell: str, mean: str) -> None:
    def code(x: Any, t: Any, y: Any) -> Any:
        xp: Any = np if isinstance(x, np.ndarray) else sm
        return MEANS[mean](xp, BELLS[bell](xp, DISTANCES[distance](xp, x, t)), y)

    dtype = np.float64 if distance == "norm" or bell == "rational" else np.float32
    rng = np.random.default_rng(5)
    shapes = (600, 5), (2001, 5), (2001, 2)
    arrays: list[Array] = [rng.standard_normal(shape).astype(dtype) / 2 for shape in shapes]
    with sm.config(target="avx512"):  # planned, not run
        letter = "f64" if dtype == np.float64 else "f32"
        report = sm.explain(code, *(sm.spec(f"{letter}{list(s)}") for s in shapes))
    assert len(report.kernels) <= 1 + (distance == "product")  # its squares may be summed once
    want, rough = plain(code, arrays, np.float64), plain(code, arrays, dtype)
    got = np.asarray(sm.jit(code)(*arrays))
    assert np.abs(got - want).max() <= 4 * np.abs(rough - want).max() + 16 * np.finfo(dtype).eps


FEW_OR_MANY = {
    "one column, as a sum": ((600, 5), (2001, 5), (2001,)),
    "many columns": ((600, 5), (2001, 5), (2001, 200)),
    "few rows": ((64, 5), (20_001, 5), (20_001,)),
}


@pytest.mark.parametrize("case", FEW_OR_MANY)
def test_one_or_many_columns_and_few_rows_are_one_kernel_where_a_core_is_alone(case: str) -> None:
    """Lanes take the coordinates of points from short rows, whether weights are stored or not."""

    def code(x: Any, t: Any, y: Any) -> Any:
        xp: Any = np if isinstance(x, np.ndarray) else sm
        w = xp.exp(-2 * DISTANCES["sum of squares"](xp, x, t))
        w = w / xp.sum(w, axis=1, keepdims=True)
        return xp.sum(w * y, axis=1) if y.ndim == 1 else xp.matmul(w, y)

    rng = np.random.default_rng(5)
    arrays: list[Array] = [
        rng.standard_normal(shape).astype(np.float32) / 2 for shape in FEW_OR_MANY[case]
    ]
    # one kernel takes 1.15 to 1.8 of the time of two where there are several cores
    assert len(sm.explain(code, *arrays).kernels) == 1 + (host().cores > 1)
    want, rough = plain(code, arrays), plain(code, arrays, np.float32)
    got = np.asarray(sm.jit(code)(*arrays))
    assert np.abs(got - want).max() <= 4 * np.abs(rough - want).max() + 4e-6
