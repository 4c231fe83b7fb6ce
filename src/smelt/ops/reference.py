"""Wrap NumPy functions as reference columns: without warnings, total, and right for half types.

`plain` wraps a ufunc whose float32 result is already exact or correctly rounded; `accurate` wraps a
transcendental one and computes float32 in float64, so that the reference is accurate to half an
ulp. Both compute half types in float32 and round back.

>>> accurate(np.exp)(np.float16(1)).dtype
dtype('float16')
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import ml_dtypes
import numpy as np

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
