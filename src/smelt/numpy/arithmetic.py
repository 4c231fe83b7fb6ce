"""Functions of NumPy on elements, and products, written with functions of ours.

>>> x = calls.array([-8.0, 27.0], "doc")
>>> cbrt(x), heaviside(x, 0.5), fmod(x, 5), outer([1, 2], [3, 4])
(Array([-2.,  3.]), Array([0., 1.]), Array([-3.,  2.]), Array([[3, 4],
       [6, 8]]))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smelt.errors import DTypeError
from smelt.frontends.array import creation as make
from smelt.frontends.array import elementwise as el
from smelt.frontends.array import linalg as products
from smelt.frontends.array import manipulation as shapes
from smelt.frontends.array import methods, numerical
from smelt.frontends.array import numpy_calls as calls
from smelt.frontends.array import statistical as stat
from smelt.frontends.array.array import Array
from smelt.frontends.array.complex_array import ComplexArray, is_complex_like
from smelt.frontends.array.numpy_calls import array as _array
from smelt.frontends.array.promote import promote_with_number
from smelt.numpy.binding import LibraryOnly, of_arrays
from smelt.types.dtype import bool_


def _floats(x: Any) -> Array:
    """Return an argument as floats; integers and bool become float64."""
    array = _array(x)
    return array if array.dtype.is_float else methods.convert(array, float)


def _pair(x1: Any, x2: Any) -> tuple[Array, Array]:
    """Return two arguments as arrays; a number takes the other's type."""
    x, y = _array(x1), _array(x2)
    return _as_operand(x, x1, y), _as_operand(y, x2, x)


def _as_operand(x: Array, number: Any, other: Array) -> Array:
    if type(number) not in (int, float) or other.dtype.kind == "complex":
        return x
    return methods.convert(x, promote_with_number(other.dtype, number), copy=False)


def rint(x: Any, /) -> Array:
    """Round to the nearest integer, halves to even, as a float."""
    return el.rint(_floats(x))


def fabs(x: Any, /) -> Array:
    """Return the absolute value as a float."""
    return el.abs(_floats(x))


def reciprocal(x: Any, /) -> Array:
    """Return 1 / x, truncated for integers; 0 for the integer 0."""
    array = _array(x)
    if array.dtype.kind not in ("int", "uint", "bool"):
        return el.reciprocal(array)
    whole = methods.convert(array, "int8") if array.dtype.kind == "bool" else array
    return el.where((whole == 1) | (el.abs(whole) == 1), whole, 0)


def cbrt(x: Any, /) -> Array:
    """Return the cube root; one step of Newton's method corrects the power's rounding."""
    x = _floats(x)
    size = el.abs(x)
    root = el.pow(size, 1.0 / 3.0)
    root = root - (root - size / (root * root)) / 3.0
    return el.where((x == 0) | ~el.isfinite(x), x, el.copysign(root, x))


def degrees(x: Any, /) -> Array:
    """Return an angle in degrees from radians."""
    return _floats(x) * (180.0 / math.pi)


rad2deg = degrees


def radians(x: Any, /) -> Array:
    """Return an angle in radians from degrees."""
    return _floats(x) * (math.pi / 180.0)


deg2rad = radians


def divmod(x1: Any, x2: Any, /) -> tuple[Array, Array]:
    """Return quotients rounded down, and remainders."""
    return el.floor_divide(x1, x2), el.remainder(x1, x2)


def float_power(x1: Any, x2: Any, /) -> Array:
    """Return powers, calculated in float64."""
    base, exponent = (methods.convert(_array(x), float) for x in (x1, x2))
    return el.pow(base, exponent)


def power(x1: Any, x2: Any, /) -> Array:
    """Return powers; NumPy raises its error for integers with negative exponents."""
    if not isinstance(x2, Array) and isinstance(x2, int) and x2 < 0:
        return el.pow(_floats_required(x1), x2)
    return el.pow(x1, x2)


def _floats_required(x: Any) -> Array:
    array = _array(x)
    if not array.dtype.is_float:
        raise LibraryOnly("integers with negative exponents")
    return array


def fmax(x1: Any, x2: Any, /) -> Array:
    """Return the larger element; of NaN and a number, the number."""
    return _ignoring_nan(el.maximum, x1, x2)


def fmin(x1: Any, x2: Any, /) -> Array:
    """Return the smaller element; of NaN and a number, the number."""
    return _ignoring_nan(el.minimum, x1, x2)


def _ignoring_nan(choose: Any, x1: Any, x2: Any) -> Array:
    x, y = _pair(x1, x2)
    return el.where(el.isnan(x), y, el.where(el.isnan(y), x, choose(x, y)))


def fmod(x1: Any, x2: Any, /) -> Array:
    """Return the remainder that has the sign of `x1`."""
    x, y = _pair(x1, x2)
    if is_complex_like(x) or is_complex_like(y):
        raise DTypeError("fmod: it is not defined for complex numbers")
    rest = el.remainder(el.abs(x), el.abs(y))
    return el.copysign(rest, x) if rest.dtype.is_float else el.where(x < 0, -rest, rest)


