"""Store sums of half types in their accumulator type, rounding in a cast after them.

    dw: bf16 = contract(dz, x)    ->    sums: f32 = contract(dz, x);  dw: bf16 = cast(sums)

A sum of half types is accumulated in float32 and rounded once. Chunks that accumulate into it must
keep it in float32 too: rounded in between, it would stop growing (256 + 1 is 256 in bfloat16).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from
from smelt.ops.create import Constant
from smelt.types.dtype import DType


def widen_sums(graph: Graph, sums: AbstractSet[Node]) -> tuple[Graph, Mapping[Node, Node]]:
    """Return the graph with `sums` in their accumulator type, and the new nodes.

    >>> from smelt.graph.text import parse, text
    >>> graph = parse(
    ...     "graph f(x: bf16[n,m], g: bf16[n]) {\\n"
    ...     '  v0 = contract(x, g) {spec="i,j; i -> j"}\\n  return v0\\n}'
    ... )
    >>> print(text(widen_sums(graph, {graph.outputs[0]})[0]))
    graph f(x: bf16[n,m], g: bf16[n]) {
      v0 = contract(x, g) {spec="i,j; i -> j", dtype=f32} : f32[m]
      v1 = cast(v0) {dtype=bf16} : bf16[m]
      return v1
    }
    """
    new: dict[Node, Node] = {}

    def change(node: Node, old: Node) -> Node:
        if old not in sums:
            new[old] = node
            return node
        accumulator_type = old.type.dtype.compute
        if any(f.name == "dtype" for f in fields(node.op)):
            wide_node = build.apply(
                replace(node.op, dtype=accumulator_type), *node.inputs, origin=node.origin
            )
        else:
            inputs = [
                _in_type(x, accumulator_type) if x.type.dtype == old.type.dtype else x
                for x in node.inputs
            ]
            wide_node = build.apply(node.op, *inputs, origin=node.origin)
        new[old] = wide_node
        return build.cast(wide_node, old.type.dtype, node.origin)

    return rebuild_from(graph, change), new


def _in_type(node: Node, dtype: DType) -> Node:
    """Return a value converted to a type; of a broadcast constant, the constant is converted."""
    chain = [node]
    while chain[-1].op.is_view:
        chain.append(chain[-1].inputs[0])
    constant = chain.pop()
    if not isinstance(constant.op, Constant):
        return build.cast(node, dtype, node.origin)
    converted = build.constant(constant.op.value, dtype)
    for view in reversed(chain):
        converted = build.apply(view.op, converted, origin=view.origin)
    return converted
