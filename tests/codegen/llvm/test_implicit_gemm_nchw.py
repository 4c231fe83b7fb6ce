"""Implicit GEMM convolutions, channels first: blocks, padding, strides, tails, every ISA."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import check, dealing, input_in_place, products, random
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops

from smelt import lower
from smelt.codegen.build import asm_text
from smelt.codegen.llvm.schedule.conv_plan import MAX_NARROW_ROW, MAX_TAPS, ConvPlan
from smelt.graph.text import parse
from smelt.kernel.artifact import select_variant
from smelt.machine.blocks import ROWS
from smelt.machine.blocks import WINDOW_COLUMNS as COLUMNS
from smelt.machine.target import Target

PLAIN = """graph f(x: {t}[b,c,h,w], k: {t}[o,c,{u},{v}]) {{
  v0 = pad(x) {{low=(0, 0, {p}, {p}), high=(0, 0, {p}, {p}), value=0}}
  v1 = window(v0) {{axis=2, extent={u}, step={s}, dilation={d}}}
  v2 = window(v1) {{axis=3, extent={v}, step={s}, dilation={d}}}
  v3 = contract(v2, k) {{spec="b,c,h,w,u,v; o,c,u,v -> b,o,h,w"}}
  return v3
}}"""
LINE = """graph f(x: f32[b,c,n], k: f32[o,c,5]) {
  v0 = exp(x)
  v1 = window(v0) {axis=2, extent=5, step=1, dilation=2}
  v2 = contract(v1, k) {spec="b,c,n,u; o,c,u -> b,o,n"}
  v3 = tanh(v2)
  return v3
}"""
LAST = """graph f(x: f32[b,h,w,c], k: f32[3,3,c,o]) {
  v0 = pad(x) {low=(0, 1, 1, 0), high=(0, 1, 1, 0), value=0}
  v1 = window(v0) {axis=1, extent=3}
  v2 = window(v1) {axis=2, extent=3}
  v3 = contract(v2, k) {spec="b,h,w,c,u,v; u,v,c,o -> b,h,w,o"}
  return v3
}"""
CHAIN = """graph f(x: f32[b,c,h,w], k: f32[o,c], r: f32[b,o,h,w], e: f32[p,o]) {
  v0 = slice(x) {starts=(0, 0, 0, 1), sizes=(b, c, h, w - 1), steps=(1, 1, 1, 1)}
  v1 = slice(r) {starts=(0, 0, 0, 0), sizes=(b, o, h, w - 1), steps=(1, 1, 1, 1)}
  v2 = contract(v0, k) {spec="b,c,h,w; o,c -> b,o,h,w"}
  v3 = add(v2, v1)
  v4 = contract(v3, e) {spec="b,o,h,w; p,o -> b,p,h,w"}
  return v4
}"""
"""Two products one after the other, over rows that do not follow one another in memory."""

MEAN = """graph f(x: f32[b,c,h,w], k: f32[o,c], e: f32[p,o]) {
  v0 = slice(x) {starts=(0, 0, 0, 1), sizes=(b, c, h, w - 1), steps=(1, 1, 1, 1)}
  v1 = contract(v0, k) {spec="b,c,h,w; o,c -> b,o,h,w"}
  v2 = contract(v1, e) {spec="b,o,h,w; p,o -> b,p,h,w"}
  v3 = reduce.sum(v2) {axes=(2, 3)}
  return v3
}"""
"""Columns that are folded afterwards, all of them by one task."""


def plain(p: int = 1, s: int = 1, d: int = 1, u: int = 3, v: int = 3, t: str = "f32") -> str:
    return PLAIN.format(p=p, s=s, d=d, u=u, v=v, t=t)


def large(p: int = 1, s: int = 7) -> str:
    """A convolution of two channels with more taps than are summed in one block."""
    return plain(p, s, u=21, v=20).replace("b,c,h,w]", "b,2,h,w]").replace("[o,c,", "[o,2,")


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        (plain(), ((1, 3, 5, 7), (4, 3, 3, 3))),
        (plain(), ((2, 2, 1, 1), (1, 2, 3, 3))),
        (plain(), ((25, 30, 7, 7), (13, 30, 3, 3))),  # several tasks
        (plain(s=2, p=0), ((90, 2, 6, 5), (4, 2, 3, 3))),
        (plain(), ((1, 40, 4, 5), (13, 40, 3, 3))),  # two blocks of channels
        (plain(), ((1, 1, 40, 33), (5, 1, 3, 3))),  # several pieces of rows
        (plain(), ((1, 2, 3, COLUMNS + 40), (2, 2, 3, 3))),  # rows longer than a piece
        (plain(p=0), ((1, 2, 6, 9), (ROWS + 5, 2, 3, 3))),  # two blocks of rows
        (plain(), ((1, 0, 4, 5), (3, 0, 3, 3))),  # sums of nothing
        (plain(s=2), ((1, 3, 8, 11), (5, 3, 3, 3))),
        (plain(s=2, p=0), ((1, 3, 8, 12), (5, 3, 3, 3))),
        (plain(s=3, p=2, u=5, v=4), ((1, 3, 11, 12), (5, 3, 5, 4))),
        (plain(s=4, p=3, u=7, v=5), ((1, 2, 17, 40), (5, 2, 7, 5))),
        (plain(d=2, p=2), ((2, 3, 7, 20), (4, 3, 3, 3))),
        (plain(d=3, p=0), ((1, 3, 8, 9), (4, 3, 3, 3))),
        (plain(s=2, d=2), ((1, 3, 9, 11), (4, 3, 3, 3))),  # every second place of all
        (plain(s=2, d=3), ((1, 3, 9, 11), (4, 3, 3, 3))),  # places that cannot be told apart
        (LINE, ((2, 6, 70), (3, 6, 5))),
        (LINE, ((1, 2, COLUMNS + 30), (3, 2, 5))),
        (LAST, ((2, 5, 6, 7), (3, 3, 7, 5))),
        (CHAIN, ((2, 5, 6, 7), (3, 5), (2, 3, 6, 7), (9, 3))),
        (MEAN, ((2, 5, 6, 8), (13, 5), (17, 13))),
        (CHAIN, ((1, 3, 2, COLUMNS + 40), (2, 3), (1, 2, 2, COLUMNS + 40), (13, 2))),
        (large(), ((2, 2, 23, 43), (13, 2, 21, 20))),
        (large(s=20, p=0), ((1, 2, 41, 62), (3, 2, 21, 20))),
    ],
)
@pytest.mark.parametrize("usual", [False, True])  # short lines have a form of their own
def test_every_size_stays_inside_its_arrays(
    isa: str, source: str, shapes: tuple[tuple[int, ...], ...], usual: bool
) -> None:
    check(fuse(source, isa, usual=usual), *random(*shapes))


def patches(size: int, height: int, channels: int) -> str:
    """Patches of an image that do not overlap, of which results have their channels last."""
    whole = f"x: f32[b,{channels},{height},{height}], k: f32[o,{channels},{size},{size}]"
    return f"""graph f({whole}) {{
      v0 = window(x) {{axis=2, extent={size}, step={size}}}
      v1 = window(v0) {{axis=3, extent={size}, step={size}}}
      v2 = contract(v1, k) {{spec="b,c,h,w,u,v; o,c,u,v -> b,h,w,o"}}
      v3 = exp(v2)
      return v3
    }}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("size", "height", "shapes"),
    [
        (4, 12, ((1, 3, 12, 12), (20, 3, 4, 4))),
        (2, 11, ((3, 5, 11, 11), (33, 5, 2, 2))),
        (22, 50, ((2, 2, 50, 50), (7, 2, 22, 22))),  # more taps than are summed in one block
    ],
)
def test_patches_with_channels_last_share_their_weights(
    isa: str, size: int, height: int, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """A plain product would pack its weights for each place of a patch."""
    source = patches(size, height, shapes[0][1])
    check(fuse(source, isa), *(0.1 * x for x in random(*shapes)))
    assert products(source) == [ConvPlan]


def test_reduced_columns_are_tiled() -> None:
    text = asm_text(lower.run(one_cluster(parse(MEAN)), "eager", {}), Target.for_isa("avx512"))
    assert any(len(re.findall("fmadd", body)) == 24 for body in inner_loops(text))


def test_short_rows_have_no_padding_between_them() -> None:
    kernel = fuse(plain())
    assert (
        select_variant(kernel.variants, {"b": 1, "c": 3, "o": 4, "h": 999, "w": MAX_NARROW_ROW})
        == "narrow"
    )
    assert (
        select_variant(kernel.variants, {"b": 1, "c": 3, "o": 4, "h": 9, "w": MAX_NARROW_ROW + 1})
        == ""
    )
    assert {c.variant for c in kernel.variants} == {"narrow"}  # for images of a few pixels as well


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("width", [8, 17, 32, 33, 64, 65])
def test_lines_of_some_vectors_are_packed_whole(width: int, isa: str) -> None:
    """What a vector has beyond its line is overwritten, and margins stay zero beside infinities."""
    x, k = random((2, 2, 5, width), (3, 2, 3, 3))
    check(fuse(plain(), isa, usual=True), x, k)
    check(fuse(plain(s=2), isa), x, k)
    x[:, 1, 4, -1] = np.inf
    kernel = fuse(plain(), isa, usual=True)
    np.testing.assert_array_equal(
        np.isfinite(kernel(x, k)[0]), np.isfinite(kernel.expected(x, k)[0])
    )


def test_short_lines_are_packed_without_tests() -> None:
    """Loops over lines load under masks that they share, and store."""
    kernel = lower.run(one_cluster(parse(plain())), "eager", {})
    loops = inner_loops(asm_text(kernel, Target.for_isa("avx512")))
    masked = [x for x in loops if re.search(r"vmovups.*%k\d} {z}", x) and "fmadd" not in x]
    whole_stores = re.compile(r"vmovups\s+%zmm\d+, [^{]*$", re.MULTILINE)
    lines = [x for x in masked if "vpcmp" not in x and whole_stores.search(x)]
    assert {len(re.findall("{z}", x)) for x in lines} >= {1, 2, 4}


def test_blocks_of_summed_positions_are_even() -> None:
    """One channel more than a block is split in two halves."""
    x, k = random((1, 57, 4, 5), (13, 57, 3, 3))
    check(fuse(plain()), x, k)


def test_many_taps_are_products_over_windows_too() -> None:
    """An ordinary one would pack all weights for every line of results."""
    assert products(large()) == products(large(s=21)) == [ConvPlan]


@pytest.mark.parametrize("isa", RUNNABLE)
def test_double_precision(isa: str) -> None:
    check(
        fuse(plain(t="f64", s=2), isa),
        *random((1, 3, 9, 10), (5, 3, 3, 3), dtype=np.float64),
    )


def test_padding_hides_infinite_weights_only() -> None:
    x, k = random((1, 2, 5, 6), (3, 2, 3, 3))
    x[0, 1, 4, 5] = np.inf
    x[0, 0, 0, 0] = np.nan
    kernel = fuse(plain())
    actual, expected = kernel(x, k)[0], kernel.expected(x, k)[0]
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


@pytest.mark.parametrize(("isa", "counts"), [("avx512", (24, 12, 16, 8)), ("avx2", (12, 6, 8, 4))])
def test_register_tiles_do_not_spill(isa: str, counts: tuple[int, ...]) -> None:
    """One multiply-add for each accumulator, none of which goes through the stack."""
    kernel = lower.run(one_cluster(parse(plain(s=2))), "eager", {})
    text = asm_text(kernel, Target.for_isa(isa))  # type: ignore[arg-type]
    loops = [body for body in inner_loops(text) if "fmadd" in body]
    assert sorted(len(re.findall("fmadd", body)) for body in loops) == sorted(counts)
    for body in loops:
        assert not re.search(r"\(%rsp", body), body


def test_a_block_has_whole_windows() -> None:
    assert MAX_TAPS >= 7 * 7 * 8


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("rows", [1, 4, 7, 8, 12, 13, 16, 20, 24, 193, 200])
def test_weights_are_multiplied_in_place(rows: int, isa: str) -> None:
    """Where tiles end with their rows; the bits are those of weights that have to be packed."""
    transposed = plain().replace("k: f32[o,c,3,3]", "k: f32[c,o,3,3]").replace("; o,c", "; c,o")
    assert (input_in_place(plain()), input_in_place(transposed)) == ([True], [False])
    x, k = random((2, 30, 6, 9), (rows, 30, 3, 3))
    check(fuse(plain(), isa), x, k)
    packed = fuse(transposed, isa)(x, np.ascontiguousarray(k.swapaxes(0, 1)))
    assert np.array_equal(fuse(plain(), isa)(x, k)[0], packed[0])


BACKWARDS = """graph f(x: f32[b,c,h,w], k: f32[c,o,3,3]) {
  v0 = pad(x) {low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=0}
  v1 = window(v0) {axis=2, extent=3}
  v2 = window(v1) {axis=3, extent=3}
  v3 = flip(k) {axes=(2, 3)}
  v4 = contract(v2, v3) {spec="b,c,h,w,u,v; c,o,u,v -> b,o,h,w"}
  return v4
}"""
ACROSS = """graph f(x: f32[b,c,n], k: f32[5,c,o]) {
  v0 = window(x) {axis=2, extent=5}
  v1 = contract(v0, k) {spec="b,c,n,u; u,c,o -> b,o,n"}
  return v1
}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("rows", [1, 4, 8, 13, 20, 200])
def test_weights_have_any_layout(rows: int, isa: str) -> None:
    """Each axis has a step of its own, also backwards, and nothing is packed of them."""
    assert dealing(BACKWARDS) == dealing(ACROSS) == [True]
    assert dealing(plain()) == [False]
    x, k = random((2, 60, 4, 9), (60, rows, 3, 3))
    check(fuse(BACKWARDS, isa, usual=True), x, k)
    x, k = random((2, 70, 30), (5, 70, rows))
    check(fuse(ACROSS, isa), x, k)


@pytest.mark.parametrize(("channels", "dealt"), [(24, True), (64, True), (96, True), (128, False)])
def test_weights_that_a_first_cache_does_not_hold_are_packed(channels: int, dealt: bool) -> None:
    """Channels last in the weights alone: taps and rows that a power of two lies between share few
    sets of a cache."""
    source = f"""graph f(x: f32[n,{channels},h,w], k: f32[o,3,3,{channels}]) {{
      y = window(x) {{axis=2, extent=3}}
      z = window(y) {{axis=3, extent=3}}
      c = contract(z, k) {{spec="n,c,h,w,u,v; o,u,v,c -> n,o,h,w"}}
      return c
    }}"""
    assert dealing(source) == [dealt]
    x, k = random((1, channels, 4, 9), (13, 3, 3, channels))
    check(fuse(source, RUNNABLE[0]), x, k)


def test_a_table_of_weights_costs_no_sums() -> None:
    """Register tiles keep all sums in registers, whatever the order of the weights."""
    kernel = lower.run(one_cluster(parse(BACKWARDS)), "eager", {})
    loops = inner_loops(asm_text(kernel, Target.for_isa("avx512")))
    sums = [body for body in loops if "fmadd" in body]
    assert len(sums) == 4
    for body in sums:
        assert not re.search(r"\(%rsp\), %[xyz]mm|%[xyz]mm\d+, -?\w*\(%rsp", body), body
