"""Products that code generation could not block together are not fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fusion.formulas import MACHINE

import smelt as sm
from smelt import knobs
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.compiler import driver
from smelt.kernel.ir import Dot
from smelt.kernel.walk import statements, values_of, visit
from smelt.machine.blocks import WINDOW_ROWS

HEADS, LONG, DIM = 8, 1024, 64


def scores(q: Any, k: Any) -> Any:
    return q @ sm.permute_dims(k, (0, 2, 1)) * 0.125


def mixed_before(q: Any, k: Any, v: Any, m: Any) -> Any:
    return sm.nn.softmax(sm.tensordot(m, scores(q, k), axes=((1,), (0,))), axis=-1) @ v


def mixed_after(q: Any, k: Any, v: Any, m: Any) -> Any:
    w = sm.nn.softmax(scores(q, k), axis=-1)
    return sm.tensordot(m, w, axes=((1,), (0,))) @ v


def bias_of_pairs(q: Any, k: Any, v: Any, pairs: Any, w: Any) -> Any:
    """Each head's bias is a product of what is known of a pair of positions."""
    bias = sm.permute_dims(pairs @ w, (2, 0, 1))
    return sm.nn.softmax(scores(q, k) + bias, axis=-1) @ v


def plain(q: Any, k: Any, v: Any) -> Any:
    return sm.nn.softmax(scores(q, k), axis=-1) @ v


ROWS = (HEADS, LONG, DIM)
PROGRAMS: tuple[tuple[Callable[..., Any], tuple[tuple[int, ...], ...]], ...] = (
    (plain, ()),
    (mixed_before, ((HEADS, HEADS),)),
    (mixed_after, ((HEADS, HEADS),)),
    (bias_of_pairs, ((LONG, LONG, 32), (32, HEADS))),
)


@pytest.mark.parametrize(("code", "more"), PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))
def test_long_products_of_a_plan_are_blocked(
    code: Callable[..., Any], more: tuple[tuple[int, ...], ...]
) -> None:
    kernels = [
        k for k in compiled_program(code, (ROWS, ROWS, ROWS, *more)).kernels if k is not None
    ]
    dots = [
        v
        for k in kernels
        for s in statements(k)
        for root in values_of(s)
        for v in visit(root)
        if isinstance(v, Dot)
    ]
    blocked = [c for k in kernels for p in program(k).phases for c in schedule(p, MACHINE).blocked]
    mixing = code is mixed_after  # over eight heads only, beside the softmax that it reads
    assert len(dots) - mixing <= len(blocked) >= 2


