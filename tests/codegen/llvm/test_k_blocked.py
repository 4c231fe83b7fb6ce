"""K-blocked products: every layout, prologues and epilogues."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse, one_cluster
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
from smelt.codegen.build import assembly, build, code_variants, select_variant
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.nests.product_plan import register_tile
from smelt.codegen.llvm.schedule.fused_gemm import k_blocked_task
from smelt.graph.text import parse
from smelt.kernel.artifact import competing_candidates, cost_parts
from smelt.machine.blocks import (
    ISSUE_BOUND,
    K_BLOCKED,
    LEFT_IN_PLACE,
    ONE_PASS,
    ROW_MULTIPLE,
    TSMM,
    UNPACKED,
)
from smelt.machine.target import CACHE_SHARE, Target
from smelt.runtime.code import load
from smelt.types.expr import evaluate, mul, size

NAMED = {"f32": "f4", "f64": "f8", "i8": "i1", "bf16": ml_dtypes.bfloat16}
PLAIN = matrices("f32", "m,k; k,n -> m,n")
ISAS = [
    isa
    for isa in RUNNABLE
    if any(variant == "k_blocked" for variant, *_ in fuse(PLAIN, isa).variants)
]
LAYOUTS = [*product(("m,k", "k,m"), ("k,n", "n,k"))]
SIZES = (
    (1, 1, 1),
    (8, 32, 0),
    (12, 64, 4),
    (13, 33, 5),
    (7, 31, 17),
    (17, 65, K_BLOCKED.kc + 33),
    (70, 47, K_BLOCKED.kc),
    (ROW_MULTIPLE + 1, 35, 2 * K_BLOCKED.kc + 1),
    (31, 2 * 32, 3 * K_BLOCKED.kc - 1),
    (K_BLOCKED.mc + 5, 19, 6),
)
pytestmark = pytest.mark.skipif(not ISAS, reason="no set of instructions with enough registers")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_every_layout(isa: str, dtype: str) -> None:
    is_right_in_every_layout(isa, dtype, "k_blocked", SIZES)


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
@pytest.mark.parametrize("isa", ISAS)
def test_roundings_and_what_is_no_number(isa: str, left: str, right: str) -> None:
    kernel = forced(matrices("f32", f"{left}; {right} -> m,n"), isa, "k_blocked")
    rng = np.random.default_rng(5)
    for m, n, k in (
        (UNPACKED.mc + 1, TSMM.columns + 1, ONE_PASS.depth + 50),
        (600, 131, ONE_PASS.depth + 1),
        (265, 400, ONE_PASS.depth + 450),
    ):
        x, y = (rng.standard_normal(s).astype("f4") for s in ((m, k), (k, n)))
        x[3, 5], x[4, 6], y[7, 8] = np.nan, np.inf, -np.inf
        inputs = (
            x if left == "m,k" else np.ascontiguousarray(x.T),
            y if right == "k,n" else np.ascontiguousarray(y.T),
        )
        (actual,) = kernel(*inputs)
        with np.errstate(invalid="ignore"):
            whole_sum = x.astype("f8") @ y.astype("f8")
            bound = (K_BLOCKED.kc + k / K_BLOCKED.kc + 1) * 2.0**-24 * (abs(x) @ abs(y))
            right_there = abs(actual - whole_sum) <= bound
        finite = np.isfinite(whole_sum)
        assert np.all(right_there[finite])
        assert np.array_equal(actual[~finite], whole_sum[~finite].astype("f4"), equal_nan=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [("", a) for a in AFTER if a != "transposed"]
    + [(b, a) for b in BEFORE for a in ("bias", "long")],
)
@pytest.mark.parametrize("isa", ISAS)
def test_fused_with_what_surrounds(isa: str, before: str, after: str) -> None:
    lines, left, right = BEFORE[before]
    code = HEAD.format(before=lines, left=left, right=right, after=AFTER[after])
    kernel = forced(code, isa, "k_blocked")
    is_right_with_what_surrounds(
        kernel,
        ((1, 1, 1), (9, 16, 5), (35, 7, K_BLOCKED.kc + 3), (70, 141, 20), (24, 64, K_BLOCKED.kc)),
    )


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
@pytest.mark.parametrize("isa", ISAS)
def test_computed_across_as_they_are_packed(isa: str, left: str, right: str) -> None:
    """Both operands are computed while they are packed.

    Some of what they read is contiguous along the packed rows, some is not.
    """
    transposed = "m,k" if left == "k,m" else "k,m"
    code = (
        f"graph f(x: f32[{left}], u: f32[{transposed}], w: f32[{right}]) {{\n"
        " a = permute(u) {perm=(1,0)}\n p = mul(x, a)\n q = sub(w, 1.0:f32)\n"
        f' s = contract(p, q) {{spec="{left}; {right} -> m,n"}}\n return s\n}}'
    )
    kernel = forced(code, isa, "k_blocked")
    for m, n, k in ((1, 1, 1), (9, 33, 31), (20, 150, 70), (65, 40, K_BLOCKED.kc + 20)):
        shapes = {"m,k": (m, k), "k,m": (k, m), "k,n": (k, n), "n,k": (n, k)}
        arrays = [whole_numbers(shapes[s], "f4", m) for s in (left, transposed, right)]
        actual = run_guarded(kernel, arrays, at_end=True)[0]
        assert np.array_equal(actual, kernel.expected(*arrays)[0]), (m, n, k)


@pytest.mark.parametrize("left", ["b,k,m", "b,m,k", "m,b,k", "k,b,m"])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_on_several_axes(isa: str, left: str) -> None:
    """The right operand is the same for all positions of one of them."""
    code = (
        f"graph f(x: f32[{left}], y: f32[k,n]) {{\n s = contract(x, y) "
        f'{{spec="{left}; k,n -> b,m,n"}}\n return s\n}}'
    )
    variant = "panels" if left == "b,m,k" else "k_blocked"
    kernel = forced(code, isa, variant)
    for sizes in (
        {"b": 3, "m": 50, "n": 37, "k": 9},
        {"b": 2, "m": 13, "n": 64, "k": K_BLOCKED.kc + 1},
    ):
        x = whole_numbers(tuple(sizes[a] for a in left.split(",")), "f4", 1)
        y = whole_numbers((sizes["k"], sizes["n"]), "f4", 2)
        for at_end in (False, True):
            actual = run_guarded(kernel, [x, y], at_end=at_end)[0]
            assert np.array_equal(actual, kernel.expected(x, y)[0]), (left, sizes)


@pytest.mark.parametrize("isa", ISAS)
def test_tile_remainders(isa: str) -> None:
    """Every number of rows, and of columns, at either end of what may be touched."""
    for left in ("m,k", "k,m"):
        kernel = forced(matrices("f32", f"{left}; k,n -> m,n"), isa, "k_blocked")
        for number in range(1, 50):
            for m, n in ((number, 40), (14, number)):
                x, y = whole_numbers((m, 5), "f4", m), whole_numbers((5, n), "f4", 2)
                inputs = [x if left == "m,k" else np.ascontiguousarray(x.T), y]
                for at_end in (False, True):
                    assert np.array_equal(run_guarded(kernel, inputs, at_end=at_end)[0], x @ y)


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_are_about_as_long(isa: str) -> None:
    """Blocks have nearly equal lengths.

    Ones added to a large number are lost: as many as share its block.
    """
    x, y = np.ones((24, 1000), "f4"), np.ones((1000, 70), "f4")
    x[:, 0] = 2.0**25
    (result,) = run_guarded(forced(PLAIN, isa, "k_blocked"), [x, y], at_end=True)
    lost = {round(1000 - n) for n in np.unique(result.astype("f8") - 2.0**25)}
    assert lost <= {192, 256, 512}  # of 6 blocks, of 4, of 2


def test_same_bits_for_any_threads_and_strides() -> None:
    rng = np.random.default_rng(7)
    x, y = (rng.standard_normal(s).astype("f4") for s in ((2600, 1040), (2600, 412)))
    for a, b in ((x[:, ::2].T, y), (x.T[::2], y[:, ::-1]), (x[3:2503].T, y[90:2590, 1:300])):
        f = sm.jit(lambda a, b: a @ b)
        actual: list[bytes] = []
        for threads in (1, 2, 3):
            with sm.config(threads=threads):
                actual.append(np.asarray(f(a, b)).tobytes())
        assert len(set(actual)) == 1
        copied = sm.jit(lambda a, b: a @ b)(np.ascontiguousarray(a), np.ascontiguousarray(b))
        bound = (K_BLOCKED.kc + 2600 / K_BLOCKED.kc) * 2.0**-23 * (abs(a) @ abs(b))
        assert np.all(abs(np.asarray(copied) - np.asarray(f(a, b))) <= bound)


def test_blocks_are_even_many_and_stay_in_cache() -> None:
    m, n = (size(name) for name in "mn")
    for direct, tasks in product((False, True), (2, 4, 8)):
        rows, columns = k_blocked_task(m, n, mul(m, n), 4, 32, tasks, direct=direct)
        for sizes in product((200, 512, 520, 3000, 10**5), (130, 512, 3072)):
            named = dict(zip("mn", sizes, strict=True))
            high, wide = int(evaluate(rows, named)), int(evaluate(columns, named))
            down, across = -(-sizes[0] // high), -(-sizes[1] // wide)
            assert down * across >= tasks - 1 or high <= 3 * ROW_MULTIPLE
            assert high % ROW_MULTIPLE == 0 and high - sizes[0] / down < ROW_MULTIPLE
            assert wide % 32 == 0 and wide <= K_BLOCKED.nc
            left = 0 if direct else high * K_BLOCKED.pitch
            assert 4 * (left + wide * K_BLOCKED.kc + high * wide) <= 1.25 * 2**20


def test_blocks_are_larger_where_few_instructions_start() -> None:
    """Machines that start few instructions use larger blocks.

    The number of tasks stays, and what is packed of the right operand stays in L2.
    """
    m, n = (size(name) for name in "mn")
    most = list[tuple[int, int]]()
    for direct, panels, tasks in product((False, True), (False, True), (2, 4, 8)):
        usual, larger = (
            k_blocked_task(m, n, mul(m, n), 4, 32, tasks, direct=direct, panels=panels, long=long)
            for long in (False, True)
        )
        assert (usual == larger) == (direct and panels)  # where nothing is packed
        for sizes in product((200, 512, 520, 3000, 10**5), (130, 512, 1024, 3072)):
            named = dict(zip("mn", sizes, strict=True))
            (before, _), (high, wide) = (
                [int(evaluate(e, named)) for e in x] for x in (usual, larger)
            )
            down, across = -(-sizes[0] // high), -(-sizes[1] // wide)
            assert down * across >= tasks - 1 or high <= max(3 * ROW_MULTIPLE, before)
            assert high % ROW_MULTIPLE == 0 and wide % 32 == 0
            assert 4 * wide * ISSUE_BOUND.kc <= CACHE_SHARE * 2**20
            most.append((high, wide))
    assert (ISSUE_BOUND.mc, ISSUE_BOUND.nc) in most


@pytest.mark.parametrize("isa", ISAS)
def test_numbers_in_larger_blocks(isa: str) -> None:
    """Whole numbers, whose sums are exact, at the borders of blocks as large as they become."""
    plain, kernel = elsewhere(PLAIN, isa, **few_ways(isa)), elsewhere(PLAIN, isa, **narrow(isa))
    sizes = {"m": 3000, "n": 3000, "k": 700}
    few, more = (evaluate(x.built.functions[0].tasks, sizes) for x in (kernel, plain))
    assert few < more
    rng = np.random.default_rng(10)
    for m, n, k in (
        (2 * ISSUE_BOUND.mc + 5, 2 * ISSUE_BOUND.nc + 33, ISSUE_BOUND.kc + 1),
        (1100, 1000, 0),
        (ISSUE_BOUND.mc, ISSUE_BOUND.nc, 2 * ISSUE_BOUND.kc),
        (1, 3001, 5),
        (2003, 33, 9),
    ):
        x, y = (rng.integers(-5, 5, s).astype("f4") for s in ((m, k), (k, n)))
        if k:
            x[m // 2, 3], y[2, n // 2] = np.inf, np.nan
        (actual,) = run_guarded(kernel, [x, y], at_end=True)
        with np.errstate(invalid="ignore"):
            wanted = x.astype("f8") @ y.astype("f8")
        assert np.array_equal(actual, wanted, equal_nan=True), (m, n, k)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("left", "right"), LAYOUTS)
def test_the_inner_loop_stays_in_registers(left: str, right: str, dtype: str) -> None:
    """The inner loop keeps twelve rows of two vectors in registers.

    Each of its four positions prefetches a cache line of both operands' next blocks where both are
    packed.
    """
    code = matrices(dtype, f"{left}; {right} -> m,n")
    kernel = lower.run(one_cluster(parse(code)), "eager", {})
    target = Target.for_isa("avx512")
    text = assembly(emit(kernel, target, variant="k_blocked").llvm, target, 2)
    bodies = [x for x in inner_loops(text) if len(re.findall("fmadd", x)) in (24, 96)]
    assert sorted(len(re.findall("fmadd", x)) for x in bodies) == [24, 96]
    prefetches = {len(re.findall("fmadd", x)): x.count("prefetch") for x in bodies}
    assert prefetches == {24: 0, 96: 0 if left == "m,k" else 2}
    for body in bodies:
        # The address of one of the rows, at most, or the end of the loop.
        spilled = re.findall(r".*\(%rsp.*", body)
        assert len(spilled) <= 1 and all(re.search("movq|cmpq", x) for x in spilled), body
        assert not re.search("mul[sp]", body), body


ROOMY = 2 << 20
"""A second cache that holds larger blocks."""


def roomy(isa: str) -> SingleKernel:
    """A product for a machine with so large a second cache, in blocks whatever the sizes."""
    plain = fuse(PLAIN, isa)
    target = replace(plain.target, l2_bytes=ROOMY)
    built = build(plain.kernel, target, variant="k_blocked")
    loaded = load(built.code, [f.symbol for f in built.functions])
    return replace(plain, target=target, built=built, loaded=loaded, variants=())


@pytest.mark.parametrize("isa", ISAS)
def test_form_follows_from_the_second_cache(isa: str) -> None:
    """One pass is chosen if a panel fits L1 or blocks would leave L2."""
    plain = fuse(PLAIN, isa)
    large = {"m": 700, "n": 300, "k": ONE_PASS.depth}
    target = replace(plain.target, l2_bytes=ROOMY, l1_bytes=48 << 10)
    variants = code_variants(plain.kernel, target)
    assert "panels" not in [c.variant for c in competing_candidates(variants, large)]
    panel_rows = (48 << 10) // (register_tile(target, target.lanes(4)).columns * 4)
    for k in (panel_rows, panel_rows + 1):
        possible = [c.variant for c in competing_candidates(variants, {**large, "k": k})]
        assert ("panels" in possible) == (k == panel_rows)


@pytest.mark.parametrize("isa", ISAS)
def test_larger_blocks_where_the_second_cache_has_room(isa: str) -> None:
    """Whole numbers, whose sums are exact, across the borders of blocks in every direction."""
    kernel, rng = roomy(isa), np.random.default_rng(8)
    (large,), (usual,) = (k.built.functions for k in (kernel, forced(PLAIN, isa, "k_blocked")))
    sizes = {"m": 9000, "n": 9000, "k": 900}
    assert evaluate(large.tasks, sizes) != evaluate(usual.tasks, sizes)
    for m, n, k in (
        (1, 1, 1),
        (13, 300, LEFT_IN_PLACE.kc + 1),
        (LEFT_IN_PLACE.mc + 5, 19, 6),
        (700, LEFT_IN_PLACE.nc + 33, 2 * LEFT_IN_PLACE.kc + 3),
        (24, 64, 0),
    ):
        x, y = (rng.integers(-5, 5, s).astype("f4") for s in ((m, k), (k, n)))
        (actual,) = run_guarded(kernel, [x, y], at_end=True)
        assert np.array_equal(actual, x @ y), (m, n, k)


def few_ways(isa: str) -> dict[str, Any]:
    """A first cache that holds fewer lines that lie whole pages apart than a tile has rows."""
    return {"l1_bytes": (32 if register_tile(Target.for_isa(isa), 1).rows > 8 else 16) << 10}


def narrow(isa: str) -> dict[str, Any]:
    """A machine with `few_ways` that starts few instructions in a cycle."""
    return {**few_ways(isa), "cpu": "skylake-avx512"}


def elsewhere(code: str, isa: str, **changed: Any) -> SingleKernel:
    """A kernel in blocks, whatever the sizes, as a machine has it that differs in some fields."""
    plain = fuse(code, isa)
    target = replace(plain.target, **changed)
    built = build(plain.kernel, target, variant="k_blocked")
    loaded = load(built.code, [f.symbol for f in built.functions])
    return replace(plain, target=target, built=built, loaded=loaded, variants=())


@pytest.mark.parametrize("isa", ISAS)
def test_form_follows_from_the_ways_of_the_first_cache(isa: str) -> None:
    """Rows a page apart share a set: where it has fewer places than a tile has rows, in place
    they would evict one another."""
    plain = fuse(PLAIN, isa)
    few, many = (
        code_variants(plain.kernel, replace(plain.target, **changed))
        for changed in (few_ways(isa), {})
    )
    for k, evicted in ((1024, True), (1000, False)):
        sizes = {"m": 700, "n": 300, "k": k}
        waits = [
            cost_parts(c.costs[0], sizes)["operands in place"]
            for variants in (few, many)
            for c in competing_candidates(variants, sizes)
            if c.variant == "panels"
        ]
        assert [n > 0 for n in waits] == [evicted, False]
        assert not evicted or select_variant(few, sizes) == "k_blocked"


@pytest.mark.parametrize(("k", "copied"), [(1024, True), (2048, True), (768, False), (512, False)])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_are_copied_that_share_a_set(isa: str, k: int, copied: bool) -> None:
    """Rows of known lengths, whose places in the first cache are known."""
    code = PLAIN.replace("f32[m,k]", f"f32[m,{k}]").replace("f32[k,n]", f"f32[{k},n]")
    assert str(k) in code
    scratch = [
        evaluate(elsewhere(code, isa, **changed).built.functions[0].scratch, {"m": 288, "n": 384})
        for changed in ({}, few_ways(isa))
    ]
    assert (scratch[1] > scratch[0]) is copied


@pytest.mark.parametrize("isa", ISAS)
def test_prefetches_of_a_tile_follow_from_the_machine(isa: str) -> None:
    """On a narrow one for its panel, and for the rows that it packs next."""
    plain = fuse(PLAIN, isa)
    texts = [
        emit(plain.kernel, replace(plain.target, **changed), variant="k_blocked").llvm
        for changed in ({}, few_ways(isa), narrow(isa))
    ]
    open_, copied, few = (text.count("llvm.prefetch") for text in texts)
    assert open_ < copied and few < copied
    assert "192" in texts[1] and str(ISSUE_BOUND.kc) in texts[2]


@pytest.mark.parametrize("isa", ISAS)
def test_narrow_machines_pack_the_rows_of_one_tile(isa: str) -> None:
    """More rows take more scratch for their sums alone."""
    taken = [
        [
            evaluate(
                elsewhere(PLAIN, isa, **changed).built.functions[0].scratch,
                {"m": m, "n": 64, "k": 1000},
            )
            for m in (48, 96)
        ]
        for changed in (few_ways(isa), narrow(isa))
    ]
    (all_rows, tile) = (more - few for few, more in taken)
    assert 48 * 64 * 4 <= tile < 48 * 100 * 4 < 48 * K_BLOCKED.pitch * 4 <= all_rows


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8"])
@pytest.mark.parametrize("isa", ISAS)
def test_numbers_of_rows_that_narrow_machines_compute_while_packing(isa: str, dtype: str) -> None:
    """Casts, a scale and an offset for each row or position, an absolute value: as by the
    interpreter, for one tile of rows or many, whole or in part."""
    to = "f64" if dtype == "f64" else "f32"
    code = (
        f"graph f(x: {dtype}[m,k], s: {to}[m,1], t: {to}[k], y: {to}[k,n]) {{\n"
        f" a = cast(x) {{dtype={to}}}\n b = mul(a, s)\n c = sub(b, t)\n d = abs(c)\n"
        ' v = contract(d, y) {spec="m,k; k,n -> m,n"}\n return v\n}'
    )
    kernel, rng = elsewhere(code, isa, **narrow(isa)), np.random.default_rng(11)
    for m, n, k in (
        (1, 1, 1),
        (13, 300, ISSUE_BOUND.kc + 1),
        (50, 33, 3),
        (24, 64, 0),
        (12, 530, 700),
    ):
        shapes = ((m, k), (m, 1), (k,), (k, n))
        inputs = [
            rng.integers(-5, 5, shape).astype(NAMED[d])
            for shape, d in zip(shapes, (dtype, to, to, to), strict=True)
        ]
        (actual,) = run_guarded(kernel, inputs, at_end=True)
        (wanted,) = kernel.expected(*inputs)
        assert np.array_equal(actual, wanted), (m, n, k)


@pytest.mark.parametrize("changed", [few_ways, narrow])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("isa", ISAS)
def test_numbers_where_rows_are_copied(
    isa: str, layout: tuple[str, str], changed: Callable[[str], dict[str, Any]]
) -> None:
    """Sums of integers are exact across block borders in every direction.

    NaN reaches its own row and column only.
    """
    left, right = layout
    kernel = elsewhere(matrices("f32", f"{left}; {right} -> m,n"), isa, **changed(isa))
    rng = np.random.default_rng(8)
    for m, n, k in (
        (1, 1, 1),
        (13, 300, ISSUE_BOUND.kc + 1),
        (K_BLOCKED.mc + 5, 19, 6),
        (24, 64, 0),
        (300, K_BLOCKED.nc + 33, 2 * ISSUE_BOUND.kc + 3),
        (12, 32, K_BLOCKED.kc),
    ):
        x, y = (rng.integers(-5, 5, s).astype("f4") for s in ((m, k), (k, n)))
        if k > 3:
            x[m // 2, 3], y[2, n // 2] = np.inf, np.nan
        inputs = [
            np.ascontiguousarray(a.T) if transposed else a
            for a, transposed in ((x, left == "k,m"), (y, right == "n,k"))
        ]
        (actual,) = run_guarded(kernel, inputs, at_end=True)
        with np.errstate(invalid="ignore"):
            wanted = x.astype("f8") @ y.astype("f8")
        assert np.array_equal(actual, wanted, equal_nan=True), (m, n, k)


@pytest.mark.parametrize("isa", ISAS)
def test_numbers_of_rows_of_known_stride(isa: str) -> None:
    """Rows of known stride are multiplied in place.

    A whole tile has one address; no row beyond the last one is read.
    """
    rng = np.random.default_rng(9)
    for k in (1, 40, ISSUE_BOUND.kc + 6):
        code = PLAIN.replace("f32[m,k]", f"f32[m,{k}]").replace("f32[k,n]", f"f32[{k},n]")
        kernel = elsewhere(code, isa, **narrow(isa))
        for m, n in ((1, 1), (12, 32), (13, 33), (25, 300), (K_BLOCKED.mc + 11, 64)):
            x, y = (rng.integers(-5, 5, s).astype("f4") for s in ((m, k), (k, n)))
            x[m - 1, 0] = np.inf
            (actual,) = run_guarded(kernel, [x, y], at_end=True)
            with np.errstate(invalid="ignore"):
                wanted = x.astype("f8") @ y.astype("f8")
            assert np.array_equal(actual, wanted, equal_nan=True), (m, n, k)
