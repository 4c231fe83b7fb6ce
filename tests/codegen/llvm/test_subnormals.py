"""Subnormal results are exact in programs, and 0 as weights of a carried sum.

In neither case are they a reason to be many times as slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.scalar_values import ULP_F32, ULP_F64

import smelt as sm
from smelt.machine.target import Target
from smelt.ops.scalar import SCALARS

COLUMNS = 4096 + 37  # whole groups of vectors, and what is left
FUNCTIONS = {"exp": (sm.exp, np.exp, np.log(2)), "exp2": (sm.exp2, np.exp2, 1.0)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("apart", [1, 37, 1000])
def test_powers_that_are_subnormal(name: str, dtype: Any, apart: int) -> None:
    """Every one, some in a group of vectors, or nearly none; at the limits above all."""
    ours, numpys, unit = FUNCTIONS[name]
    info = np.finfo(dtype)
    low, high = info.minexp - info.nmant - 3, info.minexp + 3
    rng = np.random.default_rng(apart)
    x = rng.standard_normal(COLUMNS)
    x[::apart] = rng.uniform(low, high, len(x[::apart])) * unit
    edges = np.arange(low, high + 1) * unit
    x[: len(edges)] = edges
    x = x.astype(dtype)
    actual = np.asarray(sm.jit(ours)(x))
    wanted = numpys(x.astype(np.longdouble))
    spacing = np.spacing(np.abs(wanted.astype(dtype))).astype(np.longdouble)
    limits = ULP_F32 if dtype is np.float32 else ULP_F64
    assert np.all(abs(actual - wanted) <= spacing * limits[name])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_no_number_among_subnormal_powers(dtype: Any) -> None:
    edge = np.log(np.finfo(dtype).tiny) - 3
    x = np.full(256, edge, dtype)
    x[3::16], x[5::16], x[7::16], x[9::16] = np.nan, np.inf, -np.inf, 1e4
    with np.errstate(over="ignore"):
        wanted = np.exp(x.astype(np.longdouble))
    actual = np.asarray(sm.jit(sm.exp)(x))
    assert np.array_equal(np.isnan(actual), np.isnan(wanted))
    assert np.all(actual[5::16] == np.inf) and np.all(actual[7::16] == 0)
    assert np.all(actual[9::16] == np.inf) and np.all(actual[::16] > 0)


def attention(q: Any, k: Any, v: Any) -> Any:
    return sm.nn.softmax(q @ sm.matrix_transpose(k), axis=-1) @ v


def test_attention_with_far_scores() -> None:
    """A weight counts as 0 below 2^-101 of a row's greatest: no sum is further away than that."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 64)).astype(np.float32) for n in (300, 1100, 1100))
    q *= 4
    actual = np.asarray(sm.jit(attention)(q, k, v))
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    assert np.mean((weights < 2.0**-126) & (weights > 2.0**-150)) > 0.01
    weights /= weights.sum(-1, keepdims=True)
    most = abs(q).astype(np.float64) @ abs(k).astype(np.float64).swapaxes(1, 2)
    u = 2.0**-24
    rounded = (2 * 64 * most.max() + 1100 + 16) * u  # of scores, of sums, of the powers
    limit = rounded * (weights @ abs(v)) + 1100 * 2.0**-101 * abs(v).max()
    assert np.all(abs(actual - weights @ v) <= limit)


def test_weights_whose_products_may_be_subnormal_count_as_nothing() -> None:
    """The products of those that are left are normal, down to factors of an ulp of 1."""
    for dtype, least in ((np.float32, -101), (np.float64, -968)):
        over = SCALARS["exp2_over"].numpy
        x = np.array([least - 1, least - 0.75, least, 0], dtype)
        actual = over(x, np.zeros(4, np.int32))
        assert np.array_equal(actual == 0, [True, True, False, False])
        assert actual[2] / np.sqrt(2) * np.finfo(dtype).eps / 2 >= np.finfo(dtype).tiny


def fastest(call: Callable[[], Any]) -> float:
    """Seconds of processor time of the fastest of some calls."""
    call()
    best = float("inf")
    for _ in range(15):
        start = time.process_time()
        for _ in range(5):
            call()
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.clock
def test_far_logits_are_not_many_times_as_slow() -> None:
    """Each vector with a subnormal number took a hundred cycles: softmax 16 times, attention 12
    times as long.  What a machine's own instructions are used for is not asked."""
    if Target.host().isa != "avx512":
        pytest.skip("subnormal results are taken apart for AVX-512 alone")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 4096)).astype(np.float32)
    softmax = sm.jit(lambda x: sm.nn.softmax(x, axis=-1))
    far = 20 * x
    assert fastest(lambda: softmax(far)) < 6 * fastest(lambda: softmax(x))
    q, k, v = (rng.standard_normal((2, 1024, 64)).astype(np.float32) for _ in range(3))
    attend = sm.jit(attention)
    near = q / 8
    far = q * 4
    assert fastest(lambda: attend(far, k, v)) < 2 * fastest(lambda: attend(near, k, v))
    steep = sm.jit(
        lambda q, k, v, slope: (
            sm.nn.softmax(
                q @ sm.matrix_transpose(k)
                - slope * sm.abs(sm.expand_dims(sm.arange(1024), axis=1) - sm.arange(1024)),
                axis=-1,
            )
            @ v
        )
    )
    least = fastest(lambda: steep(near, k, v, np.float32(0)))
    assert fastest(lambda: steep(near, k, v, np.float32(0.5))) < 1.5 * least
