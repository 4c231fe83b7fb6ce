"""Versions of nests by a condition of their block compute what their kernels say."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE
from tests.codegen.llvm.test_nest_loops import compiled
from tests.codegen.llvm.test_scan_loops import arrays_of

from smelt.kernel.interp import run as interpret
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse
from smelt.kernel.verify import verify

CONDITIONS = ("last(n) > first(m)", "size(n) > 20", "(size(m) > 2) & (size(n) > size(m) * 3)")


def random_kernel(seed: int) -> Kernel:
    """A kernel of rows with a choice for whole blocks; of a map, or reduced, or both."""
    r = random.Random(seed)
    dtype, condition = r.choice(("f32", "f16", "f64", "i8", "i32")), r.choice(CONDITIONS)
    is_float = dtype[0] == "f"
    fixed = r.choice((8, 17, 24, 33, 64)) if r.random() < 0.3 else 0
    size = str(fixed or "n")
    condition = condition.replace("size(n)", str(fixed)) if fixed else condition
    one = r.choice(("select(n <= m, x[m,n], z[n])", "x[m,n] * z[n]", "x[m,n] + x[m,n]"))
    other = r.choice(("x[m,n]", "z[n]", "exp(x[m,n])" if is_float else "abs(x[m,n])"))
    wide = {"f16": "f32"}.get(dtype, dtype)
    if r.random() < 0.4:
        combine, wide = r.choice(("max", "min", "sum")), "f64" if is_float else "i64"
        value = f"{combine}({wide}(({one}) if {condition} else {other}) over n)"
        results = r.choice((f"y: {wide}[m]", f"y: {wide}[m], w: {dtype}[m,{size}]"))
        body = [f"  y[m] = {value}"]
    else:
        results, body = f"y: {wide}[m,{size}]", [f"  v = ({one}) if {condition} else {other}"]
        body.append("  y[m,n] = " + r.choice(("v", "v * v", "v - max(v over n)")))
    lines = [f"kernel k(x: {dtype}[m,{size}], z: {dtype}[{size}]) -> {results}"]
    lines += [f"  axis n in {fixed}"] if fixed else []
    block = "" if "first(m)" in condition else r.choice(("", "/4", "/16"))
    lines += [f"  grid m{block}", *body]
    lines += [f"  w[m,n] = x[m,n] if {condition} else z[n]"] if "w:" in results else []
    return verify(parse("\n".join(lines) + "\n"))


@pytest.mark.parametrize("seed", range(12))
def test_versions_compute_what_the_kernel_says(seed: int) -> None:
    kernel, isa, streaming = random_kernel(seed), RUNNABLE[seed % len(RUNNABLE)], seed % 2 == 1
    new = compiled(kernel, isa, streaming=streaming)
    for m, n in ((1, 1), (3, 17), (2, 64), (20, 9), (6, 290), (0, 5), (3, 0)):
        arrays = arrays_of(kernel, m, n)
        with np.errstate(all="ignore"):
            expected = interpret(kernel, arrays, {}) if n else {}
        for at_end in (True, False):
            got = new(arrays, at_end=at_end)
        for p, values in expected.items():
            close = (np.asarray(v).astype("f8") for v in (got[p], values))
            np.testing.assert_allclose(*close, rtol=1e-3, atol=1e-5)


def test_a_sum_of_everything_is_a_result_of_both_versions() -> None:
    source = "kernel k(x: f32[m,n]) -> y: f32[m,n]\n  s = sum((x[m,n] if size(n) > 20 else "
    kernel = verify(parse(source + "exp(x[m,n])) over m, n)\n  y[m,n] = x[m,n] * s\n"))
    new = compiled(kernel, RUNNABLE[0], streaming=False)
    for n in (7, 70):
        x: dict[str, Any] = {"x": np.random.default_rng(n).normal(size=(5, n)).astype(np.float32)}
        np.testing.assert_allclose(new(x)["y"], interpret(kernel, x, {})["y"], rtol=1e-4)


EMPTY = (
    "y: f32[m]\n  axis n in 0\n  grid m\n  y[m] = sum(x[m,n] over n) + z[m]\n",
    "y: f32[m]\n  axis n in 0\n  grid m/4\n  y[m] = max(x[m,n] * x[m,n] over n)\n",
    "y: f32[]\n  axis n in 0\n  y[] = sum(x[m,n] over m, n)\n",
    "y: f32[m,0]\n  axis n in 0\n  grid m\n  y[m,n] = exp(x[m,n]) - max(x[m,n] over n)\n",
    "y: f32[m], w: f32[m,0]\n  axis n in 0\n  grid m\n  w[m,n] = x[m,n]\n  y[m] = z[m] * z[m]\n",
)
"""Results of rows without elements."""


@pytest.mark.parametrize("results", EMPTY)
def test_rows_without_elements(results: str) -> None:
    kernel = verify(parse(f"kernel k(x: f32[m,0], z: f32[m]) -> {results}"))
    z = np.random.default_rng(0).normal(size=21).astype(np.float32)
    arrays: dict[str, Any] = {"x": np.zeros((21, 0), np.float32), "z": z}
    for isa in RUNNABLE:
        new = compiled(kernel, isa, streaming=False)(arrays)
        expected = interpret(kernel, arrays, {})
        for p, values in expected.items():
            np.testing.assert_array_equal(new[p], values)
