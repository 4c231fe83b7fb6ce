"""Approximate circular functions, powers and error functions, written once against `Machine`.

Arguments of circular functions are reduced by multiples of π/2 in three fused steps (Cody-Waite)
while that is exact enough; larger ones (beyond 1e5 in float32, 1e9 in float64) use the C library's
function lane by lane, in a branch that is skipped when no lane needs it.

    y = sin(machine, FITS["f32"], x)     # x, y: float32 registers
    y = power(machine, FITS["f32"], x, exponent)
    y = hypot(machine, FITS["f32"], a, b)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from smelt.ops.approximate import exp, exp_parts, log1p, lookup_nearest, lookup_remainder
from smelt.ops.coefficients import (
    ERF_SINGLE,
    ERF_STEP,
    ERF_TABLES,
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
from smelt.types.dtype import DType, f32, f64, i32

V = TypeVar("V")

INF = float("inf")
TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")


def _quadrant(m: Machine[V], fit: Fit, a: V) -> tuple[V, V, V]:
    """Reduce a by multiples of π/2: return (q, r, low).

    a = n π/2 + r + low, with n's last bits in the integer q.  `low` is the rounding error of r;
    float32 results do not need it and get 0.
    """
    d = fit.dtype
    magic = m.const(d, 1.5 * 2.0**fit.mantissa)
    shifted = m.fma(a, m.const(d, TWO_OVER_PI), magic)
    n = m.sub(shifted, magic)
    first, second, third = (m.const(d, -part) for part in fit.half_pi)
    coarse = m.fma(n, first, a)  # exact
    if d == f32:
        r = m.fma(n, third, m.fma(n, second, coarse))
        return m.bitcast(shifted, fit.integer), r, m.const(d, 0.0)
    step = m.mul(n, second)
    r = m.add(coarse, step)
    # Rounding errors of the sum (Knuth's two-sum) and the product, and the third part of π/2.
    share = m.sub(r, coarse)
    low = m.add(m.sub(coarse, m.sub(r, share)), m.sub(step, share))
    low = m.add(low, m.fma(n, third, m.fma(n, second, m.neg(step))))
    return m.bitcast(shifted, fit.integer), r, low


def _sine(m: Machine[V], fit: Fit, r: V, low: V) -> V:
    """Compute sin(r + low) for |r| ≤ π/4."""
    d = fit.dtype
    z = m.mul(r, r)
    cube, p = m.mul(z, r), polynomial(m, d, z, fit.sin)
    return m.fma(cube, p, r) if d == f32 else m.add(r, m.fma(cube, p, low))


def _cosine(m: Machine[V], fit: Fit, r: V, low: V) -> V:
    """Compute cos(r + low) for |r| ≤ π/4, correcting the rounding of 1 - r²/2."""
    d = fit.dtype
    one, half = m.const(d, 1.0), m.const(d, -0.5)
    z = m.mul(r, r)
    square, p = m.mul(z, z), polynomial(m, d, z, fit.cos)
    top = m.fma(z, half, one)
    if d == f32:
        return m.fma(square, p, top)
    lost = m.fma(z, half, m.sub(one, top))
    return m.add(top, m.fma(square, p, m.sub(lost, m.mul(r, low))))


def _sign_bit(m: Machine[V], fit: Fit, q: V, bit: int) -> V:
    """Shift bit number `bit` of q to the sign position, and clear the rest."""
    width = fit.dtype.bits
    shifted = m.shl(q, m.const(fit.integer, width - 1 - bit))
    return m.and_(shifted, m.const(fit.integer, 1 << (width - 1)))


def _odd(m: Machine[V], fit: Fit, q: V) -> V:
    """Return the mask of odd quadrants."""
    one = m.const(fit.integer, 1)
    return m.compare("ne", m.and_(q, one), m.const(fit.integer, 0))


def _flip(m: Machine[V], fit: Fit, y: V, sign: V) -> V:
    return m.bitcast(m.xor(m.bitcast(y, fit.integer), sign), fit.dtype)


def _large(m: Machine[V], fit: Fit, a: V) -> V:
    return m.compare("ge", a, m.const(fit.dtype, fit.circle_limit))


def sin(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute sin x: reduce the argument, select by quadrant, apply the sign."""
    a = m.abs(x)
    q, r, low = _quadrant(m, fit, a)
    y = m.select(_odd(m, fit, q), _cosine(m, fit, r, low), _sine(m, fit, r, low))
    sign = m.and_(m.bitcast(x, fit.integer), m.const(fit.integer, 1 << (fit.dtype.bits - 1)))
    y = _flip(m, fit, y, m.xor(sign, _sign_bit(m, fit, q, 1)))
    return m.rare(_large(m, fit, a), y, lambda: m.libm("sin", x))


