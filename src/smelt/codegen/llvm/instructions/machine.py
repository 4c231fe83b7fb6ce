"""Implement `Machine` on LLVM: operations become instructions on `<N x T>` vectors or scalars.

The lowering columns of the table of scalar operators run against this class, so nothing here knows
an operator.  Instructions carry no fast-math flags, and products and sums contract only where the
formula says `fma`; what is written is what runs.  Conversions between memory and register types
(`load_convert`, `store_convert`) are here too.

    machine = LLVMMachine(builder, 16, target)
    y = emit(SCALARS["exp"], machine, (f32,), (x,))     # x, y: <16 x float>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions import exponents, quotients, registers
from smelt.codegen.llvm.instructions.division import (
    MIN_VECTOR_BITS,
    RANGES,
    common_divisor,
    divide_exactly,
)
from smelt.codegen.llvm.instructions.registers import (
    I1,
    I16,
    I32,
    Isa,
    TextConstant,
    constant,
    define_lanewise,
    element_type,
    lane_numbers,
    memory_type,
    vector_of,
)
from smelt.ops import cast
from smelt.ops.machine import Predicate
from smelt.ops.spec import ScalarOp
from smelt.types.dtype import DType, bf16, bool_, f16, f32, f64, i32

Value = ir.Value

_SIGNS: dict[Predicate, str] = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}


class LLVMMachine:
    """Emits operations at the builder's position; `lanes` None means scalars.

    An operation with a rare case (`rare`) may leave the builder in a new basic block, so callers
    must read `builder.block` again when they make phi nodes.
    """

    def __init__(self, builder: Any, lanes: int | None, target: Isa) -> None:
        self.builder = builder
        self.lanes = lanes
        self.target = target

    # Types and constants

    def register_type(self, dtype: DType) -> Any:
        """Return the type of a register which holds `dtype`."""
        return vector_of(element_type(dtype), self.lanes)

    def raw_type(self, dtype: DType) -> Any:
        """Return the type which is loaded from and stored to memory."""
        return vector_of(memory_type(dtype), self.lanes)

    def const(self, dtype: DType, value: float | int | bool) -> Value:
        return constant(dtype, value, self.lanes)

    def number(self, a: Value) -> float | int | bool | None:
        return a.number if isinstance(a, TextConstant) else None

    def call(self, name: str, result: Any, *args: Value) -> Value:
        """Call an external function or LLVM intrinsic, declared on first use."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [a.type for a in args])
            function = ir.Function(module, kind, name)
        return self.builder.call(function, args)

    def _intrinsic(self, name: str, *args: Value) -> Value:
        kind = args[0].type
        return self.call(f"llvm.{name}.{kind.intrinsic_name}", kind, *args)

    # Floats and integers

    def _is_float(self, a: Value) -> bool:
        kind = a.type.element if isinstance(a.type, ir.VectorType) else a.type
        return isinstance(kind, (ir.FloatType, ir.DoubleType))

    def add(self, a: Value, b: Value) -> Value:
        return self.builder.fadd(a, b) if self._is_float(a) else self.builder.add(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.builder.fsub(a, b) if self._is_float(a) else self.builder.sub(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.builder.fmul(a, b) if self._is_float(a) else self.builder.mul(a, b)

    def neg(self, a: Value) -> Value:
        return self.builder.fneg(a) if self._is_float(a) else self.builder.neg(a)

    def compare(self, predicate: Predicate, a: Value, b: Value, *, signed: bool = True) -> Value:
        sign = _SIGNS[predicate]
        if self._is_float(a):
            if predicate == "ne":
                return self.builder.fcmp_unordered(sign, a, b)
            return self.builder.fcmp_ordered(sign, a, b)
        if signed:
            return self.builder.icmp_signed(sign, a, b)
        return self.builder.icmp_unsigned(sign, a, b)

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        return self.builder.select(mask, a, b)

    # Floats

    def div(self, a: Value, b: Value) -> Value:
        is_slow = self.target.facts.has_slow_division and not self.target.has_fast_division
        scalar = common_divisor(b) if is_slow else None
        lanes = self.lanes or 1
        if scalar is not None and lanes * RANGES[type(scalar.type)].bits >= MIN_VECTOR_BITS:
            return divide_exactly(self, a, scalar)
        return self.builder.fdiv(a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self._intrinsic("fma", a, b, c)

    def sqrt(self, a: Value) -> Value:
        return self._intrinsic("sqrt", a)

    def libm(self, function: str, *args: Value) -> Value:
        element = args[0].type.element if self.lanes else args[0].type
        name = function if isinstance(element, ir.DoubleType) else f"{function}f"
        if self.lanes is None:
            return self.call(name, element, *args)
        wrapper = f"smelt.lanes.{name}.{self.lanes}"
        if wrapper not in self.builder.module.globals:
            define_lanewise(self.builder.module, wrapper, name, args[0].type, len(args))
        return self.call(wrapper, args[0].type, *args)

    def abs(self, a: Value) -> Value:
        return self._intrinsic("fabs", a)

    def copysign(self, a: Value, sign: Value) -> Value:
        return self._intrinsic("copysign", a, sign)

    def floor(self, a: Value) -> Value:
        return self._intrinsic("floor", a)

    def ceil(self, a: Value) -> Value:
        return self._intrinsic("ceil", a)

    def rint(self, a: Value) -> Value:
        return self._intrinsic("rint", a)

    rint_small = rint

    def trunc(self, a: Value) -> Value:
        return self._intrinsic("trunc", a)

    def lesser(self, a: Value, b: Value) -> Value:
        native = self._extreme("avx512.min", a, b)
        return self.select(self.compare("lt", a, b), a, b) if native is None else native

    def greater(self, a: Value, b: Value) -> Value:
        native = self._extreme("avx512.max", a, b)
        return self.select(self.compare("gt", a, b), a, b) if native is None else native

    def _extreme(self, name: str, a: Value, b: Value) -> Value | None:
        """Return an AVX-512 minimum or maximum instruction, None where LLVM does better.

        LLVM would join a compare-and-select with a surrounding test for NaN into two comparisons, a
        union and a move, three of them on the only port which compares.  Against a constant, which
        is a number, it makes one instruction of both.
        """
        width = self.tile(self.float_of(a))
        constant = any(self.number(x) is not None for x in (a, b))
        if constant or width is None or width * self.float_of(a).bits != 512:
            return None
        kind, mode = "ps" if width == 16 else "pd", ir.Constant(I32, 4)  # rounds nothing
        parts: list[Value] = []
        for at in range(0, self.lanes or 0, width):
            x, y = self._slice(a, at, width), self._slice(b, at, width)
            parts.append(self.call(f"llvm.x86.{name}.{kind}.512", x.type, x, y, mode))
        return self.concatenate(parts)

    def tile(self, dtype: DType) -> int | None:
        """Return the lanes of AVX-512 instructions which tile this machine's vectors, or None."""
        for bits in (512, 256, 128):
            width = bits // dtype.bits
            if self.target.facts.has_float_parts and self.lanes and self.lanes % width == 0:
                return width
        return None

    def float_of(self, a: Value) -> DType:
        """Return the float type of a register's lanes."""
        element = a.type.element if self.lanes else a.type
        return f32 if isinstance(element, ir.FloatType) else f64

    def masked(self, name: str, width: int, *args: Value, mask: Value | None = None) -> Value:
        """Emit a masked AVX-512 intrinsic per slice of `width` lanes.

        Lanes are 0 where `mask` is false.

        Integer arguments (immediates) go to every slice unchanged.
        """
        dtype = self.float_of(args[0])
        suffix = f"{'ps' if dtype == f32 else 'pd'}.{width * dtype.bits}"
        assert self.lanes is not None
        parts = []
        for at in range(0, self.lanes, width):
            operands = [
                a if isinstance(a.type, ir.IntType) else self._slice(a, at, width) for a in args
            ]
            kind = operands[0].type
            operands.append(ir.Constant(kind, None))
            bits = ir.IntType(max(8, width))
            if mask is None or width < 8:
                operands.append(ir.Constant(bits, -1))
            else:
                operands.append(self.builder.bitcast(self._slice(mask, at, width), bits))
            if width * dtype.bits == 512:
                operands.append(ir.Constant(I32, 4))  # round as the current mode says
            parts.append(self.call(f"llvm.x86.avx512.mask.{name}.{suffix}", kind, *operands))
        return self.concatenate(parts)

    def scale(self, a: Value, n: Value) -> Value:
        return exponents.scale(self, a, n)

    def scale_any(self, a: Value, n: Value) -> Value:
        return exponents.scale_any(self, a, n)

    def scale_weight(self, a: Value, n: Value) -> Value:
        return exponents.scale_weight(self, a, n)

    def split(self, a: Value) -> tuple[Value, Value]:
        return exponents.split(self, a)

    def within(self, a: Value, size: Value) -> Value:
        width = self.tile(self.float_of(a))
        if width is not None and self.target.has("avx512dq"):
            # Immediate: the lesser of the sizes, with the sign of the first.
            return self.masked("range", width, a, size, ir.Constant(I32, 0b0010))
        return self.greater(self.lesser(a, size), self.neg(size))

    def _slice(self, a: Value, start: int, width: int) -> Value:
        if a.type.count == width:
            return a
        return self.builder.shuffle_vector(a, a, lane_numbers(range(start, start + width)))

    def concatenate(self, parts: Sequence[Value]) -> Value:
        """Concatenate equally wide vectors, pairwise where their number is even."""
        if len(parts) == 1:
            return parts[0]
        if len(parts) % 2 == 0:
            half = len(parts) // 2
            left, right = self.concatenate(parts[:half]), self.concatenate(parts[half:])
        else:
            left, right = self.concatenate(parts[:-1]), parts[-1]
        lanes, extra = left.type.count, right.type.count
        if extra < lanes:
            padding = lane_numbers([*range(extra), *[0] * (lanes - extra)])
            right = self.builder.shuffle_vector(right, right, padding)
        return self.builder.shuffle_vector(left, right, lane_numbers(range(lanes + extra)))

    def add_aside(self, a: Value, b: Value) -> Value:
        """Return a + b as an FMA, for when the add ports are busy."""
        one = self._opaque_one(a)
        return self.add(a, b) if one is None else self.fma(a, one, b)

    def _opaque_one(self, a: Value) -> Value | None:
        """Return a 1 which LLVM cannot recognise as such, or None without AVX-512."""
        dtype = self.float_of(a)
        width = self.tile(dtype)
        if width is None or self.lanes is None:
            return None
        with self.builder.goto_entry_block():
            one = constant(dtype, 1.0, width)
            one = self.builder.asm(ir.FunctionType(one.type, [one.type]), "", "=v,0", [one], False)
        all_lanes = lane_numbers([*range(width)] * (self.lanes // width))
        return self.builder.shuffle_vector(one, one, all_lanes)

    @property
    def picks(self) -> bool:
        return self.target.facts.permutes == "two registers"

    def pick(self, dtype: DType, table: Sequence[float], at: Value) -> Value:
        return registers.pick(self, dtype, tuple(table), at)

    # Integers and masks

    def divide_int(self, a: Value, b: Value, *, signed: bool) -> Value:
        return quotients.divide_truncating(self, a, b, signed=signed)

    def floor_int(self, a: Value, b: Value) -> Value:
        return quotients.divide_flooring(self, a, b)

    def and_(self, a: Value, b: Value) -> Value:
        return self.builder.and_(a, b)

    def or_(self, a: Value, b: Value) -> Value:
        return self.builder.or_(a, b)

    def xor(self, a: Value, b: Value) -> Value:
        return self.builder.xor(a, b)

    def not_(self, a: Value) -> Value:
        return self.builder.not_(a)

    def shl(self, a: Value, count: Value) -> Value:
        return self.builder.shl(a, count)

    def lshr(self, a: Value, count: Value) -> Value:
        return self.builder.lshr(a, count)

    def ashr(self, a: Value, count: Value) -> Value:
        return self.builder.ashr(a, count)

    # Between types

    def bitcast(self, a: Value, dtype: DType) -> Value:
        return self.builder.bitcast(a, self.register_type(dtype))

    def convert(self, a: Value, source: DType, target: DType) -> Value:
        b, kind = self.builder, self.register_type(target)
        if kind == a.type:
            return a
        if source.is_float:
            if target.is_float:
                widen = source.compute.bits < target.compute.bits
                return b.fpext(a, kind) if widen else b.fptrunc(a, kind)
            return b.fptosi(a, kind) if target.kind == "int" else b.fptoui(a, kind)
        if target.is_float:
            return b.sitofp(a, kind) if source.kind == "int" else b.uitofp(a, kind)
        if source.kind == "bool" or target.bits > source.bits:
            return b.sext(a, kind) if source.kind == "int" else b.zext(a, kind)
        return b.trunc(a, kind)

    def round_half(self, a: Value, dtype: DType) -> Value:
        if dtype == f16 and self.target.has_half_conversions:
            half = self.builder.fptrunc(self._fenced(a), vector_of(ir.HalfType(), self.lanes))
            return self._fenced(self.builder.fpext(half, a.type))
        if dtype == f16:
            return cast.from_float16(self, cast.to_float16(self, a))
        return cast.from_bfloat16(self, cast.to_bfloat16(self, a))

    def _fenced(self, a: Value) -> Value:
        """Keep LLVM from computing in float16, which most processors do one lane at a time."""
        return self._intrinsic("arithmetic.fence", a)

    def load_convert(self, raw: Value, dtype: DType) -> Value:
        """Convert a value of `raw_type(dtype)` to a register; any nonzero byte is true."""
        b = self.builder
        if dtype == bool_:
            return b.icmp_unsigned("!=", raw, ir.Constant(raw.type, None))
        if dtype == f16 and self.target.has_half_conversions:
            half = b.bitcast(raw, vector_of(ir.HalfType(), self.lanes))
            return self._fenced(b.fpext(half, self.register_type(f32)))
        if dtype in (f16, bf16):
            bits = b.zext(raw, self.register_type(i32))
            return (cast.from_float16 if dtype == f16 else cast.from_bfloat16)(self, bits)
        return raw

    def store_convert(self, value: Value, dtype: DType) -> Value:
        """Convert a register to `raw_type(dtype)`, rounded to nearest even if that is shorter."""
        b, kind = self.builder, self.raw_type(dtype)
        if dtype == bool_:
            return b.zext(value, kind)
        if dtype == f16 and self.target.has_half_conversions:
            half = b.fptrunc(self._fenced(value), vector_of(ir.HalfType(), self.lanes))
            return b.bitcast(half, kind)
        if dtype in (f16, bf16):
            to_bits = cast.to_float16 if dtype == f16 else cast.to_bfloat16
            return b.trunc(to_bits(self, value), kind)
        return value

    def to_bfloat(self, value: Value) -> Value:
        """Convert float32 to the bits of bfloat16; on x86 subnormals become zero."""
        b, (kind, bits) = self.builder, [vector_of(x, self.lanes) for x in (ir.BFloatType(), I16)]
        if not self.target.has("avx512bf16"):
            return b.bitcast(b.fptrunc(value, kind), bits)
        name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * (self.lanes or 1)}"
        return b.bitcast(self.call(name, kind, value), bits)

    # Control

    def any(self, mask: Value) -> Value:
        """Return whether some lane of the mask is set (i1)."""
        if self.lanes is None:
            return mask
        return self.call(f"llvm.vector.reduce.or.v{self.lanes}i1", I1, mask)

    def rare(self, mask: Value, common: Value, otherwise: Callable[[], Value]) -> Value:
        return self._merged(self.any(mask), common, lambda b: b.select(mask, otherwise(), common))

    def mostly(self, mask: Value, common: Value, otherwise: Callable[[], Value]) -> Value:
        """Select like `rare`, but with the mask of the common case.

        One comparison then serves both the branch and operations under the mask.
        """
        assert self.lanes is not None
        bits = ir.IntType(self.lanes)
        all_set = self.builder.icmp_signed("==", self.builder.bitcast(mask, bits), bits(-1))
        return self._merged(
            self.builder.not_(all_set), common, lambda b: b.select(mask, common, otherwise())
        )

    def _merged(self, some: Value, common: Value, merge: Callable[[Any], Value]) -> Value:
        b = self.builder
        (result,) = b.either(some, lambda: [merge(b)], [common], likely=False)
        return result

    def repeat(
        self,
        going: Callable[[tuple[Value, ...]], Value],
        step: Callable[[tuple[Value, ...]], tuple[Value, ...]],
        state: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        b = self.builder
        before = b.block
        head, body, done = (b.append_basic_block(name) for name in ("head", "step", "done"))
        b.branch(head)
        b.position_at_end(head)
        current = tuple(b.phi(value.type) for value in state)
        b.cbranch(self.any(going(current)), body, done)
        b.position_at_end(body)
        following = step(current)
        for phi, first, later in zip(current, state, following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, b.block)
        b.branch(head)
        b.position_at_end(done)
        return current


def emit(op: ScalarOp, machine: LLVMMachine, dtypes: Sequence[DType], args: Sequence[Any]) -> Value:
    """Apply an operator to registers of the given operand types; see `ScalarOp.result`.

    The result of half types is an unrounded float32 register: the caller decides whether to round
    between operators (`round_half`); stores always round.  Raises DTypeError for types the operator
    does not take.
    """
    return op.apply(machine, dtypes, args)
