"""Elements that lanes gather of rows that data pick, where the rows might be read as they lie.

A row of a table that is picked by a number is read as it lies, by whoever walks along it.  Behind
views that cut or join rows otherwise, neighbouring positions may be elements of different rows:
then lanes fetch them one by one, wherever the value is read again, packed or not.

    table[id[n], k]                  along k a line
    table[id[n, j // 16], j % 16]    along j parts of many lines, along n a line for each element
    x[id[n]]                         no lines: whoever reads it gathers

Written once where it is read in lines, such a value is read in lines by whoever follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.fusion.trace import Term
from smelt.fusion.units import STILL
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index, atoms, axes_of

GATHERED_NS = 0.8
"""Nanoseconds for each such element: its position, and a lane of its own (measured: 0.9 with the
arithmetic around it, of a table that the second cache holds in part)."""


def is_gathered(place: Sequence[Term], picks: Mapping[str, int], axes: int) -> bool:
    """Whether a place that depends on `axes` is in rows that data pick, and follows them along none
    of these; `picks` are the axes of each position that data decide.

    >>> from smelt.types.expr import axis, value
    >>> j, p = axis("a1", 416), value("p", 1000)
    >>> is_gathered((p, j % 16), {"p": 0b11}, 0b11), is_gathered((p, 1), {"p": 0b01}, 0b11)
    (True, False)
    >>> is_gathered((p,), {"p": 0b01}, 0b01), is_gathered((2, j % 16), {}, 0b110)
    (False, False)
    """
    last = place[-1] if place else STILL
    if not _walks(last) or _picked(last):
        return False
    varied = sum({1 << a for t in place for p in _picked(t) for a in bits(picks[p])})
    return varied > 0 and not any(_follows(last, a) for a in bits(axes & ~varied))


def _walks(last: Term) -> bool:
    """Whether a dimension is read at more than one place."""
    return len(axes_of(last)) > 0 if isinstance(last, Expr) else last != STILL


def _picked(term: Term) -> list[str]:
    """The positions in a term that data decide."""
    return [a.name for a in atoms(term) if a.kind == "value"] if isinstance(term, Expr) else []


def gathered(region: Region) -> Iterator[frozenset[str]]:
    """The axes of each such read of a region, by name."""
    if not region.picks:
        return
    for v, places in region.loads.items():
        for place, mask in zip(places, region.load_masks[v], strict=True):
            if is_gathered(place, region.picks, mask):
                yield frozenset(f"a{a}" for a in bits(mask))


def _follows(last: Term, a: int) -> bool:
    """Whether the last dimension follows an axis step by step."""
    if isinstance(last, Expr):
        step: Index | None = coefficient(last, f"a{a}")
        return step in (1, -1)
    return last == a
