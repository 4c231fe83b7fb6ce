"""Bound index expressions at the sizes of a call, in exact integers.

Compiled code computes offsets and sizes in 64-bit integers without overflow checks.  Interval
arithmetic over the ranges of the axes shows before a call that no part of them overflows.

>>> from smelt.types.expr import axis, size
>>> interval(axis("i", size("n")) * 2 - 1, {"n": 5}), interval(axis("i", size("n")), {"n": 0})
((-1, 7), None)
>>> interval(size("n") * 2**60, {"n": 8})
Traceback (most recent call last):
    ...
smelt.errors.OverflowSizeError: E105 impossible size: n*1152921504606846976 reaches 2**63 ...
...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final, TypeAlias

from smelt.errors import OverflowSizeError, VerifyError
from smelt.types.expr import Atom, Index, sizes_of, terms_of, text

LIMIT: Final = 2**62
"""Absolute values from here on may overflow where 64-bit code adds or compares two of them."""

Interval: TypeAlias = tuple[int, int]
"""Smallest and largest value, both inclusive."""


def interval(e: Index, sizes: Mapping[str, int], scale: int = 1) -> Interval | None:
    """Return the range of `e` over its axes; None where an axis is empty.

    Raises OverflowSizeError if a part of `e`, in units of 1/`scale`, may not fit 64-bit integers
    in some order of evaluation, and VerifyError for an unknown size or a divisor below 1.
    """
    for name in sizes_of(e):
        if name not in sizes:
            raise VerifyError(f"the size {name} of {text(e)} follows from no array")
    low = high = reach = 0
    for monomial, c in terms_of(e):
        span = c, c
        term_reach = abs(c)
        for atom in monomial:
            bounds = _atom_interval(atom, sizes)
            if bounds is None:
                return None
            span = _corners(a * b for a, b in product(span, bounds))
            term_reach *= max(1, -bounds[0], bounds[1])
        low, high, reach = low + span[0], high + span[1], reach + term_reach
    if reach * scale >= LIMIT:
        raise OverflowSizeError(
            f"{_short(e)} reaches 2**{(reach * scale).bit_length() - 1} at the sizes of this call,"
            " which 64-bit index arithmetic cannot hold"
        )
    return low, high


def number(e: Index, sizes: Mapping[str, int]) -> int:
    """Return the value of an expression over sizes, checked as by `interval`."""
    bounds = interval(e, sizes)
    if bounds is None or bounds[0] != bounds[1]:
        raise VerifyError(f"{_short(e)} is not a number at the sizes of this call")
    return bounds[0]


def _short(e: Index) -> str:
    written = text(e)
    return written if len(written) <= 60 else f"{written[:60]}.."


def _corners(values: Iterable[int]) -> Interval:
    corners = tuple(values)
    return min(corners), max(corners)


def _atom_interval(atom: Atom, sizes: Mapping[str, int]) -> Interval | None:
    if atom.kind == "size":
        return sizes[atom.name], sizes[atom.name]
    if atom.kind in ("axis", "value"):
        extent = number(atom.extent, sizes)
        return (0, extent - 1) if extent > 0 else None
    sides = [interval(x, sizes) for x in atom.args]
    if sides[0] is None or sides[1] is None:
        return None
    a, b = sides[0], sides[1]
    if atom.kind == "min":
        return min(a[0], b[0]), min(a[1], b[1])
    if atom.kind == "max":
        return max(a[0], b[0]), max(a[1], b[1])
    if b[0] < 1:
        raise VerifyError(
            f"the divisor {_short(atom.args[1])} is {b[0]} at the sizes of this call: it must be"
            " at least 1"
        )
    if atom.kind == "//":
        return _corners(x // y for x, y in product(a, b))
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)
