"""Products of few rows, whose first tile packs the right operand."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops, matrices, whole_numbers
from tests.codegen.llvm.test_tall_skinny import AFTER, BEFORE, HEAD
from tests.codegen.llvm.variants import (
    TYPES,
    forced,
    is_right_in_every_layout,
    is_right_with_what_surrounds,
)

from smelt import lower
from smelt.codegen.build import assembly, select_variant
from smelt.codegen.llvm.module import emit
from smelt.graph.text import parse
from smelt.kernel.artifact import competing_candidates
from smelt.machine.blocks import GEMV, LONG_SUM, RUN, SMALL_M, TSMM, UNPACKED
from smelt.machine.target import Target
from smelt.types.dtype import bf16

PLAIN = matrices("f32", "m,k; k,n -> m,n")
ISAS = [isa for isa in RUNNABLE if any(c.variant == "small_m" for c in fuse(PLAIN, isa).variants)]
LAYOUTS = [*product(("m,k", "k,m"), ("k,n", "n,k"))]
SIZES = (
    (1, 1, 1),
    (8, 32, 0),
    (12, 32, 1),
    (13, 33, 5),
    (24, 64, 3),
    (31, 95, 17),
    (52, 161, 4),
    (70, 47, 30),
    (UNPACKED.mc, TSMM.columns + 1, 7),
    (UNPACKED.mc + 5, 40, 6),
    (UNPACKED.mc + 20, 70, 5),
    (17, 3 * TSMM.columns + 50, 9),
    (29, 70, SMALL_M.kc + 1),
    (16, 33, 2 * SMALL_M.kc + 1),
    (3, 66, SMALL_M.kc),
)
pytestmark = pytest.mark.skipif(not ISAS, reason="no set of instructions with enough registers")
MASKED = [isa for isa in ISAS if Target.for_isa(isa).facts.has_mask_registers]
"""Those with mask registers: elsewhere "tall_skinny" begins with fewer rows."""


@pytest.mark.parametrize("isa", ISAS)
def test_sizes_for_which_the_form_has_room(isa: str) -> None:
    variants = fuse(PLAIN, isa).variants
    panel = max(2 * Target.for_isa(isa).vector_bytes // 4, GEMV.rows + 1)
    least = {"m": GEMV.rows + 1, "n": panel, "k": LONG_SUM}

    def is_possible(**changed: int) -> bool:
        candidates = competing_candidates(variants, {**least, **changed})
        return "small_m" in [c.variant for c in candidates]

    assert is_possible() and is_possible(m=UNPACKED.mc)
    assert not any(
        (is_possible(m=UNPACKED.mc + 1), is_possible(n=panel - 1), is_possible(k=LONG_SUM + 1))
    )
    assert select_variant(variants, {**least, "m": GEMV.rows}) == "rows"


@pytest.mark.parametrize("isa", MASKED)
@pytest.mark.parametrize("spec", ["m,k; k,n -> m,n", "b,m,k; b,k,n -> b,m,n"])
def test_operands_that_stay_near_are_not_packed(isa: str, spec: str) -> None:
    """Each of a batch would be packed anew, for fewer rows than that takes."""
    variants = fuse(matrices("f32", spec), isa).variants
    for m, n, k in ((48, 72, 64), (64, 192, 64), (40, 136, 100)):
        assert select_variant(variants, {"b": 64, "m": m, "k": k, "n": n}) == "small"
    # Rows a page apart share few sets of the L1 cache, where they would not stay.
    assert select_variant(variants, {"b": 64, "m": 48, "k": 300, "n": 1024}) != "small"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_every_layout(isa: str, dtype: str) -> None:
    is_right_in_every_layout(isa, dtype, "small_m", SIZES)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [SMALL_M.kc + 4, SMALL_M.kc + 32, 2 * SMALL_M.kc + 1])
def test_blocks_are_about_as_long(isa: str, k: int) -> None:
    """Blocks have nearly equal lengths.

    Ones added to a large number are lost: as many as share its block.
    """
    x, y = np.ones((24, k), "f4"), np.ones((k, 70), "f4")
    x[:, 0] = 2.0**25
    (actual,) = run_guarded(forced(PLAIN, isa, "small_m"), [x, y], at_end=True)
    blocks = -(-k // SMALL_M.kc)
    first = min((-(-k // blocks) + 31) // 32 * 32, SMALL_M.kc)
    assert np.array_equal(actual, np.full_like(actual, np.float32(2.0**25 + k - first)))


HEADS = """graph f(x: f32[b,4,r,64], y: f32[256,256]) {
  v0 = permute(x) {perm=(0, 2, 1, 3)}
  v1 = reshape(v0) {shape=(b*r, 256)}
  v2 = contract(v1, y) {spec="m,k; n,k -> m,n"}
  return v2
}"""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("variant", ["small_m", "k_blocked"])
def test_blocks_cut_no_vector_of_a_head(isa: str, variant: str) -> None:
    """Heads lie apart along the sum: vectors that began at any position would read beyond one."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s, dtype="f4") for s in ((2, 4, 10, 64), (256, 256)))
    (actual,) = run_guarded(forced(HEADS, isa, variant), [x, y], at_end=True)
    expected = x.astype("f8").transpose(0, 2, 1, 3).reshape(20, 256) @ y.astype("f8").T
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_tile_remainders(isa: str) -> None:
    """Every number of rows that whole tiles leave, at either end of what may be touched."""
    kernel = forced(PLAIN, isa, "small_m")
    y = whole_numbers((5, 40), "f4", 2)
    for m in range(1, 62):
        x = whole_numbers((m, 5), "f4", m)
        for at_end in (False, True):
            assert np.array_equal(run_guarded(kernel, [x, y], at_end=at_end)[0], x @ y), m


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
@pytest.mark.parametrize("isa", ISAS)
def test_roundings_of_any_numbers(isa: str, left: str, right: str) -> None:
    kernel = forced(matrices("f32", f"{left}; {right} -> m,n"), isa, "small_m")
    rng = np.random.default_rng(5)
    for m, n, k in (
        (GEMV.rows + 1, TSMM.columns + 1, 700),
        (UNPACKED.mc, 131, 601),
        (65, 300, 1030),
    ):
        x = rng.standard_normal((m, k) if left == "m,k" else (k, m)).astype("f4")
        y = rng.standard_normal((k, n) if right == "k,n" else (n, k)).astype("f4")
        x, y, inputs = x if left == "m,k" else x.T, y if right == "k,n" else y.T, (x, y)
        bound = (RUN + k / SMALL_M.kc + 1) * 2.0**-24 * (abs(x) @ abs(y))
        assert np.all(abs(kernel(*inputs)[0] - x.astype("f8") @ y.astype("f8")) <= bound)


