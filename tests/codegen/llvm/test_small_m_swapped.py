"""Products of few rows by a transposed operand: rows and columns are swapped."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops, matrices, whole_numbers
from tests.codegen.llvm.test_tall_skinny import AFTER
from tests.codegen.llvm.variants import forced

import smelt as sm
from smelt import lower
from smelt.codegen.build import assembly, select_variant
from smelt.codegen.llvm.instructions.transpose import butterfly
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.fused_gemm import fused_gemm_plans, small_m_columns
from smelt.graph.text import parse
from smelt.kernel.artifact import competing_candidates
from smelt.machine.blocks import GEMV, SMALL_M_SWAPPED, TSMM, UNPACKED
from smelt.machine.target import Target
from smelt.types.dtype import bf16
from smelt.types.expr import evaluate, mul, size

PLAIN = matrices("f32", "m,k; n,k -> m,n")
ISAS = [isa for isa in RUNNABLE if any(c.variant == "small_m" for c in fuse(PLAIN, isa).variants)]
SIZES = ((1, 1, 1), (13, 16, 5), (17, 50, 33), (35, 37, 3), (49, 47, 18), (70, 141, 20))
pytestmark = pytest.mark.skipif(not ISAS, reason="no set of instructions with enough registers")


@pytest.mark.parametrize("isa", ISAS)
def test_form_follows_from_sizes(isa: str) -> None:
    """What every task packs of the left operand is to stay in L2."""
    variants = fuse(PLAIN, isa).variants
    for m in (GEMV.rows + 1, 64, UNPACKED.mc):
        most = {"m": m, "n": 64, "k": SMALL_M_SWAPPED.packed_bytes // 4 // m}
        for k in (most["k"], most["k"] + 1):
            possible = [c.variant for c in competing_candidates(variants, {**most, "k": k})]
            assert ("small_m" in possible) == (k == most["k"])
    assert select_variant(variants, {"m": UNPACKED.mc + 1, "n": 64, "k": 500}) != "small_m"
    assert select_variant(variants, {"m": 32, "n": 4096, "k": 1024}) == "small_m"


@pytest.mark.parametrize("isa", ISAS)
def test_columns_that_are_packed_all_the_same(isa: str) -> None:
    """Columns stored as rows, and few columns of many heads, are packed.

    So are columns of which a part is stored as rows, since rows would be packed again, and rows in
    pieces.
    """
    target = Target.for_isa(isa)
    mixed = (
        "graph f(x: f32[m,k], w: f32[n,k], v: f32[k,n]) {\n t = permute(v) {perm=(1,0)}\n"
        " q = add(w, t)\n"
        ' s = contract(x, q) {spec="m,k; n,k -> m,n"}\n return s\n}'
    )
    heads = (
        "graph f(x: f32[m,k], w: f32[h,{n},k]) {{\n"
        ' s = contract(x, w) {{spec="m,k; h,n,k -> h,m,n"}}\n return s\n}}'
    )
    merged = (
        "graph f(x: f32[b,12,m,32], w: f32[n,384]) {\n p = permute(x) {perm=(0,2,1,3)}\n"
        " r = reshape(p) {shape=(b*m,384)}\n"
        ' s = contract(r, w) {spec="m,k; n,k -> m,n"}\n return s\n}'
    )
    cases = (
        (merged, False),
        (PLAIN, True),
        (matrices("f32", "m,k; k,n -> m,n"), False),
        (mixed, False),
        (heads.format(n=TSMM.columns), False),
        (heads.format(n=TSMM.columns + 1), True),
    )
    for code, transposed in cases:
        (phase,) = program(lower.run(one_cluster(parse(code)), "eager", {})).phases
        (actual,) = fused_gemm_plans(phase, target, "small_m")
        assert actual.swapped == transposed


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("isa", ISAS)
def test_fused_with_what_surrounds(isa: str, after: str) -> None:
    """What stands behind reads whole rows of sums, or parts of vectors, of any layout."""
    code = (
        "graph f(x: f32[m,k], w: f32[n,k], b: f32[n], r: f32[m,n], c: f32[m], i: i64[m]) {\n"
        ' s = contract(x, w) {spec="m,k; n,k -> m,n"}\n' + AFTER[after] + "\n}"
    )
    kernel = forced(code, isa, "small_m")
    rng = np.random.default_rng(3)
    for m, n, k in SIZES:
        shapes = {"x": (m, k), "w": (n, k), "b": (n,), "r": (m, n), "c": (m,)}
        by_name = {name: whole_numbers(shape, "f4", m) for name, shape in shapes.items()} | {
            "i": rng.integers(0, m, m)
        }
        arrays = [by_name[str(node.op.label)] for node in kernel.graph.inputs]
        read = [by_name[p.name] for p in kernel.kernel.inputs]
        for at_end in (False, True):
            result = run_guarded(kernel, read, at_end=at_end, sizes={"m": m, "n": n, "k": k})
            for got, wanted in zip(result, kernel.expected(*arrays), strict=True):
                assert np.array_equal(got, wanted), (m, n, k)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("bf16", "q = cast(w) {dtype=f32}"),
        ("f16", "q = cast(w) {dtype=f32}"),
        ("i8", "a = cast(w) {dtype=f32}\n e = reshape(d) {shape=(n,1)}\n q = mul(a, e)"),
    ],
)
@pytest.mark.parametrize("isa", ISAS)
def test_converted_columns(isa: str, kind: str, line: str) -> None:
    """A few columns at a time, and scales of theirs, whose ends nobody else reads."""
    code = (
        f"graph f(x: f32[m,k], w: {kind}[n,k], d: f32[n]) {{\n {line}\n"
        ' s = contract(x, q) {spec="m,k; n,k -> m,n"}\n return s\n}'
    )
    kernel = forced(code, isa, "small_m")
    rng = np.random.default_rng(6)
    dtype = {"bf16": bf16.numpy, "f16": np.float16, "i8": np.int8}[kind]
    for m, n, k in SIZES:
        x, d = whole_numbers((m, k), "f4", m), whole_numbers((n,), "f4", n)
        w = rng.integers(-4, 5, (n, k)).astype(dtype)
        scaled = w.astype("f4") * (d[:, None] if kind == "i8" else 1)
        arrays = [{"x": x, "w": w, "d": d}[p.name] for p in kernel.kernel.inputs]
        for at_end in (False, True):
            actual = run_guarded(kernel, arrays, at_end=at_end, sizes={"m": m, "n": n, "k": k})[0]
            assert np.array_equal(actual, x @ scaled.T), (m, n, k)


def test_same_bits_for_any_threads_and_strides() -> None:
    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal(s).astype("f4") for s in ((180, 1100), (900, 1100)))
    for a, b in ((x[:90, :700], w[:, :700]), (x[::2, 100:900], w[::-1, 100:900])):
        f = sm.jit(lambda a, b: a @ b.T)
        actual: list[bytes] = []
        for threads in (1, 2, 3):
            with sm.config(threads=threads):
                actual.append(np.asarray(f(a, b)).tobytes())
        assert len(set(actual)) == 1
        whole_ = sm.jit(lambda a, b: a @ b.T)(np.ascontiguousarray(a), np.ascontiguousarray(b))
        assert np.asarray(whole_).tobytes() == actual[0]


def test_tasks_share_columns_evenly() -> None:
    m, n = (size(name) for name in "mn")
    for tasks in (2, 4, 8):
        taken = small_m_columns(n, m, mul(m, n), tasks, SMALL_M_SWAPPED.columns)
        for rows, columns in product((17, 64, UNPACKED.mc), (48, 200, 768, 3072, 30522)):
            wide = int(evaluate(taken, {"m": rows, "n": columns}))
            count = -(-columns // wide)
            assert wide % SMALL_M_SWAPPED.columns == 0
            assert count <= tasks
            assert count >= tasks - 1 or wide <= 2 * SMALL_M_SWAPPED.columns
            assert wide - columns / count < SMALL_M_SWAPPED.columns


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_inner_loops_stay_in_registers(dtype: str) -> None:
    """Two positions at once, and two lines that are asked for: no sum leaves its register."""
    kernel = lower.run(one_cluster(parse(matrices(dtype, "m,k; n,k -> m,n"))), "eager", {})
    text = assembly(
        emit(kernel, Target.for_isa("avx512"), variant="small_m").llvm, Target.for_isa("avx512"), 2
    )
    loops = [x for x in inner_loops(text) if len(re.findall("fmadd", x)) in (12, 24, 48)]
    assert sorted(len(re.findall("fmadd", x)) for x in loops) == [12, 24, 24, 48]
    for x in loops:
        assert not re.search(r"(?m)zmm\d+, -?\d*\(%rsp|-?\d*\(%rsp\), %zmm", x)
        assert not re.search(r"%zmm\d+, -?\d*\(%r", x)  # nothing is stored
        assert x.count("prefetch") == 2


def test_tiles_are_transposed_in_place_of_lane_inserts() -> None:
    """Shuffles whose operands are constants alone, in two halves that LLVM looks at one by one."""
    kernel = lower.run(one_cluster(parse(matrices("f32", "m,k; n,k -> m,n"))), "eager", {})
    text = emit(kernel, Target.for_isa("avx512"), variant="small_m").llvm
    code = assembly(text, Target.for_isa("avx512"), 2)
    assert len(re.findall("vunpck[lh]p[sd]", code)) >= 32
    assert not re.search("vperm[it]2p", code)
    assert text.count('@"llvm.arithmetic.fence.v16f32"(') % 16 == 1  # and its declaration


@pytest.mark.parametrize("side", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("part", [1, 2, 4, 16])
def test_a_tile_of_any_size_is_transposed(side: int, part: int) -> None:
    stages, order = butterfly(side, min(part, side))
    rows = [[(i, j) for j in range(side)] for i in range(side)]
    for step, masks in stages:
        for k in range(side):
            if not k & step:
                both = rows[k] + rows[k + step]
                rows[k], rows[k + step] = ([both[x] for x in m] for m in masks)
    assert [rows[k] for k in order] == [[(i, j) for i in range(side)] for j in range(side)]
