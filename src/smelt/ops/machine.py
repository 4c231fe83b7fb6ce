"""The small set of typed operations that lowerings and approximations are written in.

A formula such as `exp` is written once against `Machine` and runs on whatever implements it: LLVM
vectors (`codegen.llvm.machine`), single LLVM scalars, or NumPy arrays (`ops.numpy_machine`, the
reference that tests hold the others against bit by bit).  No operation contracts, reassociates or
flushes subnormals: a fused multiply-add happens where `fma` is written and nowhere else.

    def cube_plus_one(m: Machine[V], x: V) -> V:
        return m.fma(m.mul(x, x), x, m.const(f32, 1.0))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

from smelt.types.dtype import DType

V = TypeVar("V")

Predicate = Literal["eq", "ne", "lt", "le", "gt", "ge"]


class Machine(Protocol[V]):
    """Arithmetic on values in registers.

    A register holds bool as a one-bit mask, half types as float32, every other type as itself.
    Operands of one operation have one type.  Integers wrap.  Unless said otherwise floats follow
    IEEE 754 with round-to-nearest-even, and operations without a `dtype` know their type from the
    operand.  Integers do not know their sign: operations where it matters take `signed`.
    """

    def const(self, dtype: DType, value: float | int | bool) -> V:
        """`value` (rounded to the register type) in every lane."""
        ...

    def number(self, a: V) -> float | int | bool | None:
        """The number that every lane is known to hold, None where it is not known."""
        ...

    # Floats and integers
    def add(self, a: V, b: V) -> V: ...

    def sub(self, a: V, b: V) -> V: ...

    def mul(self, a: V, b: V) -> V: ...

    def neg(self, a: V) -> V:
        """Floats: flips the sign bit, also of NaN and zero."""
        ...

    def compare(self, predicate: Predicate, a: V, b: V, *, signed: bool = True) -> V:
        """A mask.  Floats: false where an operand is NaN, except "ne", which is then true."""
        ...

    def select(self, mask: V, a: V, b: V) -> V:
        """a where the mask is set, b elsewhere."""
        ...

    # Floats
    def div(self, a: V, b: V) -> V: ...

    def fma(self, a: V, b: V, c: V) -> V:
        """a·b + c rounded once."""
        ...

    def sqrt(self, a: V) -> V: ...

    def libm(self, function: str, *args: V) -> V:
        """A function of the C library (its float64 name, such as "fmod") lane by lane.  Slow."""
        ...

    def split(self, a: V) -> tuple[V, V]:
        """A fraction in [¾, 3/2) and an integral exponent, both floats, with a = f·2^e.

        Subnormals are split like all others.  For zeros |f| = 1 and e = -inf, for +inf f = 1 and
        e = inf; f is NaN for NaN and for negative numbers.
        """
        ...

    def abs(self, a: V) -> V:
        """Clears the sign bit."""
        ...

    def copysign(self, a: V, sign: V) -> V: ...

    def floor(self, a: V) -> V: ...

    def ceil(self, a: V) -> V: ...

    def rint(self, a: V) -> V:
        """To the nearest integer, half to even."""
        ...

    def trunc(self, a: V) -> V: ...

    def lesser(self, a: V, b: V) -> V:
        """a < b ? a : b, hence b where either is NaN (one instruction on x86)."""
        ...

    def greater(self, a: V, b: V) -> V:
        """a > b ? a : b, hence b where either is NaN (one instruction on x86)."""
        ...

    def scale(self, a: V, n: V) -> V:
        """a·2^n rounded once, for integral n of at most 250 (float32) or 2040 (float64) in size;
        where `picks`, of any n the greatest integer up to it.

        |a| lies in (¼, 4), or far enough inside the range that a·2^(n/2) is normal.  Where n is
        NaN or infinite the result is anything, unless a is NaN too.
        """
        ...

    def scale_any(self, a: V, n: V) -> V:
        """The same for every n, with a between ½ and 2: beyond its limits the result is 0 or
        infinite, NaN where n is."""
        ...

    def scale_weight(self, a: V, n: V) -> V:
        """The same, but 0 for n so small (below -101 in float32, -968 in float64) that products of
        the result with numbers down to an ulp of 1 may be subnormal: each takes a hundred cycles,
        whether it is computed or taken up."""
        ...

    def within(self, a: V, size: V) -> V:
        """a limited to [-size, size]; some number in there where a is NaN (one instruction with
        AVX-512)."""
        ...

    @property
    def picks(self) -> bool:
        """Whether `pick` is as fast as a multiplication; elsewhere it costs a division."""
        ...

    def pick(self, dtype: DType, table: Sequence[float], at: V) -> V:
        """Of 16 float32 or float64 numbers, or 32 float32 ones, the one that the last four or five
        bits of each integer (of the same width) tell."""
        ...

    # Integers and masks
    def divide_int(self, a: V, b: V, *, signed: bool) -> V:
        """Quotient towards zero.  b may not be 0, nor a / b overflow."""
        ...

    def floor_int(self, a: V, b: V) -> V:
        """Quotient of signed integers towards minus infinity, with the same conditions."""
        ...

    def and_(self, a: V, b: V) -> V: ...

    def or_(self, a: V, b: V) -> V: ...

    def xor(self, a: V, b: V) -> V: ...

    def not_(self, a: V) -> V: ...

    def shl(self, a: V, count: V) -> V:
        """Counts lie in [0, bits), here and in the two below."""
        ...

    def lshr(self, a: V, count: V) -> V: ...

    def ashr(self, a: V, count: V) -> V: ...

    # Between types
    def bitcast(self, a: V, dtype: DType) -> V:
        """The same bits as another type of the same width in registers."""
        ...

    def convert(self, a: V, source: DType, target: DType) -> V:
        """The same number between register types.

        Integer to integer wraps, integer to float and float to float round, mask to number gives
        0 or 1.  Float to integer truncates and the result must fit: guard NaN and large values.
        """
        ...

    # Rounding float32 registers to what half types can hold
    def round_half(self, a: V, dtype: DType) -> V:
        """float32 rounded to a value of `dtype` (float16 or bfloat16) and kept as float32."""
        ...

    # Control
    def rare(self, mask: V, common: V, otherwise: Callable[[], V]) -> V:
        """otherwise() where the mask is set, `common` elsewhere.

        `otherwise` is skipped altogether when no lane needs it, so it may be slow.  It must be
        defined for every lane's operands.
        """
        ...

    def repeat(
        self,
        going: Callable[[tuple[V, ...]], V],
        step: Callable[[tuple[V, ...]], tuple[V, ...]],
        state: tuple[V, ...],
    ) -> tuple[V, ...]:
        """Apply `step` while the mask `going(state)` is set in some lane, then give the state.

        All lanes step together, so a step may not harm lanes that are done.
        """
        ...


def polynomial(m: Machine[V], dtype: DType, x: V, coefficients: Sequence[float]) -> V:
    """Horner's scheme by fused multiply-adds; coefficients from the constant term upwards."""
    *rest, last = coefficients
    total = m.const(dtype, last)
    for c in reversed(rest):
        total = m.fma(total, x, m.const(dtype, c))
    return total
