"""Segment reductions: combine rows by integer segment ids, in any order.

Typical uses: sums of messages at the nodes of a graph, statistics of clusters, counts of values.
Names are those of JAX (`jax.ops`) and NumPy (`bincount`).  Rows are combined in an order that
sizes alone determine, so results do not depend on the number of threads: in theirs, or in eight
parts if there are many rows for few segments.

>>> import smelt as sm
>>> ids = sm.asarray([0, 2, 0])
>>> segment_sum(sm.asarray([1.0, 2.0, 3.0]), ids, 3), bincount(ids)
(Array([4., 0., 2.]), Array([2, 0, 1]))
"""

from __future__ import annotations

from typing import Any

from smelt.errors import ArgumentError, DTypeError, ShapeError, TracerError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.creation import filled, iota
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.number import as_dim
from smelt.frontends.array.promote import cast, number
from smelt.frontends.array.reduction import cast_to_float, reduce_axes
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.subscript import (
    check_axis_not_empty,
    holds,
    range_of_elements,
    resolve_positions,
)
from smelt.frontends.array.value import STATE, Value, record
from smelt.frontends.array.views import expand, reshape, take_range
from smelt.knobs import ROUNDING
from smelt.ops.combine import COMBINES
from smelt.ops.index import Scatter
from smelt.types.dtype import bool_, f64, i64
from smelt.types.expr import Index
from smelt.types.expr import maximum as greater
from smelt.types.tensor import Shape


