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

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, DTypeError
from smelt.frontends.array.array import Array, number_or_value, value
from smelt.frontends.array.creation import zeros_like
from smelt.frontends.array.families import BINARY, UNARY, align
from smelt.frontends.array.masked_select import Chosen
from smelt.frontends.array.promote import cast, common, number, weak
from smelt.frontends.array.subscript import SELECT
from smelt.frontends.array.trace_cache import replayed
from smelt.frontends.array.value import Value, record
from smelt.types.dtype import DType, bool_

One = Callable[[Any], Array]
Two = Callable[[Any, Any], Array]


def _unary(name: str, doc: str) -> One:
    family = UNARY[name]

    def function(x: Any, /) -> Array:
        if x.__class__ is Chosen:
            return x.mapped(name)
        return Array.of(family(value(x, name)))

    return _named(function, name, doc)


def _binary(name: str, doc: str, kinds: tuple[str, ...] = ()) -> Two:
    family = BINARY[name]

    def function(x1: Any, x2: Any, /) -> Any:
        if x1.__class__ is Chosen:
            return x1.joined(name, x2)
        if x2.__class__ is Chosen:
            return x2.joined(name, x1, reflected=True)
        x = x1.node if x1.__class__ is Array else number_or_value(x1, name)
        y = x2.node if x2.__class__ is Array else number_or_value(x2, name)
        if kinds:
            _check(name, kinds, x, y)
        return Array.of(family(x, y))

    return _named(function, name, doc)


