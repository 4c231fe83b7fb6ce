"""Define `Machine`: the typed register operations that lowerings and approximations are written in.

A formula such as `exp` is written once against `Machine` and runs on every implementation: LLVM
vectors (`codegen.llvm.machine`), LLVM scalars, or NumPy arrays (`tests/ops/numpy_machine.py`,
the reference that tests compare the others with, bit by bit).  No operation contracts, reassociates
or flushes subnormals: a fused multiply-add happens where `fma` is written and nowhere else.

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
    Operands of one operation have one type.  Integers wrap.  Unless stated otherwise, floats follow
    IEEE 754 with round-to-nearest-even, and operations without a `dtype` infer their type from the
    operand.  Integers carry no sign: operations where it matters take `signed`.
    """

    def const(self, dtype: DType, value: float | int | bool) -> V:
        """Return `value` (rounded to the register type) in every lane."""
        ...

    def number(self, a: V) -> float | int | bool | None:
        """Return the number that every lane is known to hold, or None."""
        ...

    # Floats and integers
    def add(self, a: V, b: V) -> V: ...

    def sub(self, a: V, b: V) -> V: ...

    def mul(self, a: V, b: V) -> V: ...

    def neg(self, a: V) -> V:
        """Negate; floats: flip the sign bit, also of NaN and zero."""
        ...

    def compare(self, predicate: Predicate, a: V, b: V, *, signed: bool = True) -> V:
        """Return a mask.  Floats: false where an operand is NaN, but true for "ne"."""
        ...

    def select(self, mask: V, a: V, b: V) -> V:
        """Return a where the mask is set, b elsewhere."""
        ...

    # Floats
    def div(self, a: V, b: V) -> V: ...

    def fma(self, a: V, b: V, c: V) -> V:
        """Return a·b + c, rounded once."""
        ...

    def sqrt(self, a: V) -> V: ...

    def libm(self, function: str, *args: V) -> V:
        """Call a C library function (by its float64 name, such as "fmod") lane by lane.  Slow."""
        ...

    def split(self, a: V) -> tuple[V, V]:
        """Split into a fraction in [¾, 3/2) and an integral exponent: a = f·2^e.

        Both are floats.  Subnormals are split like all others.  For zeros |f| = 1 and e = -inf, for
        +inf f = 1 and e = inf; f is NaN for NaN and for negative numbers.
        """
        ...

    def abs(self, a: V) -> V:
        """Clear the sign bit."""
        ...

    def copysign(self, a: V, sign: V) -> V: ...

    def floor(self, a: V) -> V: ...

    def ceil(self, a: V) -> V: ...

    def rint(self, a: V) -> V:
        """Round to the nearest integer, half to even."""
        ...

    def rint_small(self, a: V) -> V:
        """Round as `rint` does where |a| < 2^22 (float32) or 2^51 (float64).

        Zero may have either sign, larger numbers stay about as large.
        """
        ...

    def trunc(self, a: V) -> V: ...

    def lesser(self, a: V, b: V) -> V:
        """Return a if a < b, else b; hence b where either is NaN.

        This is one instruction on x86.
        """
        ...

    def greater(self, a: V, b: V) -> V:
        """Return a if a > b, else b; hence b where either is NaN.

        This is one instruction on x86.
        """
        ...

    def scale(self, a: V, n: V) -> V:
        """Return a·2^n, rounded once.

        n is integral and at most 250 (float32) or 2040 (float64) in size; with `picks`, any n is
        rounded down first.  |a| is in (¼, 4), or far enough inside the range that a·2^(n/2) is
        normal.  Where n is NaN or infinite the result is arbitrary, unless a is NaN too.
        """
        ...

    def scale_any(self, a: V, n: V) -> V:
        """Return a·2^n for every n, with a between ½ and 2.

        Out of the limits of `scale`, the result is 0 or infinite, and NaN where n is.
        """
        ...

    def scale_weight(self, a: V, n: V) -> V:
        """Return a·2^n like `scale_any`, but 0 for small n.

        Below -101 (float32) or -968 (float64), products of the result with numbers down to an ulp
        of 1 could be subnormal, which is slow both to compute and to read.
        """
        ...

    def within(self, a: V, size: V) -> V:
        """Clamp a to [-size, size]; some number in that range where a is NaN.

        This is one instruction with AVX-512.
        """
        ...

    @property
    def picks(self) -> bool:
        """Whether `pick` is as fast as a multiplication; elsewhere it costs a division."""
        ...

    def pick(self, dtype: DType, table: Sequence[float], at: V) -> V:
        """Look up a table by the low bits of each integer of the same width.

        The table has 16 float32 or float64 numbers (four bits), or 32 float32 ones (five bits).
        """
        ...

    # Integers and masks
    def divide_int(self, a: V, b: V, *, signed: bool) -> V:
        """Divide and round towards zero.  b may not be 0, nor a / b overflow."""
        ...

    def floor_int(self, a: V, b: V) -> V:
        """Divide signed integers and round down; conditions as for `divide_int`."""
        ...

    def and_(self, a: V, b: V) -> V: ...

    def or_(self, a: V, b: V) -> V: ...

    def xor(self, a: V, b: V) -> V: ...

    def not_(self, a: V) -> V: ...

    def shl(self, a: V, count: V) -> V:
        """Shift left.  Counts of all shifts are in [0, bits)."""
        ...

    def lshr(self, a: V, count: V) -> V: ...

    def ashr(self, a: V, count: V) -> V: ...

    # Between types
    def bitcast(self, a: V, dtype: DType) -> V:
        """Reinterpret the bits as another type of the same register width."""
        ...

    def convert(self, a: V, source: DType, target: DType) -> V:
        """Convert the number between register types.

        Integer to integer wraps, integer to float and float to float round, mask to number gives 0
        or 1. Float to integer truncates and the result must fit: guard against NaN and large
        values.
        """
        ...

    # Rounding float32 registers to what half types can hold
    def round_half(self, a: V, dtype: DType) -> V:
        """Round float32 to a value of `dtype` (float16 or bfloat16), kept as float32."""
        ...

    # Control
    def rare(self, mask: V, common: V, otherwise: Callable[[], V]) -> V:
        """Return otherwise() where the mask is set, `common` elsewhere.

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
        """Apply `step` while the mask `going(state)` is set in some lane; return the final state.

        All lanes step together, so a step may not change lanes that are done.
        """
        ...


def polynomial(m: Machine[V], dtype: DType, x: V, coefficients: Sequence[float]) -> V:
    """Evaluate a polynomial by Horner's scheme with fma; coefficients from the constant term up."""
    *rest, last = coefficients
    total = m.const(dtype, last)
    for c in reversed(rest):
        total = m.fma(total, x, m.const(dtype, c))
    return total
