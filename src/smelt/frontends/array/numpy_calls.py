"""Reductions and scans with NumPy's arguments: positions, `out`, `where`, `initial`, `ddof`.

They are built from the functions of the array API standard, which have fewer arguments.  Methods of
arrays and the namespace `smelt.numpy` share them.

>>> from smelt.frontends.array.creation import asarray
>>> x = asarray([[1.0, 2.0], [3.0, 4.0]])
>>> sum(x, 0), max(x, 1, initial=3), mean(x, where=x > 1), std(x, ddof=1).shape
(Array([4., 6.]), Array([3., 4.]), Array(3.), ())
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, DTypeError
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import searching
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array, number_or_value, value
from smelt.frontends.array.complex_array import ComplexArray, complex_array, held, is_complex_like
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.creation import full
from smelt.frontends.array.dtypes import DTypeLike, as_dtype, astype
from smelt.frontends.array.elementwise import named
from smelt.frontends.array.manipulation import broadcast_to, reshape
from smelt.frontends.array.promote import cast, common, promote_with_number
from smelt.frontends.array.statistical import Axis
from smelt.frontends.array.value import Value
from smelt.frontends.array.views import axes_of
from smelt.types.dtype import bool_, f64

_KINDS = ("bool", "uint", "int", "float", "complex")
_LAST_INTEGER = 2


def array(x: Any, what: str = "smelt.numpy") -> Array:
    """Return an argument (an array, a number or nested lists) as an array."""
    if isinstance(x, Array):
        return x
    if is_complex_like(x):
        result = complex_array(x)
    else:
        result = Array.of(from_host(x) if isinstance(x, np.ndarray) else value(x, what))
    return held(result)  # its memory is written by the views that functions make


def is_default(option: Any) -> bool:
    """Return whether an option was not passed: None or NumPy's mark for no value."""
    return option is None or option is np._NoValue  # pyright: ignore[reportPrivateUsage]


def reduced_axis(x: Array, axis: Any) -> Any:
    """Return the axis of a reduction: that of a number is 0 or -1 for NumPy's functions."""
    return None if type(axis) is int and axis in (0, -1) and not x.ndim else axis


def store(result: Any, out: Any) -> Any:
    """Return a result, after writing it to `out` if that is passed.

    Then it is cast to the dtype of `out`, and `out` is returned.  Raises ArgumentError for another
    shape, DTypeError if floats would become integers.
    """
    if isinstance(out, tuple):
        (out,) = out
    if out is None:
        return result
    if not isinstance(out, Array):
        np.copyto(out, np.asarray(result), casting="same_kind")
        return out
    result = array(result, "out")
    if result.shape != out.shape:
        raise ArgumentError(
            op="out", argument="out", value=f"shape {out.shape}", expected=f"shape {result.shape}"
        )
    if _KINDS.index(result.dtype.kind) > builtins.max(_KINDS.index(out.dtype.kind), _LAST_INTEGER):
        raise DTypeError(f"out: {result.dtype} does not fit into {out.dtype}")
    if isinstance(out, ComplexArray):
        out.replace_parts(complex_array(result))
        return out
    out.replace_value(cast(result.node, out.dtype))
    return out


def clip(x: Array, low: Any, high: Any) -> Array:
    """Limit elements to a range, in the promoted dtype of the array and both bounds.

    Integers with a bound of 1.5 become floats, unlike those of the standard's `clip`.
    """
    if isinstance(x, ComplexArray):
        return el.clip(x, low, high)
    dtype = x.dtype
    for bound in (low, high):
        if bound is not None:
            limit = number_or_value(bound, "clip")
            if isinstance(limit, Value):
                dtype = common("clip", dtype, limit.type.dtype)
            elif not (dtype.is_integer and isinstance(limit, int)):
                dtype = promote_with_number(dtype, limit)
    return el.clip(Array.of(cast(x.node, dtype)), low, high)


def _selected(x: Array, where: Any, neutral: Any) -> Array:
    """Replace the elements that `where` excludes by a reduction's neutral element."""
    return x if where is True or is_default(where) else el.where(_mask(where), x, neutral)


def _mask(where: Any) -> Array:
    mask = array(where, "where")
    return mask if mask.dtype is bool_ else mask != 0


def _typed_reduction(name: str, reduce: Callable[..., Array], neutral: int, join: Any) -> Any:
    def function(
        a: Any,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = True,
    ) -> Any:
        x = _selected(array(a, name), where, neutral)
        axis = reduced_axis(x, axis)
        result = reduce(x, axis=axis, dtype=dtype, keepdims=flag(keepdims))
        return store(result if is_default(initial) else join(result, initial), out)

    return named(function, name, f"Return the {name} over `axis`; arguments as in NumPy.")


def flag(keepdims: Any) -> bool:
    """Return whether NumPy's `keepdims` is set; its default object counts as not set."""
    return False if is_default(keepdims) else bool(keepdims)


sum = _typed_reduction("sum", stat.sum, 0, el.add)
prod = _typed_reduction("prod", stat.prod, 1, el.multiply)


