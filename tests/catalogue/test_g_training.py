"""Section G: training, with backward passes through losses, norms and products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tests.catalogue.harness import EveryRow
from tests.catalogue.rows import Row

MATRIX = {"r": 8192, "c": 4096}


def back(code: Any) -> Any:
    """The vector-Jacobian product of a function: first the cotangent, then the arguments."""

    def run(xp: Any, g: Any, *xs: Any) -> Any:
        return xp.vjp(lambda *ys: code(xp, *ys), *xs)[1](g)

    return run


# ---- norms and softmax -------------------------------------------------------------------------


def softmax(xp, x):
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def softmax_back(g, x):
    y = softmax(np, x)
    return (y * (g - np.sum(g * y, axis=-1, keepdims=True)),)


def log_softmax_back(g, x):
    soft = softmax(np, x) if x.size else x  # of nothing it is nothing, as in PyTorch
    return (g - soft * np.sum(g, axis=-1, keepdims=True),)


def layer_norm(xp, x, w, b):
    m = xp.mean(x, axis=-1, keepdims=True)
    v = xp.mean((x - m) ** 2, axis=-1, keepdims=True)
    return (x - m) / xp.sqrt(v + 1e-5) * w + b


def normal_back(ghat, h, scale):
    """dx = (ĝ - mean ĝ - x̂ mean(ĝ x̂)) / σ"""
    both = np.mean(ghat * h, axis=-1, keepdims=True)
    return (ghat - np.mean(ghat, axis=-1, keepdims=True) - h * both) * scale


def layer_norm_back(g, x, w, b):
    scale = 1 / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)
    h = (x - np.mean(x, axis=-1, keepdims=True)) * scale
    return normal_back(g * w, h, scale), np.sum(g * h, axis=0), np.sum(g, axis=0)


def rms_norm_back(g, x, w):
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    h, ghat = x * scale, g * w
    both = np.mean(ghat * h, axis=-1, keepdims=True)
    return (ghat - h * both) * scale, np.sum(g * h, axis=0)


def gelu_back(g, x):
    bell = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    half = np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))
    return (g * (0.5 * (1 + half) + x * bell),)


# ---- losses ------------------------------------------------------------------------------------


def cross_entropy(xp, x, labels):
    top = xp.max(x, axis=1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(x - top), axis=1)) + top[:, 0]
    return xp.mean(total - xp.take_along_axis(x, labels[:, None], axis=1)[:, 0])


def with_gradient(xp, x, labels):
    value, slope = xp.value_and_grad(lambda y: cross_entropy(xp, y, labels))(x)
    return value, slope


def cross_entropy_back(x, labels):
    y = softmax(np, x)
    y[np.arange(len(labels)), labels] -= 1
    return cross_entropy(np, x, labels), y / len(labels)


def head(xp, h, w, labels):
    def loss(h, w):
        return cross_entropy(xp, h @ w, labels)

    value, slopes = xp.value_and_grad(loss, (0, 1))(h, w)
    return value, *slopes


def head_back(h, w, labels):
    value, slope = cross_entropy_back(h @ w, labels)
    return value, slope @ w.T, h.T @ slope


# ---- updates -----------------------------------------------------------------------------------


def momentum(xp, p, g, m, q, h, n):
    """Two arrays, each with its gradient and its running sum."""
    m, n = 0.9 * m + g, 0.9 * n + h
    return p - 0.1 * m, m, q - 0.1 * n, n


def adam(xp, p, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.01 * (m / 0.271) / (xp.sqrt(v / 0.002997) + 1e-8), m, v


def descent(xp, x, g, w):
    """A linear layer's weights, moved by the gradient that g sends back to them."""
    (slope,) = xp.vjp(lambda w: x @ w, w)[1](g)
    return w - 0.1 * slope


def descent_by_hand(x, g, w):
    return w - 0.1 * (x.T @ g)


