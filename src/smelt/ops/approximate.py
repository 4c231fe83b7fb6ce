"""Approximate exponentials, logarithms and hyperbolic functions, written once against `Machine`.

Every function reduces its argument to a short interval, evaluates a polynomial there by fused
multiply-adds and reconstructs the result; a `Fit` provides the coefficients, so that one formula
serves float32 and float64 wherever it suits both.  Errors are listed in `docs/accuracy.md`.  NaN
propagates, infinities and signed zeros come out as in C99 annex F, and subnormals are neither read
nor written as zero.

    y = exp(machine, FITS["f32"], x)     # x, y: float32 registers

Sums of exponentials (softmax) are accumulated as multiples of a power of 2: the sum of e^x / 2^n,
where n = round(y / ln 2) for the running maximum y.  Changing y then scales the sum by a power of
2, which is exact.  The functions `exp_whole` (n from y), `exp_over` (e^x / 2^n), `exp_moved` (the
scale from y to z) and `exp_far` (what n cannot represent) implement this; see
`docs/derivations.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from smelt.ops.coefficients import (
    EXP2_NEAR,
    EXP2_SINGLE,
    FITS,
    LOG_TABLE_INVERSES,
    LOG_TABLE_LOGS,
    LOG_TABLE_POINTS_PER_UNIT,
    LOG_TABLE_TAIL,
    MAX_TANH,
    MIN_TANH,
    TANH_SINGLE,
    TANH_TABLES,
    Fit,
)
from smelt.ops.machine import Machine, polynomial
from smelt.types.dtype import DType, f32, f64, i32, i64

V = TypeVar("V")

INF = float("inf")
NAN = float("nan")


def clamp(m: Machine[V], fit: Fit, x: V, low: float, high: float) -> V:
    """Clamp x to [low, high]; NaN stays NaN."""
    x = m.lesser(m.const(fit.dtype, high), x)
    return m.greater(m.const(fit.dtype, low), x)


def _reduce(m: Machine[V], fit: Fit, x: V) -> tuple[V, V]:
    """Return the integer n nearest to x / ln 2 and the remainder r.

    r = x - n ln 2.
    """
    d = fit.dtype
    n = m.rint_small(m.mul(x, m.const(d, fit.log2_e[0])))
    r = m.fma(n, m.const(d, -fit.ln2[0]), x)
    return n, m.fma(n, m.const(d, -fit.ln2[1]), r)


def exp_parts(m: Machine[V], fit: Fit, x: V) -> tuple[V, V]:
    """Split e^x into a power of 2 and a fraction: return (n, y).

    e^x = 2^n (1 + y) with |y| < ½, for |x| within the limits of `exp`.
    """
    n, r = _reduce(m, fit, x)
    p = polynomial(m, fit.dtype, r, fit.exp)
    return n, m.fma(m.mul(r, r), p, r)


def exp(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute e^x = 2^n y.

    Where x is far out of range, n alone decides; without `Machine.picks`, x is clamped first, which
    takes fewer operations than limits on n and on the remainder.
    """
    if not m.picks:
        x = clamp(m, fit, x, -fit.exp_limit, fit.exp_limit)
        n, y = _split_exp(m, fit, x, far=False)
        return m.scale(y, n)
    n, y = _split_exp(m, fit, x)
    return m.scale_any(y, n)


