"""Depthwise convolutions fused into the packer of a pointwise product."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.conv_cases import check, products, random
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

import smelt as sm
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan

BETWEEN = {
    "numbers": "v4 = mul(v3, 2.0:{t})\n  v8 = max(v4, 0.25:{t})",
    "norm": "v4 = mul(v3, g)\n  v5 = add(v4, a)\n  v6 = max(v5, 0.0:{t})\n  v8 = min(v6, 6.0:{t})",
    "root": "v4 = sub(v3, a)\n  v5 = exp(g)\n  v6 = sqrt(v5)\n  v7 = div(v4, v6)\n"
    "  v8 = max(v7, 0.5:{t})",
    "residual": "v4 = reshape(a) {{shape=(1, 1, 1, c)}}\n  v5 = add(v3, v4)\n"
    "  v6 = mul(v5, v5)\n  v7 = mul(v6, g)\n  v8 = add(v7, v3)",
}
"""What the product's image is made of, beside the stencil's sums."""
PAIR = """graph f(x: {t}[b,h,w,c], k: {t}[c,{u},{u}], p: {t}[o,c], g: {t}[c], a: {t}[c]) {{
  v0 = pad(x) {{low=(0, {p}, {p}, 0), high=(0, {p}, {p}, 0), value=0}}
  v1 = window(v0) {{axis=1, extent={u}, step={s}, dilation={d}}}
  v2 = window(v1) {{axis=2, extent={u}, step={s}, dilation={d}}}
  v3 = contract(v2, k) {{spec="b,h,w,c,u,v; c,u,v -> b,h,w,c", packed=true}}
  BETWEEN
  v9 = contract(v8, p) {{spec="b,h,w,c; o,c -> b,h,w,o"}}
  v10 = abs(v9)
  return v10
}}"""
ADDED = """graph f(x: f32[b,h,w,c], k: f32[c,3,3], p: f32[o,c], r: f32[b,h - 2,w - 2,c]) {
  v1 = window(x) {axis=1, extent=3}
  v2 = window(v1) {axis=2, extent=3}
  v3 = contract(v2, k) {spec="b,h,w,c,u,v; c,u,v -> b,h,w,c", packed=true}
  v4 = add(v3, r)
  v5 = contract(v4, p) {spec="b,h,w,c; o,c -> b,h,w,o"}
  return v5
}"""
"""What stands between differs from place to place."""
BESIDE = ADDED.replace("return v5", "return v5, v4")
"""What the product packs is a result, too."""


def pair(
    between: str = "norm", p: int = 1, s: int = 1, d: int = 1, u: int = 3, t: str = "f32"
) -> str:
    graph = PAIR.replace("BETWEEN", BETWEEN[between])
    if between == "numbers":
        graph = graph.replace(", g: {t}[c], a: {t}[c]", "")
    return graph.format(p=p, s=s, d=d, u=u, t=t)


def arrays(
    image: tuple[int, int, int, int], o: int, u: int = 3, dtype: type = np.float32
) -> list[np.ndarray]:
    c = image[-1]
    return random(image, (c, u, u), (o, c), (c,), (c,), dtype=dtype)


@pytest.mark.parametrize(
    ("between", "options", "images"),
    [
        ("norm", {}, [(1, 7, 7, 130, 33), (3, 1, 2, 17, 5), (2, 5, 13, 1, 1), (0, 4, 4, 3, 3)]),
        ("norm", {"s": 2}, [(1, 9, 14, 40, 35), (2, 1, 1, 16, 16), (1, 2, 29, 3, 64)]),
        ("root", {"u": 5, "p": 2}, [(1, 6, 15, 24, 40), (2, 3, 1, 5, 7)]),
        ("numbers", {"d": 2, "p": 3}, [(1, 8, 6, 33, 34), (2, 4, 3, 2, 2)]),
        ("norm", {"p": 4}, [(1, 1, 3, 20, 9), (1, 12, 2, 3, 3)]),
        ("residual", {"p": 0}, [(2, 5, 19, 150, 3), (1, 3, 3, 9, 1)]),
        ("numbers", {"t": "f64"}, [(2, 6, 17, 21, 19)]),
    ],
)
def test_pairs(between: str, options: dict[str, int | str], images: list[tuple[int, ...]]) -> None:
    kernel = fuse(pair(between, **options))
    dtype = np.float64 if options.get("t") == "f64" else np.float32
    for b, h, w, c, o in images:
        inputs = arrays((b, h, w, c), o, int(options.get("u", 3)), dtype)
        check(kernel, *inputs[: len(kernel.kernel.inputs)])


@pytest.mark.parametrize("isa", [i for i in RUNNABLE if i != "avx512"])
def test_other_machines(isa: str) -> None:
    check(fuse(pair(), isa), *arrays((1, 5, 6, 19), 12))


def test_position_dependent_inputs_are_packed_from_scratch() -> None:
    kernel = fuse(ADDED)
    for b, h, w, c, o in ((2, 7, 16, 140, 33), (1, 3, 3, 1, 1), (1, 4, 9, 16, 2)):
        check(kernel, *random((b, h, w, c), (c, 3, 3), (o, c), (b, h - 2, w - 2, c)))


def test_which_products_are_taken_together() -> None:
    assert products(pair()) == products(ADDED) == [DepthwisePlan, NhwcConvPlan]
    assert DepthwisePlan not in products(BESIDE)


def test_padding_and_nan() -> None:
    """Padding counts as 0, for NaN weights too.

    NaN and inf reach only the windows that hold them.
    """
    kernel = fuse(pair(u=3, p=2))
    x, k, p, g, a = arrays((2, 5, 9, 18), 20)
    x[0, 2, 3, 4], x[1, 0, 0, 17], x[1, 4, 8, 0], k[7, 0, 2] = np.nan, np.inf, -np.inf, np.inf
    with np.errstate(all="ignore"):
        expected = kernel.expected(x, k, p, g, a)[0]
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, [x, k, p, g, a], at_end=at_end)
            assert np.isnan(expected).any() and not np.isnan(expected).all()
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("c", "h", "w", "o", "stride", "dilation", "taps"),
    [(64, 20, 20, 32, 1, 1, 3), (17, 30, 28, 40, 2, 1, 5), (96, 9, 30, 24, 1, 2, 3)],
)
def test_the_planner_foresees_it(
    c: int, h: int, w: int, o: int, stride: int, dilation: int, taps: int
) -> None:
    x, d, p = random((2, h, w, c), (c, 1, taps, taps), (o, c, 1, 1))

    def code(x: object, d: object, p: object) -> object:
        last = sm.permute_dims(x, (0, 3, 1, 2))
        inner = sm.nn.conv(last, d, padding=2, stride=stride, dilation=dilation, groups=c)
        return sm.permute_dims(sm.nn.conv(sm.nn.relu(inner), p), (0, 2, 3, 1))

    report = sm.explain(sm.jit(code), *map(sm.asarray, (x, d, p)))
    assert [k.text.count("dot(") for k in report.kernels] == [2]
