"""Ways through a graph: users, rebuilding with shared nodes kept shared, index attributes.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\\n v0 = exp(x)\\n v1 = add(v0, v0)\\n return v1\\n}")
>>> [len(uses) for uses in users(graph).values()]
[1, 2, 0]
>>> rebuild(graph, lambda node: node) is graph
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.ops.spec import TensorOp
from smelt.types.expr import Expr, Index, sizes_of
from smelt.types.tensor import TensorType

Op = TypeVar("Op", bound=TensorOp)


def users(graph: Graph) -> dict[Node, list[Node]]:
    """For each node the nodes that read it, once for each operand place.

    A graph's output counts as no user: ask `node in graph.outputs`.
    """
    found: dict[Node, list[Node]] = {node: [] for node in graph.nodes()}
    for node in found:
        for operand in node.inputs:
            found[operand].append(node)
    return found


def size_names(graph: Graph) -> tuple[str, ...]:
    """The size symbols of a graph, in order of first appearance in the inputs' shapes."""
    dims = [d for x in graph.inputs for d in x.type.shape]
    return tuple(dict.fromkeys(name for d in dims for name in sizes_of(d)))


def use_counts(graph: Graph) -> dict[Node, int]:
    """How often each node is read, by nodes or as an output of the graph."""
    nodes = graph.nodes()
    counts = dict.fromkeys(nodes, 0)
    for node in nodes:
        for operand in node.inputs:
            counts[operand] += 1
    for node in graph.outputs:
        counts[node] += 1
    return counts


def renew(node: Node, inputs: tuple[Node, ...]) -> Node:
    """`node` on other operands; its type is inferred again if theirs have changed."""
    if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
        return node
    if all(a.type == b.type for a, b in zip(node.inputs, inputs, strict=True)):
        return Node(node.op, inputs, node.type, node.origin)
    return build.apply(node.op, *inputs, origin=node.origin)


def rebuild(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """The graph with each node but the inputs replaced by `change(node)`, operands first.

    `change` gets nodes whose operands are changed already, and each only once, so that sharing is
    kept.  If it changes nothing the result is `graph` itself.
    """
    return rebuild_from(graph, lambda node, old: change(node))


def rebuild_from(graph: Graph, change: Callable[[Node, Node], Node]) -> Graph:
    """As `rebuild`, for a `change(node, old)` that wants to know which node of `graph` it was."""
    new: dict[Node, Node] = {node: node for node in graph.inputs}
    same = True
    for node in graph.nodes():
        if node in new:
            continue
        inputs = tuple([new[operand] for operand in node.inputs])
        changed = change(node if inputs == node.inputs else renew(node, inputs), node)
        new[node] = changed
        same = same and changed is node
    if same:
        return graph
    outputs = tuple(new[node] for node in graph.outputs)
    return Graph(graph.name, graph.inputs, outputs, graph.facts, graph.checks)


def substitute_nodes(graph: Graph, values: Mapping[Node, Node]) -> Graph:
    """The graph with some nodes replaced wherever they are read, inputs' declarations aside."""
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        found = values.get(node)
        new[node] = found or renew(node, tuple([new[operand] for operand in node.inputs]))
    outputs = tuple(new[node] for node in graph.outputs)
    return Graph(graph.name, graph.inputs, outputs, graph.facts, graph.checks)


# ---- index attributes ------------------------------------------------------------------------


def map_indices(op: Op, change: Callable[[Expr], Index]) -> Op:
    """`op` with every index expression in its fields replaced, nested ones too.

    Plain integers are left alone: one cannot tell an extent from the number of an axis.
    """
    new: dict[str, Any] = {}
    for name in _fields(type(op)):
        value = getattr(op, name)
        changed = _map_value(value, change) if type(value) in _WITH_INDICES else value
        if changed is not value:
            new[name] = changed
    return replace(op, **new) if new else op


@cache
def _fields(kind: type[TensorOp]) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)


def _map_value(value: Any, change: Callable[[Expr], Index]) -> Any:
    if isinstance(value, Expr):
        return change(value)
    if isinstance(value, tuple):
        items = [_map_value(x, change) if type(x) in _WITH_INDICES else x for x in value]
        return value if all(a is b for a, b in zip(items, value)) else tuple(items)
    return map_type(value, change) if isinstance(value, TensorType) else value


_WITH_INDICES = frozenset((Expr, tuple, TensorType))
"""Types of fields that may hold index expressions."""


def map_type(old: TensorType, change: Callable[[Expr], Index]) -> TensorType:
    """The type with every symbolic dimension replaced."""
    shape = tuple([change(d) if isinstance(d, Expr) else d for d in old.shape])
    return old if shape == old.shape else TensorType(old.dtype, shape)


def sizes(graph: Graph) -> tuple[str, ...]:
    """Names of all sizes that the graph mentions, in order of first appearance."""
    met: dict[Expr, None] = {}
    for node in graph.nodes():
        _note(node.type.shape, met)
        op = node.op
        for name in _fields(type(op)):
            value = getattr(op, name)
            if type(value) in _WITH_INDICES:
                _note(value, met)
    for fact in graph.facts:
        _note((fact.left, fact.right), met)
    return tuple(dict.fromkeys(name for e in met for name in sizes_of(e)))


def _note(value: Any, met: dict[Expr, None]) -> None:
    """Adds the expressions in an operator's field to those that were met."""
    kind = type(value)
    if kind is tuple:
        for x in value:
            if type(x) in _WITH_INDICES:
                _note(x, met)
    elif kind is Expr:
        met[value] = None
    elif kind is TensorType:
        _note(value.shape, met)
