"""Masks by large finite numbers: fully masked blocks are skipped without changing a bit.

The same program with its mask told by comparisons of floats, of which no block can be known, visits
every block.  Both must give the same to the last bit, whatever the scores are: rows without any
visible element, scores below the mask's number, scores that are infinite or NaN where nobody looks.
A number that is added instead hides neither: then scores have a bound, told from queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.llvm.native import Native, native_kernel
from tests.codegen.llvm.single_kernel import RUNNABLE
from tests.lower.test_stream import Case, masked, streamed, streams

import smelt as sm
from smelt.fusion.cascade.finite_masks import SAFE_DISTANCE
from smelt.kernel.interp import run

Array = np.ndarray[Any, Any]
Mask = Callable[[Any, Any], Any]
SHAPES = ((1, 23, 8), (1, 23, 8), (1, 23, 6))
LOW = float(np.finfo(np.float32).min)
MASKS: dict[str, Mask] = {
    "causal": lambda i, j: j <= i,
    "ahead": lambda i, j: j > i,
    "window": lambda i, j: (j <= i) & (i - j < 200),
    "outside": lambda i, j: (j > i) | (i - j >= 200),
    "near": lambda i, j: (i - j < 7) & (j - i < 7),
    "late rows": lambda i, j: (j <= i) & (i >= 70),
    "blocks": lambda i, j: (i >= 500) & (j < 30) | (i < 500) & (j >= 700),
}
ADDED: dict[str, Callable[[Any, Any, float], Any]] = {
    "chosen": lambda s, keep, number: s + sm.astype(sm.where(keep, 0.0, number), s.dtype),
    "counted": lambda s, keep, number: s + (1 - sm.astype(keep, s.dtype)) * number,
    "cleared": lambda s, keep, number: (
        s * sm.astype(keep, s.dtype) + sm.astype(~keep, s.dtype) * number
    ),
    "capped": lambda s, keep, number: 4 * sm.tanh(s / 4) + (sm.astype(keep, s.dtype) - 1) * -number,
}
"""Ways to add a number where a mask does not hold."""


@cache
def kernel(name: str, number: float, exact_mask: bool) -> Native:
    """A masked attention; with its mask in positions, or hidden in floats."""
    mask = MASKS[name]

    def code(q: Any, k: Any, v: Any) -> Any:
        def hidden(i: Any, j: Any) -> Any:
            row, column = (sm.astype(x, sm.float32) for x in (i, j))
            return mask(row, sm.maximum(column, row - 1e6))  # which is the column

        return masked(q, k, v, mask if exact_mask else hidden, number)

    built = streamed(Case(f"{name} {number} {exact_mask}", code, SHAPES, ()))[1]
    assert len(streams(built)) == 1 + exact_mask
    return native_kernel(built, RUNNABLE[-1])


@cache
def of_sums(name: str, how: str, number: float, exact_mask: bool) -> Native:
    """Compile attention whose mask adds the number to the scores."""
    mask = MASKS[name]

    def code(q: Any, k: Any, v: Any) -> Any:
        s = sm.matmul(q, sm.matrix_transpose(k)) * 0.125
        i, j = sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])
        if not exact_mask:
            i, j = (sm.astype(x, sm.float32) for x in (i, j))
            j = sm.maximum(j, i - 1e6)
        return sm.nn.softmax(ADDED[how](s, mask(i, j), number), axis=-1) @ v

    built = streamed(Case(f"{name} {how} {number} {exact_mask}", code, SHAPES, ()))[1]
    assert len(streams(built)) == 1 + exact_mask
    return native_kernel(built, RUNNABLE[-1])


def outcome(built: Native, *arrays: Array) -> Array:
    (result,) = built(
        dict(zip((p.name for p in built.kernel.inputs), arrays, strict=True))
    ).values()
    return result


def plain(q: Array, k: Array, v: Array, mask: Mask, number: float) -> Array:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = (q @ k.swapaxes(-1, -2)) * 0.125
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    s = np.where(mask(i, j), s, np.float64(np.float32(number)))
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)) @ v


@settings(max_examples=6, deadline=None)
@given(
    n=st.integers(1, 1400),
    seed=st.integers(0, 99),
    number=st.sampled_from([-1e9, LOW]),
    scale=st.sampled_from([0.0, 1.0, 60.0, 1e4]),
    other=st.integers(0, 300),
)
@pytest.mark.parametrize("name", MASKS)
def test_what_is_left_out_changes_no_bit(
    name: str, n: int, seed: int, number: float, scale: float, other: int
) -> None:
    """Skipping masked blocks changes no bit.

    With scores up to 1e9 some are below the mask's number, and then count for less than masked
    ones.
    """
    rng = np.random.default_rng(seed)
    m = max(n + rng.integers(-other, other + 1), 1)
    q, k, v = (
        rng.standard_normal((1, r, d)).astype(np.float32) for r, d in ((n, 8), (m, 8), (m, 6))
    )
    q, k = q * np.float32(scale), k * np.float32(scale)
    actual = outcome(kernel(name, number, True), q, k, v)
    np.testing.assert_array_equal(actual, outcome(kernel(name, number, False), q, k, v))
    if scale <= 1.0:
        wanted = plain(q, k, v, MASKS[name], number)
        assert np.abs(actual - wanted).max() < 2e-5 * np.abs(v).max()


@settings(max_examples=4, deadline=None)
@given(
    n=st.integers(1, 1400),
    seed=st.integers(0, 99),
    number=st.just(-1e9),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    other=st.integers(0, 300),
)
@pytest.mark.parametrize("how", ADDED)
@pytest.mark.parametrize("name", ["window", "late rows"])
def test_what_a_sum_leaves_out_changes_no_bit(
    name: str, how: str, n: int, seed: int, number: float, scale: float, other: int
) -> None:
    rng = np.random.default_rng(seed)
    m = max(n + rng.integers(-other, other + 1), 1)
    q, k, v = (
        rng.standard_normal((1, r, d)).astype(np.float32) for r, d in ((n, 8), (m, 8), (m, 6))
    )
    q, k = q * np.float32(scale), k * np.float32(scale)
    actual = outcome(of_sums(name, how, number, True), q, k, v)
    np.testing.assert_array_equal(actual, outcome(of_sums(name, how, number, False), q, k, v))
    seen = MASKS[name](np.arange(n)[:, None], np.arange(m)).any(axis=1)
    if scale <= 1.0 and how != "capped":
        wanted = plain(q, k, v, MASKS[name], number)
        assert np.abs(actual - wanted)[:, seen].max(initial=0) < 2e-5 * np.abs(v).max()


@pytest.mark.parametrize("how", ADDED)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e38])
def test_a_sum_hides_nothing(how: str, odd: float) -> None:
    """Keys behind all queries spoil them all, as they do where every block is visited."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, 700, d)).astype(np.float32) for d in (8, 8, 6))
    k[:, 640:] = odd
    actual = outcome(of_sums("causal", how, -1e9, True), q, k, v)
    np.testing.assert_array_equal(actual, outcome(of_sums("causal", how, -1e9, False), q, k, v))
    assert np.isfinite(odd) or np.isnan(actual).any()


