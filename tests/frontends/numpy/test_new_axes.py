"""Keys with new axes beside arrays of positions: reading and writing as NumPy does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.strategies.effort import NIGHT, NIGHTLY, start

import smelt as sm
import smelt.numpy as snp

pytestmark = NIGHT
SHAPE = (3, 4, 5)
ITEMS: list[Any] = [
    *(0, -1, slice(None), slice(1, 3), slice(None, None, -1), Ellipsis),
    *([1, 0], [2, 2], [[0, 1], [2, 0]], [0], np.asarray([1, -1])),
]


def _keys() -> list[tuple[Any, ...]]:
    """Draw keys of at most three indices, one or two new axes and at least one array."""
    rng = random.Random(start(0))
    keys: list[tuple[Any, ...]] = [([1, 0], None), (None, [1, 0]), (0, None, [1, 2])]
    while len(keys) < (1500 if NIGHTLY else 60):
        key = [rng.choice(ITEMS) for _ in range(rng.randint(1, 3))]
        for _ in range(rng.randint(1, 2)):
            key.insert(rng.randint(0, len(key)), None)
        if sum(item is Ellipsis for item in key) < 2 and any(
            isinstance(item, (list, np.ndarray)) for item in key
        ):
            try:
                np.zeros(SHAPE)[tuple(key)]
            except IndexError:
                continue
            keys.append(tuple(key))
    return keys


@pytest.mark.parametrize("key", _keys(), ids=str)
def test_reading_and_writing(key: tuple[Any, ...]) -> None:
    x = np.arange(float(np.prod(SHAPE))).reshape(SHAPE)
    part = x[key]
    np.testing.assert_array_equal(snp.asarray(x)[key], part)
    np.testing.assert_array_equal(sm.jit(lambda x: x[key])(x), part)
    values = -np.arange(float(part.size)).reshape(part.shape) - 1
    rows = values[..., :1]  # broadcasts
    for v in (7.0, values, rows):
        expected = x.copy()
        expected[key] = v
        written = snp.asarray(x.copy())
        written[key] = v
        flat = x[key].size == np.unique(x[key]).size  # else the last one of several wins
        if flat or isinstance(v, float):
            np.testing.assert_array_equal(written, expected)
    summed = x.copy()
    np.add.at(summed, key, values)
    np.testing.assert_array_equal(snp.asarray(x).at[key].add(values), summed)
