"""Layers whose weights are decoded in the call read packed bytes, and are right.

A format is an expression: nibbles, a table, a shift into an exponent, a scale for each group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

Array = np.ndarray[Any, Any]
N, K, GROUP = 512, 1024, 32
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], "f4")


def pairs(xp: Any, q: Any) -> Any:
    """Both halves of each byte, the low one first."""
    return xp.reshape(xp.stack([q & 15, q >> 4], axis=-1), (N, K))


def halves(xp: Any, q: Any) -> Any:
    """The low halves of all bytes, then the high ones."""
    return xp.concat([q & 15, q >> 4], axis=1)


def scaled(xp: Any, w: Any, s: Any) -> Any:
    return xp.reshape(xp.reshape(w, (N, K // GROUP, GROUP)) * s[:, :, None], (N, K))


def centred(xp: Any, codes: Any) -> Any:
    return xp.astype(codes, xp.float32) - 8.0


FORMATS: dict[str, Callable[..., Any]] = {
    "int4 pairs": lambda xp, q, s, t: scaled(xp, centred(xp, pairs(xp, q)), s),
    "int4 halves": lambda xp, q, s, t: scaled(xp, centred(xp, halves(xp, q)), s),
    "table of 16": lambda xp, q, s, t: scaled(xp, t[pairs(xp, q)], s),
    "table of 16, masked": lambda xp, q, s, t: scaled(xp, t[xp.astype(pairs(xp, q), xp.int32)], s),
    "table of 256": lambda xp, q, s, t: scaled(xp, t[q], s),
    "int8 groups": lambda xp, q, s, t: scaled(xp, xp.astype(q, xp.float32), s),
}


def operands(name: str) -> dict[str, Array]:
    random = np.random.default_rng(0)
    columns = K if name in ("table of 256", "int8 groups") else K // 2
    kind = "i1" if name == "int8 groups" else "u1"
    info = np.iinfo(kind)
    table = random.random(256).astype("f4") if name == "table of 256" else E2M1
    return {
        "q": random.integers(info.min, info.max, (N, columns), kind, endpoint=True),
        "s": random.random((N, K // GROUP)).astype("f4"),
        "t": table,
    }


def layer(name: str, weights: dict[str, Any]) -> Callable[..., Any]:
    return lambda x: x @ FORMATS[name](sm, weights["q"], weights["s"], weights["t"]).T


def layer_of_arguments(name: str) -> Callable[..., Any]:
    return lambda x, q, s, t: x @ FORMATS[name](sm, q, s, t).T


def read_bytes(report: Any) -> int:
    """Bytes of weights and values between kernels that kernels read."""
    return sum(
        p["touched_bytes"] or p["nbytes"]
        for kernel in json.loads(report.to_json(times=False))["kernels"]
        for p in kernel["params"]
        if p["role"] == "in"
    )


@pytest.mark.parametrize("rows", [1, 16, 256])
@pytest.mark.parametrize("name", FORMATS)
def test_packed_bytes_are_read(name: str, rows: int) -> None:
    weights = operands(name)
    x = np.random.default_rng(1).standard_normal((rows, K)).astype("f4")
    with np.errstate(all="ignore"):
        wide = {k: v.astype("i8") if k == "q" else v for k, v in weights.items()}
        want = x.astype("f8") @ FORMATS[name](np, wide["q"], wide["s"], wide["t"]).astype("f8").T
    constants = {k: sm.asarray(v, copy=True) for k, v in weights.items()}
    packed = sum(v.nbytes for v in weights.values())
    for function, arguments in (
        (layer(name, constants), (x,)),
        (layer_of_arguments(name), (x, *weights.values())),
    ):
        got = np.asarray(sm.jit(function)(*arguments))
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        report = sm.explain(sm.jit(function), *arguments)
        if rows <= 16:
            assert len(report.kernels) == 1, (name, rows)
            assert read_bytes(report) <= x.nbytes + 1.05 * packed, (name, rows)
