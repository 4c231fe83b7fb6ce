"""Lower searches: `searchsorted` and `topk`.

`searchsorted` is an unrolled binary search with torch's own steps:

    first, last = 0, n
    while first < last:                      # bit_length(n) times
        middle = (first + last) // 2
        if row[middle] < x: first = middle + 1
        else: last = middle

Each step is a gather, which fuses with what is around it. The steps are those of torch, so that
unsorted rows, and NaN in them, give the same result as there.

`topk` of few elements is one reduction over the row for each element, as in
`smelt.frontends.array.topk`. For more elements, or in long rows, torch finds all in about one pass.
"""

from __future__ import annotations

import math
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axis_of
from smelt.frontends.torch.value import V, concat, gather, iota, number, select
from smelt.ops.combine import COMBINES
from smelt.types.dtype import bool_, i32, i64, u8
from smelt.types.expr import Index, evaluate, sub


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


MAX_SHORT_ROW = 1024
"""Elements of a row that stay in the first-level cache."""
MAX_PASSES = (16, 4)
"""Maximum passes that are as fast as torch's search, for 32-bit elements: over rows up to SHORT,
and over longer ones."""


def _top(
    c: Call, x: V, k: Any, dim: int = -1, largest: bool = True, *_sorted: Any, **_more: Any
) -> tuple[V, V]:
    """Return values and positions, always sorted."""
    if not x.rank or not isinstance(k, int) or not k:
        raise UnsupportedError("a number of elements known only at the call, or none")
    a = axis_of(dim, x.rank)
    extent = x.shape[a]
    length = evaluate(extent, c.sizes.hints)
    visits = MAX_PASSES[length > MAX_SHORT_ROW] * 32 // max(32, x.dtype.compute.bits)
    if k > visits:
        raise UnsupportedError("many elements, or of long rows, which torch finds in one visit")
    positions = _first_positions(x, k, a, extent, largest=largest)
    others = [
        positions if d == a else iota(_axis_shape(x, d), d, i64, c.origin) for d in range(x.rank)
    ]
    return gather(x, 0, *others), positions


def _axis_shape(x: V, a: int) -> tuple[Index, ...]:
    return tuple(n if d == a else 1 for d, n in enumerate(x.shape))


def _first_positions(x: V, k: int, a: int, extent: Index, *, largest: bool) -> V:
    keys, at = _keys_and_positions(x, a, extent, largest=largest)
    kind, is_worse = ("max", "lt") if largest else ("min", "gt")
    worst = number(COMBINES[kind].identity(keys.dtype), keys.dtype, x.origin)
    after_all = (1 << (at.dtype.bits - 1)) - 1
    no_position, before_all = (number(n, at.dtype, x.origin) for n in (after_all, -after_all))
    v = keys.reduce(kind, (a,), True)
    chosen = [select(keys.map("eq", v), at, no_position).reduce("min", (a,), True)]
    for _ in range(1, k):
        p = chosen[-1]
        later = keys.map("eq", v).map("and", at.map("gt", p))
        remaining = select(keys.map(is_worse, v).map("or", later), keys, worst)
        best = remaining.reduce(kind, (a,), True)
        free = at.map("gt", select(best.map("eq", v), p, before_all))
        fits = keys.map("eq", best).map("and", free)
        chosen.append(select(fits, at, no_position).reduce("min", (a,), True))
        v = best
    result = concat(chosen, a)
    if x.dtype.is_float:  # undo the shift of NaN positions
        was_nan = result.map("lt", 0) if largest else result.map("ge", extent)
        moved = result.map("add" if largest else "sub", extent)
        result = select(was_nan, moved, result)
    return result.map("max", 0).map("min", sub(extent, 1)).cast(i64)


def _keys_and_positions(x: V, a: int, extent: Index, *, largest: bool) -> tuple[V, V]:
    """Return comparable keys, and positions that order equal ones.

    NaN counts as the greatest: its key is infinite, at a position before all others, or after all
    others where the least elements come first.
    """
    short = isinstance(extent, int) and extent < 1 << 30
    positions = iota(_axis_shape(x, a), a, i32 if short else i64, x.origin)
    keys = x.cast(u8) if x.dtype == bool_ else x.to_compute_type()
    if not x.dtype.is_float:
        return keys, positions
    is_nan = keys.map("isnan")
    moved = positions.map("sub" if largest else "add", extent)
    infinity = number(math.inf, keys.dtype, x.origin)
    return select(is_nan, infinity, keys), select(is_nan, moved, positions)


ROWS = (
    Row("aten.searchsorted.Tensor", _searchsorted, in_bounds=True),
    Row("aten.searchsorted.Scalar", _searchsorted, in_bounds=True),
    Row("aten.bucketize.Tensor", _bucketize, in_bounds=True),
    Row("aten.bucketize.Scalar", _bucketize, in_bounds=True),
    Row("aten.topk.default", _top),
)
"""Rows of searches."""
