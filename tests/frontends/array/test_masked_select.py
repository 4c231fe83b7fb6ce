"""`x[mask]` inside a recording: used in computations and written back under the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import DTypeError, IndexRangeError, ShapeError, TracerError


def _in_place(x: Any, y: Any) -> Any:
    x = x + 0
    x[x > 0.5] += 10
    x[x < 0.2] *= 2.0 - y[0]
    mask = (x >= 0.2) & (x < 0.3)
    x[mask] /= x[mask] + 3
    x[mask] -= 1 / x[mask]
    return x


def _functions(xp: Any, x: Any, y: Any) -> Any:
    x = x + 0
    mask = x > 0.4
    x[mask] = xp.sqrt(x[mask]) * y[mask] + abs(-y[mask])
    x[~mask] = xp.maximum(y[~mask], 0.25) ** 2
    x[y < 0.1] = xp.minimum(0.5, -x[y < 0.1])
    return x


def _rows(x: Any, y: Any) -> Any:
    """A mask of rows, with what goes along them."""
    x = x + 0
    rows = y > 0.5
    x[rows] = x[rows] * x[0] + 1
    x[rows,] += x[1]
    return x


@pytest.mark.parametrize("n", [5, 40])
def test_what_a_mask_chooses_is_written_back(n: int) -> None:
    rng = np.random.default_rng(n)
    x, y, table = rng.random(n), rng.random(n), rng.random((n, 3))
    functions: list[tuple[Callable[..., Any], Callable[..., Any], Any]] = [
        (_in_place, _in_place, x),
        (lambda *a: _functions(sm, *a), lambda *a: _functions(np, *a), x),
        (_rows, _rows, table),
    ]
    for ours, numpys, inputs in functions:
        expected = numpys(inputs, y)
        np.testing.assert_allclose(sm.jit(ours)(inputs, y), expected, rtol=1e-14)
        lazy = ours(sm.asarray(inputs), sm.asarray(y))
        np.testing.assert_allclose(lazy, expected, rtol=1e-14)


def test_integers_keep_their_kind() -> None:
    def f(x: Any, by: Any) -> Any:
        x = x + 0
        x[x > 2] -= by
        return x

    x = np.arange(5)
    assert sm.jit(f)(x, np.int64(2)).tolist() == [0, 1, 2, 1, 2]
    with pytest.raises(DTypeError):
        sm.jit(f)(x, np.float64(2))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: sm.sum(x[x > 0]),
        lambda x: x[x > 0] + x,
        lambda x: x[x > 0] + x[x > 1],
        lambda x: x[x > 0] @ x,
        lambda x: np.ones(3) * x[x > 0],
        lambda x: np.exp(x[x > 0]),
        lambda x: np.asarray(x[x > 0]),
        lambda x: list(x[x > 0]),
        lambda x: x[x > 0] == 1 or x,
        lambda x: x[x > 0],
        lambda x: len(x[x > 0]),
        lambda x: x[x > 0].shape,
        lambda x: x[x > 0][0],
    ],
)
def test_what_needs_their_number_is_an_error(wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):  # a TracerError is one
        sm.jit(wrong)(np.arange(3.0))


def test_another_mask_or_other_ranks_are_an_error() -> None:
    def write(x: Any, to: Any, key: Any) -> Any:
        y = to + 0
        y[key] = x[x > 1]
        return y

    x = np.arange(3.0)
    with pytest.raises(TracerError):
        sm.jit(lambda x: write(x, x, x > 0))(x)
    with pytest.raises(TracerError):
        sm.jit(lambda x: write(x, x, slice(None)))(x)
    with pytest.raises(ShapeError):
        sm.jit(lambda x, t: write(x, t, x > 1))(x, np.zeros((3, 3)))
    with pytest.raises(IndexRangeError):
        sm.jit(lambda x, t: t[x > 1] * 2)(x, np.zeros(4))


def test_derivatives_where_what_is_not_chosen_cannot_harm() -> None:
    """0 times an infinite derivative is NaN: only what has none is differentiated so."""

    def shifted(x: Any) -> Any:
        y = x * x
        y[y > 1] -= 1
        y[y > 5] *= 3.0
        y[y < 0.5] = -y[y < 0.5]
        return sm.sum(y)

    def rooted(x: Any) -> Any:
        y = x + 0
        y[x > 0] = sm.sqrt(y[x > 0])
        return sm.sum(y)

    x = np.asarray([-0.5, 0.9, 2.0, 3.0])
    for slope in (sm.grad(shifted), sm.jit(sm.grad(shifted)), sm.grad(sm.jit(shifted))):
        np.testing.assert_allclose(slope(x), [1, 1.8, 4, 18])
    np.testing.assert_allclose(sm.jit(rooted)(x), np.sqrt(x[1:]).sum() - 0.5)
    with pytest.raises(TracerError, match="differentiated"):
        sm.jit(sm.grad(rooted))(x)


def _updates(xp: Any) -> list[Any]:
    """Updates by masks, often enough that the interpreter specialises their instructions."""
    x = xp.reshape(xp.arange(12.0), (3, 4))
    mask, rows = x > 4, xp.asarray([True, False, True])
    for _ in range(12):
        x[mask] += 1
        x[rows] *= 2.0
        x[rows] += xp.arange(4.0)
        x[mask] += x[mask]
        x[mask] -= xp.ones(int(xp.count_nonzero(mask)))
        x[mask] /= 3
        x[rows] -= x[1]
        x[x > 2] **= 0.5
    whole = xp.flip(xp.arange(12))
    whole = whole + 0
    whole[whole > 3] //= 2
    whole[whole % 2 == 0] <<= 1
    return [x, whole]


def test_updates_outside_of_recordings_are_those_of_numpy() -> None:
    for actual, expected in zip(_updates(sm), _updates(np), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_updates_compute_nothing_until_they_are_read() -> None:
    x = sm.asarray(np.arange(6.0)) + 0
    mask = x > 2
    x[mask] += 1
    assert x.node.data is None
    assert mask.node.data is None
    np.testing.assert_array_equal(x, [0, 1, 2, 4, 5, 6])


def test_update_writes_where_the_mask_is_true_after_the_right_side() -> None:
    def update(xp: Any) -> Any:
        x = xp.reshape(xp.arange(12.0), (3, 4))
        mask = x > 4

        def change() -> float:
            mask[0, 0], mask[2, 3] = True, False
            return 10.0

        x[mask] += change()
        return x

    np.testing.assert_array_equal(update(sm), update(np))


def test_update_errors_are_those_of_reads_and_writes() -> None:
    x = sm.asarray(np.arange(3))
    with pytest.raises(DTypeError):
        x[x > 0] += 0.5
    with pytest.raises(IndexRangeError):
        x[sm.asarray([True])] += 1
    with pytest.raises(ShapeError):
        x[x > 0] += [1, 2, 3]
    np.testing.assert_array_equal(x, [0, 1, 2])


@pytest.mark.parametrize("kind", ["i1", "i8", "f2", "f4", "f8", "b1"])
def test_selected_elements_are_those_of_numpy(kind: str) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(kind)
    for mask in (x > x.dtype.type(1), x[:, :, 0] == x[0, 1, 0], np.asarray([False, True])):
        for y in (x, np.asfortranarray(x)):
            np.testing.assert_array_equal(sm.asarray(y)[sm.asarray(mask)], y[mask])
    np.testing.assert_array_equal(np.stack(sm.nonzero(sm.asarray(x))), np.stack(np.nonzero(x)))
