"""Find contractions of integers whose factors are short enough for dot-product instructions.

One such instruction multiplies two or four neighbours along the reduced axis, where a multiply-add
of full integers takes as long for one. The code generator sees that factors are short by how the
kernel computes them (`smelt.codegen.llvm.instructions.dot_product`): those that another kernel
converted and stored are full integers.

>>> from smelt.fusion.units import Units
>>> from smelt.graph.text import parse
>>> text = "graph f(x: i8[m,k], w: i16[k,n]) { v0 = cast(x) {dtype=i32} v1 = cast(w) {dtype=i32} "
>>> product = 'contract(v0, v1) {spec="m,k; k,n -> m,n"}'
>>> units = Units(parse(f"{text} v2 = {product} return v2 }}"))
>>> converting_units(units, units.unit(4), (i16,)) == 1 << 2 | 1 << 3
True
>>> converting_units(units, units.unit(4), (i8, u8)) is None
True
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.fusion.units import Unit, Units
from smelt.graph.integer_ranges import Range, dtype_range, integer_range
from smelt.machine.target import Target
from smelt.types.dtype import DType, i8, i16, i32, u8


def dot_factors(target: Target) -> tuple[DType, ...]:
    """Return the types of integers that dot-product instructions multiply."""
    if target.has_word_dot:
        return (i16,)
    return (i8, u8) if target.has_byte_dot else ()


def converting_units(units: Units, unit: Unit, factors: Sequence[DType]) -> int | None:
    """Return the units that make the factors of a contraction short.

    They have to be in its kernel. None if the factors are never of one of the types `factors`.
    """
    if not unit.trace.dots or unit.node.type.dtype != i32 or len(unit.edges) < 2:
        return None
    needed = 0
    for edge in unit.edges:
        members = _short_at(units, edge.producer, factors)
        if members is None:
            return None
        needed |= members
    return needed


def _short_at(units: Units, v: int, factors: Sequence[DType]) -> int | None:
    """Return the units by which a value is short, None if it need not be."""
    node = units.values[v]
    if not node.type.dtype.is_integer:
        return None
    if _fits(dtype_range(node.type.dtype), factors):
        return 0
    bounds, nodes = integer_range(node)
    if not _fits(bounds, factors) or not nodes <= units.number.keys():
        return None
    return sum(1 << units.number[x] for x in nodes)


def _fits(value_range: Range, factors: Sequence[DType]) -> bool:
    ranges = map(dtype_range, factors)
    return any(low <= value_range[0] and value_range[1] <= high for low, high in ranges)
