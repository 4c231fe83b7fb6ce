"""Wrap NumPy functions as reference columns: without warnings, total, and right for half types.

`plain` wraps a ufunc whose float32 result is already exact or correctly rounded; `accurate` wraps a
transcendental one and computes float32 in float64, so that the reference is accurate to half an
ulp. Both compute half types in float32 and round back. `fused_multiply_add` rounds x · y + z once.

>>> accurate(np.exp)(np.float16(1)).dtype
dtype('float16')
>>> fused_multiply_add(np.float32(1 + 2**-20), np.float32(1 - 2**-20), np.float32(-1))
array(-9.094947e-13, dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import ml_dtypes
import numpy as np

from smelt.python.imports import fork_safe_import

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def _compute(function: Function, args: tuple[Any, ...], single: Any) -> Array:
    """Call `function` on widened arguments, and round the result back.

    Half types are widened to float32, float32 to `single`.
    """
    arrays = [np.asarray(a) for a in args]
    original = arrays[0].dtype
    with np.errstate(all="ignore"):
        if original in HALVES:
            arrays = [a.astype(np.float32) if a.dtype == original else a for a in arrays]
        if arrays[0].dtype == np.float32:
            arrays = [a.astype(single) if a.dtype == np.float32 else a for a in arrays]
        result = np.asarray(function(*arrays))
        if result.dtype.kind != "f" or original.kind not in "fV":
            return result
        if original in HALVES:
            result = result.astype(np.float32)
        return result.astype(original)


def plain(function: Function) -> Callable[..., Array]:
    """Wrap a function to compute in the operands' own type, half types in float32."""

    @wraps(function)
    def reference(*args: Any) -> Array:
        return _compute(function, args, np.float32)

    return reference


def accurate(function: Function) -> Callable[..., Array]:
    """Wrap a function to compute float32 and shorter types in float64."""

    @wraps(function)
    def reference(*args: Any) -> Array:
        return _compute(function, args, np.float64)

    _ACCURATE.add(reference)
    return reference


_ACCURATE: set[Any] = set()
"""References whose last bits are not those of kernels."""


def is_accurate(reference: Any) -> bool:
    """Return whether `accurate` made a reference: kernels differ in the last bits."""
    return reference in _ACCURATE


def elementwise_float64(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """Wrap a function of Python floats, such as one from `math`, for float64 arrays."""

    def apply(x: Array) -> Array:
        flat = [function(v) for v in np.asarray(x, np.float64).ravel().tolist()]
        return np.array(flat, np.float64).reshape(np.shape(x))

    return apply


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


@cache
def _fraction() -> Any:
    """Return the class of rational numbers, which few programs need."""
    return fork_safe_import("fractions").Fraction


def _fma_rational(a: float, b: float, c: float) -> float:
    rational = _fraction()
    total = rational(a) * rational(b) + rational(c)
    if total == 0:
        return a * b + c
    try:
        return float(total)
    except OverflowError:
        return np.inf if total > 0 else -np.inf