def heaviside(x1: Any, x2: Any, /) -> Array:
    """Return 0 for negative elements, 1 for positive ones, and `x2` for zeros."""
    x, y = map(_floats, _pair(x1, x2))
    step = el.where(x == 0, y, methods.convert(x > 0, x.dtype))
    return el.where(el.isnan(x), x, step)


def ldexp(x1: Any, x2: Any, /) -> Array:
    """Return x1 · 2^x2."""
    x = _floats(x1)
    return methods.convert(x * el.exp2(methods.convert(_array(x2), float)), x.dtype, copy=False)


def logaddexp2(x1: Any, x2: Any, /) -> Array:
    """Return log2(2^x1 + 2^x2)."""
    x, y = map(_floats, _pair(x1, x2))
    high = el.maximum(x, y)
    apart = el.where(x == y, 0.0, el.abs(x - y))  # 0 for equal infinities too
    return high + el.log1p(el.exp2(-apart)) * (1.0 / math.log(2.0))


def modf(x: Any, /) -> tuple[Array, Array]:
    """Return the parts after and before the point, both with the sign of x."""
    x = _floats(x)
    whole = el.trunc(x)
    rest = el.where(el.isinf(x), 0.0, x - whole)
    return el.copysign(rest, x), whole


def fix(x: Any, out: Any = None) -> Any:
    """Round towards zero."""
    return calls.store(el.trunc(_array(x)), out)


def sinc(x: Any) -> Array:
    """Return sin(πx) / πx, which is 1 at zero."""
    y = _floats(x) * math.pi
    return el.where(y == 0, 1.0, el.sin(y) / y)


def isposinf(x: Any, out: Any = None) -> Any:
    """Return whether elements are positive infinity."""
    return calls.store(el.equal(_floats(x), math.inf), out)


def isneginf(x: Any, out: Any = None) -> Any:
    """Return whether elements are negative infinity."""
    return calls.store(el.equal(_floats(x), -math.inf), out)


def isreal(x: Any) -> Array:
    """Return whether imaginary parts are zero: all true, for arrays of reals."""
    return el.logical_not(iscomplex(x))


def iscomplex(x: Any) -> Array:
    """Return whether imaginary parts are not zero: all false, for arrays of reals."""
    z = _array(x)
    if isinstance(z, ComplexArray):
        return el.not_equal(z.parts[1], 0.0)
    return make.zeros(_array(x).shape, dtype=bool)


def real_if_close(a: Any, tol: float = 100) -> Array:
    """Return the array itself, which is real; NumPy decides on complex numbers."""
    array = _array(a)
    if isinstance(array, ComplexArray):
        raise LibraryOnly("the dtype depends on elements")
    return array


def angle(z: Any, deg: bool = False) -> Array:
    """Return the angles of numbers in the plane: 0 or π for reals."""
    array = _array(z)
    if not isinstance(array, ComplexArray) and not array.dtype.is_float:
        narrow = np.float64 if array.dtype is bool_ else np.float16
        array = methods.convert(array, np.result_type(array.dtype.numpy, narrow))
    re, im = array.parts if isinstance(array, ComplexArray) else (array, 0.0)
    return el.atan2(im, re) * (180.0 / math.pi if deg else 1.0)


def clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,
    max: Any = None,
) -> Any:
    """Return the elements limited to a range."""
    low, high = min if a_min is None else a_min, max if a_max is None else a_max
    return calls.store(calls.clip(_array(a), low, high), out)


def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Array:
    """Replace NaN and infinities by numbers."""
    result = numerical.nan_to_num(_array(x), nan=nan, posinf=posinf, neginf=neginf)
    if not copy and isinstance(x, Array):
        x.replace_value(result.node)
        return x
    return result


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    """Return whether two arrays have one shape and equal elements."""
    x, y = _array(a1), _array(a2)
    if x.shape != y.shape:
        return False
    same = x == y
    if equal_nan and x.dtype.is_float and y.dtype.is_float:
        same = same | (el.isnan(x) & el.isnan(y))
    return bool(calls.all(same))


def array_equiv(a1: Any, a2: Any) -> bool:
    """Return whether elements are equal once broadcast."""
    x, y = _array(a1), _array(a2)
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return False
    return bool(calls.all(x == y))


def inner(a: Any, b: Any, /) -> Array:
    """Return the sums of products over the last dimension of both."""
    x, y = _array(a), _array(b)
    return x * y if not x.ndim or not y.ndim else products.tensordot(x, y, axes=([-1], [-1]))


def outer(a: Any, b: Any, out: Any = None) -> Any:
    """Return the products of all pairs of elements."""
    x, y = methods.ravel(_array(a)), methods.ravel(_array(b))
    return calls.store(x[:, None] * y[None, :], out)


