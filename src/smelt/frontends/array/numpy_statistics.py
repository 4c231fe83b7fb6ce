"""Statistics with NumPy's names: medians, quantiles, and reductions that skip NaN.

Where NumPy warns of a slice without elements, the result is the same but there is no warning.

>>> import smelt as sm
>>> x = sm.asarray([[1.0, sm.nan, 3.0], [sm.nan, sm.nan, 5.0]])
>>> nanmean(x, axis=0), nanargmax(x, axis=1), nancumsum(x, axis=1)[0]
(Array([ 1., nan,  4.]), Array([2, 2]), Array([1., 1., 4.]))
>>> x = sm.asarray([1.0, 4.0, sm.nan, 2.0])
>>> median(x), nanmedian(x), nanquantile(x, 0.25)
(Array(nan), Array(2.), Array(1.5))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array import creation as make
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import searching
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array
from smelt.frontends.array.dtypes import DTypeLike, as_dtype, as_operand_type
from smelt.frontends.array.manipulation import expand_dims, moveaxis, reshape
from smelt.frontends.array.numerical import Axis, array_of, floats_of
from smelt.frontends.array.reduction import is_empty
from smelt.frontends.array.searching import take, take_along_axis
from smelt.frontends.array.sorting import sort
from smelt.frontends.array.views import axes_of
from smelt.types.dtype import f64, i64


def _filled(x: Any, unit: float, what: str) -> Array:
    """Replace NaN by the reduction's neutral element `unit`."""
    array = array_of(x, what)
    return el.where(el.isnan(array), unit, array) if array.dtype.is_float else array


