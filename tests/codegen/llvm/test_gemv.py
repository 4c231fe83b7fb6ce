"""Matrix-vector and skinny products: every number of rows, both layouts."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.native import native
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse
from tests.codegen.llvm.test_contractions import inner_loops, matrices, whole_numbers

from smelt.codegen.build import asm_text, assembly, build, select_variant
from smelt.codegen.llvm.loopir.items import Apply
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.text import parse
from smelt.machine.blocks import GEMV, UNPACKED
from smelt.machine.target import Target
from smelt.runtime.code import load
from smelt.types.expr import evaluate

Array = np.ndarray[Any, Any]
DTYPES = {"f32": "f4", "f64": "f8", "i32": "i4", "i64": "i8"}


def reads_in_place(kernel: SingleKernel, isa: str, variant: Any = "") -> list[bool]:
    """For each contraction of a form: whether its larger operand is read as it lies."""
    target = Target.for_isa(isa)  # type: ignore[arg-type]
    phases = program(kernel.kernel).phases
    return [c.is_gemv for p in phases for c in schedule(p, target, variant).products.values()]


def test_form_follows_from_the_sizes() -> None:
    """Of a kernel that is compiled, not run."""
    kernel = fuse(matrices("f32", "m,k; k,n -> m,n"), "avx512")
    sizes = {"m": GEMV.rows, "n": GEMV.rows + 1, "k": UNPACKED.kc + 1}
    assert select_variant(kernel.variants, {**sizes, "k": UNPACKED.kc}) == "small"
    assert select_variant(kernel.variants, sizes) == "rows"
    assert select_variant(kernel.variants, {**sizes, "m": GEMV.rows + 1}) == ""
    assert (
        select_variant(kernel.variants, {**sizes, "m": GEMV.rows + 1, "n": GEMV.rows}) == "columns"
    )
    assert select_variant(kernel.variants, {**sizes, "n": 1}) in ("rows", "columns")
    assert reads_in_place(kernel, "avx512") == [False]
    assert (
        reads_in_place(kernel, "avx512", "rows")
        == reads_in_place(kernel, "avx512", "columns")
        == [True]
    )


def test_vectors_and_fixed_small_sizes_need_no_choice() -> None:
    """Of kernels that are compiled, not run."""
    for spec in ("m,k; k -> m", "k; k,n -> n", "k; n,k -> n", "b,k; b,k,n -> b,n"):
        kernel = fuse(matrices("f32", spec), "avx512")
        assert reads_in_place(kernel, "avx512") == [True], spec
        assert not [variant for variant, *_ in kernel.variants if not variant.startswith("@")], spec
    fixed = fuse(
        "graph f(x: f32[4,k], y: f32[k,n]) {\n"
        ' s = contract(x, y) {spec="m,k; k,n -> m,n"}\n return s\n}',
        "avx512",
    )
    assert reads_in_place(fixed, "avx512") == [True]
    assert [variant for variant, *_ in fixed.variants] == []


@pytest.mark.parametrize("isa", RUNNABLE)
def test_few_rows_and_short_lines_are_small(isa: str) -> None:
    """Of sizes that are numbers too: what stays in the first cache is multiplied as it lies."""
    lanes, high = {"avx512": (16, 8), "avx2": (8, 4), "neon": (4, 8)}.get(isa, (4, 4))
    for m, n, k, is_thin in (
        (16, 16, 16, False),
        (high, 2 * lanes, 20, False),
        (2, lanes, 64, False),
        (1, lanes, 16, True),
        (high - 1, lanes + 1, 16, True),
        (high, 128, 1024, True),
    ):
        code = (
            f"graph f(x: f32[b,{m},{k}], y: f32[b,{k},{n}]) {{\n"
            ' s = contract(x, y) {spec="b,m,k; b,k,n -> b,m,n"}\n return s\n}'
        )
        kernel = fuse(code, isa)
        assert reads_in_place(kernel, isa) == [is_thin], (m, n, k)
        x, y = whole_numbers((3, m, k), "f4", m), whole_numbers((3, k, n), "f4", n)
        assert np.array_equal(run_guarded(kernel, [x, y], at_end=True)[0], x @ y), (m, n, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", RUNNABLE)
def test_every_count_of_rows_in_both_orders(isa: str, dtype: str) -> None:
    first = isa == RUNNABLE[0] and dtype == "f32"
    for left, right in product(("m,k", "k,m"), ("k,n", "n,k")):
        kernel = fuse(matrices(dtype, f"{left}; {right} -> m,n"), isa)
        for m, n, k in product(
            range(GEMV.rows + 2) if first else (1, 3, 8), (1, 17, 64, 65), (0, 1, 5, 67)
        ):
            shapes = {"m,k": (m, k), "k,m": (k, m), "k,n": (k, n), "n,k": (n, k)}
            x, y = (whole_numbers(shapes[s], DTYPES[dtype], m) for s in (left, right))
            (actual,) = kernel(x, y)
            assert np.array_equal(actual, kernel.expected(x, y)[0]), (left, right, m, n, k)
        assert np.array_equal(run_guarded(kernel, [x, y], at_end=True)[0], actual)


@pytest.mark.parametrize("dtype", ["f64", "i64"])
@pytest.mark.parametrize("isa", RUNNABLE)
def test_vectors_shorter_than_the_lines_side_by_side(isa: str, dtype: str) -> None:
    """Two lanes hold the sums of half the lines that one row is multiplied with."""
    for spec, rows in (("k; n,k -> n", ()), *(("m,k; n,k -> m,n", (m,)) for m in (1, 2, 4))):
        source = matrices(dtype, spec)
        kernel = fuse(source.replace("m,", f"{rows[0]},", 1) if rows else source, isa)
        assert rows or reads_in_place(kernel, isa) == [True]
        for n, k in ((1, 40), (4, 3), (17, 40), (66, 9)):
            x, y = (whole_numbers(shape, DTYPES[dtype], n) for shape in ((*rows, k), (n, k)))
            assert np.array_equal(kernel(x, y)[0], x @ y.T), (rows, n, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", RUNNABLE)
def test_lines_that_are_not_there_are_multiplied_with_zeros(isa: str, dtype: str) -> None:
    """Whatever scratch memory held before, NaN too: four lines are taken at a time."""
    for spec, rows in (("k; k,n -> n", ()), ("m,k; k,n -> m,n", (3,))):
        source = matrices(dtype, spec)
        kernel = fuse(source.replace("m,", "3,", 1) if rows else source, isa)
        for k in range(1, 9):
            shapes = (*rows, 2 * GEMV.depth), (2 * GEMV.depth, 70)
            for depth in (2 * GEMV.depth, k):  # NaN fills scratch, and stays there
                x, y = (whole_numbers(shape, DTYPES[dtype], k) for shape in shapes)
                x, y = x[..., :depth].copy(), y[:depth].copy()
                if depth > k and x.dtype.kind == "f":
                    x[...] = np.nan
                (actual,) = kernel(x, y)
            assert np.array_equal(actual, x @ y), (spec, k)


@pytest.mark.parametrize(
    "spec", ["m,k; k,n -> m,n", "m,k; n,k -> m,n", "k; k,n -> n", "k; n,k -> n"]
)
def test_beyond_blocks_of_depth_and_columns(spec: str) -> None:
    kernel = fuse(matrices("f32", spec))
    for k, n in (
        (GEMV.depth - 1, 3),
        (GEMV.depth, 5),
        (2 * GEMV.depth + 19, GEMV.dot_rows + 1),
        (33, GEMV.columns - 1),
        (33, 2 * GEMV.columns + 35),
    ):
        size_values = {"m": 5, "n": n, "k": k}
        x, y = (
            whole_numbers(tuple(size_values[str(d)] for d in node.type.shape), "f4", 3)
            for node in kernel.graph.inputs
        )
        (actual,) = kernel(x, y)
        assert np.array_equal(actual, kernel.expected(x, y)[0]), (k, n)
        inside = run_guarded(kernel, [x, y], at_end=True, one_by_one=True)[0]
        assert np.array_equal(inside, actual)


@pytest.mark.parametrize("spec", ["k; n,k -> n", "m,k; n,k -> m,n"])
def test_following_rows_are_prefetched(spec: str) -> None:
    """However short they are, and for a single row too: what is asked for need not exist."""
    kernel = fuse(matrices("f32", spec))
    assert "m" in spec or re.search("prefetch|prfm", asm_text(kernel.kernel, kernel.target))
    for k, n in ((1, 9), (3, 40), (16, 5), (64, 70), (70, 4)):
        size_values = {"m": 3, "n": n, "k": k}
        x, y = (
            whole_numbers(tuple(size_values[str(d)] for d in node.type.shape), "f4", 3)
            for node in kernel.graph.inputs
        )
        actual = run_guarded(kernel, [x, y], at_end=True)[0]
        assert np.array_equal(actual, kernel.expected(x, y)[0]), (k, n)


def test_a_single_row_meets_long_lines_one_by_one() -> None:
    """Four vectors of a line side by side, where short ones are lines side by side."""
    kernel = fuse(matrices("f32", "k; n,k -> n"))
    text = asm_text(kernel.kernel, Target.for_isa("avx512"))
    loops = [body for body in inner_loops(text) if "fmadd" in body]
    alone = [body for body in loops if re.search(r"\svmovups\s+-?192\(", body)]
    assert [len(re.findall("fmadd", body)) for body in alone] == [4]
    assert "prefetch" in alone[0]


def test_a_single_row_meets_lines_side_by_side_where_one_waits_at_pages() -> None:
    """Of any length, with parts of vectors at the end and lines that are left over."""
    kernel = fuse(matrices("f32", "k; n,k -> n"))
    target = replace(Target.for_isa("avx512"), cpu="skylake-avx512")
    loops = [body for body in inner_loops(asm_text(kernel.kernel, target)) if "fmadd" in body]
    assert loops and not [x for x in loops if re.search(r"\svmovups\s+-?192\(", x)]
    if "avx512" not in RUNNABLE:
        return
    built = build(kernel.kernel, target)
    there = replace(
        kernel,
        built=built,
        loaded=load(built.code, [f.symbol for f in built.functions]),
        target=target,
        variants=(),
    )
    for n, k in ((1, 1), (7, 1536), (4, 2049), (9, 4096), (5, 0)):
        x, y = whole_numbers((k,), "f4", 3), whole_numbers((n, k), "f4", 4)
        if k > 3:
            x[3], y[n - 1, 2] = np.inf, np.nan
        with np.errstate(invalid="ignore"):
            wanted = y.astype("f8") @ x.astype("f8")
        assert np.array_equal(run_guarded(there, [x, y], at_end=True)[0], wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_long_lines_are_multiplied_piece_by_piece(dtype: str) -> None:
    """Long rows are multiplied in pieces.

    Few rows have long pieces, so that the sums over lanes at their ends take little time; of many
    rows, all rows of a piece stay in L1.
    """
    code = (
        f"graph f(x: {dtype}[m,k], y: {dtype}[n,k]) {{\n"
        ' s = contract(x, y) {spec="m,k; n,k -> m,n"}\n return s\n}'
    )
    kernel = fuse(code)
    rng = np.random.default_rng(1)
    for k in (255, 256, 257, 511, 513, 1023, 1024, 1025, 2047, 2049, 2300):
        for m in (5, 8, 9, 16):
            x, y = (
                rng.integers(-1, 2, (n, k)).astype(kernel.graph.inputs[0].type.dtype.numpy)
                for n in (m, 7)
            )
            (wanted,), (actual,) = kernel.expected(x, y), kernel(x, y)
            assert np.array_equal(np.float64(actual), np.float64(wanted)), (m, k)


def test_pieces_are_as_long_as_the_first_cache_holds() -> None:
    kernel = fuse(matrices("f32", "m,k; n,k -> m,n"))
    text = str(emit(kernel.kernel, Target.for_isa("avx512"), variant="rows").llvm)
    assert re.search(r"select +i1 %\S+, i64 1024, i64 256", text)


def test_pieces_are_prefetched_some_groups_ahead() -> None:
    """For the second cache: what the first one held of them would leave no room for the rows."""
    kernel = fuse(matrices("f32", "m,k; n,k -> m,n"))
    avx512 = Target.for_isa("avx512")
    built = emit(kernel.kernel, avx512, variant="rows").llvm
    loops = [x for x in inner_loops(assembly(built, avx512, 2)) if "prefetch" in x]
    asks = [x for x in loops if len(re.findall("fmadd", x)) == 16]
    assert [x.count("prefetcht1") for x in asks] == [2, 0]  # of eight rows, and of four
    assert re.search(r"select +i1 %\S+, i64 2, i64 8", str(built))


def test_few_rows_in_the_usual_code_too() -> None:
    """What serves all sizes is right for few rows, though others serve them better."""
    kernel = fuse(matrices("f32", "m,k; n,k -> m,n"), usual=True)
    assert kernel.variants == ()
    for m, n, k in product((0, 1, 2, 11, 12, 13), (1, 31, 32, 33), (0, 1, 40)):
        x, y = whole_numbers((m, k), "f4", 1), whole_numbers((n, k), "f4", 2)
        assert np.array_equal(kernel(x, y)[0], x @ y.T), (m, n, k)


STORED = """graph f(x: {half}[m,k], w: {half}[n,k], g: f32[n]) {{
  a = cast(x) {{dtype=f32}}
  v = cast(w) {{dtype=f32}}
  s = contract(a, v) {{spec="m,k; n,k -> m,n"}}
  z = mul(s, g)
  return z
}}"""


@pytest.mark.parametrize("half", ["bf16", "f16", "i8", "u8"])
def test_converted_as_it_is_read(half: str) -> None:
    kernel = fuse(STORED.format(half=half))
    rng = np.random.default_rng(1)
    for m, n, k in ((1, 70, 130), (3, 9, 33), (8, 130, 16)):
        kinds = [node.type.dtype.numpy for node in kernel.graph.inputs]
        x, w = (rng.integers(0, 5, s).astype(kind) for s, kind in zip(((m, k), (n, k)), kinds))
        g = rng.integers(-4, 5, n).astype("f4")
        (actual,) = kernel(x, w, g)
        assert np.array_equal(actual, x.astype("f4") @ w.astype("f4").T * g), (m, n, k)


def test_rounding_of_long_sums() -> None:
    rng = np.random.default_rng(4)
    for spec in ("m,k; k,n -> m,n", "m,k; n,k -> m,n"):
        kernel = fuse(matrices("f32", spec))
        x = rng.standard_normal((5, 5000)).astype("f4")
        y = rng.standard_normal((5000, 40)).astype("f4")
        right = y if spec.startswith("m,k; k") else np.ascontiguousarray(y.T)
        exact = x.astype("f8") @ y.astype("f8")
        allowed = 5001 * 2.0**-24 * (np.abs(x).astype("f8") @ np.abs(y).astype("f8"))
        assert (np.abs(kernel(x, right)[0] - exact) <= allowed).all()


def test_special_values_travel() -> None:
    """NaN and infinities reach exactly the sums that they are in; none comes from the padding."""
    for spec, turn in (("m,k; k,n -> m,n", False), ("m,k; n,k -> m,n", True)):
        kernel = fuse(matrices("f32", spec))
        for m in (1, 2, 5, 16):
            x, y = np.ones((m, 37), "f4"), np.ones((37, 41), "f4")
            x[0, 3], y[5, 7], y[6, 7], y[36, 40] = np.inf, np.nan, -np.inf, -np.inf
            with np.errstate(invalid="ignore"):
                wanted = x @ y
            (actual,) = kernel(x, np.ascontiguousarray(y.T) if turn else y)
            assert np.array_equal(actual, wanted, equal_nan=True), (spec, m)


BATCH = """kernel batch(x: f32[b,{m},{k}], w: f32[b,{k},{n}]) -> y: f32[b,{m},{n}]
  axis b, i in {m}, j in {n}, l in {k}
  grid b, i, j
  v = dot(x[b,i,l], w[b,l,j] over l)
  y[b,i,j] = v
