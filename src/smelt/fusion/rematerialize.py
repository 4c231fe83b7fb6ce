"""Readers of a value that costs next to nothing have it each for itself.

    h = where(i == j, c, 0);  h - p, h - q.T    ->    g = where(i == j, c, 0);  h - p, g - q.T

Rounds cut a value along one axis.  One that is read as it is here and turned there would be cut
along two, although whoever reads it could as well compute it: it is made of positions and of what
is small.
"""

from __future__ import annotations

from functools import cache

from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.trace import trace
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts
from smelt.ops.create import Input

__all__ = ["untangled"]

CHEAP = 4.0
"""The cost of an element of an operator that is rather computed again: comparisons, selections."""
MOST_COPIES = 16
"""For each node of a graph: lines that read the one before twice have as many readers as paths."""


def untangled(graph: Graph, hints: Hints, least: int) -> Graph:
    """The graph with a copy for each reader of such a value that has at least as many elements as
    told, and of views of less; the graph itself where there is none, or where it would be many.

    >>> from smelt.graph.text import parse, text
    >>> graph = parse(
    ...     "graph f(x: f32[n,1], p: f32[n,n]) {\\n"
    ...     "  v0 = exp(x)\\n  v1 = sub(p, v0)\\n  v2 = expand(v0) {shape=(n, n)}\\n"
    ...     "  v3 = neg(v2)\\n  v4 = permute(v3) {perm=(1, 0)}\\n"
    ...     "  v5 = add(v3, v4)\\n  return v1, v5\\n}"
    ... )
    >>> print(text(untangled(graph, Hints(n=100), 1000)))
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
        found = trace(node.op, node.type, tuple((None, x.type, ()) for x in node.inputs))
        folds = found.folds or found.dots or found.joins
        return not folds and found.cost <= CHEAP and all(map(is_cheap, node.inputs))

    def is_shared(x: Node) -> bool:
        return counts[x] > 1 and (is_cheap(x) if is_large(x) else x.op.is_view)

    shared = {x for x in graph.nodes() if is_shared(x)}
    most = MOST_COPIES * len(graph.nodes())
    copies = 0

    def change(node: Node, old: Node) -> Node:
        made: dict[Node, Node] = {}

        def copy(node: Node) -> Node:
            nonlocal copies
            if not (is_cheap(node) if is_large(node) else node.op.is_view):
                return node  # inputs stay what they are, and what is dear stays one
            if node not in made:
                copies += 1
                inputs = tuple(map(copy, node.inputs))
                made[node] = Node(node.op, inputs, node.type, node.origin)
            return made[node]

        if shared.isdisjoint(old.inputs) or copies > most:
            return node
        inputs = (
            copy(x) if y in shared else x for x, y in zip(node.inputs, old.inputs, strict=True)
        )
        return Node(node.op, tuple(inputs), node.type, node.origin)

    made = rebuild_from(graph, change)
    return graph if copies > most else made
