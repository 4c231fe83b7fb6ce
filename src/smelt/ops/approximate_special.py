"""Error functions, hypotenuses and sums of exponentials, written against `Machine`.

y = hypot(machine, FITS["f32"], a, b)     # float32 registers
"""

from __future__ import annotations

from typing import TypeVar

from smelt.ops.approximate import exp, exp_parts, log1p
from smelt.ops.coefficients import ERF_SINGLE, ERF_STEP, ERF_TABLES, Fit
from smelt.ops.machine import Machine, polynomial
from smelt.types.dtype import f32, f64, i32

V = TypeVar("V")

INF = float("inf")
SQUARE_ROOT_RANGE = 2.0**500


def _erf_near(m: Machine[V], fit: Fit, a: V) -> V:
    """erf(a) - a for a ≤ 1."""
    return m.mul(a, polynomial(m, fit.dtype, m.mul(a, a), fit.erf))


def _erfc_tail(m: Machine[V], fit: Fit, a: V) -> V:
    """erfc(a) = e^(-a²) G / (1 + 2a) for a ≥ ½; a² is squared with its rounding error."""
    d = fit.dtype
    one, centre = m.const(d, 1.0), m.const(d, fit.erfc_centre)
    square = m.mul(a, a)
    lost = m.fma(a, a, m.neg(square))
    n, y = exp_parts(m, fit, m.greater(m.const(d, -fit.exp_limit), m.neg(square)))
    y = m.fma(m.add(y, one), m.neg(lost), y)  # e^-lost = 1 - lost
    bottom = m.fma(a, m.const(d, 2.0), one)
    q = m.div(m.sub(a, centre), m.add(a, centre))
    g = m.div(polynomial(m, d, q, fit.erfc), bottom)
    return m.scale(m.fma(g, y, g), n)


def erf(m: Machine[V], fit: Fit, x: V) -> V:
    """1 - e^-R(|x|): in float32 R = -ln erfc is one polynomial, in float64 erfc has a tail.

    Where tables cost nothing, float32 has a polynomial around each of 16 places.
    """
    d = fit.dtype
    one = m.const(d, 1.0)
    a = m.abs(x)
    if d == f32 and m.picks:
        return m.copysign(_erf_around_places(m, a), x)
    if d == f32:
        return m.copysign(_one_less_power(m, fit, _erf_power(m, a)), x)
    near = m.add(a, _erf_near(m, fit, a))
    far = m.sub(one, _erfc_tail(m, fit, m.lesser(m.const(d, 6.5), a)))
    return m.copysign(m.select(m.compare("lt", a, one), near, far), x)


def _erf_around_places(m: Machine[V], a: V) -> V:
    """erf(c + d) = erf c + d P(d), c the nearest of 16 places; erf d = d + d P(d) near 0."""
    a = m.lesser(m.const(f32, 15 * ERF_STEP), a)  # beyond it erf a rounds to 1
    magic = m.const(f32, 1.5 * 2.0**23)  # adding it leaves an integer in the last bits
    counted = m.fma(a, m.const(f32, 1 / ERF_STEP), magic)
    at = m.bitcast(counted, i32)
    d = m.fma(m.sub(counted, magic), m.const(f32, -ERF_STEP), a)
    first, *rest = (m.pick(f32, table, at) for table in ERF_TABLES)
    total = rest.pop()
    while rest:
        total = m.fma(total, d, rest.pop())
    return m.fma(total, d, m.greater(first, d))  # NaN of d is in the product already


def _erf_power(m: Machine[V], a: V) -> V:
    """-ln erfc(a) = a (c + a Q(a)) for float32 a up to 4, c = 2/√π in two parts."""
    a = m.lesser(m.const(f32, 4.0), a)
    high, low, *rest = ERF_SINGLE
    tail = m.fma(a, polynomial(m, f32, a, rest), m.const(f32, low))
    return m.fma(a, m.const(f32, high), m.mul(a, tail))


def _one_less_power(m: Machine[V], fit: Fit, t: V) -> V:
    """1 - e^-t = (1 - 2^n) - 2^n y for t ≥ 0 up to the last place of 1."""
    d = fit.dtype
    n, y = exp_parts(m, fit, m.neg(t))
    power = m.scale(m.const(d, 1.0), n)
    return m.fma(m.neg(power), y, m.sub(m.const(d, 1.0), power))


def erfc(m: Machine[V], fit: Fit, x: V) -> V:
    """1 - erf x below ½; its own tail from there on, and 2 less that for negative x."""
    d = fit.dtype
    one, half = m.const(d, 1.0), m.const(d, 0.5)
    a = m.abs(x)
    limit = m.const(d, 11.0 if d == f32 else 28.0)
    tail = _erfc_tail(m, fit, m.lesser(limit, a))
    negative = m.compare("lt", x, m.const(d, 0.0))
    far = m.select(negative, m.sub(m.const(d, 2.0), tail), tail)
    rest = _erf_near(m, fit, x)
    near = m.sub(one, m.add(x, rest))
    return m.select(m.compare("lt", a, half), near, far)


def hypot(m: Machine[V], fit: Fit, x: V, y: V) -> V:
    """√(x² + y²): float32 in float64, float64 scaled where squares would over- or underflow."""
    d = fit.dtype
    infinity = m.const(d, INF)
    a, b = m.abs(x), m.abs(y)
    if d == f32:
        wide_a, wide_b = m.convert(a, f32, f64), m.convert(b, f32, f64)
        root = m.sqrt(m.fma(wide_a, wide_a, m.mul(wide_b, wide_b)))
        h = m.convert(root, f64, f32)
    else:
        big, small = m.greater(a, b), m.lesser(a, b)
        down = m.compare("gt", big, m.const(d, SQUARE_ROOT_RANGE))
        up = m.compare("lt", big, m.const(d, 1 / SQUARE_ROOT_RANGE))
        one = m.const(d, 1.0)
        factor = m.select(up, m.const(d, 2.0**600), one)
        factor = m.select(down, m.const(d, 2.0**-600), factor)
        back = m.select(up, m.const(d, 2.0**-600), one)
        back = m.select(down, m.const(d, 2.0**600), back)
        big, small = m.mul(big, factor), m.mul(small, factor)
        h = m.mul(m.sqrt(m.fma(big, big, m.mul(small, small))), back)
        h = m.select(m.compare("ne", m.add(a, b), m.add(a, b)), m.add(a, b), h)
    infinite = m.or_(m.compare("eq", a, infinity), m.compare("eq", b, infinity))
    return m.select(infinite, infinity, h)


def logaddexp(m: Machine[V], fit: Fit, x: V, y: V) -> V:
    """ln(e^x + e^y) = max + ln(1 + e^-|x - y|)."""
    d = fit.dtype
    top = m.select(m.compare("ne", x, x), x, m.greater(x, y))
    gap = m.abs(m.sub(x, y))
    gap = m.select(m.compare("eq", x, y), m.const(d, 0.0), gap)
    return m.add(top, log1p(m, fit, exp(m, fit, m.neg(gap))))
