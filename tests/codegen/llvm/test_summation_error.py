"""Long sums of products have a bounded rounding error in every variant."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse
from tests.codegen.llvm.test_contractions import matrices
from tests.codegen.llvm.test_depthwise import FIRST, LAST
from tests.codegen.llvm.test_dot_product import MORE, source
from tests.codegen.llvm.variants import forced

import smelt as sm
from smelt.machine.blocks import LONG_SUM, RUN

LARGE = 1 << 24
"""A product to which no float32 smaller than 2 can be added."""
MOST = 2 * RUN
"""Products that are added one after the other, at most: blocks of windows are longer than a run,
and so are lines that short vectors run along."""
SHAPES = (
    (1, 7),
    (1, 300),
    (4, 300),
    (7, 5),
    (16, 16),
    (17, 64),
    (64, 8),
    (64, 200),
    (129, 2),
    (150, 70),
    (200, 140),
)
LAYOUTS = ("m,k; k,n -> m,n", "k,m; k,n -> m,n", "m,k; n,k -> m,n", "k,m; n,k -> m,n")
FORMS = ("panels", "k_blocked", "small_m", "small", "rows", "columns")


def filled(kernel: SingleKernel, sizes: dict[str, int], large: bool) -> list[np.ndarray]:
    """Operands that are all 1; of those at the first summed position their product is LARGE."""
    results: list[np.ndarray] = []
    for node in kernel.graph.inputs:
        axes = [str(d) for d in node.type.shape]
        array = np.ones([sizes[a] for a in axes], node.type.dtype.numpy)
        np.moveaxis(array, axes.index("k"), 0)[0] = LARGE**0.5 if large else 1
        results.append(array)
    return results


def loses_little(kernel: SingleKernel, sizes: dict[str, int]) -> None:
    """Test that the error is at most that of one run plus one rounding for each run.

    Ones after a large product lose those of its own run at most; equal products, which all round in
    one direction, lose those of a run and of each run.
    """
    (actual,) = kernel(*filled(kernel, sizes, large=True))
    exact = LARGE + sizes["k"] - 1
    assert np.abs(actual - float(exact)).max() <= MOST + sizes["k"] // RUN, sizes
    arrays = [x * np.float32(f) for x, f in zip(filled(kernel, sizes, large=False), (0.1, 0.3))]
    (actual,) = kernel(*arrays)
    equal = sizes["k"] * float(arrays[0].flat[0]) * float(arrays[1].flat[0])
    runs = sizes["k"] / 96 + 1  # blocks of the form for few rows are shorter
    assert np.abs(actual / equal - 1).max() <= (MOST + runs) * 2.0**-24, sizes


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("spec", LAYOUTS)
def test_whatever_form_serves_a_product(spec: str, isa: str) -> None:
    kernel = fuse(matrices("f32", spec), isa)
    assert len(kernel.built.functions) == 1  # nothing is split
    for (m, n), k in product(SHAPES, (4000, 2 * LONG_SUM)):
        loses_little(kernel, {"m": m, "n": n, "k": k})


@pytest.mark.parametrize("spec", LAYOUTS)
@pytest.mark.parametrize("variant", FORMS)
def test_every_form(variant: str, spec: str) -> None:
    isa = RUNNABLE[0]
    names = [name for name, *_ in fuse(matrices("f32", spec), isa).variants]
    if variant not in names:
        pytest.skip("no such form")
    k = 384 if variant == "small" else 4096 if variant == "panels" else 9000
    for m, n in ((3, 200), (64, 70)):
        if variant not in ("rows", "columns") or m == 3:
            m, n = (n, m) if variant == "columns" else (m, n)
            loses_little(forced(matrices("f32", spec), isa, variant), {"m": m, "n": n, "k": k})


@pytest.mark.parametrize("isa", RUNNABLE)
def test_parts_of_a_split_sum(isa: str) -> None:
    kernel = fuse(matrices("f32", LAYOUTS[0]), isa, k=2 * LONG_SUM)
    assert len(kernel.built.functions) == 2
    for m, n in ((1, 40), (20, 33), (64, 64)):
        loses_little(kernel, {"m": m, "n": n, "k": 3 * LONG_SUM})


@pytest.mark.parametrize(("m", "n"), [(1, 40), (3, 1), (8, 1), (16, 5), (40, 16)])
def test_sizes_that_are_known(m: int, n: int) -> None:
    """Right operands that stay in the first cache are never packed, however long."""
    code = matrices("f32", LAYOUTS[0]).replace("m,k", f"{m},9000").replace("k,n", f"9000,{n}", 1)
    code = code.replace(f"9000,{n} -> m,n", "k,n -> m,n").replace(f"{m},9000; ", "m,k; ")
    x, y = np.ones((m, 9000), "f4"), np.ones((9000, n), "f4")
    x[:, 0] = y[0] = LARGE**0.5
    assert np.abs(fuse(code)(x, y)[0] - float(LARGE + 8999)).max() <= MOST + 9000 // RUN


@pytest.mark.parametrize("spec", LAYOUTS)
def test_products_of_bfloat16_are_added_in_float32(spec: str) -> None:
    """However long: what is lost is what rounding the result loses."""
    kernel, more = fuse(source("bf16 bf16", spec), features=MORE), 1 << 19
    for m, n in ((1, 16), (3, 16), (40, 8)):
        (actual,) = kernel(*filled(kernel, {"m": m, "n": n, "k": 1 + more}, large=True))
        assert np.all(actual.astype("f8") == LARGE + more), (m, n)


@pytest.mark.parametrize("half", ["bf16", "f16"])
@pytest.mark.parametrize("spec", LAYOUTS[::2])
def test_short_numbers_that_are_converted(spec: str, half: str) -> None:
    code = (
        matrices(half, spec)
        .replace("contract(x, y)", "contract(a, b)")
        .replace(
            "{\n",
            """{
      a = cast(x) {dtype=f32}
      b = cast(y) {dtype=f32}
    """,
            1,
        )
    )
    kernel = fuse(code)
    for m, n in ((1, 70), (3, 40), (60, 40), (200, 140)):
        sizes = {"m": m, "n": n, "k": 9000}
        (actual,) = kernel(*filled(kernel, sizes, large=True))
        assert np.abs(actual - float(LARGE + 8999)).max() <= MOST + 9000 // RUN, sizes


@pytest.mark.parametrize("code", [FIRST, LAST])
def test_large_windows_of_one_channel(code: str) -> None:
    side = 31
    kernel = fuse(code.format(t="f32", u=side, v=side, p=0, s=1, d=1))
    shape = (1, 3, 33, 40) if code == FIRST else (1, 33, 40, 3)
    x, w = np.ones(shape, "f4"), np.ones((3, side, side), "f4")
    w[:, 0, 0] = LARGE
    (actual,) = kernel(x, w)
    assert np.abs(actual - float(LARGE + side * side - 1)).max() <= MOST


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("channels", [8, 64])
def test_windows_over_many_channels(channels: int, layout: str) -> None:
    summed, side = 500, 9
    x, w = np.ones((2, summed, side, side), "f4"), np.ones((channels, summed, 3, 3), "f4")
    w[:, 0, 0, 0] = LARGE

    def convolved(x: sm.Array, w: sm.Array) -> sm.Array:
        x = sm.permute_dims(x, (0, 3, 1, 2)) if layout == "last" else x
        actual = sm.nn.conv(x, w)
        return sm.permute_dims(actual, (0, 2, 3, 1)) if layout == "last" else actual

    inputs = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "last" else x
    actual = np.asarray(sm.jit(convolved)(inputs, w))
    assert np.abs(actual - float(LARGE + 9 * summed - 1)).max() <= MOST + 9 * summed // RUN


def test_the_gradient_of_weights_sums_all_pixels() -> None:
    x, w = np.ones((8, 3, 60, 60), "f4"), np.ones((5, 3, 3, 3), "f4")
    x[0, :, 0, 0] = LARGE
    (actual,) = sm.jit(lambda x, w: (sm.grad(lambda w: sm.sum(sm.nn.conv(x, w)))(w),))(x, w)
    places = 8 * 58 * 58
    assert (
        np.abs(np.asarray(actual)[:, :, 0, 0] - float(LARGE + places - 1)).max() <= MOST + 2 * 500
    )
    assert np.all(np.asarray(actual)[:, :, 1, 1] == places)
