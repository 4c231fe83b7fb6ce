"""NCHW convolutions computed in NHWC: tiles are transposed in the packer and on store."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import check, random
from tests.codegen.llvm.guard_pages import slowdown
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse_graph, one_cluster

from smelt import lower
from smelt.codegen.build import panels
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule import conv_plan
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.conv_nhwc import TASK_CHANNELS, NhwcConvPlan
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan
from smelt.graph.text import parse
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import read_panels
from smelt.kernel.verify import verify
from smelt.machine.blocks import WINDOW_COLUMNS
from smelt.machine.target import Target

PLAIN = """graph f(x: f32[b,{c},h,w], k: f32[{o},{c},{u},{v}]) {{
  v0 = pad(x) {{low=(0, 0, {p}, {p}), high=(0, 0, {p}, {p}), value=0}}
  v1 = window(v0) {{axis=2, extent={u}, step={s}, dilation={d}}}
  v2 = window(v1) {{axis=3, extent={v}, step={s}, dilation={d}}}
  v3 = contract(v2, k) {{spec="b,c,h,w,u,v; o,c,u,v -> {to}"}}
  return v3
}}"""
LINE = """graph f(x: f32[b,6,n], k: f32[20,6,5]) {
  v0 = exp(x)
  v1 = window(v0) {axis=2, extent=5, step=1, dilation=2}
  v2 = contract(v1, k) {spec="b,c,n,u; o,c,u -> b,o,n"}
  return v2
}"""
AROUND = """graph f(x: f32[b,9,h,w], k: f32[20,9,3,3], g: f32[20,1,1], r: f32[b,20,h - 2,w - 2]) {
  v0 = exp(x)
  v1 = window(v0) {axis=2, extent=3}
  v2 = window(v1) {axis=3, extent=3}
  v3 = contract(v2, k) {spec="b,c,h,w,u,v; o,c,u,v -> b,o,h,w"}
  v4 = mul(v3, g)
  v5 = add(v4, r)
  v6 = tanh(v5)
  return v6
}"""
FIRST, LAST = "b,o,h,w", "b,h,w,o"


def plain(
    o: int, c: int, p: int = 1, s: int = 1, d: int = 1, u: int = 3, v: int = 3, to: str = FIRST
) -> str:
    """A convolution with channels first, of the image at least."""
    return PLAIN.format(o=o, c=c, p=p, s=s, d=d, u=u, v=v, to=to)


def lasting(o: int, c: int, **more: int) -> str:
    """One of an image with channels last, whose results have them first."""
    text = plain(o, c, **more)
    return (
        text.replace(f"b,{c},h,w]", f"b,h,w,{c}]")
        .replace("pad(x)", "pad(y)")
        .replace("  v0", "  y = permute(x) {perm=(0, 3, 1, 2)}\n  v0")
    )


@pytest.fixture
def always_nhwc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use NHWC wherever it is possible, with weights packed by each task."""
    monkeypatch.setattr(conv_plan, "MAX_TRANSPOSE_SHARE", 1e9)
    choose, form = conv_plan.choose_conv_layout, conv_plan.NHWC_VARIANT
    monkeypatch.setattr(
        conv_plan, "choose_conv_layout", lambda c, target, _: choose(c, target, form)
    )


def conv_kernel(source: str, isa: str) -> SingleKernel:
    """A graph as one kernel."""
    kernel = fuse_graph(parse(source), isa, usual=True)
    assert [type(c) for c in products(kernel.kernel, kernel.target)] == [NhwcConvPlan]
    return kernel


def products(kernel: Kernel, target: Target) -> list[object]:
    """What the products of a kernel become."""
    return [c for p in program(kernel).phases for c in schedule(p, target).products.values()]


