"""Half types between elementwise operators keep the bits they are computed with.

Operators on half types compute in float32 and round each result.  With `rounding="fast"` a result
that one elementwise operator or reduction alone reads is not rounded on the way: it never leaves
the kernel, so that nothing is stored in more bytes.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import renew, users
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce
from smelt.rewrite.rules import ROUNDING_SENSITIVE
from smelt.types.dtype import f32


def precision(graph: Graph) -> Graph:
    """Drop the rounding of half values that only the next operator sees.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         precision(
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
    kept = set(graph.outputs)
    passing = {
        node
        for node, found in readers.items()
        if _half(node) and len(found) == 1 and node not in kept and _passes(node, found[0])
    }
    if not passing:
        return graph
    return _Widening(passing).run(graph)


def _half(node: Node) -> bool:
    dtype = node.type.dtype
    return dtype.is_float and dtype.compute != dtype


def _passes(node: Node, reader: Node) -> bool:
    """Whether the value goes from one operator that computes in float32 to another."""
    if isinstance(reader.op, Cast):
        return reader.type.dtype.is_float and (_computes(node) or _narrows(node))
    return _computes(reader) and (_computes(node) or _narrows(node))


def _computes(node: Node) -> bool:
    op = node.op
    if isinstance(op, Map):
        differentiable = op.row.derivative is not None or op.row.rule.result == "bool"
        return differentiable and op.scalar not in ROUNDING_SENSITIVE
    return isinstance(op, Reduce) and not op.row.positional


def _narrows(node: Node) -> bool:
    return isinstance(node.op, Cast) and node.inputs[0].type.dtype.is_float


class _Widening:
    """Rebuilds a graph; the values in `passing` become float32."""

    def __init__(self, passing: set[Node]) -> None:
        self.passing = passing
        self.new: dict[Node, Node] = {}
        """What replaces each node: of its own type, but for those in `passing`."""

    def run(self, graph: Graph) -> Graph:
        for node in graph.nodes():
            self.new[node] = self._rebuilt(node)
        outputs = tuple(self.new[node] for node in graph.outputs)
        return replace(graph, outputs=outputs)

    def _rebuilt(self, node: Node) -> Node:
        passes = node in self.passing
        reads = any(x in self.passing for x in node.inputs)
        if not passes and not reads:
            return renew(node, tuple(self.new[x] for x in node.inputs))
        if isinstance(node.op, Cast):
            wanted = f32 if passes else node.type.dtype
            return build.cast(self.new[node.inputs[0]], wanted, node.origin)
        operands = [self._wide(x, node) for x in node.inputs]
        wide = build.apply(node.op, *operands, origin=node.origin)
        return wide if passes else build.cast(wide, node.type.dtype, node.origin)

    def _wide(self, x: Node, reader: Node) -> Node:
        new = self.new[x]
        return build.cast(new, f32, reader.origin) if _half(x) and x not in self.passing else new
