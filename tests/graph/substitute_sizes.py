"""Substitute known or renamed sizes in a graph."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.graph import build
from smelt.graph.ir import Fact, Graph, Node
from smelt.graph.walk import map_indices
from smelt.ops.create import Input
from smelt.types.expr import Expr, Index, substitute


def substitute_sizes(graph: Graph, values: Mapping[str, Index]) -> Graph:
    """The graph for known or renamed sizes: types, attributes and facts.

    Types are inferred again from the new inputs.  Raises ShapeError where they no longer fit.
    """

    def change(e: Expr) -> Index:
        return substitute(e, values, "size")

    new: dict[Node, Node] = {}
    for node in graph.nodes():
        op = map_indices(node.op, change)
        inputs = tuple(new[operand] for operand in node.inputs)
        if isinstance(op, Input):
            new[node] = Node(op, (), op.type, node.origin)
        else:
            new[node] = build.apply(op, *inputs, origin=node.origin)
    facts = tuple(
        Fact(substitute(f.left, values, "size"), f.relation, substitute(f.right, values, "size"))
        for f in graph.facts
    )
    ins, outs = (tuple(new[node] for node in side) for side in (graph.inputs, graph.outputs))
    return Graph(graph.name, ins, outs, facts, graph.checks)
