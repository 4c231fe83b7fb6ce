"""Eliminate common subexpressions: equal operators on equal operands become one node."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any

from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.elementwise import Map
from smelt.ops.spec import TensorOp
from smelt.passes.canonicalize import zero_sign_depends_on_order
from smelt.types.dtype import number_text


def cse(graph: Graph) -> Graph:
    """Keep the first of equal values; commutative operators match in either order.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         cse(
    ...             parse('''graph f(x: f32[4], y: f32[4]) {
    ...   a = mul(x, y)
    ...   b = mul(y, x)
    ...   c = sub(a, b)
    ...   return c
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[4], y: f32[4]) {
      v0 = mul(x, y) : f32[4]
      v1 = sub(v0, v0) : f32[4]
      return v1
    }
    """
    seen: dict[Hashable, Node] = {}
    number: dict[Node, int] = {}

    def merge(node: Node) -> Node:
        op = node.op
        inputs = node.inputs
        if (
            type(op) is Map
            and len(inputs) == 2
            and op.row.commutative
            and not zero_sign_depends_on_order(op, node)
        ):
            a, b = (number.setdefault(operand, len(number)) for operand in inputs)
            if b < a:
                inputs = (inputs[1], inputs[0])
        return seen.setdefault((op, _numbers(op), inputs), node)

    return rebuild(graph, merge)


def _numbers(op: TensorOp) -> str:
    """Distinguish attributes that compare equal but differ: 0, 0.0, -0.0 and False."""
    names = _number_fields(type(op))
    return ",".join([number_text(getattr(op, name)) for name in names]) if names else ""


@cache
def _number_fields(kind: type[TensorOp]) -> tuple[str, ...]:
    fields: dict[str, Any] = kind.__dataclass_fields__
    loose = ("float", "Any")
    return tuple(n for n, f in fields.items() if any(word in str(f.type) for word in loose))
