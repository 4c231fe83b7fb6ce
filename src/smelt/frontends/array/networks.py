"""Sort short rows by sorting networks: fixed sequences of compare-and-exchange steps.

The steps do not depend on the elements.  So they are elementwise operators on whole vectors, one
row per lane, which fuse with their neighbours:

    3 elements:   (0, 1), (1, 2), (0, 1)      each: a, b = minimum(a, b), maximum(a, b)

Values of floats are sorted by exchanging neighbours only, which is stable: equal elements have the
same bits except zeros of both signs, and never pass each other.  Argsort uses a network of fewer
steps, K. E. Batcher's odd-even merge sort ("Sorting networks and their applications", 1968), and
compares positions of equal elements.  NaN is replaced by infinity and ordered after it.

>>> batcher_pairs(4)
[(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)]
>>> insertion_pairs(3)
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

MAX_LENGTH, MAX_LENGTH_LAST_AXIS = 16, 8
"""Longest rows, in elements, that are sorted by networks; `MAX_LENGTH_LAST_AXIS` applies to the
last axis, where vectors would otherwise run along the rows."""
MIN_SORTED_ROWS = 256
"""Minimum rows for which compiling a network pays; NumPy sorts fewer in microseconds."""
_POSITION_TYPES = {1: i8, 2: i16, 4: i32, 8: i64}
"""Integer types of positions by bytes of an element, for equal numbers of lanes."""


def insertion_pairs(n: int) -> list[tuple[int, int]]:
    """Return the steps of insertion sort for `n` elements, which exchange neighbours."""
    return [(j, j + 1) for last in range(1, n) for j in range(last - 1, -1, -1)]


def batcher_pairs(n: int) -> list[tuple[int, int]]:
    """Return the steps of Batcher's odd-even merge sort for `n` elements."""
    pairs: list[tuple[int, int]] = []
    run = 1
    while run < n:
        step = run
        while step >= 1:
            for first in range(step % run, n - step, 2 * step):
                lower_positions = range(first, min(first + step, n - step))
                pairs += [
                    (k, k + step)
                    for k in lower_positions
                    if k // (2 * run) == (k + step) // (2 * run)
                ]
            step //= 2
        run *= 2
    return pairs


def is_short(x: Value, a: int) -> bool:
    """Return whether the rows along axis `a` are short and many enough for a network.

    If so, their length becomes a constant of the recording.
    """
    shape = shape_of(x)
    extent, rows = shape[a], product(n for k, n in enumerate(shape) if k != a)
    is_last = a == len(shape) - 1 and not _is_stacked(x, a)
    scope, longest = scope_of(x, shape), MAX_LENGTH_LAST_AXIS if is_last else MAX_LENGTH
    if not holds(scope, 2, "<=", extent) or not holds(scope, extent, "<=", longest):
        return False
    if not holds(scope, MIN_SORTED_ROWS, "<=", rows):
        return False
    if scope is not None:
        scope.pin(extent)
    return True


def _is_stacked(x: Value, a: int) -> bool:
    """Return whether the elements along an axis are separate arrays that are not stored yet."""
    pending: list[Node] = [x]
    visited: set[Node] = set()
    while pending:
        y = pending.pop()
        if isinstance(y, Value) and y.data is not None:
            continue
        if isinstance(y.op, Concat) and y.op.axis == a:
            return all(part.type.shape[a] == 1 for part in y.inputs)
        if isinstance(y.op, Map) and y not in visited:
            visited.add(y)
            pending += y.inputs
    return False


def network_sort(x: Value, a: int, *, descending: bool) -> Array:
    """Sort short rows; NaN comes after all numbers (before, if descending)."""
    dtype = x.type.dtype
    row = _columns(x, a)
    if dtype.is_float:
        nan = [isnan(e) for e in row]
        count = reduce(Array.__add__, [_cast_array(e, i32) for e in nan])
        row = [where(is_nan, math.inf, e) for is_nan, e in zip(nan, row, strict=True)]
        for i, j in insertion_pairs(len(row)):
            is_unordered = row[i] < row[j] if descending else row[j] < row[i]
            row[i], row[j] = (
                where(is_unordered, row[j], row[i]),
                where(is_unordered, row[i], row[j]),
            )
        ends = range(len(row)) if descending else reversed(range(len(row)))
        row = [where(count > k, math.nan, e) for k, e in zip(ends, row, strict=True)]
    else:
        for i, j in batcher_pairs(len(row)):
            low, high = minimum(row[i], row[j]), maximum(row[i], row[j])
            row[i], row[j] = (high, low) if descending else (low, high)
    return _cast_array(stack(row, axis=a), dtype)


def network_argsort(x: Value, a: int, *, descending: bool) -> Array:
    """Return the positions that sort short rows, int64; equal elements keep their order."""
    row = _columns(x, a)
    n, position_type = len(row), _POSITION_TYPES[row[0].node.type.dtype.itemsize]
    positions = [full(row[0].shape, k, dtype=position_type) for k in range(n)]
    if x.type.dtype.is_float:  # shift the positions of NaN after all others, or before them
        offset = -n if descending else n
        nan = [isnan(e) for e in row]
        positions = [where(is_nan, p + offset, p) for is_nan, p in zip(nan, positions, strict=True)]
        row = [where(is_nan, math.inf, e) for is_nan, e in zip(nan, row, strict=True)]
    for i, j in batcher_pairs(n):
        e, f, p, q = row[i], row[j], positions[i], positions[j]
        is_unordered = ((e < f) if descending else (f < e)) | ((e == f) & (q < p))
        row[i], row[j] = where(is_unordered, f, e), where(is_unordered, e, f)
        positions[i], positions[j] = where(is_unordered, q, p), where(is_unordered, p, q)
    result = stack(positions, axis=a)
    if x.type.dtype.is_float:
        result = (
            where(result < 0, result + n, result)
            if descending
            else where(result >= n, result - n, result)
        )
    return _cast_array(result, i64)


def _columns(x: Value, a: int) -> list[Array]:
    """Return the positions along an axis as separate arrays, in the dtype of calculations."""
    dtype = x.type.dtype
    x = cast(x, u8 if dtype is bool_ else dtype.compute)
    shape = shape_of(x)
    extent = shape[a]
    assert isinstance(extent, int)
    counts: list[Index] = [*shape]
    counts[a] = 1
    rest = (*shape[:a], *shape[a + 1 :])
    columns: list[Array] = []
    for k in range(extent):
        at = tuple(k if axis == a else 0 for axis in range(len(shape)))
        columns.append(Array.of(reshape(take_range(x, at, tuple(counts), (1,) * len(shape)), rest)))
    return columns


def _cast_array(x: Array, dtype: DType) -> Array:
    return Array.of(cast(x.node, dtype))
