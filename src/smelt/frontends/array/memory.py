"""Memory of arrays: layouts that programs depend on, and results that are used again.

Fresh memory is cleared by the system at its first touch, and it is not in the cache.  So the
results of each type that NumPy computed last are kept in a list; one that nobody else refers to is
where NumPy writes the next result.

>>> memory_order(np.ones((2, 3)).T), layout(np.ones((3, 6))[:, ::2])
(('turned', (1, 0)), (None, None))
>>> kept = Recycled(TensorType(f64, (3,)))
>>> data = np.ones(3)
>>> kept.add(data)
>>> kept.take() is None
True
>>> del data
>>> kept.take()
array([1., 1., 1.])
"""

from __future__ import annotations

from collections.abc import Hashable
from sys import getrefcount
from typing import Any, Final

import numpy as np

from smelt.types.dtype import f64
from smelt.types.tensor import TensorType

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


_PER_TYPE: Final = 4
_MIN_BYTES: Final = 1 << 17
"""Smallest results that are kept: allocators keep smaller ones themselves."""
_LIMIT_BYTES: Final = 1 << 28
"""Fresh memory after which all lists are emptied, so that they never hold more."""
_TYPES_LIMIT: Final = 4096


class Recycled:
    """Memory of the last results of one type."""

    __slots__ = ("buffers", "type")

    def __init__(self, type: TensorType) -> None:
        self.type = type  # alive: a key has its identity
        self.buffers: list[Buffer] = []

    def take(self) -> Buffer | None:
        """Return memory that nobody else has, or None; the caller appends it after use."""
        buffers = self.buffers
        for _ in range(len(buffers)):
            try:
                data, references = self.popped()  # other threads do not find it meanwhile
            except IndexError:
                return None
            if references == _UNSHARED:
                return data
            buffers.insert(0, data)
        return None

    def popped(self) -> tuple[Buffer, int]:
        """Remove the last memory; return it, and its references while it is looked at.

        Raises IndexError if there is none.
        """
        data = self.buffers.pop()
        return data, getrefcount(data)

    def add(self, data: Buffer) -> None:
        """Keep fresh memory, and forget what was used longest ago."""
        _FRESH[0] += data.nbytes
        if _FRESH[0] > _LIMIT_BYTES:
            _FRESH[0] = data.nbytes
            for other in list(_RECYCLED.values()):
                other.buffers.clear()
        self.buffers.append(data)
        del self.buffers[:-_PER_TYPE]


_RECYCLED: Final[dict[int, Recycled]] = {}
_FRESH: Final = [0]
"""Bytes of fresh memory since the lists were emptied."""
_LEAST: Final = [_MIN_BYTES]
"""Bytes of the smallest results that are kept now."""


def recycled(type: TensorType, nbytes: int) -> Recycled | None:
    """Return the memory for results of a type; None for sizes that are not kept."""
    if not _LEAST[0] <= nbytes <= _LIMIT_BYTES // _PER_TYPE:
        return None
    if len(_RECYCLED) >= _TYPES_LIMIT:
        return _RECYCLED.get(id(type))
    return _RECYCLED.get(id(type)) or _RECYCLED.setdefault(id(type), Recycled(type))


def keep_above(nbytes: int) -> None:
    """Keep larger results only: others are handed to NumPy's users."""
    _LEAST[0] = max(_MIN_BYTES, nbytes + 1)


def is_recycled(type: TensorType, data: Buffer) -> bool:
    """Return whether one reference to a result is that of a list."""
    kept = _RECYCLED.get(id(type))
    return kept is not None and any(x is data for x in tuple(kept.buffers))


def release(type: TensorType, data: Buffer) -> None:
    """Forget memory that other code is going to refer to."""
    kept = _RECYCLED.get(id(type))
    if kept is not None:
        kept.buffers[:] = [x for x in kept.buffers if x is not data]


def _count_unshared() -> int:
    """Return the references that counting takes, which depend on Python's version."""
    kept = Recycled(TensorType(f64, (1,)))
    kept.buffers.append(np.empty(1))
    return kept.popped()[1]


_UNSHARED: Final = _count_unshared()
