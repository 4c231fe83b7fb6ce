"""Statistics of elements in order, with NumPy's names: medians and quantiles, NaN counted or not.

>>> import smelt as sm
>>> x = sm.asarray([1.0, 4.0, sm.nan, 2.0])
>>> median(x), nanmedian(x), nanquantile(x, 0.25)
(Array(nan), Array(2.), Array(1.5))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array
from smelt.frontends.array.dtypes import astype
from smelt.frontends.array.manipulation import expand_dims, moveaxis, reshape
from smelt.frontends.array.numerical import Axis, array_of, floats_of
from smelt.frontends.array.searching import take, take_along_axis
from smelt.frontends.array.sorting import sort
from smelt.frontends.array.views import axes_of, shape_of
from smelt.types.dtype import f64, i64

__all__ = [
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
]


def _sorted(x: Any, axis: Axis, what: str) -> Array:
    """Floats in order along the first axis, into which `axis` was brought."""
    array = floats_of(x, what)
    axes = axes_of(axis, array.ndim, what)
    moved = moveaxis(array, axes, tuple(range(len(axes)))) if axes else array
    shape = moved.shape
    whole = reshape(moved, (math.prod(shape[: len(axes)]), *shape[len(axes) :]))
    if not axes:
        whole = reshape(array, (1, *array.shape)) if array.ndim else reshape(array, (1,))
    size = shape_of(whole.node)[0]
    if size == 0:
        raise ShapeError(op=what, operands=array.node.told, reason="there are no elements")
    return sort(whole, axis=0)


def _kept(found: Array, x: Any, axis: Axis, what: str, lead: int) -> Array:
    """The result with folded axes of size 1."""
    rank = array_of(x, what).ndim
    axes = axes_of(axis, rank, what)
    return expand_dims(found, axis=tuple(a + lead for a in axes)) if axes else found


def _check_parts(q: Any, most: int, what: str) -> None:
    """Refuses numbers that are no part of the way, where they are known."""
    parts: Any = q.ravel().tolist() if isinstance(q, np.ndarray) else q
    for part in parts if isinstance(parts, (list, tuple)) else (parts,):
        if isinstance(part, (int, float, np.number)) and (part < 0 or part > most):
            raise ArgumentError(f"{what}: q has {part}, expected numbers from 0 to {most}")


def median(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The middle element in order, the mean of the two of an even number; NaN if there is a NaN.

    Floats keep their dtype, integers give float64.  Raises AxisError, ShapeError for no elements.
    """
    line = _sorted(x, axis, "median")
    n = line.shape[0]
    low, high = line[(n - 1) // 2], line[n // 2]
    middle = el.where(el.equal(low, high), low, low * 0.5 + high * 0.5)
    found = el.where(el.isnan(line[n - 1]), math.nan, middle)
    return _kept(found, x, axis, "median", 0) if keepdims else found


def nanmedian(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """`median` of the elements that are not NaN; NaN where there are none.

    Raises AxisError, ShapeError for no elements.
    """
    line, there = _sorted_there(x, axis, "nanmedian")
    low, high = _at(line, (there - 1) // 2), _at(line, there // 2)
    found = el.where(el.equal(low, high), low, low * 0.5 + high * 0.5)
    return _kept(found, x, axis, "nanmedian", 0) if keepdims else found


def _sorted_there(x: Any, axis: Axis, what: str) -> tuple[Array, Array]:
    """`_sorted`, and how many in each line are no NaN: those come first."""
    line = _sorted(x, axis, what)
    return line, astype(stat.sum(el.logical_not(el.isnan(line)), axis=0), i64)


def _at(line: Array, place: Array) -> Array:
    """The elements at a place of each line, the first ones for places below 0."""
    return take_along_axis(line, el.maximum(place, 0)[None], axis=0)[0]


def quantile(x: Any, q: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The elements at parts `q`, from 0 to 1, of the way through those in order, interpolated
    between neighbours; NaN if there is a NaN.

    Args:
        x: the elements; floats keep their dtype, integers give float64.
        q: a number or an array, whose dimensions lead those of the result.
        axis: along which; None takes all elements.
        keepdims: keep the folded axes with size 1.

    Raises AxisError, ShapeError for no elements, ArgumentError for numbers outside of 0 and 1 (in
    an array, whose elements are not known before, they give NaN).
    """
    _check_parts(q, 1, "quantile")
    line, part = _sorted(x, axis, "quantile"), astype(floats_of(q, "quantile"), f64)
    n = line.shape[0]
    at = el.clip(part, 0.0, 1.0) * (n - 1)
    low, share = _split(at, line)
    share = reshape(share, (*at.shape, *[1] * (line.ndim - 1)))
    a = take(line, el.clip(low, 0, n - 1), axis=0)
    b = take(line, el.clip(low + 1, 0, n - 1), axis=0)
    part = reshape(part, share.shape)
    found = _between(a, b, share, el.logical_or(el.isnan(line[n - 1]), _outside(part)))
    return _kept(found, x, axis, "quantile", at.ndim) if keepdims else found


def nanquantile(x: Any, q: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """`quantile` of the elements that are not NaN; NaN where there are none."""
    _check_parts(q, 1, "nanquantile")
    line, there = _sorted_there(x, axis, "nanquantile")
    given = astype(floats_of(q, "nanquantile"), f64)
    part = reshape(given, (-1, *[1] * there.ndim))
    low, share = _split(el.clip(part, 0.0, 1.0) * el.maximum(there - 1, 0), line)
    last = line.shape[0] - 1
    a = take_along_axis(line, el.clip(low, 0, last), axis=0)
    b = take_along_axis(line, el.clip(low + 1, 0, last), axis=0)
    found = _between(a, el.where(share > 0, b, a), share, _outside(part))
    found = reshape(found, (*given.shape, *there.shape))
    return _kept(found, x, axis, "nanquantile", given.ndim) if keepdims else found


def _split(at: Array, line: Array) -> tuple[Array, Array]:
    """The whole part of places, and the rest as a share in the dtype of the elements."""
    low = el.floor(at)
    return astype(low, i64), astype(at - low, line.dtype)


def _between(a: Array, b: Array, share: Array, none: Array) -> Array:
    """From `a` to `b` by a share, from the nearer of both; NaN where there is `none`."""
    between = el.where(share < 0.5, a + (b - a) * share, b - (b - a) * (1.0 - share))
    return el.where(none, math.nan, el.where(el.equal(a, b), a, between))


def _outside(part: Array) -> Array:
    return el.logical_not(el.logical_and(part >= 0, part <= 1))


def percentile(x: Any, q: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """`quantile` of parts in hundredths."""
    _check_parts(q, 100, "percentile")
    return quantile(x, _hundredths(q), axis, keepdims=keepdims)


def nanpercentile(x: Any, q: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """`nanquantile` of parts in hundredths."""
    _check_parts(q, 100, "nanpercentile")
    return nanquantile(x, _hundredths(q), axis, keepdims=keepdims)


def _hundredths(q: Any) -> Array:
    return astype(floats_of(q, "percentile"), f64) / 100.0
