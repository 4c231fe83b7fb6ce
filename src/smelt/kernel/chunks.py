"""Row chunking: which rows of its operands a part of a program reads and makes at a time.

>>> from smelt.types.expr import size
>>> chunks = Chunks((ChunkSlice(0, 0),), (ChunkSlice(0, 0),), size("n"), "rows", 512, (48, 256))
>>> list(chunks.ranges({"n": 1000})), list(chunks.ranges({"n": 100}))
([(0, 512), (512, 1000)], [(0, 100)])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from smelt.python.dataclass import dataclass
from smelt.types.arithmetic import choose, larger, smaller
from smelt.types.expr import Index, evaluate

WHOLE, FIRST_ROW = -1, -2
"""In place of the axis of a `ChunkSlice`: the whole value in every chunk; the number of the first
row."""


class ChunkSlice(NamedTuple):
    """The slice of an operand or result that a chunk reads or makes.

    A block along `axis` of the operand or result at index `place`, or all of it (`WHOLE`). A whole
    result is combined with the previous chunks' result by the scalar operator `combine`.
    """

    place: int
    axis: int
    combine: str = ""


def round_up_rows(rows: Any, multiples: tuple[int, int]) -> Any:
    """Round the rows of a chunk up to a multiple of a block.

    Of the second number from as many rows on, else of the first.

    >>> [round_up_rows(rows, (48, 256)) for rows in (100, 250, 300)]
    [144, 256, 512]
    """
    small, large = multiples
    unit = choose(-(-rows // small) * small < large, small, large)
    return -(-rows // unit) * unit


@dataclass(frozen=True, slots=True)
class Chunks:
    """Row chunking: a program's body runs for one block of rows after another.

    The body's inputs are `reads`, then the previous result for each whole result; its results are
    `makes`. The size `rows` holds the rows of the current block.
    """

    reads: tuple[ChunkSlice, ...]
    makes: tuple[ChunkSlice, ...]
    extent: Index
    rows: str
    block: int
    """Maximum rows of a chunk."""
    multiples: tuple[int, int]
    """Of which the rows of a chunk are a multiple; see `round_up_rows`."""

    def ranges(self, sizes: Mapping[str, int]) -> Iterator[tuple[int, int]]:
        """Yield the first row of each chunk and the end of its rows.

        There are as few chunks as `block` allows, of nearly equal length except the last one.
        """
        total = int(evaluate(self.extent, sizes))
        step, count = self.steps(total)
        for low in range(0, step * count, step):
            yield low, min(low + step, total)

    def lengths(self, sizes: Mapping[str, int]) -> Counter[int]:
        """Return how many chunks have which number of rows, that of the first one first."""
        return Counter(high - low for low, high in self.ranges(sizes))

    def steps(self, total: Any) -> tuple[Any, Any]:
        """Return the rows of a chunk and the number of chunks, for integers or `Number`."""
        times = larger(-(-total // self.block), 1)
        rows = round_up_rows(-(-total // times), self.multiples)
        step = larger(smaller(self.block, rows), 1)
        return step, -(-total // step)
