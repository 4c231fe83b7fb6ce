"""Emit scaling by powers of two, and splitting of floats into fraction and exponent.

AVX-512 has an instruction for each; elsewhere exponents are written and read as integers.
Subnormal results cost a processor a hundred cycles, even where they become 0 in the end: operands
which may give them are masked off.
"""

from __future__ import annotations

from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.registers import I32
from smelt.ops.coefficients import FITS
from smelt.types.dtype import DType

Value = ir.Value


def scale(m: Any, a: Value, n: Value) -> Value:
    """Emit `Machine.scale`."""
    dtype = m.float_of(a)
    width = m.tile(dtype)
    if width is not None:
        return m.masked("scalef", width, a, n)
    return _in_steps(m, a, n, dtype)


def scale_any(m: Any, a: Value, n: Value) -> Value:
    """Emit `Machine.scale_any`.

    A subnormal result is counted in the least subnormal number and rounded as an integer: the count
    is the result's bits.
    """
    b, dtype = m.builder, m.float_of(a)
    fit, width = FITS[dtype.name], m.tile(dtype)
    if width is None:
        return _limited(m, a, n)
    normal = b.fcmp_unordered(">=", n, m.const(dtype, 2.0 - fit.bias))

    def subnormal() -> Value:
        units = float(fit.bias - 1 + fit.mantissa)
        in_range = b.fcmp_ordered(">=", n, m.const(dtype, -units - 2.0))
        lifted = b.fadd(n, m.const(dtype, units))
        count = m.rint(m.masked("scalef", width, a, lifted, mask=in_range))
        return m.bitcast(m.convert(count, dtype, fit.integer), dtype)

    return m.mostly(normal, m.masked("scalef", width, a, n, mask=normal), subnormal)


def scale_weight(m: Any, a: Value, n: Value) -> Value:
    """Emit `Machine.scale_weight`."""
    b, dtype = m.builder, m.float_of(a)
    width, least = m.tile(dtype), FITS[dtype.name].min_weight_exponent
    normal = b.fcmp_unordered(">=", n, m.const(dtype, least))
    if width is not None:
        return m.masked("scalef", width, a, n, mask=normal)
    return m.select(normal, _weight_in_steps(m, a, n, normal, dtype), m.const(dtype, 0.0))


_MOST = {"f32": 250.0, "f64": 2040.0}


def _limited(m: Any, a: Value, n: Value) -> Value:
    """Return a·2^n for every n."""
    dtype = m.float_of(a)
    most = _MOST[dtype.name]
    limited = m.lesser(m.const(dtype, most), n)  # NaN stays
    limited = m.greater(m.const(dtype, -most), limited)
    return _in_steps(m, m.add(a, m.sub(limited, limited)), limited, dtype)


def _in_steps(m: Any, a: Value, n: Value, dtype: DType) -> Value:
    """Scale by two factors, whose exponents are written as integers; only the second can round.

    Adding 1.5·2^m leaves an integer in the low bits, here n with both biases added: no conversion
    which NaN could upset.
    """
    fit = FITS[dtype.name]
    integer = fit.integer
    n = m.floor(n) if m.picks else n
    magic = m.const(dtype, 1.5 * 2.0**fit.mantissa + 2 * fit.bias)
    shift = m.const(integer, fit.mantissa)
    count = m.bitcast(m.add(n, magic), integer)
    half = m.ashr(count, m.const(integer, 1))
    first = m.bitcast(m.shl(half, shift), dtype)
    second = m.bitcast(m.shl(m.sub(count, half), shift), dtype)
    return m.mul(m.mul(a, first), second)


def _weight_in_steps(m: Any, a: Value, n: Value, normal: Value, dtype: DType) -> Value:
    """Scale by 2^(n-3) and by 8; by 0 where n is not `normal`.

    The exponent of 2^(n-3) is written as an integer.  Both products are exact, or infinite: n is
    limited to what makes every a above ¼ infinite.
    """
    fit = FITS[dtype.name]
    integer = fit.integer
    n = m.floor(n) if m.picks else n
    limited = m.lesser(m.const(dtype, fit.bias + 3.0), n)  # NaN stays
    magic = m.const(dtype, 1.5 * 2.0**fit.mantissa + fit.bias - 3)
    count = m.bitcast(m.add(limited, magic), integer)
    power = m.bitcast(m.shl(count, m.const(integer, fit.mantissa)), dtype)
    power = m.select(normal, power, m.const(dtype, 0.0))  # no product is subnormal
    a = m.add(a, m.sub(limited, limited))
    return m.mul(m.mul(a, power), m.const(dtype, 8.0))


