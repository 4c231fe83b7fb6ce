"""Neural network blocks against formulas in NumPy, in every floating dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import smelt as sm

rng = np.random.default_rng(11)
X = rng.standard_normal((4, 7))
IMAGE = rng.standard_normal((2, 6, 3, 5))

DTYPES = {
    "float64": (np.float64, 1e-12),
    "float32": (np.float32, 3e-6),
    "float16": (np.float16, 2e-3),
    "bfloat16": (ml_dtypes.bfloat16, 2e-2),
}


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def normal(x: np.ndarray, axes: Any, eps: float) -> np.ndarray:
    return (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + eps)


BLOCKS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (sm.nn.relu, lambda x: np.maximum(x, 0)),
    "silu": (sm.nn.silu, lambda x: x / (1 + np.exp(-x))),
    "mish": (sm.nn.mish, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "gelu": (sm.nn.gelu, lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2)))),
    "gelu tanh": (
        lambda x: sm.nn.gelu(x, approximate="tanh"),
        lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "softmax": (sm.nn.softmax, softmax),
    "softmax 0": (lambda x: sm.nn.softmax(x, axis=0), lambda x: softmax(x, 0)),
    "log_softmax": (sm.nn.log_softmax, lambda x: np.log(softmax(x))),
    "logsumexp": (sm.nn.logsumexp, lambda x: np.log(np.exp(x).sum())),
    "logsumexp 1": (
        lambda x: sm.nn.logsumexp(x, axis=1, keepdims=True),
        lambda x: np.log(np.exp(x).sum(axis=1, keepdims=True)),
    ),
    "layer_norm": (sm.nn.layer_norm, lambda x: normal(x, -1, 1e-5)),
    "rms_norm": (sm.nn.rms_norm, lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("mode", ["lazy", "jit"])
def test_blocks(mode: str, name: str, dtype: str) -> None:
    f, reference = BLOCKS[name]
    kind, tolerance = DTYPES[dtype]
    x = X.astype(kind)
    actual = f(sm.asarray(x)) if mode == "lazy" else sm.jit(f)(x)
    assert actual.dtype == sm.asarray(x).dtype
    wanted = reference(x.astype(np.float64))
    np.testing.assert_allclose(
        np.asarray(actual).astype(np.float64), wanted, rtol=tolerance, atol=tolerance
    )


def test_extreme_rows() -> None:
    x = np.asarray([[1e30, -1e30, 0.0], [-np.inf, 0.0, 1.0], [5e4, 5e4, 5e4]])
    np.testing.assert_allclose(sm.nn.softmax(x), softmax(x), atol=1e-15)
    assert np.isneginf(np.asarray(sm.nn.logsumexp(np.full((2, 3), -np.inf), axis=1))).all()
    assert float(sm.nn.logsumexp(np.asarray([np.inf, 0.0]))) == np.inf
    half = np.full((2, 4096), 60.0, np.float16)
    np.testing.assert_array_equal(sm.mean(half, axis=1), np.full(2, 60.0, np.float16))
    np.testing.assert_allclose(sm.nn.rms_norm(half), 1.0, rtol=1e-3)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0,)])
@pytest.mark.parametrize("mode", ["lazy", "jit"])
def test_nothing_along_the_axis(mode: str, shape: tuple[int, ...]) -> None:
    def blocks(x: sm.Array) -> tuple[sm.Array, ...]:
        return sm.nn.softmax(x), sm.nn.log_softmax(x, axis=0), sm.nn.logsumexp(x, axis=-1)

    f = sm.jit(blocks) if mode == "jit" else blocks
    assert f(sm.ones((2, 2)))[0].shape == (2, 2)
    soft, logs, sums = f(sm.zeros(shape))
    assert soft.shape == logs.shape == shape
    np.testing.assert_array_equal(sums, np.full(shape[:-1], -np.inf))


def test_scales_and_shifts() -> None:
    w, b = rng.standard_normal(7), rng.standard_normal(7)
    np.testing.assert_allclose(
        sm.nn.layer_norm(X, w, b, eps=1e-3), normal(X, -1, 1e-3) * w + b, rtol=1e-10
    )
    np.testing.assert_allclose(
        sm.nn.rms_norm(X, w), X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6) * w, rtol=1e-12
    )


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm(groups: int) -> None:
    w, b = rng.standard_normal(6), rng.standard_normal(6)
    parts = IMAGE.reshape(2, groups, 6 // groups, 3, 5)
    wanted = normal(parts, (2, 3, 4), 1e-5).reshape(IMAGE.shape)
    wanted = wanted * w[:, None, None] + b[:, None, None]
    f = sm.jit(lambda x, w, b: sm.nn.group_norm(x, groups, w, b))
    np.testing.assert_allclose(f(IMAGE, w, b), wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        sm.nn.group_norm(IMAGE, groups, w, b), wanted, rtol=1e-10, atol=1e-12
    )


def test_batch_norm() -> None:
    m, v, w, b = (rng.random(6) + 0.5 for _ in range(4))
    axes = (0, 2, 3)
    np.testing.assert_allclose(sm.nn.batch_norm(IMAGE), normal(IMAGE, axes, 1e-5), atol=1e-12)
    column = (slice(None), None, None)
    wanted = (IMAGE - m[column]) / np.sqrt(v[column] + 1e-5) * w[column] + b[column]
    np.testing.assert_allclose(sm.nn.batch_norm(IMAGE, m, v, w, b), wanted, rtol=1e-12)


def test_cross_entropy() -> None:
    labels = np.asarray([0, 6, 3, 2])
    each = -np.log(softmax(X))[np.arange(4), labels]
    for reduction, wanted in (("none", each), ("sum", each.sum()), ("mean", each.mean())):
        actual = sm.jit(lambda x, y, r=reduction: sm.nn.cross_entropy(x, y, reduction=r))(X, labels)
        np.testing.assert_allclose(actual, wanted, rtol=1e-12)
    ignoring = np.where(labels == 6, -100, labels)
    np.testing.assert_allclose(
        sm.nn.cross_entropy(X, ignoring, ignore=-100), each[[0, 2, 3]].mean(), rtol=1e-12
    )
    moved = sm.nn.cross_entropy(X.T, labels, axis=0)
    np.testing.assert_allclose(moved, each.mean(), rtol=1e-12)


def attend(q: Any, k: Any, v: Any, mask: Any = True, bias: Any = 0.0) -> np.ndarray:
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]) + bias
    return softmax(np.where(mask, scores, -1e300)) @ v


def test_attention() -> None:
    q, k, v = (rng.standard_normal((2, 3, n, d)) for n, d in ((4, 8), (6, 8), (6, 5)))
    np.testing.assert_allclose(sm.nn.attention(q, k, v), attend(q, k, v), rtol=1e-10)
    mask = rng.random((2, 1, 4, 6)) > 0.3
    mask[..., 0] = True
    bias = rng.standard_normal((4, 6))
    f = sm.jit(lambda q, k, v, m, b: sm.nn.attention(q, k, v, mask=m, bias=b))
    np.testing.assert_allclose(f(q, k, v, mask, bias), attend(q, k, v, mask, bias), rtol=1e-10)
    causal = np.tril(np.ones((4, 6), bool), k=2)
    g = sm.jit(lambda q, k, v: sm.nn.attention(q, k, v, causal=True))
    np.testing.assert_allclose(g(q, k, v), attend(q, k, v, causal), rtol=1e-10)
    for f in (sm.nn.attention, sm.jit(sm.nn.attention)):
        none = f(q, k[..., :0, :], v[..., :0, :])
        np.testing.assert_array_equal(none, np.zeros((2, 3, 4, 5)))
    empty = sm.nn.attention(q, k, v, mask=np.zeros((4, 6), bool))
    np.testing.assert_array_equal(empty, np.zeros((2, 3, 4, 5)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved: bool) -> None:
    x = rng.standard_normal((2, 5, 8))
    angle = np.arange(5)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    turn = np.exp(1j * angle)
    if interleaved:
        z = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        wanted = np.stack([z.real, z.imag], -1).reshape(x.shape)
    else:
        z = (x[..., :4] + 1j * x[..., 4:]) * turn
        wanted = np.concatenate([z.real, z.imag], -1)
    f = sm.jit(lambda x: sm.nn.rotary(x, interleaved=interleaved))
    np.testing.assert_allclose(f(x), wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        sm.nn.rotary(x, np.arange(5), interleaved=interleaved), wanted, rtol=1e-10, atol=1e-12
    )


def test_wrong_arguments() -> None:
    for wrong in (
        lambda: sm.nn.gelu(X, approximate="no"),
        lambda: sm.nn.cross_entropy(X, X),
        lambda: sm.nn.cross_entropy(X, np.zeros(4, int), reduction="no"),
        lambda: sm.nn.group_norm(IMAGE, 4),
        lambda: sm.nn.group_norm(np.ones(3), 1),
        lambda: sm.nn.rotary(np.ones((2, 3))),
        lambda: sm.nn.softmax(X, axis=2),
        lambda: sm.nn.batch_norm(np.ones(3)),
        lambda: sm.nn.batch_norm(IMAGE, X, X),
    ):
        with pytest.raises(sm.errors.SmeltError):
            wrong()
