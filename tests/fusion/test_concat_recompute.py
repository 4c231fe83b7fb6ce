"""Concatenated arrays that are read repeatedly are stored or recomputed, like any value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.fusion.units import Units
from smelt.graph.text import parse
from smelt.ops.view import Concat

Array = np.ndarray[Any, Any]


def padded(x: Any, k: int) -> Any:
    """The border of a picture, repeated k times on every side."""
    for _ in range(k):
        x = sm.concat([x[:1], x, x[-1:]], axis=0)
        x = sm.concat([x[:, :1], x, x[:, -1:]], axis=1)
    return x


def windows(x: Any, k: int) -> Any:
    """Sums over windows of the picture with margins."""
    p, (h, w) = padded(x, k), x.shape
    m = 2 * k + 1
    return sum(sm.exp(p[i : i + h, j : j + w] - x) for i in range(m) for j in range(m))


def concatenations(f: Any, *shapes: tuple[int, ...]) -> tuple[int, int]:
    """How many joins there are, and how many of them are units."""
    graph = parse(sm.jit(f).lower(*(sm.spec(s, sm.float32) for s in shapes)).as_text())
    units = Units(graph)
    results = [n for n in graph.nodes() if isinstance(n.op, Concat)]
    return len(results), sum(map(units.is_unit, results))


def test_a_padded_image_is_read_in_place() -> None:
    """Rows are tested at their ends alone; margins of margins are written once."""
    assert concatenations(lambda x: windows(x, 1), (40, 40)) == (2, 0)
    assert concatenations(lambda x: windows(x, 2), (40, 40)) == (4, 1)
    kernels = [
        sm.explain(lambda x, k=k: windows(x, k), np.ones((90, 90), np.float32)).kernels
        for k in (1, 2)
    ]
    assert len(kernels[0]) == 1 and len(kernels[1]) <= 3


def test_a_padded_image_is_written_once_for_products() -> None:
    def dots(x: Any, w: Any) -> Any:
        p = padded(x, 2)
        rows = [p[i : i + 40, j : j + 40] for i in range(5) for j in range(5)]
        return sm.matmul(sm.stack(rows, axis=2), w)

    assert concatenations(dots, (40, 40), (25, 7))[1] >= 2


def test_a_concatenation_that_is_read_once_is_free() -> None:
    assert concatenations(lambda x, y: sm.exp(sm.concat([x, y])), (40,), (40,)) == (1, 0)

    def three(x: Any) -> Any:
        p = sm.concat([sm.zeros(2, dtype=sm.float32), x])
        return p[2:] + p[1:-1] + p[:-2]

    assert concatenations(three, (40,)) == (1, 0)


def test_many_columns_concatenated_into_a_factor() -> None:
    def rotated(x: Any, y: Any) -> Any:
        return sm.matmul(sm.stack([x[:, k] for k in range(9)], axis=1), y)

    assert concatenations(rotated, (40, 9), (9, 5)) == (1, 1)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (17, 30), (1, 90)])
def test_values_do_not_depend_on_it(shape: tuple[int, int], k: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    p = np.pad(x.astype(np.float64), k, mode="edge")
    m, (h, w) = 2 * k + 1, shape
    wanted = sum(np.exp(p[i : i + h, j : j + w] - x) for i in range(m) for j in range(m))
    actual = np.asarray(sm.jit(lambda x: windows(x, k))(x))
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)
