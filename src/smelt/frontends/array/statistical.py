"""Statistical and utility functions of the array API: sums, means, extremes, any, all.

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
from smelt.frontends.array.cache_calls import cache_call
from smelt.frontends.array.complex_calls import takes_complex
from smelt.frontends.array.dtypes import DTypeLike, as_dtype
from smelt.frontends.array.families import BINARY, UNARY
from smelt.frontends.array.promote import cast, default_value
from smelt.frontends.array.reduction import cast_to_float, reduce_axes, variance
from smelt.frontends.array.reduction import mean as mean_of
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import Value, record
from smelt.frontends.array.views import axes_of, axis_of, concat, expand, take_range
from smelt.ops.reduce import Scan
from smelt.types.dtype import bool_, i64
from smelt.types.expr import sub

Axis = int | Sequence[int] | None


def _reduced(what: str, x: Any, axis: Axis, dtype: DTypeLike, keepdims: bool) -> Array:
    node = value(x, what)
    axes = axes_of(axis, node.type.rank, what)
    if dtype is None:
        return Array.of(reduce_axes(what, node, axes, keepdims=keepdims))
    target = as_dtype(dtype)
    return Array.of(cast(reduce_axes(what, cast(node, target), axes, keepdims=keepdims), target))


@cache_call
def sum(x: Any, /, axis: Axis = None, dtype: DTypeLike = None, *, keepdims: bool = False) -> Array:
    """Return the sum over `axis`, all dimensions for None; 0 for no elements.

    Floats keep their dtype; half types accumulate in float32.  Bools and integers are summed as
    int64, unsigned integers as uint64.  With `dtype` the elements are converted first and the
    result has that dtype.  `keepdims` keeps the reduced dimensions with size 1.

    The rounding error grows no faster than that of pairwise summation.  The order of the terms is
    fixed for given sizes, whatever the number of threads, but not specified: if the magnitudes of
    finite terms add up past the largest number of their dtype, a partial sum may overflow and the
    result be infinite or NaN.

    Raises AxisError, DTypeError.
    """
    return _reduced("sum", x, axis, dtype, keepdims)


@cache_call
def prod(x: Any, /, axis: Axis = None, dtype: DTypeLike = None, *, keepdims: bool = False) -> Array:
    """Return the product over `axis`, all dimensions for None; 1 for no elements.

    Arguments and dtypes are those of `sum`.  Raises AxisError, DTypeError.
    """
    return _reduced("prod", x, axis, dtype, keepdims)


@cache_call
def max(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the maximum over `axis`, all dimensions for None; NaN if any element is NaN.

    `keepdims` keeps the reduced dimensions with size 1.  Raises AxisError, ShapeError for an empty
    axis.
    """
    return _reduced("max", x, axis, None, keepdims)


