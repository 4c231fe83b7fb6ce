"""Programs that become one library in tests, with their arguments as text or as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import smelt as sm

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.standard_normal((48, 32)).astype(np.float32)
TABLE = RANDOM.standard_normal((50, 8)).astype(np.float32)
FILTERS = RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float32)

SQUARE = (WEIGHTS.T @ WEIGHTS / 400).astype(np.float32)


def _step(h: Any, x: Any) -> tuple[Any, Any]:
    """A recurrence with a product: its steps are plans of their own."""
    h = sm.tanh(x @ sm.asarray(WEIGHTS) + h @ sm.asarray(SQUARE))
    return h, h * 2


def _until(a: Any, x: Any) -> Any:
    """Steps while a condition holds: none for large numbers."""
    return sm.while_loop(
        lambda s: sm.logical_and(sm.sum(s[0]) < 5000, s[1] < 9),
        lambda s: (sm.maximum(s[0] @ a, 0) + 1, s[1] + 1),
        (sm.abs(x), sm.asarray(0)),
    )


def _nested(xs: Any, h: Any) -> Any:
    """A loop in the steps of a loop; carries change places."""

    def outer(carry: Any, x: Any) -> tuple[Any, Any]:
        a, b = carry
        a = sm.fori_loop(0, 3, lambda _, a: _step(a, x)[0], a)
        return (b, a), b

    return sm.scan(outer, (h, h + 1), xs, reverse=True)


def _slopes(xs: Any, h: Any) -> Any:
    """The way back reads carries of all steps."""
    return sm.grad(lambda xs: sm.sum(sm.scan(_step, h, xs)[1]))(xs)


SIZES: tuple[Mapping[str, int], ...] = (
    {"n": 5, "m": 7, "k": 3, "h": 2},
    {"n": 1, "m": 7, "k": 3, "h": 2},
    {"n": 300, "m": 40, "k": 70, "h": 3},
    {"n": 0, "m": 4, "k": 3, "h": 2},
    {"n": 900, "m": 129, "k": 200, "h": 2},
)

PROGRAMS: dict[str, tuple[Any, list[Any]]] = {
    "dense": (
        lambda x, b: sm.nn.softmax(sm.nn.gelu(x @ sm.asarray(WEIGHTS) + b), axis=-1),
        ["f32[n,48]", "f32[32]"],
    ),
    "add": (lambda x, y: x * 2 + y, ["f32[n,m]", "f32[n,m]"]),
    "integers": (lambda x, y: (x + y, x // 3, x % 5), ["i32[n]", "i32[n]"]),
    "bytes": (lambda x: sm.astype(x, sm.float32) / 255, ["u8[n,3]"]),
    "mask": (lambda x, m: sm.where(m, x, 0.0), ["f32[n]", "bool[n]"]),
    "embed": (lambda i: sm.take(sm.asarray(TABLE), i, axis=0).sum(axis=1), ["i64[n,m]"]),
    "rows": (lambda x: (x.sum(axis=1), x.max(axis=1)), ["f32[n,64]"]),
    "argmax": (lambda x: sm.argmax(x, axis=1), ["f32[n,m]"]),
    "norm": (
        lambda x, g: (x - x.mean(axis=-1, keepdims=True)) * g / sm.sqrt(x.var() + 1e-5),
        ["f32[n,64]", "f32[64]"],
    ),
    "attend": (
        lambda q, k, v: sm.nn.softmax(q @ sm.matrix_transpose(k) * 0.25, axis=-1) @ v,
        ["f32[h,n,16]", "f32[h,m,16]", "f32[h,m,16]"],
    ),
    "matmul": (lambda a, b: a @ b, ["f32[m,k]", "f32[k,n]"]),
    "concat": (lambda a, b: sm.concat([a, b], axis=0) * 1, ["f32[n,4]", "f32[m,4]"]),
    "transpose": (lambda a: sm.matrix_transpose(a) + 1, ["f32[n,m]"]),
    "pairs": (lambda a: sm.reshape(a, (-1, 2)).sum(axis=1), ["f64[n,4]"]),
    "passed": (
        lambda a, b: (a, sm.asarray(TABLE), b + 1, 7, a.shape[0] * 2),
        ["f32[n]", "f32[n]"],
    ),
    "scan": (lambda a: sm.cumulative_sum(a, axis=-1), ["f32[n,m]"]),
    "doubles": (lambda a: sm.log(sm.exp(a) + 1), ["f64[n]"]),
    "convolve": (lambda x: sm.nn.relu(sm.nn.conv(x, sm.asarray(FILTERS))), ["f32[n,3,8,8]"]),
    "numbers": (lambda x, k, s: x * k + s, ["f32[n]", 3, 0.5]),
    "twice": (lambda x: (x + 1,) * 2, ["i16[n]"]),
    "halves": (lambda x: sm.nn.softmax(x, axis=-1), ["f16[n,m]"]),
    "recurrent": (lambda xs, h: sm.scan(_step, h, xs), ["f32[n,4,48]", "f32[4,32]"]),
    "until": (_until, ["f32[32,32]", "f32[n,32]"]),
    "nested": (_nested, ["f32[n,4,48]", "f32[4,32]"]),
    "slopes": (_slopes, ["f32[n,4,48]", "f32[4,32]"]),
    "network": (
        lambda x: sm.tanh(sm.tanh(x @ sm.asarray(WEIGHTS)) @ sm.asarray(WEIGHTS.T)),
        ["f32[n,48]"],
    ),
}


def specs(arguments: list[Any]) -> list[Any]:
    """Return the arguments for `sm.save`."""
    return [sm.spec(x) if isinstance(x, str) else x for x in arguments]


def values(arguments: list[Any], sizes: Mapping[str, int]) -> list[Any]:
    """Return arguments of a call."""
    return [_value(x, sizes) if isinstance(x, str) else x for x in arguments]


def _value(text: str, sizes: Mapping[str, int]) -> np.ndarray[Any, Any]:
    spec = sm.spec(text)
    shape = [d if isinstance(d, int) else sizes[str(d)] for d in spec.shape]
    dtype = spec.dtype.numpy
    if dtype.kind == "f":
        return RANDOM.standard_normal(shape).astype(dtype)
    return RANDOM.integers(0, 2 if dtype.kind == "b" else 50, shape).astype(dtype)
