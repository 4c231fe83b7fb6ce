"""Scans along every axis, alone, with readers of other axes, and inside contractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.codegen.llvm.test_reductions import BITS, NAMES

from smelt.codegen.llvm.loopir.items import Scan
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.ops.combine import COMBINES
from smelt.types.dtype import DType

Array = np.ndarray[Any, Any]
SHAPES = (
    (1, 1, 1),
    (5, 3, 70),
    (70, 2, 17),
    (2, 67, 33),
    (4, 130, 1),
    (0, 3, 4),
    (3, 0, 2),
    (3, 2, 0),
    (600, 2, 3),
    (2, 3, 700),
)
KINDS = [name for name, row in COMBINES.items() if row.prefix is not None]


def data(dtype: DType, shape: tuple[int, ...], combine: str) -> Array:
    rng = np.random.default_rng(len(combine) + sum(shape))
    if dtype.is_integer:
        return rng.integers(0, 5, shape).astype(dtype.numpy)
    if combine == "prod":
        return (1 + rng.standard_normal(shape) / 100).astype(dtype.numpy)
    return rng.standard_normal(shape).astype(dtype.numpy)


def near(actual: Array, x: Array, combine: str, axis: int, dtype: DType) -> bool:
    """Test whether a scan is off by no more than the rounding of its result."""
    prefix = COMBINES[combine].prefix
    assert prefix is not None
    if not dtype.is_float:
        with np.errstate(over="ignore"):
            return bool(np.array_equal(actual, prefix(x.astype(actual.dtype), axis=axis)))
    wanted = prefix(x.astype(np.longdouble), axis=axis)
    step = 2.0 ** -BITS[dtype.name]
    inner = 0 if combine in ("max", "min") else x.shape[axis] * 2.0**-52
    allowed = np.abs(wanted) * step + prefix(np.abs(x).astype(float), axis=axis) * inner
    return bool((np.abs(actual.astype(np.longdouble) - wanted) <= allowed).all())


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i8", "bf16"])
@pytest.mark.parametrize("combine", KINDS)
def test_every_axis(combine: str, dtype: str) -> None:
    kind = NAMES[dtype]
    for isa in RUNNABLE if dtype == "f32" else RUNNABLE[:1]:
        for axis in range(3):
            line = f"y = scan.{combine}(x) {{axis={axis}}}"
            kernel = fuse(f"graph f(x: {dtype}[a,b,c]) {{\n {line}\n return y\n}}", isa)
            for shape in SHAPES:
                x = data(kind, shape, combine)
                (actual,) = kernel(x)
                assert actual.dtype == COMBINES[combine].result(kind).numpy
                assert near(actual, x, combine, axis, kind), (shape, axis, isa)


WIDER = """graph f(x: f32[a], z: f32[a,b]) {
  s = scan.sum(x) {axis=0}
  e = tanh(s)
  t = reshape(e) {shape=(a,1)}
  u = add(t, z)
  w = scan.max(u) {axis=1}
  v = reduce.max(w) {axes=(0,)}
  return u, v
}"""
PACKED = """graph f(x: f32[a,b], y: f32[b,c]) {
  s = scan.sum(x) {axis=1}
  e = sin(s)
  t = contract(e, y) {spec="a,b; b,c -> a,c"}
  return t
}"""
CROSSED = """graph f(x: f32[a,b]) {
  s = scan.sum(x) {axis=1}
  t = scan.min(s) {axis=0}
  u = reduce.sum(t) {axes=(0,)}
  v = reduce.max(s) {axes=(1,)}
  w = sub(s, reshape_v)
  return t, u, v, w
}""".replace("  w = sub", "  reshape_v = reshape(v) {shape=(a,1)}\n  w = sub")
COLUMNS = """graph f(x: f32[a,b]) {
  s = scan.sum(x) {axis=0}
  u = reduce.sum(s) {axes=(0,)}
  return s, u
}"""
GUARDED = """graph f(x: f32[a,b]) {
  m = reduce.max(x) {axes=(1,)}
  n = reshape(m) {shape=(a,1)}
  d = sub(x, n)
  s = scan.sum(d) {axis=1}
  i = iota() {shape=(a,b), axis=1, dtype=f32}
  j = add(i, 1.0:f32)
  y = div(s, j)
  return y
}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    "code",
    [WIDER, PACKED, CROSSED, COLUMNS, GUARDED],
    ids=["wider", "packed", "crossed", "columns", "guarded"],
)
def test_scans_among_others(code: str, isa: str) -> None:
    """A scan runs once in order, whatever loops its readers need."""
    kernel = fuse(code, isa)
    rng = np.random.default_rng(2)
    for a, b, c in ((5, 7, 3), (1, 300, 2), (300, 1, 40), (50, 600, 260), (64, 64, 64)):
        shapes = {"x": (a,) if code is WIDER else (a, b), "y": (b, c), "z": (a, b)}
        arrays = [
            (rng.standard_normal(shapes[p.name]) / 8).astype("f4") for p in kernel.kernel.inputs
        ]
        actual = kernel(*arrays)
        for wanted, got in zip(kernel.expected(*arrays), actual, strict=True):
            scale = 1 + float(np.abs(wanted).max())
            assert np.allclose(got, wanted, rtol=1e-5, atol=3e-6 * scale), (a, b, c)
        for at_end in (True, False):
            again = run_guarded(kernel, arrays, at_end=at_end, one_by_one=at_end)
            assert all(p.tobytes() == q.tobytes() for p, q in zip(again, actual, strict=True))


