"""Define scalar rows for powers, exponentials, logarithms, circular and special functions.

>>> from smelt.ops.scalar import SCALARS
>>> SCALARS["exp"].monotone, SCALARS["tanh"].derivative is not None
((1,), True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.ops import approximate, approximate_functions
from smelt.ops.coefficients import FITS, Fit
from smelt.ops.machine import Machine
from smelt.ops.reference import Array, accurate, elementwise_float64, plain
from smelt.ops.scalar_arithmetic import (
    BINARY,
    FLOAT_BINARY,
    FLOAT_UNARY,
    FLOATS,
    integer_power,
    reference_integer_power,
)
from smelt.ops.spec import Lower, Rule, ScalarOp
from smelt.types.dtype import DType, f32, i32, u8

_ap, _af = approximate, approximate_functions
M = Machine[Any]
V = Any

LN2 = math.log(2)
LN10 = math.log(10)


def _formula(function: Callable[..., Any]) -> Lower:
    """Return the lowering of a formula that takes a `Fit`."""
    return lambda m, d, *args: function(m, FITS[d.compute.name], *args)


def _power(m: M, d: DType, x: V, y: V) -> V:
    if d.is_float:
        return approximate_functions.power(m, FITS[d.compute.name], x, y)
    return integer_power(m, d, x, y)


def _exp2_byte(m: M, d: DType, e: V) -> V:
    """Shift the exponent into its place; 2^-127, for 0, is subnormal."""
    power, least = m.shl(m.convert(e, u8, i32), m.const(i32, 23)), m.const(i32, 1 << 22)
    return m.bitcast(m.select(m.compare("gt", power, least), power, least), f32)


def _power_reference(x: Array, y: Array) -> Array:
    if np.asarray(x).dtype.kind in "iu":
        return reference_integer_power(x, y)
    return accurate(np.power)(x, y)


def _sigmoid_reference(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


LN2_HIGH, LN2_LOW = 0xB17217F7 / 2**32, 1.9082149292705877e-10
"""ln 2 as a sum whose first part has 32 bits: its products with integers of 20 bits (in extended
precision: 32) are exact."""


def _fit(x: Array) -> Fit:
    return FITS["f64" if x.dtype == np.float64 else "f32"]


def _scaled_power(x: Array, n: Array, base: float) -> Array:
    """Compute b^x / 2^n, with the same significand for every n.

    It is (b^f) · 2^(k - n), and 0 where k - n is below the least exponent of a weight.
    """
    v = x.astype(np.longdouble if x.dtype == np.float64 else np.float64)
    float_type = v.dtype.type
    k = np.rint(v if base == 2.0 else v * float_type(_fit(x).log2_e[0]))
    high, low = float_type(LN2_HIGH), float_type(LN2_LOW)
    r = (v - k) * (high + low) if base == 2.0 else v - k * high - k * low
    r = np.where(np.isfinite(r), np.clip(r, -1, 1), np.where(np.isnan(x), np.nan, 0))
    exponent = np.clip(np.nan_to_num(k - n, posinf=5000, neginf=-5000), -5000, 5000).astype(
        np.int32
    )
    result = np.ldexp(np.exp(r).astype(np.float64), exponent).astype(x.dtype)
    return np.where(
        (exponent < _fit(x).min_weight_exponent) & ~np.isnan(x), x.dtype.type(0), result
    )


def _far_reference(y: Array) -> Array:
    near = abs(y) < approximate.over_limit(_fit(y))
    return np.where(near | (y == -np.inf), 0, y).astype(y.dtype)


def _whole_reference(y: Array, base: float) -> Array:
    near = np.where(abs(y) < approximate.over_limit(_fit(y)), y, 0)
    return np.rint(near * y.dtype.type(1.0 if base == 2.0 else _fit(y).log2_e[0])).astype(np.int32)


def _moved_reference(y: Array, z: Array, base: float) -> Array:
    a, c = _far_reference(y), _far_reference(z)
    factor = _scaled_power(
        np.where(a == c, 0, a - c), _whole_reference(z, base) - _whole_reference(y, base), base
    )
    return np.where(y == -np.inf, 0, factor)


def _scaled_rows(
    name: str, b: str, base: float, nearest: Any, over: Any, moved: Any
) -> tuple[ScalarOp, ...]:
    """Return rows for powers of a base divided by a power of 2.

    Only kernels that accumulate sums of exponentials use these rows, so they need no derivative.
    """
    return (
        ScalarOp(
            f"{name}_whole",
            1,
            f"the whole n of the power of 2 nearest {b}^x; 0 for a far x",
            Rule((FLOATS,), i32),
            plain(lambda y: _whole_reference(y, base)),
            _formula(nearest),
            cost=2.0,
        ),
        ScalarOp(
            f"{name}_over",
            2,
            f"{b}^x / 2^n, n of type int32, in the same digits for every n; 0 if far less than 1."
            "  No x is above 2^17 (float64: 2^28)",
            Rule((FLOATS, ("int",)), fixed=((1, i32),)),
            plain(lambda x, n: _scaled_power(x, n, base)),
            _formula(over),
            cost=5.5 if base == 2.0 else 6.5,
            monotone=(1, -1),
        ),
        ScalarOp(
            f"{name}_moved",
            2,
            f"2^(n - k) of the whole n and k of {b}^x and {b}^y",
            FLOAT_BINARY,
            plain(lambda y, z: _moved_reference(y, z, base)),
            _formula(moved),
            cost=10.0,
            monotone=(1, 0),
        ),
    )


def _unary(
    name: str,
    doc: str,
    reference: Any,
    formula: Callable[..., Any],
    cost: float,
    partial: Callable[..., Any],
    monotone: int = 0,
    base: float = 0.0,
    over: tuple[str, ...] = (),
    of_exponent: str = "",
) -> ScalarOp:
    return ScalarOp(
        name,
        1,
        doc,
        FLOAT_UNARY,
        accurate(reference),
        _formula(formula),
        cost=cost,
        monotone=(monotone,),
        base=base,
        over=over,
        of_exponent=of_exponent,
        derivative=(partial,),
    )


def _square_plus(a: Any, x: Any, y: Any) -> Any:
    return a.add(a.square(x), a.square(y))


def _ratio(a: Any, x: Any, r: Any) -> Any:
    """Return x / r, and 0 where r is: a distance of zero has the subgradient 0, like |x|."""
    zero = a.const(0.0)
    at_zero = a.eq(r, zero)
    return a.select(at_zero, zero, a.div(x, a.select(at_zero, a.const(1.0), r)))


def _bell(a: Any, x: Any, height: float) -> Any:
    """Return height · e^(-x²)."""
    return a.mul(a.const(height), a.exp(a.neg(a.square(x))))


def _power_base(a: Any, x: Any, y: Any, r: Any) -> Any:
    """Return y x^(y-1), and 0 where y is 0.

    Also at x = 0, where the power would be infinite.
    """
    zero = a.const(0.0)
    slope = a.mul(y, a.pow(x, a.sub(y, a.const(1.0))))
    return a.select(a.eq(y, zero), zero, slope)


def _power_exponent(a: Any, x: Any, y: Any, r: Any) -> Any:
    """Return x^y ln x, the derivative of r = x^y with respect to y.

    At x = 0 and y ≥ 0 it is the limit 0.
    """
    zero, one = a.const(0.0), a.const(1.0)
    at_zero = a.select(a.eq(x, zero), a.ge(y, zero), a.lt(one, zero))
    safe = a.select(at_zero, one, x)
    return a.select(at_zero, zero, a.mul(r, a.log(safe)))


ROWS = (
    ScalarOp(
        "pow", 2, "x^y; integers wrap, and reciprocals are truncated", BINARY,
        _power_reference, _power,
        cost=34.0, monotone=(0, 0), derivative=(_power_base, _power_exponent),
    ),
    _unary("exp", "e^x", np.exp, _ap.exp, 6.5, lambda a, x, r: r, 1, math.e,
           ("exp_far", "exp_whole", "exp_over", "exp_moved")),
    _unary("exp2", "2^x", np.exp2, _ap.exp2, 5.5, lambda a, x, r: a.mul(r, a.const(LN2)), 1,
           2.0, ("exp_far", "exp2_whole", "exp2_over", "exp2_moved"), "exp2_byte"),
    ScalarOp(
        "exp2_byte", 1, "2^(e - 127) of a byte e, in float32",
        Rule((("uint",),), f32, fixed=((0, u8),)),
        plain(lambda e: np.ldexp(np.float32(1), e.astype(np.int32) - 127)), _exp2_byte,
        cost=1.0, monotone=(1,),
    ),
    ScalarOp(
        "exp_far", 1, "x where its exponential is not nearly a power of 2: infinite, NaN, beyond"
        " 2^17 (float64: 2^28); else 0, as for -inf", FLOAT_UNARY, plain(_far_reference),
        _formula(_ap.exp_far), cost=1.5,
    ),
    *_scaled_rows("exp", "e", math.e, _ap.exp_whole, _ap.exp_over, _ap.exp_moved),
    *_scaled_rows("exp2", "2", 2.0, _ap.exp2_whole, _ap.exp2_over, _ap.exp2_moved),
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
        _formula(_af.logaddexp),
        cost=31.0, commutative=True, associative=True, identity=lambda d: float("-inf"),
        monotone=(1, 1),
        derivative=(
            lambda a, x, y, r: a.sigmoid(a.sub(x, y)),
            lambda a, x, y, r: a.sigmoid(a.sub(y, x)),
        ),
    ),
    _unary("sin", "the sine", np.sin, _af.sin, 10.5, lambda a, x, r: a.cos(x)),
    _unary("cos", "the cosine", np.cos, _af.cos, 10.5, lambda a, x, r: a.neg(a.sin(x))),
    _unary("tan", "the tangent", np.tan, _af.tan, 12.0,
           lambda a, x, r: a.add(a.const(1.0), a.square(r))),
    _unary("asin", "the angle whose sine is x", np.arcsin, _af.asin, 8.0,
           lambda a, x, r: a.rsqrt(a.sub(a.const(1.0), a.square(x))), 1),
    _unary("acos", "the angle whose cosine is x", np.arccos, _af.acos, 10.5,
           lambda a, x, r: a.neg(a.rsqrt(a.sub(a.const(1.0), a.square(x)))), -1),
    _unary("atan", "the angle whose tangent is x", np.arctan, _af.atan, 11.5,
           lambda a, x, r: a.reciprocal(a.add(a.const(1.0), a.square(x))), 1),
    ScalarOp(
        "atan2", 2, "the angle of the point (y, x): first operand up, second across",
        FLOAT_BINARY, accurate(np.arctan2), _formula(_af.atan2), cost=26.0, monotone=(0, 0),
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
    _unary("asinh", "the number whose hyperbolic sine is x", np.arcsinh, _ap.asinh, 26.0,
           lambda a, x, r: a.rsqrt(a.add(a.const(1.0), a.square(x))), 1),
    _unary("acosh", "the number whose hyperbolic cosine is x", np.arccosh, _ap.acosh, 24.0,
           lambda a, x, r: a.rsqrt(a.sub(a.square(x), a.const(1.0))), 1),
    _unary("atanh", "the number whose hyperbolic tangent is x", np.arctanh, _ap.atanh, 20.0,
           lambda a, x, r: a.reciprocal(a.sub(a.const(1.0), a.square(x))), 1),
    _unary("erf", "the error function", elementwise_float64(math.erf), _af.erf, 7.5,
           lambda a, x, r: _bell(a, x, 2 / math.sqrt(math.pi)), 1),
    _unary("erfc", "1 - erf x", elementwise_float64(math.erfc), _af.erfc, 21.0,
           lambda a, x, r: _bell(a, x, -2 / math.sqrt(math.pi)), -1),
    _unary("sigmoid", "1 / (1 + e^-x)", _sigmoid_reference, _ap.sigmoid, 12.0,
           lambda a, x, r: a.mul(r, a.sub(a.const(1.0), r)), 1),
    ScalarOp(
        "hypot", 2, "√(x² + y²)", FLOAT_BINARY, accurate(np.hypot), _formula(_af.hypot),
        cost=14.0, commutative=True, monotone=(0, 0),
        annihilator=lambda d: float("inf"),
        derivative=(lambda a, x, y, r: _ratio(a, x, r), lambda a, x, y, r: _ratio(a, y, r)),
    ),
)  # fmt: skip
