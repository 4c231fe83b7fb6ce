"""Emit lookups of small tables (16 or 32 numbers) by every lane.

AVX-512 permutes tables held in registers, as fast as a multiplication.  Elsewhere each lane loads
its number, which is about as fast as the division that a table saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2s
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.registers import I32, element_type, lane_numbers
from smelt.types.dtype import DType, f32

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
