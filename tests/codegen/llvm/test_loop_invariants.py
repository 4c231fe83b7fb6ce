"""Expensive values with fewer axes than their readers are hoisted out of the other loops."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.native import native_kernel
from tests.codegen.llvm.single_kernel import RUNNABLE

from smelt.codegen.llvm.loopir.items import Apply, Item, Load
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.size_constants import with_sizes
from smelt.kernel.text import parse
from smelt.machine.target import Isa, Target

FORCES = """
kernel k(x: f32[n,c]) -> y: f32[n,c]
  grid n
  v0 = x[n,c]
  stream m in n/256 with s = f64(0) [c]
    v1 = x[m,c]
    v2 = v0 - v1
    v3 = square(v2)
    v4 = sum(v3 over c)
    v5 = v4 + 0.5
    v6 = pow(v5, -1.5)
    v7 = v2 * v6
    s' = s + sum(v7 over m as f64)
  v8 = f32(s)
  y[n,c] = v8
"""


def _applies(item: Item, op: str) -> bool:
    return isinstance(item, Apply) and item.op == op


@pytest.mark.parametrize("c", [3, 8])
@pytest.mark.parametrize(("dear", "times"), [("pow(v5, -1.5)", 1), ("v5 * 3", 0)])
def test_expensive_weights_have_a_loop_without_the_columns(c: int, dear: str, times: int) -> None:
    kernel = with_sizes(parse(FORCES.replace("pow(v5, -1.5)", dear)), {"c": c})
    (phase,) = program(kernel).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    assert len([i for i in nests.materialised if _applies(i, "pow")]) == times
    again = [n for n in nests.nests if "c" in n.order and any(_applies(i, "pow") for i in n.items)]
    assert not again


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("c", [1, 3, 8, 17])
def test_forces_are_right(c: int, isa: Isa) -> None:
    kernel = native_kernel(with_sizes(parse(FORCES), {"c": c}), isa)
    for n in (1, 7, 257, 300):
        x = np.random.default_rng(n).standard_normal((n, c)).astype(np.float32)
        d = x[:, None].astype("f8") - x[None]
        expected = (d * ((d**2).sum(-1) + 0.5)[..., None] ** -1.5).sum(1)
        actual = kernel({"x": x})["y"]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * n)


HEAD = """
kernel k(x: f32[n,256], w: f32[10,256]) -> y: f32[n,10]
  axis i in 256, n, k in 10
  v2 = f32(size(n))
  stream i/256 with v26 = 0 [n,k]
    v0 = x[n,i]
    v1 = sum(v0 over n)
    v3 = v1 / v2
    v4 = v0 - v3
    v5 = square(v4)
    v6 = sum(v5 over n)
    v7 = v6 / v2
    v8 = v7 + 1e-5
    v9 = rsqrt(v8)
    v19 = v4 * v9
    v25 = w[k,i]
    v26' = v26 + dot(v19, v25 over i)
  y[n,k] = v26
"""
"""Columns brought to one scale, and a few sums of each row of them."""


def test_column_invariants_are_computed_once() -> None:
    (phase,) = program(parse(HEAD)).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    packs = [p for n in nests.nests for p in n.packs]
    assert packs and not any(_applies(i, "rsqrt") for p in packs for i in p.items)
    folding = [n for n in nests.nests if n.reductions]
    assert len(folding) == 2 and all(n.vector == "i" for n in folding)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_heads_are_right(isa: Isa) -> None:
    kernel = native_kernel(parse(HEAD), isa)
    rng = np.random.default_rng(3)
    w = rng.standard_normal((10, 256)).astype(np.float32)
    for n in (1, 40, 129):
        x = rng.standard_normal((n, 256)).astype(np.float32)
        d = x - x.mean(0, dtype="f8")
        expected = (d / np.sqrt((d**2).mean(0) + 1e-5)) @ w.T
        np.testing.assert_allclose(kernel({"x": x, "w": w})["y"], expected, rtol=1e-4, atol=1e-4)


COLUMN = """
kernel k(x: f32[n,c]) -> y: f32[n]
  grid n/64
  stream m in n/512 with s = -inf [n]
    v0 = x[n,0]
    v1 = x[m,0]
    v2 = v0 - v1
    v3 = square(v2)
    s' = max(s, max(v3 over m))
  y[n] = s
"""


def test_a_column_is_gathered_once_for_all_rows() -> None:
    (phase,) = program(parse(COLUMN)).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    assert [type(i) for i in nests.materialised if i.axes == {"m"}] == [Load]


@pytest.mark.parametrize("isa", RUNNABLE)
def test_gathered_columns_are_right(isa: Isa) -> None:
    kernel = native_kernel(parse(COLUMN), isa)
    for n in (1, 63, 521):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        expected = np.max((x[:, :1] - x[:, 0]) ** 2, axis=1)
        np.testing.assert_array_equal(kernel({"x": x})["y"], expected)
