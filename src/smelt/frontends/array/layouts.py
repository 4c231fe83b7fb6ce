"""Memory layouts of arrays, as far as programs that read them depend on these.

>>> memory_order(np.ones((2, 3)).T), layout(np.ones((3, 6))[:, ::2])
(('turned', (1, 0)), (None, None))
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import numpy as np

Buffer = np.ndarray[Any, Any]


def memory_order(data: Buffer) -> Hashable:
    """Return a key of the memory layout that a program depends on: None if contiguous."""
    if data.flags.c_contiguous:
        return None
    order = dense_axis_order(data)
    return layout(data) if order is None else ("turned", order)


def dense_axis_order(data: Buffer) -> tuple[int, ...] | None:
    """Return the dimensions of a dense array from slowest to fastest, if not in order.

    None for C-contiguous arrays and for arrays with gaps.
    """
    if data.flags.c_contiguous:
        return None
    if data.flags.f_contiguous:
        return tuple(range(data.ndim - 1, -1, -1))
    order = tuple(sorted(range(data.ndim), key=lambda d: -data.strides[d]))
    return order if data.transpose(order).flags.c_contiguous else None


def copy_in_order(data: Buffer) -> Buffer:
    """Copy the elements to other memory in the same order, keeping the `layout`."""
    if 0 not in data.strides:
        return data.copy(order="K")
    unbroadcast = data[tuple([slice(None if s else 1) for s in data.strides])]
    return np.broadcast_to(unbroadcast.copy(order="K"), data.shape)


def matches_layout(fixed: tuple[int | None, ...] | None, data: Buffer) -> bool:
    """Return whether programs that assume the strides `fixed` may read this memory."""
    if fixed is None:
        return data.flags.c_contiguous
    return all(n in (None, s // data.itemsize) for n, s in zip(fixed, data.strides, strict=True))


def layout(data: Buffer) -> tuple[int | None, ...] | None:
    """Return the strides that a program may assume: None if contiguous.

    Else one entry per dimension: the stride in elements if it is 0 or 1, None if it is not fixed.
    """
    if data.flags.c_contiguous:
        return None
    item = data.itemsize
    return tuple(
        None if n == 1 or s not in (0, item) else s // item
        for n, s in zip(data.shape, data.strides, strict=True)
    )


_COMPARED: Final = 1 << 16
"""Elements that are compared at a time: what is read stays in the cache."""


def has_same_bits(a: Buffer, b: Buffer) -> bool:
    """Return whether two arrays of one shape and dtype have equal bits, NaN included."""
    if not (a.flags.c_contiguous and b.flags.c_contiguous):
        order = dense_axis_order(a)
        if order is None or order != dense_axis_order(b):
            return a.tobytes() == b.tobytes()
        a, b = a.transpose(order), b.transpose(order)
    bits = np.dtype(f"u{a.itemsize}")
    x, y = a.reshape(-1).view(bits), b.reshape(-1).view(bits)
    parts = range(0, x.size, _COMPARED)
    return all(np.array_equal(x[k : k + _COMPARED], y[k : k + _COMPARED]) for k in parts)
