"""Offsets in one memory for what lives at different times, by size.

Buffers whose times meet must not overlap; others may share their bytes.  Each is put into the
lowest gap that fits, the order of that being the best of three: largest first, largest in bytes
times launches first, earliest first.

Greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference"
(2020).

>>> class Buffer:
...     at = 0
...
...     def __init__(self, hint, first, last):
...         self.hint, self.first, self.last = hint, first, last
>>> row = [Buffer(64, 0, 1), Buffer(128, 1, 2), Buffer(64, 2, 3)]
>>> pack(row), [b.at for b in row]  # the last one stands where the first one stood
(192, [128, 0, 128])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

__all__ = ["Lives", "lower_bound", "pack", "peak"]


class Lives(Protocol):
    """Something with a place in memory."""

    hint: int
    """Its bytes, at the sizes in question."""
    first: int
    last: int
    """The times, both included, at which it must be there."""
    at: int
    """Its offset."""


def pack(buffers: Sequence[Lives]) -> int:
    """Gives every buffer its offset; the bytes of the whole."""
    bound = lower_bound(buffers)
    best: list[int] | None = None
    least = 0
    for order in (
        lambda b: (-b.hint, b.first - b.last, b.first),
        lambda b: (-b.hint * (b.last - b.first + 1), b.first),
        lambda b: (b.first, -b.hint),
    ):
        _first_fit(sorted(buffers, key=order))
        found = peak(buffers)
        if best is None or found < least:
            best, least = [b.at for b in buffers], found
        if least <= bound:
            break
    for b, at in zip(buffers, best or [], strict=True):
        b.at = at
    return least


def _first_fit(order: Iterable[Lives]) -> None:
    """Each into the lowest of the least gaps that it fits into, or on top of those it meets."""
    there: dict[int, list[Lives]] = {}
    for b in order:
        times = [there.setdefault(t, []) for t in range(b.first, b.last + 1)]
        met = {id(c): c for here in times for c in here}
        b.at = 0
        best: int | None = None
        room = end = 0
        for c in sorted(met.values(), key=lambda c: (c.at, c.hint)):
            gap = c.at - end
            if gap >= b.hint and (best is None or gap < room):
                best, room = end, gap
            end = max(end, c.at + c.hint)
        b.at = end if best is None else best
        for here in times:
            here.append(b)


def peak(buffers: Iterable[Lives]) -> int:
    """Bytes of the memory that they stand in."""
    return max((b.at + b.hint for b in buffers), default=0)


def lower_bound(buffers: Sequence[Lives]) -> int:
    """Bytes that live together at the fullest time: no memory is smaller."""
    live = most = 0
    changes: dict[int, int] = {}
    for b in buffers:
        changes[b.first] = changes.get(b.first, 0) + b.hint
        changes[b.last + 1] = changes.get(b.last + 1, 0) - b.hint
    for t in sorted(changes):
        live += changes[t]
        most = max(most, live)
    return most