def _named(function: Any, name: str, doc: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _check(name: str, kinds: tuple[str, ...], *operands: Any) -> None:
    for x in operands:
        if isinstance(x, Value) and x.type.dtype.kind not in kinds:
            raise DTypeError(
                op=name, dtypes=x.type.dtype.long, hint=f"It takes: {', '.join(kinds)}."
            )


_BOOL = ("bool",)

# Arithmetic
abs = _unary("abs", "The absolute value |x|; the most negative integer stays.")
add = _binary("add", "The sum x1 + x2; integers wrap around.")
subtract = _binary("subtract", "The difference x1 - x2; integers wrap around.")
multiply = _binary("multiply", "The product x1 · x2; integers wrap around.")
divide = _binary("divide", "The quotient x1 / x2 as a float.")
floor_divide = _binary("floor_divide", "The largest integer not above x1 / x2.")
remainder = _binary("remainder", "x1 - floor_divide(x1, x2) · x2, with the sign of x2.")
negative = _unary("negative", "-x.")
pow = _binary("pow", "x1 to the power x2.")
square = _unary("square", "x · x.")
reciprocal = _unary("reciprocal", "1 / x.")
sqrt = _unary("sqrt", "The square root; NaN below zero.")
rsqrt = _unary("rsqrt", "1 / √x, in one operation.")
hypot = _binary("hypot", "√(x1² + x2²) without overflow on the way.")
sign = _unary("sign", "-1, 0 or 1; NaN stays.")
copysign = _binary("copysign", "x1 with the sign of x2.")
nextafter = _binary("nextafter", "The neighbour of x1 in the direction of x2.")
maximum = _binary("maximum", "The greater of both; NaN if either is NaN.")
minimum = _binary("minimum", "The lesser of both; NaN if either is NaN.")

# Rounding
ceil = _unary("ceil", "The smallest integer not below x, in the dtype of x.")
floor = _unary("floor", "The largest integer not above x, in the dtype of x.")
round = _unary("round", "The nearest integer, half to even, in the dtype of x.")
trunc = _unary("trunc", "x without its fraction, in the dtype of x.")

# Exponentials and logarithms
exp = _unary("exp", "e to the power x.")
exp2 = _unary("exp2", "2 to the power x.")
expm1 = _unary("expm1", "exp(x) - 1, accurate near zero.")
log = _unary("log", "The natural logarithm.")
log1p = _unary("log1p", "log(1 + x), accurate near zero.")
log2 = _unary("log2", "The logarithm of base 2.")
log10 = _unary("log10", "The logarithm of base 10.")
logaddexp = _binary("logaddexp", "log(exp(x1) + exp(x2)) without overflow on the way.")

# Trigonometric and hyperbolic functions
sin = _unary("sin", "The sine of an angle in radians.")
cos = _unary("cos", "The cosine of an angle in radians.")
tan = _unary("tan", "The tangent of an angle in radians.")
asin = _unary("asin", "The inverse sine, in [-π/2, π/2].")
acos = _unary("acos", "The inverse cosine, in [0, π].")
atan = _unary("atan", "The inverse tangent, in [-π/2, π/2].")
atan2 = _binary("atan2", "The angle of the point (x2, x1), in [-π, π].")
sinh = _unary("sinh", "The hyperbolic sine.")
cosh = _unary("cosh", "The hyperbolic cosine.")
tanh = _unary("tanh", "The hyperbolic tangent.")
asinh = _unary("asinh", "The inverse hyperbolic sine.")
acosh = _unary("acosh", "The inverse hyperbolic cosine.")
atanh = _unary("atanh", "The inverse hyperbolic tangent.")

# Beyond the standard
erf = _unary("erf", "The error function, 2/√π ∫₀ˣ exp(-t²) dt.")
erfc = _unary("erfc", "1 - erf(x), accurate for large x.")
sigmoid = _unary("sigmoid", "The logistic function 1 / (1 + exp(-x)).")

# Comparison
equal = _binary("equal", "Whether x1 = x2, a bool array.")
not_equal = _binary("not_equal", "Whether x1 ≠ x2, a bool array; true where either is NaN.")
less = _binary("less", "Whether x1 < x2, a bool array.")
less_equal = _binary("less_equal", "Whether x1 ≤ x2, a bool array.")
greater = _binary("greater", "Whether x1 > x2, a bool array.")
greater_equal = _binary("greater_equal", "Whether x1 ≥ x2, a bool array.")
isnan = _unary("isnan", "Whether x is NaN, a bool array.")
isinf = _unary("isinf", "Whether x is infinite, a bool array.")
isfinite = _unary("isfinite", "Whether x is neither infinite nor NaN, a bool array.")
signbit = _unary("signbit", "Whether the sign bit is set, -0.0 and NaN included.")

# Logic and bits
logical_and = _binary("logical_and", "Both, on bool arrays.", _BOOL)
logical_or = _binary("logical_or", "Either, on bool arrays.", _BOOL)
logical_xor = _binary("logical_xor", "One but not both, on bool arrays.", _BOOL)
bitwise_and = _binary("bitwise_and", "x1 & x2, on integers and bools.")
bitwise_or = _binary("bitwise_or", "x1 | x2, on integers and bools.")
bitwise_xor = _binary("bitwise_xor", "x1 ^ x2, on integers and bools.")
bitwise_invert = _unary("bitwise_invert", "~x, on integers and bools.")
bitwise_left_shift = _binary("bitwise_left_shift", "x1 · 2^x2, wrapping, on integers.")
bitwise_right_shift = _binary("bitwise_right_shift", "x1 / 2^x2 rounded down, on integers.")


def logical_not(x: Any, /) -> Array:
    """Return the logical negation of a bool array.

    Raises DTypeError for other dtypes.
    """
    node = value(x, "logical_not")
    _check("logical_not", _BOOL, node)
    return Array.of(UNARY["logical_not"](node))


def positive(x: Any, /) -> Array:
    """Return `x` itself, for numeric arrays.

    Raises DTypeError for bool.
    """
    node = value(x, "positive")
    _check("positive", ("int", "uint", "float"), node)
    return Array.of(node)


def real(x: Any, /) -> Array:
    """Return `x` itself: there are no complex arrays.

    Raises DTypeError for bool.
    """
    return positive(x)


def conj(x: Any, /) -> Array:
    """Return `x` itself: there are no complex arrays.

    Raises DTypeError for bool.
    """
    return positive(x)


def imag(x: Any, /) -> Array:
    """Return zeros of the shape and dtype of `x`: there are no complex arrays.

    Raises DTypeError for bool.
    """
    return zeros_like(positive(x))


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
        node = BINARY[what](node, limit)
    return Array.of(cast(node, dtype))


def _cast_bounds(x: Value, limit: Value) -> Value:
    """Cast an array of bounds to the dtype of x, clamped to an integer's range."""
    dtype, source = x.type.dtype, limit.type.dtype
    if source.is_float and not dtype.is_float:
        raise DTypeError(f"clip({x.told}): a bound of {limit.told} is no {dtype.long}")
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


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """Select `x1` where the bool array `condition` is true and `x2` elsewhere.

    All three broadcast; the dtype is the promoted dtype of `x1` and `x2`, either of which may be a
    number.

    Raises ShapeError, and DTypeError for a condition that is not bool.
    """
    mask = value(condition, "where")
    if mask.type.dtype is not bool_:
        raise DTypeError(f"where: the condition is {mask.told}, not bool")
    x, y = number_or_value(x1, "where"), number_or_value(x2, "where")
    dtypes = [v.type.dtype for v in (x, y) if isinstance(v, Value)]
    numbers = [v for v in (x, y) if not isinstance(v, Value)]
    if dtypes:
        dtype = common("where", *dtypes)
        for v in numbers:
            dtype = weak(dtype, v)
    else:
        dtype = weak(weak(bool_, x), y)
    x, y = (cast(v, dtype) if isinstance(v, Value) else number(v, dtype, "where") for v in (x, y))
    return Array.of(_select(mask, x, y))


@replayed
def _select(mask: Value, x: Value, y: Value) -> Value:
    align("where", mask, x, y)
    return record(SELECT, (mask, x, y))
