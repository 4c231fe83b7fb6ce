"""Arrays of interpreted loops that know who wrote and read each element.

>>> memory = Memory.scratch("e", f32, 4, pad=0)
>>> one, two = (), ((7, 0),)
>>> memory.store(np.array([0, 1]), np.ones(2, np.float32), two)
>>> memory.load(np.array([1]), two)
array([1.], dtype=float32)
>>> memory.load(np.array([1]), ((7, 1),))
Traceback (most recent call last):
    ...
smelt.errors.VerifyError: E405 not well formed: e[1] belongs to another iteration...
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from smelt.errors import VerifyError
from smelt.types.dtype import DType, f32

__all__ = ["Memory", "Path", "f32"]

Array: TypeAlias = "np.ndarray[Any, Any]"
Path: TypeAlias = tuple[tuple[int, int], ...]
"""Independent iterations around a statement: (run of a loop, iteration), outermost first."""


class Memory:
    """Array whose elements know their last writer and reader.

    Elements behind `size` are padding, which is read undefined.
    """

    def __init__(self, name: str, data: Array, size: int, *, defined: bool) -> None:
        self.name, self.data, self.size = name, data, size
        self.defined = np.full(data.size, defined)
        self.writer, self.reader = np.full((2, data.size), -1)
        self.paths: list[Path] = []
        self.last: Path | None = None

    @staticmethod
    def scratch(name: str, dtype: DType, size: int, pad: int) -> Memory:
        """Return an undefined array."""
        data = np.empty(max(size, 0) + pad, dtype.numpy)
        memory = Memory(name, data, max(size, 0), defined=False)
        memory.poison()
        return memory

    def poison(self) -> None:
        """Make every element undefined."""
        kind = self.data.dtype.kind
        self.data[...] = np.nan if kind in "fV" else 77 if kind in "iu" else True
        self.defined[...] = False

    def check_inside(self, at: Array) -> None:
        """Raise VerifyError for a position outside of the array."""
        if at.size and (at.min() < 0 or at.max() >= self.data.size):
            wrong = at[(at < 0) | (at >= self.data.size)][0]
            raise VerifyError(f"{self.name}[{wrong}] leaves its {self.data.size} elements")

    def load(self, at: Array, path: Path) -> Array:
        """Return elements.

        Raises VerifyError if one is undefined, or was written by another independent iteration.
        """
        self.check_inside(at)
        undefined = ~self.defined[at] & (at < self.size)
        if undefined.any():
            raise VerifyError(f"{self.name}[{at[undefined][0]}] is read before it is written")
        self._check_owner(self.writer, at, path)
        self.reader[at] = self._number(path)
        return self.data[at]

    def store(self, at: Array, value: Array, path: Path) -> None:
        """Store elements.

        Raises VerifyError if another independent iteration wrote or read one.
        """
        self.check_inside(at)
        self._check_owner(self.writer, at, path)
        self._check_owner(self.reader, at, path)
        self.data[at] = value
        self.defined[at] = True
        self.writer[at] = self._number(path)

    def _number(self, path: Path) -> int:
        if path is not self.last:
            self.paths.append(path)
            self.last = path
        return len(self.paths) - 1

    def _check_owner(self, owners: Array, at: Array, path: Path) -> None:
        owner = owners[at]
        for number in set(owner.tolist()):
            if (
                number >= 0
                and self.paths[number] is not path
                and conflict(self.paths[number], path)
            ):
                raise VerifyError(
                    f"{self.name}[{at[owner == number][0]}] belongs to another iteration:"
                    " independent ones may run in any order"
                )


def conflict(first: Path, second: Path) -> bool:
    """Whether two statements are in different iterations of one run of a loop."""
    for (loop, iteration), (other_loop, other) in zip(first, second, strict=False):
        if loop != other_loop:
            return False
        if iteration != other:
            return True
    return False
