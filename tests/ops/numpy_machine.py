"""Implement `Machine` on NumPy arrays: the reference that native code must match bit by bit.

>>> m = NumpyMachine()
>>> m.fma(m.const(f32, 3.0), m.const(f32, 0.5), m.const(f32, 1.0))
np.float32(2.5)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from smelt.ops.coefficients import FITS
from smelt.ops.machine import Predicate
from smelt.ops.reference import fused_multiply_add
from smelt.types.dtype import DType, bf16, f32

Array = Any  # ndarray or NumPy scalar: ufuncs give either

_COMPARE: dict[Predicate, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class NumpyMachine:
    """Registers are arrays (any shape) of the compute type; masks are bool arrays.

    `picks` chooses which machines it stands for: those whose formulas use tables, or the others.
    """

    def __init__(self, *, picks: bool = False) -> None:
        self.picks = picks

    def const(self, dtype: DType, value: float | int | bool) -> Array:
        if dtype.is_integer:
            return np.array(int(value) & ((1 << dtype.bits) - 1), f"u{dtype.itemsize}").view(
                dtype.numpy
            )[()]
        return dtype.compute.numpy.type(value)

    def number(self, a: Array) -> None:
        return None  # arrays are values, not constants

    def add(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.add(a, b)

    def sub(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.subtract(a, b)

    def mul(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.multiply(a, b)

    def neg(self, a: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.negative(a)

    def compare(self, predicate: Predicate, a: Array, b: Array, *, signed: bool = True) -> Array:
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype.kind in "iu":
            kind = f"{'i' if signed else 'u'}{a.dtype.itemsize}"
            a, b = a.view(kind), b.view(kind)
        with np.errstate(all="ignore"):
            return _COMPARE[predicate](a, b)

    def select(self, mask: Array, a: Array, b: Array) -> Array:
        return np.where(mask, a, b)[()]

    def div(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.divide(a, b)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        with np.errstate(all="ignore"):
            return fused_multiply_add(a, b, c)[()]

    def sqrt(self, a: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.sqrt(a)

    def libm(self, function: str, *args: Array) -> Array:
        with np.errstate(all="ignore"):
            return getattr(np, function)(*args)

    def split(self, a: Array) -> tuple[Array, Array]:
        a = np.asarray(a)
        fraction, exponent = np.frexp(a)  # fraction in [½, 1)
        low = np.abs(fraction) < 0.75
        fraction = np.where(low, fraction * 2, fraction)
        exponent = (exponent - low).astype(a.dtype)
        fraction = np.where((a == 0) | (a == np.inf), 1, fraction)
        fraction = np.where(a >= 0, fraction, np.nan).astype(a.dtype)
        exponent = np.where(a == 0, -np.inf, np.where(a == np.inf, np.inf, exponent))
        return fraction[()], exponent.astype(a.dtype)[()]

    def abs(self, a: Array) -> Array:
        return np.abs(a)

    def copysign(self, a: Array, sign: Array) -> Array:
        return np.copysign(a, sign)

    def floor(self, a: Array) -> Array:
        return np.floor(a)

    def ceil(self, a: Array) -> Array:
        return np.ceil(a)

    def rint(self, a: Array) -> Array:
        return np.rint(a)

    rint_small = rint

    def trunc(self, a: Array) -> Array:
        return np.trunc(a)

    def lesser(self, a: Array, b: Array) -> Array:
        return self.select(self.compare("lt", a, b), a, b)

    def greater(self, a: Array, b: Array) -> Array:
        return self.select(self.compare("gt", a, b), a, b)

    def scale(self, a: Array, n: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.ldexp(a, np.floor(np.where(np.isnan(n), 0, n)).astype(np.int32))

    def scale_any(self, a: Array, n: Array) -> Array:
        limit = np.asarray(2040.0 if a.dtype == np.float64 else 250.0, a.dtype)
        limited = np.clip(n, -limit, limit)
        return np.where(np.isnan(n), n, self.scale(a, np.where(np.isnan(n), 0, limited)))

    def scale_weight(self, a: Array, n: Array) -> Array:
        fit = FITS["f64" if a.dtype == np.float64 else "f32"]
        return np.where(n < fit.min_weight_exponent, np.zeros_like(a), self.scale_any(a, n))

    def within(self, a: Array, size: Array) -> Array:
        return np.clip(np.where(np.isnan(a), size, a), -size, size)

    def pick(self, dtype: DType, table: Sequence[float], at: Array) -> Array:
        return np.asarray(table, dtype.numpy)[at & (len(table) - 1)]

    def divide_int(self, a: Array, b: Array, *, signed: bool) -> Array:
        a, b = np.asarray(a), np.asarray(b)
        original = a.dtype
        kind = f"{'i' if signed else 'u'}{original.itemsize}"
        a, b = a.view(kind), b.view(kind)
        floor = a // b
        inexact = (floor * b != a) & ((a < 0) != (b < 0))
        return (floor + inexact.astype(kind)).astype(kind).view(original)[()]

    def floor_int(self, a: Array, b: Array) -> Array:
        return np.floor_divide(a, b)

    def and_(self, a: Array, b: Array) -> Array:
        return np.bitwise_and(a, b)

    def or_(self, a: Array, b: Array) -> Array:
        return np.bitwise_or(a, b)

    def xor(self, a: Array, b: Array) -> Array:
        return np.bitwise_xor(a, b)

    def not_(self, a: Array) -> Array:
        return np.invert(a)

    def shl(self, a: Array, count: Array) -> Array:
        return np.left_shift(a, count)

    def lshr(self, a: Array, count: Array) -> Array:
        a, count = np.asarray(a), np.asarray(count)
        kind = f"u{a.dtype.itemsize}"
        return np.right_shift(a.view(kind), count.view(kind)).view(a.dtype)[()]

    def ashr(self, a: Array, count: Array) -> Array:
        a, count = np.asarray(a), np.asarray(count)
        kind = f"i{a.dtype.itemsize}"
        return np.right_shift(a.view(kind), count.view(kind)).view(a.dtype)[()]

    def bitcast(self, a: Array, dtype: DType) -> Array:
        return np.asarray(a).view(dtype.compute.numpy)[()]

    def convert(self, a: Array, source: DType, target: DType) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(a).astype(target.compute.numpy)[()]

    def round_half(self, a: Array, dtype: DType) -> Array:
        half = ml_dtypes.bfloat16 if dtype == bf16 else np.float16
        with np.errstate(all="ignore"):
            return np.asarray(a).astype(half).astype(f32.numpy)[()]

    def rare(self, mask: Array, common: Array, otherwise: Callable[[], Array]) -> Array:
        return np.where(mask, otherwise(), common)[()] if np.any(mask) else common

    def repeat(
        self,
        going: Callable[[tuple[Array, ...]], Array],
        step: Callable[[tuple[Array, ...]], tuple[Array, ...]],
        state: tuple[Array, ...],
    ) -> tuple[Array, ...]:
        while np.any(going(state)):
            state = step(state)
        return state
