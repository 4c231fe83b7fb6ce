"""Find which of many arrays share memory with an array.

>>> x = np.arange(100.0)
>>> Spans([x[:50], x[60:], np.ones(3)]).overlapping(x[40:61:2])
[0, 1]
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from smelt.runtime.memory import address_of

Array = np.ndarray[Any, Any]

_SORTED_FROM: Final = 16
"""Minimum number of arrays for sorting them by address to cost less than comparing each."""


class Spans:
    """Memory of arrays (None: no array), for many queries.

    Each query takes logarithmic time, so that a call with many arguments and results takes no
    quadratic time. As in `np.may_share_memory`, the bounds of the memory decide.
    """

    def __init__(self, arrays: Sequence[Array | None]) -> None:
        self._arrays = arrays
        self._sorted = len(arrays) >= _SORTED_FROM
        if not self._sorted:
            return
        spans = sorted((*_bounds(a), k) for k, a in enumerate(arrays) if a is not None and a.size)
        self._first = [first for first, _, _ in spans]
        self._end = [end for _, end, _ in spans]
        self._index = [k for *_, k in spans]
        self._furthest = [*accumulate(self._end, max)]
        """Largest end up to here."""

    def overlapping(self, a: Array) -> list[int]:
        """Return the indices of the arrays that may share memory with an array, in order."""
        if not self._sorted:
            return [
                k
                for k, other in enumerate(self._arrays)
                if other is not None and np.may_share_memory(a, other)
            ]
        if not a.size:
            return []
        first, end = _bounds(a)
        indices: list[int] = []
        k = bisect_left(self._first, end) - 1
        while k >= 0 and self._furthest[k] > first:
            if self._end[k] > first:
                indices.append(self._index[k])
            k -= 1
        return sorted(indices)


def _bounds(a: Array) -> tuple[int, int]:
    """Return the first address of an array's memory and the one after the last."""
    if a.flags.c_contiguous:
        first = address_of(a)
        return first, first + a.nbytes
    low, high = np.lib.array_utils.byte_bounds(a)
    return low, high
