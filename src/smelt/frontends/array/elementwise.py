"""Elementwise functions of the array API standard, and a few beyond it.

Each function broadcasts its arrays, promotes their dtypes by the standard's table and accepts a
Python number in place of one array.  Functions whose results are floats (division, exp, sqrt)
convert integers to float64.  All raise ShapeError for shapes that do not broadcast and DTypeError
for dtypes that they are not defined for.

>>> import smelt as sm
>>> sm.add(sm.asarray([1.0, 2.0]), 1)
Array([2., 3.])
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, DTypeError
from smelt.frontends.array.array import Array, number_or_value, value
from smelt.frontends.array.cache_calls import cache_call
from smelt.frontends.array.complex_calls import ComplexOperand, call_complex, takes_complex
from smelt.frontends.array.creation import zeros_like
from smelt.frontends.array.families import BINARY, UNARY, align
from smelt.frontends.array.masked_select import MaskedSelection
from smelt.frontends.array.promote import cast, common, number, promote_with_number
from smelt.frontends.array.searching import nonzero
from smelt.frontends.array.subscript import SELECT
from smelt.frontends.array.trace_cache import cache_trace
from smelt.frontends.array.value import Value, record
from smelt.types.dtype import DType, bool_

One = Callable[[Any], Array]
Two = Callable[[Any, Any], Array]


def _unary(name: str, doc: str) -> One:
    family = UNARY[name]

    def function(x: Any, /) -> Array:
        if x.__class__ is MaskedSelection:
            return x.apply_unary(name)
        try:
            return Array.of(family(value(x, name)))
        except ComplexOperand:
            pass
        return call_complex(name, x)

    return named(function, name, doc)


def _binary(name: str, doc: str) -> Two:
    family = BINARY[name]

    def function(x1: Any, x2: Any, /) -> Any:
        if x1.__class__ is MaskedSelection:
            return x1.apply_binary(name, x2)
        if x2.__class__ is MaskedSelection:
            return x2.apply_binary(name, x1, reflected=True)
        try:
            x = x1.node if x1.__class__ is Array else number_or_value(x1, name)
            y = x2.node if x2.__class__ is Array else number_or_value(x2, name)
        except ComplexOperand:
            return call_complex(name, x1, x2)
        return Array.of(family(x, y))

    return named(function, name, doc)


def named(function: Any, name: str, doc: str | None) -> Any:
    """Return a function that was made for a table with its name and docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


# Arithmetic
abs = _unary("abs", "Return the absolute value |x|; the most negative integer is unchanged.")
add = _binary("add", "Return x1 + x2; integers wrap around on overflow.")
subtract = _binary("subtract", "Return x1 - x2; integers wrap around on overflow.")
multiply = _binary("multiply", "Return x1 · x2; integers wrap around on overflow.")
divide = _binary("divide", "Return the quotient x1 / x2 as a float.")
floor_divide = _binary(
    "floor_divide", "Return x1 / x2 rounded down to an integer, in the promoted dtype."
)
remainder = _binary("remainder", "Return x1 - floor_divide(x1, x2) · x2, which has the sign of x2.")
negative = _unary("negative", "Return -x; unsigned integers wrap around.")
pow = _binary("pow", "Return x1 to the power x2.")
square = _unary("square", "Return x · x; integers wrap around on overflow.")
reciprocal = _unary("reciprocal", "Return 1 / x as a float.")
sqrt = _unary("sqrt", "Return the square root; NaN for negative numbers.")
rsqrt = _unary("rsqrt", "Return the reciprocal square root 1 / √x.")
hypot = _binary("hypot", "Return √(x1² + x2²), without overflow of intermediate results.")
sign = _unary("sign", "Return -1, 0 or 1 by the sign of x; NaN for NaN.")
copysign = _binary("copysign", "Return the magnitude of x1 with the sign of x2.")
nextafter = _binary(
    "nextafter", "Return the floating-point number next to x1 in the direction of x2."
)
maximum = _binary("maximum", "Return the larger element; NaN if either is NaN.")
minimum = _binary("minimum", "Return the smaller element; NaN if either is NaN.")

# Rounding
ceil = _unary("ceil", "Round up to an integer, in the dtype of x.")
floor = _unary("floor", "Round down to an integer, in the dtype of x.")
rint = _unary("round", "Round to the nearest integer, halves to even, in the dtype of x.")
trunc = _unary("trunc", "Round towards zero to an integer, in the dtype of x.")


@takes_complex
def round(x: Any, /, decimals: int = 0) -> Array:
    """Round to `decimals` digits after the point, halves to even, in the dtype of x.

    Negative `decimals` count digits before the point.  Computed as in NumPy, by scaling.
    """
    if not decimals:
        return rint(x)
    array = Array.of(value(x, "round"))
    if decimals > 0 and not array.dtype.is_float:
        return array
    scale = 10.0 ** builtins.abs(decimals)
    up, down = (multiply, divide) if decimals > 0 else (divide, multiply)
    return Array.of(cast(down(rint(up(array, scale)), scale).node, array.dtype))


