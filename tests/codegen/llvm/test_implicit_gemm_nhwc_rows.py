"""Channels-last convolutions with image rows of known length, where tiles end."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import check, random
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster
from tests.codegen.llvm.test_implicit_gemm_nhwc import AROUND, LINE, SHORTCUT, colours, plain

from smelt import lower
from smelt.codegen.build import panels
from smelt.codegen.llvm.loopir.items import Load
from smelt.codegen.llvm.loopir.rewrite import dependencies
from smelt.codegen.llvm.products.direct_store import stored_products
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.conv_nhwc import BATCH_TASK_FACTOR, TASK_CHANNELS, NhwcConvPlan
from smelt.codegen.llvm.schedule.conv_nhwc import MIN_ROW_LENGTH as LEAST
from smelt.graph.text import parse
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import Panel, read_panels
from smelt.kernel.verify import verify
from smelt.machine.blocks import WINDOW_COLUMNS
from smelt.machine.target import Target
from smelt.types.expr import coefficient, evaluate

LONG = 2 * WINDOW_COLUMNS + 41


def with_row_length(source: str, line: int) -> str:
    """The program with the length of its image's lines written in it."""
    result = re.sub(r"\[b,h,w,", f"[b,h,{line},", source)
    result = result.replace("b, h, w, e", f"b, h, {line}, e")
    return result.replace("[b,n,c", f"[b,{line},c").replace("w - 2", str(line - 2))


def conv_plans(source: str) -> list[tuple[NhwcConvPlan, tuple[int, ...], bool]]:
    """The products of a graph with rows of places: heights of tiles, and whether in place."""
    kernel = lower.run(one_cluster(parse(source)), "eager", {})
    dtypes = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)}
    results: list[tuple[NhwcConvPlan, tuple[int, ...], bool]] = []
    for phase in program(kernel).phases:
        s = schedule(phase, Target.for_isa("avx512"))
        there = dict(stored_products(s, dtypes))
        for c in s.products.values():
            assert isinstance(c, NhwcConvPlan)
            results.append((c, c.heights(s.local[c.columns[-1].axis]), c.item in there))
    return results


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("line", [1, 3, 4, 5, 7, 13, 14, 28, 33])
def test_every_length_of_a_row(isa: str, line: int) -> None:
    for o, c in ((16, 3), (33, 3), (48, 70), (64, 0)):
        check(
            fuse(with_row_length(plain(), line), isa),
            *random((2, 5, line, c), (o, 3, 3, c)),
        )


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("source", "line", "shapes"),
    [
        (plain(p=0), 9, ((1, 4, 9, 3), (TASK_CHANNELS + 16, 3, 3, 3))),  # two blocks of results
        (plain(p=0), 9, ((1, 4, 9, 3), (TASK_CHANNELS + 5, 3, 3, 3))),
        (plain(), WINDOW_COLUMNS + 41, ((1, 3, WINDOW_COLUMNS + 41, 2), (16, 3, 3, 2))),  # pieces
        (plain(), 30, ((1, 33, 30, 2), (16, 3, 3, 2))),  # of several lines
        (colours(), 9, ((2, 7, 9, 3), (16, 3, 3, 3))),
        (colours(s=2, u=4, v=2), 18, ((1, 9, 18, 3), (32, 4, 2, 3))),
        (colours(s=3, p=2, u=5, v=4), 32, ((1, 11, 32, 3), (16, 5, 4, 3))),
        (colours(d=2, p=2, n=4), 19, ((2, 7, 19, 4), (40, 3, 3, 4))),
        (colours(v=1, n=2), 8, ((2, 7, 8, 2), (16, 3, 1, 2))),  # nothing slides along lines
        (colours(n=1, s=2), LONG, ((1, 4, LONG, 1), (16, 3, 3, 1))),
        (
            colours(n=3, output_first=False).replace(",c,o]", ",3,o]"),
            9,
            ((2, 5, 9, 3), (3, 3, 3, 20)),
        ),
        (
            colours(n=3).replace("pad(x)", "pad(y)").replace("  v0", "  y = tanh(x)\n  v0"),
            9,
            ((2, 5, 9, 3), (20, 3, 3, 3)),
        ),
        (plain(output_first=False), 6, ((2, 5, 6, 7), (3, 3, 7, 32))),
        (plain(s=3, p=2, u=5, v=4), 32, ((1, 11, 32, 3), (16, 5, 4, 3))),
        (plain(d=2, p=2), 9, ((2, 7, 9, 3), (16, 3, 3, 3))),
        (LINE, 70, ((2, 70, 6), (16, 5, 6))),
        (LINE, 70, ((2, 70, 6), (5, 5, 6))),
        (AROUND, 11, ((2, 6, 11, 5), (20, 3, 3, 5), (20,), (2, 4, 9, 20))),
        (SHORTCUT, 9, ((1, 7, 9, 70), (48, 3, 3, 70), (1, 14, 18, 3), (48, 3))),
    ],
)
def test_every_size_stays_inside_its_arrays(
    isa: str, source: str, line: int, shapes: tuple[tuple[int, ...], ...]
) -> None:
    check(fuse(with_row_length(source, line), isa), *random(*shapes))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_rows_of_unknown_length(isa: str) -> None:
    """Tiles end with them: an odd one, higher ones of even heights and lower ones."""
    kernel, apart = fuse(plain(), isa), fuse(AROUND, isa)
    for line in (*range(1, 20), 22, 27, 29):
        check(kernel, *random((2, 3, line, 2), (33 if line % 2 else 32, 3, 3, 2)))
        shapes = (1, 4, line + 2, 2), (17, 3, 3, 2), (17,), (1, 2, line, 17)
        check(apart, *random(*shapes))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_images_of_a_batch_share_packed_weights(isa: str) -> None:
    for source, line in ((plain(), 0), (with_row_length(plain(), 7), 7)):
        ((c, *_),) = conv_plans(source)
        assert len(c.columns) == 3
        assert not c.columns[0].tap
        kernel = fuse(source, isa)
        for batch, height in ((0, 5), (1, 1), (3, 30), (41, 5), (2 * BATCH_TASK_FACTOR, 70)):
            check(kernel, *random((batch, height, line or 4, 2), (17, 3, 3, 2)))
    assert len(conv_plans(with_row_length(plain(), LEAST - 1))[0][0].columns) == 2
    assert len(conv_plans(colours())[0][0].columns) == 2  # few weights: 0.88 to 0.98 of the time


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("s", [1, 2])
@pytest.mark.parametrize("channels", [31, 32, 64, 70, 128])
def test_known_channels(isa: str, s: int, channels: int) -> None:
    """Whole blocks of them leave no rests to the loops that pack."""
    text = with_row_length(plain(s=s).replace(",c]", f",{channels}]"), 9 if s == 1 else 18)
    check(fuse(text, isa), *random((2, 5, 9 * s, channels), (20, 3, 3, channels)))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_double_precision(isa: str) -> None:
    check(
        fuse(with_row_length(plain(t="f64", s=2), 20), isa),
        *random((1, 9, 20, 3), (16, 3, 3, 3), dtype=np.float64),
    )


