"""Copy cheap values for each of their readers, so that chunking can cut them differently.

    h = where(i == j, c, 0);  h - p, h - q.T    ->    g = where(i == j, c, 0);  h - p, g - q.T

Chunks cut a value along one axis. A value that is read both as it is and transposed would be cut
along two, although each reader could compute it: it depends on positions and small values only.
"""

from __future__ import annotations

from functools import cache

from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.trace import trace
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts
from smelt.ops.create import Input

CHEAP_OPERATOR_COST = 4.0
"""Maximum cost per element of an operator that is recomputed, such as a comparison or select."""
MAX_COPIES_PER_NODE = 16
"""Maximum copies per node of a graph.

Chains in which each value reads the previous one twice have as many readers as paths.
"""


def rematerialize_cheap(graph: Graph, hints: Hints, least: int) -> Graph:
    """Copy large cheap values, and views of small ones, for each of their readers.

    `least` is the number of elements of a large value. Returns the graph itself if there is none,
    or if there would be too many copies.

    >>> from smelt.graph.text import parse, text
    >>> graph = parse(
    ...     "graph f(x: f32[n,1], p: f32[n,n]) {\\n"
    ...     "  v0 = exp(x)\\n  v1 = sub(p, v0)\\n  v2 = expand(v0) {shape=(n, n)}\\n"
    ...     "  v3 = neg(v2)\\n  v4 = permute(v3) {perm=(1, 0)}\\n"
    ...     "  v5 = add(v3, v4)\\n  return v1, v5\\n}"
    ... )
    >>> print(text(rematerialize_cheap(graph, Hints(n=100), 1000)))
    graph f(x: f32[n,1], p: f32[n,n]) {
      v0 = exp(x) : f32[n,1]
      v1 = sub(p, v0) : f32[n,n]
      v2 = expand(v0) {shape=(n, n)} : f32[n,n]
      v3 = neg(v2) : f32[n,n]
      v4 = expand(v0) {shape=(n, n)} : f32[n,n]
      v5 = neg(v4) : f32[n,n]
      v6 = permute(v5) {perm=(1, 0)} : f32[n,n]
      v7 = add(v3, v6) : f32[n,n]
      return v1, v7
    }
    """
    counts = use_counts(graph)

    def is_large(node: Node) -> bool:
        return at_hints(node.type.elements, hints) >= least

    @cache
    def is_cheap(node: Node) -> bool:
        if not is_large(node):
            return True
        if isinstance(node.op, Input) or not node.op.fusible:
            return False
        traced = trace(node.op, node.type, tuple((None, x.type, ()) for x in node.inputs))
        reduces = traced.reductions or traced.dots or traced.scatter_dims
        return (
            not reduces and traced.cost <= CHEAP_OPERATOR_COST and all(map(is_cheap, node.inputs))
        )

    def is_shared(x: Node) -> bool:
        return counts[x] > 1 and (is_cheap(x) if is_large(x) else x.op.is_view)

    shared = {x for x in graph.nodes() if is_shared(x)}
    max_copies = MAX_COPIES_PER_NODE * len(graph.nodes())
    copies = 0

    def change(node: Node, old: Node) -> Node:
        rebuilt: dict[Node, Node] = {}

        def copy(node: Node) -> Node:
            nonlocal copies
            if not (is_cheap(node) if is_large(node) else node.op.is_view):
                return node  # inputs and expensive values are not copied
            if node not in rebuilt:
                copies += 1
                inputs = tuple(map(copy, node.inputs))
                rebuilt[node] = Node(node.op, inputs, node.type, node.origin)
            return rebuilt[node]

        if shared.isdisjoint(old.inputs) or copies > max_copies:
            return node
        inputs = (
            copy(x) if y in shared else x for x, y in zip(node.inputs, old.inputs, strict=True)
        )
        return Node(node.op, tuple(inputs), node.type, node.origin)

    rebuilt = rebuild_from(graph, change)
    return graph if copies > max_copies else rebuilt
