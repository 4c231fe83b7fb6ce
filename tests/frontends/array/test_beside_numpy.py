"""Arrays of ours as operands of NumPy's operators and ufuncs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.frontends.array.ufuncs import OPERATORS

LEFT = (np.arange(1.0, 5), np.arange(1, 5, dtype=np.float32), np.float64(3), np.float32(3))
WHOLE = ("and_", "or_", "xor", "lshift", "rshift")


@pytest.mark.parametrize("f", OPERATORS.values(), ids=lambda f: f.__name__)
def test_operators_beside_numpy_are_ours(f: Callable[[Any, Any], Any]) -> None:
    whole = f.__name__ in WHOLE
    right = np.full(4, 2, np.int64 if whole else np.float64)
    for left in (np.arange(1, 5), np.int64(3)) if whole else LEFT:
        if f is operator.matmul and not left.ndim:
            continue
        found = f(left, sm.asarray(right))
        assert isinstance(found, sm.Array)
        assert np.asarray(found).tolist() == f(left, right).tolist()


def test_in_place_numpy_writes_its_own_buffer() -> None:
    """The name got another array, and views of the buffer did not see the result."""
    buffer, x = np.zeros(4), sm.asarray(np.full(4, 2.0))
    view = buffer[:2]
    kept = buffer
    buffer += x * 3
    buffer -= 1.0
    buffer *= x
    assert buffer is kept
    assert view.tolist() == [10, 10]
    square = np.eye(2)
    square @= sm.ones((2, 2))
    assert square.tolist() == [[1, 1], [1, 1]]
    counts = np.zeros(4, int)
    with pytest.raises(TypeError):
        counts += x


def test_in_a_recording_the_name_gets_an_array_of_ours() -> None:
    def f(x: Any) -> Any:
        total = np.zeros(4)
        for _ in range(3):
            total += x
        return total

    x = np.arange(4.0)
    assert sm.jit(f)(x).tolist() == [0, 3, 6, 9]
    for slope in (sm.grad, lambda g: sm.jit(sm.grad(g))):
        assert slope(lambda x: sm.sum(f(x) ** 2))(x).tolist() == [0, 18, 36, 54]


def test_other_ufuncs_take_values_and_give_numpys() -> None:
    x = sm.asarray([1.0, 4.0])
    for found in (np.sqrt(x), np.add(x, 0), np.maximum(x, np.ones(2)), np.multiply.outer(x, x)[0]):
        assert isinstance(found, np.ndarray)
    assert np.add.reduce(x) == 5
    with pytest.raises(TypeError):
        np.add(np.ones(2), 1, out=x)  # type: ignore[call-overload]
