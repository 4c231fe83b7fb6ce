"""Drop operands of values without elements, and facts that always hold.

A graph reaches its nodes from the outputs, so an unread node is gone already.  What is left to drop
are operands that no element of the result depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Fact, Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.create import Constant
from smelt.ops.view import Expand
from smelt.types.expr import Index, sub


def dce(graph: Graph) -> Graph:
    """Remove computations of empty values, and facts that always hold.

    A value with an extent of 0 becomes a broadcast number.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         dce(
    ...             parse('''graph f(x: f32[n,0], y: f32[n,4]) {
    ...   require 0 <= n
    ...   a = exp(x)
    ...   return a, y
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,0], y: f32[n,4]) {
      v0 = expand(0.0:f32) {shape=(n, 0)} : f32[n,0]
      return v0, y
    }
    """
    result = rebuild(graph, _emptied)
    facts = tuple(dict.fromkeys(f for f in graph.facts if not _always(f)))
    if facts == graph.facts:
        return result
    return replace(result, facts=facts)


def _emptied(node: Node) -> Node:
    """Return a value without elements as a broadcast number."""
    if 0 not in node.type.shape or not node.inputs or not node.op.fusible:
        return node
    dtype = node.type.dtype
    if isinstance(node.op, Expand) and isinstance(node.inputs[0].op, Constant):
        return node
    zero = build.constant(0.0 if dtype.is_float else False if dtype.kind == "bool" else 0, dtype)
    return build.apply(Expand(node.type.shape), zero, origin=node.origin)


def _always(fact: Fact) -> bool:
    """Whether a fact provably holds for all sizes, 0 included."""
    difference = sub(fact.right, fact.left)
    if isinstance(difference, int):
        return _HOLDS[fact.relation](difference)
    if fact.relation == "<":
        return _nonnegative(sub(difference, 1))
    return fact.relation == "<=" and _nonnegative(difference)


_HOLDS: dict[str, Callable[[int], bool]] = {
    "==": lambda d: d == 0,
    "!=": lambda d: d != 0,
    "<": lambda d: d > 0,
    "<=": lambda d: d >= 0,
}


def _nonnegative(e: Index) -> bool:
    """Whether no term is negative.

    `expr.nonnegative` would assume every size to be at least 1.
    """
    if isinstance(e, int):
        return e >= 0
    return all(c > 0 and all(a.kind == "size" for a in m) for m, c in e.terms)
