"""Reshapes to written numbers: sizes that they stand for are known, whatever else is open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt as sm


def recordings(f: Any) -> int:
    return sum(len(traces) for traces in f.traces.values())


def heads(x: Any, w: Any) -> Any:
    return sm.permute_dims(sm.reshape(x @ w, (4, -1, 2, 8)), (0, 2, 1, 3))


def test_sizes_that_numbers_stand_for_are_known() -> None:
    """Places are split row by row: nothing is divided by a size."""
    rng = np.random.default_rng(0)
    f = sm.jit(heads)
    w = rng.integers(-3, 4, (16, 16)).astype("f4")
    for n in (5, 7, 12):
        x = rng.integers(-3, 4, (4, n, 16)).astype("f4")
        want = (x @ w).reshape(4, n, 2, 8).transpose(0, 2, 1, 3)
        assert np.array_equal(np.asarray(f(x, w)), want)
    assert recordings(f) == 1
    report = sm.explain(f, x, w)
    assert not any("//" in k.text for k in report.kernels)


def test_other_sizes_that_fit_are_right_as_well() -> None:
    f = sm.jit(lambda x: sm.reshape(x, (4, -1, 3)) + 1)
    for shape in ((4, 5, 3), (4, 9, 3), (2, 10, 6), (8, 5, 3), (2, 6, 1), (1, 4, 3), (4, 0, 3)):
        x = np.arange(np.prod(shape), dtype="f4").reshape(shape)
        assert np.array_equal(np.asarray(f(x)), x.reshape(4, -1, 3) + 1), shape
    with pytest.raises(sm.errors.ShapeError):
        f(np.zeros((5, 5, 5), "f4"))


def test_sizes_on_both_sides_stay_open() -> None:
    """Rows of [n,3,7] become rows of 21: 3 and 7 are fixed, n is not."""
    f = sm.jit(lambda x: sm.reshape(x, (x.shape[0], 21)) * 2)
    g = sm.jit(lambda x: sm.reshape(x, (7, x.shape[0], -1, 2)) * 2)
    for n in (5, 9, 17):
        x = np.arange(n * 21.0).reshape(n, 3, 7)
        assert np.array_equal(np.asarray(f(x)), x.reshape(n, 21) * 2)
        y = np.arange(n * 84.0).reshape(n, 12, 7)
        assert np.array_equal(np.asarray(g(y)), y.reshape(7, n, -1, 2) * 2)
    assert recordings(f) == recordings(g) == 1
    h = sm.jit(lambda x: sm.reshape(x, (4, -1, 3)) * 2)  # 3 n by 12: n by 4
    for n in (8, 20, 12):
        x = np.arange(n * 3.0).reshape(n, 3)
        assert np.array_equal(np.asarray(h(x)), x.reshape(4, -1, 3) * 2)
    assert recordings(h) == 1
    x = np.arange(4 * 21.0).reshape(4, 7, 3)
    assert np.array_equal(np.asarray(f(x)), x.reshape(4, 21) * 2)
    with pytest.raises(sm.errors.ShapeError):
        f(np.zeros((4, 7, 4)))


def test_sizes_of_another_array_stay_open() -> None:
    """Queries' sizes are asked for once and used for keys, as attention is written: those of equal
    values are equal from then on.  Each was a number, and every length was compiled anew."""

    def split(q: Any, k: Any) -> Any:
        b, n, d = q.shape
        q, k = (sm.reshape(x, (b, n, 2, d // 2)) for x in (q, k))
        return sm.reshape(q * k, (b * n, d)) + sm.reshape(k, (b * n, -1))

    def restored(x: Any, like: Any) -> Any:
        return sm.reshape(sm.reshape(x, (-1,)) * 2, like.shape) + like

    f, g, h = sm.jit(split), sm.jit(restored), sm.jit(lambda x: sm.reshape(x, (-1, 4, 4)) * 2)
    for n in (5, 16, 2, 9):
        q, k = np.arange(3 * n * 8.0).reshape(3, n, 8), np.arange(3 * n * 8.0).reshape(3, n, 8) % 7
        assert np.array_equal(np.asarray(f(q, k)), (q * k + k).reshape(3 * n, 8))
        assert np.array_equal(np.asarray(g(q, k)), q * 2 + k)
        z = np.arange(n * 16.0).reshape(n, 2, 2, 2, 2)
        assert np.array_equal(np.asarray(h(z)), z.reshape(-1, 4, 4) * 2)
    assert [recordings(f), recordings(g), recordings(h)] == [1, 1, 1]
    q, k = np.ones((3, 4, 8)), np.ones((4, 3, 8))  # as many elements, otherwise arranged
    assert np.asarray(f(q, k)).shape == (12, 8) and recordings(f) == 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_reshape_at_any_sizes(data: Any) -> None:
    """The recording of one call serves, or not, further calls: they are right either way."""
    goal = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3))
    goal[data.draw(st.integers(0, len(goal) - 1))] = -1
    f = sm.jit(lambda x: sm.reshape(x * 2, tuple(goal)))
    for _ in range(3):
        shape = data.draw(st.lists(st.integers(0, 6), min_size=3, max_size=3))
        x = np.arange(np.prod(shape), dtype="f4").reshape(shape)
        try:
            want = (x * 2).reshape(goal)
        except ValueError:
            with pytest.raises(sm.errors.ShapeError):
                f(x)
            continue
        assert np.array_equal(np.asarray(f(x)), want), (shape, goal)


@pytest.mark.parametrize("named", [True, False])
def test_numbers_of_groups_are_found_without_division_by_element(named: bool) -> None:
    """Rows of groups are scaled by a value per group without divisions per element."""

    def scaled(x: Any, m: Any) -> Any:
        n, c, h, w = x.shape
        rows = (n, 4, c // 4 * h * w) if named else (2, 4, -1)
        return sm.reshape(sm.reshape(x, rows) * m[:, :, None], x.shape)

    f = sm.jit(scaled)
    for h, w in ((5, 3), (1, 7), (4, 4)):
        x = np.arange(2 * 8 * h * w, dtype="f4").reshape(2, 8, h, w)
        m = np.arange(8, dtype="f4").reshape(2, 4)
        want = (x.reshape(2, 4, -1) * m[:, :, None]).reshape(x.shape)
        assert np.array_equal(np.asarray(f(x, m)), want)
    (kernel,) = sm.explain(f, x, m).kernels
    assert kernel.text.count("//") == 1  # a channel's group
    assert "%" not in kernel.text
