"""Rules that compute operators on complex numbers with operators on their parts.

A number is a pair: its real and its imaginary part.  Rules are written against `xp`, a namespace
with the array API's functions of real arrays, so that every front end records its own operators
by them.  The imaginary part of an operand that is real is None where it must not be computed with
(an infinity times a zero is NaN), or 0.0 where a library does so.

Special values follow C99, Annex G.  Division is that of R. Smith, "Algorithm 116: complex
division", 1962; tangents follow W. Kahan, "Branch cuts for complex elementary functions", 1987.

>>> multiply((3.0, 4.0), (3.0, -4.0)), multiply((3.0, 4.0), (2.0, None))
((25.0, 0.0), (6.0, 8.0))
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

Part = Any
"""Real array or number; None for an imaginary part that is not there."""
Pair = tuple[Part, Part]
Function = Callable[[Any, Pair], Any]

_USED: Final = """
    abs atan2 copysign cos cosh divide exp expm1 finfo full_like hypot isfinite isinf isnan log
    log1p maximum minimum negative signbit sin sinh sqrt tan where
"""
"""Functions of real arrays that rules call."""


def namespace(*modules: Any, **functions: Callable[..., Any]) -> Any:
    """Return the real functions of a front end, those not named from its modules."""
    modules = (SimpleNamespace(**functions), *modules)
    names = _USED.split()
    return SimpleNamespace(
        **{name: next(getattr(m, name) for m in modules if hasattr(m, name)) for name in names}
    )


# Arithmetic


def add(x: Pair, y: Pair) -> Pair:
    """Return x + y."""
    (a, b), (c, d) = x, y
    return a + c, b if d is None else d if b is None else b + d


def subtract(x: Pair, y: Pair) -> Pair:
    """Return x - y."""
    (a, b), (c, d) = x, y
    return a - c, b if d is None else -d if b is None else b - d


def multiply(x: Pair, y: Pair, times: Callable[[Part, Part], Part] = operator.mul) -> Pair:
    """Return x · y, or another bilinear product by that of real arrays."""
    (a, b), (c, d) = x, y
    if d is None:
        return times(a, c), times(b, c)
    if b is None:
        return times(a, c), times(a, d)
    return times(a, c) - times(b, d), times(a, d) + times(b, c)


def divide(xp: Any, x: Pair, y: Pair) -> Pair:
    """Return x / y, without overflow of intermediate results.

    Both parts are divided by the larger part of the divisor.  One that is a number is not zero.
    """
    (a, b), (c, d) = x, y
    if d is None:
        return xp.divide(a, c), xp.divide(b, c)
    b = xp.full_like(c, 0.0) if b is None else b  # a number would take the dtype of a
    if not hasattr(a, "dtype"):  # the choice between two numbers has no dtype of its own
        a = xp.full_like(c, a)
    size = xp.abs(c)
    first = size >= xp.abs(d)
    large, small = xp.where(first, c, d), xp.where(first, d, c)
    ratio = small / large
    scale = 1.0 / (large + small * ratio)
    p, q = xp.where(first, a, b), xp.where(first, b, a)
    real = (p + q * ratio) * scale
    imag = xp.where(first, q - p * ratio, p * ratio - q) * scale
    zero = (c == 0.0) & (d == 0.0)
    if zero is False:
        return real, imag
    return xp.where(zero, a / size, real), xp.where(zero, b / size, imag)


_UNROLLED = 16
"""Largest whole exponent that is written as products."""


def power(xp: Any, x: Pair, exponent: Any) -> Pair | None:
    """Return x to a power by products or a root, None for other exponents."""
    if isinstance(exponent, float) and exponent == 0.5:
        return _sqrt(xp, x)
    if exponent.__class__ is not int or not 0 < abs(exponent) <= _UNROLLED:
        return None
    result, base, count = None, x, abs(exponent)
    while count:
        if count % 2:
            result = base if result is None else multiply(result, base)
        count //= 2
        base = multiply(base, base) if count else base
    assert result is not None
    return divide(xp, (1.0, None), result) if exponent < 0 else result


def _sign(xp: Any, x: Pair) -> Pair:
    """Return x / |x|, and 0 for 0; two infinite parts have no direction."""
    re, im = x
    infinite, both = xp.isinf(re) | xp.isinf(im), xp.isinf(re) & xp.isinf(im)

    def bounded(part: Part) -> Part:
        halves = xp.where(xp.isinf(part), xp.copysign(1.0, part), xp.copysign(0.0, part))
        return xp.where(xp.isfinite(xp.abs(re) + xp.abs(im)), part, halves)

    huge = xp.isinf(xp.hypot(re, im)) & ~infinite
    re, im = (xp.where(infinite, bounded(p), xp.where(huge, p * 0.25, p)) for p in (re, im))
    size = xp.hypot(re, im)
    zero = size == 0.0
    size = xp.where(both, math.nan, xp.where(zero, 1.0, size))
    return xp.where(zero, re, re / size), xp.where(zero, im, im / size)


# Exponentials and logarithms


def _exp_limit(xp: Any, x: Part) -> float:
    """Return a power that exp does not overflow for, near the largest."""
    return 85.0 if xp.finfo(x.dtype).bits == 32 else 700.0


def _times_exp(xp: Any, x: Part, exponent: Part) -> Part:
    """Return x · exp(exponent), which may be finite where exp(exponent) is not."""
    limit = _exp_limit(xp, exponent)
    rest = xp.maximum(exponent - limit, 0.0)
    return x * xp.exp(xp.minimum(exponent, limit)) * xp.exp(rest)


def _exp(xp: Any, x: Pair) -> Pair:
    re, im = x
    real, imag = _times_exp(xp, xp.cos(im), re), _times_exp(xp, xp.sin(im), re)
    # exp(-inf) is 0 at any angle, exp(inf) is infinite in an unknown direction
    without = xp.isinf(re) & ~xp.isfinite(im)
    real = xp.where(without, xp.exp(re), real)
    imag = xp.where(without & (re < 0.0), 0.0, imag)
    return real, xp.where(im == 0.0, im, imag)


def _expm1(xp: Any, x: Pair) -> Pair:
    """Return exp(x) - 1, accurate near zero."""
    re, im = x
    half = xp.sin(im * 0.5)
    real = xp.expm1(re) * xp.cos(im) - 2.0 * (half * half)
    whole = _exp(xp, x)
    unsafe = ~((re < _exp_limit(xp, re)) & xp.isfinite(im)) | (re == -math.inf)
    real = xp.where(unsafe, whole[0] - 1.0, real)
    return xp.where(im == 0.0, xp.expm1(re), real), whole[1]


def _log_abs(xp: Any, re: Part, im: Part) -> Part:
    """Return log |x|, accurate where |x| is near 1."""
    a, b = xp.abs(re), xp.abs(im)
    large, small = xp.maximum(a, b), xp.minimum(a, b)
    near = (large > 0.5) & (large < 1.5)
    near_log = 0.5 * xp.log1p((large - 1.0) * (large + 1.0) + small * small)
    huge = large > float(xp.finfo(re.dtype).max) / 4
    far_log = xp.log(xp.hypot(*(xp.where(huge, p * 0.25, p) for p in (re, im))))
    return xp.where(near, near_log, xp.where(huge, far_log + math.log(4.0), far_log))


def _log(xp: Any, x: Pair) -> Pair:
    """Return the natural logarithm, with an imaginary part in [-π, π]."""
    return _log_abs(xp, *x), xp.atan2(x[1], x[0])


def _log1p(xp: Any, x: Pair) -> Pair:
    """Return log(1 + x), accurate near zero."""
    re, im = x
    moved = re + 1.0
    near = 0.5 * xp.log1p(re * (re + 2.0) + im * im)
    real = xp.where(xp.abs(re) + xp.abs(im) < 0.5, near, _log_abs(xp, moved, im))
    return real, xp.atan2(im, moved)


def _log_to(base: float) -> Function:
    def rule(xp: Any, x: Pair) -> Pair:
        re, im = _log(xp, x)
        return re * (1.0 / math.log(base)), im * (1.0 / math.log(base))

    return rule


def _sqrt(xp: Any, x: Pair) -> Pair:
    """Return the square root with a real part of at least 0."""
    re, im = x
    info = xp.finfo(re.dtype)
    large = xp.maximum(xp.abs(re), xp.abs(im))
    huge, tiny = large > float(info.max) / 4, large < float(info.smallest_normal) * 4
    up = 2.0 ** (2 * (round(-math.log2(info.eps)) // 2 + 1))

    def scaled(part: Part, down: float, up: float) -> Part:
        return xp.where(huge, part * down, xp.where(tiny, part * up, part))

    a, b = scaled(re, 1 / 16, up), scaled(im, 1 / 16, up)
    root = xp.sqrt(0.5 * (xp.abs(a) + xp.hypot(a, b)))
    other = xp.abs(b) / (2.0 * root)
    right, zero = ~xp.signbit(re), (re == 0.0) & (im == 0.0)
    real = xp.where(zero, 0.0, scaled(xp.where(right, root, other), 4.0, up**-0.5))
    imag = xp.where(zero, 0.0, scaled(xp.where(right, other, root), 4.0, up**-0.5))
    ends, rest = xp.isinf(re) & ~xp.isinf(im), xp.abs(im - im)  # 0, or NaN
    real = xp.where(ends, xp.where(right, math.inf, rest), real)
    imag = xp.where(ends, xp.where(right, rest, math.inf), imag)
    real, imag = (xp.where(xp.isinf(im), math.inf, part) for part in (real, imag))
    return real, xp.copysign(imag, im)


# Circular and hyperbolic functions


def _hyperbolic(xp: Any, x: Pair) -> tuple[Part, Part, Part, Part]:
    """Return the products sinh·cos, cosh·sin, cosh·cos and sinh·sin of the parts."""
    re, im = x
    cosine, sine = xp.cos(im), xp.sin(im)
    far = _is_far(xp, re)
    half = xp.abs(re)

    def product(factor: Part, circular: Part, odd: bool) -> Part:
        large = _times_exp(xp, circular * 0.5, half)
        if odd:
            large = large * xp.copysign(1.0, re)
        return xp.where(far, large, factor * circular)

    # no NaN of a zero times an infinity
    flat, straight = re == 0.0, im == 0.0
    unknown = xp.isinf(re) & ~xp.isfinite(im)
    sinh, cosh = xp.sinh(re), xp.cosh(re)
    sc = xp.where(
        flat, re * xp.copysign(1.0, cosine), xp.where(unknown, re, product(sinh, cosine, True))
    )
    cs = xp.where(straight, im, product(cosh, sine, False))
    cc = xp.where(unknown, math.inf, product(cosh, cosine, False))
    zero = xp.copysign(1.0, re) * xp.copysign(0.0, sine)
    ss = xp.where(flat | straight, zero, product(sinh, sine, True))
    return sc, cs, cc, ss


def _is_far(xp: Any, re: Part) -> Part:
    """Return whether exp(-|re|) is lost beside exp(|re|)."""
    return xp.abs(re) > (10.0 if xp.finfo(re.dtype).bits == 32 else 22.0)


def _tanh(xp: Any, x: Pair) -> Pair:
    re, im = x
    far = _is_far(xp, re)
    t, s = xp.tan(im), xp.sinh(xp.where(far, 0.0, re))
    beta, rho = 1.0 + t * t, xp.sqrt(1.0 + s * s)
    bottom = 1.0 + beta * (s * s)
    decay = xp.exp(-2.0 * xp.abs(re))
    far_imag = 4.0 * (xp.sin(im) * xp.cos(im)) * decay
    far_imag = xp.where(xp.isinf(re) & ~xp.isfinite(im), 0.0, far_imag)
    has_sign = xp.isfinite(im) | xp.isinf(re)
    far_real = xp.where(has_sign, xp.copysign(1.0, re), math.nan)
    real = xp.where(far, far_real, xp.where(re == 0.0, re, beta * rho * s / bottom))
    imag = xp.where(far, far_imag, t / bottom)
    return real, xp.where(im == 0.0, im, imag)


def _negative(xp: Any, x: Pair) -> Pair:
    return xp.negative(x[0]), xp.negative(x[1])


def _conj(xp: Any, x: Pair) -> Pair:
    return x[0], xp.negative(x[1])


def _times_i(xp: Any, x: Pair) -> Pair:
    return xp.negative(x[1]), x[0]


def _circular(hyperbolic: Function) -> Function:
    """Return the rule of -i f(i x)."""

    def rule(xp: Any, x: Pair) -> Pair:
        re, im = hyperbolic(xp, _times_i(xp, x))
        return im, xp.negative(re)

    return rule


def _sinh(xp: Any, x: Pair) -> Pair:
    return _hyperbolic(xp, x)[:2]


def _cosh(xp: Any, x: Pair) -> Pair:
    return _hyperbolic(xp, x)[2:]


FUNCTIONS: Final[dict[str, Function]] = {
    "abs": lambda xp, x: xp.hypot(*x),
    "angle": lambda xp, x: xp.atan2(x[1], x[0]),
    "conj": _conj,
    "cos": lambda xp, x: _cosh(xp, _times_i(xp, x)),
    "cosh": _cosh,
    "exp": _exp,
    "expm1": _expm1,
    "isfinite": lambda xp, x: xp.isfinite(x[0]) & xp.isfinite(x[1]),
    "isinf": lambda xp, x: xp.isinf(x[0]) | xp.isinf(x[1]),
    "isnan": lambda xp, x: xp.isnan(x[0]) | xp.isnan(x[1]),
    "log": _log,
    "log10": _log_to(10.0),
    "log1p": _log1p,
    "log2": _log_to(2.0),
    "negative": _negative,
    "reciprocal": lambda xp, x: divide(xp, (1.0, None), x),
    "sign": _sign,
    "sin": _circular(_sinh),
    "sinh": _sinh,
    "sqrt": _sqrt,
    "square": lambda xp, x: multiply(x, x),
    "tan": _circular(_tanh),
    "tanh": _tanh,
}
"""Function of one complex number -> its rule, whose result is a pair or real."""
