"""A plan serves all sizes, and gives way to another where there is much more to compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import warm


def blurred(u: Any) -> Any:
    for _ in range(3):
        u = u[:-2] + u[1:-1] + u[2:]
    return u


@pytest.mark.parametrize("wrap", [sm.jit, lambda f: lambda x: f(sm.asarray(x))])
def test_where_there_is_much_more_to_compute_a_program_is_planned_anew(
    wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    real = warm.compile

    def compiled(graph: Any, *, hints: Any, **options: Any) -> Any:
        made.append(hints)
        return real(graph, hints=hints, **options)

    monkeypatch.setattr(warm, "compile", compiled)
    f = wrap(blurred)
    for n, plans in ((20, 1), (50, 1), (2000, 2), (20, 2), (1999, 2), (21, 2)):
        x = np.arange(float(n)) ** 2
        assert np.array_equal(np.asarray(f(x)), blurred(x))
        assert len(made) == plans, n


def test_a_report_is_about_the_plan_of_its_sizes() -> None:
    f = sm.jit(blurred)
    few, many = (len(sm.explain(f, np.ones(n)).kernels) for n in (30, 10**6))
    assert few <= many
    assert len(next(iter(f.traces.values()))) == 2
