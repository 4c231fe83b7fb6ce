"""Compute powers of two of whole numbers by writing the exponent of a float.

Scales that are powers of two are stored as bytes (the E8M0 of OCP's microscaling formats), and
decoded by an exponential.  A float32 number 2^n has n + 127 as its exponent, so that this is a
shift.  Every bit stays: exponentials of whole numbers are exact.

    exp2(f32(s) - 127)       s of type uint8      is      the bits s << 23 (2^-127 for 0)
"""

from __future__ import annotations

from smelt.graph import build
from smelt.graph.bounds import value_range
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.create import Constant
from smelt.ops.elementwise import Cast, Map
from smelt.types.dtype import f32, i32, u8

__all__ = ["write_exponents"]

BIAS, MAX_BYTE = 127, 255
"""The exponent of 1.0, and the largest one."""
MAX_WHOLE = 1 << 20
"""Threshold on whole numbers: sums of smaller ones and a constant are exact in float32."""


def write_exponents(graph: Graph) -> Graph:
    """Write powers of two of small whole numbers as exponents.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         write_exponents(
    ...             parse('''graph f(s: u8[n]) {
    ...   a = cast(s) {dtype=f32}
    ...   b = sub(a, 127.0:f32)
    ...   c = exp2(b)
    ...   return c
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(s: u8[n]) {
      v0 = exp2_byte(s) : f32[n]
      return v0
    }
    """
    return rebuild(graph, _with_exponent)


def _with_exponent(node: Node) -> Node:
    op = node.op
    if not isinstance(op, Map) or not op.row.of_exponent or node.type.dtype != f32:
        return node
    whole, offset = _whole_number(node.inputs[0])
    if whole is None:
        return node
    low, high = value_range(whole)
    shift = offset + BIAS
    if not (isinstance(low, int) and isinstance(high, int) and abs(offset) <= MAX_WHOLE):
        return node
    if low + shift < 0 or high + shift > MAX_BYTE:
        return node
    exponent = whole
    if shift:
        plus = COMBINES[SUM_OF_PRODUCTS[0]].scalar
        wide = build.cast(whole, i32, node.origin)
        exponent = build.map(plus, wide, build.constant(shift, i32), origin=node.origin)
    return build.map(op.row.of_exponent, build.cast(exponent, u8, node.origin), origin=node.origin)


def _whole_number(x: Node) -> tuple[Node | None, int]:
    """Return an integer value and a number whose sum `x` is, or None."""
    if isinstance(x.op, Cast) and x.inputs[0].type.dtype.is_integer:
        return x.inputs[0], 0
    if not isinstance(x.op, Map) or len(x.op.row.linear) != 2:
        return None, 0
    for value, number, (of_value, of_number) in (
        (*x.inputs, x.op.row.linear),
        (*x.inputs[::-1], x.op.row.linear[::-1]),
    ):
        constant = number.op.value if isinstance(number.op, Constant) else None
        if of_value == 1 and isinstance(constant, float) and constant.is_integer():
            whole, offset = _whole_number(value)
            return whole, offset + of_number * int(constant)
    return None, 0
