"""Transposed masks and biases are staged in row strips.

The numbers are those of plain NumPy in double precision for all sizes and strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.catalogue.harness import MACHINE, REFERENCE

import smelt as sm
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.compiler import driver

Array = np.ndarray[Any, Any]
Code = Callable[..., Any]


def weights(xp: Any, s: Any) -> Any:
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def biased(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    s = xp.matmul(q, xp.matrix_transpose(k)) * 0.125 + xp.matrix_transpose(bias)
    return xp.matmul(weights(xp, s), v)


def masked(xp: Any, q: Any, k: Any, v: Any, keep: Any) -> Any:
    s = xp.matmul(q, xp.matrix_transpose(k)) * 0.125
    return xp.matmul(weights(xp, xp.where(xp.matrix_transpose(keep), s, -np.inf)), v)


def windowed(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    s = xp.matmul(q, xp.matrix_transpose(k)) * 0.125 + xp.matrix_transpose(bias)
    i, j = xp.expand_dims(xp.arange(s.shape[-2]), axis=1), xp.arange(s.shape[-1])
    keep = (j <= i + 9) & (i - j < 37)
    return xp.matmul(weights(xp, xp.where(keep, s, -np.inf)), v)


def operands(m: int, n: int, dtype: Any, heads: int = 2, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    shapes = (heads, m, 32), (heads, n, 32), (heads, n, 32), (n, m)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def nests(code: Code, arrays: list[Array]) -> list[Nest]:
    """The nests of all kernels of a program."""
    trace = sm.jit(lambda *xs: code(sm, *xs)).lower(*arrays).trace
    kernels = driver.compile(trace.graph, hints=dict(trace.hints), target=MACHINE).kernels
    phases = [p for k in kernels if k is not None for p in program(k).phases]
    return [nest for p in phases for nest in schedule(p, MACHINE).nests]


def agrees(code: Code, arrays: list[Array]) -> None:
    actual = np.asarray(sm.jit(lambda *xs: code(sm, *xs))(*arrays))
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    with np.errstate(all="ignore"):
        wanted = code(REFERENCE, *wide)
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("code", [biased, windowed])
def test_a_bias_beside_scores_is_transposed_in_strips(code: Code) -> None:
    strips = [n for n in nests(code, operands(512, 512, np.float32)) if n.strips]
    assert strips and all(len(n.transposed) == 1 and n.order[-2:] for n in strips)


def test_a_bias_in_the_layout_of_the_scores_is_not_transposed() -> None:
    def code(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
        return biased(xp, q, k, v, xp.matrix_transpose(bias))

    *rest, bias = operands(512, 512, np.float32)
    assert not any(n.strips for n in nests(code, [*rest, bias.T.copy()]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("code", [biased, windowed])
@pytest.mark.parametrize("sizes", [(1, 1), (5, 7), (16, 16), (33, 65), (300, 129), (321, 1030)])
def test_numbers(code: Code, sizes: tuple[int, int], dtype: Any) -> None:
    agrees(code, operands(*sizes, dtype))


@pytest.mark.parametrize("sizes", [(5, 7), (129, 300), (515, 1030)])
def test_numbers_of_what_is_not_finite(sizes: tuple[int, int]) -> None:
    *rest, bias = operands(*sizes, np.float32)
    rng = np.random.default_rng(1)
    bias[rng.random(bias.shape) < 0.3] = -np.inf
    agrees(biased, [*rest, bias])
    bias[-1, 2] = np.nan
    agrees(biased, [*rest, bias])


@pytest.mark.parametrize("sizes", [(5, 7), (129, 300), (515, 1030)])
def test_values_with_byte_masks_and_strided_rows(sizes: tuple[int, int]) -> None:
    *rest, bias = operands(*sizes, np.float32)
    agrees(masked, [*rest, bias < 1])
    around = np.full((bias.shape[0] + 3, bias.shape[1] + 5), np.nan, np.float32)
    around[: bias.shape[0], : bias.shape[1]] = bias
    agrees(biased, [*rest, around[: bias.shape[0], : bias.shape[1]]])


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_numbers_of_what_is_converted(dtype: Any) -> None:
    def code(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
        return biased(xp, q, k, v, xp.astype(bias, q.dtype) if xp is sm else bias)

    *rest, bias = operands(129, 300, np.float32)
    agrees(code, [*rest, bias.astype(dtype)])
