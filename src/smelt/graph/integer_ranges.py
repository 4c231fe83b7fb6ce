"""Follow short integers through conversions, views and monotone or linear operators.

>>> from smelt.graph.text import parse
>>> text = "graph f(x: u8[n]) { a = cast(x) {dtype=i32} b = sub(a, 117:i32) return b }"
>>> (b,) = parse(text).outputs
>>> bounds, nodes = integer_range(b)
>>> bounds, len(nodes)
((-117, 138), 2)
"""

from __future__ import annotations

import numpy as np

from smelt.graph.bounds import constant_value
from smelt.graph.ir import Node
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Concat, Expand, Flip, Permute, Reshape, Slice
from smelt.types.dtype import DType

__all__ = ["Range", "dtype_range", "integer_range"]

Range = tuple[int, int]

_REARRANGING = (Concat, Expand, Flip, Permute, Reshape, Slice)
"""Views whose elements are those of their operands."""
_MAX_DEPTH = 8
"""Maximum operators between an array and a value that are followed."""


def integer_range(node: Node, depth: int = _MAX_DEPTH) -> tuple[Range, frozenset[Node]]:
    """Return the range of an integer value, and the operators from which it follows."""
    own_range = dtype_range(node.type.dtype)
    if depth == 0 or not isinstance(node.op, (Cast, Map)):
        return own_range, frozenset()
    operands = [_operand_range(x, depth - 1) for x in node.inputs]
    if isinstance(node.op, Map):
        bounds = node.op.row.integer_bounds(*(r for r, _ in operands))
    else:
        bounds = operands[0][0]
    if bounds is None or bounds[0] < own_range[0] or own_range[1] < bounds[1]:
        return own_range, frozenset()
    return bounds, frozenset({node}).union(*(nodes for _, nodes in operands))


def dtype_range(dtype: DType) -> Range:
    """Return the least and the greatest number of an integer type."""
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def _operand_range(node: Node, depth: int) -> tuple[Range | None, frozenset[Node]]:
    """Return the range of an integer operand, and operators as `integer_range` does."""
    if isinstance(number := constant_value(node), int):
        return (number, number), frozenset()
    if not node.type.dtype.is_integer:
        return None, frozenset()
    if not isinstance(node.op, _REARRANGING):
        return integer_range(node, depth)
    parts = [_operand_range(x, depth) for x in node.inputs]
    ranges = [r for r, _ in parts if r is not None]
    if not ranges or len(ranges) < len(parts):
        return None, frozenset()
    bounds = min(r[0] for r in ranges), max(r[1] for r in ranges)
    return bounds, frozenset[Node]().union(*(nodes for _, nodes in parts))
