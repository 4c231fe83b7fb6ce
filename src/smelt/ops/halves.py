"""Convert half types in integer steps, for machines without conversion instructions.

Bit patterns are i32 registers, numbers float32 registers.

    bits = to_bfloat16(machine, x)          # i32, upper half zero
    x = from_bfloat16(machine, bits)        # exact
"""

from __future__ import annotations

from typing import TypeVar

from smelt.ops.machine import Machine
from smelt.types.dtype import f32, i32

V = TypeVar("V")

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
