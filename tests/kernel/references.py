"""What each golden kernel computes, in NumPy and float64, and inputs to run it on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Inputs = dict[str, Any]
erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Reference:
    """`inputs(random, scale)` gives arrays; `outputs` what the kernel makes of them."""

    inputs: Callable[[np.random.Generator, int], Inputs]
    outputs: Callable[..., dict[str, Any]]
    rtol: float = 2e-6
    atol: float = 2e-6
    fused_blocks: dict[str, int] | None = None
    """Blocks that exercise several visits at these small sizes."""


def f32(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def wide(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` on float64 copies of float arrays."""

    def call(**arrays: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(**{k: _wide(v) for k, v in arrays.items()})

    return call


def _wide(v: Any) -> Any:
    if isinstance(v, list):
        return [_wide(a) for a in v]
    return v.astype(np.float64) if v.dtype.kind in "fV" else v


def softmax(s: Array) -> Array:
    w = np.exp(s - s.max(axis=-1, keepdims=True))
    return w / w.sum(axis=-1, keepdims=True)


def layernorm(x: Array, e: Array, g: Array, b: Array) -> dict[str, Array]:
    h = x + e
    d = h - h.mean(axis=1, keepdims=True)
    return {"y": d / np.sqrt((d * d).mean(axis=1, keepdims=True) + 1e-5) * g + b}


def gelu_linear(x: Array, w: Array, b: Array) -> dict[str, Array]:
    h = x @ w.T + b
    return {"y": 0.5 * h * (1 + erf(h / math.sqrt(2)))}


def qkv(x: Array, g: Array, w: Array) -> dict[str, Array]:
    n = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * g
    both = n @ w.T
    cut = w.shape[0] * 2 // 3
    return {"q": both[:, :cut], "kv": both[:, cut:]}


def convolution(x: Array, f: Array, a: Array, t: Array) -> dict[str, Array]:
    batch, _, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    oy, ox = (h + 1) // 2, (w + 1) // 2
    out = np.zeros((batch, f.shape[0], oy, ox))
    for y in range(oy):
        for z in range(ox):
            window = padded[:, :, 2 * y : 2 * y + 3, 2 * z : 2 * z + 3]
            out[:, :, y, z] = np.einsum("bcij,ocij->bo", window, f)
    return {"y": np.maximum(out * a[:, None, None] + t[:, None, None], 0)}


def splade(h: Array, e: Array, beta: Array, **lengths: Array) -> dict[str, Array]:
    out = np.zeros((h.shape[0], e.shape[0]))
    for b, n in enumerate(lengths["len"]):
        if n > 0:
            scores = h[b, :n] @ e.T + beta
            out[b] = np.log1p(np.maximum(scores.max(axis=0), 0))
    return {"out": out}


def attention(q: Array, k: Array, v: Array) -> dict[str, Array]:
    s = np.einsum("bhmd,bhnd->bhmn", q, k) * 0.18033688 * math.log(2)
    m, n = s.shape[-2:]
    s = np.where(np.arange(n) <= np.arange(m)[:, None], s, -np.inf)
    return {"o": np.einsum("bhmn,bhne->bhme", softmax(s), v)}


def decode(q: Array, k: Array, v: Array) -> dict[str, Array]:
    s = np.einsum("bgd,bnd->bgn", q, k) * 0.18033688 * math.log(2)
    return {"o": np.einsum("bgn,bne->bge", softmax(s), v)}


def wkv(k: Array, v: Array, w: Array, u: Array) -> dict[str, Array]:
    a, b = np.zeros_like(w), np.zeros_like(w)
    out = np.zeros_like(k)
    for t in range(len(k)):
        bonus = np.exp(u + k[t])
        out[t] = (a + bonus * v[t]) / (b + bonus)
        a = np.exp(-w) * a + np.exp(k[t]) * v[t]
        b = np.exp(-w) * b + np.exp(k[t])
    return {"o": out}


def adamw(p: list[Array], g: list[Array], m: list[Array], v: list[Array], lr: Array) -> Inputs:
    m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
    v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g, strict=True)]
    new = [a - lr * (b / (np.sqrt(c) + 1e-8) + 0.01 * a) for a, b, c in zip(p, m, v, strict=True)]
    return {"p": new, "m": m, "v": v}


