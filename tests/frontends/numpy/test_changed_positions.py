"""Positions, elements and orders of arrays that are written in place are those of now."""

import numpy as np
import pytest

import smelt as sm
import smelt.numpy as snp
from smelt.errors import IndexRangeError
from smelt.numpy import small

COUNT = 70_000  # above what NumPy computes itself


def _positions():
    return snp.arange(COUNT) + 0


def _decrement_until_it_is_known(k):
    for _ in range(3):
        k -= 1
    return k + 3


def test_positions_are_checked_again_after_they_were_written():
    rows = np.arange(2.0 * COUNT).reshape(2, COUNT)
    ours, k = snp.asarray(rows.copy()), _decrement_until_it_is_known(_positions())
    assert np.array_equal(ours[:, k], rows)
    k -= 3
    assert np.array_equal(ours[:, k], rows[:, np.arange(COUNT) - 3])
    k += 5
    for use in (lambda: ours[:, k], lambda: snp.take(ours, k, axis=1)):
        with pytest.raises(IndexRangeError):
            use()


def test_positions_are_checked_again_after_a_view_of_them_was_written():
    x, k = snp.arange(1.0 * COUNT), _positions()
    assert x[k][0] == 0
    first = k[:3]
    first -= 7
    assert x[k][:3].tolist() == [COUNT - 7, COUNT - 6, COUNT - 5]


def test_segments_are_counted_again():
    ids, ones = _decrement_until_it_is_known(_positions()) // 1000, snp.ones(COUNT)
    assert sm.segment_sum(ones, ids).shape == (70,)
    ids += 1
    assert sm.segment_sum(ones, ids).shape == (71,)


def test_a_view_without_axes_writes_through():
    x = snp.arange(1.0 * COUNT)
    view = x[5, ...]
    view += 7
    assert x[5] == 12


@pytest.fixture
def _small_arrays():
    former = small.set_limit(8)
    yield
    small.set_limit(former)


@pytest.mark.usefixtures("_small_arrays")
def test_a_copy_by_positions_has_numpys_order_in_memory():
    rows = np.arange(2.0 * COUNT).reshape(350, 400)
    results = []
    for library, x in ((np, rows), (snp, snp.asarray(rows.copy()))):
        copy = x[:, np.arange(250)]
        flat = copy.reshape(-1)
        flat += 1
        results.append((np.asarray(copy), np.asarray(flat), library.shares_memory(copy, flat)))
    (copy, flat, shares), ours = results
    assert np.array_equal(copy, ours[0])
    assert np.array_equal(flat, ours[1])
    assert shares == ours[2]
