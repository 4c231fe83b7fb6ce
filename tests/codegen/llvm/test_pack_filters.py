"""Filters with adjacent taps are packed for channels-last convolutions by tile transposes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import check, random
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster
from tests.codegen.llvm.test_implicit_gemm_nhwc import plain

from smelt import lower
from smelt.codegen.llvm.prepacked import prepackable_panels
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.conv_nhwc import TASK_CHANNELS, NhwcConvPlan, contiguous_filters
from smelt.graph.text import parse
from smelt.machine.blocks import WINDOW_COLUMNS
from smelt.machine.target import Target


def runs(axes: str = "o,c,u,v", **more: Any) -> str:
    """A convolution whose weights lie so."""
    text, sizes = plain(**more), {"u": more.get("u", 3), "v": more.get("v", 3)}
    spelled = ",".join(str(sizes.get(a, a)) for a in axes.split(","))
    return text.replace(f"[o,{sizes['u']},{sizes['v']},c]", f"[{spelled}]").replace("o,u,v,c", axes)


def halves(t: str) -> str:
    """Spell the convolution with half-precision weights, which are multiplied as float32."""
    text = runs().replace("k: f32", f"k: {t}")
    return text.replace("  v0 =", "  w = cast(k) {dtype=f32}\n  v0 =").replace("(v2, k)", "(v2, w)")


GROUPS = """graph f(x: f32[b,h,w,2,c], k: f32[2,o,c,3,3]) {
  v1 = window(x) {axis=1, extent=3}
  v2 = window(v1) {axis=2, extent=3}
  v3 = contract(v2, k) {spec="b,h,w,g,c,u,v; g,o,c,u,v -> b,h,w,g,o"}
  return v3
}"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        (runs(), ((1, 5, 7, 3), (4, 3, 3, 3))),  # 27 positions of a run: squares that overlap
        (runs(), ((2, 1, 1, 1), (1, 1, 3, 3))),  # 9: less than a vector
        (runs(), ((2, 4, 5, 40), (13, 40, 3, 3))),  # two blocks of channels
        (runs(), ((1, 3, 4, 33), (33, 33, 3, 3))),  # the last one of one channel
        (runs(), ((1, 3, 2, 0), (3, 0, 3, 3))),  # sums of nothing
        (runs(), ((0, 3, 2, 4), (3, 4, 3, 3))),
        (runs(), ((1, 14, 15, 70), (50, 70, 3, 3))),
        (runs(p=0), ((1, 4, 5, 3), (TASK_CHANNELS + 5, 3, 3, 3))),
        (runs(), ((1, 2, WINDOW_COLUMNS + 40, 2), (17, 2, 3, 3))),
        (runs(s=2), ((1, 8, 11, 20), (5, 20, 3, 3))),
        (runs(u=5, v=5, p=2), ((1, 6, 7, 18), (35, 18, 5, 5))),
        (runs(u=7, v=7, p=3), ((3, 6, 7, 9), (3, 9, 7, 7))),  # 49 taps: no whole squares
        (runs(u=2, v=4, p=0), ((1, 5, 6, 19), (48, 19, 2, 4))),
        (runs("o,c,v,u", u=2, v=4, p=0), ((1, 5, 6, 19), (31, 19, 4, 2))),  # lines of the other way
        (runs("c,u,v,o"), ((1, 5, 7, 20), (20, 3, 3, 33))),  # none
        (runs(u=1, v=3), ((1, 5, 7, 20), (33, 20, 1, 3))),
        (GROUPS, ((1, 5, 6, 2, 7), (2, 35, 7, 3, 3))),
    ],
)
def test_every_size_stays_inside_its_arrays(
    isa: str, source: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    check(fuse(source, isa), *random(*shapes))


@pytest.mark.parametrize("isa", RUNNABLE)
def test_types(isa: str) -> None:
    check(
        fuse(runs(t="f64", s=2), isa),
        *random((1, 9, 10, 20), (37, 20, 3, 3), dtype=np.float64),
    )
    x, k = random((1, 9, 10, 20), (37, 20, 3, 3))
    check(fuse(halves("f16"), isa), x, k.astype(np.float16))


def test_values_that_are_no_numbers_stay_where_they_are() -> None:
    x, k = random((1, 6, 7, 20), (40, 20, 3, 3))
    k[3, 19, 2, 2], k[39, 0, 0, 1] = np.inf, np.nan
    x[0, 2, 3, 4] = -np.inf
    kernel = fuse(runs())
    actual, expected = kernel(x, k)[0], kernel.expected(x, k)[0]
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


def test_which_weights_are_packed_so() -> None:
    target = Target.for_isa("avx512")

    def is_transposed(source: str) -> bool:
        kernel = lower.run(one_cluster(parse(source)), "eager", {})
        (built,) = [
            c for p in program(kernel).phases for c in schedule(p, target).products.values()
        ]
        assert isinstance(built, NhwcConvPlan)
        packed = prepackable_panels(kernel, target, frozenset({"k"}), open_sizes=True)
        squares = contiguous_filters(built) is not None
        assert not (squares and packed)  # or a phase before would pack them by gathers
        return squares

    assert is_transposed(runs()) and is_transposed(runs("o,c,v,u", u=2, v=4, p=0))
    assert not is_transposed(plain()) and not is_transposed(runs("c,u,v,o"))
