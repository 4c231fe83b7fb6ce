"""NumPy's numerical functions that the array API standard lacks.

All are written in terms of other functions of the package, so they fuse, have derivatives and
compile for every size as user code does.  Names, arguments and meanings are NumPy's; results are
arrays.

>>> import smelt as sm
>>> x = sm.asarray([1.0, 4.0, 2.0])
>>> interp(sm.asarray([0.5]), sm.arange(3), x), histogram(x, bins=2)[0]
(Array([2.5]), Array([2, 1]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, ShapeError
from smelt.frontends.array import creation as make
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array, number_or_value
from smelt.frontends.array.dtypes import as_operand_type, astype, finfo
from smelt.frontends.array.linalg import matmul
from smelt.frontends.array.manipulation import flip, moveaxis, reshape
from smelt.frontends.array.number import Number, as_dim
from smelt.frontends.array.promote import common
from smelt.frontends.array.scope import shape_of
from smelt.frontends.array.searching import COUNT_LIMIT, searchsorted, take
from smelt.frontends.array.segments import bincount
from smelt.frontends.array.sorting import sort
from smelt.frontends.array.spatial import conv
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import STATE, Value
from smelt.frontends.array.views import axis_of
from smelt.frontends.array.windows import pad_with_mode
from smelt.types.dtype import bool_, f64, i64

Axis = int | Sequence[int] | None


def array_of(x: Any, what: str) -> Array:
    """Convert an argument (an array, number or nested list) to an array."""
    if isinstance(x, (list, tuple)):
        return make.asarray(x)
    operand = number_or_value(x, what)
    if isinstance(operand, Value):
        return Array.of(operand)
    return make.asarray(x if isinstance(operand, Number) else operand)


def floats_of(x: Any, what: str) -> Array:
    """Convert an argument to an array of floats; integers become float64."""
    array = array_of(x, what)
    return array if array.dtype.is_float else as_operand_type(array, f64)


def to_compute_type(x: Array) -> Array:
    """Cast floats to the dtype of calculations: float32 for half types."""
    return as_operand_type(x, x.dtype.compute)


# Comparisons and NaN


def isclose(
    a: Any, b: Any, /, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Array:
    """Return whether |a - b| <= atol + rtol·|b| for each element, as bool.

    Equal infinities are close; with `equal_nan`, so are two NaN. Arguments broadcast.  Raises
    ShapeError.
    """
    x, y = array_of(a, "isclose"), floats_of(b, "isclose")
    near = el.abs(x - y) <= atol + rtol * el.abs(y)
    close = el.logical_or(el.logical_and(near, el.isfinite(y)), el.equal(x, y))
    if equal_nan:
        close = el.logical_or(close, el.logical_and(el.not_equal(x, x), el.isnan(y)))
    return close


def allclose(
    a: Any, b: Any, /, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Array:
    """Return whether all elements are close (see `isclose`), a bool array of rank 0.

    Raises ShapeError.
    """
    return stat.all(isclose(a, b, rtol, atol, equal_nan))


def isin(x: Any, test: Any, /, *, invert: bool = False) -> Array:
    """Return whether each element of `x` occurs in `test`, a bool array.

    `test` has any shape.  NaN does not occur in anything.  `invert` negates the result.  Raises
    DTypeError where the dtypes have no common one.
    """
    array, elements = array_of(x, "isin"), reshape(array_of(test, "isin"), (-1,))
    dtype = common("isin", array.dtype, elements.dtype)
    array, sorted_ = as_operand_type(array, dtype), sort(as_operand_type(elements, dtype))
    if shape_of(sorted_.node)[0] == 0:
        result = make.zeros(array.shape, dtype=bool_)
    else:
        at = el.clip(searchsorted(sorted_, array), 0, sorted_.shape[0] - 1)
        result = el.equal(take(sorted_, reshape(at, (-1,))), reshape(array, (-1,)))
        result = reshape(result, array.shape)
    return el.logical_not(result) if invert else result


def nan_to_num(x: Any, /, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Replace NaN and infinities by numbers.

    Args:
        x: the array; integers are returned as they are.
        nan: the replacement of NaN.
        posinf: the replacement of infinity; the largest number of the dtype if None.
        neginf: the replacement of -infinity; the smallest number of the dtype if None.
    """
    array = array_of(x, "nan_to_num")
    if not array.dtype.is_float:
        return array
    largest = finfo(array.dtype).max
    from_top = largest if posinf is None else posinf
    from_bottom = -largest if neginf is None else neginf
    result = el.where(el.equal(array, math.inf), from_top, array)
    result = el.where(el.equal(array, -math.inf), from_bottom, result)
    return el.where(el.isnan(array), nan, result)


