"""Division by one number for all lanes: multiplication by its reciprocal, and still exact.

A vector is divided in 10 to 16 cycles, a softmax's last visit of its row does nothing else.  With
r, the reciprocal of s rounded to nearest, the quotient that is nearest to x / s follows in three
operations, of which two are fused:

    q = x · r,  e = q · s - x (exactly),  x / s = q - e · r (rounded once)

(M. Cornea, J. Harrison, P. Tang, "Scientific Computing on Itanium-based Systems", 2002; N.
Brisebarre, J.-M. Muller, S. K. Raina, IEEE Trans. Computers 53, 2004.)  That holds as long as
nothing under- or overflows: for x of 0 or between 2^-96 and 2^96 in float32 and s between 2^-24 and
2^24, positive, so that a zero has the sign of x.  What is left is divided as ever.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from smelt.codegen.llvm.indexing import splat
from smelt.codegen.llvm.registers import widened

Value = Any

LEAST_BITS = 1024
"""Of a vector that is divided so: a narrower one has not four lanes' work for each scalar one."""


class Range(NamedTuple):
    """Exponents of two between which operands are taken, and where a float keeps its exponent."""

    bits: int
    mantissa: int
    bias: int
    x: int
    s: int

    def pattern(self, exponent: int) -> int:
        """The bits of a power of two."""
        return (exponent + self.bias) << self.mantissa


RANGES = {ir.FloatType: Range(32, 23, 127, 96, 24), ir.DoubleType: Range(64, 52, 1023, 800, 100)}


def common_divisor(b: Value) -> Value | None:
    """The scalar that `splat` has put into every lane; None for another vector."""
    if not isinstance(b, ir.ShuffleVector):
        return None
    first, _, picked = b.operands
    if not isinstance(first, ir.InsertElement) or any(k.constant for k in picked.constant):
        return None
    return first.operands[1]


def divided(m: Any, x: Value, s: Value, scalar: Value) -> Value:
    """x / s, where s holds `scalar` in every lane."""
    b, known = m.builder, RANGES[type(scalar.type)]
    whole = ir.IntType(known.bits)
    lanes = widened(whole, m.lanes)

    def each(number: Value) -> Value:
        return splat(b, whole(number) if isinstance(number, int) else number, m.lanes)

    least, greatest = known.pattern(-known.s), known.pattern(known.s)
    above = b.sub(b.bitcast(scalar, whole), whole(least))
    usual = b.icmp_unsigned("<=", above, whole(greatest - least))
    most = b.select(usual, whole(known.pattern(known.x)), whole(-1))
    size = b.and_(b.bitcast(x, lanes), each((1 << (known.bits - 1)) - 1))
    below = b.sub(size, each(1))  # of 0 the largest
    large = b.icmp_unsigned(">=", below, each(known.pattern(-known.x) - 1))
    fits = b.and_(large, b.icmp_signed("<=", size, each(most)))

    r = splat(b, b.fdiv(scalar.type(1.0), scalar), m.lanes)
    # what does not fit is no denormal here: a processor takes hundreds of cycles for each product
    fit = b.select(fits, x, ir.Constant(x.type, None))
    q = b.fmul(fit, r)
    e = m.fma(q, s, b.fneg(fit))
    return m.rare(b.not_(fits), m.fma(b.fneg(e), r, q), lambda: b.fdiv(x, s))
