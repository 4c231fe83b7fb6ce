"""The greatest elements of rows in order: a few of them by as many visits, each a fold.

See `smelt.frontends.array.top`, where the same is written for array code.  For more of them, or in
long rows, torch finds all in about one visit.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import math
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axis_of
from smelt.frontends.torch.value import V, concat, gather, iota, number, select
from smelt.ops.combine import COMBINES
from smelt.types.dtype import bool_, i32, i64, u8
from smelt.types.expr import Index, evaluate, sub

__all__ = ["ROWS"]

SHORT = 1024
VISITS = (16, 4)
"""Visits that take no longer than torch's search, for 32-bit elements: of rows up to SHORT, which
stay in the first cache, and of longer ones (measured: 16 of 1024 take three quarters of torch's
time, 4 of 8192 six sevenths, 8 of 8192 four thirds)."""


def _top(
    c: Call, x: V, k: Any, dim: int = -1, largest: bool = True, *_sorted: Any, **_more: Any
) -> tuple[V, V]:
    """Values and positions; in order whether it is asked for or not."""
    if not x.rank or not isinstance(k, int) or not k:
        raise UnsupportedError("a number of elements known only at the call, or none")
    a = axis_of(dim, x.rank)
    extent = x.shape[a]
    length = evaluate(extent, c.sizes.hints)
    visits = VISITS[length > SHORT] * 32 // max(32, x.dtype.compute.bits)
    if k > visits:
        raise UnsupportedError("many elements, or of long rows, which torch finds in one visit")
    places = _visited(x, k, a, extent, largest=largest)
    others = [places if d == a else iota(_line(x, d), d, i64, c.origin) for d in range(x.rank)]
    return gather(x, 0, *others), places


def _line(x: V, a: int) -> tuple[Index, ...]:
    """The shape of a counted axis beside the others."""
    return tuple(n if d == a else 1 for d, n in enumerate(x.shape))


def _visited(x: V, k: int, a: int, extent: Index, *, largest: bool) -> V:
    """Positions of the first `k` elements in order."""
    keys, at = _keyed(x, a, extent, largest=largest)
    kind, before = ("max", "lt") if largest else ("min", "gt")
    worst = number(COMBINES[kind].identity(keys.dtype), keys.dtype, x.origin)
    behind = (1 << (at.dtype.bits - 1)) - 1
    none, any_place = (number(n, at.dtype, x.origin) for n in (behind, -behind))
    v = keys.reduce(kind, (a,), True)
    found = [select(keys.map("eq", v), at, none).reduce("min", (a,), True)]
    for _ in range(1, k):
        p = found[-1]
        later = keys.map("eq", v).map("and", at.map("gt", p))
        left = select(keys.map(before, v).map("or", later), keys, worst)
        best = left.reduce(kind, (a,), True)
        free = at.map("gt", select(best.map("eq", v), p, any_place))
        fits = keys.map("eq", best).map("and", free)
        found.append(select(fits, at, none).reduce("min", (a,), True))
        v = best
    whole = concat(found, a)
    if x.dtype.is_float:  # as they stand in the row
        outside = whole.map("lt", 0) if largest else whole.map("ge", extent)
        moved = whole.map("add" if largest else "sub", extent)
        whole = select(outside, moved, whole)
    return whole.map("max", 0).map("min", sub(extent, 1)).cast(i64)


def _keyed(x: V, a: int, extent: Index, *, largest: bool) -> tuple[V, V]:
    """The elements as numbers, and their places in order among equal ones: NaN, the greatest,
    counts as infinite, at a place before all, or behind all where the least come first."""
    short = isinstance(extent, int) and extent < 1 << 30
    at = iota(_line(x, a), a, i32 if short else i64, x.origin)
    keys = x.cast(u8) if x.dtype == bool_ else x.wide()
    if not x.dtype.is_float:
        return keys, at
    unknown = keys.map("isnan")
    moved = at.map("sub" if largest else "add", extent)
    endless = number(math.inf, keys.dtype, x.origin)
    return select(unknown, endless, keys), select(unknown, moved, at)


ROWS = (Row("aten.topk.default", _top),)
"""The greatest elements in order."""