# Statistics


def average(x: Any, /, axis: int | None = None, weights: Any = None) -> Array:
    """Return the mean, or the weighted mean sum(x·weights) / sum(weights).

    Args:
        x: the elements; integers give float64.
        axis: the dimension to average over; None takes all elements.
        weights: an array of the shape of `x`, or a vector along `axis`.

    Raises AxisError, ShapeError, ArgumentError for a vector of weights without an axis.
    """
    array = floats_of(x, "average")
    if weights is None:
        return stat.mean(array, axis=axis)
    w = floats_of(weights, "average")
    dtype = common("average", array.dtype, w.dtype)
    array, w = to_compute_type(as_operand_type(array, dtype)), to_compute_type(w)
    if w.ndim == 1 and array.ndim > 1:
        if axis is None:
            raise ArgumentError("average: weights along one axis need its name, axis=")
        w = reshape(w, (-1, *[1] * (array.ndim - 1 - axis_of(axis, array.ndim, "average"))))
    w = w + make.zeros_like(array)
    return as_operand_type(stat.sum(array * w, axis=axis) / stat.sum(w, axis=axis), dtype)


def cov(x: Any, /, *, rowvar: bool = True, ddof: int = 1) -> Array:
    """Return the covariance matrix of variables in rows, with divisor n - ddof.

    Variables are in columns if `rowvar` is false.  A vector gives its variance, of rank 0.
    Integers give float64.  Raises ShapeError for ranks above 2.
    """
    dtype = floats_of(x, "cov").dtype
    return as_operand_type(_covariance(to_compute_type(floats_of(x, "cov")), rowvar, ddof), dtype)


def _covariance(array: Array, rowvar: bool, ddof: int) -> Array:
    if array.ndim > 2:
        raise ShapeError(op="cov", operands=array.node.type_text, reason="it has more than 2 axes")
    variables = reshape(array, (1, -1)) if array.ndim < 2 else array if rowvar else array.T
    centred = variables - stat.mean(variables, axis=1, keepdims=True)
    matrix = matmul(centred, centred.T) / max(variables.shape[1] - ddof, 0)
    return reshape(matrix, ()) if array.ndim < 2 else matrix


def corrcoef(x: Any, /, *, rowvar: bool = True) -> Array:
    """Return the matrix of correlation coefficients of variables in rows.

    Variables are in columns if `rowvar` is false.  Raises ShapeError for ranks above 2.
    """
    floats = floats_of(x, "corrcoef")
    c = _covariance(to_compute_type(floats), rowvar, 1)
    if c.ndim == 0:
        return as_operand_type(c / c, floats.dtype)
    diagonal = make.eye(c.shape[0], dtype=bool_)  # keeps a non-finite variable out of the others
    spread = el.sqrt(stat.sum(el.where(diagonal, c, 0), axis=1))
    return as_operand_type(el.clip(c / spread[:, None] / spread[None, :], -1.0, 1.0), floats.dtype)


