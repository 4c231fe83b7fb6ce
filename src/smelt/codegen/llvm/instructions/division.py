"""Emit exact division of vectors by a common scalar, as multiplication by its reciprocal.

Most processors divide a vector in 10 to 16 cycles (the target says which do not), and a softmax's
last pass over a row does nothing else.  With r, the reciprocal of s rounded to nearest, the
quotient nearest to x / s follows in three operations, two of them fused:

    q = x · r,  e = q · s - x (exactly),  x / s = q - e · r (rounded once)

(M. Cornea, J. Harrison, P. Tang, "Scientific Computing on Itanium-based Systems", 2002; N.
Brisebarre, J.-M. Muller, S. K. Raina, IEEE Trans. Computers 53, 2004.)  That holds as long as
nothing under- or overflows: for x of 0 or between 2^-96 and 2^96 in float32 where r is a normal
number and so is the quotient.  The sign of s is moved to x first: a zero of either sign is
preserved only where both factors of e · r have one sign.

Other operands go to a function, one per module.  Smaller x, such as weights of distant tokens, are
divided there as multiples of the least subnormal number, if s is between 2^-24 and 2^24: subnormal
operands and results cost processors a hundred cycles otherwise.  The rest is divided by the
instruction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import splat
from smelt.codegen.llvm.instructions.registers import vector_of

Value = ir.Value

MIN_VECTOR_BITS = 1024
"""Minimum width of a vector divided so: narrower ones do not repay the scalar work."""


class Range(NamedTuple):
    """Exponent limits of operands, and the layout of a float."""

    bits: int
    mantissa: int
    bias: int
    x: int
    s: int

    def pattern(self, exponent: int) -> int:
        """Return the bits of a power of two."""
        return (exponent + self.bias) << self.mantissa

    @property
    def least(self) -> int:
        """Return the exponent of the least subnormal number, negated."""
        return self.bias - 1 + self.mantissa


RANGES = {ir.FloatType: Range(32, 23, 127, 96, 24), ir.DoubleType: Range(64, 52, 1023, 800, 100)}


def common_divisor(b: Value) -> Value | None:
    """Return the scalar which `splat` has broadcast; None for another vector."""
    if not isinstance(b, ir.ShuffleVector):
        return None
    first, _, picked = b.operands
    if not isinstance(first, ir.InsertElement) or any(picked.constant or ()):
        return None
    return first.operands[1]


def divide_exactly(m: Any, x: Value, scalar: Value) -> Value:
    """Return x / s, where s holds `scalar` in every lane."""
    x, scalar = _positive(m, x, scalar)
    by = _Divisor(m, splat(m.builder, scalar, m.lanes), scalar)
    fallback = m.builder.module.globals.get(_name(x)) or _define(m, x, scalar)
    b = m.builder
    # Only fitting operands have quotients here: products of subnormals are slow.
    (result,) = b.either(
        by.fits_all(x),
        lambda: by.quotient(x)[:1],
        lambda: [b.call(fallback, [x, scalar])],
        likely=True,
    )
    return result


def _positive(m: Any, x: Value, scalar: Value) -> tuple[Value, Value]:
    """Return x with the sign of x / s, and |s|."""
    b, bits = m.builder, RANGES[type(scalar.type)].bits
    int_type = ir.IntType(bits)
    scalar_bits = b.bitcast(scalar, int_type)
    sign = splat(b, b.and_(scalar_bits, int_type(1 << bits - 1)), m.lanes)
    x = b.bitcast(b.xor(b.bitcast(x, vector_of(int_type, m.lanes)), sign), x.type)
    return x, b.bitcast(b.and_(scalar_bits, int_type((1 << bits - 1) - 1)), scalar.type)


def _name(x: Value) -> str:
    return f"smelt_divide_{x.type.intrinsic_name}"


def _define(m: Any, x: Value, scalar: Value) -> Any:
    """Define the function which divides where some lane does not fit."""
    function: Any = ir.Function(
        m.builder.module, ir.FunctionType(x.type, [x.type, scalar.type]), _name(x), "private"
    )
    function.attributes.add("noinline")
    function.attributes.add("cold")
    inner = type(m)(ir.IRBuilder(function.append_basic_block("entry")), m.lanes, m.target)
    numerator, divisor = function.args
    by = _Divisor(inner, splat(inner.builder, divisor, m.lanes), divisor)
    inner.builder.ret(by.any_quotient(numerator))
    return function


class _Divisor:
    """Emits divisions by a scalar, which `s` holds in every lane."""

    def __init__(self, m: Any, s: Value, scalar: Value) -> None:
        self.m, self.b, self.s, self.scalar = m, m.builder, s, scalar
        self.limits = RANGES[type(scalar.type)]
        self.int_type = ir.IntType(self.limits.bits)
        self.lanes = vector_of(self.int_type, m.lanes)
        self.r = self.broadcast(self.b.fdiv(scalar.type(1.0), scalar))

    def broadcast(self, number: Value | int) -> Value:
        """Broadcast a scalar, or the bits of one."""
        scalar = self.int_type(number) if isinstance(number, int) else number
        return splat(self.b, scalar, self.m.lanes)

    def number(self, value: float) -> Value:
        return self.broadcast(self.scalar.type(value))

    def usual(self) -> Value:
        """Return whether the divisor is neither very small nor very large."""
        b, limits = self.b, self.limits
        least, greatest = limits.pattern(-limits.s), limits.pattern(limits.s)
        above = b.sub(b.bitcast(self.scalar, self.int_type), self.int_type(least))
        return b.icmp_unsigned("<=", above, self.int_type(greatest - least))

    def size(self, x: Value) -> Value:
        """Return the bits of |x|."""
        return self.b.and_(
            self.b.bitcast(x, self.lanes), self.broadcast((1 << self.limits.bits - 1) - 1)
        )

    def classify(self, x: Value) -> tuple[Value, Value]:
        """Return which lanes are 0 or not too small, and which of them fit."""
        b, size = self.b, self.size(x)
        least, greatest = self.bounds()
        below = b.sub(size, self.broadcast(1))  # 0 wraps to the largest
        large = b.icmp_unsigned(">=", below, self.broadcast(b.sub(least, self.int_type(1))))
        return large, b.and_(large, b.icmp_signed("<=", size, self.broadcast(greatest)))

    def fits_all(self, x: Value) -> Value:
        """Return whether all lanes fit, by the least and the greatest of them.

        A minimum takes half of the time of a comparison, and leaves no masks to combine.
        """
        b, size = self.b, self.size(x)
        least, greatest = self.bounds()
        below = self.each_extreme("umin", b.sub(size, self.broadcast(1)))  # 0 wraps to the largest
        large = b.icmp_unsigned(">=", below, b.sub(least, self.int_type(1)))
        return b.and_(large, b.icmp_signed("<=", self.each_extreme("smax", size), greatest))

    def each_extreme(self, name: str, x: Value) -> Value:
        """Return the least or the greatest of the lanes."""
        return self.m.call(f"llvm.vector.reduce.{name}.{x.type.intrinsic_name}", self.int_type, x)

    def bounds(self) -> tuple[Value, Value]:
        """Return the bits of the least nonzero and the greatest x which fit.

        Their quotients by s are normal numbers.  None fits where 1 / s is not normal.
        """
        b, limits, int_type = self.b, self.limits, self.int_type
        exponent = b.lshr(b.bitcast(self.scalar, int_type), int_type(limits.mantissa))
        low, high = (int_type(limits.bias + e) for e in (-limits.x, limits.x))
        least, greatest = (
            b.sub(exponent, int_type(limits.bias - 3)),
            b.add(exponent, int_type(limits.bias - 1)),
        )
        least = b.select(b.icmp_signed(">", least, low), least, low)
        greatest = b.select(b.icmp_signed("<", greatest, high), greatest, high)
        normal = b.icmp_unsigned("<", b.sub(exponent, int_type(1)), int_type(2 * limits.bias - 2))
        shift = int_type(limits.mantissa)
        return b.shl(least, shift), b.select(normal, b.shl(greatest, shift), int_type(-1))

    def quotient(self, x: Value) -> tuple[Value, Value]:
        """Return x / s rounded to nearest, and its exact product with s, less x."""
        b, m = self.b, self.m
        q = b.fmul(x, self.r)
        e = m.fma(q, self.s, b.fneg(x))
        q = m.fma(b.fneg(e), self.r, q)
        return q, m.fma(q, self.s, b.fneg(x))

    def any_quotient(self, x: Value) -> Value:
        """Return x / s, however large or small x is."""
        b = self.b
        large, fits = self.classify(x)
        q, _ = self.quotient(b.select(fits, x, self.number(0.0)))
        tiny = b.and_(b.not_(large), self.broadcast(self.usual()))
        numerators = b.select(b.or_(tiny, fits), self.number(1.0), x)
        unusual = self.m.rare(
            b.not_(b.or_(tiny, fits)), self.of_tiny(x), lambda: b.fdiv(numerators, self.s)
        )
        return b.select(fits, q, unusual)

    def of_tiny(self, x: Value) -> Value:
        """Return the quotient of x above 0 which is too small for exact errors.

        It counts in units of the least subnormal number: below 2^mantissa a subnormal quotient is
        that count, rounded from the quotient and, where that is half between two, by the sign of
        its error.
        """
        b, limits, kind, size = self.b, self.limits, x.type, self.size(x)
        count = b.sitofp(size, kind)
        shift = self.broadcast(limits.least << limits.mantissa)
        subnormal = b.icmp_unsigned("<", size, self.broadcast(1 << limits.mantissa))
        q, e = self.quotient(b.select(subnormal, count, b.bitcast(b.add(size, shift), kind)))

        is_subnormal = b.fcmp_ordered("<", q, self.number(2.0**limits.mantissa))
        counted = b.select(is_subnormal, q, self.number(0.0))
        low = b.fptosi(counted, self.lanes)  # towards 0
        fraction = b.fsub(counted, b.sitofp(low, kind))
        is_odd = b.trunc(low, vector_of(ir.IntType(1), self.m.lanes))
        zero, half = self.number(0.0), self.number(0.5)
        up = b.select(
            b.fcmp_ordered("==", fraction, half),
            b.or_(b.fcmp_ordered("<", e, zero), b.and_(b.fcmp_ordered("==", e, zero), is_odd)),
            b.fcmp_ordered(">", fraction, half),
        )
        bits = b.select(
            is_subnormal, b.add(low, b.zext(up, self.lanes)), b.sub(b.bitcast(q, self.lanes), shift)
        )
        sign = b.and_(b.bitcast(x, self.lanes), self.broadcast(1 << limits.bits - 1))
        return b.bitcast(b.or_(bits, sign), kind)
