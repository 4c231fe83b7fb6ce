"""Streams whose blocks see a part of other axes: native code against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.native import native

from smelt.kernel.interp import run
from smelt.kernel.text import parse, text

BAND = """
kernel band(q: f32[m,d], k: f32[n,d], u: f32[n]) -> y: f32[m], z: f32[m,d], dk: f32[n,d], c: f32[n]
  stream m/BLOCK seeing n ENDS with t = 0 [n,d], s = 0 [n]
    w = dot(q[m,d], k[n,d] over d)
    a = select(n <= m + AFTER, select(n > m - BEFORE, w + u[n], 0), 0)
    t' = t + dot(a, q[m,d] over m)
    s' = s + sum(a over m)
    y[m] = sum(a over n)
    z[m,d] = dot(a, k[n,d] over n)
  dk[n,d] = t
  c[n] = s
"""
ENDS = {
    "causal": ("to last(m) + 1", 10**6, 0),
    "window": ("from first(m) - 4 to last(m) + 1", 5, 0),
    "ahead": ("from first(m) + 40", -40, 10**6),
    "near": ("from first(m) - 4 to last(m) + 5", 5, 4),
    "nothing": ("from last(m) + 70 to first(m)", -(10**6), -(10**6)),
}


def source(name: str, block: int) -> str:
    ends, before, after = ENDS[name]
    built = BAND.replace("BLOCK", str(block)).replace("ENDS", ends)
    return built.replace("BEFORE", str(before)).replace("AFTER", str(after))


def arrays(m: int, n: int, d: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(m * n)
    shapes = {"q": (m, d), "k": (n, d), "u": (n,)}
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def wanted(name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    _, before, after = ENDS[name]
    q, k, u = (inputs[x].astype(np.float64) for x in "qku")
    m, n = np.arange(len(q))[:, None], np.arange(len(k))[None]
    a = np.where((n <= m + after) & (n > m - before), q @ k.T + u, 0)
    return {"y": a.sum(1), "z": a @ k, "dk": a.T @ q, "c": a.sum(0)}


@pytest.mark.parametrize("name", ENDS)
def test_interpreter(name: str) -> None:
    kernel = parse(source(name, 8))
    assert parse(text(kernel)) == kernel
    for m, n in ((1, 1), (5, 9), (33, 70), (70, 33)):
        inputs = arrays(m, n, 3)
        actual = run(kernel, inputs)
        for key, want in wanted(name, inputs).items():
            np.testing.assert_allclose(actual[key], want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("name", ENDS)
def test_native(name: str, isa: str) -> None:
    for block in (8, 128):
        kernel = native(source(name, block), isa)
        for m, n in ((1, 1), (5, 9), (130, 300), (300, 131), (257, 257)):
            inputs = arrays(m, n, 20)
            actual = kernel(inputs)
            for key, want in wanted(name, inputs).items():
                np.testing.assert_allclose(actual[key], want, rtol=1e-5, atol=2e-4)
