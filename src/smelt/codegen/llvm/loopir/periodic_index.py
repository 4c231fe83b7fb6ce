"""Indices that are periodic along an axis, as `k//3` and `k%3` are.

When rows of 3 are walked as one run, other operands still need the row number and the position in
the row.  Both repeat: 3 positions on, `k//3` is 1 more and `k%3` the same.  What the lanes of a
vector read follows from its start within a period, so a table lookup replaces the divisions:

    k%3     first lane at 0:  0 1 2 0 1 2 ..    at 1:  1 2 0 1 2 0 ..    at 2:  2 0 1 2 0 1 ..

>>> from smelt.types.expr import axis, floordiv, mod, size
>>> k = axis("k", size("n") * 3)
>>> found = find_period(floordiv(k, 3) * 4 + mod(k, 3), "k")
>>> found.period, found.step, found.first, found.table(7)
(3, 4, 0, (0, 1, 2, 4, 5, 6, 8))
>>> find_period(floordiv(k, size("m")), "k") is None
True
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import lcm

from smelt.python.dataclass import dataclass
from smelt.types.expr import Atom, Expr, Index, add, atoms, axes_of, substitute, terms_of

_KINDS = ("axis", "//", "%")
"""Kinds of atoms in a periodic term."""
MAX_PERIOD = 64
"""Longest period: a table has one entry for each position of it, and those of a vector."""
MAX_TABLE_ENTRY = 1 << 22
"""Largest offset within a period, and from one period to the next: tables have 32 bits."""


@dataclass(frozen=True, slots=True)
class PeriodicIndex:
    """A periodic index: `first` + `step` for every full period + the offset within it."""

    period: int
    step: int
    first: Index
    """The part of the index without the axis."""
    offsets: tuple[int, ...]
    """Offset of each position in the period, relative to that of the first."""

    def table(self, count: int) -> tuple[int, ...]:
        """Return what is added to `first` at the first `count` positions."""
        n = self.period
        return tuple(self.offsets[x % n] + x // n * self.step for x in range(count))

    def start_offsets(self, start: int, step: int) -> frozenset[int]:
        """Return the positions in a period at which a vector can begin.

        The first vector begins at `start`, the others `step` positions apart.
        """
        return frozenset((start + x) % self.period for x in range(0, self.period * step, step))

    def windows(
        self, lanes: int, is_read: Sequence[bool], firsts: Collection[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the memory window that a vector reads, for each position where it may begin.

        The offset of the window (as the table counts), and the elements that are read in it, as a
        bit mask.  Lanes at positions that are not `is_read` read nothing, nor does any lane for a
        start that is not among `start_offsets`.
        """
        table, n = self.table(self.period + lanes - 1), self.period
        firsts = range(n) if firsts is None else firsts
        read = [
            {table[x] for x in range(r, r + lanes) if is_read[x % n] and r in firsts}
            for r in range(n)
        ]
        least = min((min(offsets) for offsets in read if offsets), default=0)
        starts = [min(offsets, default=least) for offsets in read]
        if self._vectors(read, [least] * n, lanes) <= self._vectors(read, starts, lanes):
            starts = [least] * n  # one number for all
        return starts, [
            sum(1 << x - at for x in offsets) for offsets, at in zip(read, starts, strict=True)
        ]

    def span(
        self,
        lanes: int,
        is_read: Sequence[bool] | None = None,
        firsts: Collection[int] | None = None,
    ) -> int:
        """Return the most elements from the first to the last one that a vector reads."""
        is_read = [True] * self.period if is_read is None else is_read
        return max(bits.bit_length() for bits in self.windows(lanes, is_read, firsts)[1])

    @staticmethod
    def _vectors(read: list[set[int]], starts: list[int], lanes: int) -> int:
        longest = max(
            (max(offsets) - at for offsets, at in zip(read, starts, strict=True) if offsets),
            default=0,
        )
        return longest // lanes


@lru_cache(maxsize=4096)
def find_period(e: Index, axis: str) -> PeriodicIndex | None:
    """Return how an index repeats along an axis, or None if it does not."""
    first: Index = 0
    periodic: Index = 0
    for m, c in terms_of(e):
        term = Expr(((m, c),)) if m else c
        if axis not in axes_of(term):
            first = add(first, term)
        elif len(m) > 1 or any(
            a.kind not in _KINDS or a.name not in ("", axis) for a in atoms(term)
        ):
            return None
        else:
            periodic = add(periodic, term)
    period = _period(periodic)
    if period is None or period > MAX_PERIOD:
        return None
    values = [substitute(periodic, {axis: x}) for x in range(period + 1)]
    numbers = [x for x in values if isinstance(x, int)]
    if len(numbers) != len(values):
        return None
    start, end = numbers[0], numbers[-1]
    offsets = tuple(x - start for x in numbers[:-1])
    if max(abs(x) for x in (end - start, *offsets)) > MAX_TABLE_ENTRY:
        return None
    return PeriodicIndex(period, end - start, add(first, start), offsets)


def _period(e: Index) -> int | None:
    """Return the period of an index over one axis, up to a constant increment."""
    period = 1
    for m, _ in terms_of(e):
        for atom in m:
            factor = _atom_period(atom)
            if factor is None:
                return None
            period = lcm(period, factor)
    return period


def _atom_period(atom: Atom) -> int | None:
    if atom.kind == "axis":
        return 1
    if atom.kind not in ("//", "%") or not isinstance(divisor := atom.args[1], int):
        return None
    inner = _period(atom.args[0])
    # After `divisor` inner periods the argument has grown by a multiple of the divisor.
    return None if inner is None else inner * divisor
