"""Rows shorter than a vector: each lane takes a row, for every length.

Sizes seen at the first call decide that; the kernel then serves all sizes, long rows included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse

from smelt.compiler import driver
from smelt.fusion import plan_single
from smelt.fusion.schedule_model import ScheduleModel
from smelt.graph.text import parse
from smelt.kernel.ir import Block, Kernel

Array = np.ndarray[Any, Any]
SUM = " s = reduce.sum(x) {axes=(1,)}\n return s"
BOTH = " i = reduce.argmax(x) {axes=(1,)}\n s = reduce.max(x) {axes=(1,)}\n return i, s"
NORM = (
    " a = square(x)\n s = reduce.sum(a) {axes=(1,)}\n t = reshape(s) {shape=(m,1)}\n"
    " u = sqrt(t)\n y = div(x, u)\n return y, s"
)
PLACE = " i = reduce.argmax(x) {axes=(1,)}\n return i"
ROWS = {"sum": SUM, "winner": BOTH, "place": PLACE, "norm": NORM}
DISTANCES = """graph f(x: {0}[m,k], y: {0}[n,k]) {{
  a = reshape(x) {{shape=(m,1,k)}}
  b = reshape(y) {{shape=(1,n,k)}}
  c = sub(a, b)
  d = square(c)
  e = reduce.sum(d) {{axes=(2,)}}
  return e
}}"""

MIDDLE = """graph f(x: {0}[m,k,n]) {{
  e = exp(x)
  s = reduce.sum(e) {{axes=(1,)}}
  t = reduce.max(x) {{axes=(1,)}}
  return s, t
}}"""
PAIRS = """graph f(x: {0}[m,n,k], y: {0}[m,k]) {{
  b = reshape(y) {{shape=(m,1,k)}}
  c = mul(x, b)
  e = reduce.sum(c) {{axes=(2,)}}
  return e
}}"""
FEW = {"distances": DISTANCES, "middle": MIDDLE, "pairs": PAIRS}
"""Several short rows lie together: results are few as well."""


def source(name: str, dtype: str) -> str:
    return f"graph f(x: {dtype}[m,k]) {{\n{ROWS[name]}\n}}"


def row_kernel(name: str, dtype: str, isa: str | None = None, **hints: int) -> SingleKernel:
    return fuse(source(name, dtype), isa, **hints)


def lanes(kernel: Kernel) -> list[str]:
    """Grid axes that are taken in blocks."""
    return [b.axis for b in kernel.grid if isinstance(b, Block) and b.size not in (None, 1)]


def check(kernel: SingleKernel, arrays: list[Array]) -> None:
    actual = kernel(*arrays)
    half = arrays[0].dtype.itemsize == 2
    for wanted, got in zip(kernel.expected(*arrays), actual, strict=True):
        assert wanted.dtype == got.dtype
        near = 1e-2 if half else 1e-5 if arrays[0].dtype == np.float32 else 1e-13
        np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=near, atol=near)
    for at_end in (True, False):
        again = run_guarded(kernel, arrays, at_end=at_end, one_by_one=at_end)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(again, actual, strict=True))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", ROWS)
def test_short_rows_of_every_length(name: str, dtype: str, isa: str) -> None:
    kernel = row_kernel(name, dtype, isa, m=1000, k=3)
    assert lanes(kernel.kernel) == ["m"]
    rng = np.random.default_rng(1)
    kind = kernel.graph.inputs[0].type.dtype.numpy
    for m, k in ((1, 1), (1000, 3), (513, 4), (70, 8), (33, 17), (5, 100)):
        check(kernel, [rng.standard_normal((m, k)).astype(kind)])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_distances_in_few_dimensions(dtype: str) -> None:
    kernel = fuse(DISTANCES.format(dtype), m=200, n=300, k=3)
    assert lanes(kernel.kernel) == ["n"]
    rng = np.random.default_rng(2)
    kind = kernel.graph.inputs[0].type.dtype.numpy
    for m, n, k in ((1, 1, 1), (7, 300, 3), (3, 65, 16), (2, 5, 70)):
        check(kernel, [rng.standard_normal(s).astype(kind) for s in ((m, k), (n, k))])


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FEW)
def test_few_results_of_short_rows(name: str, dtype: str, isa: str) -> None:
    kernel = fuse(FEW[name].format(dtype), isa, m=1000, k=3, n=4)
    assert lanes(kernel.kernel) == ["m"]
    rng = np.random.default_rng(3)
    kind = kernel.graph.inputs[0].type.dtype.numpy
    for m, k, n in ((1, 1, 1), (1000, 3, 4), (67, 8, 7), (33, 17, 20), (3, 2, 70)):
        sizes = {"m": m, "k": k, "n": n}
        shapes = [[sizes[str(e)] for e in x.type.shape] for x in kernel.graph.inputs]
        check(kernel, [rng.standard_normal(s).astype(kind) for s in shapes])


@pytest.mark.parametrize(
    ("name", "dtype", "m", "k", "across"),
    [
        ("sum", "f32", 1000, 8, True),
        ("sum", "f32", 1000, 9, False),
        ("sum", "f64", 1000, 8, True),
        ("winner", "f32", 1000, 16, False),
        ("place", "f32", 1000, 8, True),
        ("place", "f64", 1000, 9, False),
        ("sum", "f32", 10, 3, False),
        ("norm", "f64", 1000, 17, False),
        ("distances", "f32", 1000, 3, True),
        ("distances", "f32", 20, 3, False),
        ("middle", "f32", 1000, 8, True),
        ("middle", "f32", 10, 3, False),
        ("pairs", "f64", 1000, 8, True),
        ("pairs", "f32", 1000, 12, False),
    ],
)
def test_planner_and_lowering_agree(
    name: str, dtype: str, m: int, k: int, across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see that rows are short, from the sizes alone."""
    seen: list[int] = []
    assign_nests = ScheduleModel.assign_nests

    def spy(one: ScheduleModel) -> None:
        seen.append(one.lane_axis)
        assign_nests(one)

    monkeypatch.setattr(ScheduleModel, "assign_nests", spy)
    monkeypatch.setattr(plan_single, "larger_sizes", lambda *_: None)
    text = FEW[name].format(dtype) if name in FEW else source(name, dtype)
    compiled = driver.compile(parse(text), hints={"m": m, "k": k, "n": 3})
    (kernel,) = compiled.kernels
    assert kernel is not None
    assert bool(lanes(kernel)) == across == bool(seen[-1])
