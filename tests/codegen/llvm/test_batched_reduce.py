"""Batched reductions of rows: each result is that of its row alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse

import smelt as sm
from smelt import knobs
from smelt.codegen.llvm.loops.unroll_factor import is_fully_unrolled
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.size_constants import with_sizes
from smelt.kernel.text import parse
from smelt.loop.reduce_rows import SHUFFLE_BYTES, row_order
from smelt.machine.target import Isa, Target
from smelt.ops.combine import COMBINES
from smelt.types.dtype import COMPUTABLE, DTYPES

Array = np.ndarray[Any, Any]
NAMES = {d.name: d for d in DTYPES}
LENGTHS = (9, 24, 33, 64)
CASES = [
    (name, d.name) for name, row in COMBINES.items() for d in COMPUTABLE if d.kind in row.kinds
]


def source(combine: str, dtype: str) -> str:
    return f"graph f(x: {dtype}[m,k]) {{\n y = reduce.{combine}(x) {{axes=(1,)}}\n return y\n}}"


def rows(combine: str, dtype: str, m: int, k: int) -> Array:
    """Rows with equals, and of floats some that are NaN, infinite or zeros of both signs."""
    rng, kind = np.random.default_rng(m + k), NAMES[dtype].numpy
    x = rng.integers(0, 6, (m, k)) - (0 if dtype.startswith(("u", "b")) else 3)
    if not NAMES[dtype].is_float:
        return (x > 3 if dtype == "bool" else x).astype(kind)
    result = (1 + x / 64 if combine == "prod" else x).astype(kind)
    for special in (np.nan, -np.inf, np.inf, -0.0):
        result[rng.random((m, k)) < 0.02] = special
    result[0] = -np.inf
    return result


def same(kernel: SingleKernel, x: Array) -> None:
    (actual,) = run_guarded(kernel, [x], at_end=True)
    (wanted,) = kernel.expected(x)
    assert actual.dtype == wanted.dtype
    near = {2: 1e-2, 4: 1e-6, 8: 1e-14}[x.dtype.itemsize] if actual.dtype.kind not in "biu" else 0
    np.testing.assert_allclose(actual.astype("f8"), wanted.astype("f8"), rtol=near, atol=near)
    (again,) = run_guarded(kernel, [x], at_end=False, one_by_one=True)
    assert again.tobytes() == actual.tobytes()


@pytest.mark.parametrize(("combine", "dtype"), CASES)
def test_every_reduction(combine: str, dtype: str) -> None:
    for k in LENGTHS[1:3]:
        kernel = fuse(source(combine, dtype), m=200, k=k)
        for m in (1, 37):
            same(kernel, rows(combine, dtype, m, k))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("combine", "dtype"),
    [
        ("sum", "f32"),
        ("sum", "f64"),
        ("max", "f16"),
        ("argmax", "f32"),
        ("argmin", "i8"),
        ("any", "bool"),
        ("prod", "i64"),
    ],
)
def test_instruction_sets(isa: Isa, combine: str, dtype: str) -> None:
    for k in LENGTHS:
        kernel = fuse(source(combine, dtype), isa, m=200, k=k)
        for m in (3, 35):
            same(kernel, rows(combine, dtype, m, k))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_batches_of_narrow_and_wide_results(isa: Isa) -> None:
    """Wide results of a batch take several vectors, of which the last rows leave some empty."""
    text = (
        "graph f(x: f32[m,k]) {\n s = reduce.sum(x) {axes=(1,)}\n"
        " t = reduce.min(x) {axes=(1,)}\n return s, t\n}"
    )
    kernel = fuse(text, isa, m=100, k=28)
    for m in (*range(1, 20), 33):
        x = np.random.default_rng(m).integers(-9, 9, (m, 28)).astype("f4")
        for actual, wanted in zip(
            run_guarded(kernel, [x], at_end=True), kernel.expected(x), strict=True
        ):
            np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("k", [17, 24, 33, 64, 100])
def test_a_row_does_not_depend_on_those_beside_it(k: int) -> None:
    x = np.random.default_rng(k).standard_normal((203, k)).astype("f4")

    def both(x: Any) -> Any:
        return sm.sum(x * x, axis=1), sm.sum(sm.exp(x), axis=1)

    folded = sm.jit(both)
    wanted = [np.asarray(y) for y in folded(x)]
    for first, threads in ((1, 1), (7, 2), (16, 1), (202, 2)):
        with knobs.config(threads=threads):
            actual = [np.asarray(y) for y in folded(x[first:])]
        assert all(a[first:].tobytes() == b.tobytes() for a, b in zip(wanted, actual, strict=True))


@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_rows_come_out_in_their_order(lanes: int, size: int) -> None:
    assert sorted(row_order(lanes, min(SHUFFLE_BYTES // size, lanes))) == list(range(lanes))


SOFTMAX = """
kernel f(x: f32[n,d]) -> y: f32[n,d]
  grid n
  v0 = x[n,d]
  v1 = exp(v0 - max(v0 over d))
  y[n,d] = v1 / sum(v1 over d)
