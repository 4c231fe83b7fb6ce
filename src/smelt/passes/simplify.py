"""Algebra: the rules of `smelt.rewrite.rules` on elementwise operators, to their fixed point."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild
from smelt.ops.create import Constant
from smelt.ops.elementwise import Map
from smelt.ops.view import Expand
from smelt.passes.canonicalize import shortest
from smelt.rewrite.engine import Rewriter
from smelt.rewrite.rule import RuleSet
from smelt.rewrite.rules import EXACT, RULES
from smelt.types.dtype import DType


def simplify(graph: Graph) -> Graph:
    """Apply the rules that keep every bit of the result (but those of NaNs).

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         simplify(
    ...             parse('''graph f(x: f32[n], m: bool[n]) {
    ...   a = neg(x)
    ...   b = div(a, -4.0:f32)
    ...   c = not(m)
    ...   d = select(c, b, x)
    ...   return d
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n], m: bool[n]) {
      v0 = neg(x) : f32[n]
      v1 = mul(v0, -0.25:f32) : f32[n]
      v2 = select(m, x, v1) : f32[n]
      return v2
    }
    """
    return _simplified(graph, EXACT)


def simplify_fast(graph: Graph) -> Graph:
    """Apply the rules that round differently too.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         simplify_fast(
    ...             parse('''graph f(x: f32[n]) {
    ...   a = div(x, 10.0:f32)
    ...   b = add(a, 0.0:f32)
    ...   return b
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n]) {
      v0 = mul(x, 0.1:f32) : f32[n]
      return v0
    }
    """
    return _simplified(graph, RULES)


def _simplified(graph: Graph, rules: RuleSet) -> Graph:
    rewriter = Rewriter(GraphValues(), rules)

    def change(node: Node) -> Node:
        if type(node.op) is not Map:
            return node
        new = rewriter.rewrite(node)
        if new.type.shape != node.type.shape:  # a rule dropped the operand that broadcast the rest
            return build.apply(Expand(node.type.shape), new, origin=node.origin)
        return new

    return rebuild(graph, change)


class GraphValues:
    """How rewriting sees the nodes of a graph."""

    def op(self, value: Node) -> str | None:
        return value.op.scalar if type(value.op) is Map else None

    def args(self, value: Node) -> tuple[Node, ...]:
        return value.inputs

    def number(self, value: Node) -> float | int | bool | None:
        return exact_number(value.op) if type(value.op) is Constant else None

    def dtype(self, value: Node) -> DType:
        return value.type.dtype

    def apply(self, op: str, args: tuple[Node, ...], like: Node) -> Node:
        return build.map(op, *args, origin=like.origin)

    def constant(self, number: float | int | bool, dtype: DType, like: Node) -> Node:
        op = shortest(Constant(number, dtype))
        return build.constant(op.value, op.dtype, like.origin)


@lru_cache(maxsize=4096)
def exact_number(op: Constant) -> float | int | bool:
    """The number that a constant is after rounding to its type."""
    value = np.asarray(op.value).astype(op.dtype.numpy)
    return number_of(value)


def number_of(value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> float | int | bool:
    """The only element of an array as a Python number."""
    wide = value.astype(np.float64) if value.dtype.kind not in "biu" else value
    found: float | int | bool = wide.reshape(()).item()
    return found
