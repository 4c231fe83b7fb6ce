"""Searching and indexing functions of the array API standard.

The elements of many vectors that are searched are nearly evenly spaced: grids, bins, samples of a
distribution.  A line through the ends then guesses a position to within a few places (interpolation
search).  The largest error over all elements bounds it for every value, because the guess increases
with the value, so a few halvings around the guess replace those of the whole vector.

>>> import smelt as sm
>>> x = sm.asarray([3, 1, 2])
>>> argmax(x), take(x, sm.asarray([2, 0])), nonzero(x > 1)
(Array(0), Array([2, 3]), (Array([0, 2]),))
>>> even = np.linspace(0.0, 1.0, 1000)
>>> guess_error(even), guess_error(even**1.1), guess_error(even**2)
(0, 63, None)
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, DTypeError, ShapeError, TracerError
from smelt.frontends.array.array import Array, number_or_value, value
from smelt.frontends.array.complex_calls import takes_complex
from smelt.frontends.array.creation import iota
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.families import BINARY, UNARY, align
from smelt.frontends.array.library import call, check_extern_allowed, seems_sorted
from smelt.frontends.array.promote import cast, common, number
from smelt.frontends.array.reduction import reduce_axes
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.subscript import SELECT, holds, resolve_positions
from smelt.frontends.array.subscript import take as gather
from smelt.frontends.array.trace_cache import cache_trace_in_recording
from smelt.frontends.array.value import STATE, Buffer, Value, leaf, record
from smelt.frontends.array.views import axes_of, axis_of, expand, reshape, take_range
from smelt.types.dtype import i32, i64
from smelt.types.expr import Index

GUESS_BLOCK = 1 << 14
"""Elements whose guesses are compared with their places at a time."""
_ERRORS: weakref.WeakKeyDictionary[Value, int | None] = weakref.WeakKeyDictionary()
"""Errors by vector, of those that no other code may write to."""


def known_guess_error(x: Value, data: Buffer) -> int | None:
    """Return `guess_error` of the elements of `x`, from a cache if they cannot change."""
    if x.shared:
        return guess_error(data)
    if x not in _ERRORS:
        _ERRORS[x] = guess_error(data)
    return _ERRORS[x]


def guess_error(x: Buffer) -> int | None:
    """Return how many places a guess is off at most: 0, 1, 3, 7, ...

    `x` is a sorted vector of floats.  None where the line between the ends says too little: less
    than two halvings would be saved, or elements are not finite.
    """
    count = x.size
    if count < 8 or not (np.isfinite(x[0]) and np.isfinite(x[-1])):
        return None
    largest = _largest_error(x)
    rounding = 8 * count * float(np.finfo(x.dtype).eps)
    if not (largest < count and rounding < 0.25):
        return None
    error = 0
    while largest > error + 0.5 - rounding:  # guesses are rounded to the nearest place
        error = 2 * error + 1
    return error if 8 * (error + 1) <= count else None


def _largest_error(x: Buffer) -> float:
    """Return the largest distance of a guess from its place; NaN without one.

    Blocks stay in cache; memory for whole vectors would be fresh in every call.
    """
    count, kind = x.size, x.dtype.type
    places = np.arange(min(count, GUESS_BLOCK), dtype=x.dtype)
    largest = 0.0
    with np.errstate(all="ignore"):
        scale = kind(count - 1) / (x[-1] - x[0])
        for first in range(0, count, GUESS_BLOCK):
            errors = np.subtract(x[first : first + GUESS_BLOCK], x[0])
            errors *= scale
            errors -= places[: errors.size]
            ends = float(errors.max()) - first, first - float(errors.min())
            if not max(ends) < count:  # NaN too
                return math.nan
            largest = max(largest, *ends)
    return largest


def _arg_extreme(what: str, x: Any, axis: int | None, keepdims: bool) -> Array:
    node = value(x, what)
    axes = axes_of(axis, node.type.rank, what)
    if not axes:
        node, axes = reshape(node, (1,)), (0,)
        return Array.of(reduce_axes(what, node, axes, keepdims=False))
    return Array.of(reduce_axes(what, node, axes, keepdims=keepdims))


@takes_complex
def argmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the first position of the maximum along `axis`, int64.

    NaN counts as the maximum.  None counts positions in the flattened array.  `keepdims` keeps the
    reduced dimension with size 1.  Raises AxisError, ShapeError for an empty axis.
    """
    return _arg_extreme("argmax", x, axis, keepdims)


