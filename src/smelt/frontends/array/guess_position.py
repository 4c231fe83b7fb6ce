"""Search sorted vectors from a guess: interpolation search with a proven error.

The elements of many vectors that are searched are nearly evenly spaced: grids, bins, samples of a
distribution.  A line through the ends then guesses a position to within a few places.  The largest
error over all elements bounds it for every value, because the guess increases with the value, so a
few halvings around the guess replace those of the whole vector.

>>> even = np.linspace(0.0, 1.0, 1000)
>>> guess_error(even), guess_error(even**1.1), guess_error(even**2)
(0, 63, None)
"""

from __future__ import annotations

import math
import weakref

import numpy as np

from smelt.frontends.array.value import Buffer, Value

GUESS_BLOCK = 1 << 14
"""Elements whose guesses are compared with their places at a time."""
_ERRORS: weakref.WeakKeyDictionary[Value, int | None] = weakref.WeakKeyDictionary()
"""Errors by vector, of those that no other code may write to."""


def known_guess_error(x: Value, data: Buffer) -> int | None:
    """Return `guess_error` of the elements of `x`, from a cache if they cannot change."""
    if x.shared:
        return guess_error(data)
    if x not in _ERRORS:
        _ERRORS[x] = guess_error(data)
    return _ERRORS[x]


def guess_error(x: Buffer) -> int | None:
    """Return how many places a guess is off at most: 0, 1, 3, 7, ...

    `x` is a sorted vector of floats.  None where the line between the ends says too little: less
    than two halvings would be saved, or elements are not finite.
    """
    count = x.size
    if count < 8 or not (np.isfinite(x[0]) and np.isfinite(x[-1])):
        return None
    largest = _largest_error(x)
    rounding = 8 * count * float(np.finfo(x.dtype).eps)
    if not (largest < count and rounding < 0.25):
        return None
    error = 0
    while largest > error + 0.5 - rounding:  # guesses are rounded to the nearest place
        error = 2 * error + 1
    return error if 8 * (error + 1) <= count else None


def _largest_error(x: Buffer) -> float:
    """Return the largest distance of a guess from its place; NaN without one.

    Blocks stay in cache; memory for whole vectors would be fresh in every call.
    """
    count, kind = x.size, x.dtype.type
    places = np.arange(min(count, GUESS_BLOCK), dtype=x.dtype)
    largest = 0.0
    with np.errstate(all="ignore"):
        scale = kind(count - 1) / (x[-1] - x[0])
        for first in range(0, count, GUESS_BLOCK):
            errors = np.subtract(x[first : first + GUESS_BLOCK], x[0])
            errors *= scale
            errors -= places[: errors.size]
            ends = float(errors.max()) - first, first - float(errors.min())
            if not max(ends) < count:  # NaN too
                return math.nan
            largest = max(largest, *ends)
    return largest
