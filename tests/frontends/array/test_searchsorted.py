"""`searchsorted` agrees with merging, for every type, side and kind of row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array import argsort, searching
from smelt.frontends.array.argsort import SMALL_ROW, argsort_into, stable_argsort

TYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


def wanted(x: Any, descending: bool, axis: int = -1) -> Any:
    """Positions of equal elements stay in order; NaN is the greatest."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(backwards, axis)


def rows(kind: str, count: int) -> Any:
    """Rows of few values, of many, of the extremes, and of what is special about floats."""
    rng, dtype = np.random.default_rng(count), np.dtype(kind)
    if dtype.kind == "f":
        special = [
            np.nan,
            -np.nan,
            np.inf,
            -np.inf,
            0.0,
            -0.0,
            np.finfo(dtype).max,
            np.finfo(dtype).tiny,
            -np.finfo(dtype).smallest_subnormal,
        ]
        results = [
            rng.standard_normal(count),
            rng.integers(-2, 3, count),
            rng.choice(special, count),
        ]
    elif dtype.kind == "b":
        results = [rng.integers(0, 2, count) for _ in range(3)]
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        results = [
            rng.integers(low, high, count, dtype, endpoint=True),
            rng.integers(low, low + 3, count, dtype),
            rng.choice(np.asarray([low, low + 1, high - 1, high], dtype), count),
        ]
    return np.stack(results).astype(dtype)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_positions_are_those_of_merging(kind: str, descending: bool) -> None:
    for count in (1, 2, SMALL_ROW - 1, SMALL_ROW, 1000):
        x = rows(kind, count)
        for each in (x, *(row[None] for row in x)):
            got = stable_argsort(each, descending)
            np.testing.assert_array_equal(got, wanted(each, descending), strict=True)
            argsort_into(got, each, 1, descending)
            np.testing.assert_array_equal(got, wanted(each, descending), strict=True)


@pytest.mark.parametrize("kind", ["i4", "f4", "f8", "i8"])
def test_along_any_axis_block_by_block(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argsort, "BLOCK_ELEMENTS", 200)
    monkeypatch.setattr(argsort, "SMALL_ROW", 3)
    x = np.moveaxis(rows(kind, 7 * 90).reshape(3, 7, 90), 0, 1)
    for axis, descending in ((0, False), (1, True), (2, False), (2, True)):
        actual = np.full(x.shape, -1)
        argsort_into(actual, x, axis, descending)
        np.testing.assert_array_equal(actual, wanted(x, descending, axis))
    argsort_into(np.empty((0, 5), int), x[:0, 0, :5], 1, descending=False)


def test_two_ways_where_keys_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies close together has keys, whatever its type; float64 has not."""
    queries: list[str] = []
    repaired = argsort.__dict__["_argsort_by_runs"]

    def counted(x: Any, bits: int, descending: bool) -> Any:
        queries.append(x.dtype.name)
        return repaired(x, bits, descending)

    monkeypatch.setattr(argsort, "_argsort_by_runs", counted)
    top = np.iinfo(np.int64).max
    for x in (np.asarray([[top, top - 5] * 50]), np.asarray([[0, top] * 50]), np.ones((1, 100))):
        np.testing.assert_array_equal(stable_argsort(x, True), wanted(x, True))
    assert queries == ["int64", "float64"]


def test_argsort_of_half_types() -> None:
    x = rows("f2", 500)
    got = sm.argsort(sm.asarray(x), axis=1, descending=True)
    np.testing.assert_array_equal(np.asarray(got), wanted(x, True))
    short = sm.astype(sm.asarray(x), sm.bfloat16)
    got = sm.argsort(short, axis=1)
    np.testing.assert_array_equal(got, wanted(np.asarray(sm.astype(short, sm.float32)), False))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["i4", "u1", "f4", "f8"])
def test_many_values_are_found_where_numpy_finds_them(kind: str, side: Any) -> None:
    rng, dtype = np.random.default_rng(0), np.dtype(kind)
    for count in (129, 1000, 1024):
        row = np.sort(rng.integers(0, 250, count)).astype(dtype)
        values = rng.integers(0, 256, searching.BISECTED_VALUES).astype(dtype)
        if dtype.kind == "f":
            row[-2:], values[:5] = np.nan, (np.nan, np.inf, -np.inf, -0.0, 0.0)
        for x in (values, np.sort(values), np.sort(values)[: 2 * count]):
            actual = sm.searchsorted(sm.asarray(row), sm.asarray(x), side=side)
            np.testing.assert_array_equal(actual, np.searchsorted(row, x, side=side))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("count", [argsort.SMALL_TOTAL, 5000, 1 << 17])
def test_doubles_that_agree_in_leading_bits_are_sorted_by_all(count: int, descending: bool) -> None:
    rng = np.random.default_rng(count)
    numbers = rng.standard_normal(count)
    step = 2.0**-50
    for x in (
        numbers,
        np.where(rng.random(count) < 0.005, 1 + step * rng.integers(0, 64, count), numbers),
        np.where(rng.random(count) < 0.005, np.nan, numbers),
        np.where(rng.random(count) < 0.01, np.copysign(0.0, numbers), numbers),
        np.where(rng.random(count) < 0.3, np.inf, numbers),
        numbers * 1e-310,
        1 + rng.random(count) * 2.0**-25,
    ):
        out = np.empty(count, np.int64)
        argsort_into(out, x, 0, descending)
        assert np.array_equal(out, wanted(x, descending))


def test_ties_of_a_row_do_not_reach_into_the_next() -> None:
    x = np.random.default_rng(0).standard_normal((50, 3000))
    x[:, -3:] = x[:, :3] = 4.0
    for axis in (0, 1):
        out = np.empty(x.shape, np.int64)
        argsort_into(out, x, axis, descending=False)
        assert np.array_equal(out, wanted(x, descending=False, axis=axis))


@pytest.mark.parametrize(
    ("kind", "count", "distinct", "packed"),
    [
        ("f4", 1 << 14, 1 << 20, True),
        ("f8", 1 << 14, 1 << 40, False),
        ("f8", 1 << 17, 1 << 40, True),
        ("i8", 1 << 14, 1 << 20, True),
        ("i8", 1 << 14, 30, False),
        ("i2", 1 << 14, 1 << 15, False),
        ("f4", 1 << 10, 1 << 20, False),
    ],
)
def test_an_unstable_sort_packs_where_few_elements_are_equal(
    kind: str, count: int, distinct: int, packed: bool
) -> None:
    x = np.random.default_rng(1).integers(0, distinct, count).astype(kind)
    assert argsort.is_faster_packed(x, 0) == packed
    order = np.asarray(sm.argsort(sm.asarray(x), stable=False))
    assert np.array_equal(x[order], np.sort(x)) and np.array_equal(np.sort(order), np.arange(count))
