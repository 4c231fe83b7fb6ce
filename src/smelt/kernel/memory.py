"""The interpreter's memory: arrays that check every index and remember who touched what.

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

from smelt.dataclass import dataclass
from smelt.kernel.ir import Param

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """What was read from (or written to) a parameter: with repetition, and counting each element
    once."""

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
    """Memory traffic of one run by parameter; give an empty one to `run`."""

    loads: dict[str, Access] = field(default_factory=dict)
    stores: dict[str, Access] = field(default_factory=dict)
    blocks: int = 0
    """Independent blocks that ran."""

    @property
    def nbytes(self) -> int:
        """Bytes that have to cross main memory if every element does so once."""
        traffic = (*self.loads.values(), *self.stores.values())
        return sum(a.unique_nbytes for a in traffic)


class Misuse(Exception):
    """An index outside, or two blocks at one element: `place` is where in the index arrays."""

    def __init__(self, message: str, place: tuple[int, ...]) -> None:
        super().__init__(message)
        self.message, self.place = message, place


class Buffer:
    """One array of a parameter."""

    def __init__(self, param: Param, data: Array) -> None:
        self.param = param
        self.data = data.reshape(1) if data.ndim == 0 else data  # one index always, 0 for none
        self.writer = np.full(self.data.shape, -1, np.int64)
        self.read = np.zeros(self.data.shape, bool)
        self.count = 0

    @property
    def access(self) -> Access:
        """What has been loaded (or stored, if this is an output) so far."""
        unique = int(self.read.sum()) + int((self.writer >= 0).sum())
        size = self.param.dtype.itemsize
        return Access(self.count, unique, self.count * size, unique * size)

    def load(self, index: tuple[Array, ...], wanted: Array, other: Any = None) -> Array:
        """Elements at the positions of index arrays that broadcast to the shape of `wanted`.

        Half types come as float32.  Positions outside give `other` if there is one, those that
        are not wanted anything.  Raises Misuse if a wanted position lies outside without `other`.
        """
        index, inside = self._inside(index, wanted.shape)
        if other is None:
            self._check(index, inside | ~wanted)
        taken = inside & wanted
        self.count += int(taken.sum())
        picked = tuple(i[taken] for i in index)
        self.read[picked] = True
        fill = np.asarray(0 if other is None else other)
        found = np.full(wanted.shape, fill, self.param.dtype.compute.numpy)
        found[taken] = self.data[picked].astype(found.dtype)
        return found

    def started(self, index: tuple[Array, ...], wanted: Array, block: int) -> Array:
        """Elements that a block has stored, for what joins them.  Raises Misuse outside, and where
        nothing was stored or another block did that."""
        index, inside = self._inside(index, wanted.shape)
        self._check(index, inside | ~wanted)
        picked = tuple(i[wanted] for i in index)
        foreign = self.writer[picked] != block
        if foreign.any():
            k = int(np.argmax(foreign))
            by = "nobody" if self.writer[picked][k] < 0 else "another block"
            raise Misuse(
                f"{self._element(picked, k)} was stored by {by} before",
                tuple(np.argwhere(wanted)[k]),
            )
        found = np.zeros(wanted.shape, self.param.dtype.compute.numpy)
        found[wanted] = self.data[picked].astype(found.dtype)
        return found

    def store(
        self,
        index: tuple[Array, ...],
        value: Array,
        where: Array,
        block: int,
        *,
        again: bool = False,
    ) -> None:
        """Writes elements for a block.  Raises Misuse outside and, unless it may be written
        `again`, where something was written."""
        index, inside = self._inside(index, where.shape)
        self._check(index, inside | ~where)
        picked = tuple(i[where] for i in index)
        places = np.argwhere(where)
        old = self.writer[picked]
        if not again and (old >= 0).any():
            k = int(np.argmax(old >= 0))
            by = "the same block" if old[k] == block else "another block"
            what = f"{self._element(picked, k)} was stored by {by} before"
            raise Misuse(what, tuple(places[k]))
        flat = np.ravel_multi_index(picked, self.data.shape) if self.data.size else picked[0]
        _, first, counts = np.unique(flat, return_index=True, return_counts=True)
        if (counts > 1).any():
            k = int(first[np.argmax(counts > 1)])
            what = f"{self._element(picked, k)} is stored more than once by one statement"
            raise Misuse(what, tuple(places[k]))
        self.writer[picked] = block
        self.count += len(flat)
        with np.errstate(all="ignore"):
            self.data[picked] = value[where].astype(self.param.dtype.numpy)

    def written(self, index: tuple[Array, ...], wanted: Array) -> None:
        """Raises Misuse if an element that is read has been stored already."""
        index, inside = self._inside(index, wanted.shape)
        taken = inside & wanted
        picked = tuple(i[taken] for i in index)
        stale = self.writer[picked] >= 0
        if stale.any():
            k = int(np.argmax(stale))
            what = f"{self._element(picked, k)} is read after it was stored"
            raise Misuse(what, tuple(np.argwhere(taken)[k]))

    def _inside(
        self, index: tuple[Array, ...], shape: tuple[int, ...]
    ) -> tuple[tuple[Array, ...], Array]:
        """The index arrays at full shape, and where all of them are inside."""
        index = tuple(np.broadcast_to(i, shape) for i in index or (np.zeros((), np.int64),))
        inside = np.ones(shape, bool)
        for i, n in zip(index, self.data.shape, strict=True):
            inside &= (i >= 0) & (i < n)
        return index, inside

    def _check(self, index: tuple[Array, ...], fine: Array) -> None:
        if fine.all():
            return
        place = tuple(np.argwhere(~fine)[0])
        for d, (i, n) in enumerate(zip(index, self.data.shape, strict=True)):
            if not 0 <= i[place] < n:
                raise Misuse(
                    f"index {i[place]} is outside dimension {d} of {self.param.name}, which has"
                    f" {n} elements",
                    place,
                )

    def _element(self, picked: tuple[Array, ...], k: int) -> str:
        numbers = [str(int(i[k])) for i in picked] if self.param.shape else []
        return f"{self.param.name}[{','.join(numbers)}]"
