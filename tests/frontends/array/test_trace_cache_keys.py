"""A cached trace is what recording anew gives; distinct values of equal types stay distinct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array import subscript

X = np.arange(12.0).reshape(3, 4).astype(np.float32)
ROWS, COLUMNS = np.array([2, 0, -1]), np.array([1, 1, 3])

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "the same index twice, then two": (lambda x, i, j: x[i, i], lambda x, i, j: x[i, j]),
    "two indices, then the same twice": (lambda x, i, j: x[i, j], lambda x, i, j: x[i, i]),
    "an index after a number": (lambda x, i, j: x[0, i], lambda x, i, j: x[i, 0]),
    "an index after a slice": (lambda x, i, j: x[1:, i], lambda x, i, j: x[2:, j]),
    "an index behind a new axis": (lambda x, i, j: x[None, i], lambda x, i, j: x[i, None]),
    "zeros of both signs": (lambda x, i, j: 1 / (x * 0.0), lambda x, i, j: 1 / (x * -0.0)),
    "a number of each kind": (lambda x, i, j: i * 2, lambda x, i, j: i * 2.0),
    "true and one": (lambda x, i, j: (i > 0) | True, lambda x, i, j: i + 1),
    "a number before and behind": (lambda x, i, j: x - 2, lambda x, i, j: 2 - x),
    "choices of the same": (
        lambda x, i, j: sm.where(x > 4, x, x),
        lambda x, i, j: sm.where(x > 4, x, -x),
    ),
    "choices of numbers": (
        lambda x, i, j: sm.where(x > 4, x, 0.0),
        lambda x, i, j: sm.where(x > 4, x, 1.0),
    ),
    "joined in another order": (
        lambda x, i, j: sm.concat([i, j, i]),
        lambda x, i, j: sm.concat([i, i, j]),
    ),
    "stacked in another order": (
        lambda x, i, j: sm.stack([i, i, j]),
        lambda x, i, j: sm.stack([j, i, i]),
    ),
    "taken along another axis": (
        lambda x, i, j: sm.take(x, i, axis=0),
        lambda x, i, j: sm.take(x, j, axis=1),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_recording_distinguishes_what_differs(pair: str) -> None:
    def both(x: Any, i: Any, j: Any) -> Any:
        return tuple(f(x, i, j) for f in (*PAIRS[pair], *PAIRS[pair]))

    inputs = X, ROWS, COLUMNS
    result = sm.jit(both)(*inputs)
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = [sm.jit(f)(*inputs) for f in PAIRS[pair]]
    for k, x in enumerate(result):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(wanted[k % 2]))


def test_an_index_is_read_once_for_all_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    parse = subscript.parse

    def noted(x: Any, key: Any) -> Any:
        seen.append(key)
        return parse(x, key)

    monkeypatch.setattr(subscript, "parse", noted)
    sm.jit(lambda x, i: x[i] + x[i - 1] + (x + 1)[i])(X, ROWS)
    assert len(seen) == 1


def test_positions_out_of_bounds_are_reported_where_work_is_repeated() -> None:
    @sm.jit
    def twice(x: Any, i: Any, j: Any) -> Any:
        return x[i], x[j]

    with pytest.raises(sm.errors.OutsideError):
        twice(X, ROWS, np.array([0, 1, 3]))


def test_an_index_is_a_number_of_the_dimension_in_each_recording() -> None:
    @sm.jit
    def twice(x: Any, i: Any) -> Any:
        return x[i], x[i + 1]

    for rows in (3, 5):
        x = np.arange(2.0 * rows).reshape(rows, 2)
        i = np.array([-1, 0, -rows])
        for actual, wanted in zip(twice(x, i), (x[i], x[i + 1]), strict=True):
            np.testing.assert_array_equal(np.asarray(actual), wanted)