"""


@pytest.mark.parametrize("n", [5, 16, 40, "n"])
@pytest.mark.parametrize("m", [1, 7, 16, "m"])
def test_sums_of_small_products_are_as_many_as_there_are(m: int | str, n: int | str) -> None:
    """Every task of a batch clears its sums: 16 rows of 2080 columns took forty times as long as
    the product of a few numbers."""
    f = native(BATCH.format(m=m, n=n, k=7))
    rng = np.random.default_rng(0)
    rows, columns = (7 if isinstance(s, str) else s for s in (m, n))
    x = rng.standard_normal((9, rows, 7)).astype("f4")
    w = rng.standard_normal((9, 7, columns)).astype("f4")
    np.testing.assert_allclose(f({"x": x, "w": w})["y"], x.astype("f8") @ w, rtol=1e-5, atol=1e-5)
    s = schedule(program(f.kernel).phases[0], f.target)
    for c in s.blocked:
        if c.is_gemv and c.vector_axis == c.n:
            assert evaluate(s.local["j"], {"m": rows, "n": columns, "b": 9}) == columns


PACKED = """graph f(x: f32[m,%d], w: u8[n,%d], s: f32[n]) {
 low = and(w, 15:u8)
 high = shr(w, 4:u8)
 a = cast(low) {dtype=f32}
 b = cast(high) {dtype=f32}
 c = reshape(a) {shape=(n, %d, 1)}
 d = reshape(b) {shape=(n, %d, 1)}
 e = concat(c, d) {axis=2}
 g = reshape(e) {shape=(n, %d)}
 h = reshape(s) {shape=(n, 1)}
 v = mul(g, h)
 y = contract(x, v) {spec="m,k; n,k -> m,n"}
 return y
}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("half", [1, 16, 40, 1100])
def test_two_numbers_of_a_byte(isa: str, half: int) -> None:
    """Lines run along the sum where each byte is met twice, and no element is gathered."""
    kernel = fuse(PACKED % (2 * half, half, half, half, 2 * half), isa)
    rng = np.random.default_rng(half)
    for m, n in ((1, 9), (2, 5), (3, 70), (4, 4), (8, 3), (9, 1), (16, 2)):
        x = rng.integers(-8, 9, (m, 2 * half)).astype("f4")
        w = rng.integers(0, 256, (n, half)).astype("u1")
        s = rng.integers(1, 3, n).astype("f4")
        (actual,) = run_guarded(kernel, [x, w, s], at_end=True)
        assert np.array_equal(actual, kernel.expected(x, w, s)[0]), (m, n)


