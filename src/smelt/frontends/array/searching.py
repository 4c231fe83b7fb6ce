"""Searching and indexing functions of the array API standard.

>>> import smelt as sm
>>> x = sm.asarray([3, 1, 2])
>>> argmax(x), take(x, sm.asarray([2, 0])), nonzero(x > 1)
(Array(0), Array([2, 3]), (Array([0, 2]),))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.errors import ArgumentError, DTypeError, ShapeError, TracerError
from smelt.frontends.array.array import Array, number_or_value, value
from smelt.frontends.array.creation import iota
from smelt.frontends.array.evaluate_pending import realise
from smelt.frontends.array.families import BINARY, UNARY, align
from smelt.frontends.array.library import allowed, call
from smelt.frontends.array.promote import cast, common, number
from smelt.frontends.array.reduction import fold
from smelt.frontends.array.subscript import holds, positions
from smelt.frontends.array.subscript import take as gather
from smelt.frontends.array.trace_cache import recorded
from smelt.frontends.array.value import Buffer, Value, leaf
from smelt.frontends.array.views import axes_of, axis_of, reshape, shape_of
from smelt.types.dtype import i64
from smelt.types.expr import Index

__all__ = ["argmax", "argmin", "known", "nonzero", "searchsorted", "take", "take_along_axis"]


def _best(what: str, x: Any, axis: int | None, keepdims: bool) -> Array:
    node = value(x, what)
    axes = axes_of(axis, node.type.rank, what)
    if not axes:
        node, axes = reshape(node, (1,)), (0,)
        return Array.of(fold(what, node, axes, keepdims=False))
    return Array.of(fold(what, node, axes, keepdims=keepdims))


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Where the greatest element along `axis` is first found, int64; a NaN is the greatest.

    None counts through the flattened array.  Raises AxisError, ShapeError for an empty axis.
    """
    return _best("argmax", x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Where the least element along `axis` is first found, int64; a NaN is the least."""
    return _best("argmin", x, axis, keepdims)


def known(x: Any, what: str) -> Buffer:
    """The elements, for functions whose result's shape depends on them.  Raises TracerError."""
    allowed(what)
    node = value(x, what)
    if node.scope is not None:
        raise TracerError(
            use=f"{what}, whose result's shape depends on values,",
            value=node.told,
            hint="Call it outside sm.jit, or use sm.where with a fixed shape.",
        )
    return realise(node)


def nonzero(x: Any, /) -> tuple[Array, ...]:
    """Positions of the elements that are not zero, one int64 vector for each dimension.

    Raises ShapeError for rank 0, TracerError inside `jit`: the shape depends on values.
    """
    data = known(x, "nonzero")
    if data.ndim == 0:
        raise ShapeError(op="nonzero", operands="rank 0", reason="it has no dimensions")
    return tuple(Array.of(leaf(np.ascontiguousarray(p, np.int64))) for p in np.nonzero(data))


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Where to insert each element of `x2` into the sorted vector `x1` to keep it sorted, int64.

    Args:
        x1: a vector, sorted unless `sorter` gives the order.
        x2: values of any shape, or a number.
        side: "left" before equal elements, "right" after them.
        sorter: positions that sort x1.

    Raises ShapeError if x1 is no vector, ArgumentError for another side.
    """
    if side not in ("left", "right"):
        raise ArgumentError(
            op="searchsorted", argument="side", value=repr(side), expected="'left' or 'right'"
        )
    line = value(x1, "searchsorted")
    if line.type.rank != 1:
        raise ShapeError(op="searchsorted", operands=line.told, reason="it is no vector")
    if sorter is not None:
        line = gather(line, [positions(value(sorter, "searchsorted"), shape_of(line)[0])], 0)
    wanted = number_or_value(x2, "searchsorted")
    if not isinstance(wanted, Value):
        wanted = number(wanted, line.type.dtype, "searchsorted")
    dtype = common("searchsorted", line.type.dtype, wanted.type.dtype)
    line, wanted = cast(line, dtype), cast(wanted, dtype)
    count = shape_of(line)[0]
    if holds(line.scope or wanted.scope, count, "<=", COUNTED):
        return Array.of(_counted(line, wanted, side))
    return Array.of(call("searchsorted", line, wanted, side=side))


COUNTED = 128
"""Vectors up to this length are searched by comparing all: vectors of comparisons, fused with what
is around them, take less time than NumPy's search of one element after another (a thirtieth at 12
elements, a half at 1000; beyond, it is memory that a search saves)."""


def _counted(line: Value, wanted: Value, side: str) -> Value:
    """How many elements come before each one; NaN, which are last in order, before none but NaN."""
    each = reshape(wanted, (*shape_of(wanted), 1))
    before = BINARY["less" if side == "left" else "less_equal"](line, each)
    if line.type.dtype.is_float:
        last = UNARY["isnan"](each)
        if side == "left":
            last = BINARY["logical_and"](last, UNARY["logical_not"](UNARY["isnan"](line)))
        before = BINARY["logical_or"](before, last)
    return fold("sum", cast(before, i64), (wanted.type.rank,), keepdims=False)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """Elements of `x` at integer positions along `axis` (which only a vector may leave out).

    `indices` may have any shape, which takes the place of the axis; negative ones count from the
    end.  Positions known now are checked at once; those of pending arrays and inside `jit` when
    they are computed.  Raises IndexRangeError, OutsideError, DTypeError, AxisError.
    """
    node = value(x, "take")
    index = value(np.asarray(indices) if isinstance(indices, (list, int)) else indices, "take")
    if axis is None:
        if node.type.rank != 1:
            raise ArgumentError("take: an axis must be named for an array that is no vector")
        axis = 0
    place = axis_of(axis, node.type.rank, "take")
    _integers("take", index)
    return Array.of(_taken(node, index, place))


@recorded
def _taken(x: Value, index: Value, place: int) -> Value:
    before, after = shape_of(x)[:place], shape_of(x)[place + 1 :]
    if not all(holds(x.scope, 0, "<", d) for d in (*before, *after)):  # nothing is read
        return reshape(x, (*before, *shape_of(index), *after))
    return gather(x, [positions(index, shape_of(x)[place])], place)


def _integers(what: str, index: Value) -> None:
    if not index.type.dtype.is_integer:
        raise DTypeError(f"{what}: indices are {index.told}, not integers")


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Array:
    """Elements at positions that differ along the other axes: out[i, j] = x[indices[i, j], j].

    `indices` has the rank of `x` and broadcasts with it outside `axis`.  Positions as in `take`.
    Raises ShapeError, AxisError, DTypeError, IndexRangeError.
    """
    node, index = value(x, "take_along_axis"), value(indices, "take_along_axis")
    rank = node.type.rank
    if index.type.rank != rank:
        raise ShapeError(
            op="take_along_axis", operands=f"{node.told}, {index.told}", reason="ranks differ"
        )
    place = axis_of(axis, rank, "take_along_axis")
    _integers("take_along_axis", index)
    shape = shape_of(node)
    index = positions(index, shape[place])
    others: list[Value] = []
    for a in range(rank):
        line: list[Index] = [1] * rank
        line[a] = shape[a]
        others.append(index if a == place else iota(tuple(line), a))
    align("take_along_axis", *others)
    return Array.of(gather(node, others, 0))
