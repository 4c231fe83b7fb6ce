"""A program for arrays whose axes lie in memory in another order than that of their dimensions.

`x.T` of a contiguous array is one, and so is whatever was made in Fortran's order.  A graph says
dimensions only, so its results would be written across the memory that they are read from.  Here
such an input becomes the permutation of one that lies as the memory does; permutations then travel
to the results (see `smelt.passes.propagate_layouts`), and where they arrive there the caller may
turn what is written, which costs nothing:

    y = exp(x)              # x[n,m] lies as [m,n]
    y = permute(exp(x'))    # x'[m,n]: exp(x') is written, y is a view of it

No front end but one whose results may have strides may ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import renew
from smelt.ops.contract import Contract
from smelt.ops.create import Input
from smelt.ops.view import Permute
from smelt.passes.compose import settle
from smelt.passes.propagate_layouts import RULES, Perm, permutations, travelled
from smelt.types.tensor import TensorType

__all__ = ["turned"]


def turned(
    graph: Graph, orders: Sequence[Perm | None]
) -> tuple[Graph, tuple[Perm | None, ...]] | None:
    """The graph for inputs whose dimensions lie in memory in these orders, slowest first, and for
    each output which of its dimensions the result has; None where it would turn more than before,
    and where nothing but contractions would gain, which read strides as well as anything.

    An order of None leaves an input as it is.

    >>> from smelt.graph.text import parse, text
    >>> found = turned(
    ...     parse('''graph f(x: f32[n,m], b: f32[m]) {
    ...   v0 = add(x, b)
    ...   v1 = reduce.sum(v0) {axes=(0,)}
    ...   return v0, v1
    ... }'''),
    ...     [(1, 0), None],
    ... )
    >>> print(text(found[0]))
    graph f(x: f32[m,n], b: f32[m]) {
      v0 = reshape(b) {shape=(m, 1)} : f32[m,1]
      v1 = add(x, v0) : f32[m,n]
      v2 = reduce.sum(v1) {axes=(1,)} : f32[m]
      return v1, v2
    }
    >>> found[1]
    ((1, 0), None)
    """
    read: dict[Node, Node] = {}
    inputs = [_lying(x, p, read) for x, p in zip(graph.inputs, orders, strict=True)]
    outputs = _renewed(graph, read)
    moved = travelled(replace(graph, inputs=tuple(inputs), outputs=outputs), RULES)
    turns = [_view(x) for x in moved.outputs]
    written = tuple(x.inputs[0] if p else x for x, p in zip(moved.outputs, turns))
    found = replace(moved, outputs=written)
    worth = any(turns) or not any(isinstance(x.op, Contract) for x in found.nodes())
    fits = worth and permutations(found) <= permutations(graph)
    return (found, tuple(turns)) if fits else None


def _lying(x: Node, order: Perm | None, read: dict[Node, Node]) -> Node:
    """An input as it lies; `read` then has what stands for it."""
    if order is None:
        return x
    op = x.op
    assert isinstance(op, Input)
    shape = tuple(x.type.shape[d] for d in order)
    lying = TensorType(x.type.dtype, shape)
    made = build.input(op.label, lying, None, x.origin, constant=op.constant)
    back = tuple(order.index(d) for d in range(len(order)))
    read[x] = settle(build.apply(Permute(back), made))
    return made


def _renewed(graph: Graph, read: dict[Node, Node]) -> tuple[Node, ...]:
    """The outputs on other inputs."""
    made = dict(read)
    for node in graph.nodes():
        if node not in made:
            made[node] = renew(node, tuple(made[x] for x in node.inputs)) if node.inputs else node
    return tuple(made[x] for x in graph.outputs)


def _view(x: Node) -> Perm | None:
    """How an output is turned of something that the graph computes: an input given back turned
    would be the caller's own memory."""
    op = x.op
    return op.perm if isinstance(op, Permute) and x.inputs[0].inputs else None
