"""Keep half-precision intermediates in float32, and round factors of products to bfloat16.

Operators on half types compute in float32 and round each result. With `rounding="fast"`, a result
whose only reader is an elementwise operator or a reduction is not rounded: it never leaves the
kernel, so nothing is stored in more bytes.

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
from smelt.graph.walk import rebuild_from, users, with_inputs
from smelt.ops.contract import Contract
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce
from smelt.rewrite.rules import ROUNDING_SENSITIVE
from smelt.types.dtype import bf16, f32


def drop_half_rounding(graph: Graph) -> Graph:
    """Drop the rounding of half-precision values that only the next operator reads.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         drop_half_rounding(
    ...             parse('''graph f(x: bf16[n], y: bf16[n]) {
    ...   a = mul(x, y)
    ...   b = exp(a)
    ...   return b
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: bf16[n], y: bf16[n]) {
      v0 = cast(x) {dtype=f32} : f32[n]
      v1 = cast(y) {dtype=f32} : f32[n]
      v2 = mul(v0, v1) : f32[n]
      v3 = exp(v2) : f32[n]
      v4 = cast(v3) {dtype=bf16} : bf16[n]
      return v4
    }
    """
    readers = users(graph)
    outputs = set(graph.outputs)
    unrounded = {
        node
        for node, uses in readers.items()
        if _is_half(node)
        and len(uses) == 1
        and node not in outputs
        and _stays_in_float32(node, uses[0])
    }
    if not unrounded:
        return graph
    return _Widener(unrounded).run(graph)


def _is_half(node: Node) -> bool:
    dtype = node.type.dtype
    return dtype.is_float and dtype.compute != dtype


def _stays_in_float32(node: Node, reader: Node) -> bool:
    """Whether a value goes from one operator that computes in float32 to another."""
    if isinstance(reader.op, Cast):
        return reader.type.dtype.is_float and (_computes_in_float32(node) or _is_float_cast(node))
    return _computes_in_float32(reader) and (_computes_in_float32(node) or _is_float_cast(node))


def _computes_in_float32(node: Node) -> bool:
    op = node.op
    if isinstance(op, Map):
        differentiable = op.row.derivative is not None or op.row.rule.result == "bool"
        return differentiable and op.scalar not in ROUNDING_SENSITIVE
    return isinstance(op, Reduce) and not op.row.positional


def _is_float_cast(node: Node) -> bool:
    return isinstance(node.op, Cast) and node.inputs[0].type.dtype.is_float


class _Widener:
    """Rebuild a graph with the values in `passing` as float32."""

    def __init__(self, passing: set[Node]) -> None:
        self.passing = passing
        self.new: dict[Node, Node] = {}
        """Replacement of each node, of the same type except for those in `passing`."""

    def run(self, graph: Graph) -> Graph:
        for node in graph.nodes():
            self.new[node] = self._rebuilt(node)
        outputs = tuple(self.new[node] for node in graph.outputs)
        return replace(graph, outputs=outputs)

    def _rebuilt(self, node: Node) -> Node:
        passes = node in self.passing
        reads = any(x in self.passing for x in node.inputs)
        if not passes and not reads:
            return with_inputs(node, tuple(self.new[x] for x in node.inputs))
        if isinstance(node.op, Cast):
            dtype = f32 if passes else node.type.dtype
            return build.cast(self.new[node.inputs[0]], dtype, node.origin)
        operands = [self._wide(x, node) for x in node.inputs]
        wide = build.apply(node.op, *operands, origin=node.origin)
        return wide if passes else build.cast(wide, node.type.dtype, node.origin)

    def _wide(self, x: Node, reader: Node) -> Node:
        new = self.new[x]
        return build.cast(new, f32, reader.origin) if _is_half(x) and x not in self.passing else new


# ---- factors of products ------------------------------------------------------------------------


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