@cache_call
def min(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the minimum over `axis`, all dimensions for None; NaN if any element is NaN.

    `keepdims` keeps the reduced dimensions with size 1.  Raises AxisError, ShapeError for an empty
    axis.
    """
    return _reduced("min", x, axis, None, keepdims)


@cache_call
def mean(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the arithmetic mean over `axis`, all dimensions for None.

    Floats keep their dtype, half types are computed in float32, integers give float64.  NaN for no
    elements.  `keepdims` keeps the reduced dimensions with size 1.  Raises AxisError.
    """
    node = value(x, "mean")
    return Array.of(mean_of(node, axes_of(axis, node.type.rank, "mean"), keepdims=keepdims))


@cache_call
def var(
    x: Any,
    /,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    ddof: float | None = None,
    keepdims: bool = False,
) -> Array:
    """Return the variance over `axis`, with divisor n - `correction`, also called `ddof`.

    It is computed in two passes, so that a large mean costs no accuracy.  Dtypes and `keepdims` as
    in `mean`.  Raises AxisError.
    """
    node = value(x, "var")
    axes = axes_of(axis, node.type.rank, "var")
    return Array.of(
        variance(node, axes, float(correction if ddof is None else ddof), keepdims=keepdims)
    )


@cache_call
def std(
    x: Any,
    /,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    ddof: float | None = None,
    keepdims: bool = False,
) -> Array:
    """Return the standard deviation over `axis`, the square root of `var`.

    Arguments and dtypes are those of `var`.  Raises AxisError.
    """
    node = value(x, "std")
    axes = axes_of(axis, node.type.rank, "std")
    root = UNARY["sqrt"](
        variance(
            cast_to_float(node),
            axes,
            float(correction if ddof is None else ddof),
            keepdims=keepdims,
        )
    )
    return Array.of(cast(root, node.type.dtype) if node.type.dtype.is_float else root)


def _truth(x: Any, what: str) -> Value:
    node = value(x, what)
    if node.type.dtype is bool_:
        return node
    return BINARY["not_equal"](node, 0)


@cache_call
def all(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return whether every element over `axis` is nonzero, as bool; true for no elements.

    `keepdims` keeps the reduced dimensions with size 1.  Raises AxisError.
    """
    return _reduced("all", Array.of(_truth(x, "all")), axis, None, keepdims)


@cache_call
def any(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return whether any element over `axis` is nonzero, as bool; false for no elements.

    `keepdims` keeps the reduced dimensions with size 1.  Raises AxisError.
    """
    return _reduced("any", Array.of(_truth(x, "any")), axis, None, keepdims)


@takes_complex
def count_nonzero(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the number of nonzero elements over `axis`, int64.

    `keepdims` keeps the reduced dimensions with size 1.  Raises AxisError.
    """
    flags = Array.of(cast(_truth(x, "count_nonzero"), i64))
    return _reduced("sum", flags, axis, None, keepdims)


def _scan(
    what: str, combine: str, x: Any, axis: int | None, dtype: DTypeLike, initial: bool
) -> Array:
    node = value(x, what)
    rank = node.type.rank
    if axis is None:
        if rank != 1:
            raise AxisError(f"{what}: an axis must be named for an array with {rank} dimensions")
        axis = 0
    dim = axis_of(axis, rank, what)
    if dtype is None:
        result = record(Scan(combine, dim), (node,))
    else:
        target = as_dtype(dtype)
        result = cast(record(Scan(combine, dim), (cast(node, target),)), target)
    if initial:
        shape = tuple(1 if a == dim else d for a, d in enumerate(shape_of(result)))
        unit = cast(default_value(0 if combine == "sum" else 1, what), result.type.dtype)
        result = concat([expand(unit, shape), result], dim, what)
    return Array.of(result)


@cache_call
def cumulative_sum(
    x: Any, /, axis: int | None = None, dtype: DTypeLike = None, *, include_initial: bool = False
) -> Array:
    """Return inclusive prefix sums along `axis`, which only a vector may omit.

    Dtypes as in `sum`.  With `include_initial` the result starts with 0 and is one element longer.
    Raises AxisError, DTypeError.
    """
    return _scan("cumulative_sum", "sum", x, axis, dtype, include_initial)


@takes_complex
def cumulative_prod(
    x: Any, /, axis: int | None = None, dtype: DTypeLike = None, *, include_initial: bool = False
) -> Array:
    """Return inclusive prefix products along `axis`, which only a vector may omit.

    Dtypes as in `sum`.  With `include_initial` the result starts with 1 and is one element longer.
    Raises AxisError, DTypeError.
    """
    return _scan("cumulative_prod", "prod", x, axis, dtype, include_initial)


@takes_complex
def diff(
    x: Any, /, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None
) -> Array:
    """Return differences of neighbours along `axis`, taken `n` times.

    Each time leaves one element fewer along the axis, down to none.

    Args:
        x: the array; for bool, the result says whether neighbours differ.
        n: how many times; 0 returns `x`.
        axis: the dimension.
        prepend: an array put before x first, unless n is 0.
        append: an array put after x first, unless n is 0.

    Raises ShapeError, AxisError, ArgumentError for a negative n.
    """
    node = value(x, "diff")
    if n < 0:
        raise ArgumentError(op="diff", argument="n", value=n, expected="0 or more")
    if n == 0:
        return Array.of(node)
    dim = axis_of(axis, node.type.rank, "diff")
    parts = [value(prepend, "diff")] if prepend is not None else []
    parts.append(node)
    if append is not None:
        parts.append(value(append, "diff"))
    node = concat(parts, dim, "diff") if len(parts) > 1 else node
    what = "not_equal" if node.type.dtype is bool_ else "subtract"
    for _ in range(n):
        shape = shape_of(node)
        if not holds(node.scope, 0, "<", shape[dim]):
            break
        count = tuple(sub(d, 1) if a == dim else d for a, d in enumerate(shape))
        ones = (1,) * len(shape)
        start = tuple(1 if a == dim else 0 for a in range(len(shape)))
        later = take_range(node, start, count, ones)
        node = BINARY[what](later, take_range(node, (0,) * len(shape), count, ones))
    return Array.of(node)
