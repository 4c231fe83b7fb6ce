"""Groups of a few contiguous channels are reduced over rows of all groups."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.native import native

from smelt.codegen.llvm.program import program
from smelt.kernel.text import parse

SUMS = """kernel f(x: f32[n,r,{c}]) -> y: f32[n,{g}], z: f32[n,{g}]
  grid n, j in {g}
  a = x[n, 0, j*{e}]
  v = x[n, r, j*{e} + k]
  s = sum(v over r, k)
  d = v - a
  m = max(d over r, k)
  y[n,j] = s
  z[n,j] = m * s
  axis n, j in {g}, r, k in {e}
"""
MAP = """kernel f(x: f32[n,r,{c}]) -> y: f32[n,r,{g},{e}], t: f32[{g}]
  axis n, r, k in {g}, l in {e}
  grid p in split(n, max(1, min(4, n)))
  stream n/all of p with u = 0 [k]
    a = x[n, 0, k*{e} + l]
    b = sum(a over l)
    c = b * 0.5
    v = x[n, r, k*{e} + l]
    w = v - c
    y[n,r,k,l] = w
    u' = u + sum(b over n)
  merge p: (u)
  t[k] = u
"""


def _text(source: str, groups: int, each: int) -> str:
    lines = source.format(c=groups * each, g=groups, e=each).splitlines()
    lines = (
        [x for x in lines if not x.startswith("  axis")][:1]
        + [x for x in lines if x.startswith("  axis")]
        + [x for x in lines[1:] if not x.startswith("  axis")]
    )
    return "\n".join(lines)


@pytest.mark.parametrize(("groups", "each"), [(8, 8), (3, 5), (32, 4), (2, 40)])
def test_reductions_take_rows_first(groups: int, each: int) -> None:
    source = _text(SUMS, groups, each)
    assert [p.name for p in program(parse(source)).phases] == ["f.s.parts", "f.s.merge", "f"]
    f = native(source)
    for n, r in ((0, 3), (1, 1), (2, 7), (1, 1031)):  # runs of rows of one part and of several
        x = np.random.default_rng(r).standard_normal((n, r, groups * each)).astype("f4")
        if r == 7:
            x[0, 1, 1], x[1, 2, -1] = np.nan, np.inf
        for one_by_one in (False, True):
            actual = f({"x": x}, one_by_one=one_by_one)
            grouped = x.reshape(n, r, groups, each)
            total = grouped.astype("f8").sum((1, 3))
            most = (grouped - grouped[:, :1, :, :1]).max((1, 3)) if n else total.astype("f4")
            size = 1e-6 * np.abs(grouped).sum((1, 3)) + 1e-6
            np.testing.assert_array_equal(np.isfinite(actual["y"]), np.isfinite(total))
            finite = np.isfinite(total)
            assert (np.abs(actual["y"][finite] - total[finite]) <= size[finite]).all()
            expected = most * total.astype("f4")
            np.testing.assert_allclose(actual["z"][finite], expected[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("groups", "each"), [(8, 8), (3, 5), (32, 4)])
def test_maps_are_split_from_reductions(groups: int, each: int) -> None:
    source = _text(MAP, groups, each)
    assert [p.name for p in program(parse(source)).phases][-1] == "f"
    assert len(program(parse(source)).phases) == 3
    f = native(source)
    for n, r in ((0, 3), (1, 1), (5, 7), (2, 131)):
        x = np.random.default_rng(r).standard_normal((n, r, groups * each)).astype("f4")
        grouped = x.reshape(n, r, groups, each)
        each_sum = grouped[:, 0].astype("f8").sum(-1) if r else np.zeros((n, groups))
        for one_by_one in (False, True):
            actual = f({"x": x}, one_by_one=one_by_one)
            wanted = grouped - (each_sum * 0.5)[:, None, :, None]
            np.testing.assert_allclose(actual["y"], wanted, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(actual["t"], each_sum.sum(0), rtol=1e-5, atol=1e-5)


TWICE = """kernel f(x: f32[n,r,{c}]) -> y: f32[n,{g}]
  grid n, j in {g}
  v = x[n, r, j*{e} + k]
  s = sum(v over r, k)
  c = f32(index(size(r)*{e}))
  m = s / c
  d = v - m
  q = d * d
  t = sum(q over r, k)
  y[n,j] = t - m
  axis n, j in {g}, r, k in {e}
