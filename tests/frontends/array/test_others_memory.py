"""Memory that NumPy shares: what recordings close over, and what may change once it was read."""

from __future__ import annotations

import numpy as np
import pytest

import smelt as sm


@pytest.mark.parametrize("copy", [None, False])
def test_memory_of_others_that_is_closed_over(copy: bool | None) -> None:
    source = np.arange(12.0).reshape(3, 4).T
    c = sm.asarray(source, copy=copy)
    f = sm.jit(lambda x: x + c)
    x = np.ones((4, 3))
    np.testing.assert_array_equal([f(x) for _ in range(4)][-1], source + 1)
    assert f.records  # of all kinds that there are, this one needs no Python
    source[:] = 7.0
    np.testing.assert_array_equal(f(x), source + 1)
    waits = c * 2  # takes a copy, or looks whether somebody writes
    np.testing.assert_array_equal(f(x), source + 1)
    np.testing.assert_array_equal(waits, source * 2)
    source[:] = 9.0
    np.testing.assert_array_equal(f(x), np.full((4, 3), 8.0 if copy is None else 10.0))


def test_closed_over_memory_that_is_resized() -> None:
    source = np.ones(100)
    f = sm.jit(lambda x: x + sm.asarray(source))
    for _ in range(4):
        f(np.zeros(100))
    source.resize((4,), refcheck=False)
    with pytest.raises(sm.errors.ChangedError, match="resized"):
        f(np.zeros(100))


@pytest.mark.parametrize("copy", [None, False])
def test_large_memory_may_change_once_it_was_read(copy: bool | None) -> None:
    source = np.zeros(5000)
    x = sm.asarray(source, copy=copy)
    assert float(sm.sum(x + 1)) == 5000
    source[0] = 5.0
    y = x * 2
    assert float(y[0]) == 10.0
    z = x * 3
    source[0] = 6.0
    with pytest.raises(sm.errors.ChangedError, match="written"):
        np.asarray(z)
