"""Short rows in order, by networks: the same few comparisons for every row, whatever is in it.

Two elements at a time change places where they are out of order, always the same pairs in the same
order.  That is arithmetic on whole vectors, one row in each lane, and fuses with what is around it:

    3 elements:   (0, 1), (1, 2), (0, 1)      each: a, b = minimum(a, b), maximum(a, b)

Equal elements of a sort are the same bits but for zeros of both signs: floats are compared with
their neighbours alone, so that equal ones never pass each other.  Positions that sort are made by
fewer pairs, of which equal elements are told apart by their places: K. E. Batcher, "Sorting
networks and their applications" (1968), merging of odd and even.  NaN counts as infinite, beyond.

>>> exchanges(4)
[(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)]
>>> neighbours(3)
[(0, 1), (1, 2), (0, 1)]
"""

from __future__ import annotations

import math
from functools import reduce

from smelt.frontends.array.array import Array
from smelt.frontends.array.creation import full
from smelt.frontends.array.elementwise import isnan, maximum, minimum, where
from smelt.frontends.array.manipulation import stack
from smelt.frontends.array.promote import cast
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import reshape, scope_of, shape_of, take_range
from smelt.graph.ir import Node
from smelt.ops.elementwise import Map
from smelt.ops.view import Concat
from smelt.types.dtype import DType, bool_, i8, i16, i32, i64, u8
from smelt.types.expr import Index, product

__all__ = ["exchanges", "is_short", "neighbours", "placed", "put_in_order"]

SHORT, SHORT_LAST = 16, 8
"""Rows of so many elements at most are sorted by networks, and the same where they lie along the
last axis: there vectors run along longer rows where these are folded too, and a network has a row
to itself."""
MANY = 256
"""Rows from which on a network is worth compiling; NumPy sorts fewer in microseconds."""
_PLACES = {1: i8, 2: i16, 4: i32, 8: i64}
"""The types in which places are carried, by the bytes of an element: as many lanes as elements."""


def neighbours(n: int) -> list[tuple[int, int]]:
    """Pairs of neighbours that bring `n` elements in order: each sinks as far as it has to."""
    return [(j, j + 1) for last in range(1, n) for j in range(last - 1, -1, -1)]


def exchanges(n: int) -> list[tuple[int, int]]:
    """The pairs of Batcher's network for `n` elements."""
    found: list[tuple[int, int]] = []
    run = 1
    while run < n:
        step = run
        while step >= 1:
            for first in range(step % run, n - step, 2 * step):
                places = range(first, min(first + step, n - step))
                found += [
                    (k, k + step) for k in places if k // (2 * run) == (k + step) // (2 * run)
                ]
            step //= 2
        run *= 2
    return found


def is_short(x: Value, a: int) -> bool:
    """Whether the rows of `x` along an axis are sorted by a network: short ones, and many.  Their
    length is a number from then on."""
    shape = shape_of(x)
    extent, rows = shape[a], product(n for k, n in enumerate(shape) if k != a)
    along = a == len(shape) - 1 and not _is_stacked(x, a)
    scope, most = scope_of(x, shape), SHORT_LAST if along else SHORT
    if not holds(scope, 2, "<=", extent) or not holds(scope, extent, "<=", most):
        return False
    if not holds(scope, MANY, "<=", rows):
        return False
    if scope is not None:
        scope.pin(extent)
    return True


def _is_stacked(x: Value, a: int) -> bool:
    """Whether the elements along an axis come from arrays of their own, and lie nowhere yet."""
    pending: list[Node] = [x]
    seen: set[Node] = set()
    while pending:
        y = pending.pop()
        if isinstance(y, Value) and y.data is not None:
            continue
        if isinstance(y.op, Concat) and y.op.axis == a:
            return all(part.type.shape[a] == 1 for part in y.inputs)
        if isinstance(y.op, Map) and y not in seen:
            seen.add(y)
            pending += y.inputs
    return False


def put_in_order(x: Value, a: int, *, descending: bool) -> Array:
    """The elements of short rows in order; NaN after all numbers (before, if descending)."""
    dtype = x.type.dtype
    row = _columns(x, a)
    if dtype.is_float:
        nan = [isnan(e) for e in row]
        count = reduce(Array.__add__, [_as(e, i32) for e in nan])
        row = [where(none, math.inf, e) for none, e in zip(nan, row, strict=True)]
        for i, j in neighbours(len(row)):
            out = row[i] < row[j] if descending else row[j] < row[i]
            row[i], row[j] = where(out, row[j], row[i]), where(out, row[i], row[j])
        ends = range(len(row)) if descending else reversed(range(len(row)))
        row = [where(count > k, math.nan, e) for k, e in zip(ends, row, strict=True)]
    else:
        for i, j in exchanges(len(row)):
            low, high = minimum(row[i], row[j]), maximum(row[i], row[j])
            row[i], row[j] = (high, low) if descending else (low, high)
    return _as(stack(row, axis=a), dtype)


def placed(x: Value, a: int, *, descending: bool) -> Array:
    """Positions that bring short rows in order, int64; equal elements keep theirs."""
    row = _columns(x, a)
    n, kind = len(row), _PLACES[row[0].node.type.dtype.itemsize]
    places = [full(row[0].shape, k, dtype=kind) for k in range(n)]
    if x.type.dtype.is_float:  # beyond all places, or before them
        beyond = -n if descending else n
        nan = [isnan(e) for e in row]
        places = [where(none, p + beyond, p) for none, p in zip(nan, places, strict=True)]
        row = [where(none, math.inf, e) for none, e in zip(nan, row, strict=True)]
    for i, j in exchanges(n):
        e, f, p, q = row[i], row[j], places[i], places[j]
        out = ((e < f) if descending else (f < e)) | ((e == f) & (q < p))
        row[i], row[j] = where(out, f, e), where(out, e, f)
        places[i], places[j] = where(out, q, p), where(out, p, q)
    found = stack(places, axis=a)
    if x.type.dtype.is_float:
        found = (
            where(found < 0, found + n, found)
            if descending
            else where(found >= n, found - n, found)
        )
    return _as(found, i64)


def _columns(x: Value, a: int) -> list[Array]:
    """The elements along an axis, each position as an array of its own, in the type that they are
    computed in."""
    dtype = x.type.dtype
    x = cast(x, u8 if dtype is bool_ else dtype.compute)
    shape = shape_of(x)
    extent = shape[a]
    assert isinstance(extent, int)
    one: list[Index] = [*shape]
    one[a] = 1
    rest = (*shape[:a], *shape[a + 1 :])
    found: list[Array] = []
    for k in range(extent):
        at = tuple(k if axis == a else 0 for axis in range(len(shape)))
        found.append(Array.of(reshape(take_range(x, at, tuple(one), (1,) * len(shape)), rest)))
    return found


def _as(x: Array, dtype: DType) -> Array:
    return Array.of(cast(x.node, dtype))
