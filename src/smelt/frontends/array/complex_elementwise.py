"""Elementwise functions of complex numbers, written with real ones of their parts.

Special values follow C99, Annex G, as the array API standard does.  Division is that of R. Smith,
"Algorithm 116: complex division", 1962; tangents follow W. Kahan, "Branch cuts for complex
elementary functions", 1987.  A real operand is not extended by an imaginary part, so that the
product with a real infinity has no NaN.  NumPy computes inverse circular functions and general
powers: those are library calls.

>>> z = complex_array([3 + 4j, -1.0])
>>> absolute(z), sqrt(z), multiply(z, z)
(Array([5., 1.]), Array([2.+1.j, 0.+1.j]), Array([-7.+24.j,  1. -0.j]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from smelt.errors import DTypeError
from smelt.frontends.array import elementwise as el
from smelt.frontends.array.array import Array, value
from smelt.frontends.array.complex_array import (
    ComplexArray,
    complex_array,
    is_complex_like,
    pair,
)
from smelt.frontends.array.complex_calls import COMPLEX
from smelt.frontends.array.complex_library import call_power, call_unary
from smelt.frontends.array.manipulation import broadcast_arrays
from smelt.frontends.array.number import Number
from smelt.frontends.array.promote import cast, has_numpys_rules, number
from smelt.types.dtype import f32, f64

Part = Any
"""Real array or number."""


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


def _both(x: Any, y: Any) -> tuple[Part, Part, Part, Part]:
    return (*_parts(x), *_parts(y))


# Arithmetic


def add(x: Any, y: Any) -> ComplexArray:
    """Return x + y."""
    a, b, c, d = _both(x, y)
    return pair(a + c, b if d is None else d if b is None else b + d)


def subtract(x: Any, y: Any) -> ComplexArray:
    """Return x - y."""
    a, b, c, d = _both(x, y)
    if d is None:
        return pair(a - c, b)
    return pair(a - c, -d if b is None else b - d)


def multiply(x: Any, y: Any) -> ComplexArray:
    """Return x · y."""
    a, b, c, d = _both(x, y)
    if d is None:
        return pair(a * c, b * c)
    if b is None:
        return pair(a * c, a * d)
    return pair(a * c - b * d, a * d + b * c)


def divide(x: Any, y: Any) -> ComplexArray:
    """Return x / y, without overflow of intermediate results."""
    a, b, c, d = _both(x, y)
    if d is None:
        return pair(el.divide(a, c), el.divide(b, c))
    b = 0.0 if b is None else b
    if isinstance(c, Array) or isinstance(d, Array):
        a, b = (_as_typed(part, c, d) for part in (a, b))
    else:
        c, d = (_as_typed(part, a, b) for part in (c, d))
    first = el.abs(c) >= el.abs(d)
    large, small = el.where(first, c, d), el.where(first, d, c)
    ratio = small / large
    scale = 1.0 / (large + small * ratio)
    near, far = el.where(first, a, b), el.where(first, b, a)
    swapped = (far - near * ratio) * scale
    imag = el.where(first, swapped, -swapped)
    zero, size = (c == 0.0) & (d == 0.0), el.abs(c)
    real = el.where(zero, a / size, (near + far * ratio) * scale)
    return pair(real, el.where(zero, b / size, imag))


def _as_typed(x: Part, *others: Part) -> Array:
    """Return a part as an array; a number gets the dtype of the others."""
    if isinstance(x, Array):
        return x
    dtypes = [p.dtype for p in others if isinstance(p, Array)]
    dtype = dtypes[0] if dtypes and dtypes[0].is_float else f64
    return Array.of(number(x, dtype, "divide"))


def reciprocal(x: Any) -> ComplexArray:
    """Return 1 / x."""
    return divide(1.0, x)


def square(x: Any) -> ComplexArray:
    """Return x · x."""
    return multiply(x, x)


def negative(x: Any) -> ComplexArray:
    """Return -x."""
    return _each(el.negative, x)


def positive(x: Any) -> ComplexArray:
    """Return x itself."""
    return complex_array(x)


def conj(x: Any) -> ComplexArray:
    """Return the complex conjugate."""
    re, im = complex_array(x).parts
    return pair(re, el.negative(im))


def real(x: Any) -> Array:
    """Return the real part."""
    return complex_array(x).parts[0].__copy__()


def imag(x: Any) -> Array:
    """Return the imaginary part."""
    return complex_array(x).parts[1].__copy__()


def absolute(x: Any) -> Array:
    """Return the distance from 0."""
    return el.hypot(*complex_array(x).parts)


def angle(x: Any) -> Array:
    """Return the angle in radians, in [-π, π]."""
    re, im = complex_array(x).parts
    return el.atan2(im, re)


def sign(x: Any) -> ComplexArray:
    """Return x / |x|, and 0 for 0; two infinite parts have no direction."""
    re, im = complex_array(x).parts
    infinite, both = el.isinf(re) | el.isinf(im), el.isinf(re) & el.isinf(im)

    def bounded(part: Array) -> Array:
        halves = el.where(el.isinf(part), el.copysign(1.0, part), el.copysign(0.0, part))
        return el.where(el.isfinite(el.abs(re) + el.abs(im)), part, halves)

    huge = el.isinf(el.hypot(re, im)) & ~infinite
    re, im = (el.where(infinite, bounded(p), el.where(huge, p * 0.25, p)) for p in (re, im))
    size = el.hypot(re, im)
    zero = size == 0.0
    size = el.where(both, math.nan, el.where(zero, 1.0, size))
    return pair(*(el.where(zero, part, part / size) for part in (re, im)))


def round_(x: Any, decimals: int = 0) -> ComplexArray:
    """Round both parts, halves to even."""
    return _each(lambda part: el.round(part, decimals), x)


def _each(function: Callable[[Array], Array], x: Any) -> ComplexArray:
    return pair(*map(function, complex_array(x).parts))


# Comparison


def equal(x: Any, y: Any) -> Array:
    """Return whether both parts are equal."""
    a, b, c, d = _both(x, y)
    return el.equal(a, c) & el.equal(0.0 if b is None else b, 0.0 if d is None else d)


def not_equal(x: Any, y: Any) -> Array:
    """Return whether either part differs."""
    return ~equal(x, y)


def _either(name: str, join: Callable[[Any, Any], Array]) -> Callable[[Any], Array]:
    def function(x: Any) -> Array:
        return join(*map(getattr(el, name), complex_array(x).parts))

    return function


def where(condition: Any, x1: Any, x2: Any) -> ComplexArray:
    """Select both parts of `x1` where the condition is true, of `x2` elsewhere.

    Raises DTypeError for a complex condition.
    """
    if is_complex_like(condition):
        mask = complex_array(condition).type_text
        raise DTypeError(f"where: the condition is {mask}, not bool", hint="Compare it: x != 0.")
    a, b, c, d = _both(x1, x2)
    re = el.where(condition, a, c)
    im = el.where(condition, 0.0 if b is None else b, 0.0 if d is None else d)
    if not isinstance(b, Array) and not isinstance(d, Array) and re.dtype.is_float:
        im = Array.of(cast(im.node, re.dtype))  # two numbers, which have no dtype of their own
    return pair(re, im)


# Exponentials and logarithms


def _limit(x: Array) -> float:
    """Return a power that exp does not overflow for, near the largest."""
    return 85.0 if x.dtype is f32 else 700.0


def _times_exp(x: Array, exponent: Array) -> Array:
    """Return x · exp(exponent), which may be finite where exp(exponent) is not."""
    limit = _limit(exponent)
    rest = el.maximum(exponent - limit, 0.0)
    return x * el.exp(el.minimum(exponent, limit)) * el.exp(rest)


def exp(x: Any) -> ComplexArray:
    """Return the exponential function."""
    re, im = complex_array(x).parts
    real, imag = _times_exp(el.cos(im), re), _times_exp(el.sin(im), re)
    # exp(-inf) is 0 at any angle, exp(inf) is infinite in an unknown direction
    without = el.isinf(re) & ~el.isfinite(im)
    real = el.where(without, el.exp(re), real)
    imag = el.where(without & (re < 0.0), 0.0, imag)
    return pair(real, el.where(im == 0.0, im, imag))


def expm1(x: Any) -> ComplexArray:
    """Return exp(x) - 1, accurate near zero."""
    re, im = complex_array(x).parts
    half = el.sin(im * 0.5)
    real = el.expm1(re) * el.cos(im) - 2.0 * (half * half)
    whole = exp(pair(re, im))
    unsafe = ~((re < _limit(re)) & el.isfinite(im)) | (re == -math.inf)
    real = el.where(unsafe, whole.parts[0] - 1.0, real)
    return pair(el.where(im == 0.0, el.expm1(re), real), whole.parts[1])


def _choice(condition: Array, yes: float, no: Any, like: Array) -> Array:
    """Select between numbers, in the dtype of `like`."""
    return Array.of(cast(el.where(condition, yes, no).node, like.dtype))


def _log_abs(re: Array, im: Array) -> Array:
    """Return log |x|, accurate where |x| is near 1."""
    a, b = el.abs(re), el.abs(im)
    large, small = el.maximum(a, b), el.minimum(a, b)
    near = (large > 0.5) & (large < 1.5)
    near_log = 0.5 * el.log1p((large - 1.0) * (large + 1.0) + small * small)
    huge = large > float(np.finfo(re.dtype.numpy).max) / 4
    scale = _choice(huge, 0.25, 1.0, re)
    far_log = el.log(el.hypot(re * scale, im * scale)) + _choice(huge, math.log(4.0), 0.0, re)
    return el.where(near, near_log, far_log)


def log(x: Any) -> ComplexArray:
    """Return the natural logarithm, with an imaginary part in [-π, π]."""
    re, im = complex_array(x).parts
    return pair(_log_abs(re, im), el.atan2(im, re))


def log1p(x: Any) -> ComplexArray:
    """Return log(1 + x), accurate near zero."""
    re, im = complex_array(x).parts
    moved = re + 1.0
    near = 0.5 * el.log1p(re * (re + 2.0) + im * im)
    real = el.where(el.abs(re) + el.abs(im) < 0.5, near, _log_abs(moved, im))
    return pair(real, el.atan2(im, moved))


def _log_to(base: float) -> Callable[[Any], ComplexArray]:
    def function(x: Any) -> ComplexArray:
        return _each(lambda part: part * (1.0 / math.log(base)), log(x))

    return function


def sqrt(x: Any) -> ComplexArray:
    """Return the square root with a real part of at least 0."""
    re, im = complex_array(x).parts
    info = np.finfo(re.dtype.numpy)
    large = el.maximum(el.abs(re), el.abs(im))
    huge, tiny = large > float(info.max) / 4, large < float(info.tiny) * 4
    up = 2.0 ** (2 * (info.nmant // 2 + 1))
    scale = _choice(huge, 1 / 16, _choice(tiny, up, 1.0, re), re)
    back = _choice(huge, 4.0, _choice(tiny, up**-0.5, 1.0, re), re)
    a, b = re * scale, im * scale
    root = el.sqrt(0.5 * (el.abs(a) + el.hypot(a, b)))
    other = el.abs(b) / (2.0 * root)
    right, zero = ~el.signbit(re), (re == 0.0) & (im == 0.0)
    real = el.where(zero, 0.0, el.where(right, root, other) * back)
    imag = el.where(zero, 0.0, el.where(right, other, root) * back)
    ends, rest = el.isinf(re) & ~el.isinf(im), el.abs(im - im)  # 0, or NaN
    real = el.where(ends, el.where(right, math.inf, rest), real)
    imag = el.where(ends, el.where(right, rest, math.inf), imag)
    real, imag = (el.where(el.isinf(im), math.inf, part) for part in (real, imag))
    return pair(real, el.copysign(imag, im))


# Circular and hyperbolic functions


def _hyperbolic(re: Array, im: Array) -> tuple[Array, Array, Array, Array]:
    """Return the products sinh·cos, cosh·sin, cosh·cos and sinh·sin of the parts."""
    cosine, sine = el.cos(im), el.sin(im)
    far = _is_far(re)
    half = el.abs(re)

    def product(factor: Array, circular: Array, odd: bool) -> Array:
        large = _times_exp(circular * 0.5, half)
        if odd:
            large = large * el.copysign(1.0, re)
        return el.where(far, large, factor * circular)

    # no NaN of a zero times an infinity
    flat, straight = re == 0.0, im == 0.0
    unknown = el.isinf(re) & ~el.isfinite(im)
    sinh, cosh = el.sinh(re), el.cosh(re)
    sc = el.where(flat, re, el.where(unknown, re, product(sinh, cosine, True)))
    cs = el.where(straight, im, product(cosh, sine, False))
    cc = el.where(unknown, math.inf, product(cosh, cosine, False))
    zero = el.copysign(1.0, re) * el.copysign(0.0, im)
    ss = el.where(flat | straight, zero, product(sinh, sine, True))
    return sc, cs, cc, ss


def _is_far(re: Array) -> Array:
    """Return whether exp(-|re|) is lost beside exp(|re|)."""
    return el.abs(re) > (22.0 if re.dtype is f64 else 10.0)


def sinh(x: Any) -> ComplexArray:
    """Return the hyperbolic sine."""
    re, im = complex_array(x).parts
    sc, cs, _, _ = _hyperbolic(re, im)
    return pair(sc, cs)


def cosh(x: Any) -> ComplexArray:
    """Return the hyperbolic cosine."""
    re, im = complex_array(x).parts
    _, _, cc, ss = _hyperbolic(re, im)
    return pair(cc, ss)


def tanh(x: Any) -> ComplexArray:
    """Return the hyperbolic tangent."""
    re, im = complex_array(x).parts
    far = _is_far(re)
    t, s = el.tan(im), el.sinh(el.where(far, 0.0, re))
    beta, rho = 1.0 + t * t, el.sqrt(1.0 + s * s)
    bottom = 1.0 + beta * (s * s)
    decay = el.exp(-2.0 * el.abs(re))
    far_imag = 4.0 * (el.sin(im) * el.cos(im)) * decay
    far_imag = el.where(el.isinf(re) & ~el.isfinite(im), 0.0, far_imag)
    has_sign = el.isfinite(im) | el.isinf(re)
    far_real = el.where(has_sign, el.copysign(1.0, re), math.nan)
    real = el.where(far, far_real, el.where(re == 0.0, re, beta * rho * s / bottom))
    imag = el.where(far, far_imag, t / bottom)
    return pair(real, el.where(im == 0.0, im, imag))


def _times_i(z: Any) -> ComplexArray:
    """Return i · z."""
    re, im = complex_array(z).parts
    return pair(el.negative(im), re)


def _times_minus_i(z: Any) -> ComplexArray:
    """Return -i · z."""
    re, im = complex_array(z).parts
    return pair(im, el.negative(re))


def sin(x: Any) -> ComplexArray:
    """Return the sine, -i sinh(i x)."""
    return _times_minus_i(sinh(_times_i(x)))


def cos(x: Any) -> ComplexArray:
    """Return the cosine, cosh(i x)."""
    return cosh(_times_i(x))


def tan(x: Any) -> ComplexArray:
    """Return the tangent, -i tanh(i x)."""
    return _times_minus_i(tanh(_times_i(x)))


# Powers

_UNROLLED = 16
"""Largest whole exponent that is written as products."""


def power(x: Any, y: Any) -> ComplexArray:
    """Return x to the power y; small whole exponents are products, 0.5 is a root."""
    if isinstance(y, int) and not isinstance(y, bool) and abs(y) <= _UNROLLED and y:
        result, base, count = None, complex_array(x), abs(y)
        while count:
            if count % 2:
                result = base if result is None else multiply(result, base)
            count //= 2
            base = multiply(base, base) if count else base
        assert result is not None
        return reciprocal(result) if y < 0 else positive(result)
    if isinstance(y, float) and y == 0.5:
        return sqrt(x)
    dtype = add(x, y).dtype
    operands = (_to(complex_array(p), dtype) for p in (x, y))
    (a, b), (c, d) = (z.parts for z in operands)
    a, b, c, d = broadcast_arrays(a, b, c, d)
    return call_power(a, b, c, d)


def _to(z: ComplexArray, dtype: Any) -> ComplexArray:
    return COMPLEX["astype"](z, dtype)


_LIBRARY: Final = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
"""Function -> NumPy's, which computes it."""


