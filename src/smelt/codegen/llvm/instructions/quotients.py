"""Division of integers: by floats of twice the precision, and by constants as multiplications.

Two n-bit integers divide as floats of 2n bits: their quotient differs from the next integer by at
least 1/b, more than half a unit in the last place there, so that neither truncating nor flooring
the float is ever wrong.

A constant d is multiplied by instead.  For u below 2^n and d between 2^(l-1) and 2^l,

    m = floor(2^(n+l) / d) + 1,  floor(u / d) = floor(m · u / 2^(n+l))

(T. Granlund, P. Montgomery, "Division by Invariant Integers using Multiplication", 1994).  LLVM
does that for what processors multiply in vectors; for 64 bits it goes lane by lane, as no processor
has the upper half of such a product: four products of halves are put together here.  What is
rounded down and has a sign becomes a u of one bit less: all bits of a negative x are turned round,
and those of the quotient again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.registers import TextConstant, widened

if TYPE_CHECKING:
    from smelt.codegen.llvm.instructions.machine import LLVMMachine

Value = ir.Value
WORD, HALF = 64, 32


def truncated(m: LLVMMachine, a: Value, b: Value, *, signed: bool) -> Value:
    """a / b towards zero, in every lane."""
    build, bits = m.builder, _bits(m, a)
    divisor = m.number(b)
    if m.lanes is not None and divisor is not None and bits == WORD and not signed:
        return _by(m, a, int(divisor) % 2**bits, bits)
    if m.lanes is None or bits == WORD or isinstance(b, ir.Constant):
        return build.sdiv(a, b) if signed else build.udiv(a, b)
    quotient = _as_floats(m, a, b, signed=signed)
    return (build.fptosi if signed else build.fptoui)(quotient, a.type)


def floored(m: LLVMMachine, a: Value, b: Value) -> Value:
    """a / b towards minus infinity, both with signs."""
    build, bits = m.builder, _bits(m, a)
    divisor = m.number(b)
    if m.lanes is not None and divisor is not None and divisor > 0:
        sign = build.ashr(a, _each(m, bits - 1, bits))
        u = build.xor(a, sign)
        return build.xor(_by(m, u, int(divisor), bits - 1), sign)
    if m.lanes is not None and bits < WORD and divisor is None and m.target.isa != "portable":
        return build.fptosi(m.floor(_as_floats(m, a, b, signed=True)), a.type)
    q = truncated(m, a, b, signed=True)
    rest, zero = build.sub(a, build.mul(q, b)), ir.Constant(a.type, None)
    apart = build.xor(build.icmp_signed("<", rest, zero), build.icmp_signed("<", b, zero))
    moved = build.and_(apart, build.icmp_signed("!=", rest, zero))
    return build.select(moved, build.sub(q, _each(m, 1, bits)), q)


def _bits(m: LLVMMachine, a: Value) -> int:
    return (a.type.element if m.lanes else a.type).width


def _each(m: LLVMMachine, number: int, bits: int) -> Value:
    """A number without a sign in every lane."""
    signed = number - (1 << bits) if number >> bits - 1 else number
    found = TextConstant(ir.IntType(bits), str(signed), signed)
    return found if m.lanes is None else found.splat(m.lanes)


def _as_floats(m: LLVMMachine, a: Value, b: Value, *, signed: bool) -> Value:
    build = m.builder
    wide = widened(ir.FloatType() if _bits(m, a) <= 8 else ir.DoubleType(), m.lanes)
    convert = build.sitofp if signed else build.uitofp
    return build.fdiv(convert(a, wide), convert(b, wide))


def _by(m: LLVMMachine, u: Value, d: int, n: int) -> Value:
    """u / d rounded down: u is below 2^n, of as many bits or one more."""
    build, bits = m.builder, _bits(m, u)
    if bits < WORD:  # told that the sign bit is 0, LLVM multiplies by a shorter number
        u = u if n == bits else build.and_(u, _each(m, (1 << n) - 1, bits))
        return build.udiv(u, _each(m, d, bits))
    if d & d - 1 == 0:
        return build.lshr(u, _each(m, d.bit_length() - 1, bits))
    length = (d - 1).bit_length()
    number = (1 << n + length) // d + 1
    upper = _upper(m, u, number % (1 << WORD))
    if number >> WORD:  # 2^64 · u comes to it, and half of the sum has room
        upper = build.add(upper, build.lshr(build.sub(u, upper), _each(m, 1, bits)))
    return build.lshr(upper, _each(m, length - 1, bits))


def _upper(m: LLVMMachine, u: Value, number: int) -> Value:
    """The upper 64 bits of a product, by its four products of 32 bits each."""
    build, half = m.builder, _each(m, HALF, WORD)
    lower = _each(m, (1 << HALF) - 1, WORD)
    low, high = (_each(m, part, WORD) for part in (number % (1 << HALF), number >> HALF))
    u_low, u_high = build.and_(u, lower), build.lshr(u, half)
    carried = build.lshr(build.mul(u_low, low), half)
    middle = build.add(build.mul(u_high, low), carried)
    other = build.add(build.mul(u_low, high), build.and_(middle, lower))
    both = build.add(build.lshr(middle, half), build.lshr(other, half))
    return build.add(build.mul(u_high, high), both)
