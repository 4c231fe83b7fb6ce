"""Scalar rows, third chapter: powers, exponentials, logarithms, circular and special functions.

>>> from smelt.ops.scalar import SCALARS
>>> SCALARS["exp"].monotone, SCALARS["tanh"].derivative is not None
((1,), True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.ops import approximate, approximate_circular, approximate_special
from smelt.ops.coefficients import FITS
from smelt.ops.machine import Machine
from smelt.ops.reference import Array, accurate, each
from smelt.ops.scalar_arithmetic import (
    BINARY,
    FLOAT_BINARY,
    FLOAT_UNARY,
    integer_power,
    reference_integer_power,
)
from smelt.ops.spec_scalar import Lower, ScalarOp
from smelt.types.dtype import DType

M = Machine[Any]
V = Any

LN2 = math.log(2)
LN10 = math.log(10)


def _formula(function: Callable[..., Any]) -> Lower:
    """The lowering of a formula that takes a `Fit`."""
    return lambda m, d, *args: function(m, FITS[d.compute.name], *args)


def _power(m: M, d: DType, x: V, y: V) -> V:
    if d.is_float:
        return approximate_special.power(m, FITS[d.compute.name], x, y)
    return integer_power(m, d, x, y)


def _power_reference(x: Array, y: Array) -> Array:
    if np.asarray(x).dtype.kind in "iu":
        return reference_integer_power(x, y)
    return accurate(np.power)(x, y)


def _sigmoid_reference(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _unary(
    name: str, doc: str, reference: Any, formula: Callable[..., Any], cost: float,
    partial: Callable[..., Any], monotone: int = 0, base: float = 0.0,
) -> ScalarOp:  # fmt: skip
    return ScalarOp(
        name, 1, doc, FLOAT_UNARY, accurate(reference), _formula(formula), cost=cost,
        monotone=(monotone,), base=base, derivative=(partial,),
    )  # fmt: skip


def _square_plus(a: Any, x: Any, y: Any) -> Any:
    return a.add(a.square(x), a.square(y))


def _bell(a: Any, x: Any, height: float) -> Any:
    """height · e^(-x²)."""
    return a.mul(a.const(height), a.exp(a.neg(a.square(x))))


def _power_base(a: Any, x: Any, y: Any, r: Any) -> Any:
    """y x^(y-1), and 0 where y is 0 (also at x = 0, where the power would be infinite)."""
    none = a.const(0.0)
    slope = a.mul(y, a.pow(x, a.sub(y, a.const(1.0))))
    return a.select(a.eq(y, none), none, slope)


def _power_exponent(a: Any, x: Any, y: Any, r: Any) -> Any:
    """x^y ln x, and 0 at x = 0 for y ≥ 0, its limit."""
    none, one = a.const(0.0), a.const(1.0)
    at_zero = a.select(a.eq(x, none), a.ge(y, none), a.lt(one, none))
    safe = a.select(at_zero, one, x)
    return a.select(at_zero, none, a.mul(r, a.log(safe)))


_ap, _ac, _as = approximate, approximate_circular, approximate_special

ROWS = (
    ScalarOp(
        "pow", 2, "x^y; integers wrap, and reciprocals are truncated", BINARY,
        _power_reference, _power,
        cost=38.0, monotone=(0, 0), derivative=(_power_base, _power_exponent),
    ),
    _unary("exp", "e^x", np.exp, _ap.exp, 6.5, lambda a, x, r: r, 1, math.e),
    _unary("exp2", "2^x", np.exp2, _ap.exp2, 5.5, lambda a, x, r: a.mul(r, a.const(LN2)), 1,
           2.0),
    _unary("expm1", "e^x - 1", np.expm1, _ap.expm1, 10.0,
           lambda a, x, r: a.add(r, a.const(1.0)), 1),
    _unary("log", "the natural logarithm", np.log, _ap.log, 8.0,
           lambda a, x, r: a.reciprocal(x), 1),
    _unary("log2", "the binary logarithm", np.log2, _ap.log2, 8.5,
           lambda a, x, r: a.reciprocal(a.mul(x, a.const(LN2))), 1),
    _unary("log10", "the decimal logarithm", np.log10, _ap.log10, 9.5,
           lambda a, x, r: a.reciprocal(a.mul(x, a.const(LN10))), 1),
    _unary("log1p", "ln(1 + x)", np.log1p, _ap.log1p, 16.0,
           lambda a, x, r: a.reciprocal(a.add(x, a.const(1.0))), 1),
    ScalarOp(
        "logaddexp", 2, "ln(e^x + e^y)", FLOAT_BINARY, accurate(np.logaddexp),
        _formula(_as.logaddexp),
        cost=40.0, commutative=True, associative=True, identity=lambda d: float("-inf"),
        monotone=(1, 1),
        derivative=(
            lambda a, x, y, r: a.sigmoid(a.sub(x, y)),
            lambda a, x, y, r: a.sigmoid(a.sub(y, x)),
        ),
    ),
    _unary("sin", "the sine", np.sin, _ac.sin, 10.5, lambda a, x, r: a.cos(x)),
    _unary("cos", "the cosine", np.cos, _ac.cos, 10.5, lambda a, x, r: a.neg(a.sin(x))),
    _unary("tan", "the tangent", np.tan, _ac.tan, 12.0,
           lambda a, x, r: a.add(a.const(1.0), a.square(r))),
    _unary("asin", "the angle whose sine is x", np.arcsin, _ac.asin, 8.0,
           lambda a, x, r: a.rsqrt(a.sub(a.const(1.0), a.square(x))), 1),
    _unary("acos", "the angle whose cosine is x", np.arccos, _ac.acos, 10.5,
           lambda a, x, r: a.neg(a.rsqrt(a.sub(a.const(1.0), a.square(x)))), -1),
    _unary("atan", "the angle whose tangent is x", np.arctan, _ac.atan, 11.5,
           lambda a, x, r: a.reciprocal(a.add(a.const(1.0), a.square(x))), 1),
    ScalarOp(
        "atan2", 2, "the angle of the point (y, x): first operand up, second across",
        FLOAT_BINARY, accurate(np.arctan2), _formula(_ac.atan2), cost=21.0, monotone=(0, 0),
        derivative=(
            lambda a, y, x, r: a.div(x, _square_plus(a, x, y)),
            lambda a, y, x, r: a.neg(a.div(y, _square_plus(a, x, y))),
        ),
    ),
    _unary("sinh", "the hyperbolic sine", np.sinh, _ap.sinh, 11.5,
           lambda a, x, r: a.cosh(x), 1),
    _unary("cosh", "the hyperbolic cosine", np.cosh, _ap.cosh, 11.0,
           lambda a, x, r: a.sinh(x)),
    _unary("tanh", "the hyperbolic tangent", np.tanh, _ap.tanh, 12.5,
           lambda a, x, r: a.sub(a.const(1.0), a.square(r)), 1),
    _unary("asinh", "the number whose hyperbolic sine is x", np.arcsinh, _ap.asinh, 33.0,
           lambda a, x, r: a.rsqrt(a.add(a.const(1.0), a.square(x))), 1),
    _unary("acosh", "the number whose hyperbolic cosine is x", np.arccosh, _ap.acosh, 30.0,
           lambda a, x, r: a.rsqrt(a.sub(a.square(x), a.const(1.0))), 1),
    _unary("atanh", "the number whose hyperbolic tangent is x", np.arctanh, _ap.atanh, 24.0,
           lambda a, x, r: a.reciprocal(a.sub(a.const(1.0), a.square(x))), 1),
    _unary("erf", "the error function", each(math.erf), _as.erf, 16.0,
           lambda a, x, r: _bell(a, x, 2 / math.sqrt(math.pi)), 1),
    _unary("erfc", "1 - erf x", each(math.erfc), _as.erfc, 21.0,
           lambda a, x, r: _bell(a, x, -2 / math.sqrt(math.pi)), -1),
    _unary("sigmoid", "1 / (1 + e^-x)", _sigmoid_reference, _ap.sigmoid, 12.0,
           lambda a, x, r: a.mul(r, a.sub(a.const(1.0), r)), 1),
    ScalarOp(
        "hypot", 2, "√(x² + y²)", FLOAT_BINARY, accurate(np.hypot), _formula(_as.hypot),
        cost=14.0, commutative=True, monotone=(0, 0),
        annihilator=lambda d: float("inf"),
        derivative=(lambda a, x, y, r: a.div(x, r), lambda a, x, y, r: a.div(y, r)),
    ),
)  # fmt: skip
