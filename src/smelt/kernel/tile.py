"""Interpreter values: NumPy arrays with named dimensions, placed in a block.

>>> space = Space({"r": 0, "c": 1}, {"r": range(0, 2), "c": range(4, 7)})
>>> column = Tile(("c",), (4,), np.arange(3))
>>> space.aligned_data(column, ("r", "c")).shape
(1, 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from smelt.errors import VerifyError
from smelt.python.dataclass import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Array with one dimension per named axis, in the kernel's axis order.

    `start` is the first index along each axis, so a tile of a whole row can be cut to a block of
    it.
    """

    axes: tuple[str, ...]
    start: tuple[int, ...]
    data: Array

    @staticmethod
    def scalar(number: Any) -> Tile:
        """Return a tile without axes."""
        return Tile((), (), np.asarray(number))


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Current range of every axis."""

    order: Mapping[str, int]
    ranges: Mapping[str, range]

    def with_ranges(self, ranges: Mapping[str, range]) -> Space:
        """Return the space with other ranges for some axes."""
        return Space(self.order, {**self.ranges, **ranges})

    def sorted(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return axis names without duplicates, in the kernel's order."""
        return tuple(sorted(set(axes), key=lambda a: (self.order.get(a, -1), a)))

    def union(self, *tiles: Tile) -> tuple[str, ...]:
        """Return the axes of several tiles together."""
        return self.sorted(a for t in tiles for a in t.axes)

    def shape(self, axes: Iterable[str]) -> tuple[int, ...]:
        """Return the lengths of axes in the current block."""
        return tuple(len(self.ranges[a]) for a in axes)

    def tile(self, axes: tuple[str, ...], data: Array) -> Tile:
        """Return a tile of the current block from an array that broadcasts over `axes`."""
        full = np.broadcast_to(data, self.shape(axes))
        return Tile(axes, tuple(self.ranges[a].start for a in axes), full)

    def positions(self, axis: str) -> Tile:
        """Return the indices of an axis in the current block."""
        current = self.ranges[axis]
        return Tile(
            (axis,), (current.start,), np.arange(current.start, current.stop, dtype=np.int64)
        )

    def cut(self, tile: Tile) -> Tile:
        """Return the part of a tile inside the current block.

        Raises VerifyError if the tile was computed for another block.
        """
        cuts: list[slice] = []
        for axis, start, length in zip(tile.axes, tile.start, tile.data.shape, strict=True):
            current = self.ranges[axis]
            if current.start < start or current.stop > start + length:
                raise VerifyError(
                    f"a value for {axis} in {start}..{start + length - 1} is read in the block"
                    f" {current.start}..{current.stop - 1}"
                )
            cuts.append(slice(current.start - start, current.stop - start))
        return self.tile(tile.axes, tile.data[tuple(cuts)])

    def aligned_data(self, tile: Tile, axes: tuple[str, ...]) -> Array:
        """Return the tile's data with one dimension per axis, of length 1 if missing."""
        lengths = dict(zip(tile.axes, tile.data.shape, strict=True))
        return tile.data.reshape(tuple(lengths.get(a, 1) for a in axes))

    def broadcast_data(self, tile: Tile, axes: tuple[str, ...]) -> Array:
        """Return the tile's data broadcast over `axes`."""
        return np.broadcast_to(self.aligned_data(tile, axes), self.shape(axes))
