"""Functions of complex arrays: by rules of pairs, by parts, or by a library call.

Elementwise functions follow `ops.complex_pairs`.  A real operand is not extended by an imaginary
part, so that the product with a real infinity has no NaN.  What moves or adds elements does so
with both parts; products of matrices are products of parts.  NumPy computes inverse circular
functions, general powers, matrix decompositions and products over an axis: those are library calls.

>>> z = complex_array([[3 + 4j, -1.0], [0.0, 1 - 1j]])
>>> COMPLEX["abs"](z[0]), COMPLEX["sqrt"](z[0]), multiply(z[0], z[0])
(Array([5., 1.]), Array([2.+1.j, 0.+1.j]), Array([-7.+24.j,  1. -0.j]))
>>> COMPLEX["sum"](z, axis=0), COMPLEX["matmul"](z, z)[1]
(Array([3.+4.j, 0.-1.j]), Array([0.+0.j, 0.-2.j]))
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import Any, Final

import numpy as np

from smelt.errors import ArgumentError, AxisError, DTypeError
from smelt.frontends.array import creation as make
from smelt.frontends.array import dtypes, linalg, searching, sorting
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array, check_device, value
from smelt.frontends.array.complex_array import (
    PART_OF,
    ComplexArray,
    complex_array,
    from_memory,
    is_complex_like,
    pair,
)
from smelt.frontends.array.convert import as_buffer, is_foreign_array
from smelt.frontends.array.dtypes import DTypeLike, lookup_dtype
from smelt.frontends.array.einsum import einsum as real_einsum
from smelt.frontends.array.library import call_stacked
from smelt.frontends.array.number import Number
from smelt.frontends.array.promote import cast, has_numpys_rules, number
from smelt.frontends.array.views import axes_of, axis_of
from smelt.ops import complex_pairs
from smelt.python.origin import user_frame
from smelt.types.dtype import DType, bool_, f32, f64, from_numpy

# Elementwise

Part = Any
"""Real array or number."""
_REALS: Final = complex_pairs.namespace(el, make, dtypes)


def _parts(x: Any) -> tuple[Part, Part]:
    """Return both parts of an operand, None as the imaginary one if it is real."""
    if isinstance(x, complex) and not _has_dtype(x):
        return x.real, x.imag
    return complex_array(x).parts if is_complex_like(x) else (_real(x), None)


def _has_dtype(x: Any) -> bool:
    """Return whether a number has NumPy's dtype by the rules of the user's module."""
    return isinstance(x, np.generic) and has_numpys_rules()


def _real(x: Any) -> Part:
    if isinstance(x, (int, float)) and not _has_dtype(x):
        return float(x)
    if isinstance(x, Number):
        return x
    node = value(x, "complex")
    if node.type.dtype.is_float and node.type.dtype.bits < f32.bits:
        return Array.of(cast(node, f32))  # the result has float32 parts
    return x if isinstance(x, Array) else Array.of(node)


def _rule(name: str) -> Callable[[Any], Any]:
    rule = complex_pairs.FUNCTIONS[name]

    def function(x: Any) -> Array:
        result = rule(_REALS, complex_array(x).parts)
        return pair(*result) if isinstance(result, tuple) else result

    return function


def _linear_rule(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], ComplexArray]:
    return lambda x, y: pair(*rule(_parts(x), _parts(y)))


conj, multiply, add = (
    _rule("conj"),
    _linear_rule(complex_pairs.multiply),
    _linear_rule(complex_pairs.add),
)


def divide(x: Any, y: Any) -> ComplexArray:
    """Return x / y, without overflow of intermediate results."""
    (a, b), (c, d) = _parts(x), _parts(y)
    if d is not None and not isinstance(c, Array):
        dtype = a.dtype if a.dtype.is_float else f64
        c, d = (Array.of(number(p, dtype, "divide")) for p in (c, d))
    return pair(*complex_pairs.divide(_REALS, (a, b), (c, d)))


def positive(x: Any) -> ComplexArray:
    """Return x itself."""
    return complex_array(x)


def _part(k: int) -> Callable[[Any], Array]:
    return lambda x: complex_array(x).parts[k].__copy__()


def round_(x: Any, decimals: int = 0) -> ComplexArray:
    """Round both parts, halves to even."""
    return pair(*(el.round(part, decimals) for part in complex_array(x).parts))


def equal(x: Any, y: Any) -> Array:
    """Return whether both parts are equal."""
    (a, b), (c, d) = _parts(x), _parts(y)
    return el.equal(a, c) & el.equal(0.0 if b is None else b, 0.0 if d is None else d)


def not_equal(x: Any, y: Any) -> Array:
    """Return whether either part differs."""
    return ~equal(x, y)


def where(condition: Any, x1: Any, x2: Any) -> ComplexArray:
    """Select both parts of `x1` where the condition is true, of `x2` elsewhere.

    Raises DTypeError for a complex condition.
    """
    if is_complex_like(condition):
        mask = complex_array(condition).type_text
        raise DTypeError(f"where: the condition is {mask}, not bool", hint="Compare it: x != 0.")
    (a, b), (c, d) = _parts(x1), _parts(x2)
    re = el.where(condition, a, c)
    im = el.where(condition, 0.0 if b is None else b, 0.0 if d is None else d)
    if not isinstance(b, Array) and not isinstance(d, Array) and re.dtype.is_float:
        im = Array.of(cast(im.node, re.dtype))  # two numbers, which have no dtype of their own
    return pair(re, im)


def power(x: Any, y: Any) -> ComplexArray:
    """Return x to the power y; small whole exponents are products, 0.5 is a root."""
    result = complex_pairs.power(_REALS, complex_array(x).parts, y)
    if result is not None:
        return pair(*result)
    dtype = add(x, y).dtype
    parts = [p for z in (x, y) for p in astype(complex_array(z), dtype).parts]
    return call_stacked("complex_power", *shapes.broadcast_arrays(*parts))


_LIBRARY: Final = ("asin", "acos", "atan", "asinh", "acosh", "atanh")
"""Functions that NumPy computes."""


def _library(name: str) -> Callable[[Any], ComplexArray]:
    options = {"function": f"arc{name[1:]}"}
    return lambda x: call_stacked("complex_unary", *complex_array(x).parts, **options)


# Dtypes


def _part_dtype(dtype: DTypeLike) -> DType | None:
    """Return the dtype of the parts of a complex dtype; None for any other."""
    return PART_OF.get(lookup_dtype(dtype))


# Conversion


def astype(x: Any, dtype: DTypeLike, *, copy: bool = True, device: Any = None) -> Array:
    """Convert to a complex dtype; complex numbers only become bools beside.

    Raises DTypeError for other dtypes: imaginary parts would be lost.
    """
    check_device(device)
    target = lookup_dtype(dtype)
    if is_complex_like(x):
        z = complex_array(x)
        if target is bool_:
            return not_equal(z, 0.0)
        part = PART_OF.get(target)
        if part is None:
            raise DTypeError(
                f"astype({z.type_text}, {target.long}): imaginary parts would be lost",
                hint="Convert x.real or abs(x).",
            )
        if target is z.dtype:
            return z.__copy__() if copy else z
        return pair(*(Array.of(cast(p.node, part)) for p in z.parts))
    real = Array.of(cast(value(x, "astype"), PART_OF[target]))
    return pair(real, 0.0)


def as_real(x: Any, dtype: DType) -> Array:
    """Convert to a real dtype by NumPy's rules: a warning says that imaginary parts are lost."""
    if dtype is bool_:
        return astype(x, dtype)
    frame = user_frame()
    assert frame is not None, "without a user's frame no module has NumPy's rules"
    warnings.warn_explicit(
        "Casting complex values to real discards the imaginary part",
        np.exceptions.ComplexWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
    return Array.of(cast(complex_array(x).parts[0].node, dtype))


def asarray(
    obj: Any, *, dtype: DTypeLike = None, device: Any = None, copy: bool | None = None
) -> Array:
    """Convert to a complex array; arguments and errors as in `sm.asarray`."""
    check_device(device)
    if isinstance(obj, memoryview):
        obj = np.asarray(obj)
    if isinstance(obj, ComplexArray):
        z = obj
        if copy:
            z = obj.__copy__()
    elif is_foreign_array(obj) and not isinstance(obj, Array) and is_complex_like(obj):
        data = as_buffer(obj)
        z = from_memory(data, bool(copy))
    elif copy is False:
        raise ArgumentError("asarray: complex numbers become an array only by a copy")
    elif is_complex_like(obj):
        z = complex_array(obj)
    else:
        return astype(make.asarray(obj), dtype)
    if dtype is None or lookup_dtype(dtype) is z.dtype:
        return z
    if copy is False:
        raise ArgumentError(f"asarray: {z.dtype} becomes {lookup_dtype(dtype)} only by a copy")
    return astype(z, dtype)


def from_dlpack(x: Any, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return a complex array that reads another library's memory."""
    return asarray(x, copy=copy)


# Creation


def full(shape: Any, fill_value: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array with the same complex number everywhere."""
    re, im = complex_array(fill_value).parts if is_complex_like(fill_value) else (fill_value, 0.0)
    if dtype is None:
        return pair(*(make.full(shape, p, device=device) for p in (re, im)))
    part = _part_dtype(dtype)
    if part is None:
        raise DTypeError(f"full: {fill_value!r} is not {lookup_dtype(dtype).long}")
    return pair(*(make.full(shape, p, dtype=part, device=device) for p in (re, im)))


def full_like(x: Any, fill_value: Any, dtype: DTypeLike = None, *, device: Any = None) -> Array:
    """Return an array of the shape of `x` with the same complex number everywhere."""
    like = complex_array(x) if is_complex_like(x) else make.asarray(x)
    return make.full(like.shape, fill_value, dtype=dtype or like.dtype, device=device)


def eye(
    n_rows: Any, n_cols: Any = None, k: int = 0, dtype: DTypeLike = None, *, device: Any = None
) -> Array:
    """Return a complex matrix with ones on the `k`-th diagonal."""
    return pair(make.eye(n_rows, n_cols, k=k, dtype=_part_dtype(dtype), device=device), 0.0)


def arange(start: Any, *args: Any, dtype: DTypeLike = None, **options: Any) -> Array:
    """Return equally spaced real numbers as complex ones.

    Raises DTypeError for complex bounds, which are in no order.
    """
    if any(map(is_complex_like, (start, *args, *options.values()))):
        raise DTypeError("arange: complex numbers have no order")
    return pair(make.arange(start, *args, dtype=_part_dtype(dtype), **options), 0.0)


def linspace(start: Any, stop: Any, num: Any, *, dtype: DTypeLike = None, **options: Any) -> Array:
    """Return numbers on the line between two complex numbers."""
    ends = complex(start), complex(stop)
    part = None if dtype is None else _part_dtype(dtype)
    if dtype is not None and part is None:
        raise DTypeError(f"linspace: complex numbers are not {lookup_dtype(dtype).long}")
    re, im = (
        make.linspace(a, b, num, dtype=part, **options)
        for a, b in zip(*((z.real, z.imag) for z in ends), strict=True)
    )
    return pair(re, im)


# Shapes


def _side(x: Any, k: int) -> Any:
    """Return one part of an array, or of each array of a list."""
    if isinstance(x, (list, tuple)):
        return [complex_array(item).parts[k] for item in x]
    return None if x is None else complex_array(x).parts[k]


def _joined(real: Any, imag: Any) -> Any:
    if isinstance(real, (list, tuple)):
        return type(real)(map(pair, real, imag))
    return pair(real, imag)


def _linear(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function that moves or adds elements to both parts."""
    function = unwrap(function)  # a complex operand beside them is refused, not taken apart again

    def on_parts(x: Any, *args: Any, **options: Any) -> Any:
        x = _alike(x)

        def side(k: int) -> Any:
            more = {n: _side(options[n], k) for n in ("prepend", "append") if n in options}
            return function(_side(x, k), *args, **options | more)

        return _joined(side(0), side(1))

    return on_parts


def _alike(x: Any) -> Any:
    """Return a list of arrays with integers as the floats of the common complex dtype.

    By NumPy's rules: `complex64` with `int8` is `complex64`.
    """
    if x.__class__ not in (list, tuple) or not all(isinstance(v, Array) for v in x):
        return x
    if not any(v.dtype.is_integer for v in x) or not has_numpys_rules():
        return x
    part = PART_OF[from_numpy(np.result_type(*[v.dtype.numpy for v in x]))]
    return [Array.of(cast(v.node, part)) if v.dtype.is_integer else v for v in x]


def _sum(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the sum of complex numbers, in a requested dtype, from one of real numbers."""
    of_parts = _linear(function)

    def total(x: Any, axis: Any = None, dtype: DTypeLike = None, **options: Any) -> Any:
        return of_parts(_converted(x, dtype), axis, **options)

    return total


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of several arrays that applies another to each kind of them."""

    def on_arrays(*arrays: Any, **options: Any) -> Any:
        pairs = [complex_array(x) if is_complex_like(x) else None for x in arrays]
        real = function(*(x if z is None else z.parts[0] for x, z in zip(arrays, pairs)), **options)
        imag = function(*(x if z is None else z.parts[1] for x, z in zip(arrays, pairs)), **options)
        return [r if z is None else pair(r, i) for r, i, z in zip(real, imag, pairs, strict=True)]

    return on_arrays


# Reductions


def _converted(x: Any, dtype: DTypeLike) -> ComplexArray:
    """Return the operand of a sum in the requested dtype."""
    if dtype is None:
        return complex_array(x)
    result = astype(x, dtype)
    if not isinstance(result, ComplexArray):
        raise DTypeError(f"a sum of complex numbers is not {lookup_dtype(dtype).long}")
    return result


def prod(x: Any, axis: Any = None, dtype: DTypeLike = None, *, keepdims: bool = False) -> Array:
    """Return the product over `axis`, by a library call."""
    z = _converted(x, dtype)
    axes = axes_of(axis, z.ndim, "prod")
    return call_stacked("complex_prod", *z.parts, axis=axes, keepdims=bool(keepdims))


def var(x: Any, axis: Any = None, **options: Any) -> Array:
    """Return the variance, that of the real parts and that of the imaginary parts."""
    re, im = complex_array(x).parts
    return stat.var(re, axis=axis, **options) + stat.var(im, axis=axis, **options)


def std(x: Any, axis: Any = None, **options: Any) -> Array:
    """Return the square root of the variance."""
    return el.sqrt(var(x, axis, **options))


def _of_truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that applies another to a mask of nonzero elements."""

    def on_truth(x: Any, *args: Any, **options: Any) -> Any:
        return function(not_equal(x, 0.0), *args, **options)

    return on_truth


def cumulative_prod(
    x: Any, axis: int | None = None, dtype: DTypeLike = None, *, include_initial: bool = False
) -> Array:
    """Return prefix products along `axis`, by a library call."""
    z = _converted(x, dtype)
    if axis is None and z.ndim != 1:
        raise AxisError(f"cumulative_prod: an axis must be named for {z.ndim} dimensions")
    dim = axis_of(0 if axis is None else axis, z.ndim, "cumulative_prod")
    result = call_stacked("complex_cumprod", *z.parts, axis=dim)
    if not include_initial:
        return result
    shape = tuple(1 if a == dim else d for a, d in enumerate(z.shape))
    return shapes.concat([make.ones(shape, dtype=z.dtype), result], axis=dim)


# Products


def _bilinear(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product of complex arrays from that of real ones."""

    def product(x: Any, y: Any, **options: Any) -> Any:
        times = partial(function, **options)
        return pair(*complex_pairs.multiply(_sides(x), _sides(y), times))

    return product


def _sides(x: Any) -> tuple[Any, Any]:
    return complex_array(x).parts if is_complex_like(x) else (x, None)


def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    """Return the dot products of vectors, the first one conjugated."""
    return _bilinear(linalg.vecdot)(conj(x) if is_complex_like(x) else x, y, axis=axis)


def einsum(subscripts: str, *operands: Any, optimize: Any = True) -> Any:
    """Evaluate a sum of products by a real sum for each choice of parts."""
    sides = [_sides(x) for x in operands]
    totals: list[Any] = [None, None]
    for choice in range(2 ** len(sides)):
        bits = [choice >> k & 1 for k in range(len(sides))]
        chosen = [side[bit] for side, bit in zip(sides, bits, strict=True)]
        if any(part is None for part in chosen):
            continue
        term = real_einsum(subscripts, *chosen)
        term = -term if sum(bits) % 4 > 1 else term
        kind = sum(bits) % 2
        totals[kind] = term if totals[kind] is None else totals[kind] + term
    return pair(*totals)


# Functions of elements that are known


def _unique(ours: type, *more: str) -> Callable[[Any], Any]:
    """Return a function of NumPy's unique elements."""

    def function(x: Any) -> Any:
        data = complex_array(x).elements("unique elements, whose number depends on values,")
        values, *rest = sorting.unique(data, *more)
        values = from_memory(values, private=True)
        return ours(values, *rest) if more else values

    return function


_LINEAR: Final = {
    shapes: """
        broadcast_to concat expand_dims flip moveaxis permute_dims matrix_transpose repeat reshape
        roll squeeze stack tile unstack
    """,
    searching: "take take_along_axis",
    make: "tril triu",
    linalg: "diagonal",
    stat: "diff mean",
}
"""Functions that move or add elements, of one array or a list."""
_TRUTH: Final = (stat.all, stat.any, stat.count_nonzero, searching.nonzero)
"""Functions of a mask of nonzero elements."""
_BILINEAR: Final = (linalg.matmul, linalg.tensordot, linalg.cross, linalg.outer)


_OWN: Final = (
    divide, positive, equal, not_equal, where, astype, as_real, asarray, from_dlpack, full,
    full_like, eye, arange, linspace, prod, var, std, cumulative_prod, vecdot, einsum,
)  # fmt: skip
COMPLEX: Final[dict[str, Callable[..., Any]]] = {
    **{name: _rule(name) for name in complex_pairs.FUNCTIONS},
    **{function.__name__: function for function in _OWN},
    **{name: _library(name) for name in _LIBRARY},
    "add": add,
    "subtract": _linear_rule(complex_pairs.subtract),
    "multiply": multiply,
    "real": _part(0),
    "imag": _part(1),
    "round": round_,
    "pow": power,
    "broadcast_real": shapes.broadcast_arrays,
    "broadcast_arrays": _each(shapes.broadcast_arrays),
    "meshgrid": _each(make.meshgrid),
    "sum": _sum(stat.sum),
    "cumulative_sum": _sum(stat.cumulative_sum),
    "unique_all": _unique(sorting.UniqueAll, "index", "inverse", "counts"),
    "unique_counts": _unique(sorting.UniqueCounts, "counts"),
    "unique_inverse": _unique(sorting.UniqueInverse, "inverse"),
    "unique_values": _unique(tuple),
    **{n: _linear(getattr(m, n)) for m, names in _LINEAR.items() for n in names.split()},
    **{function.__name__: _of_truth(function) for function in _TRUTH},
    **{function.__name__: _bilinear(function) for function in _BILINEAR},
}
"""Function -> the one for complex operands, with the same parameters."""
