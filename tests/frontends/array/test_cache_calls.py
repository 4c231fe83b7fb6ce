"""Equal calls of array functions repeat their operators, and nothing but equal calls do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import AxisError, ShapeError, TracerError
from smelt.frontends.array import manipulation
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.value import Value

RNG = np.random.default_rng(0)
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "roll": (lambda x: sm.roll(x, 2, axis=1), lambda x: np.roll(x, 2, 1)),
    "roll both": (lambda x: sm.roll(x, (1, -1), (0, 1)), lambda x: np.roll(x, (1, -1), (0, 1))),
    "roll flat": (lambda x: sm.roll(x, -3), lambda x: np.roll(x, -3)),
    "sum": (lambda x: sm.sum(x, axis=1, keepdims=True), lambda x: x.sum(1, keepdims=True)),
    "sum of a dtype": (lambda x: sm.sum(x, dtype=sm.float32), lambda x: x.sum(dtype="f4")),
    "mean": (lambda x: sm.mean(x, axis=(0, 1)), lambda x: x.mean()),
    "std": (lambda x: sm.std(x, axis=0, ddof=1), lambda x: x.std(0, ddof=1)),
    "max": (lambda x: x.max(axis=-1), lambda x: x.max(-1)),
    "any": (lambda x: sm.any(x > 0, axis=0), lambda x: (x > 0).any(0)),
    "clip": (lambda x: sm.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5)),
    "where": (lambda x: sm.where(x > 0, x, 0.0), lambda x: np.where(x > 0, x, 0.0)),
    "where twice": (lambda x: sm.where(x > 0, x, x), lambda x: x),
    "reshape": (lambda x: sm.reshape(x, (5, -1)), lambda x: x.reshape(5, -1)),
    "copy": (lambda x: sm.reshape(x, (4, 5), copy=True), lambda x: x),
    "transpose": (lambda x: x.T, lambda x: x.T),
    "moveaxis": (lambda x: sm.moveaxis(x, 0, 1), lambda x: x.T),
    "expand_dims": (lambda x: sm.expand_dims(x, axis=1), lambda x: x[:, None]),
    "flip": (lambda x: sm.flip(x, axis=0), lambda x: x[::-1]),
    "zeros": (lambda x: sm.zeros((2, 3)), lambda x: np.zeros((2, 3))),
    "full": (lambda x: sm.full((2, 3), -0.0), lambda x: np.full((2, 3), -0.0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls_see_the_elements_of_their_time(name: str) -> None:
    ours, theirs = CALLS[name]
    for _ in range(4):
        x = RNG.standard_normal((4, 5))
        result, expected = np.asarray(ours(sm.asarray(x))), theirs(x)
        np.testing.assert_allclose(result, expected, rtol=1e-6)
        assert result.dtype == expected.dtype and result.shape == expected.shape
        pending = sm.asarray(x) * 2
        np.testing.assert_allclose(np.asarray(ours(pending)), theirs(2 * x), rtol=1e-6)


def test_a_third_equal_call_does_not_run_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sm.asarray(RNG.standard_normal((3, 7)))
    for _ in range(2):
        sm.moveaxis(x, 0, -1)

    def fails(*_: Any) -> None:
        raise AssertionError("the function ran again")

    monkeypatch.setattr(manipulation, "axis_list", fails)
    assert sm.moveaxis(x, 0, -1).shape == (7, 3)
    with pytest.raises(AssertionError, match="ran again"):
        sm.moveaxis(x, 0, 1)


def test_keys_tell_numbers_apart() -> None:
    for _ in range(3):
        signs = [np.signbit(np.asarray(sm.full(2, zero))).all() for zero in (0.0, -0.0)]
        assert signs == [False, True]
        kinds = [sm.full(2, one).dtype for one in (1, 1.0, True)]
        assert kinds == [sm.int64, sm.float64, sm.bool]
        x = sm.asarray([1.0, 2.0])
        assert [float(sm.sum(sm.clip(x, low, None))) for low in (1.5, 2.5)] == [3.5, 5.0]
        assert math.isnan(float(sm.full((), math.nan)))


def test_errors_are_raised_by_every_call() -> None:
    x = sm.asarray(np.ones((2, 3)))
    for _ in range(3):
        with pytest.raises(AxisError):
            sm.sum(x, axis=2)
        with pytest.raises(ShapeError):
            sm.reshape(x, (4, 2))


def test_results_are_arrays_of_their_own() -> None:
    x = sm.asarray(np.arange(6.0))
    for _ in range(3):
        first, second = sm.zeros(3), sm.zeros(3)
        first[0] = 1.0
        assert second.tolist() == [0.0, 0.0, 0.0]
        flipped = sm.flip(x)
        flipped[0] = -1.0
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert sm.reshape(x, (6,)).tolist() == x.tolist()


def test_calls_that_see_memory_of_others_are_repeated_with_its_elements() -> None:
    data = np.arange(4.0)
    x = sm.asarray(data, copy=False)
    for k in range(4):
        data[0] = k
        assert float(sm.sum(x)) == 6.0 + k


def test_recordings_and_derivatives_run_the_function() -> None:
    x = np.arange(4.0)
    for _ in range(3):
        assert np.array_equal(sm.jit(lambda x: sm.roll(x, 1))(x), np.roll(x, 1))
        gradient = sm.grad(lambda x: sm.sum(sm.roll(x, 1) * sm.asarray(x)))(sm.asarray(x))
        assert np.array_equal(gradient, np.roll(x, 1) + np.roll(x, -1))
    with pytest.raises(TracerError):
        sm.jit(lambda x: sm.zeros(int(sm.sum(x))))(x)


def test_an_array_that_was_computed_is_no_part_of_what_is_repeated() -> None:
    """A result that another array was computed for would keep the elements of that call."""
    x = sm.asarray(np.ones((2, 2)))
    for k in range(4):
        fill = sm.asarray(float(k))
        assert sm.full((2,), fill).tolist() == [k, k]
        assert sm.where(x > 0, fill, x).tolist() == [[k, k], [k, k]]


def test_origins_are_those_of_each_call() -> None:
    x = sm.asarray(np.ones((2, 3)))
    lines = set[int]()
    for _ in range(3):
        a = sm.roll(x, 1, axis=1).node.origin
        b = sm.roll(x, 1, axis=1).node.origin
        assert a is not None and b is not None and b.line == a.line + 1
        assert a.file == __file__
        lines.add(a.line)
    assert len(lines) == 1


def test_few_operators_are_recorded_for_a_call() -> None:
    x = sm.asarray(np.ones((2, 3)))
    for _ in range(3):
        node: Value = sm.roll(x, 1, axis=1).node
        assert node.op.name == "concat" and len(node.inputs) == 2
        assert shape_of(node) == (2, 3)