def nansum(
    x: Any, /, axis: Axis = None, *, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """Return the sum of the elements that are not NaN over `axis`, None for all.

    Arguments and dtypes are those of `sum`.  Raises AxisError.
    """
    return stat.sum(_filled(x, 0.0, "nansum"), axis=axis, dtype=dtype, keepdims=keepdims)


def nanprod(
    x: Any, /, axis: Axis = None, *, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """Return the product of the elements that are not NaN over `axis`, None for all.

    Arguments and dtypes are those of `prod`.  Raises AxisError.
    """
    return stat.prod(_filled(x, 1.0, "nanprod"), axis=axis, dtype=dtype, keepdims=keepdims)


def nancumsum(x: Any, /, axis: int | None = None, *, dtype: DTypeLike = None) -> Array:
    """Return prefix sums along `axis` in which NaN counts as 0.

    None flattens the array first; dtypes as in `cumulative_sum`.  Raises AxisError.
    """
    row, along = _flattened(_filled(x, 0.0, "nancumsum"), axis)
    return stat.cumulative_sum(row, axis=along, dtype=dtype)


def nancumprod(x: Any, /, axis: int | None = None, *, dtype: DTypeLike = None) -> Array:
    """Return prefix products along `axis` in which NaN counts as 1.

    None flattens the array first; dtypes as in `cumulative_prod`.  Raises AxisError.
    """
    row, along = _flattened(_filled(x, 1.0, "nancumprod"), axis)
    return stat.cumulative_prod(row, axis=along, dtype=dtype)


def _flattened(array: Array, axis: int | None) -> tuple[Array, int]:
    return (reshape(array, (-1,)), 0) if axis is None else (array, axis)


def nanmean(
    x: Any, /, axis: Axis = None, *, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """Return the mean of the elements that are not NaN; NaN if there are none.

    Floats keep their dtype, integers give float64; `dtype` sets the dtype of calculation and
    result.  Raises AxisError.
    """
    array = _as_floats(x, dtype, "nanmean")
    total, count = _sum_and_count(as_operand_type(array, array.dtype.compute), axis, keepdims)
    return as_operand_type(total / count, array.dtype)


def _as_floats(x: Any, dtype: DTypeLike, what: str) -> Array:
    array = floats_of(x, what)
    return array if dtype is None else as_operand_type(array, as_dtype(dtype))


def _sum_and_count(upcast: Array, axis: Axis, keepdims: bool) -> tuple[Array, Array]:
    """Return the sum and the number of elements that are not NaN, in one dtype."""
    return nansum(upcast, axis, keepdims=keepdims), _count(upcast, axis, keepdims)


def _count(upcast: Array, axis: Axis, keepdims: bool) -> Array:
    flags = as_operand_type(el.logical_not(el.isnan(upcast)), upcast.dtype)
    return stat.sum(flags, axis=axis, keepdims=keepdims)


def nanvar(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: DTypeLike = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> Array:
    """Return the variance of the elements that are not NaN, with divisor n - `ddof`.

    NaN where the divisor is not positive.  Computed in two passes; dtypes as in `nanmean`.  Raises
    AxisError.
    """
    array = _as_floats(x, dtype, "nanvar")
    return as_operand_type(_variance(array, axis, ddof, keepdims), array.dtype)


def nanstd(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: DTypeLike = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> Array:
    """Return the standard deviation of the elements that are not NaN.

    It is the square root of `nanvar`, with the same arguments.  Raises AxisError.
    """
    array = _as_floats(x, dtype, "nanstd")
    return as_operand_type(el.sqrt(_variance(array, axis, ddof, keepdims)), array.dtype)


def _variance(array: Array, axis: Axis, ddof: float, keepdims: bool) -> Array:
    upcast = as_operand_type(array, array.dtype.compute)
    total, count = _sum_and_count(upcast, axis, True)
    centred = el.where(el.isnan(upcast), 0.0, upcast - total / count)  # infinities give NaN
    squares = stat.sum(centred * centred, axis=axis, keepdims=keepdims)
    divisor = _count(upcast, axis, keepdims) - ddof
    return el.where(divisor > 0, squares / divisor, math.nan)


def _extreme(what: str, reduce: Any, neutral: float, x: Any, axis: Axis, keepdims: bool) -> Array:
    array = array_of(x, what)
    if not array.dtype.is_float:
        return reduce(array, axis=axis, keepdims=keepdims)
    result = reduce(_filled(array, neutral, what), axis=axis, keepdims=keepdims)
    missing = stat.all(el.isnan(array), axis=axis, keepdims=keepdims)
    return el.where(missing, math.nan, result)


def nanmax(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the maximum of the elements that are not NaN; NaN if there are none.

    Raises AxisError, ShapeError for an empty axis.
    """
    return _extreme("nanmax", stat.max, -math.inf, x, axis, keepdims)


def nanmin(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the minimum of the elements that are not NaN; NaN if there are none.

    Raises AxisError, ShapeError for an empty axis.
    """
    return _extreme("nanmin", stat.min, math.inf, x, axis, keepdims)


def nanargmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the position of the maximum among elements that are not NaN, int64.

    0 if there is none; NumPy raises an error then, which would require reading the elements.
    Raises AxisError, ShapeError for an empty axis.
    """
    return searching.argmax(_filled(x, -math.inf, "nanargmax"), axis=axis, keepdims=keepdims)


def nanargmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the position of the minimum among elements that are not NaN, int64.

    0 if there is none.  Raises AxisError, ShapeError for an empty axis.
    """
    return searching.argmin(_filled(x, math.inf, "nanargmin"), axis=axis, keepdims=keepdims)


def _sorted(x: Any, axis: Axis, what: str) -> Array:
    """Sort floats along a new first axis into which the axes `axis` are flattened.

    If there are no elements to sort, the result has one NaN in their stead.
    """
    array = floats_of(x, what)
    axes = axes_of(axis, array.ndim, what)
    leading = moveaxis(array, axes, tuple(range(len(axes)))) if axes else array
    shape = leading.shape
    flat = reshape(leading, (math.prod(shape[: len(axes)]), *shape[len(axes) :]))
    if not axes:
        flat = reshape(array, (1, *array.shape)) if array.ndim else reshape(array, (1,))
    if is_empty(flat.node, 0):
        return make.full((1, *flat.shape[1:]), math.nan, dtype=flat.dtype)
    return sort(flat, axis=0)


def _restore_axes(result: Array, x: Any, axis: Axis, what: str, lead: int) -> Array:
    """Insert the reduced axes, with size 1, into a result with `lead` leading dimensions."""
    rank = array_of(x, what).ndim
    axes = axes_of(axis, rank, what)
    return expand_dims(result, axis=tuple(a + lead for a in axes)) if axes else result


def _check_fractions(q: Any, most: int, what: str) -> None:
    """Raise ArgumentError for known numbers outside of 0 to `most`."""
    fractions: Any = q.ravel().tolist() if isinstance(q, np.ndarray) else q
    for fraction in fractions if isinstance(fractions, (list, tuple, range)) else (fractions,):
        if isinstance(fraction, (int, float, np.number)) and (fraction < 0 or fraction > most):
            raise ArgumentError(f"{what}: q has {fraction}, expected numbers from 0 to {most}")


def median(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the median over `axis`, all dimensions for None; NaN if any element is NaN.

    For an even number of elements it is the mean of the middle two, for none NaN.  Floats keep
    their dtype, integers give float64.  `keepdims` keeps the reduced dimensions with size 1.
    Raises AxisError.
    """
    sorted_ = _sorted(x, axis, "median")
    n = sorted_.shape[0]
    low, high = sorted_[(n - 1) // 2], sorted_[n // 2]
    middle = el.where(el.equal(low, high), low, low * 0.5 + high * 0.5)
    result = el.where(el.isnan(sorted_[n - 1]), math.nan, middle)
    return _restore_axes(result, x, axis, "median", 0) if keepdims else result


def nanmedian(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the median of the elements that are not NaN; NaN if there are none.

    Arguments and dtypes are those of `median`.  Raises AxisError.
    """
    sorted_, count = _sorted_with_count(x, axis, "nanmedian")
    low, high = _at(sorted_, (count - 1) // 2), _at(sorted_, count // 2)
    result = el.where(el.equal(low, high), low, low * 0.5 + high * 0.5)
    return _restore_axes(result, x, axis, "nanmedian", 0) if keepdims else result


def _sorted_with_count(x: Any, axis: Axis, what: str) -> tuple[Array, Array]:
    """Return `_sorted` and the number of elements per column that are not NaN.

    These elements come first.
    """
    sorted_ = _sorted(x, axis, what)
    return sorted_, as_operand_type(stat.sum(el.logical_not(el.isnan(sorted_)), axis=0), i64)


def _at(sorted_: Array, position: Array) -> Array:
    """Return the element at a position of each column, the first for negative positions."""
    return take_along_axis(sorted_, el.maximum(position, 0)[None], axis=0)[0]


def quantile(x: Any, q: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return quantiles `q` (from 0 to 1) over `axis`; NaN if any element is NaN.

    Quantiles between two elements are interpolated linearly.

    Args:
        x: the elements; floats keep their dtype, integers give float64.
        q: a number or an array, whose dimensions lead those of the result.
        axis: the dimensions to reduce; None takes all.
        keepdims: keep the reduced dimensions with size 1.

    Raises AxisError, ShapeError for no elements, ArgumentError for numbers outside of 0 to 1.
    Elements of an array `q` that are known only later give NaN instead.
    """
    _check_fractions(q, 1, "quantile")
    node = array_of(x, "quantile").node
    if any(is_empty(node, a) for a in axes_of(axis, node.type.rank, "quantile")):
        raise ShapeError(op="quantile", operands=node.type_text, reason="there are no elements")
    sorted_, fraction = _sorted(x, axis, "quantile"), as_operand_type(floats_of(q, "quantile"), f64)
    n = sorted_.shape[0]
    at = el.clip(fraction, 0.0, 1.0) * (n - 1)
    low, weight = _split(at, sorted_)
    weight = reshape(weight, (*at.shape, *[1] * (sorted_.ndim - 1)))
    a = take(sorted_, el.clip(low, 0, n - 1), axis=0)
    b = take(sorted_, el.clip(low + 1, 0, n - 1), axis=0)
    fraction = reshape(fraction, weight.shape)
    result = _interpolate(a, b, weight, el.logical_or(el.isnan(sorted_[n - 1]), _outside(fraction)))
    return _restore_axes(result, x, axis, "quantile", at.ndim) if keepdims else result


def nanquantile(x: Any, q: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return quantiles of the elements that are not NaN; NaN if there are none.

    Arguments, dtypes and errors are those of `quantile`, but no elements are not an error, and
    the dimensions of `q` lead those of the result there too.
    """
    _check_fractions(q, 1, "nanquantile")
    sorted_, count = _sorted_with_count(x, axis, "nanquantile")
    fractions = as_operand_type(floats_of(q, "nanquantile"), f64)
    fraction = reshape(fractions, (-1, *[1] * count.ndim))
    low, weight = _split(el.clip(fraction, 0.0, 1.0) * el.maximum(count - 1, 0), sorted_)
    last = sorted_.shape[0] - 1
    a = take_along_axis(sorted_, el.clip(low, 0, last), axis=0)
    b = take_along_axis(sorted_, el.clip(low + 1, 0, last), axis=0)
    result = _interpolate(a, el.where(weight > 0, b, a), weight, _outside(fraction))
    result = reshape(result, (*fractions.shape, *count.shape))
    return _restore_axes(result, x, axis, "nanquantile", fractions.ndim) if keepdims else result


def _split(at: Array, sorted_: Array) -> tuple[Array, Array]:
    """Split positions into integers and fractions, the latter in the elements' dtype."""
    low = el.floor(at)
    return as_operand_type(low, i64), as_operand_type(at - low, sorted_.dtype)


def _interpolate(a: Array, b: Array, weight: Array, is_missing: Array) -> Array:
    """Interpolate from `a` to `b`, starting at the nearer one; NaN where `is_missing`."""
    mixed = el.where(weight < 0.5, a + (b - a) * weight, b - (b - a) * (1.0 - weight))
    return el.where(is_missing, math.nan, el.where(el.equal(a, b), a, mixed))


def _outside(fraction: Array) -> Array:
    return el.logical_not(el.logical_and(fraction >= 0, fraction <= 1))


def percentile(x: Any, q: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return percentiles: quantiles for `q` from 0 to 100.

    Arguments, dtypes and errors are those of `quantile`.
    """
    _check_fractions(q, 100, "percentile")
    return quantile(x, _as_fractions(q), axis, keepdims=keepdims)


def nanpercentile(x: Any, q: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return percentiles of the elements that are not NaN; NaN if there are none.

    Arguments, dtypes and errors are those of `nanquantile`, with `q` from 0 to 100.
    """
    _check_fractions(q, 100, "nanpercentile")
    return nanquantile(x, _as_fractions(q), axis, keepdims=keepdims)


def _as_fractions(q: Any) -> Array:
    return as_operand_type(floats_of(q, "percentile"), f64) / 100.0
