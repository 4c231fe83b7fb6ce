"""Move views of what a loop reads in each step into the step.

Operands of a loop are arrays, so that a view of one is copied in every call. A step reads parts of
an array in place:

    loop(c, w[1])                                 loop(c, w)
      body: c = contract(c, w)                      body: c = contract(c, w[1])

Only views that keep the order of elements move, and only of fixed sizes: sizes have other names in
a step.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(c: f32[4], w: f32[2,4,4]) {
...   v0 = slice(w) {starts=(1, 0, 0), sizes=(1, 4, 4), steps=(1, 1, 1)}
...   v1 = reshape(v0) {shape=(4, 4)}
...   v2 = loop(c, v1) {carries=1, slices=0, length=(3,), reverse=false, which=0, names=(),
...     sizes=(), body=graph step(c: f32[4], w: f32[4,4]) {
...       v0 = contract(c, w) {spec="k; k,j -> j"}
...       return v0
...     }}
...   return v2
... }''')
>>> (node,) = sink_operand_views(graph).outputs
>>> [x.op.label for x in node.inputs], node.op.body.graph.inputs[1].type.shape
(['c', 'w'], (2, 4, 4))
"""

from __future__ import annotations

from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, Loop
from smelt.graph.walk import rebuild, substitute_nodes, with_inputs
from smelt.ops.create import Input
from smelt.ops.view import Reshape, Slice


def sink_operand_views(graph: Graph) -> Graph:
    """Return the graph with loops that read the arrays behind views of their constants."""
    bodies: dict[tuple[Body, tuple[Node, ...]], Body] = {}

    def change(node: Node) -> Node:
        op = node.op
        if not isinstance(op, Loop):
            return node
        first = op.carries + op.slices
        sources = (_array_of(x) if k >= first else x for k, x in enumerate(node.inputs))
        inputs = tuple(sources)
        if inputs == node.inputs:
            return node
        key = op.body, node.inputs
        if key not in bodies:
            step = _with_views(op.body.graph, node.inputs, inputs)
            bodies[key] = Body(step, op.body.checks)
        return Node(replace(op, body=bodies[key]), inputs, node.type, node.origin)

    return rebuild(graph, change)


def _array_of(operand: Node) -> Node:
    """Return the array behind a view that can move, or the operand."""
    source = operand
    while isinstance(source.op, Slice | Reshape) and _is_static(source):
        (source,) = source.inputs
    is_strided = isinstance(source.op, Input) and source.op.strides is not None
    return operand if source.op.is_view or is_strided or not _is_static(source) else source


def _is_static(node: Node) -> bool:
    return all(isinstance(n, int) for n in node.type.shape)


def _with_views(step: Graph, operands: tuple[Node, ...], sources: tuple[Node, ...]) -> Graph:
    """Return the step with inputs for the arrays, and views of them."""
    inputs, views = list(step.inputs), dict[Node, Node]()
    for k, (x, operand, source) in enumerate(zip(step.inputs, operands, sources, strict=True)):
        if source is not operand:
            assert isinstance(x.op, Input)
            inputs[k] = build.input(x.op.label, source.type, origin=x.origin)
            views[x] = _viewed(operand, source, inputs[k])
    return replace(substitute_nodes(step, views), inputs=tuple(inputs))


def _viewed(view: Node, source: Node, array: Node) -> Node:
    """Return a view of one node as the same view of an array."""
    if view is source:
        return array
    return with_inputs(view, (_viewed(view.inputs[0], source, array),))
