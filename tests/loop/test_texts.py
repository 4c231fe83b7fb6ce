"""Five kernels at three stages: round trips, proofs, and the interpreter against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.loop import ir
from smelt.loop.interpret import run
from smelt.loop.passes.accumulate import accumulate
from smelt.loop.passes.unroll import promote, unroll
from smelt.loop.text import parse, text
from smelt.loop.verify import verify

Arrays = Mapping[str, Any]
Case = tuple[dict[str, int], Arrays, Arrays]
"""Sizes, inputs, and what NumPy computes in float64."""
STAGES = {
    (path.stem, part.split("\n", 1)[0].strip()): part.split("\n", 1)[1]
    for path in sorted((Path(__file__).parent / "texts").glob("*.loop"))
    for part in path.read_text().split("==== ")[1:]
}
EVERY = pytest.mark.parametrize("stage", STAGES, ids=", ".join)


def _normal(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def _softmax(random: np.random.Generator) -> Case:
    x = _normal(random, rows := int(random.integers(1, 6)), c := int(random.integers(1, 60)))
    e = np.exp(x - x.max(1, keepdims=True), dtype=np.float64)
    return {"r": rows, "c": c}, {"x": x}, {"y": e / e.sum(1, keepdims=True)}


def _rmsnorm(random: np.random.Generator) -> Case:
    x = _normal(random, rows := int(random.integers(1, 6)), c := int(random.integers(1, 60)))
    e, g = _normal(random, rows, c), _normal(random, c)
    v = (x + e).astype(np.float64)
    y = v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-5) * g
    return {"r": rows, "c": c}, {"x": x, "e": e, "g": g}, {"h": v, "y": y}


def _gemm(random: np.random.Generator) -> Case:
    m, n, k = (int(random.integers(1, 20)) for _ in "mnk")
    x, w, b = _normal(random, m, k), _normal(random, n, k), _normal(random, n)
    t = x.astype(np.float64) @ w.T + b
    y = 0.5 * t * (1 + np.vectorize(erf)(t * 0.70710678))
    return {"m": m, "n": n, "k": k}, {"x": x, "w": w, "b": b}, {"y": y}


def _attention(random: np.random.Generator) -> Case:
    m, n, d = (int(random.integers(1, limit)) for limit in (14, 40, 8))
    q, k, v = _normal(random, m, d), _normal(random, n, d), _normal(random, n, d)
    causal = np.arange(n) <= np.arange(m)[:, None]
    s = np.where(causal, q.astype(np.float64) @ k.T * 0.5, -np.inf)
    w = np.exp2(s - s.max(1, keepdims=True))
    return (
        {"m": m, "n": n, "d": d},
        {"q": q, "k": k, "v": v},
        {"o": w / w.sum(1, keepdims=True) @ v},
    )


def _depthwise(random: np.random.Generator) -> Case:
    b, c, h, w = (int(random.integers(1, limit)) for limit in (3, 3, 6, 20))
    x, f, t = _normal(random, b, c, h, w), _normal(random, c, 3, 3), _normal(random, c)
    p = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    taps = [
        p[:, :, i : i + h, j : j + w] * f[:, i, j, None, None] for i in range(3) for j in range(3)
    ]
    y = np.maximum(sum(taps) + t[:, None, None], 0)
    return {"b": b, "c": c, "h": h, "w": w}, {"x": x, "f": f, "t": t}, {"y": y}


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "gemm": _gemm,
    "attention": _attention,
    "depthwise": _depthwise,
}


def _check(module: ir.Module, kernel: str, count: int) -> None:
    random = np.random.default_rng(1)
    for seed in range(count):
        sizes, arrays, expected = CASES[kernel](random)
        outputs = run(module, arrays, sizes, seed=seed)
        for name, array in expected.items():
            np.testing.assert_allclose(outputs[name], array.reshape(-1), rtol=2e-5, atol=2e-5)


def test_there_are_five_kernels_at_three_stages():
    assert len(STAGES) == 15
    assert {kernel for kernel, _ in STAGES} == set(CASES)


@EVERY
def test_a_text_parses_verifies_prints_and_computes_what_numpy_does(stage):
    module = verify(parse(STAGES[stage]))
    assert parse(text(module)) == module
    _check(module, stage[0], 2)


@EVERY
def test_folds_and_registers_become_carries(stage):
    module = parse(STAGES[stage])
    funcs = tuple(promote(unroll(accumulate(f))) for f in module.funcs)
    module = verify(replace(module, funcs=funcs), bounds=False)
    assert parse(text(module)) == module
    assert "<-" not in text(module)
    assert "registers" not in text(module)
    _check(module, stage[0], 1)
