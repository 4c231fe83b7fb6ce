"""Segment reductions against NumPy: `bincount`, `segment_sum`, `x.at[i].add`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.array.numpy_comparison import MODES
from tests.strategies.effort import NIGHTLY

import smelt as sm
from smelt.errors import (
    ArgumentError,
    DTypeError,
    IndexRangeError,
    OutsideError,
    ShapeError,
    TracerError,
)
from smelt.frontends.array import segments
from smelt.ops.index import Scatter

RNG = np.random.default_rng(3)
TYPES = ["float32", "float64", "int8", "int32", "int64", "uint8", "uint64"]
FOLDS = {
    "sum": (np.add, lambda t: 0),
    "prod": (np.multiply, lambda t: 1),
    "max": (np.maximum, lambda t: -np.inf if t.kind == "f" else np.iinfo(t).min),
    "min": (np.minimum, lambda t: np.inf if t.kind == "f" else np.iinfo(t).max),
}
AT = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def drawn(dtype: str, shape: Any, rng: Any = RNG) -> Any:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 4, shape).astype(dtype)


def scatter_in_order(start: Any, ids: Any, data: Any, ufunc: np.ufunc) -> Any:
    """One after another, without NumPy's `at`."""
    out = start.copy()
    with np.errstate(all="ignore"):
        for place, row in zip(ids.reshape(-1), data.reshape(ids.size, *out.shape[1:]), strict=True):
            out[place] = ufunc(out[place], row)
    return out


def called(mode: str, f: Any, *arrays: Any) -> Any:
    return np.asarray((sm.jit(f) if mode == "jit" else f)(*map(sm.asarray, arrays)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_reductions_of_segments(mode: str, name: str, dtype: str) -> None:
    ufunc, empty = FOLDS[name]
    f = getattr(sm, f"segment_{name}")
    for shape, rank in (((7,), 1), ((7, 3), 1), ((31, 67), 1), ((3, 5, 2), 2), ((0, 3), 1)):
        data = drawn(dtype, shape)
        ids = RNG.integers(0, 5, shape[:rank])
        start = np.full((6, *shape[rank:]), empty(np.dtype(dtype)), dtype)
        actual = called(mode, lambda d, i: f(d, i, 6), data, ids)
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual, scatter_in_order(start, ids, data, ufunc))


@settings(max_examples=400 if NIGHTLY else 40, deadline=None)
@given(
    ids=st.lists(st.integers(-4, 3), max_size=9),
    width=st.integers(0, 3),
    how=st.sampled_from(sorted(AT)),
    dtype=st.sampled_from(["float64", "int32", "uint8"]),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 99),
)
def test_updates_combine_in_order(
    ids: list[int], width: int, how: str, dtype: str, mode: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    at = np.asarray(ids, np.int64)
    x, v = drawn(dtype, (4, width), rng), drawn(dtype, (len(ids), width), rng)
    actual = called(mode, lambda x, i, v: getattr(x.at[i], how)(v), x, at, v)
    wanted = scatter_in_order(x, at, v, AT[how]) if ids else x
    np.testing.assert_array_equal(actual, wanted)
    np.testing.assert_array_equal(called(mode, lambda x, i: x.at[i].get(), x, at), x[at])


@pytest.mark.parametrize("mode", MODES)
def test_updates_at_slices_points_masks_and_pairs(mode: str) -> None:
    x = np.arange(12.0).reshape(3, 4)
    i, j = np.array([0, 2, 0]), np.array([1, -1, 1])
    cases = [
        (lambda x, i, j: x.at[1].add(2), lambda y: np.add.at(y, 1, 2)),
        (
            lambda x, i, j: x.at[1:, ::2].multiply(3),
            lambda y: np.multiply.at(y, (slice(1, None), slice(None, None, 2)), 3),
        ),
        (lambda x, i, j: x.at[i, j].add(1), lambda y: np.add.at(y, (i, j), 1)),
        (
            lambda x, i, j: x.at[i, 1:3].add(sm.arange(2)),
            lambda y: np.add.at(y, (i, slice(1, 3)), np.arange(2.0)),
        ),
        (
            lambda x, i, j: x.at[:, j].subtract(x[:, :3]),
            lambda y: np.subtract.at(y, (slice(None), j), x[:, :3]),
        ),
        (lambda x, i, j: x.at[x > 5].max(9), lambda y: np.maximum.at(y, x > 5, 9)),
        (lambda x, i, j: x.at[i].set(0), lambda y: y.__setitem__(i, 0)),
        (lambda x, i, j: x.at[i].divide(2), lambda y: np.divide.at(y, i, 2)),
        (
            lambda x, i, j: x.at[..., None, 0].min(1),
            lambda y: np.minimum.at(y, (slice(None), 0), 1),
        ),
    ]
    for ours, theirs in cases:
        wanted = x.copy()
        theirs(wanted)
        np.testing.assert_array_equal(called(mode, ours, x, i, j), wanted)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "uint64", "bool"])