@pytest.mark.parametrize("number", [-1e9, LOW])
def test_what_is_masked_may_be_anything(number: float) -> None:
    """A choice hides NaN and infinities: the keys behind all queries have no say."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, 700, d)).astype(np.float32) for d in (8, 8, 6))
    wanted = outcome(kernel("causal", number, True), q, k, v)[:, :640]
    for odd in (np.nan, np.inf, -np.inf, 3e38):
        spoilt = k.copy()
        spoilt[:, 640:] = odd
        actual = outcome(kernel("causal", number, True), q, spoilt, v)
        np.testing.assert_array_equal(actual[:, :640], wanted)
        hidden = outcome(kernel("causal", number, False), q, spoilt, v)
        np.testing.assert_array_equal(actual, hidden)


@pytest.mark.parametrize("place", [0, 300, 1199])
def test_a_score_that_is_no_number_shows_where_it_is_visible(place: int) -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((1, 1200, d)).astype(np.float32) for d in (8, 8, 6))
    k[0, place] = np.nan
    actual = outcome(kernel("causal", -1e9, True), q, k, v)
    assert np.isfinite(actual[0, :place]).all() and np.isnan(actual[0, place:]).all()


def test_rows_without_anything_visible_are_averages() -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 900, d)).astype(np.float32) for d in (8, 8, 6))
    actual = outcome(kernel("late rows", -1e9, True), q, k, v)
    mean = v.astype(np.float64).mean(axis=1)
    assert np.abs(actual[:, :70] - mean[:, None]).max() < 1e-6
    built = kernel("late rows", -1e9, True).kernel
    (exact_mask,) = run(built, [q[:, :80], k[:, :80], v[:, :80]]).values()
    assert np.abs(exact_mask[:, :70] - v[:, :80].mean(axis=1)[:, None]).max() < 1e-5


def visits(code: Any, *shapes: tuple[int, ...]) -> int:
    return len(streams(streamed(Case(repr(code), code, shapes or SHAPES, ()))[1]))


def test_numbers_that_may_be_too_small_or_count_elsewhere() -> None:
    """Those about 0 hide little, and what nobody bounds hides nothing."""

    def growing(q: Any, k: Any, v: Any) -> Any:
        s = sm.exp(sm.matmul(q, sm.matrix_transpose(k))) * sm.matmul(q, sm.matrix_transpose(k))
        i, j = sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])
        return sm.nn.softmax(s + sm.where(j <= i, 0.0, -1e9), axis=-1) @ v

    def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
        s = sm.matmul(q, sm.matrix_transpose(k))
        i, j = sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])
        return sm.nn.softmax(sm.where(j <= i, s, -1e9) + bias, axis=-1) @ v

    def small(q: Any, k: Any, v: Any) -> Any:
        return masked(q, k, v, lambda i, j: j <= i, -SAFE_DISTANCE[32])

    def counted(q: Any, k: Any, v: Any) -> Any:  # what is masked counts beside the softmax
        s = sm.matmul(q, sm.matrix_transpose(k))
        i, j = sm.expand_dims(sm.arange(s.shape[-2]), axis=1), sm.arange(s.shape[-1])
        s = sm.where(j <= i, s, -1e9)
        return sm.nn.softmax(s, axis=-1) @ v + sm.sum(s, axis=-1, keepdims=True)

    assert visits(small) == visits(counted) == 1
    assert visits(growing) == visits(biased, *SHAPES, (23, 23)) == 2
    assert visits(lambda q, k, v: masked(q, k, v, lambda i, j: j <= i, -1e9)) == 2


def test_a_smaller_type_has_a_smaller_greatest_number() -> None:
    """The number nearest above the least of all is far enough from it."""
    built = kernel("causal", LOW, True)
    q, k, v = (np.zeros((1, 600, d), np.float32) for d in (8, 8, 6))
    v += np.arange(600, dtype=np.float32)[None, :, None]
    wanted = np.cumsum(v, axis=1) / np.arange(1, 601, dtype=np.float32)[:, None]
    assert np.abs(outcome(built, q, k, v) - wanted).max() < 1e-3
