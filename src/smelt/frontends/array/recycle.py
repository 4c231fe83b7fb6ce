"""Use the memory of dropped results again for operators that NumPy computes at once.

Fresh memory is cleared by the system at its first touch, and it is not in the cache.  The results
of each type that were computed last are kept in a list; one that nobody else refers to is where
NumPy writes the next result.

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

from sys import getrefcount
from typing import Final

import numpy as np

from smelt.frontends.array.layouts import Buffer
from smelt.types.dtype import f64
from smelt.types.tensor import TensorType

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
