"""Convert between element types (`astype`), with a defined result for every value.

Integers wrap, floats round to nearest even, and every number but zero is true.  Floats to integers
drop the fraction; where the result does not fit (NaN and infinities included), it is what x86 gives
NumPy in plain loops: types of at most 32 bits except uint32 go through int32, uint32 through int64,
and an overflow there gives the most negative number, whose low bits are kept.  uint64 takes values
from 2^63 to 2^64 as they are and values below as int64.

    y = cast(machine, x, f32, i8)

Machines without conversion instructions convert half types in integer steps.  Bit patterns are i32
registers, numbers float32 registers.

    bits = to_bfloat16(machine, x)          # i32, upper half zero
    x = from_bfloat16(machine, bits)        # exact
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from smelt.ops.machine import Machine
from smelt.ops.reference import Array
from smelt.types.dtype import DType, bool_, f16, f32, f64, i32, i64, u64

V = TypeVar("V")


def cast(m: Machine[V], value: V, source: DType, target: DType) -> V:
    """Convert a register of type `source` to type `target`; half types come out rounded.

    A register of a half type may hold an unrounded float32, so casting a half type to itself
    rounds.
    """
    if target == bool_:
        return value if source == bool_ else m.compare("ne", value, m.const(source, 0))
    if source.is_float and target.is_integer:
        return _float_to_int(m, value, source.compute, target)
    if target.is_float and target.bits == 16:
        if source == f64:
            value = _narrow_to_odd(m, value) if target == f16 else m.convert(value, f64, f32)
        else:
            value = m.convert(value, source, f32)
        return m.round_half(value, target)
    return value if source == target else m.convert(value, source, target)


def _float_to_int(m: Machine[V], x: V, source: DType, target: DType) -> V:
    if target.bits < 64:
        wide = i64 if target.kind == "uint" and target.bits == 32 else i32
        y = _truncate(m, x, source, wide)
        return y if wide == target else m.convert(y, wide, target)
    if target == i64:
        return _truncate(m, x, source, i64)
    half = m.const(source, 2.0**63)
    low = _truncate(m, x, source, i64)
    high = _truncate(m, m.sub(x, half), source, i64)
    high = m.xor(high, m.const(i64, 1 << 63))
    return m.convert(m.select(m.compare("ge", x, half), high, low), i64, u64)


def _truncate(m: Machine[V], x: V, source: DType, target: DType) -> V:
    """Convert to a signed integer; everything that does not fit becomes the most negative one."""
    limit = m.const(source, 2.0 ** (target.bits - 1))
    fits = m.compare("lt", m.abs(x), limit)
    safe = m.select(fits, x, m.const(source, 0.0))
    return m.select(
        fits, m.convert(safe, source, target), m.const(target, -(1 << (target.bits - 1)))
    )


def _narrow_to_odd(m: Machine[V], x: V) -> V:
    """Convert float64 to float32 by rounding to odd, so that a second rounding is harmless."""
    y = m.convert(x, f64, f32)
    error = m.sub(x, m.convert(y, f32, f64))
    bits = m.bitcast(y, i32)
    zero = m.const(f64, 0.0)
    outward = m.not_(m.xor(m.compare("gt", error, zero), m.compare("gt", x, zero)))
    step = m.select(outward, m.const(i32, 1), m.const(i32, -1))
    even = m.compare("eq", m.and_(bits, m.const(i32, 1)), m.const(i32, 0))
    inexact = m.and_(even, m.compare("ne", error, zero))
    finite = m.compare("lt", m.abs(y), m.const(f32, float("inf")))
    fixed = m.select(inexact, m.add(bits, step), bits)
    return m.select(finite, m.bitcast(fixed, f32), y)


def cast_reference(x: Array, target: DType) -> Array:
    """Convert a NumPy array, with the results of `cast`."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if x.dtype.kind in "fV" and target.is_integer:
            wide = x.astype(np.float64)
            truncated = np.trunc(np.where(np.isfinite(wide), wide, 0))
            return _fit(wide, truncated, target)
        return x.astype(target.numpy)


