"""Values of the interpreter: NumPy arrays whose dimensions have names, and the block they lie in.

>>> space = Space({"r": 0, "c": 1}, {"r": range(0, 2), "c": range(4, 7)})
>>> column = Tile(("c",), (4,), np.arange(3))
>>> space.spread(column, ("r", "c")).shape
(1, 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import VerifyError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """An array with one dimension for each named axis, in the kernel's order of axes.

    `start` is the first index along each axis: a tile of a whole row is cut when a block of it is
    wanted.
    """

    axes: tuple[str, ...]
    start: tuple[int, ...]
    data: Array

    @staticmethod
    def scalar(number: Any) -> Tile:
        """A value without axes."""
        return Tile((), (), np.asarray(number))


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Where the interpreter stands: the present range of every axis."""

    order: Mapping[str, int]
    ranges: Mapping[str, range]

    def narrowed(self, ranges: Mapping[str, range]) -> Space:
        """This place with other ranges for some axes."""
        return Space(self.order, {**self.ranges, **ranges})

    def sorted(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Names of axes, each once, in the kernel's order."""
        return tuple(sorted(set(axes), key=lambda a: (self.order.get(a, -1), a)))

    def union(self, *tiles: Tile) -> tuple[str, ...]:
        """The axes of several values together."""
        return self.sorted(a for t in tiles for a in t.axes)

    def shape(self, axes: Iterable[str]) -> tuple[int, ...]:
        """How many elements of each axis the present block has."""
        return tuple(len(self.ranges[a]) for a in axes)

    def tile(self, axes: tuple[str, ...], data: Array) -> Tile:
        """A value of this block from an array over its axes, stretched where it has length 1."""
        full = np.broadcast_to(data, self.shape(axes))
        return Tile(axes, tuple(self.ranges[a].start for a in axes), full)

    def positions(self, axis: str) -> Tile:
        """The indices of an axis in the present block."""
        own = self.ranges[axis]
        return Tile((axis,), (own.start,), np.arange(own.start, own.stop, dtype=np.int64))

    def fitted(self, tile: Tile) -> Tile:
        """The part of a value that lies in the present block.

        Raises VerifyError if the value was computed for another block.
        """
        cuts: list[slice] = []
        for axis, start, length in zip(tile.axes, tile.start, tile.data.shape, strict=True):
            now = self.ranges[axis]
            if now.start < start or now.stop > start + length:
                raise VerifyError(
                    f"a value for {axis} in {start}..{start + length - 1} is read in the block"
                    f" {now.start}..{now.stop - 1}"
                )
            cuts.append(slice(now.start - start, now.stop - start))
        return self.tile(tile.axes, tile.data[tuple(cuts)])

    def spread(self, tile: Tile, axes: tuple[str, ...]) -> Array:
        """The array with a dimension for each of `axes`: of length 1 where the value lacks it."""
        own = dict(zip(tile.axes, tile.data.shape, strict=True))
        return tile.data.reshape(tuple(own.get(a, 1) for a in axes))

    def full(self, tile: Tile, axes: tuple[str, ...]) -> Array:
        """The array stretched over `axes`."""
        return np.broadcast_to(self.spread(tile, axes), self.shape(axes))
