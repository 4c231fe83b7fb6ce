"""Reductions, order statistics and histograms of NumPy, written with functions of ours.

>>> nansum([1.0, np.nan, 2.0]), median([[1, 3], [2, 9]], axis=0)
(Array(3.), Array([1.5, 6. ]))
"""

from __future__ import annotations

from inspect import signature
from typing import Any, Final

import numpy as np

from smelt.frontends.array import elementwise as el
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import methods, numerical, numpy_statistics, segments
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array
from smelt.frontends.array.numpy_calls import array as _array
from smelt.numpy.arithmetic import refuse_bools
from smelt.numpy.binding import LibraryOnly, of_arrays

_STATISTICS: Final = """
    nansum nanprod nanmean nanvar nanstd nanmax nanmin nanargmax nanargmin nancumsum nancumprod
    median nanmedian quantile nanquantile percentile nanpercentile
"""
_ONLY_NUMPYS: Final = frozenset(("where", "initial", "correction", "mean"))


def _statistic(name: str) -> Any:
    """Return a function of `numpy_statistics` with NumPy's arguments."""
    reduce, theirs = getattr(numpy_statistics, name), signature(getattr(np, name))

    def function(*args: Any, **kwargs: Any) -> Any:
        passed = theirs.bind(*args, **kwargs).arguments
        options = {n: y for n, y in passed.items() if n == "q" or not calls.is_default(y)}
        x, out = _array(options.pop("a")), options.pop("out", None)
        if options.pop("method", "linear") != "linear" or "weights" in options:
            raise LibraryOnly("methods other than linear, or weights")
        if not _ONLY_NUMPYS.isdisjoint(options):
            raise LibraryOnly("arguments that only NumPy's function takes")
        options.pop("overwrite_input", None)
        if not name.endswith(("median", "quantile", "percentile")):  # a number has no axis there
            options["axis"] = calls.reduced_axis(x, options.get("axis"))
        if "q" in options and not isinstance(options["q"], (int, float)) and x.dtype.is_float:
            x = methods.convert(x, float)  # float64, as are the fractions
        fractions = [options.pop("q")] if "q" in options else []
        return calls.store(reduce(x, *fractions, **options), out)

    function.__signature__ = theirs  # type: ignore[attr-defined]
    return calls.named(function, name, reduce.__doc__)


for _name in _STATISTICS.split():
    globals()[_name] = _statistic(_name)


def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Return the number of nonzero elements."""
    x = _array(a)
    return stat.count_nonzero(x, axis=calls.reduced_axis(x, axis), keepdims=keepdims)


def average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False
) -> Any:
    """Return the weighted mean, and the sum of weights if asked."""
    x = _array(a)
    weighted = None if weights is None else _array(weights)
    if returned or calls.flag(keepdims):
        raise LibraryOnly("results beside the mean")
    return numerical.average(x, axis=axis, weights=weighted)


def _covariance(x: Any, others: tuple[Any, ...], dtype: Any, function: Any, **options: Any) -> Any:
    """Return a matrix over variables without dimensions of one variable, in float64 or wider."""
    if any(other is not None for other in others):
        raise LibraryOnly("weights, or a second set of variables")
    array = _array(x)
    wide = array if array.dtype.kind == "complex" else methods.convert(array, float, copy=False)
    result = methods.squeeze(function(wide, **options))
    return result if dtype is None else methods.convert(result, dtype)


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    """Return the covariance matrix of variables; of one variable, its variance."""
    divisor = (0 if bias else 1) if ddof is None else ddof
    others = (y, fweights, aweights)
    return _covariance(m, others, dtype, numerical.cov, rowvar=rowvar, ddof=divisor)


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """Return the matrix of correlation coefficients of variables; of one variable, 1."""
    return _covariance(x, (y,), dtype, numerical.corrcoef, rowvar=rowvar)


def _cumulative(name: str, start: str) -> Any:
    scan = getattr(stat, name)

    def function(
        x: Any,
        /,
        *,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        include_initial: bool = False,
    ) -> Any:
        array = _array(x)
        if not array.ndim:  # a vector of one element
            array, axis = methods.ravel(array), 0
        result = scan(array, axis=axis, dtype=dtype, include_initial=include_initial)
        return calls.store(result, out)

    return calls.named(function, name, f"Return prefix {start} if asked.")


cumulative_sum = _cumulative("cumulative_sum", "sums, after a zero")
cumulative_prod = _cumulative("cumulative_prod", "products, after a one")


def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    """Return the counts of elements in bins, and the bins' edges."""
    if isinstance(bins, str):
        raise LibraryOnly("a rule for bins")
    edges = bins if isinstance(bins, int) else _array(bins)
    weighted = None if weights is None else _array(weights)
    counts, edges = numerical.histogram(_array(a), edges, range, weighted, bool(density))
    return (methods.convert(counts, float, copy=False) if density else counts), edges


def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Array:
    """Return how often each integer occurs, or the sums of weights."""
    return segments.bincount(_array(x), None if weights is None else _array(weights), minlength)


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return central differences."""
    one_axis = axis is None or isinstance(axis, int)
    if edge_order != 1 or not one_axis or len(varargs) > 1 or any(map(_is_sequence, varargs)):
        raise LibraryOnly("distances for each dimension, or edges of second order")
    return numerical.gradient(_array(f), *varargs, axis=axis)


def _is_sequence(x: Any) -> bool:
    return getattr(x, "ndim", 0) > 0 or isinstance(x, (list, tuple, range))


def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    """Return the integral by the trapezoidal rule."""
    values, at = _array(y), None if x is None else _array(x)
    refuse_bools("sums", values, at)
    return numerical.trapezoid(values, at, dx=dx, axis=axis)


def tile(A: Any, reps: Any) -> Array:
    """Return the array repeated along dimensions."""
    counts = (int(reps),) if not hasattr(reps, "__len__") else tuple(int(r) for r in reps)
    return shapes.tile(_array(A), counts)


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Any = None,
) -> Array:
    """Return whether elements occur in another array."""
    matches = numerical.isin(_array(element), _array(test_elements))
    return el.logical_not(matches) if invert else matches


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Return a piecewise linear function's values."""
    if period is not None:
        raise LibraryOnly("a period")
    arrays = [methods.convert(_array(v), "float64") for v in (x, xp, fp)]
    return numerical.interp(*arrays, left=left, right=right)


isclose = of_arrays(numerical.isclose, 2)
nonzero, roll = of_arrays(methods.METHODS["nonzero"]), of_arrays(shapes.roll)


def allclose(
    a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Return whether all elements are equal within tolerances."""
    return bool(calls.all(isclose(a, b, rtol, atol, equal_nan)))


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """Return the elements converted to another dtype."""
    return methods.convert(_array(x), dtype, copy=copy)
