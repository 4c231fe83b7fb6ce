"""Convert element types that arrays do not have: floats of 8 and 4 bits, integers of 4 and 2, text.

Such tensors are storage: NumPy converts them, outside of programs.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from smelt.errors import UnsupportedError

Data = np.ndarray[Any, Any]
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_WHOLE = ("int4", "uint4", "int2", "uint2")


def convert(x: Data, dtype: np.dtype[Any], saturate: bool = True, rounding: str = "up") -> Data:
    """Return elements as another type.

    With `saturate` numbers beyond a float of 8 bits become its largest ones; `rounding` is that of
    powers of two: "up", "down" or "nearest".
    """
    if dtype.kind == "O":
        return x.astype(np.str_).astype(object)
    if x.dtype.kind == "O":
        x = np.array([float(t) for t in x.reshape(-1)], np.float64).reshape(x.shape)
    with np.errstate(all="ignore"):
        if dtype.name == "float8_e8m0fnu":
            return _powers_of_two(x.astype(np.float32), saturate, rounding).view(dtype)
        if dtype.name in _FLOAT8 and saturate:
            info = ml_dtypes.finfo(dtype)
            return np.clip(x.astype(np.float32), float(info.min), float(info.max)).astype(dtype)
        return x.astype(dtype)


def _powers_of_two(x: Data, saturate: bool, rounding: str) -> Data:
    """Return the exponent bits of numbers, rounded to powers of two."""
    bits = x.view(np.uint32)
    exponent = ((bits >> 23) & 255).astype(np.int64)
    fraction = bits & 0x7FFFFF
    grows = {
        "up": fraction > 0,
        "down": fraction < 0,
        "nearest": np.where(exponent > 0, fraction >= 0x400000, fraction > 0x400000),
    }
    if rounding not in grows:
        raise UnsupportedError(f"the rounding {rounding!r} of a cast")
    more = grows[rounding] & (exponent < (254 if saturate else 255))
    return (exponent + more).astype(np.uint8)


def spread(v: Any, x: Any, axis: int, block: int) -> Any:
    """Return scales or zero points in a shape that broadcasts with `x`."""
    if v is None or v.ndim == 0 or v.size == 1:
        return None if v is None else v.reshape(())
    if block:
        return np.take(np.repeat(v, block, axis=axis), np.arange(x.shape[axis]), axis=axis)
    return v.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim)) if v.ndim == 1 else v


def quantize(x: Data, scale: Data, zero: Data | None, dtype: np.dtype[Any], saturate: bool) -> Data:
    """Return x / scale (+ zero point) as a narrow type; operands broadcast."""
    steps = x.astype(np.float32) / scale.astype(np.float32)
    if dtype.name in _WHOLE:
        info = ml_dtypes.iinfo(dtype)
        steps = np.rint(steps)
        if zero is not None:
            steps = steps + zero.astype(np.float32)
        return np.clip(steps, info.min, info.max).astype(dtype)
    if zero is not None:
        steps = steps + zero.astype(np.float32)
    return convert(steps, dtype, saturate)


def dequantize(x: Data, scale: Data, zero: Data | None) -> Data:
    """Return (x - zero point) * scale; operands broadcast."""
    wide = x.astype(np.float32)
    if zero is not None:
        wide = wide - zero.astype(np.float32)
    return (wide * scale.astype(np.float32)).astype(scale.dtype)
