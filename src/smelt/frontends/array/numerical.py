"""Functions that NumPy has and the standard does not: what a script of numbers asks for next.

All are written in functions that are there, so they fuse, are differentiated and compile for every
size as code of one's own.  Names, arguments and meanings are NumPy's; results are arrays.

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
from smelt.frontends.array.convolution import conv
from smelt.frontends.array.dtypes import astype, finfo
from smelt.frontends.array.linalg import matmul
from smelt.frontends.array.manipulation import flip, moveaxis, reshape
from smelt.frontends.array.number import Number, as_dim
from smelt.frontends.array.promote import common
from smelt.frontends.array.searching import searchsorted, take
from smelt.frontends.array.segments import bincount
from smelt.frontends.array.sorting import sort
from smelt.frontends.array.subscript import holds
from smelt.frontends.array.value import STATE, Value
from smelt.frontends.array.views import axis_of, shape_of
from smelt.frontends.array.windows import margins
from smelt.types.dtype import bool_, f64, i64

__all__ = [
    "allclose",
    "average",
    "convolve",
    "corrcoef",
    "cov",
    "gradient",
    "histogram",
    "interp",
    "isclose",
    "isin",
    "nan_to_num",
    "pad",
    "trapezoid",
]

Axis = int | Sequence[int] | None


def array_of(x: Any, what: str) -> Array:
    """What an argument stands for, as an array."""
    if isinstance(x, (list, tuple)):
        return make.asarray(x)
    found = number_or_value(x, what)
    if isinstance(found, Value):
        return Array.of(found)
    return make.asarray(x if isinstance(found, Number) else found)


def floats_of(x: Any, what: str) -> Array:
    """An array of floats; integers become float64."""
    array = array_of(x, what)
    return array if array.dtype.is_float else astype(array, f64)


# Comparisons and NaN


def isclose(
    a: Any, b: Any, /, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Array:
    """Whether |a - b| <= atol + rtol·|b|, element by element; equal infinities are close.

    With `equal_nan` a NaN is close to a NaN.  Raises ShapeError.
    """
    x, y = array_of(a, "isclose"), floats_of(b, "isclose")
    near = el.abs(x - y) <= atol + rtol * el.abs(y)
    found = el.logical_or(el.logical_and(near, el.isfinite(y)), el.equal(x, y))
    if equal_nan:
        found = el.logical_or(found, el.logical_and(el.not_equal(x, x), el.isnan(y)))
    return found


def allclose(
    a: Any, b: Any, /, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Array:
    """Whether all elements are close (`isclose`), a bool array of rank 0.  Raises ShapeError."""
    return stat.all(isclose(a, b, rtol, atol, equal_nan))


def isin(x: Any, test: Any, /, *, invert: bool = False) -> Array:
    """Whether each element of `x` is one of those of `test`, an array of any shape; bool.

    NaN is no element of anything.  With `invert`, whether it is not.  Raises DTypeError.
    """
    array, kept = array_of(x, "isin"), reshape(array_of(test, "isin"), (-1,))
    dtype = common("isin", array.dtype, kept.dtype)
    array, line = astype(array, dtype), sort(astype(kept, dtype))
    if shape_of(line.node)[0] == 0:
        found = make.zeros(array.shape, dtype=bool_)
    else:
        at = el.clip(searchsorted(line, array), 0, line.shape[0] - 1)
        found = el.equal(take(line, reshape(at, (-1,))), reshape(array, (-1,)))
        found = reshape(found, array.shape)
    return el.logical_not(found) if invert else found


def nan_to_num(x: Any, /, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Floats with numbers in the place of NaN and of infinities, which are by default the greatest
    and the least of the dtype."""
    array = array_of(x, "nan_to_num")
    if not array.dtype.is_float:
        return array
    most = finfo(array.dtype).max
    from_top = most if posinf is None else posinf
    from_bottom = -most if neginf is None else neginf
    found = el.where(el.equal(array, math.inf), from_top, array)
    found = el.where(el.equal(array, -math.inf), from_bottom, found)
    return el.where(el.isnan(array), nan, found)


# Statistics


