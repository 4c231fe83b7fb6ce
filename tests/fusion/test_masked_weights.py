"""Weights that a mask sets to zero are summed in the pass that normalises them.

`where(mask, e / sum(e), 0) @ v` is summed before the divisor is known.  A row without an unmasked
element stays zero, even where its divisor or its maximum leaves no number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

Rows = Callable[[Any, Any, Any, Any], Any]


def weights(xp: Any, s: Any) -> Any:
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


PROGRAMS: dict[str, Rows] = {
    "zero second": lambda xp, s, m, v: xp.where(m, weights(xp, s) / 0.9, 0.0) @ v,
    "zero first": lambda xp, s, m, v: xp.where(~m, 0.0, weights(xp, s)) @ v,
    "sum": lambda xp, s, m, v: xp.sum(xp.where(m, weights(xp, s), 0.0) * 2, axis=-1),
    "two masks": lambda xp, s, m, v: xp.where(m, xp.where(s > 0, weights(xp, s), 0.0), 0.0) @ v,
    "masked values": lambda xp, s, m, v: xp.where(m, weights(xp, s), 0.0) @ xp.where(v > 0, v, 0.0),
}
FEW, SOME = 3, 700


def rows(seed: int) -> tuple[Any, Any, Any]:
    """Scores, mask and values with rows of every kind: masked out, -inf, +inf, NaN."""
    random = np.random.default_rng(seed)
    length = int(random.choice([1, FEW, 64, SOME]))
    s = random.standard_normal((8, length)).astype("f4")
    m = random.random((8, length)) < random.choice([0.02, 0.5, 0.9])
    s[0], m[1] = -np.inf, False
    s[2], m[2] = -np.inf, False
    s[3, random.integers(length)] = np.inf
    s[4, random.integers(length)] = np.nan
    s[5] = random.choice(np.asarray([-np.inf, 0], "f4"), size=length)
    m[6] = False
    s[6, random.integers(length)] = random.choice(np.asarray([np.inf, np.nan], "f4"))
    return s, m, random.standard_normal((length, 5)).astype("f4")


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_numpy_s_for_every_kind_of_row(name: str) -> None:
    program = PROGRAMS[name]
    function = sm.jit(lambda s, m, v: program(sm, s, m, v))
    for seed in range(12):
        s, m, v = rows(seed)
        with np.errstate(all="ignore"):
            wanted = program(np, s.astype("f8"), m, v.astype("f8"))
        # A weighted mean of at most 700 values of size 4, each weight within a few ulp.
        np.testing.assert_allclose(np.asarray(function(s, m, v)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "sum"])
def test_rows_are_visited_once(name: str) -> None:
    s = np.zeros((512, 4096), "f4")
    m, v = np.ones(s.shape, bool), np.zeros((4096, 64), "f4")
    program = PROGRAMS[name]
    report = sm.explain(lambda s, m, v: program(sm, s, m, v), s, m, v)
    (kernel,) = report.kernels
    assert kernel.text.count("\n  stream ") == 1, kernel.text