def split(m: Any, a: Value) -> tuple[Value, Value]:
    """Emit `Machine.split`."""
    dtype = m.float_of(a)
    width = m.tile(dtype)
    if width is None:
        return _split_in_steps(m, a, dtype)
    # Immediate: NaN for negative numbers, fractions in [¾, 3/2).
    fraction = m.masked("getmant", width, a, ir.Constant(I32, 0b1011))
    exponent = m.masked("getexp", width, a)
    return fraction, m.sub(exponent, m.masked("getexp", width, fraction))


def _split_in_steps(m: Any, a: Value, dtype: DType) -> tuple[Value, Value]:
    """Split by integer operations, and by selections only where vectors have unusual lanes.

    Zeros count as usual: results of a relu are full of them.
    """
    zero = m.compare("eq", a, m.const(dtype, 0.0))
    if m.lanes is None:
        fraction, exponent = _split_any(m, a, dtype)
    else:
        b = m.builder
        usual = m.or_(_is_normal(m, a, dtype), zero)
        pair = _split_normal(m, a, dtype)
        is_rare = m.any(m.not_(usual))
        fraction, exponent = b.either(is_rare, lambda: _split_any(m, a, dtype), pair, likely=False)
    return fraction, m.select(zero, m.const(dtype, -float("inf")), exponent)


def _is_normal(m: Any, a: Value, dtype: DType) -> Value:
    """Return whether numbers are positive, finite and not subnormal: one signed comparison."""
    fit = FITS[dtype.name]
    least = -(1 << (dtype.bits - 1))
    smallest, infinity = (e << fit.mantissa for e in (1, 2 * fit.bias + 1))
    moved = m.add(m.bitcast(a, fit.integer), m.const(fit.integer, least - smallest + 2**dtype.bits))
    return m.compare("lt", moved, m.const(fit.integer, least + infinity - smallest))


def _split_normal(m: Any, a: Value, dtype: DType) -> tuple[Value, Value]:
    """Split positive normal numbers; other results are arbitrary, with a normal fraction."""
    fit = FITS[dtype.name]
    integer = fit.integer
    three_quarters = (fit.bias << fit.mantissa) - (1 << (fit.mantissa - 1))
    origin = (fit.bias + 1) << fit.mantissa  # keeps the count of powers positive
    biased = m.add(m.bitcast(a, integer), m.const(integer, origin - three_quarters))
    fraction = m.and_(biased, m.const(integer, (1 << fit.mantissa) - 1))
    fraction = m.bitcast(m.add(fraction, m.const(integer, three_quarters)), dtype)
    magic = m.const(dtype, 2.0**fit.mantissa)
    count = m.lshr(biased, m.const(integer, fit.mantissa))
    count = m.bitcast(m.or_(count, m.bitcast(magic, integer)), dtype)
    return fraction, m.sub(count, m.const(dtype, 2.0**fit.mantissa + fit.bias + 1))


def _split_any(m: Any, a: Value, dtype: DType) -> tuple[Value, Value]:
    """Split every number but zeros, whose exponent is arbitrary."""
    lift = FITS[dtype.name].mantissa + 1
    infinity, nan = m.const(dtype, float("inf")), m.const(dtype, float("nan"))
    small = m.compare("lt", a, m.const(dtype, 2.0 ** (1 - FITS[dtype.name].bias)))
    normal = m.select(small, m.mul(a, m.const(dtype, 2.0**lift)), a)
    fraction, exponent = _split_normal(m, normal, dtype)
    exponent = m.select(small, m.sub(exponent, m.const(dtype, lift)), exponent)
    exponent = m.select(m.compare("eq", a, infinity), infinity, exponent)
    return m.select(m.compare("ge", a, m.const(dtype, 0.0)), fraction, nan), exponent
