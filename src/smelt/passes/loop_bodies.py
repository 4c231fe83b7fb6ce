"""Simplify the steps of loops; move views that each step reads into the step.

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

Operands of a loop are arrays, so that a view of one is copied in every call. A step reads parts of
an array in place:

    loop(c, w[0]), loop(c, w[1])                  loop(c, w), loop(c, w)
      body: c = contract(c, w)                      body: c = contract(c, w[0]), .. w[1]

Only views that keep the order of elements move, and only of fixed sizes: sizes have other names in
a step. Together they are all of the array, which may be stored in another layout for its readers.

>>> graph = parse('''graph f(c: f32[4], w: f32[1,4,4]) {
...  v1 = reshape(w) {shape=(4, 4)}
...  v2 = loop(c, v1) {carries=1, slices=0, length=(3,), reverse=false, which=0, names=(),
...    sizes=(), body=graph step(c: f32[4], w: f32[4,4]) {
...      v0 = contract(c, w) {spec="k; k,j -> j"}
...      return v0
...    }}
...  return v2
... }''')
>>> (node,) = sink_operand_views(graph).outputs
>>> [x.op.label for x in node.inputs], node.op.body.graph.inputs[1].type.shape
(['c', 'w'], (1, 4, 4))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Body, Loop
from smelt.graph.walk import rebuild, substitute_nodes, with_inputs
from smelt.ops.create import Input
from smelt.ops.view import Reshape, Slice
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


# ---- views of operands --------------------------------------------------------------------------


def sink_operand_views(graph: Graph) -> Graph:
    """Return the graph with loops that read the arrays behind views of their constants."""
    bodies: dict[tuple[Body, tuple[Node, ...]], Body] = {}
    views: dict[Node, set[Node]] = {}
    for node in graph.nodes():
        for x in _constants(node):
            views.setdefault(_array_of(x), set()).add(x)
    whole = {x for x, parts in views.items() if sum(map(_elements, parts)) >= _elements(x)}

    def change(node: Node) -> Node:
        op = node.op
        if not isinstance(op, Loop):
            return node
        first, constants = op.carries + op.slices, _constants(node)
        arrays = (source if (source := _array_of(x)) in whole else x for x in constants)
        inputs = (*node.inputs[:first], *arrays)
        if inputs == node.inputs:
            return node
        key = op.body, node.inputs
        if key not in bodies:
            step = _with_views(op.body.graph, node.inputs, inputs)
            bodies[key] = Body(step, op.body.checks)
        return Node(replace(op, body=bodies[key]), inputs, node.type, node.origin)

    return rebuild(graph, change)


def _constants(node: Node) -> tuple[Node, ...]:
    """Return the operands that a loop reads whole in each step."""
    op = node.op
    return node.inputs[op.carries + op.slices :] if isinstance(op, Loop) else ()


def _elements(node: Node) -> int:
    return prod(n for n in node.type.shape if isinstance(n, int))


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
