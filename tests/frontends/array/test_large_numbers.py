"""Python integers beyond what an array's type holds: taken, compared or refused as NumPy does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt as sm
from smelt.errors import ArgumentError, RangeError

TYPES = (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64)
EDGES = (
    0,
    5,
    -1,
    300,
    2**31,
    -(2**31) - 1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64 - 1,
    2**64,
    2**70,
    -(2**70),
)
ARITHMETIC = (operator.add, operator.sub, operator.mul)
ORDERED = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)

Way = Callable[[Callable[..., Any], Any, int], Any]
WAYS: dict[str, Way] = {
    "lazy": lambda op, x, k: op(sm.asarray(x), k),
    "a constant": lambda op, x, k: sm.jit(lambda y: op(y, k))(x),
    "an argument": lambda op, x, k: sm.jit(op)(x, k),
    "reflected": lambda op, x, k: sm.jit(lambda y: op(k, y))(x),
}


def outcome(built: Callable[[], Any]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return np.asarray(built())
    except OverflowError as error:
        return error


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None)
@given(
    op=st.sampled_from(ARITHMETIC + ORDERED), dtype=st.sampled_from(TYPES), k=st.sampled_from(EDGES)
)
def test_as_numpy(way: str, op: Callable[..., Any], dtype: Any, k: int) -> None:
    x = np.arange(3).astype(dtype)
    want = outcome(lambda: op(k, x) if way == "reflected" else op(x, k))
    actual = outcome(lambda: WAYS[way](op, x, k))
    if isinstance(want, OverflowError):
        assert isinstance(actual, RangeError) and str(k) in str(actual)
    else:
        np.testing.assert_array_equal(actual, want)
        assert actual.dtype == want.dtype


def test_an_argument_may_be_small_and_then_large() -> None:
    """Also where the call has a record in native code by then."""
    add = sm.jit(lambda x, k: x + k)
    x = np.arange(3, dtype=np.uint64)
    for k in (1, 2, 3, 2**63, 4, 2**64 - 9, 2**63 + 1, 5):
        np.testing.assert_array_equal(np.asarray(add(x, k)), x + k)
        with pytest.raises(OverflowError):
            add(np.arange(3), 2**63)


def test_a_large_number_comes_back_as_it_was() -> None:
    assert sm.jit(lambda k: k)(2**70) == 2**70


def test_a_number_that_no_float_holds() -> None:
    with pytest.raises(RangeError, match="an integer of 1329 bits"):
        sm.ones(3) + 10**400
    with pytest.raises(ArgumentError):
        sm.arange(3) + 10**400


WRAPPED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "choice": lambda m, x, i: m.where(i * 2**31 * 2**31 < 0, x, -x),
    "edge": lambda m, x, i: m.where(i * 2**62 + 5 >= 0, x, -x),
    "minimum": lambda m, x, i: m.minimum(i * 2**61, 7) + x,
    "quotient": lambda m, x, i: (i * 2**62) // 3 + x,
    "sum": lambda m, x, i: m.sum(m.maximum(i * 2**62, 0) % 7) + x,
    "by itself": lambda m, x, i: i // i + (i - 3) % (i - 3) + x,
    "an element by itself": lambda m, x, i: m.astype(x, m.int64) // m.astype(x, m.int64) + x,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("length", [0, 1, 5, 17, 5000])
def test_integers_computed_of_positions_wrap(name: str, length: int) -> None:
    f, x = WRAPPED[name], np.arange(length, dtype=np.float64)
    compiled = sm.jit(lambda x: f(sm, x, sm.arange(x.shape[0])))
    np.testing.assert_array_equal(compiled(x), f(np, x, np.arange(length)))
