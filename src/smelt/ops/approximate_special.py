"""Error functions, powers, hypotenuses and sums of exponentials, written against `Machine`.

y = power(machine, FITS["f32"], x, exponent)     # float32 registers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from smelt.ops.approximate import between, exp, exp_parts, log1p
from smelt.ops.coefficients import (
    ERF_SINGLE,
    ERF_STEP,
    ERF_TABLES,
    EXP2_MIXED,
    FITS,
    LOG2_MIXED,
    LOG_POWER,
    Fit,
)
from smelt.ops.machine import Machine, polynomial
from smelt.types.dtype import DType, f32, f64, i32

V = TypeVar("V")
W = TypeVar("W")

INF = float("inf")
NAN = float("nan")
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
    first, *rest = (m.pick(table, at) for table in ERF_TABLES)
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


def power(m: Machine[V], fit: Fit, x: V, y: V) -> V:
    """x^y with C99's answers at the edges; exact where the result is a small integer power."""
    d = fit.dtype
    exponent = m.number(y)
    if exponent == -1:
        return m.div(m.const(d, 1.0), x)
    if exponent == 0.5:
        infinite = m.compare("eq", x, m.const(d, -INF))
        return m.select(infinite, m.abs(x), m.sqrt(m.add(x, m.const(d, 0.0))))  # -0 becomes 0
    if exponent is not None and exponent in MULTIPLIED:
        return _multiplied(m, d, x, int(exponent))
    a = m.abs(x)
    size = _power_mixed(m, a, y) if d == f32 else _power_double(m, a, y)
    infinity = m.const(d, INF)
    usual = m.and_(m.compare("gt", x, m.const(d, 0.0)), m.compare("lt", x, infinity))
    usual = m.and_(usual, m.compare("lt", m.abs(y), infinity))
    return m.rare(m.not_(usual), size, lambda: _power_edges(m, fit, x, y, size))


MULTIPLIED = frozenset(range(3, 9))
"""Exponents whose powers are multiplied out."""


def _multiplied(m: Machine[V], d: DType, x: V, exponent: int) -> V:
    """x^n by squaring and multiplying: float32 in float64, where the eighth power of the largest
    float32 still fits; float64 as numbers that keep what their rounding lost (the exact products
    of Dekker 1971, by fused multiply-add).  Either is as good as rounded once, but for float64 a
    unit more next to the subnormals."""
    if d == f32:
        wide = m.convert(x, f32, f64)
        return m.convert(_chain(m.mul, wide, wide, exponent), f64, f32)

    def product(a: tuple[V, V | None], b: tuple[V, V | None]) -> tuple[V, V | None]:
        return _product(m, a, b)

    start: tuple[V, V | None] = (x, None)
    high, low = _chain(product, start, start, exponent)
    assert low is not None
    finite = m.compare("lt", m.abs(high), m.const(d, INF))
    total = m.copysign(m.add(high, low), high)  # the sign of a product that vanished
    return m.select(finite, total, high)


def _chain(product: Callable[[W, W], W], x: W, found: W, exponent: int) -> W:
    """x^n, from the exponent's highest bit down; `found` is x."""
    for bit in bin(exponent)[3:]:
        found = product(found, found)
        found = product(found, x) if bit == "1" else found
    return found


def _product(m: Machine[V], a: tuple[V, V | None], b: tuple[V, V | None]) -> tuple[V, V]:
    """The product of two numbers, each with what its rounding lost, and what its own loses."""
    high = m.mul(a[0], b[0])
    low = m.fma(a[0], b[0], m.neg(high))
    for lost, other in ((a[1], b[0]), (b[1], a[0])):
        low = low if lost is None else m.fma(lost, other, low)
    return high, low


def _power_mixed(m: Machine[V], a: V, y: V) -> V:
    """a^y for float32 a > 0, in float64: 2^(y log2 a)."""
    one = m.const(f64, 1.0)
    fraction, e = m.split(m.convert(a, f32, f64))
    s = m.div(m.sub(fraction, one), m.add(fraction, one))
    log2 = m.fma(s, polynomial(m, f64, m.mul(s, s), LOG2_MIXED), e)
    t = m.mul(m.convert(y, f32, f64), log2)
    t = between(m, FITS["f64"], t, -300.0, 300.0)
    n = m.rint(t)
    f = m.sub(t, n)
    p = m.fma(f, polynomial(m, f64, f, EXP2_MIXED), one)
    return m.convert(m.scale(p, n), f64, f32)


