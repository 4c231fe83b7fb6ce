"""Arrays in the Python of every day: dicts, JSON, text, pickles, and objects of other libraries."""

from __future__ import annotations

import importlib
import pickle
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
import smelt.numpy as snp

DTYPES = ["bool", "int8", "int64", "uint8", "float32", "float64", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_a_vector_are_numpys_scalars(dtype: str) -> None:
    theirs = np.asarray([0, 1, 1, 2, 3, 1]).astype(dtype)
    for ours in (snp.asarray(theirs), snp.asarray(theirs)[::-1][::-1], snp.concatenate([theirs])):
        assert [*map(type, ours)] == [*map(type, theirs)]
        assert Counter(ours) == Counter(theirs) and set(ours) == set(theirs)
        pairs = dict(zip(*snp.unique(ours, return_counts=True), strict=True))
        assert pairs == dict(zip(*np.unique(theirs, return_counts=True), strict=True))
        if dtype != "complex128":
            assert sorted(ours) == sorted(theirs) and sum(ours) == sum(theirs)
        numbers = {x: k for k, x in enumerate(ours)}
        assert numbers[ours[1]] == numbers[theirs[1]] == 5


def test_vectors_that_are_written_in_a_loop_give_new_elements() -> None:
    x = snp.zeros(4)
    for k, value in enumerate(x):
        if k < 3:
            x[k + 1] = value + 1
    assert x.tolist() == [0, 1, 2, 3]


def test_elements_stay_recorded_where_they_have_no_values() -> None:
    def total(x: Any) -> Any:
        result = 0.0
        for value in x:
            result = result + value**2
        return result

    x = np.asarray([1.0, 2.0, 3.0])
    assert float(sm.jit(total)(x)) == 14
    np.testing.assert_array_equal(sm.grad(total)(sm.asarray(x)), 2 * x)
    assert float(sm.vmap(total)(sm.asarray([x]))[0]) == 14


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_hash_and_compare_as_numpys(dtype: str) -> None:
    theirs = np.asarray([1, 0, 1]).astype(dtype)
    for mine, number in (
        (snp.asarray(theirs).sum(), theirs.sum()),
        (snp.asarray(theirs)[0], theirs[0]),
        (snp.asarray(theirs[:1]).prod(), theirs[:1].prod()),
    ):
        assert hash(mine) == hash(number) and {mine: 1}[number] == {number: 1}[mine] == 1
    with pytest.raises(TypeError, match="tolist"):
        hash(snp.asarray(theirs))


@pytest.mark.parametrize("dtype", ["int64", "float32", "complex64"])
def test_a_number_keeps_its_value_under_other_names(dtype: str) -> None:
    def totals(np: Any) -> list[Any]:
        x = np.asarray([1, 2, 3]).astype(dtype)
        total, first = x.sum(), x[0]
        before, least = total, first
        total += 1
        first *= x  # a number may become a vector
        history = []
        for value in x:
            history.append(total)
            total -= value
        return [before, least, total, first, *history]

    for mine, theirs in zip(totals(snp), totals(np), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert np.asarray(mine).dtype == theirs.dtype


def test_numbers_have_the_methods_of_pythons() -> None:
    x = snp.asarray([1.0, 2.5])
    assert x[0].is_integer() and not x.sum().is_integer()
    assert x.sum().hex() == (3.5).hex() and x.sum().as_integer_ratio() == (7, 2)
    assert snp.asarray([3]).sum().bit_count() == 2
    assert f"{x.sum():.2f} {snp.asarray([3]).sum():>4d}" == "3.50    3"
    assert statistics.mean(x) == 1.75 and round(x.sum(), 1) == 3.5
    assert not hasattr(x, "is_integer") and not hasattr(sm.spec("f32[n]"), "hex")


def test_reports_are_pickled() -> None:
    report = sm.explain(sm.jit(lambda x: sm.exp(x).sum()), np.ones(30))
    again = pickle.loads(pickle.dumps(report))
    assert str(again) == str(report) and again.to_json() == report.to_json()
    assert str(again.why("exp", "reduce.sum")) == str(report.why("exp", "reduce.sum"))


class Labelled:
    """An array of another library: it has NumPy's functions of its own."""

    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.data, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        inputs = tuple(x.data if isinstance(x, Labelled) else x for x in inputs)
        return Labelled(getattr(ufunc, method)(*inputs, **options))


class Picture:
    """An object that becomes an array when NumPy asks."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray([[1.0, 2.0], [3.0, 4.0]], dtype)


UNARY = """
    sum mean max min std var prod exp log1p sqrt abs sort argsort cumsum isnan median argmax argmin
    any all nansum diff unique asarray array zeros_like ones_like ravel round nanmean square sign
    floor histogram corrcoef
"""
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda m, x, name=name: getattr(m, name)(x) for name in UNARY.split()},
    "clip": lambda m, x: m.clip(x, 1, 2),
    "where": lambda m, x: m.where(np.asarray(x) > 1, x, 0),
    "concatenate": lambda m, x: m.concatenate([x, x]),
    "stack": lambda m, x: m.stack([x, x]),
    "percentile": lambda m, x: m.percentile(x, 50),
    "maximum": lambda m, x: m.maximum(x, x),
    "add": lambda m, x: m.add(x, 1),
    "isin": lambda m, x: m.isin(x, x),
    "allclose": lambda m, x: m.allclose(x, x),
    "digitize": lambda m, x: m.digitize(x, [1, 2]),
}


def _pandas() -> list[Any]:
    try:
        pd: Any = importlib.import_module("pandas")
    except ImportError:
        return []
    series = pd.Series([1.0, 2.0, 3.0])
    return [series, pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}), pd.Index([1, 2, 3])]


OBJECTS: list[Any] = [Labelled([1.0, 2.0, 3.0]), Picture(), *_pandas()]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("x", OBJECTS, ids=lambda x: type(x).__name__)
def test_objects_with_array_are_arguments(x: Any, name: str) -> None:
    try:
        expected = CALLS[name](np, x)
    except (TypeError, ValueError, AttributeError) as error:
        with pytest.raises(type(error)):
            CALLS[name](snp, x)
        return
    actual = CALLS[name](snp, x)
    if not isinstance(expected, (np.ndarray, np.generic, tuple, bool)):
        assert type(actual) is type(expected)
    pairs = zip(actual, expected) if isinstance(expected, tuple) else [(actual, expected)]
    for mine, theirs in pairs:
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-12)
        assert np.asarray(mine).dtype == np.asarray(theirs).dtype


@pytest.mark.parametrize("dtype", [object, str, "U8", ">f8", np.longdouble, "c8", "f4"])
def test_large_arrays_convert_to_every_dtype_of_numpy(dtype: Any) -> None:
    x = np.arange(100_000) / 7
    for theirs, mine in ((x, snp.array(x)), (x * 1j, snp.array(x) * 1j)):
        if dtype == "c8" or theirs is x:
            a, b = theirs.astype(dtype), mine.astype(dtype)
            assert str(b.dtype) == str(a.dtype)
            assert np.asarray(b).dtype.byteorder == a.dtype.byteorder
            np.testing.assert_array_equal(np.asarray(b[-9:]), a[-9:])


def test_operators_with_dates_are_numpys() -> None:
    """Of large arrays too: the result is NumPy's, and in place it does not fit."""
    seconds, step = snp.arange(100_000), np.timedelta64(1, "s")
    expected = np.arange(100_000) * step
    for moved in (seconds * step, step * seconds, seconds * np.full(100_000, step)):
        assert type(moved) is np.ndarray
        np.testing.assert_array_equal(moved, expected)
    days = np.datetime64("2024-03-01") + seconds * step
    assert str(days[-1]) == "2024-03-02T03:46:39"
    with pytest.raises(TypeError):
        seconds += step
