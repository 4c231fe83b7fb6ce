"""Chains of recomputed neighbours are cut before they grow."""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm


def tree(s: Any, steps: int) -> Any:
    """The value of an option by a binomial tree, from the leaves to the root."""
    k = sm.arange(steps + 1, dtype=sm.float32)
    v = sm.maximum(100 - s * sm.exp((2 * k - steps) * 0.02), 0)
    for _ in range(steps):
        v = (v[1:] * 0.51 + v[:-1] * 0.49) * 0.999
    return v


def wanted(s: float, steps: int) -> Any:
    k = np.arange(steps + 1, dtype=np.float64)
    v = np.maximum(100 - s * np.exp((2 * k - steps) * 0.02), 0)
    for _ in range(steps):
        v = (v[1:] * 0.51 + v[:-1] * 0.49) * 0.999
    return v


def test_a_tree_is_not_written_out() -> None:
    """A tree of steps is not expanded.

    Each step reads two positions of the one before: expanded, it would be half as many expressions
    as the square of the steps.
    """
    s = np.float32(97.0)
    lines: dict[int, int] = {}
    for steps in (15, 30, 60):
        report = sm.explain(lambda s, n=steps: tree(s, n), s)
        lines[steps] = sum(len(k.text.splitlines()) for k in report.kernels)
        actual = np.asarray(sm.jit(lambda s, n=steps: tree(s, n))(s))
        np.testing.assert_allclose(actual, wanted(97.0, steps), rtol=3 * steps * 2.0**-23)
    assert lines[30] < 2.5 * lines[15]
    assert lines[60] < 2.5 * lines[30]


def test_short_chains_are_one_kernel() -> None:
    s = np.float32(97.0)
    assert len(sm.explain(lambda s: tree(s, 8), s).kernels) == 1