def adamw_inputs(random: np.random.Generator, s: int) -> Inputs:
    shapes = [1 + k % (3 * s) for k in range(148)]
    names = {"p": 1, "g": 1, "m": 1, "v": 0}
    out: Inputs = {k: [f32(random, n) for n in shapes] for k in names}
    out["v"] = [np.abs(a) for a in out["v"]]
    return out | {"lr": np.asarray(1e-3, np.float32)}


def embed(ids: Array, table: Array, g: Array) -> dict[str, Array]:
    h = table[np.clip(ids, 0, len(table) - 1)]
    return {"y": h / np.sqrt((h * h).mean(axis=1, keepdims=True) + 1e-5) * g}


def messages(h: Array, w: Array, source: Array, target: Array) -> dict[str, Array]:
    y = np.zeros_like(h)
    inside = (target >= 0) & (target < len(h))
    source = np.clip(source, 0, len(h) - 1)
    np.add.at(y, target[inside], (h[source] * w[:, None])[inside])
    return {"y": y}


def histogram(x: Array, y0: Array) -> dict[str, Array]:
    y, last = y0.copy(), np.full_like(y0, -1)
    inside = x < len(y)
    np.add.at(y, x[inside], 1)
    last[x[inside]] = np.arange(len(x))[inside]
    return {"y": y, "last": last}