def _fit(x: Array, truncated: Array, target: DType) -> Array:
    def signed(v: Array, t: Array, dtype: DType) -> Array:
        limit = 2.0 ** (dtype.bits - 1)
        fits = np.abs(v) < limit
        return np.where(
            fits, np.where(fits, t, 0).astype(dtype.numpy), np.array(-limit).astype(dtype.numpy)
        )

    if target.bits < 64:
        wide = i64 if target.kind == "uint" and target.bits == 32 else i32
        return signed(x, truncated, wide).astype(target.numpy)
    low = signed(x, truncated, i64)
    if target == i64:
        return low
    high = signed(x - 2.0**63, truncated - 2.0**63, i64).view(np.uint64) ^ np.uint64(1 << 63)
    return np.where(x >= 2.0**63, high, low.view(np.uint64))


_INF32 = 0x7F800000
_REBIAS = (127 - 15) << 23


def from_bfloat16(m: Machine[V], bits: V) -> V:
    """Return the float32 whose upper half is `bits`."""
    return m.bitcast(m.shl(bits, m.const(i32, 16)), f32)


def to_bfloat16(m: Machine[V], x: V) -> V:
    """Round to nearest, ties to even; a NaN becomes quiet."""
    bits = m.bitcast(x, i32)
    high = m.lshr(bits, m.const(i32, 16))
    odd = m.and_(high, m.const(i32, 1))
    rounded = m.lshr(m.add(bits, m.add(odd, m.const(i32, 0x7FFF))), m.const(i32, 16))
    return m.select(m.compare("ne", x, x), m.or_(high, m.const(i32, 0x40)), rounded)


def from_float16(m: Machine[V], bits: V) -> V:
    """Shift the fields into place and rebias the exponent; subnormals become normal."""
    body = m.shl(m.and_(bits, m.const(i32, 0x7FFF)), m.const(i32, 13))
    exponent = m.and_(body, m.const(i32, 0x7C00 << 13))
    normal = m.add(body, m.const(i32, _REBIAS))
    special = m.add(normal, m.const(i32, _REBIAS))
    is_nan = m.compare("gt", body, m.const(i32, 0x7C00 << 13))
    special = m.select(is_nan, m.or_(special, m.const(i32, 0x400000)), special)
    small = m.bitcast(m.add(normal, m.const(i32, 1 << 23)), f32)
    small = m.bitcast(m.sub(small, m.const(f32, 2.0**-14)), i32)
    zero = m.const(i32, 0)
    value = m.select(m.compare("eq", exponent, zero), small, normal)
    value = m.select(m.compare("eq", exponent, m.const(i32, 0x7C00 << 13)), special, value)
    sign = m.shl(m.and_(bits, m.const(i32, 0x8000)), m.const(i32, 16))
    return m.bitcast(m.or_(value, sign), f32)


def to_float16(m: Machine[V], x: V) -> V:
    """Round to nearest, ties to even, overflow to infinity; a NaN becomes quiet."""
    bits = m.bitcast(x, i32)
    body = m.and_(bits, m.const(i32, 0x7FFFFFFF))
    odd = m.and_(m.lshr(body, m.const(i32, 13)), m.const(i32, 1))
    normal = m.sub(m.add(body, m.add(odd, m.const(i32, 0xFFF))), m.const(i32, _REBIAS))
    normal = m.lshr(normal, m.const(i32, 13))
    # Subnormals are multiples of 2^-24: adding ½ rounds to them and leaves them in the low bits.
    small = m.bitcast(m.add(m.bitcast(body, f32), m.const(f32, 0.5)), i32)
    small = m.sub(small, m.const(i32, 0x3F000000))
    value = m.select(m.compare("lt", body, m.const(i32, 0x38800000)), small, normal)
    huge = m.compare("ge", body, m.const(i32, 0x47800000))
    value = m.select(huge, m.const(i32, 0x7C00), value)
    payload = m.and_(m.lshr(body, m.const(i32, 13)), m.const(i32, 0x3FF))
    quiet = m.or_(payload, m.const(i32, 0x7E00))
    value = m.select(m.compare("gt", body, m.const(i32, _INF32)), quiet, value)
    return m.or_(value, m.and_(m.lshr(bits, m.const(i32, 16)), m.const(i32, 0x8000)))
