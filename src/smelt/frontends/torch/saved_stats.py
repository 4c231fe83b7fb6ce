"""Results of one operator that are there anyway, in the place of what the others are made from.

A norm gives its rows' mean and scale beside the normed values.  Where these two are kept, the
normed values follow from them element by element, and no row is summed again.

>>> from smelt.graph import build
>>> from smelt.types.dtype import f32
>>> from smelt.types.tensor import TensorType
>>> x = V(build.input("x", TensorType(f32, (4, 8))))
>>> total = x.sum((1,), keep=True)
>>> results = x / total, total.reshape(4)
>>> through(results, 0)
(1,)
>>> t = V(build.input("t", TensorType(f32, (4,))))
>>> [n.op.name for n in Graph("g", (x.node, t.node), (replaced(results, 0, {1: t}).node,)).nodes()]
['input', 'input', 'reshape', 'div']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.frontends.torch.value import V
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import substitute_nodes
from smelt.ops.create import Input
from smelt.ops.view import Reshape

__all__ = ["replaced", "through"]


def through(results: Sequence[V | None], place: int) -> tuple[int, ...]:
    """The other results that the one at a place is computed through."""
    first = results[place]
    if first is None:
        return ()
    inside = set(Graph("one", (), (first.node,)).nodes())
    found: list[int] = []
    for k, other in enumerate(results):
        core = None if other is None or k == place else _core(other.node)
        if core is not None and core in inside and core is not _core(first.node):
            found.append(k)
    return tuple(found)


def replaced(results: Sequence[V | None], place: int, given: Mapping[int, V]) -> V:
    """A result computed from others that are given; `through` says which ones count."""
    first = results[place]
    assert first is not None
    values: dict[Node, Node] = {}
    for k, value in given.items():
        other = results[k]
        if other is not None and (core := _core(other.node)) is not None:
            values[core] = value.reshape(*core.type.shape).node
    graph = substitute_nodes(Graph("one", (), (first.node,)), values)
    return V(graph.outputs[0], first.origin)


def _core(node: Node) -> Node | None:
    """The computed value behind views of all its elements; None for what is not computed."""
    while isinstance(node.op, Reshape):
        (node,) = node.inputs
    return None if isinstance(node.op, Input) else node
