"""Simplify the steps of loops, each once for all results of its loop.

>>> from smelt.graph.text import parse, text
>>> graph = parse('''graph f(c: f32[n], x: f32[t,n]) {
...   v0 = loop(c, x) {carries=1, slices=1, length=(t,), reverse=false, which=0, names=("s",),
...     sizes=(n,), body=graph step(c: f32[s], x: f32[s]) {
...       v0 = mul(x, 1.0:f32)
...       v1 = add(c, v0)
...       return v1
...     }}
...   return v0
... }''')
>>> [len(x.op.body.graph.nodes()) for x in (graph.outputs[0],)]
[5]
>>> drop_products = lambda g: parse(
...     "graph s(c: f32[s], x: f32[s]) {\\n v = add(c, x)\\n return v\\n}"
... )
>>> len(
...     simplify_bodies(graph, lambda step, _: drop_products(step)).outputs[0].op.body.graph.nodes()
... )
3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, Loop
from smelt.graph.walk import rebuild
from smelt.types.expr import Index

Simplify = Callable[[Graph, Mapping[str, Index]], Graph]
"""Returns a graph like another one, given what its sizes are around the loop."""


def simplify_bodies(graph: Graph, simplify: Simplify) -> Graph:
    """Return the graph with simpler steps in its loops.

    Results that are equal then become one: a loop writes each of its results once.
    """
    results: dict[tuple[Loop, tuple[Node, ...]], Node] = {}
    simpler: dict[tuple[Body, tuple[Index, ...]], Body] = {}

    def change(node: Node) -> Node:
        op = node.op
        if not isinstance(op, Loop):
            return node
        key = op.body, op.sizes
        if key not in simpler:
            step = simplify(op.body.graph, op.binding)
            simpler[key] = op.body if step is op.body.graph else Body(step, op.body.checks)
        body = simpler[key]
        which = _plain_result(op, body.graph)
        if body is not op.body or which != op.which:
            op = replace(op, body=body, which=which)
            node = Node(op, node.inputs, node.type, node.origin)
        return results.setdefault((op, node.inputs), node)

    return rebuild(graph, change)


def _plain_result(op: Loop, step: Graph) -> int:
    """Return the number of an equal result that no step computes, if there is one."""
    if op.carries <= op.which < op.results:
        value = step.outputs[op.which]
        if value in step.inputs[: op.carries]:
            return op.results + step.inputs.index(value)
    return op.which
