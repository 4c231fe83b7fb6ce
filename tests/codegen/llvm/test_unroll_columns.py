"""Columns of short rows that are vectors of their own agree with the interpreter."""

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.build import asm_text, llvm_text
from smelt.codegen.llvm.loopir.items import Apply, Scan
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.size_constants import with_sizes
from smelt.kernel.text import parse
from smelt.machine.target import Target

AVX512 = Target.for_isa("avx512")
TURNED = """graph f(x: {t}[{c},n]) {{
  p = permute(x) {{perm=(1,0)}}
  y = add(p, p)
  return y
}}"""
BACK = """graph f(x: {t}[n,{c}]) {{
  p = permute(x) {{perm=(1,0)}}
  y = add(p, p)
  return y
}}"""
NORMED = """graph f(x: {t}[n,{c}]) {{
  s = reduce.max(x) {{axes=(1,)}}
  r = reshape(s) {{shape=(n,1)}}
  y = sub(x, r)
  return y
}}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "f16", "i64"])
@pytest.mark.parametrize("source", [TURNED, BACK, NORMED], ids=["transposed", "back", "normed"])
def test_columns_side_by_side(source: str, dtype: str, isa: str) -> None:
    """Whole vectors and their ends, between forbidden pages."""
    rng = np.random.default_rng(3)
    for c in (2, 3, 5, 8, 12):
        kernel = fuse(source.format(t=dtype, c=c), isa, n=500)
        for n in (1, 7, 64, 131):
            shape = (c, n) if source is TURNED else (n, c)
            x = rng.integers(-9, 9, shape).astype(kernel.graph.inputs[0].type.dtype.numpy)
            expected = kernel.expected(x)[0]
            np.testing.assert_array_equal(kernel(x)[0], expected)
            for at_end in (True, False):
                actual = run_guarded(kernel, [x], at_end=at_end, one_by_one=at_end)[0]
                np.testing.assert_array_equal(actual, expected)


def test_each_column_is_stored_once() -> None:
    """What a row's columns have in common is computed once, and no lane is stored alone."""
    kernel = parse("""
    kernel k(x: f32[n,3]) -> y: f32[n,3]
      axis j in 3
      grid n/1024
      v0 = x[n,j]
      v1 = square(v0)
      v2 = sum(v1 over j)
      v3 = sqrt(v2)
      y[n,j] = v0 / v3
    """)
    (phase,) = program(kernel).phases
    s = schedule(phase, AVX512)
    assert [(n.order, len(n.stores)) for n in s.nests] == [(("n",), 3)]
    assert [i.op for i in s.nests[0].items if isinstance(i, Apply)].count("sqrt") == 1
    code = asm_text(kernel, AVX512)
    assert "vscatter" not in code
    assert "vgather" not in code


def test_results_in_another_layout_stay() -> None:
    """Rows of one result are columns of the other."""
    kernel = fuse(
        """graph f(x: f32[4,n]) {
      p = permute(x) {perm=(1,0)}
      y = exp(p)
      z = exp(x)
      return y, z
    }""",
        n=500,
    )
    x = np.random.default_rng(4).random((4, 131), np.float32)
    for actual, expected in zip(kernel(x), kernel.expected(x), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_few_rows_stay() -> None:
    """Vectors along fewer rows than lanes would be as empty."""
    kernel = parse("""
    kernel k(x: f32[3,5], z: f32[b]) -> y: f32[b,5,3]
      axis j in 3, i in 5
      grid b, i, j
      y[b,i,j] = x[j,i] * z[b]
    """)
    (phase,) = program(kernel).phases
    assert all(len(n.stores) == 1 for n in schedule(phase, AVX512).nests)


@pytest.mark.parametrize(
    ("isa", "c", "columns"), [("avx512", 11, 1), ("avx512", 12, 1), ("avx2", 3, 3), ("avx2", 5, 1)]
)
def test_rows_that_fill_half_a_vector_stay_rows(isa: Any, c: int, columns: int) -> None:
    """Where columns share nothing, 12 teeth of 12 vectors are more work than 12 lanes."""
    transposed = parse("""
    kernel k(x: f32[n,c]) -> y: f32[n,c]
      grid n, c
      y[n,c] = x[n,c] + x[n,size(c) - 1 - c]
    """)
    (phase,) = program(with_sizes(transposed, {"c": c})).phases
    phase = schedule(phase, Target.for_isa(isa)).phase
    assert len(phase.stores) == columns


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("fold", "t"), [("sum", "f32"), ("sum", "i8"), ("max", "f32"), ("prod", "f64"), ("sum", "f64")]
)
def test_scans_of_short_rows(isa: Any, fold: str, t: str) -> None:
    """Columns of their own, but for sums that carry their errors along."""
    text = f"graph f(x: {t}[n,d]) {{\n v = scan.{fold}(x) {{axis=1}}\n return v\n}}"
    kernel = fuse(text, isa, n=200, d=4)
    (phase,) = program(with_sizes(kernel.kernel, {"d": 4})).phases
    phase = schedule(phase, Target.for_isa(isa)).phase
    assert len(phase.stores) == (1 if (fold, t) == ("sum", "f64") else 4)
    rng = np.random.default_rng(1)
    for n, d in ((200, 4), (130, 1), (77, 7), (140, 12)):
        x = rng.integers(-3, 4, (n, d)).astype(kernel.graph.inputs[0].type.dtype.numpy)
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, [x], at_end=at_end)
            np.testing.assert_array_equal(actual, kernel.expected(x)[0])


