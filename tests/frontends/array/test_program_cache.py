"""Repeated lazy programs are found in the program cache by operators, values and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array import evaluate_pending, program_cache


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    program_cache.PROGRAMS.clear()
    yield
    program_cache.PROGRAMS.clear()


def _different(rng: Any) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Programs as functions of a namespace and arrays."""
    x, y = rng.standard_normal((2, 7)).astype(np.float32)
    table, at = rng.standard_normal((5, 7)), rng.integers(0, 5, 4)
    yield lambda xp, x, y: x + y, (x, y)
    yield lambda xp, x, y: (x * 2 + y * 3.5) / (1.25 + x * x), (x, y)
    yield lambda xp, x, y: xp.sum(xp.where(x > 0, x, y)), (x, y)
    yield lambda xp, t, i: t[i] * t[1:, None, 2][:, 0][0], (table, at)
    yield lambda xp, x, y: xp.sort(x) + xp.concat([y[3:], y[:3]]), (x, y)
    yield lambda xp, x, y: (x - xp.mean(x)) / xp.std(x) + x, (x, y)


@pytest.mark.parametrize("native", [True, False])
def test_they_compute_what_numpy_does(native: bool) -> None:
    for seed in range(5):
        for f, arrays in _different(np.random.default_rng(seed)):
            with sm.config(native_calls=native):
                actual = f(sm, *map(sm.asarray, arrays))
                np.testing.assert_allclose(actual, f(np, *arrays), rtol=2e-6, atol=1e-6)


def test_the_third_time_nothing_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)

    def run() -> None:
        for f, arrays in _different(rng):
            np.asarray(f(sm, *map(sm.asarray, arrays)))

    for _ in range(2):
        run()
    monkeypatch.setattr(evaluate_pending, "Program", None)
    run()


def test_numbers_may_be_others() -> None:
    x = np.asarray([1.0, -2.0, 3.0])
    numbers = [*[3.0] * 3, *[7.0] * 3, *[0.0, -0.0] * 3, np.nan, 1, True, 5, 7.0]
    for k in numbers * 2:
        actual = np.asarray(sm.asarray(x) * k + k)
        np.testing.assert_array_equal(actual, x * k + k)
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(x * k + k))


def test_padding_with_either_zero_is_distinguished() -> None:
    """-0.0 became 0, and a lazy program with the other zero was taken for this one."""
    for k in [0.0, -0.0] * 4:
        actual = np.asarray(sm.pad(sm.asarray(np.ones(2)), ((1, 1),), constant_values=k) * 1.5)
        edge = bool(np.signbit(k))
        assert np.signbit(actual).tolist() == [edge, False, False, edge]


def test_sizes_types_and_layouts_are_distinguished() -> None:
    x = np.arange(24.0).reshape(4, 6)
    forms: list[Any] = [x, x[:2], x.T, x[::2], x[:, 1:], x.astype(np.float32), x[:0], x[:1], x[0]]
    for _ in range(4):
        for form in forms:
            np.testing.assert_array_equal(sm.asarray(form) * 2 + 1, form * 2 + 1)
            np.testing.assert_array_equal(np.asarray(sm.sum(sm.asarray(form))), form.sum())


def test_what_is_checked_stays_checked() -> None:
    table, at = sm.asarray(np.arange(5.0)), np.asarray([0, 4])
    source = np.arange(4000.0)
    for _ in range(4):
        places = sm.asarray(at) + 0
        assert sm.take(table, places).tolist() == [0, 4]
        with pytest.raises(sm.errors.OutsideError):
            np.asarray(sm.take(table, sm.asarray(at) + 1))
        pending = sm.asarray(source) + 1
        source[0] += 1
        with pytest.raises(sm.errors.ChangedError):
            np.asarray(pending)
        with pytest.raises(sm.errors.ExternError) as caught:
            np.asarray(sm.linalg.inv(sm.asarray(np.zeros((2, 2)))))
        assert "linalg.inv" in caught.value.origin.text
        assert caught.value.origin.file == __file__


def test_settings_are_part_of_what_ran() -> None:
    x = sm.asarray(np.arange(6.0))
    for rounding in ("fast", "exact", "fast", "exact", "eager", "exact"):
        with sm.config(rounding=rounding):
            np.testing.assert_allclose(np.asarray(sm.exp(x) * 2), np.exp(np.arange(6.0)) * 2)
    assert len({key[0] for key in program_cache.PROGRAMS}) == 3


def test_results_have_memory_of_their_own() -> None:
    x = sm.asarray(np.arange(4.0))
    kept = [np.asarray(x + 1) for _ in range(6)]
    for k, y in enumerate(kept):
        y[:] = k
    assert [y.tolist() for y in kept] == [[k] * 4 for k in range(6)]
    again = [x + 1 for _ in range(3)]
    assert all(np.asarray(y).tolist() == [1, 2, 3, 4] for y in again)
