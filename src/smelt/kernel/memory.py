"""Buffers of the kernel interpreter: bounds-checked, with a record of every access.

>>> from smelt.kernel.ir import Param
>>> from smelt.types.dtype import f32
>>> x = Buffer(Param("x", f32, (4,)), np.zeros(4, np.float32))
>>> x.load((np.array([0, 1, 1]),), np.ones(3, bool)).shape, x.access
((3,), Access(elements=3, unique=2, nbytes=12, unique_nbytes=8))
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from smelt.kernel.ir import Param
from smelt.python.dataclass import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """Traffic of one parameter: all accesses, and counting each element once."""

    elements: int = 0
    unique: int = 0
    nbytes: int = 0
    unique_nbytes: int = 0

    def __add__(self, other: Access) -> Access:
        return Access(
            self.elements + other.elements,
            self.unique + other.unique,
            self.nbytes + other.nbytes,
            self.unique_nbytes + other.unique_nbytes,
        )


@dataclass
class Trace:
    """Memory traffic of one run by parameter; pass an empty one to `run`."""

    loads: dict[str, Access] = field(default_factory=dict)
    stores: dict[str, Access] = field(default_factory=dict)
    blocks: int = 0
    """Number of independent blocks that ran."""

    @property
    def nbytes(self) -> int:
        """Bytes that must cross main memory if every element does so once."""
        traffic = (*self.loads.values(), *self.stores.values())
        return sum(a.unique_nbytes for a in traffic)


class AccessError(Exception):
    """Access out of bounds, or a conflicting access to an element.

    `position` is the position in the index arrays.
    """

    def __init__(self, message: str, place: tuple[int, ...]) -> None:
        super().__init__(message)
        self.message, self.position = message, place


class Buffer:
    """Array of a parameter with the writer and reads of every element."""

    def __init__(self, param: Param, data: Array) -> None:
        self.param = param
        self.data = data.reshape(1) if data.ndim == 0 else data  # rank 0 has index 0
        self.writer = np.full(self.data.shape, -1, np.int64)
        self.read = np.zeros(self.data.shape, bool)
        self.count = 0
        self.log: list[tuple[bool, Array]] | None = None
        """If a list, every access appends whether it stores, and its row-major positions."""

    @property
    def access(self) -> Access:
        """Traffic so far: loads of an input, stores of an output."""
        unique = int(self.read.sum()) + int((self.writer >= 0).sum())
        size = self.param.dtype.itemsize
        return Access(self.count, unique, self.count * size, unique * size)

    def load(self, index: tuple[Array, ...], needed: Array, other: Any = None) -> Array:
        """Load elements at index arrays that broadcast to the shape of `needed`.

        Half types are returned as float32. Positions out of bounds yield `other` if given; the
        values of positions that are not needed are unspecified. Raises Misuse if a needed
        position is out of bounds and there is no `other`.
        """
        index, inside = self._inside(index, needed.shape)
        if other is None:
            self._check(index, inside | ~needed)
        valid = inside & needed
        self.count += int(valid.sum())
        positions = tuple(i[valid] for i in index)
        self.read[positions] = True
        self._log(False, positions)
        fill = np.asarray(0 if other is None else other)
        values = np.full(needed.shape, fill, self.param.dtype.compute.numpy)
        values[valid] = self.data[positions].astype(values.dtype)
        return values

    def load_stored(self, index: tuple[Array, ...], needed: Array, block: int) -> Array:
        """Load elements that this block has stored, for a scatter-reduce to update.

        Raises Misuse out of bounds, and where nothing or another block has stored.
        """
        index, inside = self._inside(index, needed.shape)
        self._check(index, inside | ~needed)
        positions = tuple(i[needed] for i in index)
        foreign = self.writer[positions] != block
        if foreign.any():
            k = int(np.argmax(foreign))
            by = "nobody" if self.writer[positions][k] < 0 else "another block"
            raise AccessError(
                f"{self._element(positions, k)} was stored by {by} before",
                tuple(np.argwhere(needed)[k]),
            )
        values = np.zeros(needed.shape, self.param.dtype.compute.numpy)
        values[needed] = self.data[positions].astype(values.dtype)
        return values

    def store(
        self,
        index: tuple[Array, ...],
        value: Array,
        where: Array,
        block: int,
        *,
        again: bool = False,
    ) -> None:
        """Store elements for a block.

        Raises Misuse out of bounds and, unless `again` allows overwriting, where an element was
        already stored.
        """
        index, inside = self._inside(index, where.shape)
        self._check(index, inside | ~where)
        positions = tuple(i[where] for i in index)
        where_indices = np.argwhere(where)
        old = self.writer[positions]
        if not again and (old >= 0).any():
            k = int(np.argmax(old >= 0))
            by = "the same block" if old[k] == block else "another block"
            message = f"{self._element(positions, k)} was stored by {by} before"
            raise AccessError(message, tuple(where_indices[k]))
        flat = np.ravel_multi_index(positions, self.data.shape) if self.data.size else positions[0]
        _, first, counts = np.unique(flat, return_index=True, return_counts=True)
        if (counts > 1).any():
            k = int(first[np.argmax(counts > 1)])
            message = f"{self._element(positions, k)} is stored more than once by one statement"
            raise AccessError(message, tuple(where_indices[k]))
        self.writer[positions] = block
        self.count += len(flat)
        self._log(True, positions)
        with np.errstate(all="ignore"):
            self.data[positions] = value[where].astype(self.param.dtype.numpy)

    def check_not_stored(self, index: tuple[Array, ...], needed: Array) -> None:
        """Raise Misuse if an element that is read was already stored."""
        index, inside = self._inside(index, needed.shape)
        valid = inside & needed
        positions = tuple(i[valid] for i in index)
        stale = self.writer[positions] >= 0
        if stale.any():
            k = int(np.argmax(stale))
            message = f"{self._element(positions, k)} is read after it was stored"
            raise AccessError(message, tuple(np.argwhere(valid)[k]))

    def _log(self, stores: bool, positions: tuple[Array, ...]) -> None:
        if self.log is not None:
            self.log.append((stores, np.ravel_multi_index(positions, self.data.shape)))

    def _inside(
        self, index: tuple[Array, ...], shape: tuple[int, ...]
    ) -> tuple[tuple[Array, ...], Array]:
        """Broadcast the index arrays to `shape` and return where all are in bounds."""
        index = tuple(np.broadcast_to(i, shape) for i in index or (np.zeros((), np.int64),))
        inside = np.ones(shape, bool)
        for i, n in zip(index, self.data.shape, strict=True):
            inside &= (i >= 0) & (i < n)
        return index, inside

    def _check(self, index: tuple[Array, ...], valid: Array) -> None:
        if valid.all():
            return
        place = tuple(np.argwhere(~valid)[0])
        for d, (i, n) in enumerate(zip(index, self.data.shape, strict=True)):
            if not 0 <= i[place] < n:
                raise AccessError(
                    f"index {i[place]} is outside dimension {d} of {self.param.name}, which has"
                    f" {n} elements",
                    place,
                )

    def _element(self, positions: tuple[Array, ...], k: int) -> str:
        numbers = [str(int(i[k])) for i in positions] if self.param.shape else []
        return f"{self.param.name}[{','.join(numbers)}]"
