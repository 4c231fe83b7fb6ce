"""The namespace's functions call NumPy's directly for their commonest small arguments."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest

import smelt as sm
import smelt.numpy as np
from smelt.frontends.array.array import Array
from smelt.numpy import direct, small

LIMIT = 64


@pytest.fixture(autouse=True)
def _leave_small_arrays() -> Iterator[None]:
    former = small.set_limit(LIMIT)
    yield
    small.set_limit(former)


CALLS = """
    exp(x) exp(e) exp(x,y) exp(b) exp(1.5) exp([1,2]) add(x,y) add(x,2) add(2,x) add(e,e)
    divmod(x,2) add(x,y,dtype='f4') maximum(x,numpy.float64(2)) modf(x)
    sum(x) sum(a=x) sum(m,0) sum(m,axis=0)
    reshape(x,(2,5)) reshape(x,-1) repeat(x,3) transpose(m,(1,0)) split(x,2) where(x) where(b,x,y)
    zeros(3) zeros(0) zeros((2,3)) zeros((0,3)) zeros((2,3),int) zeros(3,float) zeros(3,dtype=int)
    ones(4) empty(0) full(3,2) full(3,2.5) full((2,2),True) arange(4) arange(2,9)
    arange(0) arange(2.5)
    array([1,2]) array([]) array([[1,2],[3,4]]) array([1,2],float) array((1,2)) array([True,2.5])
    array(x) asarray([1.5,2]) asarray(x) concatenate((x,y)) concatenate([x,e]) stack((x,y))
    stack((x,y),1) hstack((x,[1])) linspace(0,1,5) linspace(0,1,0) linspace(0,1) linspace(0,1,num=3)
    linspace(0,1,5,False) dot(x,y) dot(m,x[:5]) outer(x,y) inner(2,x) cross(x[:3],y[:3])
    array_equal(x,y) shape(x) ndim(m) size(x) sort(y) argmax(x) clip(x,0,1) mean(m) std(x) eye(3)
"""


@pytest.mark.parametrize("text", CALLS.split())
def test_small_calls_return_what_numpy_does(text: str) -> None:
    x = numpy.linspace(0.0, 3.0, 10)
    names = {"x": x, "y": x[::-1], "e": numpy.zeros(0), "b": x > 1, "m": x.reshape(2, 5)}
    actual, expected = (
        eval(f"f.{text}", names | {"f": module, "numpy": numpy}) for module in (np, numpy)
    )
    if type(expected) not in (tuple, list):
        actual, expected = (actual,), (expected,)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert type(a) is type(b) or (isinstance(a, Array) and getattr(b, "size", 0) > LIMIT)
        assert numpy.asarray(a).dtype == numpy.asarray(b).dtype
        numpy.testing.assert_array_equal(numpy.asarray(a), b)


@pytest.mark.parametrize(
    "text", ["zeros(65)", "zeros((9,9))", "arange(65)", "full(65,1)", "ones(65)"]
)
def test_large_arrays_are_ours(text: str) -> None:
    assert isinstance(eval(f"np.{text}"), Array)


def test_results_that_grow_are_ours() -> None:
    x = numpy.arange(10.0)
    for large in (np.add(x[:, None], x), np.repeat(x, 7), np.outer(x, x), np.linspace(0, 1, 65)):
        assert isinstance(large, Array)


def test_nothing_is_left_to_numpy_without_a_limit() -> None:
    small.set_limit(0)
    x = numpy.zeros(0)
    for result in (np.exp(x), np.zeros(0), np.arange(0), np.concatenate((x, x)), np.add(x, x)):
        assert isinstance(result, Array)


def test_recordings_record_small_arrays_in_their_thread_only() -> None:
    entered, done = threading.Event(), threading.Event()
    results: list[Any] = []

    def other() -> None:
        entered.wait()
        results.append(np.exp(numpy.zeros(3)))
        done.set()

    @sm.jit
    def function(x: Any) -> Any:
        entered.set()
        done.wait()
        buffer = np.zeros(3)
        assert isinstance(buffer, Array)
        buffer[0] = x[0]
        return buffer + np.exp(numpy.zeros(3))

    thread = threading.Thread(target=other)
    thread.start()
    assert numpy.asarray(function(sm.asarray(numpy.ones(2)))).tolist() == [2, 1, 1]
    thread.join()
    assert type(results[0]) is numpy.ndarray
    assert not direct.RECORDINGS


def test_recordings_that_fail_are_no_longer_counted() -> None:
    @sm.jit
    def function(x: Any) -> Any:
        raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        function(sm.asarray(numpy.ones(2)))
    assert not direct.RECORDINGS


def test_functions_have_the_attributes_of_ufuncs() -> None:
    assert isinstance(np.exp, np.ufunc)
    assert not isinstance(np.sum, np.ufunc)
    assert (np.add.nin, np.add.nout, np.add.identity, np.exp.__name__) == (2, 1, 0, "exp")
    assert np.add.reduce(numpy.arange(4)) == 6
    assert pickle.loads(pickle.dumps(np.add)) is np.add
    with pytest.raises(TypeError):
        np.exp()


@pytest.mark.parametrize("text", ["exp(x)", "add(x,x)", "sum(x)", "zeros(3)", "array([1.5])"])
def test_a_call_takes_one_or_two_python_functions(text: str) -> None:
    names = {"np": np, "x": numpy.ones(3)}
    call = eval(f"lambda: np.{text}", names)
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        is_ours = "smelt" in frame.f_code.co_filename
        count += event == "call" and is_ours

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert count <= (3 if text == "sum(x)" else 1)