@pytest.mark.parametrize(
    ("before", "after"),
    [("", a) for a in AFTER if a != "transposed"] + [("right", a) for a in ("bias", "long")],
)
@pytest.mark.parametrize("isa", ISAS)
def test_fused_with_what_surrounds(isa: str, before: str, after: str) -> None:
    lines, left, right = (" q = sub(w, 1.0:f32)", "x", "q") if before else BEFORE[""]
    code = HEAD.format(before=lines, left=left, right=right, after=AFTER[after])
    kernel = forced(code, isa, "small_m")
    is_right_with_what_surrounds(
        kernel, ((1, 1, 1), (13, 16, 5), (35, 37, 3), (70, 141, 20), (26, 45, 2 * SMALL_M.kc))
    )


@pytest.mark.parametrize(("left", "right"), [("q", "w"), ("x", "q")])
@pytest.mark.parametrize("isa", ISAS)
def test_converted_operands(isa: str, left: str, right: str) -> None:
    """Rows of a converted left operand are packed at once, a right one on first use."""
    inputs = "x" if left == "q" else "w"
    types = {"x": "f32", "w": "f32", inputs: "bf16"}
    code = (
        f"graph f(x: {types['x']}[m,k], w: {types['w']}[k,n]) {{\n"
        f" q = cast({inputs}) {{dtype=f32}}\n"
        f' s = contract({left}, {right}) {{spec="m,k; k,n -> m,n"}}\n'
        " return s\n}"
    )
    kernel = forced(code, isa, "small_m")
    rng = np.random.default_rng(6)
    for m, n, k in ((1, 1, 1), (17, 33, 9), (75, 150, 31)):
        shapes = {"x": (m, k), "w": (k, n)}
        x, w = (
            rng.integers(-4, 5, shapes[name]).astype(bf16.numpy if types[name] == "bf16" else "f4")
            for name in "xw"
        )
        for at_end in (False, True):
            actual = run_guarded(kernel, [x, w], at_end=at_end)[0]
            assert np.array_equal(actual, x.astype("f4") @ w.astype("f4")), (m, n, k)


