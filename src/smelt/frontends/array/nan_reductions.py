"""Reductions and scans that skip NaN, with NumPy's names (`nansum`, ...).

Where NumPy warns of a slice without elements, the result is the same but there is no warning.

>>> import smelt as sm
>>> x = sm.asarray([[1.0, sm.nan, 3.0], [sm.nan, sm.nan, 5.0]])
>>> nanmean(x, axis=0), nanargmax(x, axis=1), nancumsum(x, axis=1)[0]
(Array([ 1., nan,  4.]), Array([2, 2]), Array([1., 1., 4.]))
"""

from __future__ import annotations

import math
from typing import Any

from smelt.frontends.array import elementwise as el
from smelt.frontends.array import searching
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array
from smelt.frontends.array.dtypes import DTypeLike, as_dtype, as_operand_type
from smelt.frontends.array.manipulation import reshape
from smelt.frontends.array.numerical import Axis, array_of, floats_of


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
