"""Map dtypes to LLVM register and memory types, build constants, look numbers up in tables.

AVX-512 permutes tables of 16 or 32 numbers held in registers, as fast as a multiplication.
Elsewhere each lane loads its number, which is about as fast as the division that a table saves.

>>> from smelt.types.dtype import bool_, f16, f32
>>> str(element_type(f16)), str(memory_type(f16)), str(memory_type(bool_))
('float', 'i16', 'i8')
>>> print(constant(f32, 1.5, 16))
<16 x float> splat (float 0x3ff8000000000000)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2s
from typing import Any, Protocol

import numpy as np

from smelt.codegen.llvm import ir
from smelt.machine.processor import InstructionSet
from smelt.types.dtype import DType, f32

I1: Any = ir.IntType(1)
I16: Any = ir.IntType(16)
I32: Any = ir.IntType(32)
_FLOATS: dict[int, Any] = {16: ir.FloatType(), 32: ir.FloatType(), 64: ir.DoubleType()}


class Isa(Protocol):
    """Processor properties which a machine needs."""

    @property
    def facts(self) -> InstructionSet:
        """Return the row of the instruction set."""
        ...

    @property
    def registers(self) -> int:
        """Return the number of vector registers."""
        ...

    @property
    def has_fast_division(self) -> bool:
        """Return whether dividing a vector beats exact multiplication by a reciprocal."""
        ...

    @property
    def has_half_conversions(self) -> bool:
        """Return whether instructions convert between float16 and float32."""
        ...

    @property
    def has_fma(self) -> bool:
        """Return whether one instruction multiplies and adds."""
        ...

    def has(self, feature: str) -> bool:
        """Return whether LLVM's target feature of that name is available."""
        ...


def element_type(dtype: DType) -> Any:
    """Return the LLVM type of a register lane; raises KeyError for complex types."""
    if dtype.kind == "bool":
        return I1
    if dtype.is_integer:
        return ir.IntType(dtype.bits)
    return _FLOATS[dtype.bits]


def memory_type(dtype: DType) -> Any:
    """Return the LLVM type in memory: i8 for bool, i16 for half types."""
    if dtype.kind == "bool":
        return ir.IntType(8)
    if dtype.kind == "float" and dtype.bits == 16:
        return ir.IntType(16)
    return element_type(dtype)


def vector_of(element: Any, lanes: int | None) -> Any:
    """Return the vector of `lanes` elements, or the element type if `lanes` is None."""
    return element if lanes is None else ir.VectorType(element, lanes)


def lane_numbers(numbers: Sequence[int]) -> Any:
    """Return a shuffle mask, cached since few occur thousands of times."""
    return _lane_numbers(tuple(numbers))


@lru_cache(maxsize=4096)
def _lane_numbers(numbers: tuple[int, ...]) -> Any:
    return ir.Constant(ir.VectorType(I32, len(numbers)), numbers)


class TextConstant(ir.Constant):
    """A constant in LLVM's spelling: splats stay short however many lanes they fill."""

    def __init__(self, kind: Any, text: str, number: float | int | bool) -> None:
        self.type, self.constant, self.ref = kind, text, text
        self.number = number

    def splat(self, lanes: int) -> TextConstant:
        """Return a scalar constant in every lane."""
        text = f"splat ({self.type} {self.constant})"
        return TextConstant(vector_of(self.type, lanes), text, self.number)


def constant_lanes(mask: ir.Value | None) -> list[bool] | None:
    """Return which lanes a constant mask has; None for another mask."""
    if isinstance(mask, TextConstant):
        return [bool(mask.number)] * mask.type.count
    if isinstance(mask, ir.Constant):
        return [bool(bit) for bit in mask.constant or [0] * mask.type.count]
    return None


def constant(dtype: DType, value: float | int | bool, lanes: int | None) -> TextConstant:
    """Return `value`, rounded or wrapped to the register of `dtype`, in every lane."""
    element = element_type(dtype)
    number: float | int | bool
    if dtype.is_float:
        with np.errstate(over="ignore"):
            number = float(dtype.compute.numpy.type(value))
        # Hexadecimal floats name a float32 number by the float64 of equal value.
        text = f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016x}"
    elif dtype.kind == "bool":
        number = bool(value)
        text = "true" if number else "false"
    else:
        wrapped = int(value) & ((1 << dtype.bits) - 1)
        number = wrapped - (1 << dtype.bits) if wrapped >> (dtype.bits - 1) else wrapped
        text = str(number)
    if lanes is None:
        return TextConstant(element, text, number)
    return TextConstant(element, text, number).splat(lanes)


