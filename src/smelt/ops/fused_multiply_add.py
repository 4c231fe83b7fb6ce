"""Compute x · y + z with a single rounding in NumPy.

>>> fused_multiply_add(np.float32(1 + 2**-20), np.float32(1 - 2**-20), np.float32(-1))
array(-9.094947e-13, dtype=float32)
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def fused_multiply_add(x: Any, y: Any, z: Any) -> Array:
    """Return x · y + z, rounded once; operands broadcast."""
    x, y, z = np.broadcast_arrays(x, y, z)
    return _fma32(x, y, z) if x.dtype == np.float32 else _fma64(x, y, z)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a + b as a rounded sum and its exact error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _round_to_odd(s: Array, error: Array) -> Array:
    """Round a float64 sum with a known error to odd instead (Boldo and Melquiond, 2008).

    Rounding the result again, to any shorter format or after another exact addition, then gives
    what a single rounding would have given.
    """
    bits = s.view(np.int64)
    step = np.where((error > 0) == (s > 0), 1, -1)
    fix = np.isfinite(s) & (error != 0) & (bits & 1 == 0)
    return np.where(fix, bits + step, bits).view(np.float64)


def _fma32(a: Array, b: Array, c: Array) -> Array:
    product = np.asarray(a.astype(np.float64) * b)  # exact: 48 bits
    s, error = _two_sum(product, c.astype(np.float64))
    return _round_to_odd(np.asarray(s), error).astype(np.float32)


def _fma64(a: Array, b: Array, c: Array) -> Array:
    """Compute an error-free product and sums in range, and rationals elsewhere."""
    high, low = _two_product(a, b)
    t, t_low = _two_sum(c, low)
    v, v_low = _two_sum(high, t)
    z, z_low = _two_sum(t_low, v_low)
    result = v + _round_to_odd(np.asarray(z), z_low)
    magnitude = np.abs(a * b)
    safe = (magnitude > 2.0**-900) & (magnitude < 2.0**900) & (np.abs(c) < 2.0**900)
    safe &= (np.abs(a) < 2.0**900) & (np.abs(b) < 2.0**900)
    exact = (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c)
    overflows = np.isinf(c) & np.isfinite(a) & np.isfinite(b)  # at most the product
    result = np.where(exact, np.where(overflows, c, a * b + c), result)
    for at in np.argwhere(~safe & ~exact):
        index = tuple(at)
        result[index] = _fma_rational(float(a[index]), float(b[index]), float(c[index]))
    return result


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a · b as a rounded product and its exact error.

    Uses Veltkamp's split and Dekker's product.
    """
    splitter = float(2**27 + 1)
    p = a * b
    ah = a * splitter - (a * splitter - a)
    bh = b * splitter - (b * splitter - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _fma_rational(a: float, b: float, c: float) -> float:
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c
    try:
        return float(total)
    except OverflowError:
        return np.inf if total > 0 else -np.inf