def test_bincount(mode: str, dtype: str) -> None:
    for n in (0, 1, 13, 1009):
        x = RNG.integers(0, 2 if dtype == "bool" else 7, n).astype(dtype)
        plain = x.astype(np.int64)
        for weights in (None, drawn("float64", n), drawn("int32", n)):
            inputs = (x,) if weights is None else (x, weights)
            actual = called(mode, lambda *a: sm.bincount(*a, length=11), *inputs)
            wanted = np.bincount(plain, weights, 11)
            assert actual.dtype == wanted.dtype or n == 0  # of no weights NumPy counts integers
            np.testing.assert_array_equal(actual, wanted)
    if mode == "lazy":
        np.testing.assert_array_equal(sm.bincount(plain), np.bincount(plain))
        np.testing.assert_array_equal(
            sm.bincount(plain, minlength=20), np.bincount(plain, None, 20)
        )
        assert sm.bincount(np.zeros(0, np.int64)).shape == (0,)


def test_the_least_length_is_the_length_where_values_are_unknown() -> None:
    f: Any = sm.jit(lambda x: sm.bincount(x, minlength=9))
    x = RNG.integers(0, 9, 100)
    np.testing.assert_array_equal(np.asarray(f(x)), np.bincount(x, minlength=9))
    for bad in (9, -1):
        with pytest.raises(sm.errors.SmeltError):
            np.asarray(f(np.array([1, bad])))
    with pytest.raises(sm.errors.SmeltError):
        sm.jit(sm.bincount)(x)


def test_counts_beyond_what_float32_counts() -> None:
    """Weights of 1 added in float32 stay at 2**24."""
    n = 2**24 + 3
    actual = sm.bincount(sm.zeros(n, dtype=sm.uint8), sm.ones(n, dtype=sm.float32), length=1)
    assert actual.dtype == sm.float32 and float(actual[0]) == float(np.float32(n))


@pytest.mark.parametrize("mode", MODES)
def test_means(mode: str) -> None:
    data, ids = drawn("float64", (9, 2)), np.array([0, 3, 3, 1, 0, 0, 3, 3, 1])
    wanted = [data[ids == k].mean(0) if (ids == k).any() else np.zeros(2) for k in range(5)]
    actual = called(mode, lambda d, i: sm.segment_mean(d, i, 5), data, ids)
    np.testing.assert_allclose(actual, wanted, rtol=1e-15)
    counts = called(mode, lambda d, i: sm.segment_mean(d, i, 5), ids, ids)
    np.testing.assert_array_equal(counts, [0, 1, 0, 3, 0])
    assert counts.dtype == np.float64


def test_halves_are_summed_in_single_precision() -> None:
    ones = sm.ones(1000, dtype=sm.bfloat16)
    actual = sm.segment_sum(ones, np.zeros(1000, np.int32), 1)
    assert actual.dtype == sm.bfloat16 and float(actual[0]) == 1000.0


def test_the_number_of_segments_follows_the_arguments() -> None:
    f = sm.jit(lambda nodes, edges, ids: sm.segment_sum(edges, ids, nodes.shape[0]))
    g = sm.jit(sm.segment_sum)
    for n in (5, 9):
        edges, ids = drawn("float64", (20, 3)), RNG.integers(0, n, 20)
        wanted = scatter_in_order(np.zeros((n, 3)), ids, edges, np.add)
        np.testing.assert_array_equal(f(np.zeros((n, 1)), edges, ids), wanted)
        np.testing.assert_array_equal(g(edges, ids, n), wanted)
    assert sum(map(len, g.traces.values())) == 1
    np.testing.assert_array_equal(sm.segment_sum(edges, ids), wanted[: ids.max() + 1])


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_derivatives(name: str) -> None:
    data, ids = drawn("float64", (6, 2)), np.array([0, 2, 2, 0, 2, 3])
    seed = drawn("float64", (4, 2))
    f = getattr(sm, f"segment_{name}")

    def loss(d: Any) -> Any:
        result = f(d, ids, 4)
        return sm.sum(sm.where(sm.isfinite(result), result, 0.0) * seed)

    for slope in (sm.grad(loss)(data), sm.jit(sm.grad(loss))(data)):
        for k in np.ndindex(6, 2):
            step = np.zeros((6, 2))
            step[k] = 1e-6
            rise = (float(loss(data + step)) - float(loss(data - step))) / 2e-6
            assert abs(float(slope[k]) - rise) < 1e-8  # rounding 1e-16 / step; no curvature


def test_second_derivatives_of_products() -> None:
    ids = np.array([0, 0, 0])
    f = lambda d: sm.segment_prod(d, ids, 1)[0]  # noqa: E731
    second = sm.grad(lambda d: sm.grad(f)(d)[0])
    np.testing.assert_allclose(second(np.array([2.0, 3.0, 5.0])), [0, 5, 3])
    np.testing.assert_allclose(second(np.array([0.0, 3.0, 5.0])), [0, 5, 3])
    np.testing.assert_allclose(second(np.array([2.0, 0.0, 5.0])), [0, 5, 0])


IDS = np.array([0, 2, 5])
DATA = np.ones((3, 2))


