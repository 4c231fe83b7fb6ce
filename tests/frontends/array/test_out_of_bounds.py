"""Positions out of bounds are errors in array code, lazily and jitted, in every call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import OutsideError
from smelt.runtime import call_cache

X = np.arange(10.0)
TABLE = np.arange(20.0).reshape(10, 2)


def at(*positions: int) -> Any:
    return np.array(positions)


def _put(x: Any, i: Any) -> Any:
    y = x * 1
    y[i] = 7
    return y


CASES = {
    "index": (lambda x, i: x[i] * 2, at(-1, -10, 9), at(1, 10, 0), at(2, -11, 0)),
    "take": (lambda x, i: sm.take(x, i) + 1, at(0, -1, 9), at(1, 10, 0), at(-11, 1, 0)),
    "along": (lambda x, i: sm.take_along_axis(x, i, axis=0), at(0, -1), at(10, 1), at(-11, 1)),
    "put": (_put, at(0, -1), at(10, 1), at(-11, 1)),
    "add": (lambda x, i: x.at[i].add(1), at(0, -1), at(10, 1), at(-11, 1)),
    "segments": (lambda x, i: sm.segment_sum(x[:2], i, 10), at(0, 9), at(10, 1), at(-1, 1)),
    "several": (lambda x, i: (x[i], [sm.sum(x)]), at(0, 9), at(10, 1), at(-11, 1)),
    "short": (lambda x, i: x[sm.astype(i, sm.int8)], at(0, -10), at(100, 1), at(-100, 1)),
    "unsigned": (lambda x, i: x[sm.astype(i, sm.uint64)], at(0, 9), at(10, 1), at(-1, 1)),
    "computed": (lambda x, i: x[i * 2 + 1], at(0, 4), at(5, 1), at(-6, 1)),
}


def first(x: Any) -> Any:
    return np.asarray(x[0] if isinstance(x, tuple) else x)


@pytest.mark.parametrize("name", CASES)
def test_positions_out_of_bounds_are_errors(name: str) -> None:
    f, inside, *outside = CASES[name]
    compiled = sm.jit(f)
    wanted = first(f(sm.asarray(X), sm.asarray(inside)))
    for _ in range(4):  # later calls are made by native code
        np.testing.assert_array_equal(first(compiled(X, inside)), wanted)
        for positions in outside:
            with pytest.raises(OutsideError) as caught:
                compiled(X, positions)
            assert isinstance(caught.value, IndexError)
            assert "test_out_of_bounds.py" in str(caught.value)
    for positions in outside:
        with pytest.raises(OutsideError, match=r"test_out_of_bounds\.py"):
            first(f(sm.asarray(X), sm.asarray(positions) * 1))
    actual = first(f(sm.asarray(X), sm.asarray(inside) * 1))
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("mode", ["lazy", "jit"])
def test_the_one_is_named(mode: str) -> None:
    def f(x: Any, i: Any, j: Any) -> Any:
        first = x[i]  # of both
        return first + (x * 2)[j * 3]

    for positions, reported in ((at(1, 12), "12 of"), (at(1, -11), "-11 of")):
        inputs = [sm.asarray(a) * 1 for a in (X, positions, at(1, 1))]
        run = sm.jit(f) if mode == "jit" else lambda *a: first(f(*a))
        with pytest.raises(OutsideError, match=f"position {reported} an axis of 10") as caught:
            run(*inputs)
        assert "x[i]  # of both" in str(caught.value)
    with pytest.raises(OutsideError, match="position 15 of an axis of 10") as caught:
        sm.jit(f)(X, at(0, 1), at(1, 5))
    assert "[j * 3]" in str(caught.value)


def test_lines_are_those_of_the_program_that_fails() -> None:
    x, i = sm.asarray(X), sm.asarray(at(1, 2))
    assert sm.sum(x[i * 2]).tolist() == 6  # which plans such programs
    with pytest.raises(OutsideError, match="position 16") as caught:
        sm.sum(x[i * 8]).tolist()  # of another line
    assert "of another line" in str(caught.value)


def test_what_somebody_else_writes_is_looked_at_again() -> None:
    index = np.array([1, 2])
    f = sm.jit(lambda x: x[sm.asarray(index)])
    assert f(X).tolist() == [1, 2]
    index[0] = 10
    with pytest.raises(OutsideError):
        f(X)


def test_out_and_donated_arguments() -> None:
    f = sm.jit(lambda x, i: x[i] * 2)
    out = np.zeros(2)
    f(X, at(1, 2), out=out)
    assert out.tolist() == [2, 4]
    with pytest.raises(OutsideError):
        f(X, at(1, 10), out=out)
    g = sm.jit(lambda x, i: x.at[i].add(1), donate=(0,))
    assert g(X.copy(), at(1, 2)).tolist()[:3] == [0, 2, 3]
    with pytest.raises(OutsideError):
        g(X.copy(), at(1, 10))


def test_compiled_ahead_of_time() -> None:
    f = sm.jit(lambda x, i: x[i]).lower(sm.spec("f64[n]"), sm.spec("i64[m]")).compile()
    assert f(X, at(-1, 2)).tolist() == [9, 2]
    with pytest.raises(OutsideError):
        f(X, at(10, 2))


def test_gradients_look_once() -> None:
    slope = sm.jit(sm.grad(lambda x, i: sm.sum(x[i] ** 2)))
    assert slope(X, at(1, 1, 2)).tolist() == [0, 4, 4, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(OutsideError) as caught:
        slope(X, at(1, 1, 10))
    assert " or " not in caught.value.message


def test_positions_that_count_are_compared_with_sizes() -> None:
    f = sm.jit(lambda x, n: x[sm.arange(n)])
    assert f(X, 4).tolist() == [0, 1, 2, 3] and f(X, 10).shape == (10,)
    with pytest.raises(OutsideError):
        f(X, 11)
    assert f(X, 7).shape == (7,)
    with pytest.raises(OutsideError):
        sm.jit(lambda x: x[sm.arange(x.shape[0]) + 1])(X)


COUNTED = {
    "odd": (lambda x: x[sm.arange(x.shape[0]) * 2 - 1], (0, 1, 2), (3, 7)),
    "remainder": (lambda x: x[sm.arange(x.shape[0]) * 3 % 4], (0, 1, 4), (2, 3)),
    "square": (lambda x: x[sm.arange(x.shape[0]) ** 2], (0, 1, 2), (3,)),
    "in front": (lambda x: x[-2 - sm.arange(x.shape[0])], (0,), (1, 2, 7)),
    "sums": (lambda x: x[sm.cumulative_sum(sm.arange(x.shape[0]))], (0, 1, 2), (3, 7)),
    "choice": (lambda x: x[sm.where(sm.arange(x.shape[0]) < 2, 0, 9)], (0, 1, 2, 10), (3, 9)),
    "one more": (lambda x: x[sm.arange(x.shape[0]) + 1], (0,), (1, 2)),
    "wraps around": (
        lambda x: x[sm.minimum(sm.arange(x.shape[0]) * 2**31 * 2**31, 0)],
        (0, 1, 2),
        (3,),
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_positions_computed_of_sizes_alone_are_looked_at(name: str) -> None:
    f, inside, outside = COUNTED[name]
    compiled = sm.jit(f)
    for n in inside:
        np.testing.assert_array_equal(compiled(X[:n]), f(sm.asarray(X[:n])))
    for n in outside:
        with pytest.raises(OutsideError):
            compiled(X[:n])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[sm.asarray(-2)],
        lambda x: x[sm.asarray([5]) * 1],
        lambda x: sm.take(sm.reshape(x, (1, 1)), sm.asarray([0]) + 4, axis=1),
        lambda x: x + sm.arange(3.0)[sm.asarray(5)],
        lambda x: sm.segment_sum(x, sm.asarray([5]) * 2, 3),
    ],
)
def test_positions_computed_in_a_recording_are_checked(f: Any) -> None:
    """Of numbers alone: a kernel that reads them does not look again."""
    with pytest.raises(IndexError):
        sm.jit(f)(X[:1])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x[sm.argmax(x)],
        lambda x, i: x[sm.argsort(x)],
        lambda x, i: x[sm.clip(i, 0, x.shape[0] - 1)],
        lambda x, i: x[sm.minimum(sm.maximum(i, 0), x.shape[0] - 1)],
        lambda x, i: x[i % x.shape[0]],
        lambda x, i: sm.stack([x[0], x[1]])[sm.astype(i > 1, sm.int64)],
        lambda x, i: x[sm.clip(sm.searchsorted(x, x), 0, x.shape[0] - 1)],
        lambda x, i: x[sm.where(i > 1, sm.argmin(x), -1)],
        lambda x, i: sm.concat([x, x])[sm.argmax(x) + 1],
        lambda x, i: x[1:-1],
    ],
)
def test_what_is_inside_for_sure_is_not_looked_at(f: Any) -> None:
    assert sm.jit(f).lower(X, at(1, 2)).trace.bounds.flag is None
    np.testing.assert_array_equal(sm.jit(f)(X, at(1, 20)), f(sm.asarray(X), sm.asarray(at(1, 20))))


def test_looking_is_no_kernel_of_its_own() -> None:
    report = sm.explain(lambda x, i: x[i] * 2, X, at(1, 2))
    assert len(report.kernels) == 1


def test_what_a_caller_promises_is_not_looked_at() -> None:
    f = sm.jit(sm.take)
    x, at = np.arange(5.0), np.array([1, 7])
    with sm.config(check_positions=False):
        assert float(f(x, at)[0]) == 1.0
    with pytest.raises(sm.errors.OutsideError):
        f(x, at)


@pytest.mark.parametrize(
    "code",
    [
        lambda x, i: x[i],
        lambda x, i: (x[i], x[i] * 2),
        lambda x, i: {"found": [x[i]], "twice": x[i] * 2},
    ],
)
def test_positions_outside_are_refused_and_forgotten(code: Callable[..., Any]) -> None:
    """Whether all are inside is a truth value that the program writes: no result of the caller's,
    however results nest, and nothing that the next call sees."""
    x, inside, outside = TABLE, at(2, 8, -9), at(2, 10, 0)
    f = sm.jit(code)
    first = [f(x, inside) for _ in range(4)][-1]
    assert not call_cache.is_supported() or f.line is not None
    before = sys.getrefcount(x), sys.getrefcount(outside)
    for _ in range(20):
        with pytest.raises(OutsideError):
            f(x, outside)
        again = f(x, inside)
        assert type(again) is type(first)
        parts = again if isinstance(again, tuple) else (again,)
        parts = (again["found"][0], again["twice"]) if isinstance(again, dict) else parts
        for k, part in enumerate(parts):
            np.testing.assert_array_equal(part, x[inside] * (k + 1))
    assert (sys.getrefcount(x), sys.getrefcount(outside)) == before
