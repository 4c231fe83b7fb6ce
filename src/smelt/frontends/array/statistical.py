"""Statistical and utility functions of the array API standard: sums, means, extremes, any, all.

>>> import smelt as sm
>>> x = sm.asarray([[1.0, 2.0], [3.0, 4.0]])
>>> sum(x), mean(x, axis=0), cumulative_sum(sm.arange(4))
(Array(10.), Array([2., 3.]), Array([0, 1, 3, 6]))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.errors import ArgumentError, AxisError
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.dtypes import DTypeLike, as_dtype
from smelt.frontends.array.families import BINARY, UNARY
from smelt.frontends.array.promote import cast, own_value
from smelt.frontends.array.reduction import floating, fold, variance
from smelt.frontends.array.reduction import mean as mean_of
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value, record
from smelt.frontends.array.views import (
    axes_of,
    axis_of,
    concat,
    expand,
    shape_of,
    take_range,
)
from smelt.ops.reduce import Scan
from smelt.types.dtype import bool_, i64
from smelt.types.expr import sub

Axis = int | Sequence[int] | None

__all__ = [
    "all",
    "any",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]


def _reduced(what: str, x: Any, axis: Axis, dtype: DTypeLike, keepdims: bool) -> Array:
    node = value(x, what)
    axes = axes_of(axis, node.type.rank, what)
    if dtype is None:
        return Array.of(fold(what, node, axes, keepdims=keepdims))
    target = as_dtype(dtype)
    return Array.of(cast(fold(what, cast(node, target), axes, keepdims=keepdims), target))


def sum(x: Any, /, *, axis: Axis = None, dtype: DTypeLike = None, keepdims: bool = False) -> Array:
    """The sum over `axis` (all of them for None); 0 of nothing.

    Floats keep their dtype, and its error grows no faster than that of pairwise summation; half
    types accumulate in float32.  Integers and bools are summed as int64, unsigned as uint64.
    The order of the terms is fixed for given sizes, whatever the number of threads, but not
    specified: where finite terms add up, in magnitude, past the largest number of their type, a
    partial sum may overflow and the result be infinite or NaN.  Raises AxisError.
    """
    return _reduced("sum", x, axis, dtype, keepdims)


def prod(x: Any, /, *, axis: Axis = None, dtype: DTypeLike = None, keepdims: bool = False) -> Array:
    """The product over `axis`; 1 of nothing.  Dtypes as in `sum`."""
    return _reduced("prod", x, axis, dtype, keepdims)


def max(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The greatest element over `axis`; NaN if there is one.  Raises ShapeError if it is empty."""
    return _reduced("max", x, axis, None, keepdims)


def min(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The least element over `axis`; NaN if there is one.  Raises ShapeError for an empty axis."""
    return _reduced("min", x, axis, None, keepdims)


def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The arithmetic mean over `axis` in the dtype of `x`, float64 for integers; NaN of nothing."""
    node = value(x, "mean")
    return Array.of(mean_of(node, axes_of(axis, node.type.rank, "mean"), keepdims=keepdims))


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance over `axis`: squared distances from the mean, over their number - `correction`.

    Computed in two passes, so that a large mean costs no accuracy.  Dtypes as in `mean`.
    """
    node = value(x, "var")
    axes = axes_of(axis, node.type.rank, "var")
    return Array.of(variance(node, axes, float(correction), keepdims=keepdims))


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The standard deviation over `axis`, the square root of `var`."""
    node = value(x, "std")
    axes = axes_of(axis, node.type.rank, "std")
    root = UNARY["sqrt"](variance(floating(node), axes, float(correction), keepdims=keepdims))
    return Array.of(cast(root, node.type.dtype) if node.type.dtype.is_float else root)


def _truth(x: Any, what: str) -> Value:
    node = value(x, what)
    if node.type.dtype is bool_:
        return node
    return BINARY["not_equal"](node, 0)


def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether every element over `axis` is true (not zero); true of nothing."""
    return _reduced("all", Array.of(_truth(x, "all")), axis, None, keepdims)


def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether some element over `axis` is true (not zero); false of nothing."""
    return _reduced("any", Array.of(_truth(x, "any")), axis, None, keepdims)


def count_nonzero(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """How many elements over `axis` are not zero, int64."""
    found = Array.of(cast(_truth(x, "count_nonzero"), i64))
    return _reduced("sum", found, axis, None, keepdims)


def _running(
    what: str, combine: str, x: Any, axis: int | None, dtype: DTypeLike, initial: bool
) -> Array:
    node = value(x, what)
    rank = node.type.rank
    if axis is None:
        if rank != 1:
            raise AxisError(f"{what}: an axis must be named for an array with {rank} dimensions")
        axis = 0
    place = axis_of(axis, rank, what)
    if dtype is None:
        found = record(Scan(combine, place), (node,))
    else:
        target = as_dtype(dtype)
        found = cast(record(Scan(combine, place), (cast(node, target),)), target)
    if initial:
        shape = tuple(1 if a == place else d for a, d in enumerate(shape_of(found)))
        unit = cast(own_value(0 if combine == "sum" else 1, what), found.type.dtype)
        found = concat([expand(unit, shape), found], place, what)
    return Array.of(found)


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
) -> Array:
    """Running sums along `axis` (which only a vector may leave out); dtypes as in `sum`.

    With `include_initial` the result starts with 0 and is one longer.
    """
    return _running("cumulative_sum", "sum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
) -> Array:
    """Running products along `axis` (which only a vector may leave out); dtypes as in `sum`.

    With `include_initial` the result starts with 1 and is one longer.
    """
    return _running("cumulative_prod", "prod", x, axis, dtype, include_initial)


def diff(
    x: Any, /, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None
) -> Array:
    """Differences of neighbours along `axis`, `n` times; one element fewer each time, down to none.

    `prepend` and `append` are arrays put before and after x first, unless n is 0.  For bool,
    whether neighbours differ.  Raises ShapeError, AxisError, ArgumentError for a negative n.
    """
    node = value(x, "diff")
    if n < 0:
        raise ArgumentError(op="diff", argument="n", value=n, expected="0 or more")
    if n == 0:
        return Array.of(node)
    place = axis_of(axis, node.type.rank, "diff")
    parts = [value(prepend, "diff")] if prepend is not None else []
    parts.append(node)
    if append is not None:
        parts.append(value(append, "diff"))
    node = concat(parts, place, "diff") if len(parts) > 1 else node
    what = "not_equal" if node.type.dtype is bool_ else "subtract"
    for _ in range(n):
        shape = shape_of(node)
        if not holds(node.scope, 0, "<", shape[place]):
            break
        count = tuple(sub(d, 1) if a == place else d for a, d in enumerate(shape))
        ones = (1,) * len(shape)
        start = tuple(1 if a == place else 0 for a in range(len(shape)))
        later = take_range(node, start, count, ones)
        node = BINARY[what](later, take_range(node, (0,) * len(shape), count, ones))
    return Array.of(node)
