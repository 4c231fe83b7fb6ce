"""Packed products of many rows: every layout, prologues and epilogues."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded, slowdown
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, fuse_graph, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops, matrices, whole_numbers
from tests.codegen.llvm.test_tall_skinny import AFTER, BEFORE, HEAD
from tests.codegen.llvm.variants import (
    TYPES,
    forced,
    is_right_in_every_layout,
    is_right_with_what_surrounds,
)

import smelt as sm
from smelt import lower
from smelt.codegen.build import assembly, select_variant
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.products.fused_gemm_packing import PACK_DEPTH
from smelt.codegen.llvm.products.prefetch import INTERVAL
from smelt.graph.text import parse
from smelt.kernel.artifact import competing_candidates
from smelt.machine.blocks import (
    GEMV,
    HEIGHT,
    ONE_PASS,
    REGISTER_RUN,
    TASKS,
    TSMM,
    UNPACKED,
    wide_blocks,
)
from smelt.machine.target import Target
from smelt.types.expr import evaluate, mul, size

PLAIN = matrices("f32", "m,k; k,n -> m,n")
ISAS = [isa for isa in RUNNABLE if any(c.variant == "panels" for c in fuse(PLAIN, isa).variants)]
SIZES = (
    (1, 1, 1),
    (8, 32, 0),
    (9, 33, 5),
    (7, 31, 17),
    (17, 65, 33),
    (70, 47, 16),
    (33, TSMM.columns + 1, 19),
    (145, 2 * TSMM.columns + 17, 3),
    (40, TSMM.columns, 300),
)
pytestmark = pytest.mark.skipif(not ISAS, reason="no set of instructions with enough registers")
MASKED = [isa for isa in ISAS if Target.for_isa(isa).facts.has_mask_registers]
"""Those with mask registers: elsewhere "tall_skinny" begins with fewer rows."""


@pytest.mark.parametrize("isa", ISAS)
def test_form_follows_from_sizes(isa: str) -> None:
    variants = fuse(PLAIN, isa).variants
    large = {"m": 512, "n": 512, "k": 512}
    assert select_variant(variants, large) == "panels"
    for k in (ONE_PASS.depth, ONE_PASS.depth + 1):
        possible = [c.variant for c in competing_candidates(variants, {**large, "k": k})]
        assert ("panels" in possible) == (k == ONE_PASS.depth)
    assert select_variant(variants, {**large, "k": ONE_PASS.depth + 1}) == "k_blocked"
    # The columns of a transposed left operand that L2 does not hold are packed.
    transposed = fuse(matrices("f32", "k,m; k,n -> m,n"), isa).variants
    assert select_variant(transposed, {"m": 2048, "n": 512, "k": 1024}) != "panels"


@pytest.mark.parametrize("isa", ISAS)
def test_few_rows_whose_operand_is_packed_anyway(isa: str) -> None:
    """Few rows with a computed or transposed operand, and operands of few columns."""

    def variant(right: str, code: str, **sizes: int) -> str:
        head = f"graph f(x: f32[b,m,k], w: f32[{right}]) {{\n q = {code}\n s = contract(x, q)"
        kernel = fuse(f'{head} {{spec="b,m,k; {right} -> b,m,n"}}\n return s\n}}', isa)
        return select_variant(kernel.variants, {"b": 9, **sizes})

    computed, few, many = ("b,k,n", "abs(w)"), GEMV.rows + 1, 10 * TSMM.columns
    assert variant(*computed, m=UNPACKED.mc, n=many, k=7) != "small"
    assert variant(*computed, m=few, n=few, k=ONE_PASS.depth + 1) != "panels"
    assert variant(*computed, m=GEMV.rows, n=many, k=7) == "rows"


@pytest.mark.parametrize("right", ["k,n", "n,k"])
@pytest.mark.parametrize("isa", ISAS)
def test_few_rows_of_two_operands_that_are_packed(isa: str, right: str) -> None:
    kernel = fuse(
        f"graph f(x: f32[b,m,k], w: f32[b,{right}]) {{\n p = abs(x)\n q = neg(w)\n"
        f' s = contract(p, q) {{spec="b,m,k; b,{right} -> b,m,n"}}\n return s\n}}',
        isa,
    )
    for m, n, k in (
        (GEMV.rows + 1, GEMV.rows + 1, TSMM.depth),
        (70, TSMM.columns, 9),
        (UNPACKED.mc, 33, 17),
    ):
        x = whole_numbers((2, m, k), "f4", m)
        w = whole_numbers((2, k, n) if right == "k,n" else (2, n, k), "f4", n)
        possible = competing_candidates(kernel.variants, kernel.sizes([x, w]))
        assert "tall_skinny" in [c.variant for c in possible]
        assert np.array_equal(kernel(x, w)[0], kernel.expected(x, w)[0]), (m, n, k)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_every_layout(isa: str, dtype: str) -> None:
    is_right_in_every_layout(isa, dtype, "panels", SIZES)


@pytest.mark.parametrize("right", ["k,n", "n,k"])
@pytest.mark.parametrize("isa", ISAS)
def test_roundings_of_any_numbers(isa: str, right: str) -> None:
    kernel = forced(matrices("f32", f"m,k; {right} -> m,n"), isa)
    rng = np.random.default_rng(5)
    for m, n, k in (
        (UNPACKED.mc + 1, TSMM.columns + 1, 700),
        (600, 131, 257),
        (265, 300, ONE_PASS.depth),
    ):
        x = rng.standard_normal((m, k)).astype("f4")
        y = rng.standard_normal((k, n) if right == "k,n" else (n, k)).astype("f4")
        (actual,) = kernel(x, y)
        whole_sum = x.astype("f8") @ (y if right == "k,n" else y.T).astype("f8")
        runs = min(k, REGISTER_RUN) + k / REGISTER_RUN + 1
        bound = runs * 2.0**-24 * (abs(x) @ abs(y if right == "k,n" else y.T))
        assert np.all(abs(actual - whole_sum) <= bound)


@pytest.mark.parametrize(
    ("before", "after"),
    [("", a) for a in AFTER if a != "transposed"] + [("right", a) for a in ("bias", "long")],
)
@pytest.mark.parametrize("isa", ISAS)
def test_fused_with_what_surrounds(isa: str, before: str, after: str) -> None:
    lines, left, right = (" q = sub(w, 1.0:f32)", "x", "q") if before else BEFORE[""]
    kernel = forced(HEAD.format(before=lines, left=left, right=right, after=AFTER[after]), isa)
    is_right_with_what_surrounds(kernel, ((1, 1, 1), (9, 16, 5), (35, 7, 3), (70, 141, 20)))


@pytest.mark.parametrize("isa", ISAS)
def test_transposed_while_it_is_computed(isa: str) -> None:
    kernel = forced(
        "graph f(x: f32[m,k], w: f32[n,k]) {\n q = abs(w)\n"
        ' s = contract(x, q) {spec="m,k; n,k -> m,n"}\n return s\n}',
        isa,
    )
    for m, n, k in ((1, 1, 1), (9, 33, 31), (20, 150, 70)):
        x, w = whole_numbers((m, k), "f4", m), whole_numbers((n, k), "f4", n)
        actual = run_guarded(kernel, [x, w], at_end=True)[0]
        assert np.array_equal(actual, kernel.expected(x, w)[0]), (m, n, k)


@pytest.mark.parametrize("isa", ISAS)
def test_one_product_for_each_of_several_positions(isa: str) -> None:
    code = (
        "graph f(x: f32[b,m,k], y: f32[b,k,n]) {\n s = contract(x, y) "
        '{spec="b,m,k; b,k,n -> b,m,n"}\n return s\n}'
    )
    kernel = forced(code, isa)
    x, y = whole_numbers((3, 200, 9), "f4", 1), whole_numbers((3, 9, 150), "f4", 2)
    assert np.array_equal(kernel(x, y)[0], x @ y)


SHIFTED = """graph f(x: f32[m,k], y: f32[b,k,h,n]) {
  p = pad(y) {low=(0,0,1,2), high=(0,0,1,1), value=0.0}
  q = slice(p) {starts=(0,0,0,0), sizes=(b,k,h,n), steps=(1,1,1,1)}
  r = slice(p) {starts=(0,0,2,3), sizes=(b,k,h,n), steps=(1,1,1,1)}
  t = slice(p) {starts=(0,0,1,2), sizes=(b,k,h,n), steps=(1,1,1,1)}
  u = sub(q, r)
  v = mul(u, t)
  s = contract(x, v) {spec="m,k; b,k,h,n -> b,m,h,n"}
  return s
}"""


@pytest.mark.parametrize("variant", ["panels", "tall_skinny"])
@pytest.mark.parametrize("isa", ISAS)
def test_neighbours_are_packed(isa: str, variant: str) -> None:
    kernel = forced(SHIFTED, isa, variant)
    last = (7, 5, 67, 40) if variant == "panels" else (7, 3, 41, 40)  # which is of few columns
    for m, h, n, k in ((1, 1, 1, 1), (13, 2, 17, PACK_DEPTH), (20, 2, 48, PACK_DEPTH + 1), last):
        x, y = whole_numbers((m, k), "f4", m), whole_numbers((2, k, h, n), "f4", n)
        for at_end in (False, True):
            actual = run_guarded(kernel, [x, y], at_end=at_end)[0]
            assert np.array_equal(actual, kernel.expected(x, y)[0]), (m, h, n, k)


PADDED = """graph f(x: f32[m,k], y: f32[k,n]) {
  p = pad(y) {low=(1,2), high=(1,1), value=0.0}
  q = slice(p) {starts=(0,0), sizes=(k,n), steps=(1,1)}
  r = slice(p) {starts=(2,3), sizes=(k,n), steps=(1,1)}
  u = sub(q, r)
  s = contract(x, u) {spec="m,k; k,n -> m,n"}
  return s
}"""
"""Bounds along the sum, and along the columns that vectors run along."""


@pytest.mark.parametrize("variant", ["panels", "tall_skinny", "k_blocked"])
@pytest.mark.parametrize("isa", ISAS)
def test_bounds_along_the_sum(isa: str, variant: str) -> None:
    kernel = forced(PADDED, isa, variant)
    for m, n, k in ((1, 1, 1), (3, 20, 5), (5, 70, PACK_DEPTH + 1), (40, 400, 2 * PACK_DEPTH)):
        x, y = whole_numbers((m, k), "f4", m), whole_numbers((k, n), "f4", n)
        for at_end in (False, True):
            actual = run_guarded(kernel, [x, y], at_end=at_end)[0]
            assert np.array_equal(actual, kernel.expected(x, y)[0]), (m, n, k)


def test_bounds_are_tested_once_for_several_positions() -> None:
    kernel = lower.run(one_cluster(parse(SHIFTED)), "eager", {})
    target = Target.for_isa("avx512")
    text = assembly(emit(kernel, target, variant="panels").llvm, target, 2)
    packed = [x for x in inner_loops(text) if "vsubps" in x]
    assert packed and not any(re.search(r"vpcmp\w*w\s", x) for x in packed)
    assert all("prefetch" in x for x in packed), "the next task's line"


PICKED = """graph f(x: f32[v,k], i: i64[m], w: f32[k,n]) {
  p = gather(x, i) {first=0}
  s = contract(p, w) {spec="m,k; k,n -> m,n"}
  return s
}"""


@pytest.mark.parametrize("variant", ["panels", "tall_skinny", "k_blocked"])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_at_computed_positions_are_multiplied_there(isa: str, variant: str) -> None:
    kernel = forced(PICKED, isa, variant)
    rng = np.random.default_rng(4)
    for v, m, n, k in ((1, 1, 1, 1), (5, 13, 33, 7), (40, 30, 70, 20), (9, 61, 97, 200)):
        x, w = whole_numbers((v, k), "f4", m), whole_numbers((k, n), "f4", n)
        i = rng.integers(0, v, m)
        for at_end in (False, True):
            actual = run_guarded(kernel, [x, i, w], at_end=at_end)[0]
            assert np.array_equal(actual, x[i] @ w), (v, m, n, k)


def test_such_rows_are_not_copied() -> None:
    variants = fuse(PICKED, ISAS[0]).variants
    assert select_variant(variants, {"v": 9, "m": 4000, "n": 1000, "k": 500}) == "panels"
    kernel = lower.run(one_cluster(parse(PICKED)), "eager", {})
    target = Target.for_isa("avx512")
    text = assembly(emit(kernel, target, variant="panels").llvm, target, 2)
    bodies = [x for x in inner_loops(text) if len(re.findall("fmadd", x)) == 24]
    assert len(bodies) == 2, "whole panels, and what has as many vectors of one"
    for body in bodies:
        assert not re.search(r"vmov\w+\s+-?\d*\(%rsp", body), "sums stay in registers"


def test_same_bits_for_any_threads_and_strides() -> None:
    rng = np.random.default_rng(7)
    x, y = (rng.standard_normal(s).astype("f4") for s in ((1040, 600), (600, 412)))
    for a, b in ((x[::2], y[:, ::2]), (x[:, 3:500], y[40:537]), (x[::-1, :412], y[:412])):
        f = sm.jit(lambda a, b: a @ b)
        actual: list[bytes] = []
        for threads in (1, 2, 3):
            with sm.config(threads=threads):
                actual.append(np.asarray(f(a, b)).tobytes())
        assert len(set(actual)) == 1
        with sm.config(threads=1):
            copied = sm.jit(lambda a, b: a @ b)(np.ascontiguousarray(a), np.ascontiguousarray(b))
        assert np.asarray(copied).tobytes() == actual[0]


def test_blocks_are_even_many_and_stay_in_cache() -> None:
    m, n, k = (size(name) for name in "mnk")
    rows, columns = wide_blocks(m, n, k, mul(m, n), 4, 32)
    for sizes in product((200, 512, 520, 3000, 10**5), (130, 512, 3072), (1, 300, ONE_PASS.depth)):
        named = dict(zip("mnk", sizes, strict=True))
        high, wide = int(evaluate(rows, named)), int(evaluate(columns, named))
        down, across = -(-sizes[0] // high), -(-sizes[1] // wide)
        assert down * across >= ONE_PASS.tasks or high < 2 * ONE_PASS.min_rows + HEIGHT
        assert sizes[0] > (down - 1) * high and high - sizes[0] / down < HEIGHT + 8
        assert wide % 32 == 0 and wide <= ONE_PASS.columns
        assert (
            wide <= TSMM.columns or sizes[0] * sizes[1] >= TASKS * ONE_PASS.min_rows * TSMM.columns
        )
        assert wide * sizes[2] * 4 <= ONE_PASS.panel_bytes
    assert int(evaluate(rows, {"m": 512, "n": 3072, "k": 768})) == 528
    assert int(evaluate(columns, {"m": 2048, "n": 4096, "k": 16})) == ONE_PASS.columns
    assert int(evaluate(columns, {"m": 2048, "n": 4096, "k": 2048})) == 64


@pytest.mark.parametrize("after", ["y = add(s, r)", "t = tanh(s)\n  y = add(t, r)"])
def test_epilogue_inputs_are_prefetched(after: str) -> None:
    """Twelve rows of two vectors each, before a tile's sums; of what is read late as well."""
    head, spec = "graph f(x: f32[m,k], w: f32[k,n], r: f32[m,n]) {", 'spec="m,k; k,n -> m,n"'
    kernel = forced(f"{head}\n s = contract(x, w) {{{spec}}}\n {after}\n return y\n}}", ISAS[0])
    text = emit(kernel.kernel, kernel.target, variant="panels").llvm
    plain = emit(fuse(PLAIN, ISAS[0]).kernel, kernel.target, variant="panels").llvm
    prefetches = [t.count("llvm.prefetch") for t in (text, plain)]
    assert prefetches[0] - prefetches[1] >= 2 * HEIGHT
    assert re.search(rf"and i64 [^,]*, {INTERVAL - 1}\n", text), "at a few positions of many"
    # Enough results for runs longer than usual; enough positions to ask for line after line.
    for m, n, k in ((3000, 1100, 3), (200, 300, 2 * HEIGHT * INTERVAL)):
        x, w, r = (whole_numbers(s, "f4", 1) for s in ((m, k), (k, n), (m, n)))
        (actual,) = run_guarded(kernel, [x, w, r], at_end=True, sizes={"m": m, "n": n, "k": k})
        wanted = x @ w + r if "tanh" not in after else np.tanh(x @ w) + r
        assert np.allclose(actual, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("right", ["k,n", "n,k"])
def test_the_inner_loop_stays_in_registers(right: str, dtype: str) -> None:
    """The inner loop keeps twelve strided rows of two vectors in registers.

    The call knows their stride.
    """
    kernel = lower.run(one_cluster(parse(matrices(dtype, f"m,k; {right} -> m,n"))), "eager", {})
    target = Target.for_isa("avx512")
    text = assembly(emit(kernel, target, variant="panels").llvm, target, 2)
    bodies = [x for x in inner_loops(text) if len(re.findall("fmadd", x)) == 24]
    assert len(bodies) == 2, "whole panels, and what has as many vectors of one"
    for body in bodies:
        assert not re.search(r"\(%rsp|mul[sp]", body), body


@pytest.mark.parametrize("isa", ISAS)
def test_lines_of_nearly_a_panel_are_one_tile(isa: str) -> None:
    """Every number of columns that whole panels leave, at either end of what may be touched: NaN
    and infinity beside them stay there."""
    kernel = forced(PLAIN, isa)
    for n in (1, 7, 15, 16, 17, 24, 28, 31, 32, 33, 49, 56, 63, 64, 95):
        x, y = whole_numbers((17, 40), "f4", n), whole_numbers((40, n), "f4", n)
        y[:, -1], y[3, 0] = np.nan, np.inf
        with np.errstate(invalid="ignore"):
            wanted = kernel.expected(x, y)[0]
        for at_end in (False, True):
            actual = run_guarded(kernel, [x, y], at_end=at_end)[0]
            assert np.array_equal(actual, wanted, equal_nan=True), n


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("variant", ["", "tall_skinny", "panels", "k_blocked"])
@pytest.mark.parametrize("isa", ISAS)
def test_every_remainder_of_transposed_columns(isa: str, variant: str, dtype: str) -> None:
    """Columns and positions that whole squares of lanes leave; NaN and infinity stay in theirs."""
    code = matrices(dtype, "m,k; n,k -> m,n")
    kernel = forced(code, isa, variant) if variant else fuse_graph(parse(code), isa, usual=True)
    sizes = [(n, 21) for n in range(1, 35)] + [(n, k) for n in (17, 50) for k in range(1, 34)]
    for n, k in sizes:
        x, y = (whole_numbers(s, TYPES[dtype], n) for s in ((18, k), (n, k)))
        y[-1, -1], y[0, k // 2] = np.nan, np.inf
        with np.errstate(invalid="ignore"):
            wanted = kernel.expected(x, y)[0]
        for at_end in (False, True):
            actual = run_guarded(kernel, [x, y], at_end=at_end)[0]
            assert np.array_equal(actual, wanted, equal_nan=True), (n, k)


@pytest.mark.clock
@pytest.mark.parametrize("isa", ISAS)
def test_transposed_columns_are_packed_as_fast_before_memory_that_is_not_mapped(isa: str) -> None:
    """A masked load there takes hundreds of cycles, even without lanes."""
    code = matrices("f32", "m,k; n,k -> m,n")
    kernel = fuse_graph(parse(code), isa, usual=True)
    x, y = whole_numbers((20, 2048), "f4", 1), whole_numbers((64, 2048), "f4", 2)
    assert slowdown(lambda w: kernel(x, w), y, 17) < 1.5


@pytest.mark.parametrize("isa", ISAS)
def test_tile_remainders(isa: str) -> None:
    """Every number of rows that whole tiles leave, at either end of what may be touched."""
    kernel = forced(PLAIN, isa)
    y = whole_numbers((5, 40), "f4", 2)
    for m in range(1, 62):
        x = whole_numbers((m, 5), "f4", m)
        for at_end in (False, True):
            assert np.array_equal(run_guarded(kernel, [x, y], at_end=at_end)[0], x @ y), m