@pytest.mark.parametrize(
    ("f", "error"),
    [
        (lambda d, i: sm.segment_sum(d, i, 5), IndexRangeError),
        (lambda d, i: sm.segment_sum(d, i - 1, 6), (IndexRangeError, OutsideError)),
        (lambda d, i: sm.bincount(i, length=5), IndexRangeError),
        (lambda d, i: sm.bincount(-i, length=9), OutsideError),
        (lambda d, i: sm.zeros(5).at[i].add(1), IndexRangeError),
        (lambda d, i: sm.zeros((0, 2)).at[i].add(d), IndexRangeError),
        (lambda d, i: sm.segment_sum(d, i, 0), IndexRangeError),
        (lambda d, i: sm.segment_max(d, i[:2], 9), ShapeError),
        (lambda d, i: sm.segment_max(d[:, 0], d, 9), DTypeError),
        (lambda d, i: sm.segment_max(d, i, -1), ArgumentError),
        (lambda d, i: sm.segment_max(d, i[0], 9), ShapeError),
        (lambda d, i: sm.segment_sum(d > 0, i, 9), DTypeError),
        (lambda d, i: sm.bincount(d), ShapeError),
        (lambda d, i: sm.bincount(d[:, 0]), DTypeError),
        (lambda d, i: sm.bincount(i, d, length=9), ShapeError),
        (lambda d, i: sm.bincount(i, minlength=-1), ArgumentError),
        (lambda d, i: i.at[0].add(0.5), DTypeError),
        (lambda d, i: i.at[0].divide(2), DTypeError),
    ],
)
def test_wrong_arguments(f: Any, error: Any) -> None:
    with pytest.raises(error):
        np.asarray(f(sm.asarray(DATA), sm.asarray(IDS)))
    wanted = error if isinstance(error, tuple) else (error,)
    with pytest.raises((*wanted, OutsideError, TracerError)):
        sm.jit(f)(DATA, IDS)


def test_a_length_that_depends_on_values_is_required() -> None:
    for f in (sm.bincount, lambda i: sm.segment_sum(i, i)):
        with pytest.raises(TracerError, match=r"without (length|num_segments)="):
            sm.jit(f)(IDS)


@pytest.mark.parametrize("extra", [0, 1, 7])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "int64"])
@pytest.mark.parametrize("fold", FOLDS)
def test_many_rows_are_combined_in_parts(fold: str, dtype: str, extra: int) -> None:
    rows = segments.SPLIT_ROWS + extra
    rng = np.random.default_rng(rows)
    ids = rng.integers(0, 9, rows)
    ids[ids == 4] = 5  # a segment without rows
    data = 1 + drawn(dtype, rows, rng) / 2**20 if fold == "prod" else drawn(dtype, rows, rng)
    data = data.astype(dtype)
    result = getattr(sm, f"segment_{fold}")(sm.asarray(data), sm.asarray(ids), 9)
    scatters = [op for op in operators(result) if isinstance(op, Scatter)]
    assert len(scatters) == (2 if extra else 1)
    ufunc, neutral = FOLDS[fold]
    expected = np.full(9, neutral(np.dtype(dtype)), dtype)
    with np.errstate(over="ignore"):
        ufunc.at(expected, ids, data)
    assert np.asarray(result).dtype == expected.dtype
    if np.dtype(dtype).kind == "f":
        np.testing.assert_allclose(result, expected, rtol=1e-9 if dtype == "float64" else 2e-3)
    else:
        assert np.array_equal(result, expected)


def operators(array: Any) -> list[Any]:
    """Return the operators that an array waits for."""
    stack, visited = [array.node], set[Any]()
    while stack:
        x = stack.pop()
        if x not in visited:
            visited.add(x)
            stack.extend(x.inputs)
    return [x.op for x in visited]


def test_parts_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(1)
    ids, weights = rng.integers(0, 100, 200_003), rng.standard_normal(200_003)
    sums: list[Any] = []
    for threads in (1, 2, 3):
        with sm.config(threads=threads):
            sums.append(np.asarray(sm.bincount(sm.asarray(ids), sm.asarray(weights))))
    assert all(np.array_equal(s, sums[0]) for s in sums)


@pytest.mark.parametrize("rows", [segments.SPLIT_ROWS - 1, 200_000])
def test_few_rows_for_each_segment_and_exact_rounding_keep_the_order(rows: int) -> None:
    ids = np.arange(rows) % (1000 if rows > segments.SPLIT_ROWS else 2)
    weights = np.random.default_rng(2).standard_normal(rows)
    for rounding in ("exact", "eager"):
        with sm.config(rounding=rounding):
            sums = sm.bincount(sm.asarray(ids), sm.asarray(weights))
            assert sum(isinstance(op, Scatter) for op in operators(sums)) == 1
            assert np.array_equal(sums, np.bincount(ids, weights))


def test_a_position_out_of_bounds_among_many_raises() -> None:
    ids = np.zeros(segments.SPLIT_ROWS, np.int64)
    ids[77] = 3
    with pytest.raises(IndexRangeError):
        sm.segment_sum(sm.asarray(np.ones(len(ids))), sm.asarray(ids), 3)
    pending = sm.asarray(ids) + 0
    with pytest.raises(OutsideError):
        np.asarray(sm.bincount(pending, length=3))
