"""Nests printed from their loops inside of functions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm import emulate
from tests.codegen.llvm.native import Native
from tests.codegen.llvm.single_kernel import RUNNABLE

from smelt.codegen.build import build
from smelt.codegen.llvm import module, vector_loops
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse
from smelt.kernel.verify import verify
from smelt.machine.target import Target
from smelt.types.expr import evaluate

ROWS = "kernel k(x: f32[m,n], z: f32[n]) -> y: f32[m,n]\n  grid m\n"
KERNELS = {
    "softmax": ROWS + "  e = exp(x[m,n] - max(x[m,n] over n))\n  y[m,n] = e / sum(e over n)\n",
    "doubles": ROWS.replace("f32", "f64")
    + "  e = exp(x[m,n] - max(x[m,n] over n))\n  y[m,n] = e / sum(e over n) + sum(x[m,n] over n)\n",
    "halves": ROWS.replace("f32", "f16")
    + "  y[m,n] = x[m,n] - min(x[m,n] over n) + f16(sum(f32(x[m,n]) over n))\n",
    "norm": ROWS + "  q = sum(x[m,n] * x[m,n] over n)\n  y[m,n] = x[m,n] / sqrt(q) * z[n]\n",
    "argmax": ROWS + "  y[m,n] = x[m,n] * f32(argmax(x[m,n] over n))\n",
    "product": "kernel k(x: f32[m,d], z: f32[n], w: f32[n,d]) -> y: f32[m,n]\n"
    "  grid m/48, n/256\n  s = dot(x[m,d], w[n,d] over d)\n  y[m,n] = exp(s) + z[n]\n",
    "scan": "kernel k(x: f32[m,n], z: f64[n]) -> y: f64[m,n]\n"
    "  grid m\n  s = sum(z[n] along n)\n  y[m,n] = s\n",
    "wide result": "kernel k(x: f32[m,n]) -> y: f64[m]\n"
    "  grid m/4\n  y[m] = f64(2) * sum(x[m,n] over n as f64)\n",
    "streamed": "kernel k(x: f32[m,n]) -> y: f32[m]\n"
    "  grid m\n  stream n/512 with v = -inf, s = f64(0)\n    v' = max(v, max(x[m,n] over n))\n"
    "    w = f64(exp(v - v'))\n    s' = s * w + sum(exp(x[m,n] - v') over n as f64)\n"
    "  y[m] = f32(s)\n",
    "largest product": "kernel k(x: f32[m,d], w: f32[n,d]) -> y: f32[m]\n"
    "  grid m\n  y[m] = max(dot(x[m,d], w[n,d] over d) over n)\n",
}
"""The last nest of each reads rows, values without loops, or products from scratch memory."""


def kernel_of(name: str) -> Kernel:
    return verify(parse(KERNELS[name]))


def compiled(kernel: Kernel, isa: str, *, streaming: bool) -> Native:
    target = Target.for_isa(isa)  # type: ignore[arg-type]
    built = build(kernel, target, streaming=streaming)
    loaded = emulate.load(built.code, [f.symbol for f in built.functions])
    return Native(kernel, target, built, loaded)


@pytest.mark.parametrize("isa", [RUNNABLE[0], RUNNABLE[-1]])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_stores_that_are_pipelined_keep_the_bits(
    name: str, streaming: bool, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of(name)
    new = compiled(kernel, isa, streaming=streaming)
    with monkeypatch.context() as patch:
        patch.setattr(module, "can_pipeline_store", lambda _: False)
        old = compiled(kernel, isa, streaming=streaming)
    rng = np.random.default_rng(0)
    for m, n, d in ((1, 1, 3), (3, 17, 5), (5, 64, 2), (50, 290, 9), (2, 1100, 2)):
        sizes = {"m": m, "n": n, "d": d}
        shapes = {p.name: [int(evaluate(e, sizes)) for e in p.shape] for p in kernel.inputs}
        arrays = {
            p.name: rng.normal(size=shapes[p.name]).astype(p.dtype.numpy) for p in kernel.inputs
        }
        for at_end in (True, False):
            got, want = new(arrays, at_end=at_end), old(arrays, at_end=at_end)
            assert got["y"].tobytes() == want["y"].tobytes()


@pytest.mark.parametrize("isa", [RUNNABLE[0], RUNNABLE[-1]])
def test_strips_of_long_tasks_keep_the_bits(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task has it all, and asks between strips whether it was given up."""
    rows = "kernel k(x: f32[m,n]) -> y: f64[], z: f32[m,n]\n"
    kernel = verify(parse(rows + "  y[] = sum(f64(x[m,n]) over m, n)\n  z[m,n] = exp(x[m,n])\n"))
    x = {"x": np.random.default_rng(0).normal(size=(7, 333)).astype(np.float32)}
    want = compiled(kernel, isa, streaming=False)(x)
    monkeypatch.setattr(vector_loops, "POLL_ELEMENTS", 8)
    got = compiled(kernel, isa, streaming=False)(x)
    assert all(got[name].tobytes() == want[name].tobytes() for name in want)
