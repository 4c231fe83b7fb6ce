"""Adapt a program to inputs whose axes are stored in another order than their dimensions.

`x.T` of a C-contiguous array is such an input, and so is any array in Fortran order.  A graph has
dimensions only, so its results would be written across the memory that their operands are read
from.  Here such an input becomes the permutation of an input that has its memory order;
permutations then move to the results (see `smelt.passes.propagate_layouts`), where the caller may
apply them to the result as a view, at no cost:

    y = exp(x)              # x[n,m] is stored as [m,n]
    y = permute(exp(x'))    # x'[m,n]: exp(x') is written, y is a view of it

Only front ends whose results may be strided may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import with_inputs
from smelt.ops.contract import Contract
from smelt.ops.create import Input
from smelt.ops.view import Permute
from smelt.passes.compose import simplify_view
from smelt.passes.propagate_layouts import RULES, Perm, count_permutations, propagate_permutations
from smelt.types.tensor import TensorType


def apply_input_layouts(
    graph: Graph, orders: Sequence[Perm | None]
) -> tuple[Graph, tuple[Perm | None, ...]] | None:
    """Rewrite a graph for inputs stored in the given orders (dimensions, slowest first).

    Returns the graph and, for each output, the permutation that the caller has to apply (None for
    none).  Returns None if more values would be permuted than before, or if only contractions would
    gain, which read strided operands equally fast.  An order of None leaves an input as it is.

    >>> from smelt.graph.text import parse, text
    >>> found = apply_input_layouts(
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
    replacements: dict[Node, Node] = {}
    inputs = [
        _in_memory_order(x, p, replacements) for x, p in zip(graph.inputs, orders, strict=True)
    ]
    outputs = _rebuilt_outputs(graph, replacements)
    rewritten = propagate_permutations(replace(graph, inputs=tuple(inputs), outputs=outputs), RULES)
    perms = [_output_permutation(x) for x in rewritten.outputs]
    unpermuted = tuple(x.inputs[0] if p else x for x, p in zip(rewritten.outputs, perms))
    result = replace(rewritten, outputs=unpermuted)
    pays = any(perms) or not any(isinstance(x.op, Contract) for x in result.nodes())
    accepted = pays and count_permutations(result) <= count_permutations(graph)
    return (result, tuple(perms)) if accepted else None


def _in_memory_order(x: Node, order: Perm | None, read: dict[Node, Node]) -> Node:
    """Declare an input in memory order, and record its permutation in `read`."""
    if order is None:
        return x
    op = x.op
    assert isinstance(op, Input)
    shape = tuple(x.type.shape[d] for d in order)
    stored = TensorType(x.type.dtype, shape)
    new_input = build.input(op.label, stored, None, x.origin, constant=op.constant)
    inverse = tuple(order.index(d) for d in range(len(order)))
    read[x] = simplify_view(build.apply(Permute(inverse), new_input))
    return new_input


def _rebuilt_outputs(graph: Graph, read: dict[Node, Node]) -> tuple[Node, ...]:
    """Rebuild the outputs on replaced inputs."""
    rebuilt = dict(read)
    for node in graph.nodes():
        if node not in rebuilt:
            rebuilt[node] = (
                with_inputs(node, tuple(rebuilt[x] for x in node.inputs)) if node.inputs else node
            )
    return tuple(rebuilt[x] for x in graph.outputs)


def _output_permutation(x: Node) -> Perm | None:
    """Return the permutation on top of a computed output, or None.

    A permuted input is no such output: it would alias the caller's memory.
    """
    op = x.op
    return op.perm if isinstance(op, Permute) and x.inputs[0].inputs else None
