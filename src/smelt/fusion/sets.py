"""Sets of small numbers as bits of an int, and sizes as numbers.

>>> list(bits(0b1011))
[0, 1, 3]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from smelt.types.expr import Index, evaluate

UNKNOWN_SIZE = 1 << 10
"""Assumed where no hint tells a size."""


def bits(mask: int) -> Iterator[int]:
    """The numbers in a set, in increasing order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Hints(dict[str, int]):
    """Sizes at the first call, with a guess for those that are not known."""

    def __missing__(self, name: str) -> int:
        return UNKNOWN_SIZE


def at_hints(e: Index, hints: Mapping[str, int]) -> int:
    """An expression over sizes as a number."""
    return e if isinstance(e, int) else int(evaluate(e, hints))
