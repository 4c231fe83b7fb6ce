"""Approximate error functions, hypotenuses and log-sums of exponentials, against `Machine`.

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
"""Numbers between its inverse and this have squares that neither overflow nor underflow."""


def _erf_near(m: Machine[V], fit: Fit, a: V) -> V:
    """Compute erf(a) - a for a ≤ 1."""
    return m.mul(a, polynomial(m, fit.dtype, m.mul(a, a), fit.erf))


def _erfc_tail(m: Machine[V], fit: Fit, a: V) -> V:
    """Compute erfc(a) for a ≥ ½, correcting the rounding of a².

    erfc(a) = e^(-a²) G / (1 + 2a).
    """
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
    """Compute erf x as 1 - erfc, or by polynomials.

    float32: 1 - e^-R(|x|), where R = -ln erfc is one polynomial; with `Machine.picks`, a polynomial
    around each of 16 points.  float64: a polynomial up to 1, and `_erfc_tail` above.
    """
    d = fit.dtype
    one = m.const(d, 1.0)
    a = m.abs(x)
    if d == f32 and m.picks:
        return m.copysign(_erf_by_table(m, a), x)
    if d == f32:
        return m.copysign(_one_minus_exp(m, fit, _minus_log_erfc(m, a)), x)
    near = m.add(a, _erf_near(m, fit, a))
    far = m.sub(one, _erfc_tail(m, fit, m.lesser(m.const(d, 6.5), a)))
    return m.copysign(m.select(m.compare("lt", a, one), near, far), x)


def _erf_by_table(m: Machine[V], a: V) -> V:
    """Compute erf by a table and a polynomial around the nearest of 16 points.

    erf(c + d) = erf c + d P(d), where c is that point.  Near 0 it is erf d = d + d P(d).
    """
    a = m.lesser(m.const(f32, 15 * ERF_STEP), a)  # beyond it erf a rounds to 1
    magic = m.const(f32, 1.5 * 2.0**23)  # adding it leaves an integer in the last bits
    shifted = m.fma(a, m.const(f32, 1 / ERF_STEP), magic)
    index = m.bitcast(shifted, i32)
    d = m.fma(m.sub(shifted, magic), m.const(f32, -ERF_STEP), a)
    first, *rest = (m.pick(f32, table, index) for table in ERF_TABLES)
    total = rest.pop()
    while rest:
        total = m.fma(total, d, rest.pop())
    return m.fma(total, d, m.greater(first, d))  # a NaN in d propagates through the product


def _minus_log_erfc(m: Machine[V], a: V) -> V:
    """Compute -ln erfc(a) for float32 a, limited to 4.

    It is a (c + a Q(a)), with c = 2/√π in two parts.
    """
    a = m.lesser(m.const(f32, 4.0), a)
    high, low, *rest = ERF_SINGLE
    tail = m.fma(a, polynomial(m, f32, a, rest), m.const(f32, low))
    return m.fma(a, m.const(f32, high), m.mul(a, tail))


def _one_minus_exp(m: Machine[V], fit: Fit, t: V) -> V:
    """Compute 1 - e^-t for t ≥ 0, accurate to the last bit of 1.

    It is (1 - 2^n) - 2^n y.
    """
    d = fit.dtype
    n, y = exp_parts(m, fit, m.neg(t))
    power = m.scale(m.const(d, 1.0), n)
    return m.fma(m.neg(power), y, m.sub(m.const(d, 1.0), power))


def erfc(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute 1 - erf x below ½, and `_erfc_tail` from there on.

    For negative x the tail is subtracted from 2.
    """
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
    """Compute √(x² + y²).

    float32 uses float64; float64 scales where squares would overflow or underflow.
    """
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
    """Compute ln(e^x + e^y) = max + ln(1 + e^-|x - y|)."""
    d = fit.dtype
    top = m.select(m.compare("ne", x, x), x, m.greater(x, y))
    difference = m.abs(m.sub(x, y))
    difference = m.select(m.compare("eq", x, y), m.const(d, 0.0), difference)
    return m.add(top, log1p(m, fit, exp(m, fit, m.neg(difference))))