def average(x: Any, /, axis: int | None = None, weights: Any = None) -> Array:
    """The mean, or the weighted mean: the sum of x·weights over that of the weights.

    Args:
        x: the elements; integers give float64.
        axis: along which; None takes all elements.
        weights: an array of the shape of `x`, or a vector along `axis`.

    Raises AxisError, ShapeError.
    """
    array = floats_of(x, "average")
    if weights is None:
        return stat.mean(array, axis=axis)
    w = floats_of(weights, "average")
    if w.ndim == 1 and array.ndim > 1:
        if axis is None:
            raise ArgumentError("average: weights along one axis need its name, axis=")
        w = reshape(w, (-1, *[1] * (array.ndim - 1 - axis_of(axis, array.ndim, "average"))))
    w = w + make.zeros_like(array)
    return stat.sum(array * w, axis=axis) / stat.sum(w, axis=axis)


def cov(x: Any, /, *, rowvar: bool = True, ddof: int = 1) -> Array:
    """The covariance matrix of variables in rows (in columns without `rowvar`), over n - ddof.

    Raises ShapeError for other ranks than 1 and 2.
    """
    array = floats_of(x, "cov")
    if array.ndim > 2:
        raise ShapeError(op="cov", operands=array.node.told, reason="it is no matrix")
    lines = reshape(array, (1, -1)) if array.ndim < 2 else array if rowvar else array.T
    centred = lines - stat.mean(lines, axis=1, keepdims=True)
    found = matmul(centred, centred.T) / max(lines.shape[1] - ddof, 0)
    return reshape(found, ()) if array.ndim < 2 else found


def corrcoef(x: Any, /, *, rowvar: bool = True) -> Array:
    """Correlation coefficients of variables in rows (in columns without `rowvar`)."""
    c = cov(x, rowvar=rowvar)
    if c.ndim == 0:
        return c / c
    own = make.eye(c.shape[0], dtype=bool_)  # a variable that is not finite is no other's affair
    spread = el.sqrt(stat.sum(el.where(own, c, 0), axis=1))
    return el.clip(c / spread[:, None] / spread[None, :], -1.0, 1.0)


