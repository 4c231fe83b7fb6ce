"""Whether arrays share memory, and views by strides.

>>> import smelt.numpy as np
>>> x = np.arange(6)
>>> shares_memory(x, np.ravel(x)), may_share_memory(x, x + 0)
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.frontends.array.aliasing import own
from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import ComplexArray


def shares_memory(a: Any, b: Any, /, max_work: Any = None) -> bool:
    """Return whether two arrays have elements in common."""
    return _overlap(a, b, lambda x, y: np.shares_memory(x, y, max_work))


def may_share_memory(a: Any, b: Any, /, max_work: Any = None) -> bool:
    """Return whether the bounds of two arrays in memory overlap."""
    return _overlap(a, b, lambda x, y: np.may_share_memory(x, y, max_work))


def _overlap(a: Any, b: Any, compare: Callable[[Any, Any], bool]) -> bool:
    return any(compare(x, y) for x, m in _memories(a) for y, n in _memories(b) if m is n)


def _memories(x: Any) -> list[tuple[Any, Any]]:
    """Return what stands for the memory of an array, and which memory it is."""
    if isinstance(x, ComplexArray):
        return [pair for part in x.parts for pair in _memories(part)]
    if not isinstance(x, Array):
        return [(np.asarray(x), None)]
    place = own(x)
    return [(place.shadow(), None if place.memory.node.shared else place.memory)]