@takes_complex
def argmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the first position of the minimum along `axis`, int64.

    NaN counts as the minimum.  None counts positions in the flattened array.  `keepdims` keeps the
    reduced dimension with size 1.  Raises AxisError, ShapeError for an empty axis.
    """
    return _arg_extreme("argmin", x, axis, keepdims)


def concrete_elements(x: Any, what: str) -> Buffer:
    """Return the elements, for functions whose result's shape depends on them.

    Raises TracerError inside `jit`, UnsupportedError under `SMELT_STRICT`.
    """
    check_extern_allowed(what)
    node = value(x, what)
    if node.scope is not None:
        raise TracerError(
            use=f"{what}, whose result's shape depends on values,",
            value=node.type_text,
            hint="Call it outside sm.jit, or use sm.where with a fixed shape.",
        )
    return evaluate(node)


@takes_complex
def nonzero(x: Any, /) -> tuple[Array, ...]:
    """Return the positions of nonzero elements, an int64 vector for each dimension.

    Raises ShapeError for rank 0, TracerError inside `jit`: the shape depends on values.
    """
    data = concrete_elements(x, "nonzero")
    if data.ndim == 0:
        raise ShapeError(op="nonzero", operands="rank 0", reason="it has no dimensions")
    return tuple(Array.of(leaf(p)) for p in _positions(data))


def _positions(data: Buffer) -> list[Buffer]:
    """Return the positions of nonzero elements, a vector for each dimension.

    Positions in the flattened array are divided by the sizes: NumPy's walk over several dimensions
    takes longer.
    """
    if data.ndim == 1 or not data.flags.c_contiguous or not data.size:
        return [np.ascontiguousarray(p, np.int64) for p in np.nonzero(data)]
    flat = np.flatnonzero(data if data.dtype == np.bool_ else data != 0)
    positions: list[Buffer] = []
    for size in data.shape[:0:-1]:
        rest = flat // size
        positions.append(flat - rest * size)
        flat = rest
    return [flat, *positions[::-1]]


@takes_complex
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Array:
    """Return where to insert elements of `x2` into the sorted vector `x1`, int64.

    Args:
        x1: a vector, sorted unless `sorter` gives the order.
        x2: values of any shape, or a number.
        side: "left" inserts before equal elements, "right" after them.
        sorter: positions that sort x1.

    Returns:
        Positions in the shape of `x2`.

    Raises ShapeError if x1 is not a vector, ArgumentError for another side, DTypeError.
    """
    if side not in ("left", "right"):
        raise ArgumentError.of("searchsorted", "side", side, "'left' or 'right'")
    sorted_ = value(x1, "searchsorted")
    if sorted_.type.rank != 1:
        raise ShapeError(op="searchsorted", operands=sorted_.type_text, reason="it is not 1-D")
    if sorter is not None:
        sorted_ = gather(
            sorted_, [resolve_positions(value(sorter, "searchsorted"), shape_of(sorted_)[0])], 0
        )
    values = number_or_value(x2, "searchsorted")
    if not isinstance(values, Value):
        values = number(values, sorted_.type.dtype, "searchsorted")
    dtype = common("searchsorted", sorted_.type.dtype, values.type.dtype)
    sorted_, values = cast(sorted_, dtype), cast(values, dtype)
    count = shape_of(sorted_)[0]
    if holds(sorted_.scope or values.scope, count, "<=", COUNT_LIMIT):
        return Array.of(_count_before(sorted_, values, side))
    error = _guess_error(sorted_, values)
    if error is not None:
        return Array.of(_search_around_guess(sorted_, values, side, error))
    if _is_bisected(sorted_, values):
        return Array.of(_bisect(sorted_, values, side))
    return Array.of(call("searchsorted", sorted_, values, side=side))


COUNT_LIMIT = 128
"""Longest vector (in elements) that is searched by comparing each value with all elements.

