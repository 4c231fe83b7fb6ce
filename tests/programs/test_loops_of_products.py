"""Python loops over products: code and queries grow no faster than the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.codegen.llvm.schedule.build_nests import _Planner

RNG = np.random.default_rng(3)


def play(a: Any, turns: int) -> Any:
    """Multiplicative weights for both players of a matrix game: two products a turn."""
    x = sm.ones(a.shape[0]) / a.shape[0]
    y = sm.ones(a.shape[1]) / a.shape[1]
    for _ in range(turns):
        x = x * sm.exp(0.1 * (a @ y))
        x = x / sm.sum(x)
        y = y * sm.exp(-0.1 * (a.mT @ x))
        y = y / sm.sum(y)
    return x @ a @ y


def march(origin: Any, ways: Any, turns: int) -> Any:
    """Sphere tracing: each turn reads the sum of all before it in three places."""
    t = sm.zeros(ways.shape[0])
    for _ in range(turns):
        p = origin[None] + ways * t[:, None]
        t = t + sm.minimum(sm.sqrt(sm.sum(p * p, axis=1)) - 1.0, p[:, 1] + 1.0)
    return t


def test_kernels_hold_a_dozen_products_at_most() -> None:
    a = RNG.standard_normal((6, 7))
    report = sm.explain(lambda a: play(a, 20), a)
    products = [sum(" = dot(" in line for line in k.text.splitlines()) for k in report.kernels]
    assert max(products) <= 12 <= sum(products)
    x, y = np.ones(6) / 6, np.ones(7) / 7
    for _ in range(20):
        x = x * np.exp(0.1 * (a @ y))
        x /= x.sum()
        y = y * np.exp(-0.1 * (a.T @ x))
        y /= y.sum()
    np.testing.assert_allclose(sm.jit(play, static_argnums=1)(a, 20), x @ a @ y, rtol=1e-10)


def test_questions_about_costs_grow_with_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = 0
    plain = _Planner._cost_of

    def counted(*args: Any) -> float:
        nonlocal queries
        queries += 1
        return plain(*args)

    monkeypatch.setattr(_Planner, "_cost_of", counted)
    counts: list[int] = []
    for turns in (6, 12):
        queries = 0
        sm.explain(lambda o, w, n=turns: march(o, w, n), RNG.random(3), RNG.random((10, 3)))
        counts.append(queries)
    assert 0 < counts[1] <= 4.5 * counts[0]  # the square of the turns at most, not a power
