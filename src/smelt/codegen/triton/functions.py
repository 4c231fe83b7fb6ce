"""Print the functions beside a kernel: scalar operators, and how reductions combine elements.

>>> from smelt.types.dtype import f32
>>> print(scalar_function("add", [f32, f32], "k").text)
@triton.jit
def op_add_f32(a0, a1):
    t1 = a0 + a1
    return t1
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from smelt.codegen.triton.machine import TritonMachine
from smelt.codegen.triton.writer import Text, Writer
from smelt.ops.combine import EXTREMES, Combine
from smelt.ops.machine import Predicate
from smelt.ops.scalar import scalar
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, f32, i32

__all__ = ["Function", "combine_function", "pair_function", "register_of", "scalar_function"]


@dataclass(frozen=True, slots=True)
class Function:
    """A `triton.jit` function: its name, its text, and the type of its result."""

    name: str
    text: str
    dtype: DType


def scalar_function(
    op: str, dtypes: Sequence[DType], kernel: str, *, fast: bool = False
) -> Function:
    """Return the function of a scalar operator on register types, in hardware if `fast`."""
    suffix = "_".join(dict.fromkeys(d.name for d in dtypes))
    name = f"{'fast' if fast else 'op'}_{op}_{suffix}"
    return _function(name, op, dtypes, dtypes, kernel, fast=fast)


def combine_function(row: Combine, dtype: DType, kernel: str) -> Function:
    """Return the function that combines two elements of a reduction."""
    register = register_of(dtype)
    name = f"combine_{row.name}_{dtype.name}"
    if dtype.is_float and row.name in EXTREMES:
        writer = Writer({})
        machine = TritonMachine(writer, kernel)
        extreme = machine.least if row.name == EXTREMES[0] else machine.greatest
        result = extreme(Text("a0", (), dtype), Text("a1", (), dtype))
        return Function(name, _text(name, "a0, a1", writer, result), dtype)
    return _function(name, row.scalar, [dtype, dtype], [register, register], kernel)


def register_of(dtype: DType) -> DType:
    """Return the type that a reduction's elements have: masks are reduced as integers."""
    return i32 if dtype == bool_ else dtype


def _function(
    name: str,
    op: str,
    dtypes: Sequence[DType],
    registers: Sequence[DType],
    kernel: str,
    *,
    fast: bool = False,
) -> Function:
    row = scalar(op)
    writer = Writer({})
    arguments = [Text(f"a{k}", (), d) for k, d in enumerate(registers)]
    machine = TritonMachine(writer, kernel)
    if fast and row.hardware is not None:
        result = row.hardware(machine, f32, *arguments)
    else:
        result = row.apply(machine, dtypes, arguments)
    names = ", ".join(a.code for a in arguments)
    return Function(name, _text(name, names, writer, result), row.result(*dtypes).compute)


def _text(name: str, arguments: str, writer: Writer, *results: Text) -> str:
    returned = ", ".join(r.code for r in results)
    head = ["@triton.jit", f"def {name}({arguments}):"]
    return "\n".join([*head, *writer.lines, f"    return {returned}", ""])


def pair_function(row: Combine, dtype: DType, kernel: str) -> Function:
    """Return the function that picks one of two (value, position) pairs.

    NaN wins over numbers, and the lower position where the values tie.
    """
    predicate = cast("Predicate", row.scalar)
    writer = Writer({})
    m = TritonMachine(writer, kernel)
    value, other = Text("value", (), dtype), Text("other", (), dtype)
    place, other_place = Text("place", (), i32), Text("other_place", (), i32)
    tie = m.compare("eq", value, other)
    better = m.compare(predicate, other, value)
    if dtype.is_float:
        is_nan, other_is_nan = m.compare("ne", value, value), m.compare("ne", other, other)
        tie = m.or_(tie, m.and_(is_nan, other_is_nan))
        better = m.or_(better, m.and_(other_is_nan, m.not_(is_nan)))
    take = m.or_(better, m.and_(tie, m.compare("lt", other_place, place)))
    results = m.select(take, other, value), m.select(take, other_place, place)
    name = f"combine_{row.name}_{dtype.name}"
    arguments = "value, place, other, other_place"
    return Function(name, _text(name, arguments, writer, *results), dtype)