The comparisons are vectorised and fused with their neighbours; longer vectors go to NumPy's binary
search.
"""


BISECTED_COUNT = 1 << 17
"""Longest vector (in elements) that is bisected by kernels: it stays in cache."""
BISECTED_VALUES = 1 << 17
"""Minimum values that are worth a kernel, which has to be compiled, of a step for each halving."""
GUESSED_VALUES = 1 << 14
"""Minimum values that are worth a kernel of a few halvings around a guess."""
EXACT_GUESS = 1
"""Maximum error (in places) of a guess that needs no look at the values: nothing is faster."""
LONG_RUN = 64
"""Minimum values for each element, in sorted order, that a merge finds faster than a guess."""


def _has_known_sizes(sorted_: Value, values: Value, fewest: int) -> bool:
    """Return whether sizes are known, outside of recordings, and there are enough values."""
    if STATE.scope is not None or sorted_.scope is not None or values.scope is not None:
        return False
    count = math.prod(d for d in values.type.shape if isinstance(d, int))
    return count >= max(fewest, _length(sorted_))


def _length(x: Value) -> int:
    """Return the size of a vector, which is known outside of recordings."""
    length = x.type.shape[0]
    assert isinstance(length, int)
    return length


def _guess_error(sorted_: Value, values: Value) -> int | None:
    """Return how many places a guess is off at most; None where no guess helps."""
    kind = sorted_.type.dtype
    if not (kind.is_float and kind.bits >= 32):
        return None
    if not _has_known_sizes(sorted_, values, GUESSED_VALUES):
        return None
    error = known_guess_error(sorted_, evaluate(sorted_))
    if error is None or error <= EXACT_GUESS:
        return error
    elements = evaluate(values)
    is_merged = elements.size >= LONG_RUN * _length(sorted_) and seems_sorted(elements)
    return None if is_merged else error


def _is_bisected(sorted_: Value, values: Value) -> bool:
    """Return whether a kernel bisects a vector, outside of recordings, where sizes are known."""
    if not _has_known_sizes(sorted_, values, BISECTED_VALUES):
        return False
    kind = sorted_.type.dtype
    return (
        _length(sorted_) <= BISECTED_COUNT
        and (kind.is_integer or kind.bits >= 32)
        and not seems_sorted(evaluate(values))  # a merge is faster still, see `library`
    )


def _bisect(sorted_: Value, values: Value, side: str) -> Value:
    """Count the elements that come before each value by halving, without branches.

    The vector's length fixes the steps, so they are unrolled and fuse with their neighbours.
    """
    remaining = _length(sorted_)
    steps: list[int] = []
    while remaining:
        steps.append(max(remaining // 2, 1))
        remaining = remaining - steps[-1] if remaining > 1 else 0
    first = expand(number(0, i64, "searchsorted"), shape_of(values))
    at = _halve(sorted_, values, side, first, steps)
    if not sorted_.type.dtype.is_float:
        return at
    # NaN is last in sorted order, as in `_count_before`
    before = number(_length(sorted_), i64, "searchsorted")
    if side == "left":
        missing = cast(UNARY["isnan"](sorted_), i64)
        before = BINARY["subtract"](before, reduce_axes("sum", missing, (0,), keepdims=False))
    return record(SELECT, (UNARY["isnan"](values), before, at))


def _search_around_guess(sorted_: Value, values: Value, side: str, error: int) -> Value:
    """Count the elements that come before each value by a few halvings around a guess.

    The vector is finite, and a guess at most `error` (2^k - 1) places off, see `guess_error`.
    """
    count, kind = _length(sorted_), sorted_.type.dtype
    first, last = (take_range(sorted_, (k,), (1,), (1,)) for k in (0, count - 1))
    first, last = reshape(first, ()), reshape(last, ())
    top = number(float(count - 1), kind, "searchsorted")
    scale = BINARY["divide"](top, BINARY["subtract"](last, first))
    guess = BINARY["multiply"](BINARY["subtract"](values, first), scale)
    guess = BINARY["add"](guess, number(0.5 - error, kind, "searchsorted"))
    zero = number(0.0, kind, "searchsorted")
    lowest = record(SELECT, (BINARY["greater"](guess, zero), guess, zero))  # of NaN: 0
    highest = number(float(count - 2 * error - 1), kind, "searchsorted")
    at = cast(cast(BINARY["minimum"](lowest, highest), i32), i64)
    steps = [1 << k for k in reversed(range((error + 1).bit_length()))]
    at = _halve(sorted_, values, side, at, steps)
    end = number(count, i64, "searchsorted")
    return record(SELECT, (UNARY["isnan"](values), end, at))


def _halve(sorted_: Value, values: Value, side: str, at: Value, steps: Sequence[int]) -> Value:
    """Move each position `at` by halving steps while the elements there come before the value."""
    for step in steps:
        element = gather(sorted_, [BINARY["add"](at, step - 1)], 0)
        before = BINARY["less" if side == "left" else "less_equal"](element, values)
        moved = record(SELECT, (before, *[number(c, i64, "searchsorted") for c in (step, 0)]))
        at = BINARY["add"](at, moved)
    return at


def _count_before(sorted_: Value, values: Value, side: str) -> Value:
    """Count the elements of a sorted vector that come before each value.

    NaN is last in sorted order, so every number comes before a NaN.
    """
    each = reshape(values, (*shape_of(values), 1))
    before = BINARY["less" if side == "left" else "less_equal"](sorted_, each)
    if sorted_.type.dtype.is_float:
        last = UNARY["isnan"](each)
        if side == "left":
            last = BINARY["logical_and"](last, UNARY["logical_not"](UNARY["isnan"](sorted_)))
        before = BINARY["logical_or"](before, last)
    return reduce_axes("sum", cast(before, i64), (values.type.rank,), keepdims=False)


@takes_complex
def take(x: Any, indices: Any, /, axis: int | None = None) -> Array:
    """Gather elements of `x` at integer positions along `axis`.

    Args:
        x: the array.
        indices: integers of any shape, which takes the place of the axis in the result; negative
            ones count from the end.
        axis: the dimension; only a vector may omit it.

    Positions that are known are checked at once; those of pending arrays and inside `jit`, when
    they are computed.

    Raises IndexRangeError and OutsideError for positions out of bounds, DTypeError for indices that
    are not integers, AxisError, ArgumentError for a missing axis.
    """
    node = value(x, "take")
    index = value(
        np.asarray(indices) if isinstance(indices, (list, tuple, range, int)) else indices, "take"
    )
    if axis is None:
        if node.type.rank != 1:
            raise ArgumentError("take: an axis must be named for an array that is not 1-D")
        axis = 0
    dim = axis_of(axis, node.type.rank, "take")
    _check_integers("take", index)
    return Array.of(_take(node, index, dim))


@cache_trace_in_recording
def _take(x: Value, index: Value, dim: int) -> Value:
    before, after = shape_of(x)[:dim], shape_of(x)[dim + 1 :]
    if not all(holds(x.scope, 0, "<", d) for d in (*before, *after)):  # no elements are read
        return reshape(x, (*before, *shape_of(index), *after))
    return gather(x, [resolve_positions(index, shape_of(x)[dim])], dim)


def _check_integers(what: str, index: Value) -> None:
    if not index.type.dtype.is_integer:
        raise DTypeError(f"{what}: indices are {index.type_text}, not integers")


@takes_complex
def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Array:
    """Gather one element for each position: out[i, j] = x[indices[i, j], j].

    `indices` has the rank of `x` and broadcasts with it in the other dimensions; positions as in
    `take`.  Raises ShapeError, AxisError, DTypeError, IndexRangeError, OutsideError.
    """
    node, index = value(x, "take_along_axis"), value(indices, "take_along_axis")
    rank = node.type.rank
    if index.type.rank != rank:
        raise ShapeError.of("take_along_axis", "ranks differ", node, index)
    dim = axis_of(axis, rank, "take_along_axis")
    _check_integers("take_along_axis", index)
    shape = shape_of(node)
    index = resolve_positions(index, shape[dim])
    indices_of_axes: list[Value] = []
    for a in range(rank):
        along: list[Index] = [1] * rank
        along[a] = shape[a]
        indices_of_axes.append(index if a == dim else iota(tuple(along), a))
    align("take_along_axis", *indices_of_axes)
    return Array.of(gather(node, indices_of_axes, 0))
