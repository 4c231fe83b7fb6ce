"""Implicit GEMM convolutions, channels last: blocks, strides, tails."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import check, products, random
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops

from smelt import lower
from smelt.codegen.build import asm_text
from smelt.codegen.llvm.schedule.conv_nhwc import MAX_FEW_CHANNELS, TASK_CHANNELS, NhwcConvPlan
from smelt.graph.text import parse
from smelt.machine.blocks import WINDOW_COLUMNS
from smelt.machine.target import Target

PLAIN = """graph f(x: {t}[b,h,w,c], k: {t}[{k}]) {{
  v0 = pad(x) {{low=(0, {p}, {p}, 0), high=(0, {p}, {p}, 0), value=0}}
  v1 = window(v0) {{axis=1, extent={u}, step={s}, dilation={d}}}
  v2 = window(v1) {{axis=2, extent={v}, step={s}, dilation={d}}}
  v3 = contract(v2, k) {{spec="b,h,w,c,u,v; {e} -> b,h,w,o"}}
  return v3
}}"""
LINE = """graph f(x: f32[b,n,c], k: f32[o,5,c]) {
  v0 = exp(x)
  v1 = window(v0) {axis=1, extent=5, step=1, dilation=2}
  v2 = contract(v1, k) {spec="b,n,c,u; o,u,c -> b,n,o"}
  return v2
}"""
AROUND = """graph f(x: f32[b,h,w,c], k: f32[o,3,3,c], g: f32[o], r: f32[b,h - 2,w - 2,o]) {
  v0 = exp(x)
  v1 = window(v0) {axis=1, extent=3}
  v2 = window(v1) {axis=2, extent=3}
  v3 = contract(v2, k) {spec="b,h,w,c,u,v; o,u,v,c -> b,h,w,o"}
  v4 = mul(v3, g)
  v5 = add(v4, r)
  v6 = tanh(v5)
  return v6
}"""
FIRST = """graph f(x: f32[b,c,h,w], k: f32[o,c,3,3]) {
  v1 = window(x) {axis=2, extent=3}
  v2 = window(v1) {axis=3, extent=3}
  v3 = contract(v2, k) {spec="b,c,h,w,u,v; o,c,u,v -> b,h,w,o"}
  return v3
}"""
"""Results with channels last of an image with channels first."""
SHORTCUT = """graph f(x: f32[b,h,w,c], k: f32[o,3,3,c], y: f32[b,i,j,e], g: f32[o,e]) {
  v0 = pad(x) {low=(0, 1, 1, 0), high=(0, 1, 1, 0), value=0}
  v1 = window(v0) {axis=1, extent=3}
  v2 = window(v1) {axis=2, extent=3}
  v3 = contract(v2, k) {spec="b,h,w,c,u,v; o,u,v,c -> b,h,w,o"}
  v4 = slice(y) {starts=(0, 0, 0, 0), sizes=(b, h, w, e), steps=(1, 2, 2, 1)}
  v5 = contract(v4, g) {spec="b,h,w,e; o,e -> b,h,w,o"}
  v6 = add(v3, v5)
  return v6
}"""
"""A convolution beside one of single elements, which takes every second place."""


def plain(
    p: int = 1,
    s: int = 1,
    d: int = 1,
    u: int = 3,
    v: int = 3,
    t: str = "f32",
    output_first: bool = True,
) -> str:
    """A convolution; its weights come as torch gives them, or with their own axis last."""
    names = ["o", str(u), str(v), "c"] if output_first else [str(u), str(v), "c", "o"]
    axes = "o,u,v,c" if output_first else "u,v,c,o"
    return PLAIN.format(p=p, s=s, d=d, u=u, v=v, t=t, k=",".join(names), e=axes)


def patches(n: int) -> str:
    """A convolution whose windows do not overlap, with weights that lie along their taps."""
    text = plain(p=0, s=n, u=n, v=n)
    return text.replace(f"[o,{n},{n},c]", f"[o,c,{n},{n}]").replace("; o,u,v,c", "; o,c,u,v")


def colours(n: int = 3, **more: int) -> str:
    """A convolution of images with so many channels, which is written in the program."""
    text = plain(**more)  # type: ignore[arg-type]
    return text.replace("b,h,w,c]", f"b,h,w,{n}]").replace(",c]", f",{n}]")


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        (plain(), ((1, 5, 7, 3), (4, 3, 3, 3))),
        (plain(), ((2, 1, 1, 2), (1, 3, 3, 2))),
        (plain(), ((2, 4, 5, 40), (13, 3, 3, 40))),  # two blocks of channels
        (plain(), ((1, 3, 4, 70), (33, 3, 3, 70))),  # three, the last one short
        (plain(), ((1, 3, 2, 0), (3, 3, 3, 0))),  # sums of nothing
        (plain(), ((1, 30, 33, 2), (17, 3, 3, 2))),  # several pieces of lines
        (plain(), ((1, 2, WINDOW_COLUMNS + 40, 1), (2, 3, 3, 1))),  # and longer ones
        (plain(p=0), ((1, 4, 5, 3), (TASK_CHANNELS + 5, 3, 3, 3))),  # two blocks of results
        (colours(), ((2, 7, 9, 3), (37, 3, 3, 3))),  # few channels: one loop over all taps
        (colours(s=2, u=4, v=2), ((1, 9, 8, 3), (5, 4, 2, 3))),
        (
            colours(d=2, p=2, n=MAX_FEW_CHANNELS),
            ((1, 7, 9, MAX_FEW_CHANNELS), (50, 3, 3, MAX_FEW_CHANNELS)),
        ),
        (colours(n=1), ((1, 30, 20, 1), (3, 3, 3, 1))),
        (
            colours(n=MAX_FEW_CHANNELS + 1),
            ((1, 6, 5, MAX_FEW_CHANNELS + 1), (17, 3, 3, MAX_FEW_CHANNELS + 1)),
        ),
        (plain(output_first=False), ((2, 5, 6, 7), (3, 3, 7, 5))),
        (plain(output_first=False, u=2, v=4, p=0), ((1, 5, 6, 19), (2, 4, 19, 48))),
        (plain(s=2), ((1, 8, 11, 3), (5, 3, 3, 3))),
        (plain(s=3, p=2, u=5, v=4), ((1, 11, 12, 3), (5, 5, 4, 3))),
        (plain(d=2, p=2), ((2, 7, 9, 3), (4, 3, 3, 3))),
        (plain(s=2, d=3, p=3), ((1, 9, 11, 3), (4, 3, 3, 3))),
        (patches(2), ((2, 9, 6, 17), (37, 17, 2, 2))),
        (patches(3), ((1, 3, 10, 70), (5, 70, 3, 3))),
        (LINE, ((2, 70, 6), (3, 5, 6))),
        (LINE, ((1, WINDOW_COLUMNS + 30, 2), (3, 5, 2))),
        (AROUND, ((2, 6, 7, 5), (20, 3, 3, 5), (20,), (2, 4, 5, 20))),
        (FIRST, ((2, 5, 6, 7), (9, 5, 3, 3))),
        (SHORTCUT, ((2, 5, 4, 6), (9, 3, 3, 6), (2, 9, 8, 7), (9, 7))),
        (
            SHORTCUT,
            ((1, 7, 7, 70), (TASK_CHANNELS + 5, 3, 3, 70), (1, 14, 14, 3), (TASK_CHANNELS + 5, 3)),
        ),
    ],
)
def test_every_size_stays_inside_its_arrays(
    isa: str, source: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    check(fuse(source, isa), *random(*shapes))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_double_precision(isa: str) -> None:
    check(
        fuse(plain(t="f64", s=2), isa),
        *random((1, 9, 10, 3), (5, 3, 3, 3), dtype=np.float64),
    )


def test_padding_hides_infinite_weights_only() -> None:
    x, k = random((1, 5, 6, 2), (3, 3, 3, 2))
    x[0, 4, 5, 1] = np.inf
    x[0, 0, 0, 0] = np.nan
    k[2, 0, 0, 0] = np.inf
    kernel = fuse(plain())
    actual, expected = kernel(x, k)[0], kernel.expected(x, k)[0]
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


def test_which_products_have_rows_of_pixels() -> None:
    assert (
        products(plain()) == products(plain(output_first=False)) == products(LINE) == [NhwcConvPlan]
    )
    assert products(AROUND) == [NhwcConvPlan]
    assert products(SHORTCUT) == [NhwcConvPlan, NhwcConvPlan]
    assert products(patches(2)) == [NhwcConvPlan]
    assert NhwcConvPlan not in products(FIRST)


def test_few_channels_are_one_loop_with_all_taps() -> None:
    """A loop of three turns for each tap costs more than it multiplies."""

    def loops(source: str) -> int:
        kernel = lower.run(one_cluster(parse(source)), "eager", {})
        text = asm_text(kernel, Target.for_isa("avx512"))
        tile = next(b for b in inner_loops(text) if len(re.findall("fmadd", b)) == 28)
        assert not re.search(r"\(%rsp", tile), tile
        return len(re.findall(r"movq\s+\(", tile))  # the table is read in the innermost loop

    assert loops(colours()) == 1
    assert loops(colours(MAX_FEW_CHANNELS + 1)) == loops(plain()) == 0


@pytest.mark.parametrize(
    ("isa", "rows"), [("avx512", (1, 2, 4, 6, 7, 8, 10, 12, 14)), ("avx2", (1, 2, 3, 4, 6))]
)
def test_register_tiles_do_not_spill(isa: str, rows: tuple[int, ...]) -> None:
    """One multiply-add for each accumulator, none of which goes through the stack."""
    kernel = lower.run(one_cluster(parse(plain(s=2))), "eager", {})
    text = asm_text(kernel, Target.for_isa(isa))  # type: ignore[arg-type]
    loops = [body for body in inner_loops(text) if "fmadd" in body]
    counts = sorted(n * vectors for n in rows for vectors in (1, 2))
    assert sorted(len(re.findall("fmadd", body)) for body in loops) == counts
    for body in loops:
        assert not re.search(r"\(%rsp", body), body


STEPS = """graph f(x: f32[b,7,14,3], k: f32[o,3,3,3], y: f32[b,11,25,3], l: f32[o,3,3,3]) {
  v0 = window(x) {axis=1, extent=3}
  v1 = window(v0) {axis=2, extent=3}
  v2 = contract(v1, k) {spec="b,h,w,c,u,v; o,u,v,c -> b,h,w,o"}
  v3 = window(y) {axis=1, extent=3, step=2}
  v4 = window(v3) {axis=2, extent=3, step=2}
  v5 = contract(v4, l) {spec="b,h,w,c,u,v; o,u,v,c -> b,h,w,o"}
  v6 = add(v2, v5)
  return v6
}"""


@pytest.mark.parametrize("isa", RUNNABLE)
def test_windows_that_step_apart_have_tiles_of_their_own(isa: str) -> None:
    shapes = (1, 7, 14, 3), (32, 3, 3, 3), (1, 11, 25, 3), (32, 3, 3, 3)
    check(fuse(STEPS, isa, usual=True), *random(*shapes))