def vdot(a: Any, b: Any, /) -> Array:
    """Return the sum of the products of all elements, those of `a` conjugated."""
    products_ = methods.ravel(_conjugated(a)) * methods.ravel(_array(b))
    return calls.sum(products_, dtype=products_.dtype)


def _conjugated(x: Any) -> Array:
    array = _array(x)
    return el.conj(array) if isinstance(array, ComplexArray) else array


vecdot = of_arrays(products.vecdot, 2, more=False)


def matvec(x1: Any, x2: Any, /) -> Array:
    """Return products of matrices and vectors."""
    return products.matmul(_array(x1), _array(x2)[..., None])[..., 0]


def vecmat(x1: Any, x2: Any, /) -> Array:
    """Return products of vectors and matrices."""
    return products.matmul(_conjugated(x1)[..., None, :], _array(x2))[..., 0, :]


def tensordot(a: Any, b: Any, axes: Any = 2) -> Array:
    """Return sums of products over several dimensions."""
    if not isinstance(axes, int):
        first, second = axes
        axes = tuple([k] if isinstance(k, int) else list(k) for k in (first, second))
    return products.tensordot(_array(a), _array(b), axes=axes)


def kron(a: Any, b: Any) -> Array:
    """Return the Kronecker product: the second array in place of each element of the first."""
    x, y = _array(a), _array(b)
    rank = max(x.ndim, y.ndim)
    x = methods.reshape(x, (*(1,) * (rank - x.ndim), *x.shape))
    y = methods.reshape(y, (*(1,) * (rank - y.ndim), *y.shape))
    left = methods.reshape(x, tuple(s for n in x.shape for s in (n, 1)))
    right = methods.reshape(y, tuple(s for n in y.shape for s in (1, n)))
    return methods.reshape(
        left * right, tuple(n * m for n, m in zip(x.shape, y.shape, strict=True))
    )


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Array:
    """Return the vector product of vectors of three elements."""
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = shapes.moveaxis(_array(a), axisa, -1), shapes.moveaxis(_array(b), axisb, -1)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise LibraryOnly("vectors of two elements")
    one, two = (1, 2, 0), (2, 0, 1)
    parts = [x[..., p] * y[..., q] - x[..., q] * y[..., p] for p, q in zip(one, two, strict=True)]
    return shapes.stack(parts, axis=axisc)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return diagonals of the matrices in two dimensions."""
    return methods.diagonal_view(_array(a), offset, axis1, axis2)


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Array:
    """Return the differences of neighbours, `n` times."""
    x = _array(a)
    edge = [None if calls.is_default(e) else _edge(x, e, axis) for e in (prepend, append)]
    refuse_bools("differences", x)
    return stat.diff(x, n=n, axis=axis, prepend=edge[0], append=edge[1])


def refuse_bools(what: str, *arrays: Array | None) -> None:
    """Raise LibraryOnly for bools, of which NumPy forms sums by "or" and differences by "xor"."""
    if any(x is not None and x.dtype is bool_ for x in arrays):
        raise LibraryOnly(f"{what} of bool")


def _edge(x: Array, value: Any, axis: int) -> Array:
    edge = _array(value)
    shape = list(x.shape)
    shape[axis] = 1
    return edge if edge.ndim else shapes.broadcast_to(edge, tuple(shape))


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Array:
    """Return the differences of neighbours of the flattened array."""
    x = methods.ravel(_array(ary))
    parts = [to_begin, x[1:] - x[:-1], to_end]
    joined = [methods.ravel(methods.convert(_array(p), x.dtype)) for p in parts if p is not None]
    return shapes.concat(joined)


def convolve(a: Any, v: Any, mode: str = "full") -> Array:
    """Return the discrete convolution of two vectors."""
    x, y = (v if v.ndim else methods.ravel(v) for v in (_array(a), _array(v)))
    return numerical.convolve(x, y, mode=mode)  # type: ignore[arg-type]


def correlate(a: Any, v: Any, mode: str = "valid") -> Array:
    """Return the correlation of two vectors."""
    x, y = _array(a), _array(v)
    if mode != "full" and y.shape[0] > x.shape[0]:
        raise LibraryOnly("a second vector longer than the first")
    return numerical.convolve(x, shapes.flip(y), mode=mode)  # type: ignore[arg-type]


def polyval(p: Any, x: Any) -> Array:
    """Return a polynomial's values; the highest power's coefficient comes first."""
    coefficients, at = _array(p), _array(x)
    if at.dtype is bool_:
        refuse_bools("sums", coefficients)
    result = at * 0
    for k in range(coefficients.shape[0]):
        result = result * at + coefficients[k]
    return result


def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """Call a reduction over several dimensions, one after another, which keep size 1."""
    result = _array(a)
    for axis in (axes,) if isinstance(axes, int) else axes:
        reduced = func(result, axis)
        result = reduced if reduced.ndim == result.ndim else shapes.expand_dims(reduced, axis)
    return result