def test_a_scan_along_other_axes_stays() -> None:
    kernel = parse("""
    kernel k(x: f32[n,7,3]) -> y: f32[n,7,3]
      axis i in 7, j in 3
      grid n, j
      y[n,i,j] = sum(x[n,i,j] along i)
    """)
    (phase,) = program(kernel).phases
    phase = schedule(phase, AVX512).phase
    assert any(isinstance(i, Scan) for i in phase.items)


FAR = """graph f(x: {t}[5,n,9,{c}]) {{
  p = permute(x) {{perm=(2,0,1,3)}}
  y = pad(p) {{low=(0,0,3,0), high=(0,0,40,0), value=0.0}}
  r = mul(y, y)
  return r
}}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("t", "c"), [("f32", 2), ("f32", 3), ("f64", 2), ("i8", 4), ("f16", 2)])
def test_pairs_that_are_read_far_apart(t: str, c: int, isa: str) -> None:
    """With margins, between forbidden pages: as many columns or rows as the machine's lanes say."""
    kernel = fuse(FAR.format(t=t, c=c), isa, n=100)
    rng = np.random.default_rng(5)
    for n in (1, 16, 37, 100):
        x = rng.integers(-9, 9, (5, n, 9, c)).astype(kernel.graph.inputs[0].type.dtype.numpy)
        for at_end in (True, False):
            actual = run_guarded(kernel, [x], at_end=at_end, one_by_one=at_end)[0]
            np.testing.assert_array_equal(actual, kernel.expected(x)[0])


@pytest.mark.parametrize(
    ("isa", "t", "c", "columns"),
    [
        ("avx512", "f32", 2, 2),
        ("avx512", "f32", 3, 1),
        ("avx512", "f64", 2, 1),
        ("avx2", "f32", 2, 1),
    ],
)
def test_rows_that_fill_an_eighth_of_a_vector_are_columns(
    isa: Any, t: str, c: int, columns: int
) -> None:
    """Transposed parts of complex numbers are columns.

    Vectors of two lanes would be nearly empty.
    """
    kernel = parse(f"""
    kernel k(x: {t}[n,64,{c}]) -> y: {t}[64,n,{c}]
      grid i in 64, n, c in {c}
      y[i,n,c] = x[n,i,c] + x[n,i,c]
    """)
    (phase,) = program(kernel).phases
    phase = schedule(phase, Target.for_isa(isa)).phase
    assert len(phase.stores) == columns


FEW = """graph f(x: {t}[n], z: {t}[{c},n]) {{
  s = exp(x)
  r = reshape(s) {{shape=(1,n)}}
  e = expand(r) {{shape=({c},n)}}
  y = add(e, z)
  return y
}}"""
JOINED = """graph f(x: f32[n]) {
  s = exp(x)
  c = cos(s)
  a = add(s, c)
  b = sub(s, c)
  d = mul(s, c)
  r0 = reshape(a) {shape=(1,n)}
  r1 = reshape(b) {shape=(1,n)}
  r2 = reshape(d) {shape=(1,n)}
  y = concat(r0, r1, r2) {axis=0}
  return y
}"""