def _library(name: str) -> Callable[[Any], ComplexArray]:
    def function(x: Any) -> ComplexArray:
        return call_unary(_LIBRARY[name], *complex_array(x).parts)

    return function


COMPLEX.update(
    {
        "add": add,
        "subtract": subtract,
        "multiply": multiply,
        "divide": divide,
        "reciprocal": reciprocal,
        "square": square,
        "negative": negative,
        "positive": positive,
        "conj": conj,
        "real": real,
        "imag": imag,
        "abs": absolute,
        "angle": angle,
        "sign": sign,
        "round": round_,
        "equal": equal,
        "not_equal": not_equal,
        "where": where,
        "exp": exp,
        "expm1": expm1,
        "log": log,
        "log1p": log1p,
        "log2": _log_to(2.0),
        "log10": _log_to(10.0),
        "sqrt": sqrt,
        "sinh": sinh,
        "cosh": cosh,
        "tanh": tanh,
        "sin": sin,
        "cos": cos,
        "tan": tan,
        "pow": power,
        "isnan": _either("isnan", el.logical_or),
        "isinf": _either("isinf", el.logical_or),
        "isfinite": _either("isfinite", el.logical_and),
        **{n: _library(n) for n in _LIBRARY},
        "broadcast_real": broadcast_arrays,
    }
)
