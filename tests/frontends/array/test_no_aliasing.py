"""Independent arrays share no memory: writing to or donating one leaves the others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import TracerError


def written(x: Any, number: float) -> None:
    """NumPy writes to the memory of an array."""
    np.asarray(x)[...] = number


def test_numbers_that_became_arrays_are_not_the_constants_of_others() -> None:
    """Equal constants were one value: what NumPy wrote to one array was in all later programs."""
    for make in (lambda: sm.asarray(2.5), lambda: sm.full((), 2.5), lambda: sm.zeros(()) + 2.5):
        written(make(), 7)
        assert float(sm.asarray(2.5)) == 2.5
        assert (sm.ones(3) * 2.5).tolist() == sm.full(3, 2.5).tolist() == [2.5] * 3
    a = sm.asarray(2.5)
    written(a, 7)
    assert float(a) == 7
    assert sm.jit(lambda x: x * a)(np.ones(2)).tolist() == [7, 7]


@pytest.mark.parametrize(
    "make",
    [
        lambda: sm.asarray(3.25),
        lambda: sm.asarray(True),
        lambda: sm.asarray(7),
        lambda: sm.ones(()),
        lambda: sm.asarray(np.float64(3.25)),
        lambda: sm.optim.adam(1e-2)[0]({"w": np.ones(3)}),
    ],
)
def test_numbers_are_donated_time_and_again(make: Callable[[], Any]) -> None:
    f = sm.jit(lambda x: x, donate=0)
    for _ in range(3):
        f(make())
    assert (sm.ones(2) * 3.25 + 7.0).tolist() == [10.25, 10.25]


def test_cached_numbers_are_distinguished() -> None:
    """Programs that read them in other places were taken for one another."""
    a, b, v = sm.asarray(2.5), sm.asarray(1.0), sm.asarray(np.ones(2))
    assert float(a) - float(b) == 1.5
    assert ((v - a) * (v * b) / (v + a)).tolist() == [-1.5 / 3.5] * 2
    assert ((v - a) * (v * a) / (v + b)).tolist() == [-1.875] * 2


COPIES: dict[str, Callable[[Any], Any]] = {
    "asarray": lambda x: sm.asarray(x, copy=True),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "astype": lambda x: sm.astype(x, x.dtype),
    "reshape": lambda x: sm.reshape(x, x.shape, copy=True),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_copies_pending_or_not(how: str) -> None:
    for compiled_before in (False, True):
        x = sm.ones(3) + 1
        if compiled_before:
            assert float(x[0]) == 2
        y, z = COPIES[how](x), COPIES[how](x)
        written(y, 9)
        assert sm.jit(lambda s: s + 1, donate=0)(z).tolist() == [3] * 3
        assert x.tolist() == [2] * 3


def test_copies_of_what_is_captured_may_be_written_inside_jit() -> None:
    start = sm.asarray(np.ones(3))

    @sm.jit
    def f(x: Any) -> Any:
        y = sm.asarray(start, copy=True)
        y[1:] += x
        return y

    assert f(2.0).tolist() == [1, 3, 3]
    assert f(3.0).tolist() == [1, 4, 4]
    assert start.tolist() == [1] * 3


def test_a_recording_writes_to_copies_of_constants() -> None:
    constant = sm.asarray(np.arange(4.0))
    before = sm.asarray(np.zeros(2))

    def taken(x: Any) -> Any:
        y, z, w = constant[1:], sm.asarray([1.0, 2.0]), +constant
        y[0], w[-1] = x, x
        z += x
        return y, z, w

    f = sm.jit(taken)
    for x in (5.0, 6.0):
        y, z, w = f(x)
        assert y.tolist() == [x, 2, 3]
        assert z.tolist() == [1 + x, 2 + x]
        assert w.tolist() == [0, 1, 2, x]
    assert constant.tolist() == [0, 1, 2, 3]

    def write(x: Any) -> Any:
        before[0] = x
        return x

    with pytest.raises(TracerError, match="from outside"):
        sm.jit(write)(2.0)


def test_results_that_are_equal_have_memory_of_their_own() -> None:
    """They are computed once; the second was overwritten where the first one was donated."""
    a, b = sm.jit(lambda x: (x + 1, x + 1))(np.ones((2, 2)))
    assert sm.jit(lambda s: s * 2, donate=0)(a).tolist() == [[4, 4], [4, 4]]
    assert b.tolist() == [[2, 2], [2, 2]]
    x, y = sm.ones(3) + 1, sm.ones(3) + 1
    written(x, 9)
    assert y.tolist() == [2] * 3


SAME: dict[str, Callable[[Any], Any]] = {
    "turned twice": lambda x: x.T.T,
    "times one": lambda x: x * 1.0,
    "reversed twice": lambda x: sm.flip(sm.flip(x)),
    "greater of both": lambda x: sm.maximum(x, x),
    "a row of one": lambda x: x[None][0],
}


def _captured(turn: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    f = sm.jit(lambda one: (one, turn(x)))
    return lambda: f(1.0)[1]


CALLS: dict[str, Callable[..., Callable[[], Any]]] = {
    "outside": partial,
    "argument": lambda turn, x: partial(sm.jit(turn), x),
    "captured": _captured,
}


@pytest.mark.parametrize("how", SAME)
@pytest.mark.parametrize("where", CALLS)
def test_what_is_found_to_be_equal_has_memory_of_its_own(how: str, where: str) -> None:
    """Results that the compiler found to be operands were given out as them."""
    data = np.arange(12.0).reshape(3, 4)
    for change in (lambda x: written(x, 9), sm.jit(lambda s: s + 1, donate=0)):
        for times in (1, 4):
            x = sm.asarray(data, copy=True)
            call = CALLS[where](SAME[how], x)
            y = [call() for _ in range(times)][-1]
            assert y.tolist() == data.tolist()
            change(y)
            assert x.tolist() == data.tolist()


def test_gradients_are_neither_the_factors_that_they_equal_nor_each_other() -> None:
    def slopes(x: Any, y: Any, z: Any) -> Any:
        return sm.grad(lambda x, y, z: sm.sum(x * y + y + z), (0, 1, 2))(x, y, z)

    for f in (slopes, sm.jit(slopes)):
        for copied in (np.asarray, lambda x: sm.asarray(x, copy=True)):
            x, y, z = (copied(np.arange(3.0) + k) for k in range(3))
            for _ in range(4):
                for change in (lambda s: written(s, 7), lambda s: s.__imul__(9)):
                    a, b, c = f(x, y, z)
                    assert a.tolist() == [1, 2, 3]
                    change(a)
                    assert b.tolist() == [1, 2, 3]
                    change(b)
                    assert c.tolist() == [1, 1, 1]
            assert [x.tolist(), y.tolist()] == [[0, 1, 2], [1, 2, 3]]
    a, b = sm.jit(sm.grad(lambda x, y: sm.sum(x + y), (0, 1)))(np.ones(2), np.ones(2))
    written(a, 7)
    assert b.tolist() == [1, 1]


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_arguments_are_copies(how: str) -> None:
    f = sm.jit(COPIES[how])
    x, data = sm.asarray(np.ones(3), copy=True), np.ones(3)
    for _ in range(4):
        for inputs in (x, data):
            y = f(inputs)
            y *= 5
            written(f(inputs), 9)
            assert inputs.tolist() == [1] * 3


def test_numpys_arrays_that_are_given_back_are_still_numpys() -> None:
    data = np.arange(3.0)
    y = sm.jit(lambda x: x)(data)
    z = y + 1  # small memory of others is copied when an operator first reads it
    data[:] = 9
    assert z.tolist() == [1, 2, 3]
    sm.jit(lambda x: x + 1, donate=0)(sm.jit(lambda x: x)(data))
    assert data.tolist() == [9] * 3
