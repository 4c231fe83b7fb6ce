"""Implement `Machine` on Triton's text: scalar operators print from the rows the CPU uses.

>>> writer = Writer({})
>>> machine = TritonMachine(writer, "k")
>>> x = Text("x", (), f32)
>>> machine.fma(x, x, machine.const(f32, 1.0)).code, writer.lines
('t1', ['    t1 = tl.fma(x, x, tl.full([], 1.0, tl.float32))'])
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from smelt.codegen.triton.writer import Text, Writer, full, literal, refuse, type_name
from smelt.ops.coefficients import FITS
from smelt.ops.hardware import Approximate
from smelt.ops.machine import Predicate
from smelt.types.dtype import DType, bool_, f32, f64, i32, i64, parse

_COMPARE: dict[Predicate, str] = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}


class TritonMachine:
    """Each operation writes one line and returns its temporary."""

    picks = False

    def __init__(self, writer: Writer, kernel: str) -> None:
        self.writer = writer
        self.kernel = kernel

    def _line(self, template: str, *operands: Text, dtype: DType | None = None) -> Text:
        """Bind the template filled with operands that are aligned to their joint axes."""
        if all(o.number is not None for o in operands):
            operands = (full(operands[0]), *operands[1:])
        axes = self.writer.joint(*operands)
        is_call = template.startswith(("tl.", "libdevice.")) and template.endswith(")")
        codes = (self.writer.spread(o, axes, is_argument=is_call) for o in operands)
        code = template.format(*codes)
        return self.writer.bind(code, axes, dtype or operands[0].dtype)

    def const(self, dtype: DType, value: float | int | bool) -> Text:
        return literal(dtype, value)

    def number(self, a: Text) -> float | int | bool | None:
        return a.number

    # Floats and integers
    def add(self, a: Text, b: Text) -> Text:
        return self._line("{} + {}", a, b)

    def sub(self, a: Text, b: Text) -> Text:
        return self._line("{} - {}", a, b)

    def mul(self, a: Text, b: Text) -> Text:
        return self._line("{} * {}", a, b)

    def neg(self, a: Text) -> Text:
        """Multiply floats by -1: Triton's minus is 0 - x, which loses the sign of zero."""
        return self._line("{} * -1.0" if a.dtype.is_float else "-{}", full(a))

    def compare(self, predicate: Predicate, a: Text, b: Text, *, signed: bool = True) -> Text:
        if a.dtype.is_integer:
            a, b = self._with_sign(a, signed=signed), self._with_sign(b, signed=signed)
        return self._line(f"{{}} {_COMPARE[predicate]} {{}}", a, b, dtype=bool_)

    def _with_sign(self, a: Text, *, signed: bool) -> Text:
        dtype = _integer(a.dtype, signed=signed)
        if a.dtype == dtype:
            return a
        return literal(dtype, a.number) if a.number is not None else self.bitcast(a, dtype)

    def select(self, mask: Text, a: Text, b: Text) -> Text:
        if b.number is not None:
            a = full(a)
        return self._line("tl.where({}, {}, {})", full(mask), a, b, dtype=a.dtype)

    # Floats
    def div(self, a: Text, b: Text) -> Text:
        template = "tl.div_rn({}, {})" if a.dtype == f32 else "{} / {}"
        return self._line(template, full(a), full(b))

    def fma(self, a: Text, b: Text, c: Text) -> Text:
        return self._line("tl.fma({}, {}, {})", full(a), full(b), full(c))

    def sqrt(self, a: Text) -> Text:
        return self._line("tl.sqrt_rn({})" if a.dtype == f32 else "tl.sqrt({})", full(a))

    def libm(self, function: str, *args: Text) -> Text:
        operands = ", ".join("{}" for _ in args)
        return self._line(f"libdevice.{function}({operands})", *map(full, args))

    def split(self, a: Text) -> tuple[Text, Text]:
        """Take fraction and exponent from the bits; subnormals are scaled up first."""
        kind, bits = a.dtype, _bits(a.dtype)
        width, bias, tiny = _FORMATS[kind.name]
        is_tiny = self.compare("lt", self.abs(a), self.const(kind, tiny))
        scaled = self.select(is_tiny, self.mul(a, self.const(kind, 2.0 ** (width + 1))), a)
        pattern = self.bitcast(scaled, bits)
        shift = self.const(bits, width)
        exponent = self.ashr(self.sub(pattern, self.const(bits, bias)), shift)
        fraction = self.bitcast(self.sub(pattern, self.shl(exponent, shift)), kind)
        lowered = self.select(is_tiny, self.const(kind, width + 1), self.const(kind, 0.0))
        power = self.sub(self.convert(exponent, bits, kind), lowered)
        zero = self.compare("eq", a, self.const(kind, 0.0))
        infinite = self.compare("eq", a, self.const(kind, math.inf))
        power = self.select(infinite, self.const(kind, math.inf), power)
        power = self.select(zero, self.const(kind, -math.inf), power)
        fraction = self.select(self.or_(zero, infinite), self.const(kind, 1.0), fraction)
        valid = self.compare("ge", a, self.const(kind, 0.0))
        return self.select(valid, fraction, self.const(kind, math.nan)), power

    def approximate(self, function: Approximate, *args: Text) -> Text:
        """Write an instruction that is not correctly rounded."""
        template = "{} / {}" if function == "div" else f"tl.{function}({{}})"
        return self._line(template, *map(full, args))

    def abs(self, a: Text) -> Text:
        return self._line("tl.abs({})", full(a))

    def copysign(self, a: Text, sign: Text) -> Text:
        bits = _bits(a.dtype)
        top = self.const(bits, -(1 << (bits.bits - 1)))
        rest = self.const(bits, (1 << (bits.bits - 1)) - 1)
        magnitude = self.and_(self.bitcast(a, bits), rest)
        return self.bitcast(self.or_(magnitude, self.and_(self.bitcast(sign, bits), top)), a.dtype)

    def floor(self, a: Text) -> Text:
        return self._line("tl.floor({})", full(a))

    def ceil(self, a: Text) -> Text:
        return self._line("tl.ceil({})", full(a))

    def rint(self, a: Text) -> Text:
        """Add and subtract 2^p, whose spacing is 1; numbers from there on are whole already."""
        size = self.abs(a)
        shifter = self.const(a.dtype, 2.0 ** _FORMATS[a.dtype.name][0])
        near = self.copysign(self.sub(self.add(size, shifter), shifter), a)
        return self.select(self.compare("lt", size, shifter), near, a)

    def rint_small(self, a: Text) -> Text:
        """Add and subtract 1.5 · 2^p, between whole numbers of both signs."""
        shifter = self.const(a.dtype, 1.5 * 2.0 ** _FORMATS[a.dtype.name][0])
        return self.sub(self.add(a, shifter), shifter)

    def trunc(self, a: Text) -> Text:
        negative = self.compare("lt", a, self.const(a.dtype, 0.0))
        return self.select(negative, self.ceil(a), self.floor(a))

    def lesser(self, a: Text, b: Text) -> Text:
        return self.select(self.compare("lt", a, b), a, b)

    def greater(self, a: Text, b: Text) -> Text:
        return self.select(self.compare("gt", a, b), a, b)

    def greatest(self, a: Text, b: Text) -> Text:
        return self._line("tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)", a, b)

    def least(self, a: Text, b: Text) -> Text:
        return self._line("tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)", a, b)

    def scale(self, a: Text, n: Text) -> Text:
        bits, shifter = _bits(a.dtype), 1.5 * 2.0 ** _FORMATS[a.dtype.name][0]
        # n as an integer without a conversion, which few lanes of a GPU do at once
        near = self.bitcast(self.add(n, self.const(n.dtype, shifter)), bits)
        offset = int(np.asarray(shifter, a.dtype.numpy).view(bits.numpy))
        count = self.sub(near, self.const(bits, offset))
        half = self.ashr(count, self.const(bits, 1))
        first = self.mul(a, self._power_of_two(half, a.dtype))
        return self.mul(first, self._power_of_two(self.sub(count, half), a.dtype))

    def _power_of_two(self, n: Text, dtype: DType) -> Text:
        """Return 2^n for an integer n in the range of normal numbers."""
        width, maximum = (23, 127) if dtype == f32 else (52, 1023)
        biased = self.add(n, self.const(n.dtype, maximum))
        return self.bitcast(self.shl(biased, self.const(n.dtype, width)), dtype)

    def scale_any(self, a: Text, n: Text) -> Text:
        limit = 250.0 if a.dtype == f32 else 2040.0
        bounded = self.within(n, self.const(a.dtype, limit))
        is_nan = self.compare("ne", n, n)
        return self.select(is_nan, n, self.scale(a, bounded))

    def scale_weight(self, a: Text, n: Text) -> Text:
        least = self.const(a.dtype, FITS[a.dtype.name].min_weight_exponent)
        return self.select(
            self.compare("lt", n, least), self.const(a.dtype, 0.0), self.scale_any(a, n)
        )

    def within(self, a: Text, size: Text) -> Text:
        return self.greater(self.lesser(a, size), self.neg(size))

    def pick(self, dtype: DType, table: Sequence[float], at: Text) -> Text:
        """Select by one bit of the position after another."""
        values = [self.const(dtype, number) for number in table]
        bit = 1
        while len(values) > 1:
            masked = self.and_(at, self.const(at.dtype, bit))
            is_odd = self.compare("ne", masked, self.const(at.dtype, 0))
            pairs = zip(values[1::2], values[::2], strict=True)
            values = [self.select(is_odd, odd, even) for odd, even in pairs]
            bit *= 2
        return values[0]

    # Integers and masks
    def divide_int(self, a: Text, b: Text, *, signed: bool) -> Text:
        operands = [self._with_sign(x, signed=signed) for x in (a, b)]
        quotient = self._line("{} // {}", *operands)
        return self.bitcast(quotient, a.dtype)

    def floor_int(self, a: Text, b: Text) -> Text:
        """Correct a quotient that was rounded towards zero, as Triton's `//` rounds."""
        zero = self.const(a.dtype, 0)
        quotient = self._line("{} // {}", a, b)
        rest = self.sub(a, self.mul(quotient, b))
        signs_differ = self.xor(self.compare("lt", rest, zero), self.compare("lt", b, zero))
        inexact = self.and_(self.compare("ne", rest, zero), signs_differ)
        return self.sub(quotient, self.convert(inexact, bool_, a.dtype))

    def and_(self, a: Text, b: Text) -> Text:
        return self._line("{} & {}", full(a), b)

    def or_(self, a: Text, b: Text) -> Text:
        return self._line("{} | {}", full(a), b)

    def xor(self, a: Text, b: Text) -> Text:
        return self._line("{} ^ {}", full(a), b)

    def not_(self, a: Text) -> Text:
        return self._line("{} == 0" if a.dtype == bool_ else "~{}", full(a))

    def shl(self, a: Text, count: Text) -> Text:
        return self._line("{} << {}", full(a), count)

    def lshr(self, a: Text, count: Text) -> Text:
        pattern = self._with_sign(full(a), signed=False)
        count = self._with_sign(count, signed=False)
        return self.bitcast(self._line("{} >> {}", pattern, count), a.dtype)

    def ashr(self, a: Text, count: Text) -> Text:
        pattern = self._with_sign(full(a), signed=True)
        return self.bitcast(self._line("{} >> {}", pattern, count), a.dtype)

    # Between types
    def bitcast(self, a: Text, dtype: DType) -> Text:
        if a.dtype == dtype:
            return a
        name = type_name(dtype.compute)
        return self._line(f"{{}}.to({name}, bitcast=True)", full(a), dtype=dtype.compute)

    def convert(self, a: Text, source: DType, target: DType) -> Text:
        target = target.compute
        if a.dtype == target:
            return a
        return self._line(f"{{}}.to({type_name(target)})", full(a), dtype=target)

    def round_half(self, a: Text, dtype: DType) -> Text:
        return self._line(f"{{}}.to({type_name(dtype)}).to(tl.float32)", full(a))

    # Control
    def rare(self, mask: Text, common: Text, otherwise: Callable[[], Text]) -> Text:
        return self.select(mask, otherwise(), common)

    def repeat(
        self,
        going: Callable[[tuple[Text, ...]], Text],
        step: Callable[[tuple[Text, ...]], tuple[Text, ...]],
        state: tuple[Text, ...],
    ) -> tuple[Text, ...]:
        """Step as often as integers have bits: a step takes one bit.

        The variables that a loop carries have the shape of all operands from the start.
        """
        if not all(s.dtype.is_integer for s in state):
            refuse(self.kernel, "an operator on floats that repeats until its lanes are done")
        zeros = [self.mul(s, self.const(s.dtype, 0)) for s in state if s.number is None]
        zero = functools.reduce(self.add, zeros)
        carried = tuple(self.add(s, zero) for s in state)
        steps = max(s.dtype.bits for s in state)
        with self.writer.block():
            self.writer.open(f"for bit in tl.range(0, {steps}):")
            for old, new in zip(carried, step(carried), strict=True):
                self.writer.line(f"{old.code} = {new.code}")
        return carried


_FORMATS = {"f32": (23, 0x3F400000, 2.0**-126), "f64": (52, 0x3FE8000000000000, 2.0**-1022)}
"""Bits of the significand, the pattern of 3/4, and the smallest normal number."""


def _bits(dtype: DType) -> DType:
    """Return the integer type as wide as a float."""
    if dtype not in (f32, f64):
        raise TypeError(f"{dtype} has no pattern of bits here")
    return i32 if dtype == f32 else i64


def _integer(dtype: DType, *, signed: bool) -> DType:
    return parse(f"{'i' if signed else 'u'}{dtype.bits}")
