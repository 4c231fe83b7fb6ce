"""Emit integer division: by wider floats, and by constants as multiplications.

Two n-bit integers divide as floats of 2n bits: their quotient differs from the next integer by at
least 1/b, more than half a unit in the last place, so that neither truncating nor flooring the
float is ever wrong.

Division by a constant d becomes a multiplication.  For u below 2^n and d between 2^(l-1) and 2^l,

    m = floor(2^(n+l) / d) + 1,  floor(u / d) = floor(m · u / 2^(n+l))

(T. Granlund, P. Montgomery, "Division by Invariant Integers using Multiplication", 1994).  LLVM
does that where processors multiply in vectors.  For 64 bits it goes lane by lane, since no
processor has the upper half of such a product: four products of halves are combined here.  Floor
division of a signed x becomes that of a u of one bit less: all bits of a negative x are inverted,
and those of the quotient again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.registers import TextConstant, vector_of

if TYPE_CHECKING:
    from smelt.codegen.llvm.instructions.machine import LLVMMachine

Value = ir.Value
WORD, HALF = 64, 32


def divide_truncating(m: LLVMMachine, a: Value, b: Value, *, signed: bool) -> Value:
    """Return a / b rounded towards zero, in every lane."""
    build, bits = m.builder, _bits(m, a)
    divisor = m.number(b)
    if m.lanes is not None and divisor is not None and bits == WORD and not signed:
        return _divide_by_constant(m, a, int(divisor) % 2**bits, bits)
    if m.lanes is None or bits == WORD or isinstance(b, ir.Constant):
        return build.sdiv(a, b) if signed else build.udiv(a, b)
    quotient = _as_floats(m, a, b, signed=signed)
    return (build.fptosi if signed else build.fptoui)(quotient, a.type)


def divide_flooring(m: LLVMMachine, a: Value, b: Value) -> Value:
    """Return a / b rounded towards minus infinity, both signed."""
    build, bits = m.builder, _bits(m, a)
    divisor = m.number(b)
    if m.lanes is not None and divisor is not None and divisor > 0:
        sign = build.ashr(a, _broadcast(m, bits - 1, bits))
        u = build.xor(a, sign)
        return build.xor(_divide_by_constant(m, u, int(divisor), bits - 1), sign)
    floors = m.target.facts.has_vector_floor
    if m.lanes is not None and bits < WORD and divisor is None and floors:
        return build.fptosi(m.floor(_as_floats(m, a, b, signed=True)), a.type)
    q = divide_truncating(m, a, b, signed=True)
    remainder, zero = build.sub(a, build.mul(q, b)), ir.Constant(a.type, None)
    signs_differ = build.xor(
        build.icmp_signed("<", remainder, zero), build.icmp_signed("<", b, zero)
    )
    rounds_down = build.and_(signs_differ, build.icmp_signed("!=", remainder, zero))
    return build.select(rounds_down, build.sub(q, _broadcast(m, 1, bits)), q)


def _bits(m: LLVMMachine, a: Value) -> int:
    return (a.type.element if m.lanes else a.type).width


def _broadcast(m: LLVMMachine, number: int, bits: int) -> Value:
    """Return an unsigned number in every lane."""
    signed = number - (1 << bits) if number >> bits - 1 else number
    constant = TextConstant(ir.IntType(bits), str(signed), signed)
    return constant if m.lanes is None else constant.splat(m.lanes)


def _as_floats(m: LLVMMachine, a: Value, b: Value, *, signed: bool) -> Value:
    build = m.builder
    float_type = vector_of(ir.FloatType() if _bits(m, a) <= 8 else ir.DoubleType(), m.lanes)
    convert = build.sitofp if signed else build.uitofp
    return build.fdiv(convert(a, float_type), convert(b, float_type))


def _divide_by_constant(m: LLVMMachine, u: Value, d: int, n: int) -> Value:
    """Return u / d rounded down, for u below 2^n.

    `u` has n or n + 1 bits.
    """
    build, bits = m.builder, _bits(m, u)
    if bits < WORD:  # knowing the sign bit is 0, LLVM uses a shorter multiplier
        u = u if n == bits else build.and_(u, _broadcast(m, (1 << n) - 1, bits))
        return build.udiv(u, _broadcast(m, d, bits))
    if d & d - 1 == 0:
        return build.lshr(u, _broadcast(m, d.bit_length() - 1, bits))
    length = (d - 1).bit_length()
    number = (1 << n + length) // d + 1
    upper = _upper(m, u, number % (1 << WORD))
    if number >> WORD:  # add 2^64 · u; halving first avoids the overflow
        upper = build.add(upper, build.lshr(build.sub(u, upper), _broadcast(m, 1, bits)))
    return build.lshr(upper, _broadcast(m, length - 1, bits))


def _upper(m: LLVMMachine, u: Value, number: int) -> Value:
    """Return the upper 64 bits of a product, from four products of 32-bit halves."""
    build, half = m.builder, _broadcast(m, HALF, WORD)
    lower = _broadcast(m, (1 << HALF) - 1, WORD)
    low, high = (_broadcast(m, part, WORD) for part in (number % (1 << HALF), number >> HALF))
    u_low, u_high = build.and_(u, lower), build.lshr(u, half)
    carried = build.lshr(build.mul(u_low, low), half)
    middle = build.add(build.mul(u_high, low), carried)
    second_middle = build.add(build.mul(u_low, high), build.and_(middle, lower))
    both = build.add(build.lshr(middle, half), build.lshr(second_middle, half))
    return build.add(build.mul(u_high, high), both)