BEST_OF_COLUMNS = """graph f(x: f32[5,5]) {
  s = scan.min(x) {axis=1}
  p = reduce.argmin(x) {axes=(0,)}
  return s, p
}"""
SOFTMAX_OF_COLUMNS = """graph f(x: f32[n,17]) {
  require 1 <= n
  m = reduce.max(x) {axes=(0,)}
  r = reshape(m) {shape=(1,17)}
  d = sub(x, r)
  e = exp(d)
  t = reduce.sum(e) {axes=(0,)}
  s = scan.max(x) {axis=0}
  return t, s
}"""
BOTH_AXES = """graph f(x: f32[63,n]) {
  require 1 <= n
  s = scan.sum(x) {axis=0}
  c = reduce.min(s) {axes=(0,)}
  r = reduce.max(s) {axes=(1,)}
  m = reduce.max(x) {axes=(0,)}
  return s, c, r, m
}"""

BEST_OF_ALL = """graph f(x: f32[63,n]) {
  require 1 <= n
  p = reduce.argmin(x) {axes=(0,1)}
  r = reduce.sum(x) {axes=(1,)}
  c = reduce.sum(x) {axes=(0,)}
  return p, r, c
}"""


@pytest.mark.parametrize("code", [BEST_OF_COLUMNS, SOFTMAX_OF_COLUMNS, BOTH_AXES, BEST_OF_ALL])
def test_loops_with_states_in_arrays_are_vectors(code: str) -> None:
    """They hold no scan and carry no best position, which have no vectors there."""
    kernel = fuse(code)
    nests = [
        nest
        for phase in program(kernel.kernel).phases
        for nest in schedule(phase, kernel.target).nests
        if any(not nest.in_registers(r) for r in nest.reductions)
    ]
    assert nests
    for nest in nests:
        assert not any(isinstance(i, Scan) for i in nest.items)
        assert not any(r.row.positional and nest.in_registers(r) for r in nest.reductions)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    "code",
    [BEST_OF_COLUMNS, SOFTMAX_OF_COLUMNS, BOTH_AXES, BEST_OF_ALL],
    ids=["best", "softmax", "both", "all"],
)
def test_scans_and_reductions_of_columns(code: str, isa: str) -> None:
    """Columns that are reduced row by row have loops of their own: those of a scan are in order."""
    kernel = fuse(code, isa)
    rng = np.random.default_rng(3)
    for n in (1, 16, 70):
        (p,) = kernel.graph.inputs
        shape = [d if isinstance(d, int) else n for d in p.type.shape]
        x = rng.integers(-4, 5, shape).astype("f4")
        for wanted, actual in zip(kernel.expected(x), kernel(x), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-6)