"""


@pytest.mark.parametrize(("d", "straight"), [(16, True), (24, True), (48, True), (2000, False)])
def test_short_rows_are_written_out(d: int, straight: bool) -> None:
    (phase,) = program(with_sizes(parse(SOFTMAX), {"d": d})).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    rows = [n for n in nests.nests if n.vector == "d"]
    assert rows and all(is_fully_unrolled(nests, n) == straight for n in rows)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("d", [16, 17, 24, 47])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_softmax(isa: Isa, d: int, dtype: str) -> None:
    text = (
        f"graph f(x: {dtype}[m,k]) {{\n a = reduce.max(x) {{axes=(1,)}}\n"
        " b = reshape(a) {shape=(m,1)}\n c = sub(x, b)\n e = exp(c)\n"
        " s = reduce.sum(e) {axes=(1,)}\n t = reshape(s) {shape=(m,1)}\n"
        " y = div(e, t)\n return y\n}"
    )
    kernel = fuse(text, isa, m=100, k=d)
    for m in (1, 35):
        x = np.random.default_rng(m).standard_normal((m, d)).astype(NAMES[dtype].numpy)
        (actual,) = run_guarded(kernel, [x], at_end=True)
        near = {"f32": 1e-6, "f64": 1e-14, "bf16": 1e-2}[dtype]
        np.testing.assert_allclose(
            actual.astype("f8"), kernel.expected(x)[0].astype("f8"), rtol=near, atol=near
        )


def test_a_loop_without_a_rest_stays() -> None:
    """A loop without a remainder is not batched.

    It may use non-temporal stores, and has no masks either; reductions have no wide state to merge.
    """
    (phase,) = program(with_sizes(parse(SOFTMAX), {"d": 64})).phases
    nests = schedule(phase, Target.for_isa("avx512"))
    assert [is_fully_unrolled(nests, n) for n in nests.nests if n.vector == "d"] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i8", "u16", "bool"])
def test_rests_of_rows_are_stored_in_runs(isa: Isa, dtype: str) -> None:
    """Nothing behind the last row is written."""
    fold = "sum" if dtype == "bool" else "max"
    text = f"graph f(x: {dtype}[m,k]) {{\n y = scan.{fold}(x) {{axis=1}}\n return y\n}}"
    short = dtype in ("i8", "u16")  # rows of many lanes, which take long to compile
    for k in (23,) if short else (13, 31):
        kernel = fuse(text, isa, m=100, k=k)
        x = np.random.default_rng(k).integers(0, 2, (35, k)).astype(NAMES[dtype].numpy)
        for at_end in (True, False):
            (actual,) = run_guarded(kernel, [x], at_end=at_end)
            np.testing.assert_array_equal(actual, kernel.expected(x)[0])
