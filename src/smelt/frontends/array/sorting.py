"""Sorting, set functions and the k largest elements; short rows by sorting networks.

A network is a fixed sequence of compare-and-exchange steps, which do not depend on the elements.
So they are elementwise operators on whole vectors, one row per lane, which fuse with their
neighbours; everything else is sorted by NumPy, as an extern call:

    3 elements:   (0, 1), (1, 2), (0, 1)      each: a, b = minimum(a, b), maximum(a, b)

Values of floats are sorted by exchanging neighbours only, which is stable: equal elements have the
same bits except zeros of both signs, and never pass each other.  Argsort uses a network of fewer
steps, K. E. Batcher's odd-even merge sort ("Sorting networks and their applications", 1968), and
compares positions of equal elements.  NaN is replaced by infinity and ordered after it.

A few largest elements are found by k passes over the row, made of ordinary reductions:

    v  = max(where(x < v or (x == v and i > p), x, -inf))
    p  = min(where(x == v and (v is new or i > p), i, none))

The pair (v, p), value and position, is the element found last; the next pass considers the elements
after it in order, by value and then by position.  As in sorting, NaN is the largest: it is replaced
by infinity, at positions smaller than all others.

>>> import smelt as sm
>>> x = sm.asarray([3, 1, 3])
>>> sort(x), unique_values(x)
(Array([1, 3, 3]), Array([1, 3]))
>>> batcher_pairs(4), insertion_pairs(3)
([(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)], [(0, 1), (1, 2), (0, 1)])
>>> top_k(sm.asarray([3, 1, 4, 1, 5]), 2)
TopK(values=Array([5, 4]), indices=Array([4, 2]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.complex_calls import takes_complex
from smelt.frontends.array.creation import full, iota
from smelt.frontends.array.elementwise import isnan, maximum, minimum, where
from smelt.frontends.array.library import call
from smelt.frontends.array.manipulation import concat, stack
from smelt.frontends.array.number import as_dim, is_integral
from smelt.frontends.array.promote import cast
from smelt.frontends.array.reduction import size_value
from smelt.frontends.array.scope import scope_of, shape_of
from smelt.frontends.array.searching import concrete_elements, take_along_axis
from smelt.frontends.array.statistical import max as greatest
from smelt.frontends.array.statistical import min as least
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Buffer, Value, leaf
from smelt.frontends.array.views import axis_of, reshape, take_range
from smelt.graph.ir import Node
from smelt.ops.combine import COMBINES
from smelt.ops.elementwise import Map
from smelt.ops.view import Concat
from smelt.types.dtype import DType, bool_, from_numpy, i8, i16, i32, i64, u8
from smelt.types.expr import Index, product, sub

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


def _ordered(
    what: str, network: Callable[..., Array], x: Any, axis: int, descending: bool, stable: bool
) -> Array:
    node = value(x, what)
    if not node.type.shape:
        raise ShapeError(op=what, operands=node.type_text, reason="it has no dimensions")
    dim = axis_of(axis, node.type.rank, what)
    if is_short(node, dim):
        return network(node, dim, descending=bool(descending))
    return Array.of(call(what, node, axis=dim, descending=bool(descending), stable=bool(stable)))


@takes_complex
def sort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Sort the elements along `axis`; NaN comes after all numbers (before, if descending).

    Many rows of up to 16 elements (8 along the last axis, unless `stack` made it) are sorted by
    compiled networks, which fuse with their neighbours; others by NumPy.

    Raises ShapeError for rank 0, AxisError.
    """
    return _ordered("sort", network_sort, x, axis, descending, stable)


@takes_complex
def argsort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Return the positions that sort the elements along `axis`, int64.

    Order and execution as in `sort`.  Raises ShapeError for rank 0, AxisError.
    """
    return _ordered("argsort", network_argsort, x, axis, descending, stable)


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Array
    inverse_indices: Array


def _unique(x: Any, what: str, *more: str) -> list[Array]:
    """Return the unique elements as an array, and what `more` requests as in `unique`."""
    data = concrete_elements(x, what)
    values, *rest = unique(data.astype(np.float32) if data.dtype.kind == "V" else data, *more)
    return [_array(values.astype(data.dtype)), *rest]


def unique(data: Buffer, *more: str) -> list[Any]:
    """Return the unique elements and, as arrays of ours, what `more` requests from NumPy.

    `more` holds names of NumPy's `return_...` flags.  Every NaN is unique.
    """
    flags: dict[str, Any] = {f"return_{name}": True for name in more}
    results: Any = np.unique(data, equal_nan=False, **flags)
    values, *rest = results if more else (results,)
    shapes = [data.shape if name == "inverse" else -1 for name in more]
    rest = [_array(r.reshape(s).astype(np.int64)) for r, s in zip(rest, shapes, strict=True)]
    return [values, *rest]


def _array(data: Buffer) -> Array:
    assert from_numpy(data.dtype)
    return Array.of(leaf(np.ascontiguousarray(data) if data.ndim else data))


@takes_complex
def unique_all(x: Any, /) -> UniqueAll:
    """Return the unique elements in order, with first positions, inverse and counts.

    `indices` are the first positions in the flattened array, `inverse_indices` has the shape of
    `x`; all are int64.  Raises TracerError inside `jit`: the shape depends on values.
    """
    return UniqueAll(*_unique(x, "unique_all", "index", "inverse", "counts"))


@takes_complex
def unique_counts(x: Any, /) -> UniqueCounts:
    """Return the unique elements in order and how often each occurs, int64.

    Raises TracerError inside `jit`: the shape depends on values.
    """
    return UniqueCounts(*_unique(x, "unique_counts", "counts"))


@takes_complex
def unique_inverse(x: Any, /) -> UniqueInverse:
    """Return the unique elements in order and, for each element, its position among them.

    `inverse_indices` has the shape of `x`, int64.  Raises TracerError inside `jit`: the shape
    depends on values.
    """
    return UniqueInverse(*_unique(x, "unique_inverse", "inverse"))


@takes_complex
def unique_values(x: Any, /) -> Array:
    """Return the unique elements in order.

    Raises TracerError inside `jit`: the shape depends on values.
    """
    return _unique(x, "unique_values")[0]


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