def _extreme(name: str, reduce: Callable[..., Array], join: Any) -> Any:
    def function(
        a: Any,
        axis: Axis = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = True,
    ) -> Any:
        x, has_initial = array(a, name), not is_default(initial)
        axis = reduced_axis(x, axis)
        if where is not True and not is_default(where):
            if not has_initial:
                raise ArgumentError.of(name, "initial", None, "a number beside `where`")
            x = el.where(_mask(where), x, initial)
        if has_initial and x.size == 0:
            shape = stat.sum(x, axis=axis, keepdims=flag(keepdims)).shape
            return store(full(shape, initial, x.dtype), out)
        result = reduce(x, axis=axis, keepdims=flag(keepdims))
        return store(join(result, initial) if has_initial else result, out)

    return named(function, name, f"Return the {name} over `axis`; arguments as in NumPy.")


max = _extreme("max", stat.max, el.maximum)
min = _extreme("min", stat.min, el.minimum)


def _truth(name: str, reduce: Callable[..., Array], neutral: bool) -> Any:
    def function(
        a: Any, axis: Axis = None, out: Any = None, keepdims: Any = False, *, where: Any = True
    ) -> Any:
        x = array(a, name)
        x = _selected(x if x.dtype is bool_ else x != 0, where, neutral)
        axis = reduced_axis(x, axis)
        return store(reduce(x, axis=axis, keepdims=flag(keepdims)), out)

    return named(function, name, f"Return whether {name} elements over `axis` are nonzero.")


all = _truth("all", stat.all, True)
any = _truth("any", stat.any, False)


def _floats(x: Array, dtype: DTypeLike) -> Array:
    if isinstance(x, ComplexArray):
        return x if dtype is None else astype(x, dtype, copy=False)
    target = as_dtype(dtype, x.dtype if x.dtype.is_float else f64)
    return x if x.dtype is target else astype(x, target)


def _count(x: Array, where: Any, axis: Axis) -> Array:
    mask = broadcast_to(_mask(where), x.shape)
    return stat.sum(astype(mask, x.dtype), axis=axis, keepdims=True)


def _squeezed(x: Array, axis: Axis, keepdims: Any) -> Array:
    """Remove reduced dimensions of size 1 unless `keepdims`."""
    if flag(keepdims):
        return x
    axes = axes_of(axis, x.ndim, "squeeze")
    return reshape(x, tuple(d for a, d in enumerate(x.shape) if a not in axes))


def mean(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike = None,
    out: Any = None,
    keepdims: Any = False,
    *,
    where: Any = True,
) -> Any:
    """Return the arithmetic mean over `axis`; arguments as in NumPy.

    Raises AxisError, DTypeError.
    """
    x = _floats(array(a, "mean"), dtype)
    if where is True or is_default(where):
        return store(stat.mean(x, axis=axis, keepdims=flag(keepdims)), out)
    total = stat.sum(_selected(x, where, 0), axis=axis, keepdims=True)
    return store(_squeezed(total / _count(x, where, axis), axis, keepdims), out)


def _spread(name: str, reduce: Callable[..., Array], doc: str) -> Any:
    def function(
        a: Any,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: Any = None,
        ddof: float = 0,
        keepdims: Any = False,
        *,
        where: Any = True,
        correction: Any = None,
        mean: Any = None,
    ) -> Any:
        x = _floats(array(a, name), dtype)
        ddof = ddof if is_default(correction) else correction
        if where is True or is_default(where):
            return store(reduce(x, axis=axis, correction=ddof, keepdims=flag(keepdims)), out)
        count = _count(x, where, axis)
        centre = stat.sum(_selected(x, where, 0), axis=axis, keepdims=True) / count
        distance = x - centre
        distance = el.abs(distance) if isinstance(x, ComplexArray) else distance
        squares = _selected(distance**2, where, 0)
        total = stat.sum(squares, axis=axis, keepdims=True)
        variance = _squeezed(total / el.maximum(count - ddof, 0.0), axis, keepdims)
        return store(variance if name == "var" else el.sqrt(variance), out)

    more = "`mean` is accepted and computed again.  Raises AxisError, DTypeError."
    return named(function, name, f"Return the {doc}; arguments as in NumPy.\n\n{more}")


var = _spread("var", stat.var, "variance over `axis` with divisor n - `ddof`")
std = _spread("std", stat.std, "standard deviation over `axis`, the square root of `var`")


def _position(name: str, find: Callable[..., Array]) -> Any:
    def function(a: Any, axis: int | None = None, out: Any = None, *, keepdims: Any = False) -> Any:
        x = array(a, name)
        return store(find(x, axis=reduced_axis(x, axis), keepdims=flag(keepdims)), out)

    return named(function, name, f"Return the positions of {name} along `axis`, None for all.")


argmax = _position("argmax", searching.argmax)
argmin = _position("argmin", searching.argmin)


def _scan(name: str, scan: Callable[..., Array]) -> Any:
    def function(a: Any, axis: int | None = None, dtype: DTypeLike = None, out: Any = None) -> Any:
        x = array(a, name)
        if axis is None:
            x, axis = reshape(x, (-1,)), 0
        if not x.ndim:
            x = reshape(x, (1,))
        return store(scan(x, axis=axis, dtype=dtype), out)

    return named(function, name, f"Return the {name} along `axis`; None flattens first.")


cumsum = _scan("cumsum", stat.cumulative_sum)
cumprod = _scan("cumprod", stat.cumulative_prod)


def ptp(a: Any, axis: Axis = None, out: Any = None, keepdims: Any = False) -> Any:
    """Return maximum minus minimum over `axis`.

    Raises AxisError, ShapeError for an empty axis.
    """
    x = array(a, "ptp")
    return store(max(x, axis, None, keepdims) - min(x, axis, None, keepdims), out)
