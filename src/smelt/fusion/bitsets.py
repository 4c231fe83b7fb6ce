"""Sets of small numbers as bits of an int, and sizes as numbers.

>>> bits(0b1011), least(0b1010)
((0, 1, 3), 1)
>>> bits(1 << 700 | 1 << 64 | 1)
(0, 64, 700)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from smelt.types.expr import Index, evaluate

MANY, SHORT = 64, 256
"""Members beyond which taking them off one by one, each time a new number, is slower than looking
at all bits, and zeros below the first one beyond which numbers without them are quicker."""
UNKNOWN_SIZE = 1 << 10
"""Assumed where no hint tells a size."""


@lru_cache(maxsize=1 << 14)
def bits(mask: int) -> tuple[int, ...]:
    """The numbers in a set, in increasing order."""
    low = least(mask)
    if low > SHORT:  # members of a cluster lie close together, far from zero
        return tuple([low + n for n in bits(mask >> low)])
    if mask.bit_count() > MANY:
        words = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), np.uint8)
        return tuple(np.flatnonzero(np.unpackbits(words, bitorder="little")).tolist())
    found: list[int] = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


def least(mask: int) -> int:
    """The least number in a set, -1 if it is empty."""
    return (mask & -mask).bit_length() - 1


class Hints(dict[str, int]):
    """Sizes at the first call, with a guess for those that are not known."""

    def __missing__(self, name: str) -> int:
        return UNKNOWN_SIZE


def at_hints(e: Index, hints: Mapping[str, int]) -> int:
    """An expression over sizes as a number."""
    return e if isinstance(e, int) else int(evaluate(e, hints))


def find(parent: dict[int, int], key: int) -> int:
    """What stands for a key among those that `parent` has put together (union-find)."""
    root = key
    while (above := parent.get(root, root)) != root:
        root = above
    while key != root:
        parent[key], key = root, parent.get(key, root)
    return root
