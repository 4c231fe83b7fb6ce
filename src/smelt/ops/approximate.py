"""Transcendental functions of float32, written once against `Machine`.

Every function reduces its argument to a short interval, evaluates a polynomial there by fused
multiply-adds and puts the result back together.  Coefficients are our own minimax fits, rounded
to float32 (given as hexadecimal literals, exactly what the hardware sees).  Errors are listed by
`tests/codegen/accuracy.py`.  NaN propagates, infinities and signed zeros come out as in C99 annex
F, and subnormals are neither read nor written as zero.

    y = exp(machine, x)     # x, y: float32 registers
"""

from __future__ import annotations

from typing import TypeVar

from smelt.ops.machine import Machine, polynomial
from smelt.types.dtype import f32, i32

V = TypeVar("V")


def _hex(*literals: str) -> tuple[float, ...]:
    return tuple(float.fromhex(text) for text in literals)


LOG2_E = float.fromhex("0x1.715476p+0")
LN2_HIGH = float.fromhex("0x1.62e400p-1")
LN2_LOW = float.fromhex("0x1.7f7d1cp-20")
INF = float("inf")
NAN = float("nan")

EXP = _hex(
    "0x1.fffffcp-2", "0x1.555492p-3", "0x1.5558aep-5", "0x1.123980p-7", "0x1.6a4f28p-10"
)  # fmt: skip


def exp(m: Machine[V], x: V) -> V:
    """e^x: 2^n (1 + r + r² P(r)) with n the integer nearest to x / ln 2."""
    x = m.greater(m.const(f32, -104.0), m.lesser(m.const(f32, 104.0), x))
    n = m.rint(m.mul(x, m.const(f32, LOG2_E)))
    r = m.fma(n, m.const(f32, -LN2_HIGH), x)
    r = m.fma(n, m.const(f32, -LN2_LOW), r)
    p = polynomial(m, f32, r, EXP)
    y = m.fma(m.mul(r, r), p, r)
    return m.scale(m.add(y, m.const(f32, 1.0)), n)


LOG = _hex(
    "0x1.55554ap-2", "-0x1.000220p-2", "0x1.99a5aap-3", "-0x1.54788ep-3",
    "0x1.226d1ap-3", "-0x1.0cdf74p-3", "0x1.07d6a8p-3", "-0x1.41fe3ap-4",
)  # fmt: skip


def log(m: Machine[V], x: V) -> V:
    """ln x = e ln 2 + ln(1 + f) with 1 + f in [√½, √2)."""
    one = m.const(f32, 1.0)
    tiny = m.compare("lt", x, m.const(f32, 2.0**-126))
    scaled = m.select(tiny, m.mul(x, m.const(f32, 2.0**23)), x)
    bits = m.bitcast(scaled, i32)
    e = m.ashr(m.sub(bits, m.const(i32, 0x3F3504F3)), m.const(i32, 23))
    f = m.bitcast(m.sub(bits, m.shl(e, m.const(i32, 23))), f32)
    f = m.sub(f, one)
    e = m.convert(e, i32, f32)
    e = m.select(tiny, m.sub(e, m.const(f32, 23.0)), e)
    square = m.mul(f, f)
    q = polynomial(m, f32, f, LOG)
    y = m.mul(m.mul(square, f), q)
    y = m.fma(e, m.const(f32, -2.12194440e-4), y)
    y = m.fma(square, m.const(f32, -0.5), y)
    y = m.fma(e, m.const(f32, 0.693359375), m.add(f, y))
    return _log_edges(m, x, y)


def _log_edges(m: Machine[V], x: V, y: V) -> V:
    """The logarithm y of x where x is 0, negative, infinite or NaN."""
    zero = m.const(f32, 0.0)
    infinity = m.const(f32, INF)
    y = m.select(m.compare("lt", x, infinity), y, x)
    y = m.select(m.compare("eq", x, zero), m.const(f32, -INF), y)
    return m.select(m.compare("lt", x, zero), m.const(f32, NAN), y)


TANH = _hex(
    "-0x1.555534p-2", "0x1.110760p-3", "-0x1.b84338p-5", "0x1.525030p-6", "-0x1.768f46p-8"
)  # fmt: skip


def tanh(m: Machine[V], x: V) -> V:
    """An odd polynomial below 0.625, 1 - 2 / (e^2|x| + 1) above."""
    one = m.const(f32, 1.0)
    a = m.abs(x)
    square = m.mul(x, x)
    near = m.fma(m.mul(x, square), polynomial(m, f32, square, TANH), x)
    e = exp(m, m.mul(m.lesser(m.const(f32, 10.0), a), m.const(f32, 2.0)))
    far = m.sub(one, m.div(m.const(f32, 2.0), m.add(e, one)))
    return m.select(m.compare("lt", a, m.const(f32, 0.625)), near, m.copysign(far, x))


ERF_NEAR = _hex(
    "0x1.06eba8p-3", "-0x1.81262ep-2", "0x1.cdfd26p-4", "-0x1.b4df24p-6",
    "0x1.3c9d28p-8", "-0x1.006b40p-11", "-0x1.9181a0p-16",
)  # fmt: skip
ERF_FAR = _hex(
    "-0x1.8a5956p-13", "0x1.212c0ep+0", "0x1.443562p-1", "0x1.bc1564p-4",
    "-0x1.9d03ecp-6", "0x1.138e30p-8", "-0x1.cecaaap-12", "0x1.6bdda0p-16",
)  # fmt: skip


def erf(m: Machine[V], x: V) -> V:
    """An odd polynomial below 1, 1 - e^-R(|x|) above."""
    one = m.const(f32, 1.0)
    a = m.abs(x)
    near = m.fma(x, polynomial(m, f32, m.mul(x, x), ERF_NEAR), x)
    r = polynomial(m, f32, m.lesser(m.const(f32, 4.0), a), ERF_FAR)
    far = m.sub(one, exp(m, m.neg(r)))
    return m.select(m.compare("lt", a, one), near, m.copysign(far, x))
