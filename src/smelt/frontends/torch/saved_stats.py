"""Recompute a result of an operator from its other results that exist anyway.

A norm returns the mean and scale of its rows besides the normed values. If these two are kept, the
normed values follow from them element by element, and no row is reduced again.

>>> from smelt.graph import build
>>> from smelt.types.dtype import f32
>>> from smelt.types.tensor import TensorType
>>> x = V(build.input("x", TensorType(f32, (4, 8))))
>>> total = x.sum((1,), keep=True)
>>> results = x / total, total.reshape(4)
>>> sibling_places(results, 0)
(1,)
>>> t = V(build.input("t", TensorType(f32, (4,))))
>>> [
...     n.op.name
...     for n in Graph(
...         "g", (x.node, t.node), (compute_from_siblings(results, 0, {1: t}).node,)
...     ).nodes()
... ]
['input', 'input', 'reshape', 'div']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.frontends.torch.value import V
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import substitute_nodes
from smelt.ops.create import Input
from smelt.ops.view import Reshape


def sibling_places(results: Sequence[V | None], position: int) -> tuple[int, ...]:
    """Return the positions of other results that one result is computed through."""
    first = results[position]
    if first is None:
        return ()
    inside = set(Graph("one", (), (first.node,)).nodes())
    positions: list[int] = []
    for k, other in enumerate(results):
        core = None if other is None or k == position else _core(other.node)
        if core is not None and core in inside and core is not _core(first.node):
            positions.append(k)
    return tuple(positions)


def compute_from_siblings(
    results: Sequence[V | None], position: int, siblings: Mapping[int, V]
) -> V:
    """Compute a result from other results that exist.

    `siblings` are values by position; `sibling_places` says which ones count.
    """
    first = results[position]
    assert first is not None
    values: dict[Node, Node] = {}
    for k, value in siblings.items():
        other = results[k]
        if other is not None and (core := _core(other.node)) is not None:
            values[core] = value.reshape(*core.type.shape).node
    graph = substitute_nodes(Graph("one", (), (first.node,)), values)
    return V(graph.outputs[0], first.origin)


def _core(node: Node) -> Node | None:
    """Return the computed value behind reshapes; None for an input."""
    while isinstance(node.op, Reshape):
        (node,) = node.inputs
    return None if isinstance(node.op, Input) else node
