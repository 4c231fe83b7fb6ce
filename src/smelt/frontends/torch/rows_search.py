"""Where elements belong in sorted rows: torch's own search, one halving after another for all.

    first, last = 0, n
    while first < last:                      # as often as n has digits
        middle = (first + last) // 2
        if row[middle] < x: first = middle + 1
        else: last = middle

Each halving is a read at a computed position, and fuses with what is around it.  The steps are
those of torch, so that rows that are out of order, and NaN in them, give what they give there.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row
from smelt.frontends.torch.value import V, gather, iota, number, select
from smelt.types.dtype import i32, i64

__all__ = ["ROWS"]


def _searched(
    c: Call,
    rows: V,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: V | None = None,
) -> V:
    """`searchsorted`: each row of `x` in its own row, or all of `x` in the only one."""
    if sorter is not None:
        raise UnsupportedError("a search in rows that are sorted by positions")
    if not isinstance(x, V):
        x = number(x, rows.dtype, c.origin)
    return _places(c, rows, x, after=right or side == "right")


def _bucketized(c: Call, x: Any, row: V, *, out_int32: bool = False, right: bool = False) -> V:
    """`bucketize`: all of `x` in one row."""
    return _searched(c, row, x, out_int32=out_int32, right=right)


def _places(c: Call, rows: V, x: V, *, after: bool) -> V:
    """How many elements of a row come before each one; equal ones do if `after`.  More halvings
    than it takes would change nothing; of a symbolic length nobody knows how many it takes."""
    n = rows.shape[-1]
    if not isinstance(n, int) or not 0 < n < 1 << 30:
        raise UnsupportedError("a search in rows of a symbolic length, or of none")
    if rows.dtype != x.dtype:
        raise UnsupportedError("a search for elements of another type")
    beside = [iota(x.shape, d, i64, c.origin) for d in range(rows.rank - 1)]
    first, last = (number(k, i32, c.origin).expand(x.shape) for k in (0, n))
    for _ in range(n.bit_length()):
        middle = (first + last).map("shr", 1)
        found = gather(rows, 0, *beside, middle.map("min", n - 1).cast(i64))
        stays = found.map("gt" if after else "ge", x)  # false for NaN, which comes behind all
        open_ = first.map("lt", last)
        first = select(open_.map("and", stays.map("not")), middle.map("add", 1), first)
        last = select(open_.map("and", stays), middle, last)
    return first.cast(c.dtype)


ROWS = (
    Row("aten.searchsorted.Tensor", _searched, inside=True),
    Row("aten.searchsorted.Scalar", _searched, inside=True),
    Row("aten.bucketize.Tensor", _bucketized, inside=True),
    Row("aten.bucketize.Scalar", _bucketized, inside=True),
)
"""Searches."""
