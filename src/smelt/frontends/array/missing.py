"""Folds and running sums of the elements that are there: NaN stands for one that is missing.

Names, arguments and meanings are NumPy's (`nansum` and its kin); what NumPy warns of, a slice
without an element that is there, gives the result and no warning.

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
from smelt.frontends.array.dtypes import DTypeLike, as_dtype, astype
from smelt.frontends.array.manipulation import reshape
from smelt.frontends.array.numerical import Axis, array_of, floats_of

__all__ = [
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]


def _filled(x: Any, unit: float, what: str) -> Array:
    """The elements, with `unit` in the place of those that are missing."""
    array = array_of(x, what)
    return el.where(el.isnan(array), unit, array) if array.dtype.is_float else array


def nansum(
    x: Any, /, axis: Axis = None, *, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """The sum of the elements that are not NaN; dtypes as in `sum`.  Raises AxisError."""
    return stat.sum(_filled(x, 0.0, "nansum"), axis=axis, dtype=dtype, keepdims=keepdims)


def nanprod(
    x: Any, /, axis: Axis = None, *, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """The product of the elements that are not NaN; dtypes as in `sum`.  Raises AxisError."""
    return stat.prod(_filled(x, 1.0, "nanprod"), axis=axis, dtype=dtype, keepdims=keepdims)


def nancumsum(x: Any, /, axis: int | None = None, *, dtype: DTypeLike = None) -> Array:
    """Running sums, in which NaN counts as 0; of all elements in a row without an axis.

    Raises AxisError.
    """
    row, along = _row(_filled(x, 0.0, "nancumsum"), axis)
    return stat.cumulative_sum(row, axis=along, dtype=dtype)


def nancumprod(x: Any, /, axis: int | None = None, *, dtype: DTypeLike = None) -> Array:
    """Running products, in which NaN counts as 1; of all elements in a row without an axis.

    Raises AxisError.
    """
    row, along = _row(_filled(x, 1.0, "nancumprod"), axis)
    return stat.cumulative_prod(row, axis=along, dtype=dtype)


def _row(array: Array, axis: int | None) -> tuple[Array, int]:
    return (reshape(array, (-1,)), 0) if axis is None else (array, axis)


def nanmean(
    x: Any, /, axis: Axis = None, *, dtype: DTypeLike = None, keepdims: bool = False
) -> Array:
    """The mean of the elements that are not NaN; NaN where there are none.

    Floats keep their dtype, integers give float64; with `dtype`, that is computed and given.
    Raises AxisError.
    """
    array = _in(x, dtype, "nanmean")
    total, there = _sum_there(astype(array, array.dtype.compute), axis, keepdims)
    return astype(total / there, array.dtype)


def _in(x: Any, dtype: DTypeLike, what: str) -> Array:
    array = floats_of(x, what)
    return array if dtype is None else astype(array, as_dtype(dtype))


def _sum_there(wide: Array, axis: Axis, keepdims: bool) -> tuple[Array, Array]:
    """The sum of the elements that are there, and their number in the same dtype."""
    return nansum(wide, axis, keepdims=keepdims), _count(wide, axis, keepdims)


def _count(wide: Array, axis: Axis, keepdims: bool) -> Array:
    there = astype(el.logical_not(el.isnan(wide)), wide.dtype)
    return stat.sum(there, axis=axis, keepdims=keepdims)


def nanvar(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: DTypeLike = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> Array:
    """The variance of the elements that are not NaN, over their number - `ddof`; NaN where that is
    not above 0.  Two passes, as in `var`; dtypes as in `nanmean`.  Raises AxisError.
    """
    array = _in(x, dtype, "nanvar")
    return astype(_variance(array, axis, ddof, keepdims), array.dtype)


def nanstd(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: DTypeLike = None,
    ddof: float = 0,
    keepdims: bool = False,
) -> Array:
    """The standard deviation of the elements that are not NaN, the square root of `nanvar`."""
    array = _in(x, dtype, "nanstd")
    return astype(el.sqrt(_variance(array, axis, ddof, keepdims)), array.dtype)


def _variance(array: Array, axis: Axis, ddof: float, keepdims: bool) -> Array:
    wide = astype(array, array.dtype.compute)
    total, there = _sum_there(wide, axis, True)
    centred = el.where(el.isnan(wide), 0.0, wide - total / there)  # that of infinities is NaN
    squares = stat.sum(centred * centred, axis=axis, keepdims=keepdims)
    free = _count(wide, axis, keepdims) - ddof
    return el.where(free > 0, squares / free, math.nan)


def _extreme(what: str, fold: Any, end: float, x: Any, axis: Axis, keepdims: bool) -> Array:
    array = array_of(x, what)
    if not array.dtype.is_float:
        return fold(array, axis=axis, keepdims=keepdims)
    found = fold(_filled(array, end, what), axis=axis, keepdims=keepdims)
    missing = stat.all(el.isnan(array), axis=axis, keepdims=keepdims)
    return el.where(missing, math.nan, found)


def nanmax(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The greatest element that is not NaN; NaN where there is none.

    Raises AxisError, ShapeError for an empty axis.
    """
    return _extreme("nanmax", stat.max, -math.inf, x, axis, keepdims)


def nanmin(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The least element that is not NaN; NaN where there is none.

    Raises AxisError, ShapeError for an empty axis.
    """
    return _extreme("nanmin", stat.min, math.inf, x, axis, keepdims)


def nanargmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Where the greatest element that is not NaN stands, int64; 0 where there is none.

    NumPy raises an error for the latter, which looks at the elements.  Raises AxisError,
    ShapeError for an empty axis.
    """
    return searching.argmax(_filled(x, -math.inf, "nanargmax"), axis=axis, keepdims=keepdims)


def nanargmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Where the least element that is not NaN stands, as in `nanargmax`."""
    return searching.argmin(_filled(x, math.inf, "nanargmin"), axis=axis, keepdims=keepdims)