def windows(x: Array) -> dict[str, Array]:
    n = len(x)
    h = np.maximum(x, (np.arange(n) - n) * 0.5)
    k = np.where(np.arange(n) > 0, np.roll(x, 1), x[1])
    i = np.arange(2 * n)
    y = x[n - i // 2 - 1] - (i % 2) * np.abs(h - k).sum()
    top = np.argmax(np.where(x > 0, -x, -np.inf))
    return {"y": y, "top": top, "any": np.any(~(x < 1))}


def halves(x: Array, s: Array) -> dict[str, Array]:
    half = ml_dtypes.bfloat16
    h = (x * s[:, None]).astype(np.float32).astype(half).astype(np.float64)
    return {"y": (h + float(half(0.1))).T, "n": (x > 0).sum(axis=1)}


def ragged(x: Array, start: Array, count: Array) -> dict[str, Array]:
    last = len(x) - 1
    starts = np.clip(start, 0, last)
    pairs = zip(starts, count, strict=True)
    return {"y": np.array([x[a : a + max(n, 0)].sum() for a, n in pairs])}


def running(x: Array, w: Array) -> dict[str, Array]:
    z = np.cumprod(x * w, axis=1) + np.arange(len(w))
    return {"y": np.cumsum(x, axis=1), "z": z}


def half(random: np.random.Generator, *shape: int) -> Array:
    return f32(random, *shape).astype(ml_dtypes.bfloat16)


REFERENCES: dict[str, Reference] = {
    "log_relu": Reference(
        lambda r, s: {"x": f32(r, 3, 5 * s), "b": f32(r, 5 * s)},
        wide(lambda x, b: {"y": np.log(np.maximum(x + b, 0))}),
    ),
    "add_layernorm": Reference(
        lambda r, s: {
            "x": f32(r, 4, 7 * s), "e": f32(r, 4, 7 * s), "g": f32(r, 7 * s), "b": f32(r, 7 * s)
        },
        wide(layernorm), atol=2e-5,
    ),
    "softmax_long": Reference(
        lambda r, s: {"x": 30 * f32(r, 3, 11 * s)}, wide(lambda x: {"y": softmax(x)}), atol=1e-5,
    ),
    "columns": Reference(
        lambda r, s: {"x": f32(r, 9 * s, 5) + 100},
        wide(lambda x: {"mean": x.mean(axis=0), "var": x.var(axis=0)}), rtol=2e-5,
    ),
    "linear_gelu": Reference(
        lambda r, s: {"x": f32(r, 5, 3 * s), "w": f32(r, 7, 3 * s), "b": f32(r, 7)},
        wide(gelu_linear), atol=1e-5,
    ),
    "norm_qkv": Reference(
        lambda r, s: {"x": f32(r, 5, 4), "g": f32(r, 4), "w": f32(r, 3 * s, 4)},
        wide(qkv), atol=1e-5,
    ),
    "conv_bn_relu": Reference(
        lambda r, s: {
            "x": f32(r, 2, 3, 3 + s, 5), "f": f32(r, 4, 3, 3, 3), "a": f32(r, 4), "t": f32(r, 4)
        },
        wide(convolution), atol=1e-5,
    ),
    "splade": Reference(
        lambda r, s: {
            "h": f32(r, 3, 4 * s, 5), "e": f32(r, 7, 5), "beta": f32(r, 7),
            "len": np.array([4 * s, 0, 2], np.int64),
        },
        wide(splade),
    ),
    "causal_attention": Reference(
        lambda r, s: {
            "q": f32(r, 1, 2, 5 * s, 4), "k": f32(r, 1, 2, 5 * s, 4), "v": f32(r, 1, 2, 5 * s, 3)
        },
        wide(attention), atol=1e-5,
    ),
    "decode": Reference(
        lambda r, s: {"q": f32(r, 2, 3, 4), "k": f32(r, 2, 9 * s, 4), "v": f32(r, 2, 9 * s, 5)},
        wide(decode), atol=1e-5,
    ),
    "wkv": Reference(
        lambda r, s: {
            "k": f32(r, 6 * s, 5), "v": f32(r, 6 * s, 5), "w": np.abs(f32(r, 5)), "u": f32(r, 5)
        },
        wide(wkv), atol=1e-5,
    ),
    "adamw": Reference(adamw_inputs, wide(adamw)),
    "embed": Reference(
        lambda r, s: {
            "ids": r.integers(-2, 4 * s + 2, 6), "table": f32(r, 4 * s, 8).astype(np.float16),
            "g": f32(r, 8),
        },
        wide(embed), rtol=2e-3, atol=1e-3,
    ),
    "messages": Reference(
        lambda r, s: {
            "h": f32(r, 3 * s, 5), "w": f32(r, 4 * s), "source": r.integers(-1, 3 * s + 1, 4 * s),
            "target": r.integers(-1, 3 * s + 1, 4 * s),
        },
        wide(messages), rtol=1e-5, atol=1e-5,
    ),
    "histogram": Reference(
        lambda r, s: {
            "x": r.integers(0, 5 * s, 9 * s).astype(np.uint8), "y0": r.integers(-9, 9, 4 * s),
        },
        histogram,
    ),
    "running": Reference(
        lambda r, s: {
            "x": r.integers(-9, 9, (3, 4 * s)).astype(np.int32), "w": r.standard_normal(4 * s)
        },
        running, rtol=1e-12, atol=1e-12,
    ),
    "windows": Reference(lambda r, s: {"x": f32(r, 4 * s)}, wide(windows), atol=1e-5),
    "halves": Reference(
        lambda r, s: {"x": half(r, 3, 5 * s), "s": half(r, 3)}, wide(halves), rtol=1e-2, atol=1e-2,
    ),
    "variance": Reference(
        lambda r, s: {"x": f32(r, 9 * s, 5) + 100}, wide(lambda x: {"v": x.var(axis=0)}), rtol=2e-5,
    ),
    "ragged": Reference(
        lambda r, s: {
            "x": f32(r, 6 * s), "start": np.array([0, 3, -5, 100, 2], np.int64),
            "count": np.array([6 * s, 2, 3, 4, -1], np.int64),
        },
        wide(ragged), atol=1e-5,
    ),
}  # fmt: skip


def extra_sizes(name: str, arrays: Inputs) -> dict[str, int]:
    """Sizes that no array tells."""
    if name == "norm_qkv":
        return {"nq": arrays["w"].shape[0] * 2 // 3, "nkv": arrays["w"].shape[0] // 3}
    if name == "conv_bn_relu":
        return {"oy": (arrays["x"].shape[2] + 1) // 2, "ox": (arrays["x"].shape[3] + 1) // 2}
    return {}
