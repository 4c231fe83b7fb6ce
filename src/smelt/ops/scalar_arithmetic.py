"""Define scalar rows for arithmetic, rounding, and everything else that is exact.

>>> from smelt.ops.scalar import SCALARS
>>> SCALARS["add"].infix, SCALARS["add"].numpy(np.int8(127), np.int8(1))
('+', array(-128, dtype=int8))
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from smelt.ops.machine import Machine
from smelt.ops.reference import Array, accurate, fused_multiply_add, plain
from smelt.ops.spec import Number, Rule, ScalarOp
from smelt.types.dtype import DType, Kind, f32, i32, i64

M = Machine[Any]
V = Any

NUMBERS: tuple[Kind, ...] = ("int", "uint", "float")
FLOATS: tuple[Kind, ...] = ("float",)
INTEGERS: tuple[Kind, ...] = ("int", "uint")
UNARY, BINARY = Rule((NUMBERS,)), Rule((NUMBERS, NUMBERS))
FLOAT_UNARY, FLOAT_BINARY = Rule((FLOATS,)), Rule((FLOATS, FLOATS))
FLOAT_TERNARY = Rule((FLOATS, FLOATS, FLOATS))


def _integer_of(dtype: DType) -> DType:
    """Return the signed integer type as wide as the registers of `dtype`."""
    return i64 if dtype.compute.bits == 64 else i32


def lowest(dtype: DType) -> Number:
    """Return the least value of a type (minus infinity for floats)."""
    if dtype.is_float:
        return float("-inf")
    return False if dtype.kind == "bool" else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> Number:
    """Return the greatest value of a type (infinity for floats)."""
    if dtype.is_float:
        return float("inf")
    return True if dtype.kind == "bool" else int(np.iinfo(dtype.numpy).max)


# Lowerings


def _constant_first(m: M, x: V, y: V) -> tuple[V, V] | None:
    """Return the operands of max or min, a nonzero constant first, or None.

    With the constant first, `Machine.greater` and `Machine.lesser` propagate a NaN of the other
    operand without a further test.
    """
    for constant, other in ((y, x), (x, y)):
        number = m.number(constant)
        if number is not None and number == number != 0:
            return constant, other
    return None


def _max(m: M, d: DType, x: V, y: V) -> V:
    if d.is_float:
        if pair := _constant_first(m, x, y):
            return m.greater(*pair)
        return m.select(m.compare("ne", x, x), x, m.greater(x, y))
    return m.select(m.compare("gt", x, y, signed=d.kind == "int"), x, y)


def _min(m: M, d: DType, x: V, y: V) -> V:
    if d.is_float:
        if pair := _constant_first(m, x, y):
            return m.lesser(*pair)
        return m.select(m.compare("ne", x, x), x, m.lesser(x, y))
    return m.select(m.compare("lt", x, y, signed=d.kind == "int"), x, y)


def _max_reference(x: Array, y: Array) -> Array:
    """Return the greater; of equal numbers the second, which is one of two zeros."""
    return np.where((x > y) | (x != x), x, y)


def _abs(m: M, d: DType, x: V) -> V:
    if d.is_float:
        return m.abs(x)
    if d.kind == "uint":
        return x
    return m.select(m.compare("lt", x, m.const(d, 0)), m.neg(x), x)


def _sign(m: M, d: DType, x: V) -> V:
    zero, one = m.const(d, 0), m.const(d, 1)
    if d.kind == "uint":
        return m.select(m.compare("ne", x, zero), one, zero)
    rest = m.select(m.compare("ne", x, x), x, zero) if d.is_float else zero
    rest = m.select(m.compare("lt", x, zero), m.const(d, -1), rest)
    return m.select(m.compare("gt", x, zero), one, rest)


def _fmod(m: M, d: DType, x: V, y: V) -> V:
    """Compute x - trunc(x/y)·y, exactly.

    One fma suffices while the quotient is exact, else the C library's fmod is called.  The rounded
    quotient can only be one too large, which the sign of the remainder shows.
    """
    quotient = m.div(x, y)
    r = m.fma(m.neg(m.trunc(quotient)), y, x)
    zero = m.const(d, 0.0)
    overshot = m.xor(m.compare("lt", r, zero), m.compare("lt", x, zero))
    overshot = m.and_(overshot, m.compare("ne", r, zero))
    r = m.select(overshot, m.add(r, m.copysign(y, x)), r)
    r = m.select(m.compare("eq", r, zero), m.copysign(r, x), r)
    bound = m.const(d, 2.0 ** (22 if d.compute == f32 else 51))
    easy = m.compare("lt", m.abs(quotient), bound)
    easy = m.and_(easy, m.compare("lt", m.abs(y), m.const(d, float("inf"))))
    return m.rare(m.not_(easy), r, lambda: m.libm("fmod", x, y))


def _needs_floor_correction(m: M, d: DType, r: V, y: V) -> V:
    """Return where a truncated remainder r must be corrected by y: nonzero, of opposite sign."""
    zero = m.const(d, 0)
    signs = m.xor(m.compare("lt", r, zero), m.compare("lt", y, zero))
    return m.and_(signs, m.compare("ne", r, zero))


def _safe_divisor(m: M, d: DType, x: V, y: V) -> V:
    """Replace divisors of 0, and of -1 for the most negative x, by 1."""
    if m.number(y) not in (None, 0, -1):
        return y  # a constant stays one, so that division becomes a multiplication
    bad = m.compare("eq", y, m.const(d, 0))
    if d.kind == "int":
        wraps = m.compare("eq", x, m.const(d, lowest(d)))
        bad = m.or_(bad, m.and_(wraps, m.compare("eq", y, m.const(d, -1))))
    return m.select(bad, m.const(d, 1), y)


def _floor_divide(m: M, d: DType, x: V, y: V) -> V:
    return m.floor_int(x, y) if d.kind == "int" else m.divide_int(x, y, signed=False)


def _floordiv(m: M, d: DType, x: V, y: V) -> V:
    zero, one = m.const(d, 0), m.const(d, 1)
    if not d.is_float:
        q = _floor_divide(m, d, x, _safe_divisor(m, d, x, y))
        return m.select(m.compare("eq", y, zero), zero, q)
    plain_quotient = m.div(x, y)
    r = _fmod(m, d, x, y)
    q = m.div(m.sub(x, r), y)
    q = m.select(_needs_floor_correction(m, d, r, y), m.sub(q, one), q)
    floor = m.floor(q)
    near = m.compare("gt", m.sub(q, floor), m.const(d, 0.5))
    floor = m.select(near, m.add(floor, one), floor)
    floor = m.select(m.compare("eq", q, zero), m.copysign(zero, plain_quotient), floor)
    return m.select(m.compare("eq", y, zero), plain_quotient, floor)


def _mod(m: M, d: DType, x: V, y: V) -> V:
    zero = m.const(d, 0)
    if not d.is_float:
        safe = _safe_divisor(m, d, x, y)
        r = m.sub(x, m.mul(_floor_divide(m, d, x, safe), safe))
        return m.select(m.compare("eq", y, zero), zero, r)
    r = _fmod(m, d, x, y)
    corrected = m.select(_needs_floor_correction(m, d, r, y), m.add(r, y), r)
    return m.select(m.compare("eq", r, zero), m.copysign(r, y), corrected)


def _rounding(operation: str) -> Any:
    """Return the lowering of a rounding of floats, which leaves integers unchanged."""
    return lambda m, d, x: getattr(m, operation)(x) if d.is_float else x


def _signbit(m: M, d: DType, x: V) -> V:
    integer = _integer_of(d)
    return m.compare("lt", m.bitcast(x, integer), m.const(integer, 0))


def _nextafter(m: M, d: DType, x: V, y: V) -> V:
    """Step the bit pattern of x by one towards y."""
    if d.compute != d:
        return _next_half(m, d, x, y)
    integer = _integer_of(d)
    bits = m.bitcast(x, integer)
    zero, one = m.const(d, 0.0), m.const(integer, 1)
    grows = m.not_(m.xor(m.compare("lt", x, y), m.compare("gt", x, zero)))
    stepped = m.bitcast(m.select(grows, m.add(bits, one), m.sub(bits, one)), d)
    least = m.bitcast(one, d)
    result = m.select(m.compare("eq", x, zero), m.copysign(least, y), stepped)
    result = m.select(m.compare("eq", x, y), y, result)
    unordered = m.or_(m.compare("ne", x, x), m.compare("ne", y, y))
    return m.select(unordered, m.add(x, y), result)


def _next_half(m: M, d: DType, x: V, y: V) -> V:
    """Return the neighbour of a half-precision number by float32 arithmetic.

    Adding 5/8 to 5/4 of the spacing rounds to the neighbour: also below a power of two, where the
    spacing halves, and above, where it doubles.
    """
    info = ml_dtypes.finfo(d.numpy)
    least, most = float(info.smallest_subnormal), float(info.max)
    size = m.abs(x)
    relative = m.mul(size, m.const(f32, 0.625 * float(info.eps)))
    floor = m.const(f32, 0.625 * least)
    step = m.select(m.compare("lt", relative, floor), floor, relative)
    result = m.select(m.compare("lt", x, y), m.add(x, step), m.sub(x, step))
    infinite = m.compare("eq", size, m.const(f32, float("inf")))
    result = m.select(infinite, m.copysign(m.const(f32, most), x), result)
    result = m.select(m.compare("eq", x, y), y, result)
    result = m.select(m.compare("ne", y, y), y, result)
    return m.round_half(m.select(m.compare("ne", x, x), x, result), d)


def _ldexp(m: M, d: DType, x: V, n: V) -> V:
    """Split x into fraction and exponent, so that only the last step can round."""
    d = d.compute
    integer, mantissa, bias = (i32, 23, 127) if d == f32 else (i64, 52, 1023)
    reach = 2 * bias
    lift = mantissa + 1
    small = m.compare("lt", m.abs(x), m.const(d, 2.0 ** (1 - bias)))
    normal = m.select(small, m.mul(x, m.const(d, 2.0**lift)), x)
    bits = m.bitcast(normal, integer)
    fraction = m.and_(bits, m.const(integer, ~(2 * bias + 1 << mantissa)))
    fraction = m.bitcast(m.or_(fraction, m.const(integer, bias << mantissa)), d)
    e = m.and_(m.lshr(bits, m.const(integer, mantissa)), m.const(integer, 2 * bias + 1))
    e = m.sub(e, m.select(small, m.const(integer, bias + lift), m.const(integer, bias)))
    n = _clamp(m, i32, n, 3 * reach)
    total = m.add(e, n if integer == i32 else m.convert(n, i32, i64))
    total = m.convert(_clamp(m, integer, total, reach - 6), integer, d)
    y = m.scale(fraction, total)
    finite = m.compare("lt", m.abs(x), m.const(d, float("inf")))
    zero = m.compare("eq", x, m.const(d, 0.0))
    return m.select(m.and_(finite, m.not_(zero)), y, x)


def _clamp(m: M, d: DType, n: V, limit: int) -> V:
    high, low = m.const(d, limit), m.const(d, -limit)
    n = m.select(m.compare("gt", n, high), high, n)
    return m.select(m.compare("lt", n, low), low, n)


def integer_power(m: M, d: DType, x: V, n: V) -> V:
    """Raise to an integer power by square and multiply, one step per exponent bit; wraps.

    A negative exponent gives the truncated reciprocal: 0 except for x = ±1 (and 0 for x = 0).
    """
    zero, one = m.const(d, 0), m.const(d, 1)

    def going(state: tuple[V, ...]) -> V:
        return m.compare("ne", state[2], zero)

    def step(state: tuple[V, ...]) -> tuple[V, ...]:
        result, base, rest = state
        odd = m.compare("ne", m.and_(rest, one), zero)
        result = m.select(odd, m.mul(result, base), result)
        return result, m.mul(base, base), m.lshr(rest, one)

    result, _, _ = m.repeat(going, step, (one, x, n))
    if d.kind == "uint":
        return result
    unit = m.or_(m.compare("eq", x, one), m.compare("eq", x, m.const(d, -1)))
    odd = m.compare("ne", m.and_(n, one), zero)
    reciprocal = m.select(unit, m.select(odd, x, one), zero)
    return m.select(m.compare("lt", n, zero), reciprocal, result)


# References that are not a single NumPy function


def _reference_nextafter(x: Array, y: Array) -> Array:
    """Return NumPy's nextafter, except y for equal operands as in C99.

    The sign of a zero then follows y.
    """
    with np.errstate(all="ignore"):
        result = np.asarray(np.nextafter(x, y)).astype(np.asarray(x).dtype)
        return np.where(np.equal(x, y), y, result)


def reference_integer_power(x: Array, n: Array) -> Array:
    """Compute wrapping integer powers, with truncated reciprocals."""
    x, n = np.broadcast_arrays(x, n)
    positive = np.maximum(n, np.zeros((), n.dtype))
    with np.errstate(all="ignore"):
        result = np.power(x, positive)
        if x.dtype.kind == "u":
            return result
        odd = (n & 1).astype(bool)
        reciprocal = np.where(abs(x) == 1, np.where(odd, x, 1), 0).astype(x.dtype)
        return np.where(n < 0, reciprocal, result)


def _extreme_partial(a: Any, x: Any, y: Any, wins: Any) -> Any:
    """Differentiate max and min: ties share the gradient evenly."""
    one, none, half = a.const(1.0), a.const(0.0), a.const(0.5)
    return a.select(a.eq(x, y), half, a.select(wins, one, none))


def _zero(a: Any, *_: Any) -> Any:
    """Differentiate functions that are flat almost everywhere."""
    return a.const(0.0)


def _one(a: Any, *_: Any) -> Any:
    return a.const(1.0)


ROWS = (
    ScalarOp(
        "add", 2, "x + y", BINARY, plain(np.add), lambda m, d, x, y: m.add(x, y),
        cost=0.5, commutative=True, associative=True, identity=lambda d: 0, monotone=(1, 1),
        linear=(1, 1), infix="+", derivative=(_one, _one),
    ),
    ScalarOp(
        "sub", 2, "x - y", BINARY, plain(np.subtract), lambda m, d, x, y: m.sub(x, y),
        cost=0.5, monotone=(1, -1), linear=(1, -1), infix="-",
        derivative=(_one, lambda a, x, y, r: a.const(-1.0)),
    ),
    ScalarOp(
        "mul", 2, "x · y", BINARY, plain(np.multiply), lambda m, d, x, y: m.mul(x, y),
        cost=0.5, commutative=True, associative=True, identity=lambda d: 1,
        annihilator=lambda d: None if d.is_float else 0, monotone=(0, 0), powers=(1, 1), infix="*",
        derivative=(lambda a, x, y, r: y, lambda a, x, y, r: x),
    ),
    ScalarOp(
        "fma", 3, "x · y + z, rounded once", FLOAT_TERNARY, plain(fused_multiply_add),
        lambda m, d, x, y, z: m.fma(x, y, z), cost=0.5, monotone=(0, 0, 1),
        derivative=(lambda a, x, y, z, r: y, lambda a, x, y, z, r: x, _one),
    ),
    ScalarOp(
        "div", 2, "x / y", FLOAT_BINARY, plain(np.divide), lambda m, d, x, y: m.div(x, y),
        cost=4.0, monotone=(0, 0), powers=(1, -1), infix="/",
        derivative=(
            lambda a, x, y, r: a.reciprocal(y),
            lambda a, x, y, r: a.neg(a.div(r, y)),
        ),
    ),
    ScalarOp(
        "floordiv", 2, "the largest integer not above x / y; 0 where an integer y is 0", BINARY,
        plain(np.floor_divide), _floordiv,
        cost=18.0, monotone=(0, 0), infix="//", derivative=(_zero, _zero),
    ),
    ScalarOp(
        "mod", 2, "x - floordiv(x, y) · y, with the sign of y; 0 where an integer y is 0", BINARY,
        plain(np.remainder), _mod,
        cost=16.0, monotone=(0, 0), infix="%",
        derivative=(_one, lambda a, x, y, r: a.neg(a.floor(a.div(x, y)))),
    ),
    ScalarOp(
        "neg", 1, "-x", UNARY, plain(np.negative), lambda m, d, x: m.neg(x),
        cost=0.5, monotone=(-1,), linear=(-1,),
        derivative=(lambda a, x, r: a.const(-1.0),),
    ),
    ScalarOp(
        "abs", 1, "|x|; the most negative integer stays", UNARY, plain(np.abs), _abs,
        cost=0.5, monotone=(0,), derivative=(lambda a, x, r: a.sign(x),),
    ),
    ScalarOp(
        "sign", 1, "-1, 0 or 1; NaN stays", UNARY, plain(np.sign), _sign,
        cost=2.5, monotone=(1,), derivative=(_zero,),
    ),
    ScalarOp(
        "max", 2, "the greater; NaN if either is NaN", BINARY, plain(_max_reference), _max,
        cost=1.5, commutative=True, associative=True, idempotent=True, identity=lowest,
        annihilator=lambda d: float("nan") if d.is_float else highest(d), monotone=(1, 1),
        derivative=(
            lambda a, x, y, r: _extreme_partial(a, x, y, a.gt(x, y)),
            lambda a, x, y, r: _extreme_partial(a, x, y, a.gt(y, x)),
        ),
    ),
    ScalarOp(
        "min", 2, "the lesser; NaN if either is NaN", BINARY,
        plain(lambda x, y: np.where((x < y) | (x != x), x, y)), _min,
        cost=1.5, commutative=True, associative=True, idempotent=True, identity=highest,
        annihilator=lambda d: float("nan") if d.is_float else lowest(d), monotone=(1, 1),
        derivative=(
            lambda a, x, y, r: _extreme_partial(a, x, y, a.lt(x, y)),
            lambda a, x, y, r: _extreme_partial(a, x, y, a.lt(y, x)),
        ),
    ),
    ScalarOp(
        "square", 1, "x · x", UNARY, plain(np.square), lambda m, d, x: m.mul(x, x),
        cost=0.5, monotone=(0,), powers=(2,),
        derivative=(lambda a, x, r: a.mul(a.const(2.0), x),),
    ),
    ScalarOp(
        "reciprocal", 1, "1 / x", FLOAT_UNARY, plain(np.reciprocal),
        lambda m, d, x: m.div(m.const(d, 1.0), x),
        cost=4.0, monotone=(0,), powers=(-1,),
        derivative=(lambda a, x, r: a.neg(a.mul(r, r)),),
    ),
    ScalarOp(
        "sqrt", 1, "the square root", FLOAT_UNARY, plain(np.sqrt), lambda m, d, x: m.sqrt(x),
        cost=4.5, monotone=(1,), derivative=(lambda a, x, r: a.div(a.const(0.5), r),),
    ),
    ScalarOp(
        "rsqrt", 1, "1 / √x", FLOAT_UNARY, accurate(lambda x: 1 / np.sqrt(x)),
        lambda m, d, x: m.div(m.const(d, 1.0), m.sqrt(x)),
        cost=7.0, monotone=(-1,),
        derivative=(lambda a, x, r: a.mul(a.const(-0.5), a.mul(r, a.mul(r, r))),),
    ),
    ScalarOp(
        "copysign", 2, "x with the sign of y", FLOAT_BINARY, plain(np.copysign),
        lambda m, d, x, y: m.copysign(x, y),
        cost=0.5, monotone=(0, 0),
        derivative=(lambda a, x, y, r: a.mul(a.sign(x), a.copysign(a.const(1.0), y)), _zero),
    ),
    ScalarOp(
        "signbit", 1, "whether the sign bit is set, that of zero and NaN included",
        Rule((FLOATS,), "bool"), plain(np.signbit), _signbit, cost=0.5,
    ),
    ScalarOp(
        "nextafter", 2, "the neighbour of x in the direction of y", FLOAT_BINARY,
        _reference_nextafter, _nextafter,
        cost=5.0, monotone=(1, 1), depends_on_spacing=True, derivative=(_one, _zero),
    ),
    ScalarOp(
        "floor", 1, "the largest integer not above x", UNARY, plain(np.floor), _rounding("floor"),
        cost=0.5, idempotent=True, monotone=(1,), derivative=(_zero,),
    ),
    ScalarOp(
        "ceil", 1, "the smallest integer not below x", UNARY, plain(np.ceil), _rounding("ceil"),
        cost=0.5, idempotent=True, monotone=(1,), derivative=(_zero,),
    ),
    ScalarOp(
        "round", 1, "the nearest integer, half to even", UNARY, plain(np.round), _rounding("rint"),
        cost=0.5, idempotent=True, monotone=(1,), derivative=(_zero,),
    ),
    ScalarOp(
        "trunc", 1, "x without its fraction", UNARY, plain(np.trunc), _rounding("trunc"),
        cost=0.5, idempotent=True, monotone=(1,), derivative=(_zero,),
    ),
    ScalarOp(
        "ldexp", 2, "x · 2^n, n of type int32", Rule((FLOATS, ("int",)), fixed=((1, i32),)),
        plain(np.ldexp), _ldexp,
        cost=7.0, monotone=(0, 0),
        derivative=(lambda a, x, n, r: a.ldexp(a.const(1.0), n), None),
    ),
)  # fmt: skip