def histogram(
    x: Any,
    /,
    bins: Any = 10,
    range: tuple[Any, Any] | None = None,
    weights: Any = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """How many elements lie in each bin, and the edges of the bins.

    Args:
        x: the elements, of any shape; those outside of all bins, and NaN, are not counted.
        bins: a number of bins of equal width, or a vector of increasing edges.  The last bin has
            its upper edge as well.
        range: the first and the last edge, by default the least and the greatest element.
        weights: what each element counts for, an array of the shape of `x`.
        density: divide by the sum and by the width, so that the integral is 1.

    Counts are int64, weights keep their dtype.  Raises ArgumentError for no bins, ShapeError.
    """
    array = reshape(array_of(x, "histogram"), (-1,))
    edges, place = _edges(array, bins, range)
    n = edges.shape[0] - 1
    inside = el.logical_and(array >= edges[0], array <= edges[n])
    slot = el.where(inside, el.clip(place, 0, n - 1), n)
    w = None if weights is None else reshape(array_of(weights, "histogram"), (-1,))
    found = bincount(slot, w, length=n + 1)[:n]
    if density:
        found = found / stat.diff(edges) / stat.sum(found)
    return found, edges


def _edges(x: Array, bins: Any, span: tuple[Any, Any] | None) -> tuple[Array, Array]:
    """The edges of a histogram, and the bin of each element."""
    if isinstance(bins, (Number, np.integer)):
        bins = int(bins)
    if not isinstance(bins, int):
        edges = array_of(make.asarray(bins), "histogram")
        if edges.ndim != 1:
            raise ShapeError(op="histogram", operands=edges.node.told, reason="edges are a vector")
        at = searchsorted(edges, x, side="right") - 1
        return edges, el.where(el.equal(x, edges[edges.shape[0] - 1]), edges.shape[0] - 2, at)
    if bins < 1:
        raise ArgumentError(op="histogram", argument="bins", value=bins, expected="1 or more")
    wide = x if x.dtype.is_float else astype(x, f64)
    if span is not None:
        low, high = (make.asarray(e, dtype=wide.dtype) for e in span)
    elif shape_of(x.node)[0] == 0:
        low, high = (make.asarray(e, dtype=wide.dtype) for e in (0.0, 1.0))
    else:
        low, high = stat.min(wide), stat.max(wide)
    flat = el.equal(low, high)
    low, high = el.where(flat, low - 0.5, low), el.where(flat, high + 0.5, high)
    steps = astype(make.arange(bins + 1), f64)
    first, last = astype(low, f64), astype(high, f64)
    edges = el.where(el.equal(steps, bins), last, steps * ((last - first) / bins) + first)
    edges = astype(edges, wide.dtype)
    share = (wide - low) / (high - low) * bins
    there = el.logical_and(wide >= low, wide <= high)
    at = astype(el.where(there, el.clip(share, 0, bins - 1), 0.0), i64)
    at = at - astype(wide < edges[at], i64)  # what rounding put beside its bin
    at = el.clip(at, 0, bins - 1)
    return edges, at + astype(el.logical_and(wide >= edges[at + 1], at < bins - 1), i64)


# Series


def interp(x: Any, xp: Any, fp: Any, /, left: Any = None, right: Any = None) -> Array:
    """The line through the points (xp, fp), at x.

    Args:
        x: where to look, of any shape.
        xp: a vector, increasing.
        fp: as many values, floats or integers.
        left, right: what stands before the first and after the last point: by default its value.

    Gives floats: the promoted dtype, float64 for integers.  Raises ShapeError.
    """
    at, line, height = (floats_of(v, "interp") for v in (x, xp, fp))
    if line.ndim != 1 or height.ndim != 1:
        told = f"{line.node.told}, {height.node.told}"
        raise ShapeError(op="interp", operands=told, reason="points are two vectors")
    dtype = common("interp", at.dtype, line.dtype, height.dtype)
    at, line, height = (astype(v, dtype) for v in (at, line, height))
    height = height + make.zeros_like(line)  # which checks that there are as many
    n = line.shape[0]
    before = height[0] if left is None else left
    after = height[n - 1] if right is None else right
    found = height[0] + make.zeros_like(at)
    if shape_of(line.node)[0] != 1:
        k = el.clip(searchsorted(line, at, side="right") - 1, 0, n - 2)
        rise = (height[k + 1] - height[k]) / (line[k + 1] - line[k])
        found = el.where(el.equal(at, line[k]), height[k], rise * (at - line[k]) + height[k])
    found = el.where(el.equal(at, line[n - 1]), height[n - 1], found)
    found = el.where(at < line[0], before, el.where(at > line[n - 1], after, found))
    return el.where(el.isnan(at), at, found)


def trapezoid(y: Any, /, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """The integral by the trapezoidal rule along `axis`, at places `x` or in steps of `dx`.

    Raises AxisError, ShapeError.
    """
    array = moveaxis(floats_of(y, "trapezoid"), axis, -1)
    step: Any = dx
    if x is not None:
        place = floats_of(x, "trapezoid")
        step = stat.diff(place if place.ndim == 1 else moveaxis(place, axis, -1))
    return stat.sum(step * (array[..., 1:] + array[..., :-1]) / 2.0, axis=-1)


def gradient(f: Any, dx: Any = 1.0, /, *, axis: int | None = None) -> Any:
    """Differences of neighbours over 2·dx, at the ends over dx.

    Along one axis, or a tuple with those along all of them where `axis` is None and there are
    several.  Raises AxisError, ShapeError for an axis of fewer than two elements.
    """
    array = floats_of(f, "gradient")
    if axis is None and array.ndim != 1:
        return tuple(gradient(array, dx, axis=k) for k in range(array.ndim))
    y = moveaxis(array, 0 if axis is None else axis, 0)
    n = shape_of(y.node)[0]
    if isinstance(n, int) and n < 2:
        raise ShapeError(op="gradient", operands=array.node.told, reason="two elements are needed")
    around = margins("gradient", moveaxis(y, 0, -1).node, ((1, 1),), 0, "replicate")
    wide = moveaxis(Array.of(around), -1, 0)
    place = reshape(make.arange(y.shape[0]), (-1, *[1] * (y.ndim - 1)))
    end = el.logical_or(el.equal(place, 0), el.equal(place, y.shape[0] - 1))
    found = (wide[2:] - wide[:-2]) / el.where(end, 1.0 * dx, 2.0 * dx)
    return moveaxis(astype(found, array.dtype), 0, 0 if axis is None else axis)


def convolve(a: Any, v: Any, /, mode: str = "full") -> Array:
    """The sums Σ a[k]·v[n - k] of two vectors.

    Args:
        a, v: vectors with elements.  The shorter one is a window: its length is part of what is
            compiled.
        mode: "full" gives all sums, "same" as many as the longer vector has elements, from the
            middle, "valid" those in which the vectors overlap completely.

    Raises ArgumentError for another mode, ShapeError.
    """
    x, w = array_of(a, "convolve"), array_of(v, "convolve")
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(
            op="convolve", argument="mode", value=repr(mode), expected="'full', 'same' or 'valid'"
        )
    for vector in (x, w):
        if vector.ndim != 1 or shape_of(vector.node)[0] == 0:
            raise ShapeError(op="convolve", operands=vector.node.told, reason="no vector, or empty")
    if x.shape[0] < w.shape[0]:
        x, w = w, x
    m = int(w.shape[0])
    around = {"full": (m - 1, m - 1), "same": (m // 2, (m - 1) // 2), "valid": (0, 0)}[mode]
    padded = margins("convolve", x.node, (around,), 0, "zeros")
    found = conv(Array.of(padded)[None, None, :], flip(w)[None, None, :])
    return found[0, 0, :]


_MODES = {
    "constant": "zeros",
    "edge": "replicate",
    "reflect": "reflect",
    "wrap": "circular",
    "symmetric": "symmetric",
}


def pad(x: Any, pad_width: Any, /, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """An array with margins.

    Args:
        x: the array.
        pad_width: the width of all margins, a pair (before, after) for all axes, or a pair for each
            axis.
        mode: what stands there: "constant", the nearest element ("edge"), or the array once more,
            mirrored at its ends ("reflect"; "symmetric": these included) or from its other end
            ("wrap").
        constant_values: the number of "constant".

    Raises ArgumentError, and ShapeError for margins that the array is too short to fill.
    """
    array = array_of(x, "pad")
    if mode not in _MODES:
        known = ", ".join(_MODES)
        raise ArgumentError(op="pad", argument="mode", value=repr(mode), expected=f"one of {known}")
    around = _widths(pad_width, array.ndim, fixed=mode != "constant")
    if not around:
        return array
    fill = make.full((), constant_values, dtype=array.dtype).node
    number = getattr(fill.op, "value", None)
    if mode == "constant" and number is None:
        raise ArgumentError(
            op="pad", argument="constant_values", value=constant_values, expected="a number"
        )
    number = 0 if number is None else number
    return Array.of(margins("pad", array.node, around, number, _MODES[mode]))


def _widths(given: Any, rank: int, *, fixed: bool) -> tuple[tuple[Any, Any], ...]:
    """A pair of widths for each axis, numbers if they are `fixed`.  Raises ArgumentError."""
    one = (int, Number, np.integer)
    rows: Any = [given] if isinstance(given, one) or not np.iterable(given) else list(given)
    if len(rows) == 2 and all(isinstance(n, one) for n in rows):
        rows = [rows]
    pairs: list[tuple[Any, ...]] = [tuple(n) if np.iterable(n) else (n,) for n in rows]
    pairs = [p * 2 if len(p) == 1 else p for p in pairs]
    if len(pairs) == 1:
        pairs *= rank
    sound = len(pairs) == rank and all(len(p) == 2 and isinstance(n, one) for p in pairs for n in p)
    wanted = int if fixed else as_dim
    found = tuple((wanted(p[0]), wanted(p[1])) for p in pairs) if sound else ()
    if not sound or not all(holds(STATE.scope, 0, "<=", n) for pair in found for n in pair):
        raise ArgumentError(
            op="pad",
            argument="pad_width",
            value=repr(given),
            expected=f"widths of 0 or more, a pair for each of {rank} axes",
        )
    return found