def exp2(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute 2^x = 2^n 2^f with |f| ≤ ½.

    float64 uses the polynomial of e^(f ln 2).
    """
    if not m.picks:
        limit = float(fit.bias + fit.mantissa + 1)  # 2^-limit rounds to 0
        x = clamp(m, fit, x, -limit, limit)
        n, y = _split_exp2(m, fit, x, far=False)
        return m.scale(y, n)
    n, y = _split_exp2(m, fit, x)
    return m.scale_any(y, n)


def over_limit(fit: Fit) -> float:
    """Return the bound on |y| below which `exp_over` is as accurate as `exp`.

    Below it the type of x still resolves sixteenths near x, with bits to spare.
    """
    return 2.0 ** min(fit.mantissa - 6, 28)


def max_over_argument(dtype: DType) -> float:
    """Return the greatest x that `exp_over` accepts.

    For n of any y within `over_limit`, e^x / 2^n is infinite there; larger x could not be
    distinguished when counted in sixteenths.
    """
    return 1.25 * over_limit(FITS[dtype.name])


def _is_near(m: Machine[V], fit: Fit, y: V) -> V:
    return m.compare("lt", m.abs(y), m.const(fit.dtype, over_limit(fit)))


def exp_far(m: Machine[V], fit: Fit, y: V) -> V:
    """Return y where no power of 2 is near e^y, else 0.

    This is so beyond `over_limit`, for infinities and for NaN.  A y of -inf (the maximum of no
    elements) counts as 0.
    """
    d = fit.dtype
    usual = m.or_(_is_near(m, fit, y), m.compare("eq", y, m.const(d, -INF)))
    return m.select(usual, m.const(d, 0.0), y)


def nearest_power(m: Machine[V], fit: Fit, y: V, per: float) -> V:
    """Round y · per to an integer; 0 where y is beyond `over_limit`."""
    near = m.select(_is_near(m, fit, y), y, m.const(fit.dtype, 0.0))
    return m.rint_small(m.mul(near, m.const(fit.dtype, per)))


def exp_whole(m: Machine[V], fit: Fit, y: V) -> V:
    """Return the integer nearest y / ln 2 as an int32.

    It is 0 where `exp_far` is not 0.
    """
    return m.convert(nearest_power(m, fit, y, fit.log2_e[0]), fit.dtype, i32)


def exp2_whole(m: Machine[V], fit: Fit, y: V) -> V:
    """Return the integer nearest y as an int32; 0 where `exp_far` is not 0."""
    return m.convert(nearest_power(m, fit, y, 1.0), fit.dtype, i32)


def exp_over(m: Machine[V], fit: Fit, x: V, n: V) -> V:
    """Compute e^x / 2^n, with the significand of e^x for every n.

    The power is subtracted from the exponent.  With the n of the greatest x so far, sums of
    exponentials are accumulated in this form, and bringing a sum to another n multiplies it by a
    power of 2, which is exact.  Results so small that products with them may be subnormal (and
    slow) are 0.

    x may not exceed `max_over_argument`; for an x far below, n alone decides, whatever y is.
    """
    exponent, y = _split_exp(m, fit, x, far=False)
    return m.scale_weight(y, m.sub(exponent, m.convert(n, i32, fit.dtype)))


def exp2_over(m: Machine[V], fit: Fit, x: V, n: V) -> V:
    """Compute 2^x / 2^n, like `exp_over`."""
    exponent, y = _split_exp2(m, fit, x, far=False)
    return m.scale_weight(y, m.sub(exponent, m.convert(n, i32, fit.dtype)))


def _split_exp(m: Machine[V], fit: Fit, x: V, *, far: bool = True) -> tuple[V, V]:
    """Return (n, y) with e^x = 2^⌊n⌋ y.

    For x out of range only n is meaningful, and y is a finite number, or anything if not `far`.
    Where `Machine.picks`, n is a multiple of 1/16 and the power of its fraction comes from a table:
    the rest of x is so small that half of the polynomial suffices.
    """
    d = fit.dtype
    if not m.picks:
        n, r = _reduce(m, fit, x)
        r = m.within(r, m.const(d, 1.0)) if far else r
        return n, polynomial(m, d, r, (1.0, 1.0, *fit.exp))
    n, power = _lookup_power(
        m, fit, m.fma(x, m.const(d, fit.log2_e[0]), m.const(d, _rounding_constant(fit)))
    )
    r = m.fma(n, m.const(d, -fit.ln2[0]), x)
    r = m.fma(n, m.const(d, -fit.ln2[1]), r)
    r = m.within(r, m.const(d, 1.0)) if far else r
    y = m.fma(m.mul(r, r), polynomial(m, d, r, fit.exp_near), r)
    return n, m.fma(power, y, power)


def _split_exp2(m: Machine[V], fit: Fit, x: V, *, far: bool = True) -> tuple[V, V]:
    """Return (n, y) with 2^x = 2^⌊n⌋ y, like `_split_exp`."""
    d, one = fit.dtype, m.const(fit.dtype, 1.0)
    if not m.picks:
        n = m.rint_small(x)
        f = m.sub(x, n)
        f = m.within(f, one) if far else f
        if d == f32:
            return n, polynomial(m, d, f, (1.0, *EXP2_SINGLE))
        r = m.mul(f, m.const(d, sum(fit.ln2)))
        return n, polynomial(m, d, r, (1.0, 1.0, *fit.exp))
    n, power = _lookup_power(m, fit, m.add(x, m.const(d, _rounding_constant(fit))))
    f = m.sub(x, n)
    f = m.within(f, one) if far else f
    if d == f32:
        y = m.mul(f, polynomial(m, d, f, EXP2_NEAR))
    else:
        r = m.mul(f, m.const(d, sum(fit.ln2)))
        y = m.fma(m.mul(r, r), polynomial(m, d, r, fit.exp_near), r)
    return n, m.fma(power, y, power)


def _rounding_constant(fit: Fit) -> float:
    """Return a constant whose addition rounds to sixteenths.

    The last bits of the sum are the number of sixteenths.
    """
    return 1.5 * 2.0 ** (fit.mantissa - 4)


def _lookup_power(m: Machine[V], fit: Fit, shifted: V) -> tuple[V, V]:
    """Return the rounded value and 2 to the power of its fraction.

    `shifted` is the value plus `_rounding_constant`.
    """
    n = m.sub(shifted, m.const(fit.dtype, _rounding_constant(fit)))
    return n, m.pick(fit.dtype, fit.powers, m.bitcast(shifted, fit.integer))


def exp_moved(m: Machine[V], fit: Fit, y: V, z: V) -> V:
    """Return the factor that brings sums scaled for y to the scale for z.

    It is 2^(n(y) - n(z)) e^(far(y) - far(z)), with n of `exp_whole` and far of `exp_far`.
    """
    exponent = m.sub(
        nearest_power(m, fit, y, fit.log2_e[0]), nearest_power(m, fit, z, fit.log2_e[0])
    )
    return _rescale(m, fit, y, z, exponent, _split_exp)


def exp2_moved(m: Machine[V], fit: Fit, y: V, z: V) -> V:
    """Return the factor of `exp_moved` for sums of powers of 2."""
    exponent = m.sub(nearest_power(m, fit, y, 1.0), nearest_power(m, fit, z, 1.0))
    return _rescale(m, fit, y, z, exponent, _split_exp2)


def _rescale(
    m: Machine[V], fit: Fit, y: V, z: V, exponent: V, parts: Callable[..., tuple[V, V]]
) -> V:
    """Multiply 2^exponent by the power of the difference of the far parts.

    The latter is rarely needed.
    """
    d = fit.dtype
    a, b, one = exp_far(m, fit, y), exp_far(m, fit, z), m.const(d, 1.0)

    def from_afar() -> V:
        far_exponent, power = parts(m, fit, m.sub(a, b))
        return m.scale_weight(power, m.add(far_exponent, exponent))

    factor = m.rare(m.not_(m.compare("eq", a, b)), m.scale_weight(one, exponent), from_afar)
    return m.select(m.compare("eq", y, m.const(d, -INF)), m.const(d, 0.0), factor)


def expm1(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute e^x - 1 without cancellation.

    It is 2^n ((1 - 2^-n) + r + tail), where the tail includes the rounding error of r.
    """
    d = fit.dtype
    one = m.const(d, 1.0)
    low = -(fit.mantissa + 2) * 0.75  # there e^x - 1 rounds to -1 already
    z = clamp(m, fit, x, low, fit.exp_limit)
    n = m.rint_small(m.mul(z, m.const(d, fit.log2_e[0])))
    coarse = m.fma(n, m.const(d, -fit.ln2[0]), z)
    r = m.fma(n, m.const(d, -fit.ln2[1]), coarse)
    lost = m.fma(n, m.const(d, -fit.ln2[1]), m.sub(coarse, r))
    tail = m.fma(m.mul(r, r), polynomial(m, d, r, fit.exp), lost)
    rest = m.sub(one, m.scale(one, m.neg(n)))
    y = m.scale(m.add(m.add(rest, r), tail), n)
    return m.copysign(y, x)


def sigmoid(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute 1 / (1 + e^-x) accurately for small results too.

    It is 2^n / (2^n + 1 + y) where e^-x = 2^-n (1 + y).  Dividing by a sum in which 2^n is a term
    of its own keeps small results accurate, subnormals included.
    """
    d = fit.dtype
    one = m.const(d, 1.0)
    x = clamp(m, fit, x, -fit.exp_limit, fit.sigmoid_limit)
    n, r = _reduce(m, fit, x)
    alternating = [-c if k % 2 else c for k, c in enumerate(fit.exp)]
    y = m.fma(m.mul(r, r), polynomial(m, d, r, alternating), m.neg(r))
    power, zero = m.scale(one, n), m.const(d, 0.0)
    # A power too small to add to 1 exactly is added to y, which is small enough.
    small = m.compare("lt", power, m.const(d, 2.0 ** -(fit.mantissa // 2)))
    y = m.add(y, m.select(small, power, zero))
    leading = m.add(one, m.select(small, zero, power))
    quotient = m.div(one, m.add(leading, y))
    # One Newton step corrects the rounding of the sum and the division.
    residual = m.fma(m.neg(quotient), y, m.fma(m.neg(quotient), leading, one))
    return m.scale(m.fma(quotient, residual, quotient), n)


def lookup_nearest(m: Machine[V], fraction: V, *tables: Sequence[float]) -> tuple[V, ...]:
    """Look up the table point nearest to a float64 fraction in [¾, 3/2).

    Returns c, about the inverse of that point, and the point's entry in each of `tables`.
    """
    magic = 1.5 * 2.0**52  # adding it leaves an integer in the last bits
    shifted = m.fma(
        fraction,
        m.const(f64, LOG_TABLE_POINTS_PER_UNIT),
        m.const(f64, magic - LOG_TABLE_POINTS_PER_UNIT),
    )
    at = m.bitcast(shifted, i64)
    return tuple(m.pick(f64, table, at) for table in (LOG_TABLE_INVERSES, *tables))


def lookup_remainder(m: Machine[V], fraction: V, inverse: V) -> tuple[V, V]:
    """Return r = fraction · c - 1, and the rounding error of the product."""
    product = m.mul(fraction, inverse)
    lost = m.fma(fraction, inverse, m.neg(product))
    return m.sub(product, m.const(f64, 1.0)), lost


def _log_tail(m: Machine[V], fit: Fit, f: V) -> V:
    """Compute ln(1 + f) - f for -¼ ≤ f < ½."""
    d = fit.dtype
    square = m.mul(f, f)
    if d == f32:
        cube = m.mul(m.mul(square, f), polynomial(m, d, f, fit.log))
        return m.fma(square, m.const(d, -0.5), cube)
    # With s = f / (2 + f): ln(1 + f) = f - f²/2 + s (f²/2 + R(s²)).
    s = m.div(f, m.add(f, m.const(d, 2.0)))
    z = m.mul(s, s)
    r = m.mul(z, polynomial(m, d, z, fit.log))
    half = m.mul(square, m.const(d, 0.5))
    return m.fma(s, m.add(half, r), m.neg(half))


def _log_sum(m: Machine[V], fit: Fit, e: V, f: V) -> V:
    """Compute e ln 2 + ln(1 + f).

    Both parts of ln 2 are positive, so an infinite e stays infinite.
    """
    d = fit.dtype
    y = m.fma(e, m.const(d, fit.ln2[1]), _log_tail(m, fit, f))
    return m.fma(e, m.const(d, fit.ln2[0]), m.add(f, y))


def _log_parts(m: Machine[V], fit: Fit, fraction: V) -> tuple[V, V]:
    """Return ln of a fraction in [¾, 3/2) as a sum of two numbers.

    Where `Machine.picks`, float64 looks up the logarithms of 16 points, and needs no division.
    """
    if fit.dtype == f32 or not m.picks:
        f = m.sub(fraction, m.const(fit.dtype, 1.0))
        return f, _log_tail(m, fit, f)
    inverse, near = lookup_nearest(m, fraction, LOG_TABLE_LOGS)
    r, lost = lookup_remainder(m, fraction, inverse)
    high = m.add(near, r)
    slope = m.sub(m.const(f64, 1.0), r)  # derivative at r, applied to the rounding error
    low = m.fma(lost, slope, m.add(m.sub(near, high), r))
    return high, m.fma(m.mul(r, r), polynomial(m, f64, r, LOG_TABLE_TAIL), low)


def log(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute ln x = e ln 2 + ln(1 + f).

    1 + f is in [¾, 3/2).
    """
    fraction, e = m.split(x)
    high, low = _log_parts(m, fit, fraction)
    y = m.fma(e, m.const(fit.dtype, fit.ln2[1]), low)
    return m.fma(e, m.const(fit.dtype, fit.ln2[0]), m.add(high, y))


def log2(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute log2 x = e + log2(1 + f)."""
    d = fit.dtype
    fraction, e = m.split(x)
    f, tail = _log_parts(m, fit, fraction)
    high, low = fit.log2_e
    y = m.fma(tail, m.const(d, high), m.mul(f, m.const(d, low)))
    return m.add(e, m.fma(f, m.const(d, high), y))


def log10(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute log10 x = e log10 2 + log10(1 + f)."""
    d = fit.dtype
    fraction, e = m.split(x)
    f, tail = _log_parts(m, fit, fraction)
    high, low = fit.log10_e
    y = m.fma(tail, m.const(d, high), m.mul(f, m.const(d, low)))
    y = m.fma(e, m.const(d, fit.log10_2[1]), y)
    return m.fma(e, m.const(d, fit.log10_2[0]), m.fma(f, m.const(d, high), y))


def log1p(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute ln(1 + x) = e ln 2 + ln(1 + f).

    The exponent e is that of the rounded 1 + x, and f = 2^-e (1 + x) - 1.
    """
    d = fit.dtype
    one, infinity = m.const(d, 1.0), m.const(d, INF)
    _, e = m.split(m.add(x, one))
    back = m.scale(one, m.neg(e))
    f = m.fma(x, back, m.sub(back, one))
    y = m.copysign(_log_sum(m, fit, e, f), x)
    y = m.select(m.compare("lt", x, infinity), y, x)
    minus = m.const(d, -1.0)
    y = m.select(m.compare("eq", x, minus), m.const(d, -INF), y)
    return m.select(m.compare("lt", x, minus), m.const(d, NAN), y)


def _hyperbolic(m: Machine[V], fit: Fit, x: V) -> tuple[V, V, V]:
    """Return (n, s, c) with sinh|x| = 2^n s and cosh x = 2^n c.

    x is limited to where both overflow.  With |x| = n ln 2 + r: e^±x = 2^±n (cosh r ± sinh r), so
    that the two polynomials are shared.
    """
    d = fit.dtype
    one, half = m.const(d, 1.0), m.const(d, 0.5)
    a = m.lesser(m.const(d, fit.exp_limit), m.abs(x))
    n, r = _reduce(m, fit, a)
    z = m.mul(r, r)
    s = m.fma(m.mul(z, r), polynomial(m, d, z, fit.sinh), r)
    c = m.fma(z, polynomial(m, d, z, fit.cosh), one)
    most = m.const(d, 100.0 if d == f32 else 1000.0)
    falling = m.scale(half, m.neg(m.lesser(most, m.add(n, n))))  # 2^(-2n-1)
    minus, plus = m.sub(half, falling), m.add(half, falling)
    return n, m.fma(c, minus, m.mul(s, plus)), m.fma(s, minus, m.mul(c, plus))


def sinh(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute (e^x - e^-x) / 2."""
    n, s, _ = _hyperbolic(m, fit, x)
    return m.copysign(m.scale(s, n), x)


def cosh(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute (e^x + e^-x) / 2."""
    n, _, c = _hyperbolic(m, fit, x)
    return m.scale(c, n)


def tanh(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute tanh x from polynomials, exponentials or a table.

    float32: an odd polynomial below 0.625, 1 - 2 / (e^2|x| + 1) above; with `Machine.picks`, a
    polynomial for each of 32 intervals.  float64: sinh / cosh.
    """
    d = fit.dtype
    a = m.abs(x)
    if d == f32 and m.picks:
        return m.copysign(_tanh_by_table(m, a), x)
    limited = m.lesser(m.const(d, fit.tanh_limit), a)
    if d != f32:
        _, s, c = _hyperbolic(m, fit, limited)
        return m.copysign(m.div(s, c), x)
    one = m.const(d, 1.0)
    square = m.mul(x, x)
    near = m.fma(m.mul(a, square), polynomial(m, d, square, TANH_SINGLE), a)
    n, y = exp_parts(m, fit, m.add(limited, limited))
    e = m.scale(m.add(y, one), n)
    far = m.sub(one, m.div(m.const(d, 2.0), m.add(e, one)))
    return m.copysign(m.select(m.compare("lt", a, m.const(d, 0.625)), near, far), x)


def _tanh_by_table(m: Machine[V], a: V) -> V:
    """Compute tanh a from a table of centres and polynomials.

    tanh(c + t) = tanh c + t P(t), where c is the centre of the quarter octave of a.
    """
    a = m.lesser(m.const(f32, MAX_TANH), a)
    bits = m.bitcast(m.greater(m.const(f32, MIN_TANH), a), i32)
    index = m.lshr(bits, m.const(i32, FITS["f32"].mantissa - 2))
    centre, first, *rest = (m.pick(f32, table, index) for table in TANH_TABLES)
    t = m.sub(a, centre)  # exact; NaN stays NaN
    total = rest.pop()
    for coefficient in (*reversed(rest), first):
        total = m.fma(total, t, coefficient)
    return total


def asinh(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute asinh x by `log1p`.

    asinh a = ln(1 + a + a² / (1 + √(a² + 1))), or ln 2a where a² would overflow.
    """
    d = fit.dtype
    one = m.const(d, 1.0)
    a = m.abs(x)
    big = m.compare("gt", a, m.const(d, 2.0 ** (fit.mantissa // 2 + 2)))
    square = m.mul(a, a)
    grown = m.add(one, m.sqrt(m.add(square, one)))
    near = m.add(a, m.div(square, grown))
    y = log1p(m, fit, m.select(big, m.sub(a, one), near))
    y = m.select(big, m.add(y, m.const(d, sum(fit.ln2))), y)
    return m.copysign(y, x)


def acosh(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute acosh x by `log1p`.

    acosh x = ln(1 + t + √(t (t + 2))) with t = x - 1, or ln 2x for large x.
    """
    d = fit.dtype
    t = m.sub(x, m.const(d, 1.0))
    big = m.compare("gt", x, m.const(d, 2.0 ** (fit.mantissa // 2 + 2)))
    root = m.sqrt(m.mul(t, m.add(t, m.const(d, 2.0))))
    y = log1p(m, fit, m.select(big, t, m.add(t, root)))
    y = m.select(big, m.add(y, m.const(d, sum(fit.ln2))), y)
    return m.select(m.compare("lt", t, m.const(d, 0.0)), m.const(d, NAN), y)


def atanh(m: Machine[V], fit: Fit, x: V) -> V:
    """Compute atanh x by `log1p`.

    atanh a = ½ ln((1 + a) / (1 - a)) = ½ ln(1 + 2a / (1 - a)).
    """
    d = fit.dtype
    a = m.abs(x)
    ratio = m.div(m.add(a, a), m.sub(m.const(d, 1.0), a))
    y = m.mul(log1p(m, fit, ratio), m.const(d, 0.5))
    return m.copysign(y, x)
