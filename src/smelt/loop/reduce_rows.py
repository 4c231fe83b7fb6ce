"""Combine the lanes of several vectors, as many as each has lanes.

Halves of two vectors at a time become one vector, until each lane has the result of a vector:

    a0 a1 a2 a3        a0 a1 b0 b1
    b0 b1 b2 b3   ->   a2 a3 b2 b3   ->   a02 a13 b02 b13        a02 b02 c02 d02
                                          c02 c13 d02 d13   ->   a13 b13 c13 d13   ->   a b c d

The lanes of a vector are combined in the same order as those of a single one
(`smelt.codegen.llvm.instructions.reductions.reduce_halves`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Row = TypeVar("Row")
"""A vector, or several that are combined together."""

SHUFFLE_BYTES = 16
"""Bytes within which lanes move cheaply: 128-bit shuffles.

From there on halves of two vectors are interleaved within each such block, rather than
concatenated.
"""


def reduce_rows(
    rows: Sequence[Row],
    itemsize: int,
    shuffle: Callable[[Row, Row, list[int]], Row],
    join: Callable[[Row, Row], Row],
) -> Row:
    """Reduce each row's vectors to a lane of the result, halves with halves.

    There are as many rows as a vector has lanes; `itemsize` is that of the widest elements.
    `shuffle` picks lanes of two vectors.
    """
    lanes = width = len(rows)
    block = min(SHUFFLE_BYTES // itemsize, lanes)
    vectors = [rows[k] for k in row_order(lanes, block)]
    while len(vectors) > 1:
        low = [k + i for k in _row_starts(lanes, block, width) for i in range(width // 2)]
        high = [k + width // 2 for k in low]
        vectors = [
            join(shuffle(v, w, low), shuffle(v, w, high))
            for v, w in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        width //= 2
    return vectors[0]


def row_order(lanes: int, block: int) -> list[int]:
    """Return the order of rows in which their results come out lane by lane.

    >>> row_order(4, 4), row_order(8, 2)
    ([0, 1, 2, 3], [0, 2, 4, 6, 1, 3, 5, 7])
    """
    rows, width = [[k] for k in range(lanes)], lanes
    while len(rows) > 1:
        starts = _row_starts(lanes, block, width)
        rows = [
            [(v + w)[k // width] for k in starts]
            for v, w in zip(rows[::2], rows[1::2], strict=True)
        ]
        width //= 2
    return [rows[0].index(k) for k in range(lanes)]


def _row_starts(lanes: int, block: int, width: int) -> list[int]:
    """Return the first lane of each row when halves of two vectors are interleaved."""
    if width > block:
        return [*range(0, 2 * lanes, width)]
    return [
        k
        for at in range(0, lanes, block)
        for source in (0, lanes)
        for k in range(source + at, source + at + block, width)
    ]
