"""Reading one element per row of a product becomes a reduction, in any spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs, passes
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal

N, V, D = 7, 13, 5
RANDOM = np.random.default_rng(20_14)
X, Y, W = (RANDOM.standard_normal(s).astype(np.float32) for s in ((N, D), (N, D), (V, D)))
LABELS = RANDOM.integers(0, V, N)


def each(xp: Any, z: Any, labels: Any) -> Any:
    top = xp.max(z, axis=1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(z - top), axis=1)) + top[:, 0]
    return total - xp.take_along_axis(z, labels[:, None], axis=1)[:, 0]


def both_ways(xp: Any, x: Any, y: Any) -> Any:
    """In-batch negatives: each row and each column against all others, the diagonal is right."""
    z, labels = 2.0 * (x @ y.T), xp.arange(x.shape[0])
    return each(xp, z, labels) + each(xp, z.T, labels)


def beside_sums(xp: Any, x: Any, w: Any, labels: Any) -> Any:
    """What is picked is multiplied by a sum that is not a product's."""
    z = x @ w.T
    scaled = z * xp.sum(w * w, axis=1)
    return xp.take_along_axis(scaled, labels[:, None], axis=1) + xp.max(z, axis=1, keepdims=True)


def doubled(xp: Any, z: Any) -> Any:
    """Each line reads the one before twice."""
    for _ in range(40):
        z = 0.5 * (z + xp.tanh(z))
    return z


def deep(xp: Any, x: Any, w: Any, labels: Any) -> Any:
    z = doubled(xp, x @ w.T)
    return xp.take_along_axis(z, labels[:, None], axis=1) + xp.sum(z, axis=1, keepdims=True)


def deep_transposed(xp: Any, x: Any, w: Any, labels: Any) -> Any:
    z = doubled(xp, (x @ w.T).T)
    return z[labels, xp.arange(x.shape[0])] + xp.sum(z, axis=0)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "both ways": (both_ways, (X, Y), 0),
    "beside sums": (beside_sums, (X, W, LABELS), 1),
    "deep": (deep, (X, W, LABELS), 0),
    "deep, turned": (deep_transposed, (X, W, LABELS), 0),
}


def planned(code: Callable[..., Any], arrays: tuple[Any, ...]) -> Graph:
    trace = sm.jit(lambda *xs: code(sm, *xs)).lower(*arrays).trace
    return passes.run(trace.graph, Journal(), knobs.ROUNDING.get())


@pytest.mark.parametrize(("code", "arrays", "reads"), CASES.values(), ids=CASES)
def test_gathers_become_reductions(
    code: Callable[..., Any], arrays: tuple[Any, ...], reads: int
) -> None:
    names = [node.op.name for node in planned(code, arrays).nodes()]
    assert names.count("gather") == reads  # of what is stored anyway
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    actual = np.asarray(sm.jit(lambda *xs: code(sm, *xs))(*arrays))
    np.testing.assert_allclose(actual, code(np, *wide), rtol=3e-5, atol=1e-6)