def test_a_stream_computes_the_operand_of_a_gemv_once() -> None:
    """Weights that a product and a sum read are stored by the nest of the sum."""
    source = """kernel k(x: f32[m,3], z: f32[n,3], v: f32[n]) -> y: f32[m]
  axis m, n, d in 3
  grid m/64
  stream n/512 with total = 0 [m], s = f64(0) [m]
    a = x[m,d] - z[n,d]
    w = exp(-sum(square(a) over d))
    total' = total + dot(w, v[n] over n)
    s' = s + sum(w over n as f64)
  y[m] = total / f32(s)
"""
    (phase,) = program(parse(source)).phases
    nests = schedule(phase, Target.for_isa("avx512")).nests
    computed = [i for n in nests for x in (n, *n.packs) for i in x.items if isinstance(i, Apply)]
    assert [i.op for i in computed].count("exp") == 1
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((n, 3), dtype=np.float32) for n in (70, 1030))
    v = rng.standard_normal(1030, dtype=np.float32)
    weights = np.exp(-np.square(x[:, None] - z[None].astype(np.float64)).sum(-1))
    y = native(source)({"x": x, "z": z, "v": v})["y"]
    np.testing.assert_allclose(y, weights @ v / weights.sum(-1), rtol=1e-4, atol=1e-5)