def cos(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute the cosine as the sine one quadrant further."""
    a = m.abs(x)
    q, r, low = _quadrant(m, fit, a)
    y = m.select(_odd(m, fit, q), _sine(m, fit, r, low), _cosine(m, fit, r, low))
    y = _flip(m, fit, y, _sign_bit(m, fit, m.add(q, m.const(fit.integer, 1)), 1))
    return m.rare(_large(m, fit, a), y, lambda: m.libm("cos", x))


def tan(m: Machine[V], fit: Fit, x: V) -> V:
    """Divide sine by cosine; in odd quadrants, negate the reciprocal."""
    a = m.abs(x)
    q, r, low = _quadrant(m, fit, a)
    s, c = _sine(m, fit, r, low), _cosine(m, fit, r, low)
    odd = _odd(m, fit, q)
    y = m.div(m.select(odd, c, s), m.select(odd, s, c))
    sign = m.and_(m.bitcast(x, fit.integer), m.const(fit.integer, 1 << (fit.dtype.bits - 1)))
    y = _flip(m, fit, y, m.xor(sign, _sign_bit(m, fit, q, 0)))
    return m.rare(_large(m, fit, a), y, lambda: m.libm("tan", x))


def _arc(m: Machine[V], fit: Fit, z: V, x: V) -> V:
    """Compute asin(x) - x for x² = z ≤ ¼."""
    return m.mul(m.mul(x, z), polynomial(m, fit.dtype, z, fit.asin))


def _halves(m: Machine[V], fit: Fit, a: V) -> tuple[V, V, V]:
    """Return (small, z, s) for the half-angle formula of asin and acos.

    Up to ½ z = a² and s = a, above z = (1 - a)/2 and s = √z: asin a = π/2 - 2 asin √((1 - a)/2), so
    s is always the argument of the short polynomial.
    """
    d = fit.dtype
    small = m.compare("le", a, m.const(d, 0.5))
    half_complement = m.fma(a, m.const(d, -0.5), m.const(d, 0.5))
    z = m.select(small, m.mul(a, a), half_complement)
    return small, z, m.select(small, a, m.sqrt(half_complement))


def asin(m: Machine[V], fit: Fit, x: V) -> V:
    """Evaluate a polynomial up to ½, and the half-angle formula above."""
    d = fit.dtype
    small, z, s = _halves(m, fit, m.abs(x))
    tail = _arc(m, fit, z, s)
    near = m.add(s, tail)
    twice = m.add(tail, tail)
    far = m.sub(m.const(d, fit.half_pi[1]), twice)
    far = m.add(m.fma(s, m.const(d, -2.0), m.const(d, fit.half_pi[0])), far)
    return m.copysign(m.select(small, near, far), x)


def acos(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute π/2 - asin x up to ½, and 2 asin √((1 - |x|)/2) above.

    The latter is subtracted from π for negative x.
    """
    d = fit.dtype
    high, low = m.const(d, fit.half_pi[0]), m.const(d, fit.half_pi[1])
    small, z, s = _halves(m, fit, m.abs(x))
    tail = _arc(m, fit, z, s)
    signed_tail = m.copysign(tail, x)
    near = m.sub(high, m.sub(m.copysign(s, x), m.sub(low, signed_tail)))
    angle = m.add(s, tail)
    negative = m.compare("lt", x, m.const(d, 0.0))
    far = m.add(angle, angle)
    rest = m.sub(high, m.sub(angle, low))
    far = m.select(negative, m.add(rest, rest), far)
    return m.select(small, near, far)


def _angle(m: Machine[V], fit: Fit, y: V, x: V) -> V:
    """Return the angle of the point (x, y) in the first quadrant.

    x and y may not both be 0 or both be infinite.  Points are rotated by 0, π/4 or π/2, so that
    |tan| ≤ tan π/8; this costs no division besides the one of the tangent.
    """
    d = fit.dtype
    zero = m.const(d, 0.0)
    eighth = m.const(d, 0.41421356237309503)
    low = m.compare("le", y, m.mul(x, eighth))
    steep = m.compare("le", x, m.mul(y, eighth))
    top = m.select(low, y, m.select(steep, m.neg(x), m.sub(y, x)))
    bottom = m.select(low, x, m.select(steep, y, m.add(y, x)))
    t = m.div(top, bottom)
    z = m.mul(t, t)
    tail = m.mul(m.mul(t, z), polynomial(m, d, z, fit.atan))
    high, rest = fit.half_pi[0], fit.half_pi[1]

    def rotation(part: float) -> V:
        return m.select(low, zero, m.select(steep, m.const(d, part), m.const(d, part / 2)))

    return m.add(rotation(high), m.add(t, m.add(tail, rotation(rest))))


def atan(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute the angle of (1, |x|), with the sign of x."""
    d = fit.dtype
    a = m.abs(x)
    return m.copysign(_angle(m, fit, a, m.const(d, 1.0)), x)


def atan2(m: Machine[V], fit: Fit, y: V, x: V) -> V:
    """Compute the angle of (x, y) in (-π, π].

    Results at zeros and infinities are those of C99.
    """
    d = fit.dtype
    a, b = m.abs(y), m.abs(x)
    infinity, one, zero = m.const(d, INF), m.const(d, 1.0), m.const(d, 0.0)
    # Scaling keeps the angle; it avoids overflow of sums and subnormal products.
    longer = m.greater(a, b)
    huge = m.compare("gt", longer, m.const(d, 2.0 ** (fit.bias - 2)))
    tiny = m.compare("lt", longer, m.const(d, 2.0 ** -(fit.bias // 2)))
    factor = m.select(tiny, m.const(d, 2.0 ** (fit.bias // 2)), one)
    factor = m.select(huge, m.const(d, 0.25), factor)
    both_infinite = m.and_(m.compare("eq", a, infinity), m.compare("eq", b, infinity))
    up = m.select(both_infinite, one, m.mul(a, factor))
    across = m.select(both_infinite, one, m.mul(b, factor))
    both_zero = m.and_(m.compare("eq", a, zero), m.compare("eq", b, zero))
    across = m.select(both_zero, one, across)
    angle = _angle(m, fit, up, across)
    bits = m.bitcast(x, fit.integer)
    backwards = m.compare("lt", bits, m.const(fit.integer, 0))
    high, low = m.const(d, 2 * fit.half_pi[0]), m.const(d, 2 * fit.half_pi[1])
    angle = m.select(backwards, m.sub(high, m.sub(angle, low)), angle)
    return m.copysign(angle, y)


W = TypeVar("W")

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