# Exponentials and logarithms
exp = _unary("exp", "Return the exponential function of x.")
exp2 = _unary("exp2", "Return 2 to the power x.")
expm1 = _unary("expm1", "Return exp(x) - 1, accurate near zero.")
log = _unary("log", "Return the natural logarithm.")
log1p = _unary("log1p", "Return log(1 + x), accurate near zero.")
log2 = _unary("log2", "Return the logarithm to base 2.")
log10 = _unary("log10", "Return the logarithm to base 10.")
logaddexp = _binary(
    "logaddexp", "Return log(exp(x1) + exp(x2)), without overflow of intermediate results."
)

# Trigonometric and hyperbolic functions
sin = _unary("sin", "Return the sine of an angle in radians.")
cos = _unary("cos", "Return the cosine of an angle in radians.")
tan = _unary("tan", "Return the tangent of an angle in radians.")
asin = _unary("asin", "Return the inverse sine, in [-π/2, π/2].")
acos = _unary("acos", "Return the inverse cosine, in [0, π].")
atan = _unary("atan", "Return the inverse tangent, in [-π/2, π/2].")
atan2 = _binary("atan2", "Return the angle of the point (x2, x1), in [-π, π].")
sinh = _unary("sinh", "Return the hyperbolic sine.")
cosh = _unary("cosh", "Return the hyperbolic cosine.")
tanh = _unary("tanh", "Return the hyperbolic tangent.")
asinh = _unary("asinh", "Return the inverse hyperbolic sine.")
acosh = _unary("acosh", "Return the inverse hyperbolic cosine.")
atanh = _unary("atanh", "Return the inverse hyperbolic tangent.")

# Beyond the standard
erf = _unary("erf", "Return the error function, 2/√π ∫₀ˣ exp(-t²) dt.")
erfc = _unary("erfc", "Return 1 - erf(x), accurate for large x.")
sigmoid = _unary("sigmoid", "Return the logistic function 1 / (1 + exp(-x)).")

# Comparison
equal = _binary("equal", "Return whether x1 = x2, a bool array.")
not_equal = _binary("not_equal", "Return whether x1 ≠ x2, a bool array; true where either is NaN.")
less = _binary("less", "Return whether x1 < x2, a bool array.")
less_equal = _binary("less_equal", "Return whether x1 ≤ x2, a bool array.")
greater = _binary("greater", "Return whether x1 > x2, a bool array.")
greater_equal = _binary("greater_equal", "Return whether x1 ≥ x2, a bool array.")
isnan = _unary("isnan", "Return whether x is NaN, a bool array.")
isinf = _unary("isinf", "Return whether x is infinite, a bool array.")
isfinite = _unary("isfinite", "Return whether x is neither infinite nor NaN, a bool array.")
signbit = _unary(
    "signbit", "Return whether the sign bit is set, also of -0.0 and NaN, a bool array."
)


# Logic and bits
def _logical(name: str, doc: str) -> Two:
    of_bools = _binary(name, doc)

    def function(x1: Any, x2: Any, /) -> Any:
        return of_bools(truth(x1), truth(x2))

    return named(function, name, doc)


def truth(x: Any) -> Any:
    """Return whether elements differ from zero; bools and masked selections as they are."""
    if x.__class__ is MaskedSelection or isinstance(x, builtins.bool | np.bool_):
        return x
    try:
        node = value(x, "logical_and")
    except ComplexOperand:
        return not_equal(x, 0)
    return Array.of(node if node.type.dtype == bool_ else BINARY["not_equal"](node, 0))


logical_and = _logical("logical_and", "Return whether both are true; numbers are if nonzero.")
logical_or = _logical("logical_or", "Return whether either is true; numbers are if nonzero.")
logical_xor = _logical("logical_xor", "Return whether exactly one is true; numbers are if nonzero.")
bitwise_and = _binary("bitwise_and", "Return x1 & x2, for integers and bools.")
bitwise_or = _binary("bitwise_or", "Return x1 | x2, for integers and bools.")
bitwise_xor = _binary("bitwise_xor", "Return x1 ^ x2, for integers and bools.")
bitwise_invert = _unary("bitwise_invert", "Return ~x, for integers and bools.")
bitwise_left_shift = _binary(
    "bitwise_left_shift", "Return x1 · 2^x2, wrapping around, for integers."
)
bitwise_right_shift = _binary("bitwise_right_shift", "Return x1 / 2^x2 rounded down, for integers.")


def logical_not(x: Any, /) -> Array:
    """Return the logical negation; a number is true if it is not zero."""
    if x.__class__ is MaskedSelection:
        return x.apply_unary("logical_not")
    return Array.of(UNARY["logical_not"](value(truth(x), "logical_not")))


@takes_complex
def positive(x: Any, /) -> Array:
    """Return `x` itself, for numeric arrays.

    Raises DTypeError for bool.
    """
    return _numeric(x, "positive")


