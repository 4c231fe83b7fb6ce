"""Values worth trying for each element type, and how far two results are apart.

>>> ulps(np.float32(1), np.nextafter(np.float32(1), np.float32(2)))
array(1)
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from smelt.ops.spec import ScalarOp
from smelt.types.dtype import COMPUTABLE, DType, bool_, i32

Array = np.ndarray[Any, Any]

_HALF_BITS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def special(dtype: DType) -> Array:
    """±0, ±inf, NaNs, subnormals, extremes, powers of two and ordinary numbers."""
    if dtype == bool_:
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        ends = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2]
        near = [
            v for v in (-100, -8, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 63, 100) if v >= info.min
        ]
        return np.array(ends + near, dtype.numpy)
    exponent, mantissa = _HALF_BITS[dtype.name]
    top = (1 << exponent) - 1
    one = (top >> 1) << mantissa
    bits = [
        0,
        1,
        2,
        (1 << mantissa) - 1,
        1 << mantissa,
        (1 << mantissa) + 1,  # 0, subnormal, least
        (top << mantissa) - 1,
        (top << mantissa) - 2,
        top << mantissa,  # greatest, infinity
        (top << mantissa) | (1 << (mantissa - 1)),  # quiet NaN
        one - 1,
        one,
        one + 1,
    ]
    signed = [b | (s << (exponent + mantissa)) for b, s in product(bits, (0, 1))]
    patterns = np.array(signed, f"u{dtype.itemsize}").view(dtype.numpy)
    ordinary = [0.1, 0.3, 0.5, 0.9, 1.5, 2.0, 2.5, 3.0, 3.7, 10.0, 100.5, 1e4, 60000.0, 0.001]
    ordinary += [-v for v in ordinary]
    return np.concatenate([patterns, np.array(ordinary).astype(dtype.numpy)])


def operands(op: ScalarOp) -> list[tuple[DType, ...]]:
    """Every combination of operand types that a row takes (promotion done)."""
    results = []
    for dtype in COMPUTABLE:
        lead = op.rule.accepts[op.rule.lead]
        if dtype.kind not in lead:
            continue
        types = [dtype if kinds == lead else _single(kinds) for kinds in op.rule.accepts]
        if op.name == "philox" and dtype.bits != 64:
            continue
        if any(types[position] != only for position, only in op.rule.fixed):
            continue
        results.append(tuple(types))
    return results


def _single(kinds: tuple[str, ...]) -> DType:
    return bool_ if kinds == ("bool",) else i32


def grid(dtypes: tuple[DType, ...]) -> list[Array]:
    """Every special value of each operand against every other."""
    mesh = np.meshgrid(*[np.arange(len(special(d))) for d in dtypes], indexing="ij")
    return [special(d)[index.ravel()] for d, index in zip(dtypes, mesh, strict=True)]


def ulps(got: Array, want: Array) -> Array:
    """Distance in units of the last place of the type; 0 where both are NaN."""
    got, want = np.asarray(got), np.asarray(want)
    kind = f"i{got.dtype.itemsize}"
    a, b = _ordinal(got.view(kind)), _ordinal(want.view(kind))
    far = np.abs(a.astype(object) - b.astype(object)) if got.dtype.itemsize == 8 else abs(a - b)
    both_nan = (got != got) & (want != want)
    one_nan = (got != got) != (want != want)
    return np.where(both_nan, 0, np.where(one_nan, 1 << 62, far)).astype(np.int64)


def _ordinal(bits: Array) -> Array:
    """Sign-magnitude patterns as integers in the numbers' order (both zeros are 0)."""
    wide = bits.astype(np.int64)
    least = -(1 << (8 * bits.dtype.itemsize - 1))
    return np.where(wide < 0, least - wide, wide)


ULP_F32 = {
    "exp": 1.1, "exp2": 1.1, "expm1": 1.6, "log": 1.1, "log2": 2.0, "log10": 1.4, "log1p": 1.2,
    "sin": 1.6, "cos": 1.6, "tan": 4.0, "asin": 2.5, "acos": 1.5, "atan": 2.5, "sinh": 3.0,
    "cosh": 3.0, "tanh": 1.5, "asinh": 2.5, "acosh": 2.5, "atanh": 2.5, "erf": 2.0, "erfc": 4.0,
    "sigmoid": 1.5, "rsqrt": 1.5, "pow": 0.7, "hypot": 0.6, "atan2": 2.5, "logaddexp": 3.5,
}  # fmt: skip
"""Promised greatest errors in units of the last place, float32; everything else is exact."""

ULP_F64 = {name: max(1.5, limit) for name, limit in ULP_F32.items()} | {
    "pow": 1.0,
    "tanh": 3.0,
}
"""The same for float64."""


def error_limit(op: ScalarOp, dtype: DType) -> int:
    """How many representable numbers a result may lie from the rounded reference."""
    name = op.name.removesuffix("_over").removesuffix("_moved")
    if name not in ULP_F32 or not dtype.is_float:
        return 0
    limit = {32: ULP_F32, 64: ULP_F64}.get(dtype.bits, {}).get(name, 0.6)
    return int(limit + 0.5)
