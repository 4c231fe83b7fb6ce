"""Folds by place: rows that carry the number of the segment they belong to, in any order.

Sums of messages at the nodes of a graph, of samples by cluster, counts of values.  Names are those
of JAX (`jax.ops`) and NumPy (`bincount`).  Rows join in their order on any number of threads.

>>> import smelt as sm
>>> ids = sm.asarray([0, 2, 0])
>>> segment_sum(sm.asarray([1.0, 2.0, 3.0]), ids, 3), bincount(ids)
(Array([4., 0., 2.]), Array([2, 0, 1]))
"""

from __future__ import annotations

import math
from typing import Any

from smelt.errors import ArgumentError, DTypeError, ShapeError, TracerError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.creation import filled
from smelt.frontends.array.evaluate_pending import realise
from smelt.frontends.array.families import BINARY
from smelt.frontends.array.number import as_dim
from smelt.frontends.array.promote import cast, number
from smelt.frontends.array.reduction import floating
from smelt.frontends.array.subscript import holds, in_room, positions
from smelt.frontends.array.value import STATE, Value, record
from smelt.frontends.array.views import expand, reshape, shape_of
from smelt.ops.index import Scatter
from smelt.types.dtype import DType, bool_, f64, i64
from smelt.types.expr import Index
from smelt.types.expr import maximum as greater
from smelt.types.tensor import Shape

__all__ = [
    "bincount",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
]


