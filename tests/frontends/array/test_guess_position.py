"""Vectors that are searched from a guess: the error is a bound, and results are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array.searching import GUESSED_VALUES, guess_error
from smelt.ops.extern import Extern
from smelt.ops.index import Gather

RNG = np.random.default_rng(5)
COUNT = GUESSED_VALUES
TABLES = {
    "even": np.linspace(-3.0, 7.0, 1000),
    "even, far from zero": np.linspace(1e9, 1e9 + 1, 300),
    "even and wide": np.linspace(-3e38, 3e38, 500),
    "almost even": np.linspace(0.0, 1.0, 1000) + RNG.uniform(-4e-4, 4e-4, 1000),
    "random": RNG.random(2000),
    "bent": np.linspace(0.0, 1.0, 1000) ** 1.1,
    "squares": np.linspace(0.0, 1.0, 1000) ** 2,
    "equal elements": np.repeat(np.linspace(0.0, 1.0, 250), 4),
    "steep": np.exp(np.linspace(0.0, 40.0, 200)),
    "constant": np.ones(200),
    "infinite ends": np.concatenate([[-np.inf], np.linspace(0, 1, 200), [np.inf]]),
    "one infinite": np.concatenate([np.linspace(0, 1, 200), [np.inf]]),
    "missing at the end": np.concatenate([np.linspace(0, 1, 200), [np.nan, np.nan]]),
}
UNGUESSED = ("squares", "steep", "constant", "infinite ends", "one infinite", "missing at the end")
"""Tables whose ends say too little about the elements between."""


def values_for(table: Any) -> Any:
    """Return values inside, outside, at and beside the elements, and special ones."""
    finite = table[np.isfinite(table)]
    low, high = float(finite.min()), float(finite.max())
    middle = low / 2 + high / 2
    spread = max(high / 2 - low / 2, 1.0)
    inside = middle + spread * RNG.uniform(-1.05, 1.05, COUNT)
    beside = [np.nextafter(finite, np.inf), np.nextafter(finite, -np.inf), finite]
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, low, high]
    with np.errstate(over="ignore"):
        return np.concatenate([inside, *beside, special]).astype(table.dtype)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TABLES)
def test_positions_are_numpys(name: str, side: str, dtype: str) -> None:
    with np.errstate(over="ignore"):
        table = np.sort(TABLES[name].astype(dtype))
    values = values_for(table)
    expected = np.searchsorted(table, values, side=side)  # type: ignore[call-overload]
    for order in (values, np.sort(values)):
        positions = np.asarray(sm.searchsorted(sm.asarray(table), sm.asarray(order), side=side))
        assert positions.dtype == np.int64
        wanted = expected if order is values else np.searchsorted(table, order, side=side)  # type: ignore[call-overload]
        assert np.array_equal(positions, wanted)


@pytest.mark.parametrize("name", TABLES)
def test_no_guess_is_farther_off_than_the_error(name: str) -> None:
    table = np.sort(TABLES[name])
    error = guess_error(table)
    if error is None:
        assert name in UNGUESSED
        return
    values = values_for(table)
    values = values[(values >= table[0]) & (values < table[-1])]
    guess = np.rint((values - table[0]) * ((len(table) - 1) / (table[-1] - table[0])))
    places = np.searchsorted(table, values, side="right")
    assert (places >= guess - error).all() and (places <= guess + error + 1).all()


def test_ends_whose_difference_overflows_say_nothing() -> None:
    assert guess_error(np.linspace(-1.0, 1.0, 100) * 1.7e308) is None


def operators(array: Any) -> list[Any]:
    """Return the operators that an array waits for."""
    stack, visited = [array.node], set[Any]()
    while stack:
        x = stack.pop()
        if x not in visited:
            visited.add(x)
            stack.extend(x.inputs)
    return [x.op for x in visited]


@pytest.mark.parametrize(
    ("table", "reads"), [("even", 1), ("bent", 7), ("squares", 11), ("steep", 9)]
)
def test_few_elements_are_read_for_each_value(table: str, reads: int) -> None:
    values = sm.asarray(RNG.random(1 << 17))
    ops = operators(sm.searchsorted(sm.asarray(TABLES[table]), values))
    assert not any(isinstance(op, Extern) for op in ops)
    assert sum(isinstance(op, Gather) for op in ops) == reads


def test_an_even_vector_is_searched_without_a_look_at_the_values() -> None:
    values = sm.asarray(RNG.random(COUNT)) * 2
    positions = sm.searchsorted(sm.asarray(TABLES["even"]), values)
    assert values.node.data is None and positions.node.data is None


def test_long_runs_of_sorted_values_are_merged() -> None:
    values = sm.asarray(np.linspace(0.0, 1.0, 1 << 17))
    ops = operators(sm.searchsorted(sm.asarray(TABLES["random"][:1000]), values))
    assert any(isinstance(op, Extern) for op in ops)


def test_a_vector_that_changes_is_measured_again() -> None:
    table = sm.asarray(np.linspace(0.0, 1.0, 1000))
    values = RNG.random(COUNT)
    for power in (1, 3):
        elements = np.linspace(0.0, 1.0, 1000) ** power
        table[:] = elements
        positions = sm.searchsorted(table, sm.asarray(values))
        assert np.array_equal(positions, np.searchsorted(elements, values))


@pytest.mark.parametrize("count", [2, 5, 100, 1000])
def test_interpolation_is_numpys(count: int) -> None:
    for points in (np.linspace(0.0, 1.0, count), np.sort(RNG.random(count))):
        heights = RNG.standard_normal(count)
        x = np.concatenate([RNG.uniform(-0.2, 1.2, COUNT), points, [np.nan, np.inf, -np.inf]])
        positions = np.asarray(sm.interp(*map(sm.asarray, (x, points, heights))))
        np.testing.assert_allclose(positions, np.interp(x, points, heights), rtol=1e-12, atol=1e-12)