@pytest.mark.parametrize("s", [1, 2])
def test_padding_of_colour_images_hides_infinite_weights_only(s: int) -> None:
    x, k = random((1, 8, 10, 3), (20, 3, 3, 3))
    x[0, 7, 9, 2], x[0, 0, 0, 0], x[0, 3, 0, 1] = np.inf, np.nan, -np.inf
    k[2, 0, 0, 0] = np.inf
    kernel = fuse(with_row_length(colours(s=s), 10))
    actual, expected = kernel(x, k)[0], kernel.expected(x, k)[0]
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("source", [plain(), plain(s=2, d=1, p=2, u=5), plain(d=2, p=3)])
def test_infinite_weights_under_padding(isa: str, source: str) -> None:
    """Zeros are not multiplied above and below an image, but for weights that are not finite."""
    kernel, u = fuse(source, isa), 5 if "extent=5" in source else 3
    for height in (1, 2, 5, 8):
        for tap in (0, u - 1, u // 2):
            x, k = random((2, height, 7, 3), (20, u, 3, 3))
            k[3, tap, 0, 1], k[19, tap, 2, 2], x[-1, 0, 3, 1] = np.inf, np.nan, -np.inf
            if kernel.expected(x, k)[0].size:
                actual, expected = kernel(x, k)[0], kernel.expected(x, k)[0]
                np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
                np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


def test_which_products_leave_taps_out() -> None:
    def leaves(source: str) -> list[bool]:
        return [c.image_rows is not None for c, *_ in conv_plans(source)]

    for source in (plain(), plain(s=2), plain(d=2), colours(s=2), with_row_length(plain(), 14)):
        assert leaves(source) == [True]
    for source in (plain(p=0), AROUND, LINE, plain().replace("value=0", "value=1")):
        assert leaves(source) == [False]


def test_rows_of_colour_images_are_packed_in_their_layout() -> None:
    """Pixels with their channels are one contiguous run.

    So is all that is summed of the weights.
    """
    for source, s in ((colours(p=0), 1), (colours(s=2), 2), (with_row_length(colours(s=2), 20), 2)):
        kernel = lower.run(one_cluster(parse(source)), "eager", {})
        (c,) = uprights(kernel, Target.for_isa("avx512"))
        assert c.right_order()[-1] == c.row_axis
        assert c.pitch == 3 * s
        (image,) = (i for i in dependencies(c.right, {c.row_axis}) if isinstance(i, Load))
        for item, along in ((c.left, c.flat), (image, c.row_axis)):
            assert isinstance(item, Load)
            assert coefficient(item.access.offset, along) == 1
            assert all(coefficient(e, along) in (0, 1) for e, _ in item.access.limits)


def test_tiles_are_as_even_as_may_be() -> None:
    for line in range(LEAST, 100):
        ((_, heights, _),) = conv_plans(with_row_length(plain(), line))
        assert sum(heights) == line
        assert max(heights) <= 14
        assert max(heights) - min(heights) <= 1
        assert list(heights) == sorted(heights, reverse=True)
        assert len(heights) == -(-line // 14)
    assert (
        [h for _, h, _ in conv_plans(plain())]
        == [h for _, h, _ in conv_plans(with_row_length(plain(), 3))]
        == [()]
    )


def test_which_products_are_stored_in_place() -> None:
    assert [there for *_, there in conv_plans(with_row_length(plain(), 9))] == [True]
    assert [there for *_, there in conv_plans(with_row_length(LINE, 29))] == [True]
    assert [there for *_, there in conv_plans(plain())] == [True]
    assert [there for *_, there in conv_plans(with_row_length(plain(), 3))] == [False]
    assert [there for *_, there in conv_plans(with_row_length(AROUND, 9))] == [False]


def panelled(line: int, columns: int, width: int, s: int = 1) -> str:
    """A convolution whose weights lie in panels."""
    count = -(-columns // width)
    return f"""graph f(x: f32[b,h,{line},c], p: f32[3,3,{count},c,{width}]) {{
  t = permute(p) {{perm=(0, 1, 3, 2, 4)}}
  r = reshape(t) {{shape=(3, 3, c, {count * width})}}
  k = slice(r) {{starts=(0, 0, 0, 0), sizes=(3, 3, c, {columns}), steps=(1, 1, 1, 1)}}
  v0 = pad(x) {{low=(0, 1, 1, 0), high=(0, 1, 1, 0), value=0}}
  v1 = window(v0) {{axis=1, extent=3, step={s}, dilation=1}}
  v2 = window(v1) {{axis=2, extent=3, step={s}, dilation=1}}
  v3 = contract(v2, k) {{spec="b,h,w,c,u,v; u,v,c,o -> b,h,w,o"}}
  return v3
}}"""


def uprights(kernel: Kernel, target: Target) -> list[NhwcConvPlan]:
    result = (c for p in program(kernel).phases for c in schedule(p, target).products.values())
    return [c for c in result if isinstance(c, NhwcConvPlan)]


WIDTH = {"avx512": 32, "avx2": 16, "portable": 8}


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("columns", [32, 33, 64, 250])
def test_packed_weights_are_read_in_place(isa: str, columns: int) -> None:
    for line, s in ((9, 1), (2, 1), (24, 2)):
        width = WIDTH[isa]
        conv_plans = fuse(panelled(line, columns, width, s), isa)
        (c,) = uprights(conv_plans.kernel, conv_plans.target)
        assert c.prepacked == (columns > width)  # one panel is plain rows
        for channels in (0, 3, 70):
            count = -(-columns // width)
            check(conv_plans, *random((2, 5, line, channels), (3, 3, count, channels, width)))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_few_channels_of_weights_in_panels(isa: str) -> None:
    text = panelled(9, 40, WIDTH[isa]).replace("c]", "3]").replace(",c,", ",3,", 1)
    text = text.replace(" c, ", " 3, ").replace(",9,c", ",9,3")
    conv_plans = fuse(text, isa)
    (c,) = uprights(conv_plans.kernel, conv_plans.target)
    assert c.prepacked
    assert c.few_channels == 3
    check(conv_plans, *random((2, 5, 9, 3), (3, 3, -(-40 // WIDTH[isa]), 3, WIDTH[isa])))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("output_first", [True, False])
def test_which_weights_would_be_prepacked(isa: str, output_first: bool) -> None:
    """Weights are prepacked in torch's layout and with their own axis last."""
    text = plain(output_first=output_first).replace("k: f32[o,3,3,c]", "k: f32[40,3,3,64]")
    text = text.replace("k: f32[3,3,c,o]", "k: f32[3,3,64,40]").replace("b,h,w,c]", "b,h,w,64]")
    conv_plans = fuse(text, isa)
    ((panel, rows),) = panels(conv_plans.kernel, conv_plans.target, frozenset({"k", "x"}))
    across, along = (0, 3) if output_first else (3, 2)
    assert panel == Panel("k", across, along, WIDTH[isa])
    assert evaluate(rows, {"b": 2, "h": 7, "w": 5}) == 2 * 7 * 5
    kernel = verify(read_panels(conv_plans.kernel, panel))
    assert [c.prepacked for c in uprights(kernel, conv_plans.target)] == [True]
