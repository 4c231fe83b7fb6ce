"""Find the k largest elements along an axis, in order, and their positions.

A few of them are found by k passes over the row.  Each pass is made of ordinary reductions, which
fuse with their neighbours:

    v  = max(where(x < v or (x == v and i > p), x, -inf))
    p  = min(where(x == v and (v is new or i > p), i, none))

The pair (v, p), value and position, is the element found last; the next pass considers the elements
after it in order, by value and then by position.  As in sorting, NaN is the largest: it is replaced
by infinity, at positions smaller than all others.

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
from smelt.frontends.array.number import as_dim, is_integral
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

MAX_PASSES = 16
"""Largest k that is found by passes over the row; for more, NumPy sorts it."""
MAX_ROW = 1 << 20
"""Longest row for passes, in elements: twice its positions must fit 32 bits."""


class TopK(NamedTuple):
    """Result of `top_k`: values and their positions."""

    values: Array
    indices: Array


def top_k(x: Any, /, k: Any, *, axis: int = -1, largest: bool = True) -> TopK:
    """Return the `k` largest elements along `axis` in descending order, with positions.

    Args:
        x: the array.
        k: how many: an integer, at most the size of the axis.
        axis: the dimension.
        largest: False gives the smallest elements, in ascending order.

    Returns:
        Values in the dtype of `x` and positions (int64), both with k elements along `axis`.

    Of equal elements the first comes first.  NaN is the largest of all.  The values have
    derivatives.  Up to 16 elements are found by kernels that fuse with their neighbours; for more,
    or a `k` known only at the call, NumPy sorts the rows.

    Raises ShapeError for rank 0 and for more elements than there are, ArgumentError for a `k` that
    is not a number of elements, AxisError.
    """
    node = value(x, "top_k")
    if not node.type.shape:
        raise ShapeError(op="top_k", operands=node.type_text, reason="it has no dimensions")
    if isinstance(k, bool) or not is_integral(k):
        raise ArgumentError(op="top_k", argument="k", value=repr(k), expected="an integer")
    dim = axis_of(axis, node.type.rank, "top_k")
    count, extent = as_dim(k), shape_of(node)[dim]
    scope = scope_of(node, (count, extent))
    if not holds(scope, 0, "<=", count):
        raise ArgumentError(op="top_k", argument="k", value=repr(k), expected="0 or more")
    if not holds(scope, count, "<=", extent):
        raise ShapeError.of("top_k", f"axis {dim} has fewer than {k} elements", node)
    if count == 0:
        best = _first(iota(shape_of(node), dim), dim, 0)
    elif isinstance(count, int) and count <= MAX_PASSES and holds(scope, extent, "<=", MAX_ROW):
        best = _select_by_passes(node, count, dim, extent, largest=bool(largest))
    else:
        order = call("argsort", node, axis=dim, descending=bool(largest), stable=True)
        best = _first(order, dim, count)
    indices = Array.of(best)
    return TopK(take_along_axis(Array.of(node), indices, axis=dim), indices)


def _first(order: Value, a: int, count: Index) -> Value:
    """Take the first `count` positions along an axis."""
    starts, shape = [0] * order.type.rank, [*shape_of(order)]
    shape[a] = count
    return take_range(order, tuple(starts), tuple(shape), (1,) * len(shape))


def _select_by_passes(x: Value, k: int, a: int, extent: Index, *, largest: bool) -> Value:
    """Return the positions of the first `k` elements in order, found in k passes."""
    keys, at, size = _keys(x, a, extent, largest=largest)
    dtype, best_of = value(keys, "top_k").type.dtype, greatest if largest else least
    worst = COMBINES["max" if largest else "min"].identity(dtype)
    v = best_of(keys, axis=a, keepdims=True)
    positions = [least(where(keys == v, at, _NONE), axis=a, keepdims=True)]
    for _ in range(1, k):
        p = positions[-1]
        is_later = keys < v if largest else keys > v
        remaining = where(is_later | ((keys == v) & (at > p)), keys, worst)
        best = best_of(remaining, axis=a, keepdims=True)
        candidates = at > where(best == v, p, -_NONE)
        positions.append(
            least(where((keys == best) & candidates, at, _NONE), axis=a, keepdims=True)
        )
        v = best
    selected = concat(positions, axis=a)
    if x.type.dtype.is_float:  # undo the shift of the positions of NaN
        restored = selected + size if largest else selected - size
        selected = where(selected < 0 if largest else selected >= size, restored, selected)
    last = Array.of(size_value(sub(extent, 1), i32))  # a clamp proves that no check is needed
    return cast(value(minimum(maximum(selected, 0), last), "top_k"), i64)


def _keys(x: Value, a: int, extent: Index, *, largest: bool) -> tuple[Array, Array, Array]:
    """Return sort keys, positions that break ties, and the size of the axis.

    NaN becomes infinity with a position before (after, for the smallest) all others.
    """
    shape: list[Index] = [1] * x.type.rank
    shape[a] = extent
    at, size = Array.of(iota(tuple(shape), a, i32)), Array.of(size_value(extent, i32))
    dtype = x.type.dtype
    keys = Array.of(cast(x, u8 if dtype is bool_ else dtype.compute))
    if not dtype.is_float:
        return keys, at, size
    is_nan = isnan(keys)
    shifted = at - size if largest else at + size
    return where(is_nan, math.inf, keys), where(is_nan, shifted, at), size


_NONE = (1 << 31) - 1
"""Position of elements that do not count."""
