"""How NumPy functions become reference columns: silent, total, and right for half types.

`plain` wraps a ufunc whose float32 result is exact or correctly rounded already; `accurate` wraps
a transcendental one, computing float32 in float64 so that the reference is good to half a unit in
the last place.  Half types are computed in float32 and rounded back by both.

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
    """`function` on arguments widened to float32 (halves) and `single` (float32), rounded back."""
    arrays = [np.asarray(a) for a in args]
    own = arrays[0].dtype
    with np.errstate(all="ignore"):
        if own in HALVES:
            arrays = [a.astype(np.float32) if a.dtype == own else a for a in arrays]
        if arrays[0].dtype == np.float32:
            arrays = [a.astype(single) if a.dtype == np.float32 else a for a in arrays]
        result = np.asarray(function(*arrays))
        if result.dtype.kind != "f" or own.kind not in "fV":
            return result
        if own in HALVES:
            result = result.astype(np.float32)
        return result.astype(own)


def plain(function: Function) -> Callable[..., Array]:
    """Reference that computes in the operands' own type, halves in float32."""

    @wraps(function)
    def reference(*args: Any) -> Array:
        return _compute(function, args, np.float32)

    return reference


def accurate(function: Function) -> Callable[..., Array]:
    """Reference that computes float32 and shorter in float64."""

    @wraps(function)
    def reference(*args: Any) -> Array:
        return _compute(function, args, np.float64)

    return reference


def each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python floats, from `math` for instance, as one of float64 arrays."""

    def apply(x: Array) -> Array:
        flat = [function(v) for v in np.asarray(x, np.float64).ravel().tolist()]
        return np.array(flat, np.float64).reshape(np.shape(x))

    return apply