@pytest.mark.parametrize("isa", RUNNABLE)
def test_few_rows_that_share_an_expensive_value(isa: str) -> None:
    """Whole vectors and their ends, between forbidden pages: the same bits as of single rows."""
    rng = np.random.default_rng(3)
    for dtype, c in (("f32", 3), ("f64", 16), ("f32", 17)):
        kernel = fuse(FEW.format(t=dtype, c=c), isa, n=500)
        for n in (1, 7, 64, 131):
            x, z = rng.standard_normal(n), rng.standard_normal((c, n))
            dtype_ = kernel.graph.inputs[0].type.dtype.numpy
            x, z = x.astype(dtype_), z.astype(dtype_)
            expected = np.exp(x) + z
            np.testing.assert_allclose(kernel(x, z)[0], expected, rtol=1e-5, atol=1e-6)
            for at_end in (True, False):
                actual = run_guarded(kernel, [x, z], at_end=at_end, one_by_one=at_end)[0]
                np.testing.assert_array_equal(actual, kernel(x, z)[0])


def test_concatenated_rows_are_stored_by_their_producers() -> None:
    """What the parts share is computed once, and each part stored where it lies."""
    kernel = fuse(JOINED, n=5000)
    (phase,) = program(kernel.kernel).phases
    s = schedule(phase, AVX512)
    assert [(n.order, len(n.stores)) for n in s.nests] == [(("n",), 3)]
    items = [i.op for i in s.nests[0].items if isinstance(i, Apply)]
    assert [items.count(name) for name in ("exp", "cos", "add", "select")] == [1, 1, 1, 0]
    x = np.linspace(-2, 2, 5000, dtype=np.float32)
    # a unit in the last place of e² = 7.4 is 4.8e-7, and s cos s moves by up to 8 times as much
    np.testing.assert_allclose(kernel(x)[0], kernel.expected(x)[0], rtol=1e-5, atol=8e-6)


DEAR = """graph f(x: {t}[n], z: {t}[n,{c}]) {{
  s = exp(x)
  p = cos(s)
  q = exp(p)
  o = cos(q)
  u = exp(o)
  v = cos(u)
  r = reshape(v) {{shape=(n,1)}}
  e = expand(r) {{shape=(n,{c})}}
  y = sub(e, z)
  return y
}}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("dtype", "c"), [("f32", 16), ("f32", 14), ("f64", 12), ("f16", 6)])
def test_many_columns_that_share_an_expensive_value(isa: str, dtype: str, c: int) -> None:
    """Columns take turns, halves first: each lane where it belongs, and nothing beyond the end."""
    kernel = fuse(DEAR.format(t=dtype, c=c), isa, n=500)
    dtype_ = kernel.graph.inputs[0].type.dtype.numpy
    rng = np.random.default_rng(5)
    for n in (1, 33, 131):
        x, z = rng.random(n).astype(dtype_), rng.integers(-9, 9, (n, c)).astype(dtype_)
        expected = kernel.expected(x, z)[0]
        np.testing.assert_allclose(
            kernel(x, z)[0], expected, rtol=1e-5, atol=1e-2 if c == 6 else 1e-4
        )
        for at_end in (True, False):
            actual = run_guarded(kernel, [x, z], at_end=at_end, one_by_one=at_end)[0]
            np.testing.assert_array_equal(actual, kernel(x, z)[0])


def test_halves_take_turns() -> None:
    """Sixteen columns are stored with 4 shuffles a vector instead of 29."""
    kernel = fuse(DEAR.format(t="f32", c=16), "avx512", n=500).kernel
    text = llvm_text(kernel, AVX512)
    stored = text.count("masked.store.v16f32") + text.count("store <16 x float>")
    read = 15 + 1  # of each column of z, for picking it from 16 vectors, and one for its mask
    assert 0 < text.count("shufflevector") <= stored * (read + 4 + 4)


def test_short_rows_of_pairs_need_no_masks() -> None:
    """Thirty-two complex numbers are two whole vectors of each part: less than a loop takes."""
    kernel = parse("""
    kernel k(x: f32[m,64], w: f32[32,2]) -> y: f32[m,32,2]
      grid m, l in 32, u in 2
      v0 = x[m, l*2] * w[l,0]
      v1 = x[m, l*2 + 1] * w[l,1]
      v2 = u == 0
      y[m,l,u] = select(v2, v0, v1)
    """)
    code = llvm_text(kernel, AVX512)
    assert "masked" not in code
    assert code.count("store <16 x float>") == 4