def segment_sum(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """The sum of the rows of each segment; 0 for a segment without rows.

    Args:
        data: rows along its leading dimensions, those of `segment_ids`.
        segment_ids: integers from 0; row p belongs to segment `segment_ids[p]`.
        num_segments: the number of segments; 1 more than the largest id if it is left out, which
            inside `jit` is not known.

    The dtype is that of `data`; rows are added one by one in it, half types in float32.

    Raises ShapeError, DTypeError, ArgumentError, TracerError for a number of segments that is left
    out inside `jit`, IndexRangeError and OutsideError for ids that are no segment's.
    """
    node, ids, count = _segments("segment_sum", data, segment_ids, num_segments)
    return Array.of(_folded("segment_sum", "add", node, ids, count, 0))


def segment_prod(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """The product of the rows of each segment; 1 for a segment without rows.  See `segment_sum`."""
    node, ids, count = _segments("segment_prod", data, segment_ids, num_segments)
    return Array.of(_folded("segment_prod", "mul", node, ids, count, 1))


def segment_max(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """The greatest of the rows of each segment, NaN if there is one; for a segment without rows
    -infinity, or the least integer.  See `segment_sum`."""
    node, ids, count = _segments("segment_max", data, segment_ids, num_segments)
    return Array.of(_folded("segment_max", "max", node, ids, count, _end(node.type.dtype, -1)))


def segment_min(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """The least of the rows of each segment, NaN if there is one; for a segment without rows
    infinity, or the greatest integer.  See `segment_sum`."""
    node, ids, count = _segments("segment_min", data, segment_ids, num_segments)
    return Array.of(_folded("segment_min", "min", node, ids, count, _end(node.type.dtype, 1)))


def segment_mean(data: Any, segment_ids: Any, num_segments: Any = None) -> Array:
    """The mean of the rows of each segment; 0 for a segment without rows.  See `segment_sum`.

    Floats keep their dtype; integers give float64.
    """
    given, ids, count = _segments("segment_mean", data, segment_ids, num_segments)
    wide = floating(given)
    dtype = wide.type.dtype
    total = _folded("segment_mean", "add", wide, ids, count, 0)
    ones = expand(number(1.0, dtype, "segment_mean"), shape_of(ids))
    rows = _folded("segment_mean", "add", ones, ids, count, 0)
    rows = BINARY["maximum"](rows, 1.0)
    rows = reshape(rows, (*shape_of(rows), *[1] * (given.type.rank - ids.type.rank)))
    found = BINARY["divide"](total, rows)
    return Array.of(cast(found, given.type.dtype) if given.type.dtype.is_float else found)


def bincount(x: Any, /, weights: Any = None, minlength: Any = 0, *, length: Any = None) -> Array:
    """How often each integer from 0 occurs in a vector, or the sum of the weights that go with it.

    Args:
        x: a vector of integers, none negative.
        weights: a vector as long as `x`.
        minlength: the result has at least so many elements; inside `jit` exactly so many.
        length: the result has so many elements, and all of `x` must be smaller: for use inside
            `jit`, where the largest element is not known.

    Counts are int64.  Weights are added in float64, in their order; the result is of their dtype,
    float64 for integers.

    Raises ShapeError, DTypeError, ArgumentError, TracerError without either inside `jit`,
    IndexRangeError and OutsideError for elements that are negative, or not smaller than `length`.
    """
    ids = value(x, "bincount")
    if ids.type.rank != 1:
        raise ShapeError(op="bincount", operands=ids.told, reason="it is no vector")
    ids = cast(ids, i64) if ids.type.dtype is bool_ else ids
    if not ids.type.dtype.is_integer:
        raise DTypeError(f"bincount: {ids.told} are no integers")
    if length is None and minlength and ids.scope is not None:
        length = minlength
    count = _length("bincount", "length", ids, length)
    if length is None:
        count = greater(count, _whole("bincount", "minlength", minlength))
    if weights is None:
        ones = expand(number(1, i64, "bincount"), shape_of(ids))
        return Array.of(_folded("bincount", "add", ones, ids, count, 0))
    node = value(weights, "bincount")
    _match("bincount", node, ids)
    if node.type.rank != 1:
        raise ShapeError(op="bincount", operands=node.told, reason="the weights are no vector")
    found = _folded("bincount", "add", cast(node, f64), ids, count, 0)
    return Array.of(cast(found, node.type.dtype) if node.type.dtype.is_float else found)


def _segments(what: str, data: Any, ids: Any, count: Any) -> tuple[Value, Value, Index]:
    """The arguments of a fold by segments, checked."""
    node, places = value(data, what), value(ids, what)
    if places.type.rank == 0:
        raise ShapeError(op=what, operands=places.told, reason="the ids have no dimension")
    _match(what, node, places)
    if node.type.dtype is bool_:
        raise DTypeError(f"{what}: {node.told} are no numbers")
    return node, places, _length(what, "num_segments", places, count)


def _match(what: str, data: Value, ids: Value) -> None:
    """Raises unless ids are integers, one for each row."""
    if not ids.type.dtype.is_integer:
        raise DTypeError(f"{what}: ids are {ids.told}, not integers")
    shape, given = shape_of(ids), shape_of(data)[: ids.type.rank]
    scope = data.scope or ids.scope
    if len(given) < len(shape) or not all(
        a == b if scope is None else scope.same(a, b) for a, b in zip(shape, given)
    ):
        raise ShapeError(
            op=what, operands=f"{data.told}, {ids.told}", reason="there is not one id for each row"
        )


def _length(what: str, argument: str, ids: Value, given: Any) -> Index:
    """The length of the result: given, or 1 more than the largest id."""
    if given is not None:
        return _whole(what, argument, given)
    if ids.scope is not None:
        raise TracerError(
            use=f"{what} without {argument}=",
            value=ids.told,
            hint=f"Give {argument}: the shape of a result may not depend on values.",
        )
    data = realise(ids)
    return max(int(data.max()) + 1, 0) if data.size else 0


def _whole(what: str, argument: str, given: Any) -> Index:
    """A length that a user passed.  Raises ArgumentError for a negative one."""
    found = as_dim(given)
    if not holds(STATE.scope, 0, "<=", found):
        raise ArgumentError(op=what, argument=argument, value=repr(given), expected="0 or more")
    return found


def _end(dtype: DType, sign: int) -> float | int:
    """The end of a type's range: what any element is beyond, or is."""
    if dtype.is_float:
        return math.inf * sign
    unsigned = dtype.kind == "uint"
    bits = dtype.bits
    if sign > 0:
        return 2 ** (bits if unsigned else bits - 1) - 1
    return 0 if unsigned else -(2 ** (bits - 1))


def _folded(
    what: str, how: str, data: Value, ids: Value, count: Index, empty: float | int
) -> Value:
    """Rows joined, from what a segment without rows is.  Sums and products of half types are
    carried in float32; extremes need not be."""
    dtype = data.type.dtype
    wide = dtype.compute if how in ("add", "mul") else dtype
    rest: Shape = shape_of(data)[ids.type.rank :]
    start = filled((count, *rest), number(empty, wide, what))
    at = positions(ids, count, wraps=False)
    in_room(start, [at])
    return cast(record(Scatter(how), (start, cast(data, wide), at)), dtype)
