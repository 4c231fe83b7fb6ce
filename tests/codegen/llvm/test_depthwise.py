"""Depthwise convolutions: tiles, blocks, padding, strides, both layouts, every ISA."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import check, in_place, products, random
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops

from smelt import lower
from smelt.codegen.build import asm_text
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.depthwise import TILE_HEIGHTS, DepthwisePlan
from smelt.graph.text import parse
from smelt.kernel.artifact import select_variant
from smelt.machine.target import Target
from smelt.types.dtype import DType, bf16, f16

FIRST = """graph f(x: {t}[b,c,h,w], k: {t}[c,{u},{v}]) {{
  v0 = pad(x) {{low=(0, 0, {p}, {p}), high=(0, 0, {p}, {p}), value=0}}
  v1 = window(v0) {{axis=2, extent={u}, step={s}, dilation={d}}}
  v2 = window(v1) {{axis=3, extent={v}, step={s}, dilation={d}}}
  v3 = contract(v2, k) {{spec="b,c,h,w,u,v; c,u,v -> b,c,h,w"}}
  return v3
}}"""
"""Channels first: weights are the same for whole lines."""
LAST = """graph f(x: {t}[b,h,w,c], k: {t}[c,{u},{v}]) {{
  v0 = pad(x) {{low=(0, {p}, {p}, 0), high=(0, {p}, {p}, 0), value=0}}
  v1 = window(v0) {{axis=1, extent={u}, step={s}, dilation={d}}}
  v2 = window(v1) {{axis=2, extent={v}, step={s}, dilation={d}}}
  v3 = contract(v2, k) {{spec="b,h,w,c,u,v; c,u,v -> b,h,w,c"}}
  return v3
}}"""
"""Channels last: weights differ from lane to lane."""
GROUPS = """graph f(x: {t}[b,h,w,g,{c}], k: {t}[g,{o},3,3,{c}]) {{
  v0 = pad(x) {{low=(0, 1, 1, 0, 0), high=(0, 1, 1, 0, 0), value=0}}
  v1 = window(v0) {{axis=1, extent=3, step={s}}}
  v2 = window(v1) {{axis=2, extent=3, step={s}}}
  v3 = contract(v2, k) {{spec="b,h,w,g,c,u,v; g,o,u,v,c -> b,h,w,g,o"}}
  return v3
}}"""
"""Groups of channels, last: a vector has several."""
AROUND = """graph f(x: f32[b,h,w,c], k: f32[5,5,c], g: f32[c]) {
  v0 = exp(x)
  v1 = window(v0) {axis=1, extent=5}
  v2 = window(v1) {axis=2, extent=5}
  v3 = contract(v2, k) {spec="b,h,w,c,u,v; u,v,c -> b,h,w,c"}
  v4 = mul(v3, g)
  v5 = tanh(v4)
  return v5
}"""
BESIDE = """graph f(x: f32[b,c,h,w], k: f32[c,5,5], g: f32[c], r: f32[b,c,h,w], l: f32[w]) {
  v0 = pad(x) {low=(0, 0, 2, 2), high=(0, 0, 2, 2), value=0}
  v1 = window(v0) {axis=2, extent=5}
  v2 = window(v1) {axis=3, extent=5}
  v3 = contract(v2, k) {spec="b,c,h,w,u,v; c,u,v -> b,c,h,w"}
  v4 = reshape(g) {shape=(1, c, 1, 1)}
  v5 = mul(v3, v4)
  v6 = add(v5, r)
  v7 = reshape(l) {shape=(1, 1, 1, w)}
  v8 = add(v6, v7)
  return v8
}"""
"""Lines that follow one another are one run, unless something is told by where a line ends."""
OUTER = """graph f(x: f64[b,h,w,c], k: f64[c,5,5]) {
  v0 = pad(x) {low=(0, 2, 2, 0), high=(0, 2, 2, 0), value=0}
  v1 = window(v0) {axis=1, extent=5}
  v2 = window(v1) {axis=2, extent=5}
  v3 = contract(v2, k) {spec="b,h,w,c,u,v; c,u,v -> b,c,h,w"}
  v4 = exp(v3)
  v5 = reshape(v4) {shape=(b, c, h, w, 1, 1)}
  v6 = reshape(k) {shape=(1, c, 1, 1, 5, 5)}
  v7 = mul(v5, v6)
  return v4, v7
}"""
"""Stored along what the windows slide over, too."""
SPACE = """graph f(x: f32[b,c,t,h,w], k: f32[c,3,3,3]) {
  v0 = pad(x) {low=(0, 0, 1, 1, 1), high=(0, 0, 1, 1, 1), value=0}
  v1 = window(v0) {axis=2, extent=3}
  v2 = window(v1) {axis=3, extent=3}
  v3 = window(v2) {axis=4, extent=3}
  v4 = contract(v3, k) {spec="b,c,t,h,w,s,u,v; c,s,u,v -> b,c,t,h,w"}
  return v4
}"""
ALIKE = """graph f(x: f32[b,h,w], k: f32[4,4]) {
  v0 = window(x) {axis=1, extent=4}
  v1 = window(v0) {axis=2, extent=4}
  v2 = contract(v1, k) {spec="b,h,w,u,v; u,v -> b,h,w"}
  return v2
}"""
"""One filter for all images."""
TWO = """graph f(x: f32[b,c,h,w], k: f32[c,5,5], p: f32[o,c]) {
  v0 = window(x) {axis=2, extent=5}
  v1 = window(v0) {axis=3, extent=5}
  v2 = contract(v1, k) {spec="b,c,h,w,u,v; c,u,v -> b,c,h,w"}
  v3 = contract(v2, p) {spec="b,c,h,w; o,c -> b,o,h,w"}
  return v3
}"""
"""A stencil and a product in one kernel: the first is written out."""


def plain(
    source: str = FIRST, p: int = 3, s: int = 1, d: int = 1, u: int = 7, v: int = 7, t: str = "f32"
) -> str:
    return source.format(p=p, s=s, d=d, u=u, v=v, t=t)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("t", "s"), [("f32", 1), ("f32", 2), ("f64", 1)])
@pytest.mark.parametrize(
    ("c", "o", "g"),
    [(4, 4, 8), (8, 8, 5), (2, 2, 40), (16, 16, 3), (5, 5, 7), (2, 4, 9), (4, 2, 9), (1, 2, 33)],
)
def test_groups_that_share_a_vector(isa: str, t: str, s: int, c: int, o: int, g: int) -> None:
    kernel = fuse(GROUPS.format(t=t, s=s, c=c, o=o), isa)
    arrays = random(
        (1, 4, 6, g, c), (g, o, 3, 3, c), dtype=np.float64 if t == "f64" else np.float32
    )
    check(kernel, *arrays)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        (plain(), ((1, 2, 7, 7), (2, 7, 7))),
        (plain(), ((2, 1, 1, 1), (1, 7, 7))),
        (plain(), ((1, 1, 33, 40), (1, 7, 7))),  # tiles of every height
        (plain(), ((1, 1, 90, 600), (1, 7, 7))),  # several pieces of lines, and of rows
        (plain(p=0, u=5, v=4), ((1, 2, 9, 20), (2, 5, 4))),
        (plain(s=2), ((1, 2, 12, 35), (2, 7, 7))),
        (plain(s=3, p=0, u=4, v=5), ((2, 1, 14, 13), (1, 4, 5))),
        (plain(s=4, p=2, u=3, v=6), ((1, 1, 19, 30), (1, 3, 6))),  # taps that share no line
        (plain(d=2), ((1, 1, 11, 21), (1, 7, 7))),
        (plain(u=1, v=11, p=5), ((1, 1, 4, 21), (1, 1, 11))),
        (plain(u=21, v=3, p=10), ((1, 1, 5, 17), (1, 21, 3))),  # more weights than registers
        (plain(LAST), ((1, 5, 6, 20), (20, 7, 7))),
        (plain(LAST), ((2, 1, 3, 37), (37, 7, 7))),  # several blocks of channels
        (plain(LAST), ((2, 3, 9, 80), (80, 7, 7))),  # in place, with tiles that overlap
        (plain(LAST), ((1, 2, 3, 16), (16, 7, 7))),  # but not where there are too few results
        (plain(p=1, u=3, v=5), ((1, 3, 33, 50), (3, 3, 5))),
        (plain(LAST, p=0, u=4, v=3), ((1, 20, 150, 3), (3, 4, 3))),  # several blocks of lines
        (plain(LAST, s=2), ((1, 9, 16, 17), (17, 7, 7))),
        (plain(LAST, s=2, d=3, p=2, u=4, v=4), ((1, 12, 11, 5), (5, 4, 4))),
        (plain(LAST, d=2), ((1, 7, 9, 18), (18, 7, 7))),
        (AROUND, ((1, 9, 20, 19), (5, 5, 19), (19,))),
        (plain(), ((2, 24, 7, 7), (24, 7, 7))),  # transposed, with a partial vector left
        (plain(s=2, u=5, v=5, p=2), ((1, 16, 15, 40), (16, 5, 5))),
        (plain(d=2, u=5, v=5, p=1), ((1, 9, 9, 10), (9, 5, 5))),
        (plain(p=0, u=4, v=6), ((1, 17, 400, 6), (17, 4, 6))),  # several blocks of lines
        (plain(u=1, v=11, p=5), ((1, 16, 1, 20), (16, 1, 11))),
        (SPACE, ((1, 2, 3, 5, 18), (2, 3, 3, 3))),
        (SPACE, ((1, 16, 3, 5, 9), (16, 3, 3, 3))),
        (BESIDE, ((2, 20, 5, 7), (20, 5, 5), (20,), (2, 20, 5, 7), (7,))),
        (
            BESIDE.replace("[w]", "[c]").replace("1, 1, w", "c, 1, 1"),
            ((2, 20, 5, 7), (20, 5, 5), (20,), (2, 20, 5, 7), (20,)),
        ),
    ],
)
def test_every_size_stays_inside_its_arrays(
    isa: str, source: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    check(fuse(source, isa), *random(*shapes))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("source", "shape"),
    [
        (plain(LAST, u=5, v=5, p=2), (2, 3, 16, 32)),  # tiles that know where a line ends
        (plain(LAST, u=5, v=5, p=2), (1, 2, 2, 16)),
        (plain(LAST, u=4, v=6, p=3, s=2), (1, 6, 29, 16)),
        (plain(LAST, u=5, v=4, p=4, d=2), (1, 5, 18, 32)),
        (plain(LAST, u=5, v=5, p=0), (1, 6, 9, 16)),
    ],
)
def test_lines_of_known_sizes_are_read_in_place(
    isa: str, source: str, shape: tuple[int, ...]
) -> None:
    u, v = (int(n) for n in re.findall(r"extent=(\d)", source))
    fixed = source.replace("[b,h,w,c]", f"[{','.join(map(str, shape))}]", 1)
    fixed = fixed.replace(f"[c,{u},{v}]", f"[{shape[-1]},{u},{v}]")
    assert in_place(fixed) == [True]
    check(fuse(fixed, isa), *random(shape, (shape[-1], u, v)))


def test_which_lines_are_read_in_place() -> None:
    assert in_place(plain(LAST)) == in_place(plain(LAST, t="bf16")) == [True]
    assert in_place(plain()) == in_place(AROUND) == [False]  # along lines; what is computed
    assert in_place(plain(LAST).replace("value=0", "value=1")) == [False]
    assert in_place(GROUPS.format(t="f32", s=1, c=8, o=8)) == [False]  # read again for each lane


@pytest.mark.parametrize("isa", RUNNABLE)
def test_results_along_the_weights_own_axes(isa: str) -> None:
    kernel, inputs = fuse(OUTER, isa), random((2, 9, 8, 6), (6, 5, 5), dtype=np.float64)
    inputs[1] *= 0.1
    for actual, expected in zip(kernel(*inputs), kernel.expected(*inputs), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("source", [FIRST, LAST])
def test_double_precision(isa: str, source: str) -> None:
    shapes = ((1, 2, 9, 10), (2, 5, 5)) if source == FIRST else ((1, 9, 10, 2), (2, 5, 5))
    kernel = fuse(plain(source, t="f64", u=5, v=5, p=2), isa)
    check(kernel, *random(*shapes, dtype=np.float64))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_sums_are_rounded_as_they_are_stored(isa: str) -> None:
    kernel = fuse(plain(LAST, t="f16"), isa)
    for channels in (32, 20):
        check(kernel, *random((1, 3, 6, channels), (channels, 7, 7), dtype=np.float16))


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize(("s", "shape"), [(1, (2, 24, 7, 7)), (2, (1, 9, 15, 20))])
def test_short_rows_of_half_types_are_transposed(
    dtype: DType, s: int, shape: tuple[int, ...]
) -> None:
    kernel = fuse(plain(s=s, u=5, v=5, p=2, t=dtype.name))
    assert [variant for variant, *_ in kernel.variants] == ["transposed"]
    arrays = [x.astype(dtype.numpy) for x in random(shape, (shape[1], 5, 5))]
    check(kernel, *arrays)  # nothing is read or written outside
    actual, expected = (
        y[0].astype(np.float32) for y in (kernel(*arrays), kernel.expected(*arrays))
    )
    ulp = 2.0**-7 if dtype == bf16 else 2.0**-10
    np.testing.assert_allclose(actual, expected, rtol=ulp, atol=1e-5)


@pytest.mark.parametrize("source", [FIRST, LAST])
def test_padding_hides_infinite_weights_only(source: str) -> None:
    x, k = random((1, 3, 9, 3) if source == LAST else (1, 3, 3, 9), (3, 5, 5))
    x[0, 1, 2, 2] = np.inf
    x[0, 0, 0, 0] = np.nan
    k[2, 0, 0] = np.inf  # in a margin it meets 0
    kernel = fuse(plain(source, u=5, v=5, p=2))
    actual, expected = kernel(x, k)[0], kernel.expected(x, k)[0]
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


def test_short_rows_are_transposed_where_that_fills_most_lanes() -> None:
    variants = fuse(plain(), "avx512").variants
    sizes = {"b": 1, "u": 7, "v": 7}
    for c, w, variant in ((8, 32, "transposed"), (7, 32, ""), (8, 33, "")):
        assert select_variant(variants, {**sizes, "c": c, "h": 9, "w": w}) == variant
    assert not fuse(plain(LAST), "avx512").variants
    assert not fuse(OUTER, "avx512").variants
    assert not fuse(
        plain().replace("value=0", "value=1"), "avx512"
    ).variants  # margins are not zeros


def test_which_products_are_depthwise() -> None:
    assert products(plain()) == products(plain(LAST)) == products(SPACE) == [DepthwisePlan]
    assert products(ALIKE) == products(GROUPS.format(t="f32", s=1, c=8, o=8)) == [DepthwisePlan]
    assert DepthwisePlan not in products(
        GROUPS.format(t="f32", s=1, c=32, o=32)
    )  # each fills vectors
    assert DepthwisePlan not in products(TWO)
    assert products(plain(u=3, v=3)) == []  # few taps stay scalar operators, which fuse anywhere


@pytest.mark.parametrize("source", [FIRST, LAST])
@pytest.mark.parametrize(("isa", "heights"), [("avx512", TILE_HEIGHTS), ("avx2", TILE_HEIGHTS[1:])])
def test_sums_and_weights_stay_in_registers(
    isa: str, heights: tuple[int, ...], source: str
) -> None:
    kernel = lower.run(one_cluster(parse(plain(source, u=5, v=5, p=2))), "eager", {})
    text = asm_text(kernel, Target.for_isa(isa))  # type: ignore[arg-type]
    loops = [body for body in inner_loops(text) if "fmadd" in body]
    counts = sorted(len(re.findall("fmadd", body)) for body in loops)
    assert counts == sorted(5 * h for h in heights)
    for body in loops:
        assert not re.search(r"mm\d+, -?\d*\(%r[sb]p", body), body  # nothing is spilled


def test_what_is_gathered_is_gathered_once_for_all_positions_of_a_task() -> None:
    """Nine weights of each channel lie nine apart: they are kept beside the loop over positions."""
    source = plain(LAST, u=3, v=3, p=1)
    kernel = lower.run(one_cluster(parse(source)), "eager", {})
    (built,) = [schedule(p, Target.for_isa("avx512")) for p in program(kernel).phases]
    first, last = built.nests
    assert len(first.saves) == 9 and first.order == ("c",) and last.stores
    for shapes in (((2, 5, 6, 37), (37, 3, 3)), ((1, 3, 4, 2100), (2100, 3, 3))):
        check(fuse(source), *random(*shapes))