@pytest.mark.usefixtures("always_nhwc")
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        (plain(4, 5), ((1, 5, 5, 7), (4, 5, 3, 3))),
        (plain(2, 8), ((2, 8, 1, 1), (2, 8, 3, 3))),
        (plain(13, 40), ((2, 40, 4, 5), (13, 40, 3, 3))),  # two blocks of channels
        (plain(33, 70), ((1, 70, 3, 4), (33, 70, 3, 3))),  # three, the last one short
        (plain(17, 6), ((1, 6, 30, 33), (17, 6, 3, 3))),  # several vectors of a line
        (plain(2, 5), ((1, 5, 2, WINDOW_COLUMNS + 40), (2, 5, 3, 3))),  # and pieces of one
        (plain(TASK_CHANNELS + 5, 7, p=0), ((1, 7, 4, 5), (TASK_CHANNELS + 5, 7, 3, 3))),
        (plain(6, 9, s=2), ((1, 9, 8, 11), (6, 9, 3, 3))),
        (plain(5, 16, s=3, p=2, u=5, v=4), ((1, 16, 11, 12), (5, 16, 5, 4))),
        (plain(4, 5, d=2, p=2), ((2, 5, 7, 9), (4, 5, 3, 3))),
        (plain(3, 33, u=7, v=7, p=3), ((1, 33, 9, 20), (3, 33, 7, 7))),  # blocks of few channels
        (plain(3, 9, p=2), ((2, 9, 0, 5), (3, 9, 3, 3))),
        (plain(20, 9, to=LAST), ((2, 9, 5, 18), (20, 9, 3, 3))),
        (plain(20, 9, to=LAST, s=2), ((2, 9, 5, 18), (20, 9, 3, 3))),
        (lasting(20, 9), ((2, 5, 18, 9), (20, 9, 3, 3))),
        (lasting(37, 70, s=2), ((1, 5, 18, 70), (37, 70, 3, 3))),
        (plain(20, 3), ((2, 3, 7, 9), (20, 3, 3, 3))),  # colours
        (plain(33, 3, s=2, u=7, v=7, p=3), ((1, 3, 19, 40), (33, 3, 7, 7))),
        (plain(37, 4, d=2, p=2), ((1, 4, 7, 9), (37, 4, 3, 3))),
        (plain(37, 2, s=3, u=4, v=5, to=LAST), ((2, 2, 13, 17), (37, 2, 4, 5))),
        (lasting(20, 3), ((2, 5, 18, 3), (20, 3, 3, 3))),
        (LINE, ((2, 6, 70), (20, 6, 5))),
        (LINE.replace("6", "3"), ((2, 3, 70), (20, 3, 5))),
        (LINE, ((1, 6, WINDOW_COLUMNS + 30), (20, 6, 5))),
        (AROUND, ((2, 9, 6, 7), (20, 9, 3, 3), (20, 1, 1), (2, 20, 4, 5))),
    ],
)
def test_every_size_stays_inside_its_arrays(
    isa: str, source: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    check(conv_kernel(source, isa), *random(*shapes))


@pytest.mark.clock
@pytest.mark.usefixtures("always_nhwc")
@pytest.mark.parametrize("isa", RUNNABLE)
def test_channels_are_stored_as_fast_before_memory_that_is_not_mapped(isa: str) -> None:
    """A masked store there takes hundreds of cycles, even without lanes."""
    kernel = conv_kernel(plain(17, 5), isa)
    image, weights, results = random((1, 5, 28, 28), (17, 5, 3, 3), (64, 28, 28))
    assert slowdown(lambda r: kernel(image, weights, out=[r[None]]), results, 17) < 1.5


@pytest.mark.usefixtures("always_nhwc")
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("line", [1, 3, 4, 7, 14, 15, 16, 17, 33])
def test_lines_of_known_length(isa: str, line: int) -> None:
    for o, c, s in ((20, 9, 1), (64, 32, 1), (16, 40, 2), (32, 3, 2)):
        source = plain(o, c, s=s).replace("h,w]", f"{line},{line}]", 1)
        check(conv_kernel(source, isa), *random((2, c, line, line), (o, c, 3, 3)))


@pytest.mark.usefixtures("always_nhwc")
@pytest.mark.parametrize("isa", RUNNABLE)
def test_tasks_with_pieces_of_a_known_line_that_differ(isa: str) -> None:
    """The last piece is two places shorter: a vector less, and all but one of the next."""
    for c in (5, 3):
        line = 3 * (WINDOW_COLUMNS - 1) - 2
        source = plain(4, c).replace("h,w]", f"2,{line}]", 1)
        check(conv_kernel(source, isa), *random((1, c, 2, line), (4, c, 3, 3)))


@pytest.mark.usefixtures("always_nhwc")
def test_padding_hides_infinite_weights_only() -> None:
    for source in (plain(3, 5), plain(3, 5).replace("h,w]", "5,6]", 1)):
        x, k = random((1, 5, 5, 6), (3, 5, 3, 3))
        x[0, 1, 4, 5] = np.inf
        x[0, 0, 0, 0] = np.nan
        k[2, 0, 0, 0] = np.inf
        kernel = conv_kernel(source, RUNNABLE[0])
        actual, expected = kernel(x, k)[0], kernel.expected(x, k)[0]
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


def test_what_is_saved_decides() -> None:
    """Packed weights and enough products per transposed element decide."""
    target = Target.for_isa("avx512")
    for o, c, u, nhwc in ((64, 64, 3, True), (64, 8, 3, False), (64, 256, 1, False)):
        text = plain(o, c, u=u, v=u, p=u // 2)
        kernel = lower.run(one_cluster(parse(text)), "eager", {})
        (before,) = products(kernel, target)  # its weights are transposed as well
        assert isinstance(before, NhwcConvPlan) == nhwc
        apart = text.replace(f"k: f32[{o},{c},{u},{u}]", f"k: f32[{c},{u},{u},{o}]")
        apart = apart.replace("o,c,u,v ->", "c,u,v,o ->")
        other = lower.run(one_cluster(parse(apart)), "eager", {})
        assert not any(isinstance(c, NhwcConvPlan) for c in products(other, target))
        actual = panels(kernel, target, frozenset({"k"}))
        assert bool(actual) == nhwc
        if actual:
            ((panel, _),) = actual
            (after,) = products(verify(read_panels(kernel, panel)), target)
            assert isinstance(after, NhwcConvPlan)
            assert after.prepacked and after.transposes_result and after.transposes_image


def test_double_precision_stays() -> None:
    kernel = lower.run(one_cluster(parse(plain(64, 64).replace("f32", "f64"))), "eager", {})
    (c,) = products(kernel, Target.for_isa("avx512"))
    assert isinstance(c, ConvPlan)
    assert not panels(kernel, Target.for_isa("avx512"), frozenset({"k"}))


def test_few_colours_need_no_panels() -> None:
    kernel = lower.run(one_cluster(parse(plain(64, 3, s=2, u=7, v=7, p=3))), "eager", {})
    (c,) = products(kernel, Target.for_isa("avx512"))
    assert isinstance(c, NhwcConvPlan)
    assert c.few_channels == 3
    assert c.transposes_result
    assert c.transposes_image


def test_taps_with_positions_of_their_own_are_not_transposed() -> None:
    """Variants for short rows are not transposed.

    They pack the input of each tap apart, and taps along the row last: their vectors are not pixels
    of the row.
    """
    kernel = lower.run(one_cluster(parse(plain(96, 16, s=2))), "eager", {})
    (phase,) = program(kernel).phases
    nests = schedule(phase, Target.for_isa("avx512"), "narrow").products.values()
    assert nests
    assert not any(isinstance(c, NhwcConvPlan) and c.transposes_result for c in nests)