@pytest.mark.parametrize("isa", ISAS)
def test_computed_rows_fill_what_is_reserved_for_them(isa: str) -> None:
    """Computed rows fill their reserved memory.

    There are as many as a task can have, and the last one ends within a vector.
    """
    code = (
        "graph f(x: f32[m,k], w: f32[k,n]) {\n q = abs(x)\n"
        ' s = contract(q, w) {spec="m,k; k,n -> m,n"}\n return s\n}'
    )
    kernel = forced(code, isa, "small_m")
    for k in (1, 7, 33):
        x, w = whole_numbers((UNPACKED.mc, k), "f4", 1), whole_numbers((k, 40), "f4", 2)
        actual = run_guarded(kernel, [x, w], at_end=True)[0]
        assert np.array_equal(actual, abs(x) @ w), k


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_inner_loops_stay_in_registers(dtype: str) -> None:
    """Inner loops keep every sum in a register.

    The loop over packed operands is unrolled by four; the one that packs has one position with two
    stores.
    """
    kernel = lower.run(one_cluster(parse(matrices(dtype, "m,k; k,n -> m,n"))), "eager", {})
    text = assembly(
        emit(kernel, Target.for_isa("avx512"), variant="small_m").llvm, Target.for_isa("avx512"), 2
    )
    loops = {
        n: [x for x in inner_loops(text) if len(re.findall("fmadd", x)) == n] for n in (24, 96)
    }
    spilled = r"(?m)zmm\d+, -?\d*\(%rsp|-?\d*\(%rsp\), %zmm"
    assert not any(re.search(spilled, x) for x in (*loops[24], *loops[96]))
    stores = {
        n: sorted(len(re.findall(r"%zmm\d+, -?\d*\(%r", x)) for x in result)
        for n, result in loops.items()
    }
    assert stores == {96: [0], 24: [0, 0, 2]}, "also of what has as many vectors of a panel"
    # A round of four positions asks for four lines of the next block, one that packs for one.
    # Positions that are left ask for none.
    assert [x.count("prefetch") for x in loops[96]] == [4]
    assert sorted(x.count("prefetch") for x in loops[24]) == [0, 0, 1]


@pytest.mark.parametrize("shapes", ["x: f32[m,k], w: f32[n,k]", "x: f32[m,768], w: f32[768,768]"])
def test_sums_of_transposed_products_stay_in_registers(shapes: str) -> None:
    """Whether sizes are known or not: two positions at once, two lines asked for."""
    code = f'graph f({shapes}) {{\n s = contract(x, w) {{spec="m,k; n,k -> m,n"}}\n return s\n}}'
    kernel = lower.run(one_cluster(parse(code)), "eager", {})
    text = assembly(
        emit(kernel, Target.for_isa("avx512"), variant="small_m").llvm, Target.for_isa("avx512"), 2
    )
    loops = [x for x in inner_loops(text) if len(re.findall("fmadd", x)) == 48]
    spilled = r"(?m)zmm\d+, -?\d*\(%rsp|-?\d*\(%rsp\), %zmm"
    assert len(loops) == 1
    assert not re.search(spilled, loops[0])
    assert loops[0].count("prefetch") == 2
