"""Find reads of data-dependent rows that lanes gather element by element.

A row of a table at a data-dependent index is read contiguously along its own axis. Behind views
that split or merge rows otherwise, neighbouring positions may belong to different rows: then lanes
fetch them one by one, wherever the value is read again, packed or not.

    table[id[n], k]                  along k a row
    table[id[n, j // 16], j % 16]    along j parts of many rows, along n one row per element
    x[id[n]]                         no rows: every reader gathers it

If such a value is stored once where rows are read contiguously, its readers read it contiguously.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.fusion.trace import Term
from smelt.fusion.units import AT_ZERO
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index, atoms, axes_of

GATHERED_NS = 0.8
"""Nanoseconds per gathered element: its position, and the access of one lane."""


def is_gathered(position: Sequence[Term], picks: Mapping[str, int], axes: int) -> bool:
    """Return whether a read of data-dependent rows follows them along no axis.

    The read depends on `axes`; `data_positions` holds the axes of each data-dependent position.

    >>> from smelt.types.expr import axis, value
    >>> j, p = axis("a1", 416), value("p", 1000)
    >>> is_gathered((p, j % 16), {"p": 0b11}, 0b11), is_gathered((p, 1), {"p": 0b01}, 0b11)
    (True, False)
    >>> is_gathered((p,), {"p": 0b01}, 0b01), is_gathered((2, j % 16), {}, 0b110)
    (False, False)
    """
    last_term = position[-1] if position else AT_ZERO
    if not _varies(last_term) or _data_positions(last_term):
        return False
    data_axes = sum({1 << a for t in position for p in _data_positions(t) for a in bits(picks[p])})
    return data_axes > 0 and not any(_follows(last_term, a) for a in bits(axes & ~data_axes))


def _varies(last: Term) -> bool:
    """Return whether a dimension is read at more than one position."""
    return len(axes_of(last)) > 0 if isinstance(last, Expr) else last != AT_ZERO


def _data_positions(term: Term) -> list[str]:
    return [a.name for a in atoms(term) if a.kind == "value"] if isinstance(term, Expr) else []


def gathered_reads(region: Region) -> Iterator[frozenset[str]]:
    """Iterate over the axes, by name, of each gathered read of a region."""
    if not region.data_positions:
        return
    for v, positions in region.loads.items():
        for position, mask in zip(positions, region.load_masks[v], strict=True):
            if is_gathered(position, region.data_positions, mask):
                yield frozenset(f"a{a}" for a in bits(mask))


def _follows(last: Term, a: int) -> bool:
    """Return whether the last dimension follows an axis with step 1 or -1."""
    if isinstance(last, Expr):
        step: Index | None = coefficient(last, f"a{a}")
        return step in (1, -1)
    return last == a
