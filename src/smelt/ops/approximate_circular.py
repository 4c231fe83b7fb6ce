"""Approximate circular functions and their inverses, written once against `Machine`.

Arguments are reduced by multiples of π/2 in three fused steps (Cody-Waite) while that is exact
enough; larger ones (beyond 1e5 in float32, 1e9 in float64) use the C library's function lane by
lane, in a branch that is skipped when no lane needs it.

    y = sin(machine, FITS["f32"], x)     # x, y: float32 registers
"""

from __future__ import annotations

from typing import TypeVar

from smelt.ops.coefficients import Fit
from smelt.ops.machine import Machine, polynomial
from smelt.types.dtype import f32

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