def define_lanewise(module: Any, name: str, callee: str, kind: Any, arity: int) -> None:
    """Define `name` as a cold loop which calls `callee` for every lane."""
    function: Any = ir.Function(module, ir.FunctionType(kind, [kind] * arity), name, "private")
    function.attributes.add("noinline")
    function.attributes.add("cold")
    element = kind.element
    target = module.globals.get(callee)
    if target is None:
        target = ir.Function(module, ir.FunctionType(element, [element] * arity), callee)
    entry, body, done = (function.append_basic_block(x) for x in ("entry", "body", "done"))
    builder: Any = ir.IRBuilder(entry)
    places = [builder.alloca(kind) for _ in range(arity)]
    for place, argument in zip(places, function.args, strict=True):
        builder.store(argument, place)
    builder.branch(body)
    builder.position_at_end(body)
    i = builder.phi(I32)
    i.add_incoming(ir.Constant(I32, 0), entry)
    slots = [builder.gep(place, [i], source_etype=element) for place in places]
    result = builder.call(target, [builder.load(slot, typ=element) for slot in slots])
    builder.store(result, slots[0])
    following = builder.add(i, ir.Constant(I32, 1))
    i.add_incoming(following, body)
    more = builder.icmp_unsigned("<", following, ir.Constant(I32, kind.count))
    builder.cbranch(more, body, done)
    builder.position_at_end(done)
    builder.ret(builder.load(places[0], typ=kind))


# ---- tables --------------------------------------------------------------------------------------


Value = ir.Value
LINE = 64
"""Alignment of tables in bytes; by default LLVM aligns them to 16."""


def pick(m: Any, dtype: DType, numbers: tuple[float, ...], at: Value) -> Value:
    """Emit `Machine.pick`."""
    if m.lanes is None:
        return _load_number(m, dtype, numbers, at)
    if not m.picks:
        result = ir.Constant(m.register_type(dtype), ir.Undefined)
        for lane in range(m.lanes):
            one = m.builder.extract_element(at, ir.Constant(I32, lane))
            one = _load_number(m, dtype, numbers, one)
            result = m.builder.insert_element(result, one, ir.Constant(I32, lane))
        return result
    width = LINE // dtype.itemsize
    kind = ir.VectorType(element_type(dtype), width)
    halves = [
        ir.Constant(kind, list(numbers[k : k + width])) for k in range(0, len(numbers), width)
    ]
    return _permuted(m, dtype, halves, at)


def pick_from(m: Any, dtype: DType, start: Value, count: int, at: Value) -> Value | None:
    """Look up lanes of the `count` numbers in memory at `start` by 64-bit positions.

    None if registers do not hold them, or cannot be permuted: gathers are then as fast.
    """
    width = LINE // dtype.itemsize
    if m.lanes is None or not m.picks or dtype != f32 or count not in (width, 2 * width):
        return None
    b, kind = m.builder, ir.VectorType(element_type(dtype), width)
    halves = [
        b.load(
            b.gep(start, [ir.Constant(I32, k)], source_etype=element_type(dtype)),
            typ=kind,
            align=dtype.itemsize,
        )
        for k in range(0, count, width)
    ]
    return _permuted(m, dtype, halves, b.trunc(at, ir.VectorType(I32, m.lanes)))


def _permuted(m: Any, dtype: DType, halves: Sequence[Value], at: Value) -> Value:
    """Look up by permuting full registers; fewer lanes are repeated to fill one.

    Of two lanes and copies of the first, LLVM 22 takes the first alone.
    """
    width = LINE // dtype.itemsize
    kind = ir.VectorType(element_type(dtype), width)
    parts: list[Value] = []
    for start in range(0, m.lanes, width):
        part = at
        if m.lanes != width:
            count = min(m.lanes - start, width)
            lanes = [start + k % count for k in range(width)]
            part = m.builder.shuffle_vector(at, at, lane_numbers(lanes))
        if len(halves) == 1:
            parts.append(m.call("llvm.x86.avx512.permvar.sf.512", kind, *halves, part))
        else:
            name = f"llvm.x86.avx512.vpermi2var.{'ps' if dtype == f32 else 'pd'}.512"
            parts.append(m.call(name, kind, halves[0], part, halves[1]))
    result = m.concatenate(parts)
    if m.lanes % width == 0:
        return result
    return m.builder.shuffle_vector(result, result, lane_numbers(range(m.lanes)))


def _load_number(m: Any, dtype: DType, numbers: tuple[float, ...], at: Value) -> Value:
    b, element = m.builder, element_type(dtype)
    place = b.and_(at, ir.Constant(at.type, len(numbers) - 1))
    start = table(b, numbers, element)
    return b.load(b.gep(start, [place], source_etype=element), typ=element, align=dtype.itemsize)


def table(b: ir.IRBuilder, values: tuple[Any, ...], kind: Any) -> Value:
    """Return a constant table of the module, emitted once."""
    name = f"table.{blake2s(repr((values, str(kind))).encode(), digest_size=8).hexdigest()}"
    variable: Any = b.module.globals.get(name)
    if variable is None:
        data = ir.Constant(ir.ArrayType(kind, len(values)), values)
        variable = ir.GlobalVariable(b.module, name, data, align=LINE)
    return variable
