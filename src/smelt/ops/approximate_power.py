"""Approximate powers x^y, written against `Machine`.

y = power(machine, FITS["f32"], x, exponent)     # float32 registers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from smelt.ops.approximate import lookup_nearest, lookup_remainder
from smelt.ops.coefficients import (
    EXP2_MIXED,
    FITS,
    LOG2_MIXED,
    LOG_TABLE_LOG2_MIXED,
    LOG_TABLE_LOG2S,
    LOG_TABLE_LOGS,
    LOG_TABLE_TAIL_POWER,
    Fit,
)
from smelt.ops.machine import Machine, polynomial
from smelt.types.dtype import DType, f32, f64

V = TypeVar("V")
W = TypeVar("W")

INF = float("inf")
NAN = float("nan")


def power(m: Machine[V], fit: Fit, x: V, y: V) -> V:
    """Compute x^y with C99's results at the edges.

    Constant exponents -1, ½ and those in `MULTIPLIED` use division, square root and multiplication.
    """
    d = fit.dtype
    exponent = m.number(y)
    if exponent == -1:
        return m.div(m.const(d, 1.0), x)
    if exponent == 0.5:
        infinite = m.compare("eq", x, m.const(d, -INF))
        return m.select(infinite, m.abs(x), m.sqrt(m.add(x, m.const(d, 0.0))))  # -0 becomes 0
    if exponent is not None and exponent in MULTIPLIED:
        return _integer_power(m, d, x, int(exponent))
    a = m.abs(x)
    magnitude, inside = _power_float32(m, a, y) if d == f32 else _power_float64(m, a, y)
    is_usual = m.and_(m.compare("gt", x, m.const(d, 0.0)), inside)
    return m.rare(
        m.not_(is_usual), magnitude, lambda: _power_edges(m, fit, x, y, (magnitude, inside))
    )


MULTIPLIED = frozenset(range(3, 9))
"""Exponents whose powers are computed by multiplication."""


def _integer_power(m: Machine[V], d: DType, x: V, exponent: int) -> V:
    """Compute x^n by squaring and multiplying.

    float32 uses float64, where the eighth power of the largest float32 still fits; float64 uses
    double-double products (Dekker 1971, by fused multiply-add).  Both are as accurate as a single
    rounding, except that float64 may be off by one unit more next to the subnormals.
    """
    if d == f32:
        wide = m.convert(x, f32, f64)
        return m.convert(_square_and_multiply(m.mul, wide, wide, exponent), f64, f32)

    def product(a: tuple[V, V | None], b: tuple[V, V | None]) -> tuple[V, V | None]:
        return _double_product(m, a, b)

    start: tuple[V, V | None] = (x, None)
    high, low = _square_and_multiply(product, start, start, exponent)
    assert low is not None
    finite = m.compare("lt", m.abs(high), m.const(d, INF))
    total = m.copysign(m.add(high, low), high)  # keeps the sign of a product that underflowed
    return m.select(finite, total, high)


def _square_and_multiply(product: Callable[[W, W], W], x: W, power: W, exponent: int) -> W:
    """Compute x^n from the exponent's highest bit down.

    `power` starts as x.
    """
    for bit in bin(exponent)[3:]:
        power = product(power, power)
        power = product(power, x) if bit == "1" else power
    return power


def _double_product(m: Machine[V], a: tuple[V, V | None], b: tuple[V, V | None]) -> tuple[V, V]:
    """Multiply two double-doubles, whose low parts may be None."""
    high = m.mul(a[0], b[0])
    low = m.fma(a[0], b[0], m.neg(high))
    for lost, other in ((a[1], b[0]), (b[1], a[0])):
        low = low if lost is None else m.fma(lost, other, low)
    return high, low


def _power_float32(m: Machine[V], a: V, y: V) -> tuple[V, V]:
    """Compute a^y for float32 a > 0 as 2^(y log2 a) in float64.

    Also returns the mask where the exponent is in range.
    """
    one = m.const(f64, 1.0)
    fraction, e = m.split(m.convert(a, f32, f64))
    if m.picks:
        inverse, log2 = lookup_nearest(m, fraction, LOG_TABLE_LOG2S)
        r = m.fma(fraction, inverse, m.const(f64, -1.0))
        log2 = m.fma(r, polynomial(m, f64, r, LOG_TABLE_LOG2_MIXED), m.add(e, log2))
    else:
        s = m.div(m.sub(fraction, one), m.add(fraction, one))
        log2 = m.fma(s, polynomial(m, f64, m.mul(s, s), LOG2_MIXED), e)
    t = m.mul(m.convert(y, f32, f64), log2)
    n = m.rint(t)
    f = m.sub(t, n)
    p = m.fma(f, polynomial(m, f64, f, EXP2_MIXED), one)
    inside = m.compare("lt", m.abs(t), m.const(f64, 300.0))
    return m.convert(m.scale(p, n), f64, f32), inside


def _power_float64(m: Machine[V], a: V, y: V) -> tuple[V, V]:
    """Compute a^y for float64 a > 0 from a double-double logarithm of about 63 bits.

    Also returns the mask where its product with y is finite and in range.
    """
    fit = FITS["f64"]
    fraction, e = m.split(a)
    total, low = _log_double(m, fraction, e)
    product = m.mul(y, total)
    rest = m.fma(y, low, m.fma(y, total, m.neg(product)))
    # e^(product + rest), with the rounding error of the reduction kept in `lost`.
    n = m.rint(m.mul(product, m.const(f64, fit.log2_e[0])))
    coarse = m.fma(n, m.const(f64, -fit.ln2[0]), product)
    r, lost = _fast_two_sum(m, coarse, m.fma(n, m.const(f64, -fit.ln2[1]), rest))
    tail = m.fma(m.mul(r, r), polynomial(m, f64, r, fit.exp), lost)
    inside = m.compare("lt", m.abs(product), m.const(f64, fit.exp_limit))
    return m.scale(m.add(m.const(f64, 1.0), m.add(r, tail)), n), inside


def _fast_two_sum(m: Machine[V], high: V, low: V) -> tuple[V, V]:
    """Return high + low as a sum and its rounding error, for |low| ≤ |high|."""
    total = m.add(high, low)
    return total, m.add(m.sub(high, total), low)


def _log_double(m: Machine[V], fraction: V, e: V) -> tuple[V, V]:
    """Return ln(fraction · 2^e) as a double-double.

    It is e ln 2 - ln c + r - r²/2 + r³ P(r), with r = fraction · c - 1 for the c of the nearest
    table point.  The first four terms are added without error: each is smaller than the sum of
    those before it, unless that is 0.
    """
    fit = FITS["f64"]
    inverse, log = lookup_nearest(m, fraction, LOG_TABLE_LOGS)
    r, r_low = lookup_remainder(m, fraction, inverse)
    base = m.mul(e, m.const(f64, fit.ln2[0]))
    first, first_low = _fast_two_sum(m, base, log)
    second, second_low = _fast_two_sum(m, first, r)
    half = m.mul(r, m.const(f64, -0.5))
    square = m.mul(r, half)
    square_low = m.fma(r, half, m.neg(square))
    total, third_low = _fast_two_sum(m, second, square)
    low = m.fma(m.mul(square, r), polynomial(m, f64, r, LOG_TABLE_TAIL_POWER), square_low)
    # The rounding error of r, times the derivative 1 / (1 + r).
    slope = m.fma(r, m.sub(r, m.const(f64, 1.0)), m.const(f64, 1.0))
    low = m.fma(r_low, slope, m.add(low, third_low))
    low = m.add(low, m.fma(e, m.const(f64, fit.ln2[1]), m.add(first_low, second_low)))
    return _fast_two_sum(m, total, low)


def _power_edges(m: Machine[V], fit: Fit, x: V, y: V, regular: tuple[V, V]) -> V:
    """Apply the sign of x^y, its extremes, and the special cases of C99.

    `regular` is |x|^y, and the mask where that is in range.
    """
    d = fit.dtype
    zero, one, half = m.const(d, 0.0), m.const(d, 1.0), m.const(d, 0.5)
    infinity, nan = m.const(d, INF), m.const(d, NAN)
    a = m.abs(x)
    magnitude, inside = regular
    shrinks = m.xor(m.compare("gt", a, one), m.compare("gt", y, zero))
    magnitude = m.select(inside, magnitude, m.select(shrinks, zero, infinity))
    any_nan = m.or_(m.compare("ne", x, x), m.compare("ne", y, y))
    magnitude = m.select(any_nan, nan, magnitude)
    is_integer = m.compare("eq", m.trunc(y), y)
    half_y = m.mul(y, half)
    odd = m.and_(is_integer, m.compare("ne", m.trunc(half_y), half_y))
    is_one = m.and_(m.compare("eq", a, one), m.compare("eq", y, y))
    magnitude = m.select(is_one, one, magnitude)
    result = m.select(odd, m.copysign(magnitude, x), magnitude)
    negative = m.and_(m.compare("lt", x, zero), m.compare("lt", a, infinity))
    result = m.select(m.and_(negative, m.not_(is_integer)), nan, result)
    always_one = m.or_(m.compare("eq", y, zero), m.compare("eq", x, one))
    return m.select(always_one, one, result)