def _power_double(m: Machine[V], a: V, y: V) -> V:
    """a^y for float64 a > 0: the logarithm to about 63 bits as a sum of two numbers."""
    fit = FITS["f64"]
    fraction, e = m.split(a)
    high, low = _log_double(m, fraction)
    # ln a = e ln 2 + ln(1 + f), again as a rounded sum and what it lost; both parts of ln 2
    # are positive, so that the sum keeps an infinite e.
    base = m.mul(e, m.const(f64, fit.ln2[0]))
    total = m.add(base, high)
    low = m.add(m.add(m.sub(base, total), high), m.fma(e, m.const(f64, fit.ln2[1]), low))
    finite = m.compare("lt", m.abs(total), m.const(f64, INF))
    total, low = _renormalised(m, total, m.select(finite, low, m.const(f64, 0.0)))
    product = m.mul(y, total)
    rest = m.fma(y, low, m.fma(y, total, m.neg(product)))
    limited = between(m, fit, product, -fit.exp_limit, fit.exp_limit)
    rest = m.select(m.compare("eq", limited, product), rest, m.const(f64, 0.0))
    # e^(limited + rest), with what the reduction loses kept beside r.
    n = m.rint(m.mul(limited, m.const(f64, fit.log2_e[0])))
    coarse = m.fma(n, m.const(f64, -fit.ln2[0]), limited)
    r = m.fma(n, m.const(f64, -fit.ln2[1]), coarse)
    lost = m.add(m.fma(n, m.const(f64, -fit.ln2[1]), m.sub(coarse, r)), rest)
    r, lost = _renormalised(m, r, lost)
    tail = m.fma(m.mul(r, r), polynomial(m, f64, r, fit.exp), lost)
    return m.scale(m.add(m.const(f64, 1.0), m.add(r, tail)), n)


def _renormalised(m: Machine[V], high: V, low: V) -> tuple[V, V]:
    """high + low with the second half a unit of the first at most (|low| ≤ |high| before)."""
    total = m.add(high, low)
    return total, m.add(m.sub(high, total), low)


def _log_double(m: Machine[V], fraction: V) -> tuple[V, V]:
    """ln of a fraction in [¾, 3/2) as two numbers: 2s + 2s³/3 + s⁵ T(s²), s = f / (2 + f)."""
    one = m.const(f64, 1.0)
    f = m.sub(fraction, one)
    bottom = m.add(fraction, one)
    bottom_low = m.sub(fraction, m.sub(bottom, one))
    s = m.div(f, bottom)
    s_low = m.sub(m.fma(m.neg(s), bottom, f), m.mul(s, bottom_low))
    s_low = m.div(s_low, bottom)
    z = m.mul(s, s)
    z_low = m.fma(s, s, m.neg(z))
    z_low = m.fma(m.add(s, s), s_low, z_low)
    third, third_low = m.const(f64, 2 / 3), m.const(f64, THIRD_LOW)
    # c = (2/3) s² and what it lost, then c·s, then the sum with 2s.
    c = m.mul(z, third)
    c_low = m.fma(z, third, m.neg(c))
    c_low = m.add(c_low, m.fma(z_low, third, m.mul(z, third_low)))
    c_low = m.fma(m.mul(z, z), polynomial(m, f64, z, LOG_POWER), c_low)
    cubic = m.mul(c, s)
    cubic_low = m.fma(c, s, m.neg(cubic))
    cubic_low = m.add(cubic_low, m.fma(c_low, s, m.mul(c, s_low)))
    twice = m.add(s, s)
    high = m.add(twice, cubic)
    low = m.add(m.sub(twice, high), cubic)
    low = m.add(low, m.add(cubic_low, m.add(s_low, s_low)))
    return _renormalised(m, high, low)


THIRD_LOW = float.fromhex("0x1.5555555555555p-55")
"""2/3 less its nearest float64."""


def _power_edges(m: Machine[V], fit: Fit, x: V, y: V, size: V) -> V:
    """The sign of x^y, and the cases where |x|^|y| does not tell."""
    d = fit.dtype
    zero, one, half = m.const(d, 0.0), m.const(d, 1.0), m.const(d, 0.5)
    infinity, nan = m.const(d, INF), m.const(d, NAN)
    a = m.abs(x)
    whole = m.compare("eq", m.trunc(y), y)
    halved = m.mul(y, half)
    odd = m.and_(whole, m.compare("ne", m.trunc(halved), halved))
    unit = m.and_(m.compare("eq", a, one), m.compare("eq", y, y))
    size = m.select(unit, one, size)
    result = m.select(odd, m.copysign(size, x), size)
    negative = m.and_(m.compare("lt", x, zero), m.compare("lt", a, infinity))
    result = m.select(m.and_(negative, m.not_(whole)), nan, result)
    certain = m.or_(m.compare("eq", y, zero), m.compare("eq", x, one))
    return m.select(certain, one, result)
