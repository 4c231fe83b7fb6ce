"""Sorting networks for many short rows, against a stable order in NumPy, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.frontends.array.numpy_comparison import MODES
from tests.frontends.array.test_top_k import TYPES, numbers, ordered
from tests.property.oracles import compiled, interpret, kernels_agree, sizes_at
from tests.strategies.effort import NIGHT, effort

import smelt as sm
from smelt import knobs
from smelt.frontends.array.sorting import (
    MAX_LENGTH,
    MAX_LENGTH_LAST_AXIS,
    MIN_SORTED_ROWS,
    batcher_pairs,
    insertion_pairs,
)

pytestmark = NIGHT

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def exactly(actual: Any, x: Array, axis: int, descending: bool) -> None:
    """The positions of a stable order, and the elements there: the same bits, but for NaN."""
    values, places = map(np.asarray, actual)
    places_wanted = ordered(x, x.shape[axis], axis, descending)
    wanted = np.take_along_axis(x, places_wanted, axis)
    assert (values.dtype, places.dtype) == (x.dtype, np.int64)
    np.testing.assert_array_equal(places, places_wanted)
    number = wanted == wanted
    np.testing.assert_array_equal(values == values, number)
    assert values[number].tobytes() == wanted[number].tobytes()


@st.composite
def calls(draw: Any) -> tuple[Array, int, bool]:
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    n = draw(st.sampled_from((2, 3, 4, 5, 7)))
    shape = draw(
        st.sampled_from(((n, MIN_SORTED_ROWS), (MIN_SORTED_ROWS + 3, n), (3, n, 131), (5, 67, n)))
    )
    x = numbers(random, draw(st.sampled_from(TYPES)), shape)
    return x, shape.index(n), draw(st.booleans())


def both(x: Any, axis: int, descending: bool) -> tuple[Any, Any]:
    values = sm.sort(x, axis=axis, descending=descending)
    return values, sm.argsort(x, axis=axis, descending=descending)


@pytest.mark.parametrize("mode", MODES)
def test_as_a_stable_order(mode: str) -> None:
    @effort(16)
    @given(calls())
    def judge(call: tuple[Array, int, bool]) -> None:
        x, axis, descending = call

        def f(x: Any) -> Any:
            return both(x, axis, descending)

        with knobs.config(strict=True):
            exactly((sm.jit(f) if mode == "jit" else f)(sm.asarray(x)), x, axis, descending)

    judge()


@effort(12)
@given(calls())
def test_interpreters_agree(call: tuple[Array, int, bool]) -> None:
    """The recorded graph, operator by operator; kernels in NumPy, and as they run."""
    x, axis, descending = call
    trace = sm.jit(lambda x: both(x, axis, descending)).lower(x).trace
    sizes = sizes_at(trace.graph, [x])
    result = interpret(trace.graph, [x], sizes)
    exactly([result[r.position] for r in trace.results], x, axis, descending)
    program, result = compiled(trace.graph, [x], sizes)
    exactly([result[r.position] for r in trace.results], x, axis, descending)
    same = [np.zeros(a.shape) for a in result]
    assert not kernels_agree(program, [x], sizes, same)


@pytest.mark.parametrize("n", range(1, MAX_LENGTH + 1))
def test_networks_sort(n: int) -> None:
    """Zeros and ones tell of all numbers (Knuth, volume 3, 5.3.4, theorem Z)."""
    rows = np.arange(1 << n)[:, None] >> np.arange(n) & 1
    for network in (batcher_pairs(n), insertion_pairs(n)):
        row = [*rows.T]
        for i, j in network:
            row[i], row[j] = np.minimum(row[i], row[j]), np.maximum(row[i], row[j])
        np.testing.assert_array_equal(np.stack(row, 1), np.sort(rows, axis=1))
    assert all(j == i + 1 for i, j in insertion_pairs(n))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_median_is_one_kernel(axis: int) -> None:
    x = RNG.standard_normal((5, 600) if axis == 0 else (600, 5)).astype(np.float32)

    def median(x: Any) -> Any:
        return sm.take(sm.sort(x * 2, axis=axis), sm.asarray([2]), axis=axis) + 1

    report = sm.explain(median, x)
    assert len(report.kernels) == 1
    wanted = np.expand_dims(np.median(x * 2, axis=axis), axis) + 1
    np.testing.assert_array_equal(sm.jit(median)(x), wanted)


@pytest.mark.parametrize("mode", MODES)
def test_stacked_values_have_no_memory_yet(mode: str) -> None:
    """Stack windows of an image along an axis longer than rows may be."""
    x = numbers(RNG, "f32", (26, 31))

    def middle(xp: Any, x: Any) -> Any:
        rows = [x[k : k + 24, j : j + 29] for k in range(3) for j in range(3)]
        return xp.sort(xp.abs(xp.stack(rows, axis=-1)), axis=-1)[..., 4]

    assert len(sm.explain(lambda x: middle(sm, x), x).kernels) == 1
    jitted = (sm.jit(lambda x: middle(sm, x)) if mode == "jit" else lambda x: middle(sm, x))(
        sm.asarray(x)
    )
    np.testing.assert_array_equal(jitted, middle(np, x))


@pytest.mark.parametrize("shape", [(MAX_LENGTH, 600), (600, MAX_LENGTH_LAST_AXIS)])
def test_the_longest_rows_are_sorted_in_one_kernel(shape: tuple[int, int]) -> None:
    axis = shape.index(min(shape))
    for f, dtype in ((sm.sort, "f32"), (sm.argsort, "f64"), (sm.argsort, "i8")):
        x = numbers(RNG, dtype, shape)
        assert len(sm.explain(lambda x, f=f: f(x, axis=axis), x).kernels) == 1
        actual = np.asarray(sm.jit(lambda x, f=f: f(x, axis=axis))(x))
        order = ordered(x, min(shape), axis, largest=False)
        wanted = order if f is sm.argsort else np.take_along_axis(x, order, axis)
        np.testing.assert_array_equal(actual, wanted)


def test_other_rows_are_sorted_as_before() -> None:
    """One function for short rows and long ones, few and many, none at all."""
    f = sm.jit(lambda x: both(x, 1, descending=True))
    for shape in ((300, 5), (3, 5), (300, 9), (300, 17), (400, 5), (300, 1), (300, 3), (0, 5)):
        x = RNG.integers(0, 4, shape).astype(np.float32)
        exactly(f(x), x, 1, descending=True)


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_around_sorts(axis: int) -> None:
    """Columns of a short row are unrolled: no row has vectors of its own."""
    x = RNG.standard_normal((8, 600) if axis == 0 else (600, 8)).astype(np.float32)

    def trimmed(xp: Any, x: Any) -> Any:
        inner = (slice(1, -1), slice(None))[:: 1 - 2 * axis]
        return xp.mean(
            xp.sort(x - xp.max(x, axis=axis, keepdims=True), axis=axis)[inner], axis=axis
        )

    actual = sm.jit(lambda x: trimmed(sm, x))(x)
    np.testing.assert_allclose(actual, trimmed(np, x.astype(np.float64)), rtol=1e-5)


def test_cotangents_go_where_elements_came_from() -> None:
    x = RNG.integers(0, 3, (MIN_SORTED_ROWS, 4)).astype(np.float64)
    w = RNG.standard_normal(x.shape)
    actual = sm.grad(lambda x: sm.sum(sm.sort(x, axis=1) * w))(sm.asarray(x))
    wanted = np.zeros(x.shape)
    np.put_along_axis(wanted, np.argsort(x, axis=1, stable=True), w, 1)
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("descending", [False, True])
def test_sorted_rows_go_where_they_belong(descending: bool) -> None:
    """Into an array that is given, the sorted one itself as well; zeros keep their order."""
    f: Any = sm.jit(lambda a: sm.sort(a, descending=descending))
    rows = np.random.default_rng(0).standard_normal((3, 400)).astype("f4")
    for x in (rows, np.where(np.abs(rows) < 0.3, np.copysign(0, rows), rows).astype("f4")):
        order = np.flip(399 - np.argsort(np.flip(x, 1), 1, kind="stable"), 1)
        order = order if descending else np.argsort(x, 1, kind="stable")
        wanted, place, copied = np.take_along_axis(x, order, 1), np.empty_like(x), x.copy()
        f(x, out=place)
        f(copied, out=copied)
        assert place.tobytes() == copied.tobytes() == wanted.tobytes()