"""


@pytest.mark.parametrize(("groups", "each"), [(8, 8), (3, 5), (32, 4)])
def test_dependent_reductions_take_rows_first(groups: int, each: int) -> None:
    source = _text(TWICE, groups, each)
    assert len(program(parse(source)).phases) == 6
    f = native(source)
    for n, r in ((0, 3), (1, 1), (2, 7), (1, 1031)):
        x = np.random.default_rng(r).standard_normal((n, r, groups * each)).astype("f4") + 3
        grouped = x.reshape(n, r, groups, each).astype("f8")
        wanted = grouped.var((1, 3)) * r * each - grouped.mean((1, 3))
        for one_by_one in (False, True):
            actual = f({"x": x}, one_by_one=one_by_one)["y"]
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-4)


def test_long_rows_stay_together() -> None:
    """Groups as long as vectors are, and rows that no folds surround."""
    assert len(program(parse(_text(SUMS, 2, 64))).phases) == 1
    assert len(program(parse(_text(MAP, 2, 16))).phases) == 2


ODD = """kernel f(x: f32[n,r,24], b: f32[5], c: f32[]) -> y: f32[n,3,5], z: f32[n,3]
  axis n, r, j in 3, k in 8, u in 5
  grid n, j
  a = c[]
  v = x[n, r, j*8 + k]
  d = v * a
  w = b[u]
  e = d + w
  s = sum(e over r, k)
  y[n,j,u] = s
  h = sum(d over r, k)
  z[n,j] = h
"""


def test_reductions_along_other_axes_are_not_split() -> None:
    """Results that vary along an axis that is neither folded nor the grid's."""
    x = np.random.default_rng(0).standard_normal((2, 11, 24)).astype("f4")
    b, c = np.arange(5, dtype="f4"), np.full((), 2, "f4")
    actual = native(ODD)({"x": x, "b": b, "c": c})
    grouped = x.reshape(2, 11, 3, 8).astype("f8").sum((1, 3)) * 2
    np.testing.assert_allclose(actual["z"], grouped, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(actual["y"], grouped[:, :, None] + 88 * b, rtol=1e-5, atol=1e-5)
    assert len(program(parse(ODD)).phases) == 1


IN_PLACE = """kernel f(x: f32[n,r,3,8], w: f32[n,3,8]) -> y: f32[n,r,3,8], x: f32[n,r,3,8]
  axis n, r, j in 3, k in 8
  grid n, j
  c = w[n,j,k]
  m = sum(c over k)
  v = x[n, r, j, k]
  d = v - m
  y[n,r,j,k] = d
  e = d * 3
  x[n,r,j,k] = e
"""


def test_what_is_written_over_is_not_read_later() -> None:
    """A map that was done after the others would find what the second of them leaves."""
    assert len(program(parse(IN_PLACE)).phases) == 1


DIRECT = """kernel f(x: {t}[n,r,24]) -> y: {t}[n,r,3,8], z: {t}[n,3]
  axis n, r, j in 3, k in 8
  grid n, j
  v = x[n, r, j*8 + k]
  s = sum(v over r, k)
  w = v - s
  y[n,r,j,k] = w
  z[n,j] = s
"""


@pytest.mark.parametrize("kind", ["f32", "f64", "i64"])
def test_maps_read_reductions_directly(kind: str) -> None:
    """What rows leave of a fold, and the fold itself, are arrays of different shapes."""
    source, dtype = DIRECT.format(t=kind), np.dtype(f"{kind[0]}{int(kind[1:]) // 8}")
    built = program(parse(source))
    names = [b.name for b in built.buffers]
    assert len(built.phases) == 4 and len({*names}) == len(names)
    x = (np.random.default_rng(0).standard_normal((2, 7, 24)) * 50).astype(dtype)
    grouped = x.reshape(2, 7, 3, 8)
    total = grouped.sum((1, 3), "i8" if kind == "i64" else "f8").astype(dtype)
    actual = native(source)({"x": x})
    np.testing.assert_allclose(actual["z"], total, rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(actual["y"], grouped - total[:, None, :, None], rtol=1e-6, atol=1e-4)


def test_sums_of_doubles_carry_their_errors_in_every_kernel() -> None:
    """Also where all that a kernel of them reads or writes in double precision is partial."""
    lines = ["kernel f(x: f64[n,r,24]) -> z: f32[n,3]", *DIRECT.format(t="f64").splitlines()[1:5]]
    source = "\n".join([*lines, "  t = f32(s)", "  z[n,j] = t", ""])
    x = np.zeros((1, 3, 3, 8))
    x[0, 0, :, :2], x[0, 2, :, 3], x[0, 1, :, 5] = (1e17, 3), -1e17, 4
    assert (native(source)({"x": x.reshape(1, 3, 24)})["z"] == 7).all()
