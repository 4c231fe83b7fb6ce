"""Indices that repeat along an axis: what the lanes of a vector see of `k//3` and `k%3`.

Rows of 3 that are walked as one run need, beside it, their own numbers and places in the row.  Both
repeat: 3 positions on, `k//3` is 1 more and `k%3` the same.  What the lanes of a vector see follows
from where it starts within a period, so it is read from a table instead of divided for:

    k%3     first lane at 0:  0 1 2 0 1 2 ..    at 1:  1 2 0 1 2 0 ..    at 2:  2 0 1 2 0 1 ..

>>> from smelt.types.expr import axis, floordiv, mod, size
>>> k = axis("k", size("n") * 3)
>>> found = pattern(floordiv(k, 3) * 4 + mod(k, 3), "k")
>>> found.period, found.step, found.first, found.table(7)
(3, 4, 0, (0, 1, 2, 4, 5, 6, 8))
>>> pattern(floordiv(k, size("m")), "k") is None
True
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import lcm

from smelt.dataclass import dataclass
from smelt.types.expr import Atom, Expr, Index, add, atoms, axes_of, substitute, terms_of

__all__ = ["LONGEST", "Pattern", "pattern"]

_KINDS = ("axis", "//", "%")
LONGEST = 64
"""Positions of a period at most: a table of one has as many entries, and those of a vector."""
FARTHEST = 1 << 22
"""Of places within a period, and of periods from one another: what a table says has 32 bits."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """`first` + `step` for every whole period + what a table says of the place in the period."""

    period: int
    step: int
    first: Index
    """Without the axis."""
    places: tuple[int, ...]
    """Of each place in the period, less the first one's."""

    def table(self, count: int) -> tuple[int, ...]:
        """What is added to `first` at the first `count` positions."""
        n = self.period
        return tuple(self.places[x % n] + x // n * self.step for x in range(count))

    def firsts(self, start: int, step: int) -> frozenset[int]:
        """The places at which the first of some lanes can be that start there and go on so."""
        return frozenset((start + x) % self.period for x in range(0, self.period * step, step))

    def windows(
        self, lanes: int, held: Sequence[bool], firsts: Collection[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """For each place of the first of so many lanes: from where on what they ask for lies (as
        the table counts), and which elements from there, as bits.  Lanes at places that are not
        held ask for nothing, nor any where the first one is never (not among `firsts`)."""
        table, n = self.table(self.period + lanes - 1), self.period
        firsts = range(n) if firsts is None else firsts
        asked = [
            {table[x] for x in range(r, r + lanes) if held[x % n] and r in firsts} for r in range(n)
        ]
        least = min((min(own) for own in asked if own), default=0)
        starts = [min(own, default=least) for own in asked]
        if self._vectors(asked, [least] * n, lanes) <= self._vectors(asked, starts, lanes):
            starts = [least] * n  # one number for all
        return starts, [
            sum(1 << x - at for x in own) for own, at in zip(asked, starts, strict=True)
        ]

    def span(
        self,
        lanes: int,
        held: Sequence[bool] | None = None,
        firsts: Collection[int] | None = None,
    ) -> int:
        """Elements from the first to the last one that so many lanes ask for, at most."""
        held = [True] * self.period if held is None else held
        return max(bits.bit_length() for bits in self.windows(lanes, held, firsts)[1])

    @staticmethod
    def _vectors(asked: list[set[int]], starts: list[int], lanes: int) -> int:
        longest = max(
            (max(own) - at for own, at in zip(asked, starts, strict=True) if own), default=0
        )
        return longest // lanes


@lru_cache(maxsize=4096)
def pattern(e: Index, axis: str) -> Pattern | None:
    """How an index repeats along an axis by numbers; None if it does not."""
    first: Index = 0
    rest: Index = 0
    for m, c in terms_of(e):
        term = Expr(((m, c),)) if m else c
        if axis not in axes_of(term):
            first = add(first, term)
        elif len(m) > 1 or any(
            a.kind not in _KINDS or a.name not in ("", axis) for a in atoms(term)
        ):
            return None
        else:
            rest = add(rest, term)
    period = _period(rest)
    if period is None or period > LONGEST:
        return None
    found = [substitute(rest, {axis: x}) for x in range(period + 1)]
    numbers = [x for x in found if isinstance(x, int)]
    if len(numbers) != len(found):
        return None
    start, end = numbers[0], numbers[-1]
    places = tuple(x - start for x in numbers[:-1])
    if max(abs(x) for x in (end - start, *places)) > FARTHEST:
        return None
    return Pattern(period, end - start, add(first, start), places)


def _period(e: Index) -> int | None:
    """Positions after which an index over one axis is the same but for a number."""
    found = 1
    for m, _ in terms_of(e):
        for atom in m:
            own = _of_atom(atom)
            if own is None:
                return None
            found = lcm(found, own)
    return found


def _of_atom(atom: Atom) -> int | None:
    if atom.kind == "axis":
        return 1
    if atom.kind not in ("//", "%") or not isinstance(divisor := atom.args[1], int):
        return None
    inner = _period(atom.args[0])
    # Within so many periods, whatever one of them adds, the divisor goes into the sum.
    return None if inner is None else inner * divisor
