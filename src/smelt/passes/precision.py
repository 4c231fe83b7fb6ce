"""Keep half-precision intermediates of elementwise operators in float32.

Operators on half types compute in float32 and round each result.  With `rounding="fast"`, a result
whose only reader is an elementwise operator or a reduction is not rounded: it never leaves the
kernel, so nothing is stored in more bytes.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import users, with_inputs
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce
from smelt.rewrite.rules import ROUNDING_SENSITIVE
from smelt.types.dtype import f32


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
