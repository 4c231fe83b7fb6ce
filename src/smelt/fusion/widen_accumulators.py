"""Sums of half types, stored in the type that they are made in and rounded behind.

    dw: bf16 = contract(dz, x)    ->    sums: f32 = contract(dz, x);  dw: bf16 = cast(sums)

A sum of half types is made in float32 and rounded once.  Whoever makes it part by part has to keep
the parts' sum in float32 too: rounded in between, it would stop growing (1 more than 256 is 256 in
bfloat16).
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

__all__ = ["widened"]


def widened(graph: Graph, sums: AbstractSet[Node]) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph with `sums` in the type that they are made in, rounded behind; and the new nodes by
    those that they stand for.

    >>> from smelt.graph.text import parse, text
    >>> graph = parse(
    ...     "graph f(x: bf16[n,m], g: bf16[n]) {\\n"
    ...     '  v0 = contract(x, g) {spec="i,j; i -> j"}\\n  return v0\\n}'
    ... )
    >>> print(text(widened(graph, {graph.outputs[0]})[0]))
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
        wide = old.type.dtype.compute
        if any(f.name == "dtype" for f in fields(node.op)):
            made = build.apply(replace(node.op, dtype=wide), *node.inputs, origin=node.origin)
        else:
            inputs = [
                _in_type(x, wide) if x.type.dtype == old.type.dtype else x for x in node.inputs
            ]
            made = build.apply(node.op, *inputs, origin=node.origin)
        new[old] = made
        return build.cast(made, old.type.dtype, node.origin)

    return rebuild_from(graph, change), new


def _in_type(node: Node, dtype: DType) -> Node:
    """A value in another type; of a number that views repeat, the number is."""
    chain = [node]
    while chain[-1].op.is_view:
        chain.append(chain[-1].inputs[0])
    last = chain.pop()
    if not isinstance(last.op, Constant):
        return build.cast(node, dtype, node.origin)
    found = build.constant(last.op.value, dtype)
    for view in reversed(chain):
        found = build.apply(view.op, found, origin=view.origin)
    return found
