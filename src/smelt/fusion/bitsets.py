"""Represent sets of small numbers as bits of an int, and evaluate sizes.

>>> bits(0b1011), least(0b1010)
((0, 1, 3), 1)
>>> bits(1 << 700 | 1 << 64 | 1)
(0, 64, 700)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from smelt.types.expr import Index, evaluate

UNPACK_ABOVE, SHIFT_ABOVE = 64, 256
"""Minimum number of members for unpacking all bits to be faster than removing them one by one.

The second value is the minimum number of low zero bits for shifting them out to pay.
"""
UNKNOWN_SIZE = 1 << 10
"""Size assumed where no hint gives one."""


@lru_cache(maxsize=1 << 14)
def bits(mask: int) -> tuple[int, ...]:
    """Return the numbers in a set in increasing order."""
    low = least(mask)
    if low > SHIFT_ABOVE:  # members of a cluster are close together, far from zero
        return tuple([low + n for n in bits(mask >> low)])
    if mask.bit_count() > UNPACK_ABOVE:
        words = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), np.uint8)
        return tuple(np.flatnonzero(np.unpackbits(words, bitorder="little")).tolist())
    numbers: list[int] = []
    while mask:
        low = mask & -mask
        numbers.append(low.bit_length() - 1)
        mask ^= low
    return tuple(numbers)


def least(mask: int) -> int:
    """Return the smallest number in a set, -1 if it is empty."""
    return (mask & -mask).bit_length() - 1


def closure(roots: int, operands: Sequence[int], within: int) -> int:
    """Return the members of a set that its members `roots` depend on, these included.

    >>> bits(closure(0b1001, [0, 0b1, 0b10, 0b110], within=0b1110))
    (1, 2, 3)
    """
    reached, pending = 0, roots & within
    while pending:
        u = pending.bit_length() - 1
        reached |= 1 << u
        pending = (pending | operands[u] & within) & ~reached
    return reached


class Hints(dict[str, int]):
    """Sizes at the first call, with a default for unknown ones."""

    def __missing__(self, name: str) -> int:
        return UNKNOWN_SIZE


def at_hints(e: Index, hints: Mapping[str, int]) -> int:
    """Evaluate an expression over sizes."""
    return e if isinstance(e, int) else int(evaluate(e, hints))


def find_root(parent: dict[int, int], key: int) -> int:
    """Return the representative of a key in a union-find forest."""
    root = key
    while (above := parent.get(root, root)) != root:
        root = above
    while key != root:
        parent[key], key = root, parent.get(key, root)
    return root
