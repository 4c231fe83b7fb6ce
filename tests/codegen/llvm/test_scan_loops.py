"""Scans along vectors and across loops: exact where the sums are, on all instruction sets."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE
from tests.codegen.llvm.test_nest_loops import compiled

from smelt.codegen.llvm import vector_loops
from smelt.kernel.interp import run as interpret
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse
from smelt.kernel.verify import verify

TYPES = ("f32", "f16", "bf16", "i8", "i32", "i64", "f64")
LENGTHS = (1, 2, 8, 17, 24, 33, 64, 130)
"""Constant lengths of rows."""


def random_kernel(seed: int) -> Kernel:
    """A kernel whose rows or columns are scanned, of constant length or not.

    It may have a second result, and the sums of its rows.
    """
    r = random.Random(seed)
    dtype, combine = r.choice(TYPES), r.choice(("sum", "prod", "max", "min"))
    fixed = r.choice(LENGTHS) if r.random() < 0.4 else 0
    row, size = r.choice(("", "m,")), str(fixed or "n")
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    wide = "i64" if dtype[0] == "i" and combine in ("sum", "prod") else wide
    element = r.choice((f"x[{row}n]", f"x[{row}n] * z[n]", f"-x[{row}n]"))
    value = r.choice(("s", f"s + {wide}(z[n])", "s * s"))
    second = r.random() < 0.4
    axis = r.choice(("n", "n", "m")) if row else "n"
    total = bool(row) and r.random() < 0.4
    results = f"y: {wide}[{row}{size}]" + (f", w: {dtype}[{row}{size}]" if second else "")
    results += f", t: {wide}[m]" if total else ""
    lines = [f"kernel k(x: {dtype}[{row}{size}], z: {dtype}[{size}]) -> {results}"]
    lines += [f"  axis n in {fixed}"] if fixed else []
    lines += ["  grid m"] if row and axis == "n" else []
    lines += [f"  s = {combine}({element} along {axis})", f"  y[{row}n] = {value}"]
    lines += ["  t[m] = max(s over n)"] if total else []
    lines += [f"  w[{row}n] = {element} + x[{row}n]"] if second else []
    return verify(parse("\n".join(lines) + "\n"))


def arrays_of(kernel: Kernel, m: int, n: int, *, whole: bool = False) -> dict[str, Any]:
    """Random arrays with some special values; `whole` numbers have sums that are exact."""
    rng = np.random.default_rng(m * n)
    sizes = {"m": m, "n": n}
    arrays: dict[str, Any] = {}
    for p in kernel.inputs:
        shape = [e if isinstance(e, int) else sizes[str(e)] for e in p.shape]
        is_real = p.dtype.is_float and not whole
        values = rng.normal(size=shape) if is_real else rng.integers(-3, 4, shape)
        values = values.astype(p.dtype.numpy)
        if p.dtype.is_float and values.size > 20:
            values.flat[[3, 11, 14, 19]] = -0.0, np.inf, np.nan, 0.0
        arrays[p.name] = values
    return arrays


def bits(x: Any) -> bytes:
    """The bits of an array; NaN of either sign is one, since operands of additions commute."""
    return (np.where(x != x, np.array(np.nan, x.dtype), x) if x.dtype.kind in "fV" else x).tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_scans_are_those_of_the_interpreter(seed: int) -> None:
    kernel, isa, streaming = random_kernel(seed), RUNNABLE[seed % len(RUNNABLE)], seed % 2 == 1
    code = compiled(kernel, isa, streaming=streaming)
    for m, n in ((1, 1), (3, 17), (2, 64), (4, 290), (1, 1100), (0, 5), (3, 0)):
        arrays = arrays_of(kernel, m, n, whole=True)
        with np.errstate(all="ignore"):
            want = interpret(kernel, arrays, {"m": m, "n": n})
        for at_end in (True, False):
            got = code(arrays, {"m": m, "n": n}, at_end=at_end)
            for p in kernel.outputs:
                results = (np.asarray(x[p.name]).astype(p.dtype.compute.numpy) for x in (got, want))
                np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("total", ["max(x[m,n] over m, n)", "sum(s over m, n)"])
def test_rows_are_scanned_and_reduced_together(total: str) -> None:
    source = "kernel k(x: f32[m,n]) -> y: f32[m,n], t: f32[]\n"
    source += f"  s = sum(x[m,n] along n)\n  y[m,n] = s\n  t[] = {total}\n"
    kernel = verify(parse(source))
    for isa in RUNNABLE:
        code = compiled(kernel, isa, streaming=False)
        for m, n in ((1, 1), (3, 17), (2, 64), (4, 290), (3, 0)):
            arrays = arrays_of(kernel, m, n, whole=True)
            if n > 0 or total.startswith("sum"):
                got, want = code(arrays), interpret(kernel, arrays, {"m": m, "n": n})
                for p in kernel.outputs:
                    np.testing.assert_array_equal(got[p.name], want[p.name])


@pytest.mark.parametrize("combine", ["sum", "max"])
def test_strips_of_a_long_row_keep_the_bits(combine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task asks between strips whether it was given up, and carries the fold across them."""
    source = f"kernel k(x: f32[n]) -> y: f32[n]\n  y[n] = {combine}(x[n] along n)\n"
    kernel = verify(parse(source))
    x = {"x": np.random.default_rng(0).normal(size=333).astype(np.float32)}
    for streaming in (False, True):
        want = compiled(kernel, RUNNABLE[0], streaming=streaming)(x)
        with monkeypatch.context() as patch:
            patch.setattr(vector_loops, "POLL_ELEMENTS", 8)
            got = compiled(kernel, RUNNABLE[0], streaming=streaming)(x)
        assert got["y"].tobytes() == want["y"].tobytes()
