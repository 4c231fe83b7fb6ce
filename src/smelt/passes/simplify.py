"""Apply the algebraic rules of `smelt.rewrite.rules` to elementwise operators repeatedly."""

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
from smelt.rewrite.engine import Rewriter, RuleSet
from smelt.rewrite.rules import EXACT, RULES
from smelt.types.dtype import DType


def simplify(graph: Graph) -> Graph:
    """Apply the rules that keep every bit of the result (except NaN payloads).

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
    return _apply_rules(graph, EXACT)


def simplify_fast(graph: Graph) -> Graph:
    """Apply all rules, including those that change rounding.

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
    return _apply_rules(graph, RULES)


def _apply_rules(graph: Graph, rules: RuleSet) -> Graph:
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
    """Adapter through which the rewriter reads and builds graph nodes."""

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


@lru_cache(maxsize=512)
def exact_number(op: Constant) -> float | int | bool:
    """Return the value of a constant after rounding to its type."""
    value = np.asarray(op.value).astype(op.dtype.numpy)
    return python_number(value)


def python_number(value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> float | int | bool:
    """Return the only element of an array as a Python number."""
    exact = value.astype(np.float64) if value.dtype.kind not in "biu" else value
    number: float | int | bool = exact.reshape(()).item()
    return number
