"""The greatest elements along an axis in order, and where they are.

A few of them are found by as many visits, each made of ordinary folds, which fuse with what is
around them:

    v  = max(where(x < v or (x == v and i > p), x, -inf))
    p  = min(where(x == v and (v is new or i > p), i, none))

The pair (v, p) is the last one found: what comes after it in order, by value and then by place, is
what is left.  NaN is the greatest, as for sorting: it counts as infinite, at a place before all.

>>> import smelt as sm
>>> top_k(sm.asarray([3, 1, 4, 1, 5]), 2)
TopK(values=Array([5, 4]), indices=Array([4, 2]))
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.creation import iota
from smelt.frontends.array.elementwise import isnan, maximum, minimum, where
from smelt.frontends.array.library import call
from smelt.frontends.array.manipulation import concat
from smelt.frontends.array.number import as_dim, is_whole
from smelt.frontends.array.promote import cast
from smelt.frontends.array.reduction import size_value
from smelt.frontends.array.searching import take_along_axis
from smelt.frontends.array.statistical import max as greatest
from smelt.frontends.array.statistical import min as least
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import axis_of, scope_of, shape_of, take_range
from smelt.ops.combine import COMBINES
from smelt.types.dtype import bool_, i32, i64, u8
from smelt.types.expr import Index, sub

__all__ = ["VISITS", "TopK", "top_k"]

VISITS = 16
"""So many elements are found by visits of the row; for more of them it is sorted by NumPy."""
ROW = 1 << 20
"""Rows up to this length: their places, twice, are counted in 32 bits."""


class TopK(NamedTuple):
    """What `top_k` gives."""

    values: Array
    indices: Array


def top_k(x: Any, /, k: Any, *, axis: int = -1, largest: bool = True) -> TopK:
    """The `k` greatest elements along `axis` in descending order, and their positions, int64.

    Of equal elements the first comes first, and NaN is the greatest of all.  With `largest=False`
    the least elements, in ascending order (NaN, still the greatest, last).  The values have
    derivatives.  Up to 16 are found by kernels, which fuse with what is around them; for more of
    them, or a number that is known only at the call, rows are sorted by NumPy.

    Raises ShapeError for rank 0 and for more elements than there are, ArgumentError for a `k` that
    is no number of elements, AxisError.
    """
    node = value(x, "top_k")
    if not node.type.shape:
        raise ShapeError(op="top_k", operands=node.told, reason="it has no dimensions")
    if isinstance(k, bool) or not is_whole(k):
        raise ArgumentError(op="top_k", argument="k", value=repr(k), expected="an integer")
    place = axis_of(axis, node.type.rank, "top_k")
    count, extent = as_dim(k), shape_of(node)[place]
    scope = scope_of(node, (count, extent))
    if not holds(scope, 0, "<=", count):
        raise ArgumentError(op="top_k", argument="k", value=repr(k), expected="0 or more")
    if not holds(scope, count, "<=", extent):
        raise ShapeError(
            op="top_k", operands=node.told, reason=f"axis {place} has fewer than {k} elements"
        )
    if count == 0:
        found = _first(iota(shape_of(node), place), place, 0)
    elif isinstance(count, int) and count <= VISITS and holds(scope, extent, "<=", ROW):
        found = _visited(node, count, place, extent, largest=bool(largest))
    else:
        order = call("argsort", node, axis=place, descending=bool(largest), stable=True)
        found = _first(order, place, count)
    places = Array.of(found)
    return TopK(take_along_axis(Array.of(node), places, axis=place), places)


def _first(order: Value, a: int, count: Index) -> Value:
    """Positions at the front of an axis."""
    starts, shape = [0] * order.type.rank, [*shape_of(order)]
    shape[a] = count
    return take_range(order, tuple(starts), tuple(shape), (1,) * len(shape))


def _visited(x: Value, k: int, a: int, extent: Index, *, largest: bool) -> Value:
    """Positions of the first `k` elements in order, by as many visits."""
    keys, at, size = _keyed(x, a, extent, largest=largest)
    dtype, best_of = value(keys, "top_k").type.dtype, greatest if largest else least
    worst = COMBINES["max" if largest else "min"].identity(dtype)
    v = best_of(keys, axis=a, keepdims=True)
    found = [least(where(keys == v, at, _NONE), axis=a, keepdims=True)]
    for _ in range(1, k):
        p = found[-1]
        beyond = keys < v if largest else keys > v
        left = where(beyond | ((keys == v) & (at > p)), keys, worst)
        best = best_of(left, axis=a, keepdims=True)
        free = at > where(best == v, p, -_NONE)
        found.append(least(where((keys == best) & free, at, _NONE), axis=a, keepdims=True))
        v = best
    whole = concat(found, axis=a)
    if x.type.dtype.is_float:  # as they stand in the row
        there = whole + size if largest else whole - size
        whole = where(whole < 0 if largest else whole >= size, there, whole)
    last = Array.of(size_value(sub(extent, 1), i32))  # all are inside: said so that nobody asks
    return cast(value(minimum(maximum(whole, 0), last), "top_k"), i64)


def _keyed(x: Value, a: int, extent: Index, *, largest: bool) -> tuple[Array, Array, Array]:
    """The elements as numbers, their places in order among equal ones, and how many there are."""
    line: list[Index] = [1] * x.type.rank
    line[a] = extent
    at, size = Array.of(iota(tuple(line), a, i32)), Array.of(size_value(extent, i32))
    dtype = x.type.dtype
    keys = Array.of(cast(x, u8 if dtype is bool_ else dtype.compute))
    if not dtype.is_float:
        return keys, at, size
    none = isnan(keys)
    moved = at - size if largest else at + size
    return where(none, math.inf, keys), where(none, moved, at), size


_NONE = (1 << 31) - 1
"""The place of what does not count."""
