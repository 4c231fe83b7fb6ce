"""Powers, written against `Machine`.

y = power(machine, FITS["f32"], x, exponent)     # float32 registers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from smelt.ops.approximate import at_place, from_place
from smelt.ops.coefficients import (
    EXP2_MIXED,
    FITS,
    LOG2_MIXED,
    PLACE_LOG2_MIXED,
    PLACE_LOG_POWER,
    PLACE_LOGS,
    PLACE_LOGS2,
    Fit,
)
from smelt.ops.machine import Machine, polynomial
from smelt.types.dtype import DType, f32, f64

V = TypeVar("V")
W = TypeVar("W")

INF = float("inf")
NAN = float("nan")


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
    size, inside = _power_mixed(m, a, y) if d == f32 else _power_double(m, a, y)
    usual = m.and_(m.compare("gt", x, m.const(d, 0.0)), inside)
    return m.rare(m.not_(usual), size, lambda: _power_edges(m, fit, x, y, (size, inside)))


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


def _power_mixed(m: Machine[V], a: V, y: V) -> tuple[V, V]:
    """a^y for float32 a > 0, in float64: 2^(y log2 a); and where the exponent is no extreme."""
    one = m.const(f64, 1.0)
    fraction, e = m.split(m.convert(a, f32, f64))
    if m.picks:
        inverse, log2 = at_place(m, fraction, PLACE_LOGS2)
        r = m.fma(fraction, inverse, m.const(f64, -1.0))
        log2 = m.fma(r, polynomial(m, f64, r, PLACE_LOG2_MIXED), m.add(e, log2))
    else:
        s = m.div(m.sub(fraction, one), m.add(fraction, one))
        log2 = m.fma(s, polynomial(m, f64, m.mul(s, s), LOG2_MIXED), e)
    t = m.mul(m.convert(y, f32, f64), log2)
    n = m.rint(t)
    f = m.sub(t, n)
    p = m.fma(f, polynomial(m, f64, f, EXP2_MIXED), one)
    inside = m.compare("lt", m.abs(t), m.const(f64, 300.0))
    return m.convert(m.scale(p, n), f64, f32), inside


def _power_double(m: Machine[V], a: V, y: V) -> tuple[V, V]:
    """a^y for float64 a > 0 by the logarithm to about 63 bits as a sum of two numbers; and where
    its product with y is finite and no extreme."""
    fit = FITS["f64"]
    fraction, e = m.split(a)
    total, low = _log_double(m, fraction, e)
    product = m.mul(y, total)
    rest = m.fma(y, low, m.fma(y, total, m.neg(product)))
    # e^(product + rest), with what the reduction loses kept beside r.
    n = m.rint(m.mul(product, m.const(f64, fit.log2_e[0])))
    coarse = m.fma(n, m.const(f64, -fit.ln2[0]), product)
    r, lost = _renormalised(m, coarse, m.fma(n, m.const(f64, -fit.ln2[1]), rest))
    tail = m.fma(m.mul(r, r), polynomial(m, f64, r, fit.exp), lost)
    inside = m.compare("lt", m.abs(product), m.const(f64, fit.exp_limit))
    return m.scale(m.add(m.const(f64, 1.0), m.add(r, tail)), n), inside


def _renormalised(m: Machine[V], high: V, low: V) -> tuple[V, V]:
    """high + low with the second half a unit of the first at most (|low| ≤ |high| before)."""
    total = m.add(high, low)
    return total, m.add(m.sub(high, total), low)


def _log_double(m: Machine[V], fraction: V, e: V) -> tuple[V, V]:
    """ln of fraction · 2^e as two numbers: e ln 2 - ln c + r - r²/2 + r³ P(r), r = fraction · c - 1
    for the c of the nearest place.  The first four add up without loss: each is smaller than the
    sum of those before it, unless that is 0."""
    fit = FITS["f64"]
    inverse, log = at_place(m, fraction, PLACE_LOGS)
    r, r_low = from_place(m, fraction, inverse)
    base = m.mul(e, m.const(f64, fit.ln2[0]))
    first, first_low = _renormalised(m, base, log)
    second, second_low = _renormalised(m, first, r)
    half = m.mul(r, m.const(f64, -0.5))
    square = m.mul(r, half)
    square_low = m.fma(r, half, m.neg(square))
    total, third_low = _renormalised(m, second, square)
    low = m.fma(m.mul(square, r), polynomial(m, f64, r, PLACE_LOG_POWER), square_low)
    # What r lacks counts by the slope there, 1 / (1 + r).
    slope = m.fma(r, m.sub(r, m.const(f64, 1.0)), m.const(f64, 1.0))
    low = m.fma(r_low, slope, m.add(low, third_low))
    low = m.add(low, m.fma(e, m.const(f64, fit.ln2[1]), m.add(first_low, second_low)))
    return _renormalised(m, total, low)


def _power_edges(m: Machine[V], fit: Fit, x: V, y: V, found: tuple[V, V]) -> V:
    """The sign of x^y, its extremes, and the cases where |x|^|y| does not tell; `found` is |x|^y
    and where that holds."""
    d = fit.dtype
    zero, one, half = m.const(d, 0.0), m.const(d, 1.0), m.const(d, 0.5)
    infinity, nan = m.const(d, INF), m.const(d, NAN)
    a = m.abs(x)
    size, inside = found
    shrinks = m.xor(m.compare("gt", a, one), m.compare("gt", y, zero))
    size = m.select(inside, size, m.select(shrinks, zero, infinity))
    unknown = m.or_(m.compare("ne", x, x), m.compare("ne", y, y))
    size = m.select(unknown, nan, size)
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