def segment_sum(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """Return the sum of the rows of each segment; 0 for a segment without rows.

    Args:
        data: rows [*ids, ...], where [*ids] is the shape of `segment_ids`.
        segment_ids: nonnegative integers; row p belongs to segment `segment_ids[p]`.
        num_segments: the number of segments; by default 1 more than the largest id.  Required
            inside `jit`, where that is not known.

    Returns:
        [num_segments, ...] in the dtype of `data`; half types are added in float32.

    Raises ShapeError, DTypeError, ArgumentError; TracerError without `num_segments` inside `jit`;
    IndexRangeError and OutsideError for ids that belong to no segment.
    """
    return _reduced("segment_sum", "add", data, segment_ids, num_segments)


def segment_prod(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """Return the product of the rows of each segment; 1 for a segment without rows.

    Arguments and errors are those of `segment_sum`.
    """
    return _reduced("segment_prod", "mul", data, segment_ids, num_segments)


def segment_max(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """Return the maximum of the rows of each segment; NaN if any is NaN.

    A segment without rows gives -infinity, or the smallest integer of the dtype.  Arguments and
    errors are those of `segment_sum`.
    """
    return _reduced("segment_max", "max", data, segment_ids, num_segments)


def segment_min(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """Return the minimum of the rows of each segment; NaN if any is NaN.

    A segment without rows gives infinity, or the largest integer of the dtype.  Arguments and
    errors are those of `segment_sum`.
    """
    return _reduced("segment_min", "min", data, segment_ids, num_segments)


def segment_mean(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """Return the mean of the rows of each segment; 0 for a segment without rows.

    Floats keep their dtype; integers give float64.  Arguments and errors are those of
    `segment_sum`.
    """
    node, ids, count = _segments("segment_mean", data, segment_ids, num_segments)
    upcast = cast_to_float(node)
    dtype = upcast.type.dtype
    total = _scatter_reduce("segment_mean", "add", upcast, ids, count)
    ones = expand(number(1.0, dtype, "segment_mean"), shape_of(ids))
    rows = _scatter_reduce("segment_mean", "add", ones, ids, count)
    rows = BINARY["maximum"](rows, 1.0)
    rows = reshape(rows, (*shape_of(rows), *[1] * (node.type.rank - ids.type.rank)))
    means = BINARY["divide"](total, rows)
    return Array.of(cast(means, node.type.dtype) if node.type.dtype.is_float else means)


def bincount(x: Any, /, weights: Any = None, minlength: Any = 0, *, length: Any = None) -> Array:
    """Count how often each integer from 0 occurs in a vector, or sum weights.

    Args:
        x: a vector of nonnegative integers or bools.
        weights: a vector as long as `x`: element k counts for `weights[k]`.
        minlength: the minimum length of the result; inside `jit` its length.
        length: the length of the result; all of `x` must be smaller.  For use inside `jit`, where
            the largest element is not known.

    Returns:
        Counts, int64; or sums of weights, which are added in float64, in the dtype of the weights
        (float64 for integers).

    Raises ShapeError, DTypeError, ArgumentError; TracerError without either length inside `jit`;
    IndexRangeError and OutsideError for elements that are negative, or not smaller than `length`.
    """
    ids = value(x, "bincount")
    if ids.type.rank != 1:
        raise ShapeError(op="bincount", operands=ids.type_text, reason="it is not 1-D")
    ids = cast(ids, i64) if ids.type.dtype is bool_ else ids
    if not ids.type.dtype.is_integer:
        raise DTypeError(f"bincount: {ids.type_text} does not hold integers")
    if length is None and minlength and ids.scope is not None:
        length = minlength
    count = _result_length("bincount", "length", ids, length)
    if length is None:
        count = greater(count, _nonnegative_length("bincount", "minlength", minlength))
    if weights is None:
        ones = expand(number(1, i64, "bincount"), shape_of(ids))
        return Array.of(_scatter_reduce("bincount", "add", ones, ids, count))
    node = value(weights, "bincount")
    _check_ids("bincount", node, ids)
    if node.type.rank != 1:
        raise ShapeError(op="bincount", operands=node.type_text, reason="the weights are not 1-D")
    sums = _scatter_reduce("bincount", "add", cast(node, f64), ids, count)
    return Array.of(cast(sums, node.type.dtype) if node.type.dtype.is_float else sums)


def _segments(what: str, data: Any, ids: Any, count: Any) -> tuple[Value, Value, Index]:
    node, ids_node = value(data, what), value(ids, what)
    if ids_node.type.rank == 0:
        raise ShapeError(op=what, operands=ids_node.type_text, reason="the ids have no dimension")
    _check_ids(what, node, ids_node)
    if node.type.dtype is bool_:
        raise DTypeError(f"{what}: {node.type_text} does not hold numbers")
    return node, ids_node, _result_length(what, "num_segments", ids_node, count)


def _check_ids(what: str, data: Value, ids: Value) -> None:
    """Raise DTypeError or ShapeError unless there is one integer id for each row."""
    if not ids.type.dtype.is_integer:
        raise DTypeError(f"{what}: ids are {ids.type_text}, not integers")
    shape, lead = shape_of(ids), shape_of(data)[: ids.type.rank]
    scope = data.scope or ids.scope
    if len(lead) < len(shape) or not all(
        a == b if scope is None else scope.same(a, b) for a, b in zip(shape, lead)
    ):
        raise ShapeError.of(what, "there is not one id for each row", data, ids)


def _result_length(what: str, argument: str, ids: Value, length: Any) -> Index:
    """Return the length of the result: as passed, or 1 more than the largest id."""
    if length is not None:
        return _nonnegative_length(what, argument, length)
    if ids.scope is not None:
        raise TracerError(
            use=f"{what} without {argument}=",
            value=ids.type_text,
            hint=f"Give {argument}: the shape of a result may not depend on values.",
        )
    data = evaluate(ids)
    return max(range_of_elements(ids, data)[1] + 1, 0) if data.size else 0


def _nonnegative_length(what: str, argument: str, length: Any) -> Index:
    """Return a length that a user passed.

    Raises ArgumentError for a negative one.
    """
    size = as_dim(length)
    if not holds(STATE.scope, 0, "<=", size):
        raise ArgumentError(op=what, argument=argument, value=repr(length), expected="0 or more")
    return size


def _reduced(what: str, how: str, data: Any, ids: Any, count: Any) -> Array:
    return Array.of(_scatter_reduce(what, how, *_segments(what, data, ids, count)))


def _scatter_reduce(what: str, how: str, data: Value, ids: Value, count: Index) -> Value:
    """Combine rows by id, starting from the reduction's neutral element.

    Sums and products of half types are accumulated in float32; extremes need not be.
    """
    dtype = data.type.dtype
    accumulator_type = dtype.compute if how in ("add", "mul") else dtype
    rest: Shape = shape_of(data)[ids.type.rank :]
    empty = COMBINES[_JOINS[how]].identity(accumulator_type)
    start = filled((count, *rest), number(empty, accumulator_type, what))
    at = resolve_positions(ids, count, wraps=False)
    check_axis_not_empty(start, [at], (0,))
    data = cast(data, accumulator_type)
    if _is_split(data, at, count):
        return cast(_scatter_parts(how, start, data, at), dtype)
    return cast(record(Scatter(how), (start, data, at)), dtype)


SEGMENT_PARTS = 8
"""Parts of a long vector of ids which are combined independently, each into segments of its own.

The number is part of the meaning, since it fixes the order of sums, and does not depend on the
machine.
"""
SPLIT_ROWS = 1 << 17
"""Minimum ids that are worth the second kernel, which joins the parts."""
SPLIT_SHARE = 64
"""Minimum ids for each segment of a part: clearing and joining parts takes less time then."""
_JOINS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""Reduction that joins parts."""


def _is_split(data: Value, ids: Value, count: Index) -> bool:
    """Return whether ids are combined in parts: outside of recordings, where sizes are known."""
    if STATE.scope is not None or STATE.tapes or data.scope is not None or ids.scope is not None:
        return False
    shape = ids.type.shape
    if len(shape) != 1 or data.type.rank != 1 or ROUNDING.get() == "exact":
        return False
    (rows,) = shape
    if not (isinstance(rows, int) and isinstance(count, int)):
        return False
    return rows >= max(SPLIT_ROWS, SPLIT_SHARE * SEGMENT_PARTS * count) and count > 0


def _scatter_parts(how: str, start: Value, data: Value, ids: Value) -> Value:
    """Combine parts of rows in parallel, then the parts; `start` holds the neutral element.

    Rows that no part has are combined last.
    """
    (rows,), shape = ids.type.shape, start.type.shape
    assert isinstance(rows, int)
    each = rows // SEGMENT_PARTS
    data_parts, id_parts = (
        reshape(take_range(x, (0,), (SEGMENT_PARTS * each,), (1,)), (SEGMENT_PARTS, each))
        for x in (data, ids)
    )
    starts = expand(start, (SEGMENT_PARTS, *shape))
    part = iota((SEGMENT_PARTS, 1), 0)
    parts = record(Scatter(how), (starts, data_parts, part, id_parts))
    total = reduce_axes(_JOINS[how], parts, (0,), keepdims=False)
    total = cast(total, start.type.dtype)
    if rows > SEGMENT_PARTS * each:
        rest = (
            take_range(x, (SEGMENT_PARTS * each,), (rows - SEGMENT_PARTS * each,), (1,))
            for x in (data, ids)
        )
        total = record(Scatter(how), (total, *rest))
    return total