def compiled_program(
    code: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> driver.Compiled:
    lowered = sm.jit(code).lower(*(sm.spec(s, np.float32) for s in shapes))
    with knobs.config(tune="off"):
        return driver.compile(lowered.trace.graph, hints=lowered.trace.hints, target=MACHINE)


def upwards(x: Any, y: Any, w: Any) -> Any:
    """A step of a network that widens images again, and its norm over the batch."""
    y = sm.permute_dims(sm.reshape(y, (2, 32, 2, 2, 16, 16)), (0, 1, 4, 2, 5, 3))
    y = sm.reshape(y, x.shape)
    z = sm.nn.conv(sm.concat([x, y], axis=1), w, padding=1)
    away = z - sm.mean(z, axis=(0, 2, 3), keepdims=True)
    return away / sm.sqrt(sm.mean(away**2, axis=(0, 2, 3), keepdims=True) + 1e-5), y


def test_a_factor_that_is_put_together_is_one_factor() -> None:
    """Beside the norm's sums there would be one channel in a task, and nothing to block."""
    plan = compiled_program(upwards, ((2, 32, 32, 32), (2, 128, 16, 16), (32, 64, 3, 3))).plan
    results = [{node.op.name for node in cluster.nodes} for cluster in plan.clusters]
    (product,) = (names for names in results if "contract" in names)
    assert not any(name.startswith("reduce") for name in product)


@pytest.mark.parametrize("first", [0, 768, 1536])
def test_heads_of_a_part_of_the_columns_are_written_by_the_product(first: int) -> None:
    """Reading from a number on changes nothing about how columns are blocked."""
    w = sm.ones((768, 2304), dtype=sm.float32)

    def heads(x: Any) -> Any:
        part = sm.reshape((x @ w)[:, first : first + 768], (x.shape[0], 12, 64))
        return sm.permute_dims(part, (1, 0, 2))

    assert len(compiled_program(heads, ((512, 768),)).plan.clusters) == 1


def separable(x: Any, d: Any, p: Any, padding: int = 1) -> Any:
    """A depthwise convolution with a window per channel, then a pointwise one."""
    inner = sm.nn.relu(sm.nn.conv(x, d, padding=padding, groups=x.shape[1]))
    return sm.nn.relu(sm.nn.conv(inner, p))


@pytest.mark.parametrize(("rows", "kernels"), [(WINDOW_ROWS, 1), (2 * WINDOW_ROWS, 2)])
def test_a_product_of_lines_makes_them_for_each_block_of_its_rows(rows: int, kernels: int) -> None:
    """What a product reads line by line is one over windows to the code generator: whatever its
    operand is made of is made again for every so many rows, which the planner charges."""
    actual, wanted, count = lines(rows, 32)
    assert count == kernels
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("width", "kernels"), [(14, 2), (28, 2), (32, 1), (64, 1)])
def test_lines_that_fill_no_tiles_are_charged(width: int, kernels: int) -> None:
    """Row-wise products pay for partial tiles.

    A row of 28 counts as one of 32; a product over the whole image has no such ends.
    """
    actual, wanted, count = lines(128, width, padding=0)
    assert count == kernels
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("width", [14, 28, 32])
def test_lines_that_are_one_run_fill_tiles(width: int) -> None:
    """With margins as wide as windows reach, places are read in one run over all lines."""
    actual, wanted, count = lines(128, width)
    assert count == 1
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-3)


def lines(rows: int, width: int, padding: int = 1) -> tuple[Any, Any, int]:
    """Return the results, the expected ones, and the number of kernels, for a row length."""
    more = 2 - 2 * padding
    shapes = ((1, 256, 28 + more, width + more), (256, 1, 3, 3), (rows, 256, 1, 1))
    arrays = [np.random.default_rng(k).standard_normal(s).astype("f") for k, s in enumerate(shapes)]
    x, d, p = (a.astype("d") for a in arrays)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), *[(padding, padding)] * 2)), (3, 3), (2, 3)
    )
    inner = np.maximum(np.einsum("bcyxuv,couv->bcyx", windows, d), 0.0)
    wanted = np.maximum(np.einsum("bcyx,ocuv->boyx", inner, p), 0.0)

    def code(x: Any, d: Any, p: Any) -> Any:
        return separable(x, d, p, padding)

    count = len(sm.explain(code, *arrays).kernels)
    return np.asarray(sm.jit(code)(*arrays)), wanted, count


def test_lines_of_a_weight_that_is_only_read_are_no_windows() -> None:
    """Nothing is made again for them: heads of a product are written by a kernel of their own."""

    def heads(x: Any, w: Any) -> Any:
        return sm.permute_dims(sm.tensordot(x, w, axes=1), (1, 0, 2))

    assert len(compiled_program(heads, ((512, 768), (768, 12, 64))).plan.clusters) == 2


def test_a_product_without_rows_is_apart_from_the_convolution_that_it_reads() -> None:
    """A kernel with both would pack the image once for each tap of the window."""

    def code(x: Any, w: Any, p: Any) -> Any:
        y = sm.nn.silu(sm.nn.conv(x, w, padding=1))
        return y, sm.sigmoid(sm.nn.conv(y, p))

    shapes = ((1, 96, 52, 52), (96, 96, 3, 3), (1, 96, 1, 1))
    assert len(compiled_program(code, shapes).plan.clusters) == 2
