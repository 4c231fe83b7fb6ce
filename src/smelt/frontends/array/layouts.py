"""How the elements of an array lie in memory, as far as programs that read it know.

>>> lies(np.ones((2, 3)).T), layout(np.ones((3, 6))[:, ::2])
(('turned', (1, 0)), (None, None))
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

__all__ = ["Buffer", "layout", "lies", "lies_as", "moved", "turned"]

Buffer = np.ndarray[Any, Any]


def lies(data: Buffer) -> Hashable:
    """What a program that reads `data` depends on of its order in memory: None if contiguous."""
    if data.flags.c_contiguous:
        return None
    order = turned(data)
    return layout(data) if order is None else ("turned", order)


def turned(data: Buffer) -> tuple[int, ...] | None:
    """The dimensions of an array that has no gaps, from the slowest to the fastest, where that is
    another order than theirs; None for all others."""
    if data.flags.c_contiguous:
        return None
    if data.flags.f_contiguous:
        return tuple(range(data.ndim - 1, -1, -1))
    order = tuple(sorted(range(data.ndim), key=lambda d: -data.strides[d]))
    return order if data.transpose(order).flags.c_contiguous else None


def moved(data: Buffer) -> Buffer:
    """The elements in other memory, in the order that they have: programs know their `layout`."""
    if 0 not in data.strides:
        return data.copy(order="K")
    once = data[tuple([slice(None if s else 1) for s in data.strides])]
    return np.broadcast_to(once.copy(order="K"), data.shape)


def lies_as(fixed: tuple[int | None, ...] | None, data: Buffer) -> bool:
    """Whether programs that know of some strides may read this memory."""
    if fixed is None:
        return data.flags.c_contiguous
    return all(n in (None, s // data.itemsize) for n, s in zip(fixed, data.strides, strict=True))


def layout(data: Buffer) -> tuple[int | None, ...] | None:
    """The strides column of an input: None if contiguous, else what is fixed in each dimension."""
    if data.flags.c_contiguous:
        return None
    item = data.itemsize
    return tuple(
        None if n == 1 or s not in (0, item) else s // item
        for n, s in zip(data.shape, data.strides, strict=True)
    )
