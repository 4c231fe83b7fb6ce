"""Elementwise functions of the array API standard, and a few beyond it.

Each broadcasts its arrays, promotes their dtypes by the standard's table and takes a Python number
in place of one array.  Functions that give floats (division, exp, sqrt) take integers as float64.
Every one raises ShapeError for shapes that do not broadcast and DTypeError for dtypes it is not
defined for.

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


def _one(name: str, doc: str) -> One:
    family = UNARY[name]

    def function(x: Any, /) -> Array:
        if x.__class__ is Chosen:
            return x.mapped(name)
        return Array.of(family(value(x, name)))

    return _named(function, name, doc)


def _two(name: str, doc: str, kinds: tuple[str, ...] = ()) -> Two:
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
abs = _one("abs", "The absolute value |x|; the most negative integer stays.")
add = _two("add", "The sum x1 + x2; integers wrap around.")
subtract = _two("subtract", "The difference x1 - x2; integers wrap around.")
multiply = _two("multiply", "The product x1 · x2; integers wrap around.")
divide = _two("divide", "The quotient x1 / x2 as a float.")
floor_divide = _two("floor_divide", "The largest integer not above x1 / x2.")
remainder = _two("remainder", "x1 - floor_divide(x1, x2) · x2, with the sign of x2.")
negative = _one("negative", "-x.")
pow = _two("pow", "x1 to the power x2.")
square = _one("square", "x · x.")
reciprocal = _one("reciprocal", "1 / x.")
sqrt = _one("sqrt", "The square root; NaN below zero.")
rsqrt = _one("rsqrt", "1 / √x, in one operation.")
hypot = _two("hypot", "√(x1² + x2²) without overflow on the way.")
sign = _one("sign", "-1, 0 or 1; NaN stays.")
copysign = _two("copysign", "x1 with the sign of x2.")
nextafter = _two("nextafter", "The neighbour of x1 in the direction of x2.")
maximum = _two("maximum", "The greater of both; NaN if either is NaN.")
minimum = _two("minimum", "The lesser of both; NaN if either is NaN.")

# Rounding
ceil = _one("ceil", "The smallest integer not below x, in the dtype of x.")
floor = _one("floor", "The largest integer not above x, in the dtype of x.")
round = _one("round", "The nearest integer, half to even, in the dtype of x.")
trunc = _one("trunc", "x without its fraction, in the dtype of x.")

# Exponentials and logarithms
exp = _one("exp", "e to the power x.")
exp2 = _one("exp2", "2 to the power x.")
expm1 = _one("expm1", "exp(x) - 1, accurate near zero.")
log = _one("log", "The natural logarithm.")
log1p = _one("log1p", "log(1 + x), accurate near zero.")
log2 = _one("log2", "The logarithm of base 2.")
log10 = _one("log10", "The logarithm of base 10.")
logaddexp = _two("logaddexp", "log(exp(x1) + exp(x2)) without overflow on the way.")

# Trigonometric and hyperbolic functions
sin = _one("sin", "The sine of an angle in radians.")
cos = _one("cos", "The cosine of an angle in radians.")
tan = _one("tan", "The tangent of an angle in radians.")
asin = _one("asin", "The inverse sine, in [-π/2, π/2].")
acos = _one("acos", "The inverse cosine, in [0, π].")
atan = _one("atan", "The inverse tangent, in [-π/2, π/2].")
atan2 = _two("atan2", "The angle of the point (x2, x1), in [-π, π].")
sinh = _one("sinh", "The hyperbolic sine.")
cosh = _one("cosh", "The hyperbolic cosine.")
tanh = _one("tanh", "The hyperbolic tangent.")
asinh = _one("asinh", "The inverse hyperbolic sine.")
acosh = _one("acosh", "The inverse hyperbolic cosine.")
atanh = _one("atanh", "The inverse hyperbolic tangent.")

# Beyond the standard
erf = _one("erf", "The error function, 2/√π ∫₀ˣ exp(-t²) dt.")
erfc = _one("erfc", "1 - erf(x), accurate for large x.")
sigmoid = _one("sigmoid", "The logistic function 1 / (1 + exp(-x)).")

# Comparison
equal = _two("equal", "Whether x1 = x2, a bool array.")
not_equal = _two("not_equal", "Whether x1 ≠ x2, a bool array; true where either is NaN.")
less = _two("less", "Whether x1 < x2, a bool array.")
less_equal = _two("less_equal", "Whether x1 ≤ x2, a bool array.")
greater = _two("greater", "Whether x1 > x2, a bool array.")
greater_equal = _two("greater_equal", "Whether x1 ≥ x2, a bool array.")
isnan = _one("isnan", "Whether x is NaN, a bool array.")
isinf = _one("isinf", "Whether x is infinite, a bool array.")
isfinite = _one("isfinite", "Whether x is neither infinite nor NaN, a bool array.")
signbit = _one("signbit", "Whether the sign bit is set, -0.0 and NaN included.")

# Logic and bits
logical_and = _two("logical_and", "Both, on bool arrays.", _BOOL)
logical_or = _two("logical_or", "Either, on bool arrays.", _BOOL)
logical_xor = _two("logical_xor", "One but not both, on bool arrays.", _BOOL)
bitwise_and = _two("bitwise_and", "x1 & x2, on integers and bools.")
bitwise_or = _two("bitwise_or", "x1 | x2, on integers and bools.")
bitwise_xor = _two("bitwise_xor", "x1 ^ x2, on integers and bools.")
bitwise_invert = _one("bitwise_invert", "~x, on integers and bools.")
bitwise_left_shift = _two("bitwise_left_shift", "x1 · 2^x2, wrapping, on integers.")
bitwise_right_shift = _two("bitwise_right_shift", "x1 / 2^x2 rounded down, on integers.")


def logical_not(x: Any, /) -> Array:
    """The opposite, on bool arrays.  Raises DTypeError for others."""
    node = value(x, "logical_not")
    _check("logical_not", _BOOL, node)
    return Array.of(UNARY["logical_not"](node))


def positive(x: Any, /) -> Array:
    """`x` itself, for numeric arrays.  Raises DTypeError for bool."""
    node = value(x, "positive")
    _check("positive", ("int", "uint", "float"), node)
    return Array.of(node)


def real(x: Any, /) -> Array:
    """`x` itself: there are no complex arrays."""
    return positive(x)


def conj(x: Any, /) -> Array:
    """`x` itself: there are no complex arrays."""
    return positive(x)


def imag(x: Any, /) -> Array:
    """Zeros of the shape and dtype of `x`: there are no complex arrays."""
    return zeros_like(positive(x))


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """`x` kept between `min` and `max`, each None, a number or an array that broadcasts with x.

    The dtype is that of `x`, and a bound beyond its range is as good as the end of that range.  NaN
    in any argument gives NaN; where min > max the result is max.
    """
    node = value(x, "clip")
    dtype = node.type.dtype
    for bound, what in ((min, "maximum"), (max, "minimum")):
        if bound is None:
            continue
        limit = number_or_value(bound, "clip")
        if isinstance(limit, Value):
            limit = _within(node, limit)
        elif dtype.is_integer and isinstance(limit, (int, float)):
            limit = _whole_bound(limit, dtype, math.ceil if what == "maximum" else math.floor)
        node = BINARY[what](node, limit)
    return Array.of(cast(node, dtype))


def _within(x: Value, limit: Value) -> Value:
    """An array of bounds in the type of x: integers that it does not hold become its ends."""
    dtype, own = x.type.dtype, limit.type.dtype
    if own.is_float and not dtype.is_float:
        raise DTypeError(f"clip({x.told}): a bound of {limit.told} is no {dtype.long}")
    if dtype.is_integer and own.is_integer:
        ends, given = np.iinfo(dtype.numpy), np.iinfo(own.numpy)
        if given.min < ends.min:
            limit = BINARY["maximum"](limit, int(ends.min))
        if given.max > ends.max:
            limit = BINARY["minimum"](limit, int(ends.max))
    return cast(limit, dtype)


def _whole_bound(bound: float, dtype: DType, rounded: Callable[[float], int]) -> int:
    """The integer of `dtype` that bounds as `bound` does.  Raises ArgumentError for NaN."""
    if bound != bound:
        raise ArgumentError(
            op="clip", argument="a bound", value=bound, expected=f"a number, beside {dtype.long}"
        )
    ends = np.iinfo(dtype.numpy)
    if not ends.min <= bound <= ends.max:
        return int(ends.min if bound < ends.min else ends.max)
    return rounded(bound)


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """`x1` where the bool array `condition` is true, else `x2`; all three broadcast.

    Raises ShapeError, and DTypeError for a condition that is not bool.
    """
    mask = value(condition, "where")
    if mask.type.dtype is not bool_:
        raise DTypeError(f"where: the condition is {mask.told}, not bool")
    x, y = number_or_value(x1, "where"), number_or_value(x2, "where")
    known = [v.type.dtype for v in (x, y) if isinstance(v, Value)]
    loose = [v for v in (x, y) if not isinstance(v, Value)]
    if known:
        dtype = common("where", *known)
        for v in loose:
            dtype = weak(dtype, v)
    else:
        dtype = weak(weak(bool_, x), y)
    x, y = (cast(v, dtype) if isinstance(v, Value) else number(v, dtype, "where") for v in (x, y))
    return Array.of(_chosen(mask, x, y))


@replayed
def _chosen(mask: Value, x: Value, y: Value) -> Value:
    align("where", mask, x, y)
    return record(SELECT, (mask, x, y))