def _numeric(x: Any, what: str) -> Array:
    """Return a real array of numbers; raise DTypeError for bool."""
    node = value(x, what)
    if node.type.dtype.kind not in ("int", "uint", "float"):
        raise DTypeError(op=what, dtypes=node.type.dtype.long, hint="It takes: int, uint, float.")
    return Array.of(node)


@takes_complex
def real(x: Any, /) -> Array:
    """Return the real parts: `x` itself if it is real.

    Raises DTypeError for bool.
    """
    return _numeric(x, "real")


@takes_complex
def conj(x: Any, /) -> Array:
    """Return the complex conjugate: `x` itself if it is real.

    Raises DTypeError for bool.
    """
    return _numeric(x, "conj")


@takes_complex
def imag(x: Any, /) -> Array:
    """Return the imaginary parts: zeros of the shape and dtype of `x` if it is real.

    Raises DTypeError for bool.
    """
    return zeros_like(_numeric(x, "imag"))


@cache_call
def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """Limit the elements of `x` to the range from `min` to `max`.

    Args:
        x: the array.
        min: lower bound: None, a number or an array that broadcasts with x.
        max: upper bound, likewise.

    Returns:
        An array of the dtype of `x`.  A bound outside of the range of that dtype acts as the end of
        the range.  NaN in any argument gives NaN; where min > max the result is max.

    Raises ShapeError, DTypeError for float bounds of an integer array, ArgumentError for a bound of
    NaN there.
    """
    node = value(x, "clip")
    dtype = node.type.dtype
    for bound, what in ((min, "maximum"), (max, "minimum")):
        if bound is None:
            continue
        limit = number_or_value(bound, "clip")
        if isinstance(limit, Value):
            limit = _cast_bounds(node, limit)
        elif dtype.is_integer and isinstance(limit, (int, float)):
            limit = _integer_bound(limit, dtype, math.ceil if what == "maximum" else math.floor)
        # Of equal zeros the second is returned: between two numbers that is the element of x.
        between = min is not None and max is not None and not isinstance(limit, Value)
        node = BINARY[what](limit, node) if between else BINARY[what](node, limit)
    return Array.of(cast(node, dtype))


def _cast_bounds(x: Value, limit: Value) -> Value:
    """Cast an array of bounds to the dtype of x, clamped to an integer's range."""
    dtype, source = x.type.dtype, limit.type.dtype
    if source.is_float and not dtype.is_float:
        raise DTypeError(f"clip({x.type_text}): a bound of {limit.type_text} is not {dtype.long}")
    if dtype.is_integer and source.is_integer:
        ends, source_range = np.iinfo(dtype.numpy), np.iinfo(source.numpy)
        if source_range.min < ends.min:
            limit = BINARY["maximum"](limit, int(ends.min))
        if source_range.max > ends.max:
            limit = BINARY["minimum"](limit, int(ends.max))
    return cast(limit, dtype)


def _integer_bound(bound: float, dtype: DType, rounded: Callable[[float], int]) -> int:
    """Round a bound to an integer of `dtype` that limits integers in the same way.

    Raises ArgumentError for NaN.
    """
    if bound != bound:
        raise ArgumentError(
            op="clip", argument="a bound", value=bound, expected=f"a number, beside {dtype.long}"
        )
    ends = np.iinfo(dtype.numpy)
    if not ends.min <= bound <= ends.max:
        return int(ends.min if bound < ends.min else ends.max)
    return rounded(bound)


@cache_call
def where(condition: Any, x1: Any = None, x2: Any = None, /) -> Any:
    """Select `x1` where the bool array `condition` is true and `x2` elsewhere.

    All three broadcast; the dtype is the promoted dtype of `x1` and `x2`, either of which may be a
    number. Without both, the positions of true elements, as `nonzero` returns them.

    Raises ShapeError, DTypeError for a condition that is not bool, ArgumentError for one choice.
    """
    if x1 is None and x2 is None:
        return nonzero(condition)
    if x1 is None or x2 is None:
        message = "where takes a condition alone, or with two choices"
        raise ArgumentError(message)
    mask = value(condition, "where")
    if mask.type.dtype is not bool_:
        raise DTypeError(f"where: the condition is {mask.type_text}, not bool")
    x, y = number_or_value(x1, "where"), number_or_value(x2, "where")
    dtypes = [v.type.dtype for v in (x, y) if isinstance(v, Value)]
    numbers = [v for v in (x, y) if not isinstance(v, Value)]
    if dtypes:
        dtype = common("where", *dtypes)
        for v in numbers:
            dtype = promote_with_number(dtype, v)
    else:
        dtype = promote_with_number(promote_with_number(bool_, x), y)
    x, y = (cast(v, dtype) if isinstance(v, Value) else number(v, dtype, "where") for v in (x, y))
    return Array.of(_select(mask, x, y))


@cache_trace
def _select(mask: Value, x: Value, y: Value) -> Value:
    align("where", mask, x, y)
    return record(SELECT, (mask, x, y))
