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
from functools import reduce
from operator import or_

import numpy as np

from smelt.fusion.units import Unit, Units
from smelt.graph.bounds import constant_value
from smelt.graph.ir import Node
from smelt.machine.target import Target
from smelt.ops.elementwise import Cast, Map
from smelt.ops.scalar import SCALARS
from smelt.ops.view import Concat, Expand, Flip, Permute, Reshape, Slice
from smelt.types.dtype import DType, i8, i16, i32, u8

Range = tuple[int, int]

REARRANGING_VIEWS = (Concat, Expand, Flip, Permute, Reshape, Slice)
"""Views whose elements are those of their operands."""
MAX_FACTOR_DEPTH = 8
"""Maximum operators between an array and a factor that are followed."""


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
    dtype = units.values[v].type.dtype
    if not dtype.is_integer:
        return None
    if _fits(_dtype_range(dtype), factors):
        return 0
    value_range, members = _range(units, v, MAX_FACTOR_DEPTH)
    return members if _fits(value_range, factors) else None


def _range(units: Units, v: int, depth: int) -> tuple[Range, int]:
    """Return the range of an integer value, and the units from which it follows."""
    node = units.values[v]
    own_range = _dtype_range(node.type.dtype)
    if v < len(units.inputs) or depth == 0:
        return own_range, 0
    operands = [_operand_range(units, x, depth - 1) for x in node.inputs]
    bounds = None
    if isinstance(node.op, Cast):
        bounds = operands[0][0]
    elif isinstance(node.op, Map):
        bounds = SCALARS[node.op.scalar].integer_bounds(*(r for r, _ in operands))
    if bounds is None or bounds[0] < own_range[0] or own_range[1] < bounds[1]:
        return own_range, 0
    return bounds, reduce(or_, (members for _, members in operands), 1 << v)


def _operand_range(units: Units, node: Node, depth: int) -> tuple[Range | None, int]:
    """Return the range of an integer operand, and the units as `_range` does."""
    if isinstance(number := constant_value(node), int):
        return (number, number), 0
    if isinstance(node.op, REARRANGING_VIEWS):
        parts = [_operand_range(units, x, depth) for x in node.inputs]
        ranges = [r for r, _ in parts if r is not None]
        if len(ranges) < len(parts):
            return None, 0
        bounds = min(r[0] for r in ranges), max(r[1] for r in ranges)
        return bounds, reduce(or_, (members for _, members in parts))
    if node not in units.number or not node.type.dtype.is_integer:
        return None, 0
    return _range(units, units.number[node], depth)


def _dtype_range(dtype: DType) -> Range:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def _fits(value_range: Range, factors: Sequence[DType]) -> bool:
    ranges = map(_dtype_range, factors)
    return any(low <= value_range[0] and value_range[1] <= high for low, high in ranges)
