"""Lower `searchsorted` to an unrolled binary search, with torch's own steps.

    first, last = 0, n
    while first < last:                      # bit_length(n) times
        middle = (first + last) // 2
        if row[middle] < x: first = middle + 1
        else: last = middle

Each step is a gather, which fuses with what is around it. The steps are those of torch, so that
unsorted rows, and NaN in them, give the same result as there.
"""

from __future__ import annotations

from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row
from smelt.frontends.torch.value import V, gather, iota, number, select
from smelt.types.dtype import i32, i64


def _searchsorted(
    c: Call,
    rows: V,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: V | None = None,
) -> V:
    """Lower `searchsorted`: each row of `x` in its own sorted row.

    Or all of `x` in the only one.
    """
    if sorter is not None:
        raise UnsupportedError("a search in rows that are sorted by positions")
    if not isinstance(x, V):
        x = number(x, rows.dtype, c.origin)
    return _binary_search(c, rows, x, after=right or side == "right")


def _bucketize(c: Call, x: Any, row: V, *, out_int32: bool = False, right: bool = False) -> V:
    return _searchsorted(c, row, x, out_int32=out_int32, right=right)


def _binary_search(c: Call, rows: V, x: V, *, after: bool) -> V:
    """Return how many elements of a row come before each element of `x`.

    Equal ones do if `after`. The number of steps is fixed by the length of a row: further steps
    would change nothing, and a symbolic length has no known number of steps.
    """
    n = rows.shape[-1]
    if not isinstance(n, int) or not 0 < n < 1 << 30:
        raise UnsupportedError("a search in rows of a symbolic length, or of none")
    if rows.dtype != x.dtype:
        raise UnsupportedError("a search for elements of another type")
    leading_positions = [iota(x.shape, d, i64, c.origin) for d in range(rows.rank - 1)]
    first, last = (number(k, i32, c.origin).expand(x.shape) for k in (0, n))
    for _ in range(n.bit_length()):
        middle = (first + last).map("shr", 1)
        element = gather(rows, 0, *leading_positions, middle.map("min", n - 1).cast(i64))
        stays = element.map("gt" if after else "ge", x)  # false for NaN, which sorts last
        is_open = first.map("lt", last)
        first = select(is_open.map("and", stays.map("not")), middle.map("add", 1), first)
        last = select(is_open.map("and", stays), middle, last)
    return first.cast(c.dtype)


ROWS = (
    Row("aten.searchsorted.Tensor", _searchsorted, in_bounds=True),
    Row("aten.searchsorted.Scalar", _searchsorted, in_bounds=True),
    Row("aten.bucketize.Tensor", _bucketize, in_bounds=True),
    Row("aten.bucketize.Scalar", _bucketize, in_bounds=True),
)
"""Rows of searches."""