LABELS = ("T[r,c]", "i64[r] < c")
TWO_STAGES = {
    "plan": "the loss is folded over all rows by a kernel of its own, which stores each row's"
    " maximum and sum for the one that writes the gradient",
}
SMALL = {
    "plan_dtype bf16": "the logits in bfloat16 fit the last cache, and are stored there",
}
ROW_BY_ROW = ("select", "reciprocal", "neg", "reduce.max", "reduce.sum", "reduce.max")
"""Numbers of each row, and of all rows."""
ROWS = (
    Row("G1 softmax", back(softmax), ("T[r,c]", "T[r,c]"), MATRIX, fused="3*s*r*c",
        unfused="76*r*c + 40*r", reference=softmax_back,
        also=(back(lambda xp, x: xp.nn.softmax(x)),)),
    Row("G1 log_softmax", back(lambda xp, x: xp.nn.log_softmax(x)), ("T[r,c]", "T[r,c]"), MATRIX,
        fused="3*s*r*c", unfused="48*r*c + 40*r", reference=log_softmax_back, dtypes=("bf16",),
        layouts=()),
    Row("G1 layernorm", back(layer_norm), ("T[r,c]", "T[r,c]", "T[c]", "T[c]"),
        {"r": 8192, "c": 1024}, fused="s*(3*r*c + 3*c)", unfused="128*r*c + 156*r + 12*c",
        reference=layer_norm_back, also=(back(lambda xp, x, w, b: xp.nn.layer_norm(x, w, b)),),
        dtypes=("bf16",), layouts=()),
    Row("G1 RMSNorm", back(lambda xp, x, w: xp.nn.rms_norm(x, w)), ("T[r,c]", "T[r,c]", "T[c]"),
        {"r": 8192, "c": 1024}, fused="s*(3*r*c + 2*c)", unfused="100*r*c + 92*r + 8*c",
        reference=rms_norm_back, dtypes=("bf16",), layouts=()),
    Row("G1 GELU", back(lambda xp, x: xp.nn.gelu(x)), ("T[r,c]", "T[r,c]"), MATRIX,
        fused="3*s*r*c", unfused="128*r*c", reference=gelu_back, dtypes=("bf16",), layouts=()),
    Row("G1 cross-entropy", with_gradient, LABELS, MATRIX, fused="s*(2*r*c + 1) + 8*r",
        unfused="50*r*c + 134*r + 32", bounded=True, reference=cross_entropy_back,
        dtypes=("bf16",), layouts=(), short=TWO_STAGES | {"plan_dtype bf16": ""}),
    Row("G2 momentum", momentum, ("T[a,b]",) * 3 + ("T[c]",) * 3,
        {"a": 2048, "b": 1024, "c": 4096}, kernels=2, launches=1, fused="s*5*(a*b + c)",
        unfused="40*(a*b + c)", dtypes=("bf16",), layouts=()),
    Row("G2 Adam", adam, ("T[a,b]",) * 4, {"a": 2048, "b": 1024}, fused="s*7*a*b",
        unfused="132*a*b", dtypes=("bf16",), layouts=()),
    Row("G3", descent, ("T[r,k]", "T[r,n]", "T[k,n]"), {"r": 512, "k": 512, "n": 1024},
        fused="s*(r*k + r*n + 2*k*n)", unfused="4*r*k + 4*r*n + 24*k*n", reference=descent_by_hand,
        dtypes=("bf16",), layouts=()),
    # Rounds over rows: each reads the weights, later ones add to their gradient.  The gradient of
    # the logits is written over them, by a kernel of its own: a round keeps one of both.
    Row("F2", head, ("T[r,k]", "T[k,c]", "i64[r] < c"), {"r": 512, "k": 512, "c": 32000},
        kernels=7, launches=3, stored=ROW_BY_ROW, fused="s*(2*r*k + (3 + 3)*k*c) + 48*r + 28",
        unfused="12*r*k + 75*r*c + 12*k*c + 122*r + 32", bounded=True, reference=head_back,
        dtypes=("bf16",), layouts=(), short=SMALL),
)  # fmt: skip


class TestRows(EveryRow):
    """Every row of section G."""
