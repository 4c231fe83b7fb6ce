"""Tall-skinny products: every layout, prologues and epilogues."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.native import native_kernel
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.codegen.llvm.test_contractions import matrices, whole_numbers
from tests.codegen.llvm.variants import TYPES, is_right_in_every_layout

from smelt.codegen.build import Variant, select_variant
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_schedules import build_schedules
from smelt.kernel.artifact import competing_candidates
from smelt.machine.blocks import TSMM

SIZES = (
    (1, 1, 1),
    (8, 16, 0),
    (9, 17, 5),
    (TSMM.staged_rows + 1, 15, 3),
    (2 * TSMM.staged_rows - 1, 31, 16),
    (70, 33, 17),
    (3000, 3, 2),
    (41, TSMM.columns, TSMM.depth),
    (33, TSMM.columns - 1, 65),
)


def test_form_follows_from_columns_and_depth() -> None:
    kernel = fuse(matrices("f32", "m,k; k,n -> m,n"))
    sizes = {"m": 10**6, "n": TSMM.columns, "k": TSMM.depth}
    for n, k in ((0, 0), (1, 0), (0, 1)):
        larger = {**sizes, "n": TSMM.columns + n, "k": TSMM.depth + k}
        possible = [c.variant for c in competing_candidates(kernel.variants, larger)]
        assert ("tall_skinny" in possible) == (n == k == 0)
    assert select_variant(kernel.variants, {**sizes, "n": 12}) == "tall_skinny"
    short = fuse(matrices("bf16", "m,k; k,n -> m,n"))
    for k in (TSMM.dot_depth, TSMM.dot_depth + 1):
        assert select_variant(short.variants, {**sizes, "k": k}) in ("tall_skinny", "small", "")


def test_fixed_columns_are_tall_skinny_and_fixed_few_rows_are_not() -> None:
    columns = fuse(
        "graph f(x: f32[m,4], y: f32[4,3]) {\n"
        ' s = contract(x, y) {spec="m,k; k,n -> m,n"}\n return s\n}'
    )
    assert select_variant(columns.variants, {"m": 1000}) == "tall_skinny"
    x, y = whole_numbers((1000, 4), "f4", 1), whole_numbers((4, 3), "f4", 2)
    assert np.array_equal(columns(x, y)[0], x @ y)
    rows = fuse(
        "graph f(x: f32[4,k], y: f32[k,3]) {\n"
        ' s = contract(x, y) {spec="m,k; k,n -> m,n"}\n return s\n}'
    )
    assert "tall_skinny" not in [variant for variant, *_ in rows.variants]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("isa", RUNNABLE)
def test_every_layout(isa: str, dtype: str) -> None:
    is_right_in_every_layout(isa, dtype, "tall_skinny", SIZES)


@pytest.mark.parametrize("right", ["k,n", "n,k"])
def test_strided_operands_are_transposed_in_registers(right: str) -> None:
    """Strided operands are transposed in registers.

    Lanes gathered from rows that are a power of two apart, as those of many weights, evict each
    other from the cache.
    """
    kernel = fuse(matrices("f32", f"m,k; {right} -> m,n"), RUNNABLE[0])
    (phase,) = program(kernel.kernel).phases
    (result,) = build_schedules(phase, kernel.target, "tall_skinny")
    (nest,) = result.nests
    packs = nest.packs
    assert [len(pack.transposed) for pack in packs] == [0, right == "n,k"]


HEAD = """graph f(x: f32[m,k], w: f32[k,n], b: f32[n], r: f32[m,n], c: f32[m], i: i64[m]) {{
 {before}
 s = contract({left}, {right}) {{spec="m,k; k,n -> m,n"}}
 {after}
}}"""
BEFORE = {
    "": ("", "x", "w"),
    "scaled": (" p = abs(x)\n q = sub(w, 1.0:f32)", "p", "q"),
    "gathered": (" p = gather(x, i) {first=0}", "p", "w"),
    "shifted": (" h = reshape(c) {shape=(m,1)}\n p = mul(x, h)", "p", "w"),
}
AFTER = {
    "bias": " z = add(s, b)\n return z",
    "two results": " z = add(s, b)\n y = mul(s, r)\n return z, y",
    "scale of a row": " e = reshape(c) {shape=(m,1)}\n z = mul(s, e)\n return z",
    "gathered": " e = gather(r, i) {first=0}\n z = add(s, e)\n return z",
    "long": " z = add(s, b)\n y = mul(z, z)\n u = div(y, 4.0:f32)\n v = sub(u, r)\n"
    " t = div(v, 2.0:f32)\n a = abs(t)\n o = div(a, 2.0:f32)\n return o",
    "transposed": " z = permute(s) {perm=(1,0)}\n return z",
    "narrowed": " z = cast(s) {dtype=i8}\n return z",
}


@pytest.mark.parametrize(
    ("before", "after"), [*((b, "bias") for b in BEFORE), *(("", a) for a in AFTER)]
)
def test_fused_with_what_surrounds(before: str, after: str) -> None:
    lines, left, right = BEFORE[before]
    code = HEAD.format(before=lines, left=left, right=right, after=AFTER[after])
    rng = np.random.default_rng(3)
    for isa in RUNNABLE:
        kernel = fuse(code, isa)
        for m, n, k in ((1, 1, 1), (9, 16, 5), (35, 7, 3), (70, 37, 20)):
            shapes = {"x": (m, k), "w": (k, n), "b": (n,), "r": (m, n), "c": (m,)}
            arrays = [
                rng.integers(0, m, m)
                if str(node.op.label) == "i"
                else whole_numbers(shapes[str(node.op.label)], "f4", m)
                for node in kernel.graph.inputs
            ]
            result = kernel(*arrays)
            for got, wanted in zip(result, kernel.expected(*arrays), strict=True):
                assert np.array_equal(got, wanted), (isa, m, n, k)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "i8", "u8"])
def test_converted_as_it_is_packed(dtype: str) -> None:
    wide = "i32" if dtype in ("i8", "u8") else "f32"
    code = (
        f"graph f(x: {dtype}[m,k], w: {dtype}[k,n]) {{\n a = cast(x) {{dtype={wide}}}\n"
        f' c = cast(w) {{dtype={wide}}}\n s = contract(a, c) {{spec="m,k; k,n -> m,n"}}\n'
        " return s\n}"
    )
    for isa in RUNNABLE:
        kernel = fuse(code, isa)
        for m, n, k in ((1, 1, 1), (67, 17, 5), (40, 16, TSMM.dot_depth), (33, 3, 31)):
            kinds = [node.type.dtype.numpy for node in kernel.graph.inputs]
            x, w = (
                abs(whole_numbers(s, "i1", m)).astype(d)
                for s, d in zip(((m, k), (k, n)), kinds, strict=True)
            )
            actual = run_guarded(kernel, [x, w], at_end=True)[0]
            assert np.array_equal(actual, kernel.expected(x, w)[0]), (isa, m, n, k)


@pytest.mark.parametrize("variant", ["panels", "small_m", "k_blocked"])
@pytest.mark.parametrize("isa", RUNNABLE)
def test_columns_that_two_operands_hold_in_turn(isa: str, variant: Variant) -> None:
    """Two numbers of a byte are packed so that neighbours lie in different arrays."""
    kernel = fuse(
        "graph f(x: f32[m,60], a: f32[60,256,1], b: f32[60,256,1]) {\n"
        " c = concat(a, b) {axis=2}\n w = reshape(c) {shape=(60, 512)}\n"
        ' s = contract(x, w) {spec="m,k; k,n -> m,n"}\n return s\n}',
        isa,
    )
    if variant not in [name for name, *_ in kernel.variants]:
        pytest.skip("no such form")
    single = native_kernel(kernel.kernel, kernel.target, variant)
    shapes = (70, 60), (60, 256, 1), (60, 256, 1)
    arrays = [whole_numbers(s, "f4", k) for k, s in enumerate(shapes)]
    (actual,) = single(
        dict(zip([p.name for p in single.kernel.inputs], arrays, strict=True))
    ).values()
    assert np.array_equal(actual, kernel.expected(*arrays)[0])
