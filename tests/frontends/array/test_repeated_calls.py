"""Calls with types and shapes that were seen before, which skip everything but running."""

from __future__ import annotations

import numpy as np

import smelt as sm


def test_the_order_in_memory_belongs_to_the_key() -> None:
    f = sm.jit(lambda x: x + 1)
    big = np.arange(100.0).reshape(10, 10)
    layouts = (
        big[:5, :5],
        np.asfortranarray(big[:5, :5]),
        big[::2, ::2],
        big[:5, 4::-1],
        np.broadcast_to(big[0, :5], (5, 5)),
    )
    for x in (*layouts, *layouts, *layouts[::-1]):
        np.testing.assert_array_equal(f(x), x + 1)
        np.testing.assert_array_equal(sm.jit(lambda t: t[0] + t[1])((x, 1.0)), x + 1)
