"""Tables of 16 numbers, or 32, looked up by every lane of a vector on its own.

AVX-512 has permutations that take the table in registers, as fast as a multiplication.  Elsewhere
each lane loads its number, which is about as fast as the division that a table saves.
"""

from __future__ import annotations

from hashlib import blake2s
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.registers import I32, element_type, lane_numbers
from smelt.types.dtype import DType, f32

Value = ir.Value
LINE = 64
"""Bytes to which tables are aligned: words of hundreds of bits are by themselves to 16 only."""


def picked(m: Any, dtype: DType, numbers: tuple[float, ...], at: Value) -> Value:
    """`Machine.pick`."""
    if m.lanes is None:
        return _loaded(m, dtype, numbers, at)
    if not m.picks:
        found = ir.Constant(m.register_type(dtype), ir.Undefined)
        for lane in range(m.lanes):
            one = m.builder.extract_element(at, ir.Constant(I32, lane))
            one = _loaded(m, dtype, numbers, one)
            found = m.builder.insert_element(found, one, ir.Constant(I32, lane))
        return found
    return _permuted(m, dtype, numbers, at)


def _permuted(m: Any, dtype: DType, numbers: tuple[float, ...], at: Value) -> Value:
    """By whole registers, which a few lanes fill again and again: of two lanes and copies of the
    first LLVM 22 takes the first alone."""
    width = 512 // dtype.bits
    kind = ir.VectorType(element_type(dtype), width)
    halves = [
        ir.Constant(kind, list(numbers[k : k + width])) for k in range(0, len(numbers), width)
    ]
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
    whole = m.concatenate(parts)
    if m.lanes % width == 0:
        return whole
    return m.builder.shuffle_vector(whole, whole, lane_numbers(range(m.lanes)))


def _loaded(m: Any, dtype: DType, numbers: tuple[float, ...], at: Value) -> Value:
    b, element = m.builder, element_type(dtype)
    place = b.and_(at, ir.Constant(at.type, len(numbers) - 1))
    start = table(b, numbers, element)
    return b.load(b.gep(start, [place], source_etype=element), typ=element, align=dtype.itemsize)


def table(b: ir.IRBuilder, values: tuple[Any, ...], kind: Any) -> Value:
    """Numbers that the code has beside it, once for a module."""
    name = f"table.{blake2s(repr((values, str(kind))).encode(), digest_size=8).hexdigest()}"
    found: Any = b.module.globals.get(name)
    if found is None:
        data = ir.Constant(ir.ArrayType(kind, len(values)), values)
        found = ir.GlobalVariable(b.module, name, data, align=LINE)
    return found
