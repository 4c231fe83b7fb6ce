r"""Traverse and rebuild graphs: users, substitution with sharing kept, index attributes.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\n v0 = exp(x)\n v1 = add(v0, v0)\n return v1\n}")
>>> [len(uses) for uses in users(graph).values()]
[1, 2, 0]
>>> rebuild(graph, lambda node: node) is graph
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.ops.spec import TensorOp
from smelt.types.expr import Expr, Index, sizes_of
from smelt.types.tensor import TensorType

Op = TypeVar("Op", bound=TensorOp)
T = TypeVar("T")


def reachable(start: Iterable[T], follow: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield what can be reached from `start`, itself included, each once, depth first.

    `follow` returns the neighbours of a value, after it has been yielded.

    >>> list(reachable([12], lambda n: [n // 2, n // 3] if n % 2 == 0 else []))
    [12, 4, 1, 2, 0, 6, 3]
    """
    pending = list(dict.fromkeys(start))
    seen = set(pending)
    while pending:
        x = pending.pop()
        yield x
        for y in follow(x):
            if y not in seen:
                seen.add(y)
                pending.append(y)


def users(graph: Graph) -> dict[Node, list[Node]]:
    """Return for each node the nodes that read it, once for each operand position.

    Graph outputs are not counted as reads: test `node in graph.outputs`.
    """
    readers: dict[Node, list[Node]] = {node: [] for node in graph.nodes()}
    for node in readers:
        for operand in node.inputs:
            readers[operand].append(node)
    return readers


def input_size_names(graph: Graph) -> tuple[str, ...]:
    """Return the size symbols in the inputs' shapes, in order of first appearance."""
    dims = [d for x in graph.inputs for d in x.type.shape]
    return tuple(dict.fromkeys(name for d in dims for name in sizes_of(d)))


def use_counts(graph: Graph) -> dict[Node, int]:
    """Return how often each node is read.

    Readers are nodes and the outputs of the graph.
    """
    nodes = graph.nodes()
    counts = dict.fromkeys(nodes, 0)
    for node in nodes:
        for operand in node.inputs:
            counts[operand] += 1
    for node in graph.outputs:
        counts[node] += 1
    return counts


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Return `node` with other operands; its type is inferred again if theirs changed."""
    if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
        return node
    if all(a.type == b.type for a, b in zip(node.inputs, inputs, strict=True)):
        return Node(node.op, inputs, node.type, node.origin)
    return build.apply(node.op, *inputs, origin=node.origin)


def rebuild(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """Replace each node except the inputs by `change(node)`, operands first.

    `change` gets nodes whose operands are already changed, each only once, so that sharing is kept.
    If it changes nothing, the result is `graph` itself.
    """
    return rebuild_from(graph, lambda node, old: change(node))


def rebuild_from(graph: Graph, change: Callable[[Node, Node], Node]) -> Graph:
    """Rebuild a graph with a `change` that gets the new node and the original one.

    Otherwise like `rebuild`.
    """
    new: dict[Node, Node] = {node: node for node in graph.inputs}
    unchanged = True
    for node in graph.nodes():
        if node in new:
            continue
        inputs = tuple([new[operand] for operand in node.inputs])
        changed = change(node if inputs == node.inputs else with_inputs(node, inputs), node)
        new[node] = changed
        unchanged = unchanged and changed is node
    if unchanged:
        return graph
    outputs = tuple(new[node] for node in graph.outputs)
    return Graph(graph.name, graph.inputs, outputs, graph.facts, graph.checks)


def substitute_nodes(graph: Graph, values: Mapping[Node, Node]) -> Graph:
    """Replace nodes wherever they are read; declarations of inputs stay."""
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        replacement = values.get(node)
        new[node] = replacement or with_inputs(
            node, tuple([new[operand] for operand in node.inputs])
        )
    outputs = tuple(new[node] for node in graph.outputs)
    return Graph(graph.name, graph.inputs, outputs, graph.facts, graph.checks)


# ---- index attributes ------------------------------------------------------------------------


def map_indices(op: Op, change: Callable[[Expr], Index]) -> Op:
    """Replace every index expression in an operator's fields, nested ones included.

    Plain integers are left alone: nothing distinguishes an extent from the number of an axis.
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
    """Replace every symbolic dimension of a type."""
    shape = tuple([change(d) if isinstance(d, Expr) else d for d in old.shape])
    return old if shape == old.shape else TensorType(old.dtype, shape)


def all_size_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of all sizes in a graph, in order of first appearance."""
    expressions: dict[Expr, None] = {}
    for node in graph.nodes():
        _collect(node.type.shape, expressions)
        op = node.op
        for name in _fields(type(op)):
            value = getattr(op, name)
            if type(value) in _WITH_INDICES:
                _collect(value, expressions)
    for fact in graph.facts:
        _collect((fact.left, fact.right), expressions)
    return tuple(dict.fromkeys(name for e in expressions for name in sizes_of(e)))


def _collect(value: Any, expressions: dict[Expr, None]) -> None:
    """Add the expressions in an operator's field to `expressions`."""
    kind = type(value)
    if kind is tuple:
        for x in value:
            if type(x) in _WITH_INDICES:
                _collect(x, expressions)
    elif kind is Expr:
        expressions[value] = None
    elif kind is TensorType:
        _collect(value.shape, expressions)
