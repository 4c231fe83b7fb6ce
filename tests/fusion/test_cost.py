"""Terms of the cost model that a formula decides, apart from any plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fusion.formulas import MACHINE

import smelt as sm
from smelt.fusion.predict import costs

Array = np.ndarray[Any, Any]


def arithmetic_ns(function: Callable[..., Any], *arrays: Array) -> float:
    """Predicted nanoseconds of arithmetic, over all kernels."""
    with sm.config(cache=False):
        trace = sm.jit(function).lower(*arrays).trace
    return sum(c.arithmetic for c in costs(trace.executable.plan, MACHINE, trace.hints))


def distances(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction of the differences of all pairs of rows."""
    return lambda x, z: reduce(x[:, None] - z[None], axis=-1)


@pytest.mark.parametrize(("columns", "ratio"), [(3, 1.9), (256, 0.0)])
def test_each_term_of_a_short_sum_is_converted(columns: int, ratio: float) -> None:
    """A maximum converts nothing, and a long sum adds pairs of terms first."""
    x, z = np.empty((900, columns), "f4"), np.empty((700, columns), "f4")
    longest, total = (arithmetic_ns(distances(r), x, z) for r in (sm.max, sm.sum))
    assert total > ratio * longest
    assert ratio or total <= longest


def test_a_stream_converts_the_terms_of_its_short_sums() -> None:
    """A kernel regression: the sums of three squares cost more than their exponential."""

    def weighted(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def function(x: Any, z: Any, y: Any) -> Any:
            weights = sm.exp(-reduce(sm.square(x[:, None] - z[None]), axis=-1))
            return (weights @ y) / sm.sum(weights, axis=1, keepdims=True)

        return function

    x, z, y = (np.empty(shape, "f4") for shape in ((2048, 3), (2048, 3), (2048, 4)))
    longest, total = (arithmetic_ns(weighted(r), x, z, y) for r in (sm.max, sm.sum))
    assert total > 1.3 * longest
