"""Repeated work on equal types in a recording is cached, and nothing wrong is learnt."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import smelt as sm
from smelt.errors import LeakError, ShapeError

WORK: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "first": lambda x, y: x[0],
    "new": lambda x, y: x[:, None],
    "steps": lambda x, y: x[1::2],
    "tail": lambda x, y: x[..., 1:3],
    "mean": lambda x, y: sm.mean(x, axis=0),
    "reshape": lambda x, y: sm.reshape(x, (-1,)),
    "matmul": lambda x, y: x @ y.T,
    "roll": lambda x, y: sm.roll(x, 1, axis=0),
    "std": lambda x, y: sm.std(x, axis=1),
}


def _pair(n: int, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    draw = np.random.default_rng(n)
    return draw.random((n, k)), draw.random((n, k))


@pytest.mark.parametrize("name", WORK)
def test_what_is_recorded_twice_is_right_for_other_sizes_too(name: str) -> None:
    work = WORK[name]

    @sm.jit
    def both(x: Any, y: Any) -> tuple[Any, Any]:
        return work(x, y), work(y, x) * 2

    for n, k in ((6, 5), (4, 3), (1, 4), (7, 7), (3, 1)):
        x, y = _pair(n, k)
        if k < 2 and name == "tail":
            continue
        one, two = both(x, y)
        assert_array_equal(np.asarray(one), np.asarray(work(sm.asarray(x), sm.asarray(y))))
        assert_array_equal(np.asarray(two), np.asarray(work(sm.asarray(y), sm.asarray(x))) * 2)


def test_what_a_later_step_says_about_sizes_holds_for_what_was_remembered() -> None:
    """`x + y` says that lengths are equal, `reshape` that one is even, after x[1:] was asked."""

    @sm.jit
    def f(x: Any, y: Any) -> tuple[Any, ...]:
        a, b = x[1:], y[1:]
        halves = sm.reshape(x, (2, -1))
        return a, b, x + y, x[1:], y[1:], halves, sm.reshape(y, (2, -1)), x[1:] + y[1:]

    for n in (8, 6, 2, 12):
        x, y = np.arange(n) * 1.0, np.arange(n) * 3.0
        wanted = (
            x[1:],
            y[1:],
            x + y,
            x[1:],
            y[1:],
            x.reshape(2, -1),
            y.reshape(2, -1),
            (x + y)[1:],
        )
        for got, want in zip(f(x, y), wanted, strict=True):
            assert_array_equal(np.asarray(got), want)
    with pytest.raises(ShapeError):
        f(np.ones(8), np.ones(6))
    with pytest.raises(ShapeError):
        f(np.ones(7), np.ones(7))


@pytest.mark.parametrize("name", WORK)
def test_a_value_of_an_ended_recording_is_refused_though_its_work_is_known(name: str) -> None:
    kept: list[Any] = []

    @sm.jit
    def leaky(x: Any, y: Any) -> Any:
        kept[:] = [x, y, WORK[name](x, y)]
        return x

    leaky(*_pair(6, 5))
    with pytest.raises(LeakError):
        WORK[name](*kept[:2])


def _calls(work: Callable[..., Any], times: int) -> int:
    """How many Python functions `times` records of `work` call, after one."""
    watch = cProfile.Profile()

    @sm.jit
    def f(x: Any, y: Any) -> Any:
        work(x, y)
        watch.enable()
        for _ in range(times):
            work(x, y)
        watch.disable()
        return x

    f(*_pair(6, 5))
    return pstats.Stats(watch).total_calls  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WORK)
def test_recording_again_takes_few_steps(name: str) -> None:
    """In Python calls, which do not depend on how busy the machine is."""
    assert _calls(WORK[name], 100) < 100 * 150
