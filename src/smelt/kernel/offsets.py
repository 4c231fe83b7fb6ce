"""Static memory allocation: offsets in one arena for buffers with known lifetimes.

Buffers whose lifetimes overlap must not share bytes; others may. Each buffer goes into the smallest
gap that fits, trying three orders and keeping the best: largest first, largest product of bytes and
lifetime first, earliest first.

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


class BufferLifetime(Protocol):
    """A buffer with a lifetime and an offset."""

    hint: int
    """Its bytes at the sizes of the first call."""
    first: int
    last: int
    """First and last time, both included, at which it is live."""
    at: int
    """Its offset in bytes."""


def pack(buffers: Sequence[BufferLifetime]) -> int:
    """Set the offset of every buffer; return the bytes of the arena."""
    bound = lower_bound(buffers)
    best: list[int] | None = None
    least = 0
    for order in (
        lambda b: (-b.hint, b.first - b.last, b.first),
        lambda b: (-b.hint * (b.last - b.first + 1), b.first),
        lambda b: (b.first, -b.hint),
    ):
        _first_fit(sorted(buffers, key=order))
        arena_bytes = peak(buffers)
        if best is None or arena_bytes < least:
            best, least = [b.at for b in buffers], arena_bytes
        if least <= bound:
            break
    for b, at in zip(buffers, best or [], strict=True):
        b.at = at
    return least


def _first_fit(order: Iterable[BufferLifetime]) -> None:
    """Place each buffer into the smallest gap that fits, or above all overlapping ones."""
    placed: dict[int, list[BufferLifetime]] = {}
    for b in order:
        times = [placed.setdefault(t, []) for t in range(b.first, b.last + 1)]
        overlapping = {id(c): c for at_time in times for c in at_time}
        b.at = 0
        best: int | None = None
        gap_bytes = end = 0
        for c in sorted(overlapping.values(), key=lambda c: (c.at, c.hint)):
            gap = c.at - end
            if gap >= b.hint and (best is None or gap < gap_bytes):
                best, gap_bytes = end, gap
            end = max(end, c.at + c.hint)
        b.at = end if best is None else best
        for at_time in times:
            at_time.append(b)


def peak(buffers: Iterable[BufferLifetime]) -> int:
    """Return the bytes of the arena that the buffers occupy."""
    return max((b.at + b.hint for b in buffers), default=0)


def lower_bound(buffers: Sequence[BufferLifetime]) -> int:
    """Return the maximum bytes live at one time: no arena is smaller."""
    live = most = 0
    changes: dict[int, int] = {}
    for b in buffers:
        changes[b.first] = changes.get(b.first, 0) + b.hint
        changes[b.last + 1] = changes.get(b.last + 1, 0) - b.hint
    for t in sorted(changes):
        live += changes[t]
        most = max(most, live)
    return most
