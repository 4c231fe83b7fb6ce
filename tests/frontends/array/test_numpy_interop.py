"""Smelt arrays as operands of NumPy's operators and ufuncs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import LeakError
from smelt.frontends.array.ufuncs import OPERATORS, expected_references

LEFT = (np.arange(1.0, 5), np.arange(1, 5, dtype=np.float32), np.float64(3), np.float32(3))
WHOLE = ("and_", "or_", "xor", "lshift", "rshift")


@pytest.mark.parametrize("f", OPERATORS.values(), ids=lambda f: f.__name__)
def test_operators_beside_numpy_are_ours(f: Callable[[Any, Any], Any]) -> None:
    whole = f.__name__ in WHOLE
    right = np.full(4, 2, np.int64 if whole else np.float64)
    for left in (np.arange(1, 5), np.int64(3)) if whole else LEFT:
        if f is operator.matmul and not left.ndim:
            continue
        actual = f(left, sm.asarray(right))
        assert isinstance(actual, sm.Array)
        assert np.asarray(actual).tolist() == f(left, right).tolist()


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


def _whole(x: Any) -> Any:
    """Every way to name a buffer that nobody else refers to, and operators that have read it."""
    named = {"k": np.arange(4.0).reshape(2, 2)}
    named["k"] += sm.reshape(x, (2, 2))
    velocity, place = np.zeros(4), np.ones(4)
    place += velocity * x
    velocity += x
    place -= velocity

    def inner() -> None:
        nonlocal place
        place *= x

    inner()
    square = np.eye(2)
    square @= named["k"]
    return place, square


def _seen_by_a_view(x: Any) -> Any:
    buffer = np.zeros(4)
    view = buffer[1:]
    buffer += x
    return view + x[1:]


def _part_of_another(x: Any) -> Any:
    table = np.zeros((2, 4))
    for row in table:
        row += x
    return table + x


def _seen_by_a_caller(x: Any) -> Any:
    def add(buffer: Any) -> None:
        buffer += x

    buffer = np.zeros(4)
    add(buffer)
    return buffer + x


def _seen_by_an_array(x: Any) -> Any:
    buffer = np.zeros(4)
    kept = sm.asarray(buffer)
    buffer += x
    return kept + x


def _out(x: Any) -> Any:
    buffer = np.zeros(4)
    np.add(buffer, x, out=buffer)
    return buffer + x


def _out_where(x: Any) -> Any:
    buffer = np.zeros(4)
    return np.add(buffer, x, where=buffer > 0, out=buffer)


def test_a_buffer_that_nobody_else_sees_is_renamed_however_it_is_called() -> None:
    x = np.arange(4.0)
    for actual, expected in zip(sm.jit(_whole)(x), _whole(x), strict=True):
        assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "f",
    [_seen_by_a_view, _part_of_another, _seen_by_a_caller, _seen_by_an_array, _out, _out_where],
)
def test_a_buffer_that_would_not_be_written_is_an_error(f: Callable[[Any], Any]) -> None:
    """The recording went on without the values, and what saw the buffer had wrong numbers."""
    x = np.arange(4.0)
    with pytest.raises(sm.errors.TracerError, match="NumPy"):
        sm.jit(f)(x)
    with pytest.raises(sm.errors.GradientError, match="NumPy"):
        sm.grad(lambda x: sm.sum(f(x)))(x)


def test_references_are_counted_as_python_calls_functions_now() -> None:
    """Under torch.compile a caller holds its arguments too, and what had been counted was wrong."""
    pytest.importorskip("torch")
    from torch._C._dynamo import eval_frame

    expected_references.cache_clear()
    eval_frame.set_eval_frame(False)  # as in a call of a program of torch.compile
    try:
        for f in (_seen_by_a_view, _seen_by_an_array):
            with pytest.raises(sm.errors.TracerError, match="NumPy"):
                sm.jit(f)(np.arange(4.0))
    finally:
        eval_frame.set_eval_frame(None)


class Counts:
    """Adds up what it is called with, in a buffer that nothing else refers to."""

    def __init__(self) -> None:
        self.total, self.own = np.zeros(4), self

    def __call__(self, x: Any) -> Any:
        self.total += x
        return self.total * 2


def _counted() -> Callable[[Any], Any]:
    total = np.zeros(4)

    def f(x: Any) -> Any:
        nonlocal total
        total += x
        return total

    return f


@pytest.mark.parametrize("f", [Counts().__call__, _counted()], ids=["attribute", "closure"])
def test_a_buffer_that_outlives_the_recording_is_no_local_name(f: Callable[[Any], Any]) -> None:
    """A second call wrote to nothing, and gave what the first had given."""

    def of_its_own(x: Any) -> Any:
        counts = Counts()
        return counts(x)

    with pytest.raises(LeakError, match="buffer of NumPy's"):
        sm.jit(f)(np.ones(4))
    assert sm.jit(of_its_own)(np.ones(4)).tolist() == [2, 2, 2, 2]


def test_in_place_in_a_recording_keeps_type_and_shape() -> None:
    def f(x: Any, start: Any) -> Any:
        buffer = np.zeros_like(start)
        buffer += x
        return buffer

    x = sm.arange(4.0)
    assert sm.jit(lambda x: f(x, np.zeros(4, np.float32)))(x).dtype == sm.float32
    with pytest.raises(sm.errors.DTypeError):
        sm.jit(lambda x: f(x, np.zeros(4, int)))(x)
    with pytest.raises(sm.errors.ShapeError):
        sm.jit(lambda x: f(x, np.zeros(1)))(x)


@pytest.mark.parametrize("n", [4, 4000])
def test_a_buffer_that_is_written_after_it_was_read_in_a_recording_is_an_error(n: int) -> None:
    """Calls read it when they run, as it was after the last write: 8 where NumPy has 1."""

    def f(x: Any) -> Any:
        buffer = np.zeros(n)
        y = buffer + x
        buffer[0] = 7
        return y

    with pytest.raises(sm.errors.ChangedError, match="written by f"):
        sm.jit(f)(np.ones(n))


def test_other_ufuncs_take_values_and_give_numpys() -> None:
    x = sm.asarray([1.0, 4.0])
    for actual in (np.sqrt(x), np.add(x, 0), np.maximum(x, np.ones(2)), np.multiply.outer(x, x)[0]):
        assert isinstance(actual, np.ndarray)
    assert np.add.reduce(x) == 5
    with pytest.raises(TypeError):
        np.add(np.ones(2), 1, out=x)  # type: ignore[call-overload]


def test_what_a_mask_chose_is_written_in_place_for_all_who_hold_it() -> None:
    def scaled(c: Any) -> None:
        c *= 10

    def f(x: Any) -> Any:
        x = x + 0
        mask = x > 0
        c = x[mask]
        d = c
        scaled(c)
        d += 1
        x[mask] = c
        return x

    x = np.array([0.0, 1.0, 4.0, -2.0])
    np.testing.assert_array_equal(np.asarray(sm.jit(f)(x)), f(x))


def test_a_write_anywhere_to_what_a_recording_has_read_is_seen() -> None:
    def f(x: Any) -> Any:
        a = np.zeros(600)
        y = x + a
        a[7] = 5.0
        return y

    with pytest.raises(sm.errors.ChangedError, match="after an operator had read it"):
        sm.jit(f)(np.zeros(600))


@pytest.mark.parametrize("f", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_complex_operands_give_complex_arrays(f: Callable[[Any, Any], Any]) -> None:
    values = np.arange(1.0, 5)
    x = sm.asarray(values)
    for other in (2 + 1j, np.complex128(1j), np.arange(1, 5) * 1j, np.ones(4, np.complex64)):
        for actual, wanted in ((f(x, other), f(values, other)), (f(other, x), f(other, values))):
            assert isinstance(actual, sm.Array)
            np.testing.assert_allclose(actual, wanted, rtol=1e-15)
            assert actual.dtype.numpy == wanted.dtype
    np.testing.assert_allclose(sm.jit(lambda x: f(x, 1j))(x), f(values, 1j), rtol=1e-15)
