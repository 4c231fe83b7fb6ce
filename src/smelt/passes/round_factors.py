"""Let products round a computed factor to bfloat16, as the other factor and results are.

Matrix units multiply factors of one half type; a float32 beside them takes a product for each of
its terms. Operators that run one by one round it, and so do the attention kernels of T. Dao,
"FlashAttention-2", 2023: weights meet the values in their type, which is the result's. The sums of
the weights keep all bits.

An array of float32 keeps its bits, and so does a factor whose products reach a result of more bits.
A float16 has fewer exponents than a float32: weights that are scaled later might exceed them.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, users
from smelt.ops.contract import Contract
from smelt.ops.elementwise import Cast
from smelt.types.dtype import bf16, f32


def round_factors(graph: Graph, *, is_allowed: bool = True) -> Graph:
    """Mark contractions whose computed factors may be rounded to bfloat16.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         round_factors(
    ...             parse('''graph f(x: f32[m,n], v: bf16[n,e]) {
    ...   w = exp(x)
    ...   a = cast(v) {dtype=f32}
    ...   s = contract(w, a) {spec="m,n; n,e -> m,e"}
    ...   y = cast(s) {dtype=bf16}
    ...   return y
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[m,n], v: bf16[n,e]) {
      v0 = exp(x) : f32[m,n]
      v1 = cast(v) {dtype=f32} : f32[n,e]
      v2 = contract(v0, v1) {spec="m,n; n,e -> m,e", factors=bf16} : f32[m,e]
      v3 = cast(v2) {dtype=bf16} : bf16[m,e]
      return v3
    }
    """
    if not is_allowed:
        return graph
    rounded = _rounded_later(graph)

    def mark(node: Node, old: Node) -> Node:
        op = node.op
        if old not in rounded or not isinstance(op, Contract) or not _has_computed_factor(old):
            return node
        return build.apply(replace(op, factors=bf16), *node.inputs, origin=node.origin)

    return rebuild_from(graph, mark)


def _rounded_later(graph: Graph) -> set[Node]:
    """Return the float32 values of which nothing but what is rounded to bfloat16 is left."""
    readers, outputs = users(graph), set(graph.outputs)
    result: set[Node] = set()
    for node in reversed(graph.nodes()):
        if node not in outputs and all(
            reader in result or _is_rounding(reader) for reader in readers[node]
        ):
            result.add(node)
    return result


def _is_rounding(node: Node) -> bool:
    return isinstance(node.op, Cast) and node.type.dtype == bf16


def _has_computed_factor(node: Node) -> bool:
    """Return whether a contraction has a computed factor in float32 and one in bfloat16."""
    assert isinstance(node.op, Contract)
    if node.op.factors is not None or node.type.dtype != f32:
        return False
    left, right = map(_source, node.inputs)
    if left.type.dtype != bf16:
        left, right = right, left
    return left.type.dtype == bf16 and right.type.dtype == f32 and bool(right.inputs)


def _source(node: Node) -> Node:
    """Return what a value is behind views and conversions to float32."""
    while node.op.is_view or (isinstance(node.op, Cast) and node.type.dtype == f32):
        (node, *_) = node.inputs
    return node