def histogram(
    x: Any,
    /,
    bins: Any = 10,
    range: tuple[Any, Any] | None = None,
    weights: Any = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Count the elements in each bin; also return the edges of the bins.

    Args:
        x: the elements, of any shape; those outside of all bins, and NaN, are not counted.
        bins: a number of bins of equal width, or a vector of increasing edges.  The last bin
            includes its upper edge.
        range: the first and the last edge, by default the minimum and the maximum of x.
        weights: what each element counts for, an array of the shape of `x`.
        density: divide by the sum and by the widths, so that the integral is 1.

    Returns:
        Counts [bins] and edges [bins + 1].  Counts are int64; weighted ones have the float dtype of
        the weights, float64 for integers; a density is a float.

    Raises ArgumentError for no bins, ShapeError.
    """
    array = reshape(array_of(x, "histogram"), (-1,))
    edges, bin_of = _edges(array, bins, range)
    n = edges.shape[0] - 1
    inside = el.logical_and(array >= edges[0], array <= edges[n])
    slot = el.where(inside, el.clip(bin_of, 0, n - 1), n)
    w = None if weights is None else reshape(array_of(weights, "histogram"), (-1,))
    counts = bincount(slot, w, length=n + 1)[:n]
    if density:
        widths = stat.diff(edges)
        dtype = (counts / widths).dtype
        counts = as_operand_type(
            counts / as_operand_type(widths, dtype.compute) / stat.sum(counts), dtype
        )
    return counts, edges


def _edges(x: Array, bins: Any, span: tuple[Any, Any] | None) -> tuple[Array, Array]:
    """Return the edges of a histogram, and the bin of each element."""
    if isinstance(bins, (Number, np.integer)):
        bins = int(bins)
    if not isinstance(bins, int):
        edges = array_of(make.asarray(bins), "histogram")
        if edges.ndim != 1:
            raise ShapeError.of("histogram", "edges are a vector", edges.node)
        at = searchsorted(edges, x, side="right") - 1
        return edges, el.where(el.equal(x, edges[edges.shape[0] - 1]), edges.shape[0] - 2, at)
    if bins < 1:
        raise ArgumentError(op="histogram", argument="bins", value=bins, expected="1 or more")
    dtype = x.dtype if x.dtype.is_float else f64
    floats = as_operand_type(x, dtype.compute)
    if span is not None:
        low, high = (make.asarray(e, dtype=floats.dtype) for e in span)
    elif shape_of(x.node)[0] == 0:
        low, high = (make.asarray(e, dtype=floats.dtype) for e in (0.0, 1.0))
    else:
        low, high = stat.min(floats), stat.max(floats)
    flat = el.equal(low, high)
    low, high = el.where(flat, low - 0.5, low), el.where(flat, high + 0.5, high)
    steps = as_operand_type(make.arange(bins + 1), f64)
    first, last = as_operand_type(low, f64), as_operand_type(high, f64)
    edges = el.where(el.equal(steps, bins), last, steps * ((last - first) / bins) + first)
    edges = astype(edges, dtype)
    scaled = (floats - low) / (high - low) * bins
    inside = el.logical_and(floats >= low, floats <= high)
    at = as_operand_type(el.where(inside, el.clip(scaled, 0, bins - 1), 0.0), i64)
    at = at - as_operand_type(
        floats < edges[at], i64
    )  # rounding may have chosen a neighbouring bin
    at = el.clip(at, 0, bins - 1)
    return edges, at + as_operand_type(el.logical_and(floats >= edges[at + 1], at < bins - 1), i64)


# Series


def interp(x: Any, xp: Any, fp: Any, /, left: Any = None, right: Any = None) -> Array:
    """Interpolate linearly between the points (xp, fp) at positions x.

    Args:
        x: where to interpolate, of any shape.
        xp: positions of the points: a vector, increasing.
        fp: values of the points: a vector of the same length.
        left, right: results before the first and after the last point; by default the value there.

    Returns:
        Floats in the shape of `x`: the promoted dtype, float64 for integers.

    Raises ShapeError.
    """
    at, knots, values = (floats_of(v, "interp") for v in (x, xp, fp))
    if knots.ndim != 1 or values.ndim != 1:
        operands = f"{knots.node.type_text}, {values.node.type_text}"
        raise ShapeError(op="interp", operands=operands, reason="points are two vectors")
    dtype = common("interp", at.dtype, knots.dtype, values.dtype)
    at, knots, values = (to_compute_type(as_operand_type(v, dtype)) for v in (at, knots, values))
    values = values + make.zeros_like(knots)  # checks that the lengths agree
    if shape_of(knots.node)[0] == 0 and 0 in shape_of(at.node):
        return as_operand_type(at, dtype)  # as NumPy from version 2.5 on
    n = knots.shape[0]
    before = values[0] if left is None else left
    after = values[n - 1] if right is None else right
    result = values[0] + make.zeros_like(at)
    if shape_of(knots.node)[0] != 1:
        k = el.clip(searchsorted(knots, at, side="right") - 1, 0, n - 2)
        start, low = knots[k], values[k]
        if holds(at.node.scope or knots.node.scope, shape_of(knots.node)[0], "<=", COUNT_LIMIT):
            slope = (values[k + 1] - low) / (knots[k + 1] - start)
        else:  # a division for each point, not for each position
            slope = (stat.diff(values) / stat.diff(knots))[k]
        result = el.where(el.equal(at, start), low, slope * (at - start) + low)
    result = el.where(el.equal(at, knots[n - 1]), values[n - 1], result)
    result = el.where(at < knots[0], before, el.where(at > knots[n - 1], after, result))
    return as_operand_type(el.where(el.isnan(at), at, result), dtype)


def trapezoid(y: Any, /, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """Integrate by the trapezoidal rule along `axis`.

    Args:
        y: values; integers give float64.
        x: positions: a vector, or an array that broadcasts with `y`; None for steps of `dx`.
        dx: distance of neighbours if `x` is None.
        axis: the dimension to integrate over.

    Raises AxisError, ShapeError.
    """
    floats = floats_of(y, "trapezoid")
    dtype = floats.dtype
    array = moveaxis(to_compute_type(floats), axis, -1)
    step: Any = dx
    if x is not None:
        positions = floats_of(x, "trapezoid")
        dtype = common("trapezoid", dtype, positions.dtype)
        positions = to_compute_type(positions)
        step = stat.diff(positions if positions.ndim == 1 else moveaxis(positions, axis, -1))
    return as_operand_type(
        stat.sum(step * (array[..., 1:] + array[..., :-1]) / 2.0, axis=-1), dtype
    )


def gradient(f: Any, dx: Any = 1.0, /, *, axis: int | None = None) -> Any:
    """Return numerical derivatives: central differences, one-sided at the ends.

    Args:
        f: the values; integers give float64.
        dx: distance of neighbours.
        axis: the dimension; None takes all.

    Returns:
        An array of the shape of `f`; a tuple with one for each dimension if `axis` is None and the
        rank is not 1.

    Raises AxisError, ShapeError for an axis of fewer than two elements.
    """
    array = floats_of(f, "gradient")
    if axis is None and array.ndim != 1:
        return tuple(gradient(array, dx, axis=k) for k in range(array.ndim))
    y = moveaxis(to_compute_type(array), 0 if axis is None else axis, 0)
    n = shape_of(y.node)[0]
    if isinstance(n, int) and n < 2:
        raise ShapeError.of("gradient", "two elements are needed", array.node)
    extended = pad_with_mode("gradient", moveaxis(y, 0, -1).node, ((1, 1),), 0, "replicate")
    padded = moveaxis(Array.of(extended), -1, 0)
    positions = reshape(make.arange(y.shape[0]), (-1, *[1] * (y.ndim - 1)))
    end = el.logical_or(el.equal(positions, 0), el.equal(positions, y.shape[0] - 1))
    slopes = (padded[2:] - padded[:-2]) / el.where(end, 1.0 * dx, 2.0 * dx)
    return moveaxis(as_operand_type(slopes, array.dtype), 0, 0 if axis is None else axis)


def convolve(a: Any, v: Any, /, mode: str = "full") -> Array:
    """Return the discrete convolution Σ a[k]·v[n - k] of two vectors.

    Args:
        a, v: vectors, not empty.  The length of the shorter one, the window, is a constant of the
            compiled code.
        mode: "full" gives all sums, "same" as many as the longer vector has elements, from the
            middle, "valid" those in which the vectors overlap completely.

    The longer vector is padded with zeros, whose products with NaN and infinities are NaN.

    Raises ArgumentError for another mode, ShapeError.
    """
    x, w = array_of(a, "convolve"), array_of(v, "convolve")
    if mode not in ("full", "same", "valid"):
        raise ArgumentError.of("convolve", "mode", mode, "'full', 'same' or 'valid'")
    for vector in (x, w):
        if vector.ndim != 1 or shape_of(vector.node)[0] == 0:
            raise ShapeError.of("convolve", "it is not 1-D, or empty", vector.node)
    if x.shape[0] < w.shape[0]:
        x, w = w, x
    m = int(w.shape[0])
    pad_widths = {"full": (m - 1, m - 1), "same": (m // 2, (m - 1) // 2), "valid": (0, 0)}[mode]
    padded = pad_with_mode("convolve", x.node, (pad_widths,), 0, "zeros")
    sums = conv(Array.of(padded)[None, None, :], flip(w)[None, None, :])
    return sums[0, 0, :]


_MODES = {
    "constant": "zeros",
    "edge": "replicate",
    "reflect": "reflect",
    "wrap": "circular",
    "symmetric": "symmetric",
}


def pad(x: Any, pad_width: Any, /, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """Pad an array at both ends of its dimensions.

    Args:
        x: the array.
        pad_width: the width of all padding, a pair (before, after) for all axes, or a pair for each
            axis.
        mode: what the padding holds: "constant", the nearest element ("edge"), or the array once
            more, mirrored at its ends ("reflect"; "symmetric" repeats the end itself) or from its
            other end ("wrap").
        constant_values: the number of "constant".

    Raises ArgumentError for other settings, ShapeError for padding that the array is too short to
    fill.
    """
    array = array_of(x, "pad")
    if mode not in _MODES:
        modes = ", ".join(_MODES)
        raise ArgumentError(op="pad", argument="mode", value=repr(mode), expected=f"one of {modes}")
    widths = _widths(pad_width, array.ndim, fixed=mode != "constant")
    if not widths:
        return array
    fill = make.full((), constant_values, dtype=array.dtype).node
    number = getattr(fill.op, "value", None)
    if mode == "constant" and number is None:
        raise ArgumentError(
            op="pad", argument="constant_values", value=constant_values, expected="a number"
        )
    number = 0 if number is None else number
    return Array.of(pad_with_mode("pad", array.node, widths, number, _MODES[mode]))


def _widths(pad_width: Any, rank: int, *, fixed: bool) -> tuple[tuple[Any, Any], ...]:
    """Return a pair of widths for each axis.

    With `fixed` they are plain integers.  Raises ArgumentError.
    """
    one = (int, Number, np.integer)
    rows: Any = (
        [pad_width] if isinstance(pad_width, one) or not np.iterable(pad_width) else list(pad_width)
    )
    if len(rows) == 2 and all(isinstance(n, one) for n in rows):
        rows = [rows]
    pairs: list[tuple[Any, ...]] = [tuple(n) if np.iterable(n) else (n,) for n in rows]
    pairs = [p * 2 if len(p) == 1 else p for p in pairs]
    if len(pairs) == 1:
        pairs *= rank
    is_valid = len(pairs) == rank and all(
        len(p) == 2 and isinstance(n, one) for p in pairs for n in p
    )
    convert = int if fixed else as_dim
    widths = tuple((convert(p[0]), convert(p[1])) for p in pairs) if is_valid else ()
    if not is_valid or not all(holds(STATE.scope, 0, "<=", n) for pair in widths for n in pair):
        raise ArgumentError.of(
            "pad", "pad_width", pad_width, f"widths of 0 or more, a pair for each of {rank} axes"
        )
    return widths
