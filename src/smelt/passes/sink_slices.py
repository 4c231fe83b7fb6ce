"""Sink slices of contractions below elementwise operators.

A kernel that computes a contraction stores ranges of its columns directly from the tiles.  An
elementwise result of such a range (scaled queries, the activated half of a gate) equals the same
range of the elementwise result of the whole contraction; in that form it is a range too, and is
computed for its own elements only.

    h = x @ w; tanh(h[:, :n]), h[:, n:]  ->  t = tanh(h); t[:, :n], h[:, n:]

Ranges that are combined with each other are left to `smelt.passes.split_gated_matmul`.  Other
passes move views in front of elementwise operators, so this one runs after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import reachable, substitute_nodes, users
from smelt.ops.contract import Contract
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Pad, Reshape, Slice
from smelt.types.expr import add, sub

Readers = Mapping[Node, Sequence[Node]]


def sink_slices(graph: Graph) -> Graph:
    """Replace elementwise results of a contraction's slice by slices of an elementwise result.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         sink_slices(
    ...             parse('''graph f(x: f32[n,k], w: f32[k,192]) {
    ...   h = contract(x, w) {spec="n,k; k,c -> n,c"}
    ...   a = slice(h) {starts=(0, 0), sizes=(n, 64), steps=(1, 1)}
    ...   b = slice(h) {starts=(0, 64), sizes=(n, 128), steps=(1, 1)}
    ...   y = tanh(a)
    ...   return y, b
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,k], w: f32[k,192]) {
      v0 = contract(x, w) {spec="n,k; k,c -> n,c"} : f32[n,192]
      v1 = tanh(v0) : f32[n,192]
      v2 = slice(v1) {starts=(0, 0), sizes=(n, 64), steps=(1, 1)} : f32[n,64]
      v3 = slice(v0) {starts=(0, 64), sizes=(n, 128), steps=(1, 1)} : f32[n,128]
      return v2, v3
    }
    """
    slices = _slices_of_contractions(graph)
    sliced_outputs = {
        node: region for node in graph.outputs if (region := slices.get(node)) is not None
    }
    if len(sliced_outputs) < 2 and not any(x in slices.values() for x in graph.outputs):
        return graph
    readers = Counter(
        [*(region.inputs[0] for region in sliced_outputs.values()), *set(graph.outputs)]
    )
    shared = {node for node, region in sliced_outputs.items() if readers[region.inputs[0]] > 1}
    operators = _operators_to_sink(shared, slices, users(graph))
    new = dict[Node, Node]()
    for node in graph.nodes():
        if node in operators:
            new[node] = _on_whole(node, slices[node], new)
    elementwise = {x for x in operators if not isinstance(x.op, Reshape)}
    replacements = {
        node: _slice_result(node, slices[node], new[node]) for node in shared if node in new
    }
    return substitute_nodes(graph, replacements) if elementwise else graph


def _slices_of_contractions(graph: Graph) -> dict[Node, Node]:
    """Map each value computed from one slice of a contraction to that slice."""
    contractions, slices, mixed = set[Node](), dict[Node, Node](), set[Node]()
    for x in graph.nodes():
        if isinstance(x.op, Contract):
            contractions.add(x)
        elif isinstance(x.op, Slice):
            if x.inputs[0] in contractions and all(step == 1 for step in x.op.steps):
                slices[x] = x
        elif isinstance(x.op, Reshape) and x.inputs[0] in slices:
            slices[x] = slices[x.inputs[0]]
        elif isinstance(x.op, (Map, Cast)):
            sources = {slices[z] for z in x.inputs if z in slices}
            compatible = all(_is_compatible(z, x, slices) for z in x.inputs)
            if len(sources) > 1 or (sources and not compatible) or not mixed.isdisjoint(x.inputs):
                mixed.add(x)
            elif sources:
                slices[x] = sources.pop()
            elif any(z in contractions and z.type.shape == x.type.shape for z in x.inputs):
                contractions.add(x)
    return slices


def _is_compatible(z: Node, x: Node, slices: Mapping[Node, Node]) -> bool:
    """Whether an operand matches the slices it is combined with, or is a number."""
    if z in slices:
        return z.type.shape == x.type.shape
    return not z.type.shape or all(
        y.type.shape == slices[y].type.shape for y in x.inputs if y in slices
    )


def _operators_to_sink(
    shared: Collection[Node], slices: Mapping[Node, Node], readers: Readers
) -> set[Node]:
    """Return the operators between slices and `shared` results that nothing else reads."""

    def moving(nodes: Iterable[Node]) -> list[Node]:
        return [x for x in nodes if x in slices and slices[x] is not x]

    operators = {n: {*reachable(moving([n]), lambda x: moving(x.inputs))} for n in shared}
    all_operators = set[Node]().union(*operators.values())
    private = [
        between
        for between in operators.values()
        if all(all_operators.issuperset(readers[x]) for x in between)
    ]
    return set[Node]().union(*private)


def _on_whole(x: Node, region: Node, new: Mapping[Node, Node]) -> Node:
    """Apply an operator on a slice to the whole contraction."""
    if isinstance(x.op, Reshape):
        return new.get(x.inputs[0], region.inputs[0])
    operands = [
        new.get(z) or (region.inputs[0] if z is region else _padded_operand(z, region))
        for z in x.inputs
    ]
    return build.apply(x.op, *operands, origin=x.origin)


def _slice_result(node: Node, region: Node, full_result: Node) -> Node:
    """Slice what was computed from the whole contraction."""
    result = build.apply(region.op, full_result, origin=node.origin)
    if result.type.shape == node.type.shape:
        return result
    return build.apply(Reshape(node.type.shape), result, origin=node.origin)


def _padded_operand(x: Node, region: Node) -> Node:
    """Pad an operand of a slice for the whole contraction; the padding is never read."""
    op, full_shape = region.op, region.inputs[0].type.shape
    assert isinstance(op, Slice)
    lead = len(full_shape) - x.type.rank
    paddings = [
        (0, 0) if n == 1 else (start, sub(extent, add(start, size)))
        for n, start, size, extent in zip(
            x.type.shape, op.starts[lead:], op.sizes[lead:], full_shape[lead:], strict=True
        )
    ]
    if all(padding == (0, 0) for padding in paddings):
        return x
    low, high = zip(*paddings, strict=True)
    zero = False if x.type.dtype.kind == "bool" else 0
    return build.apply(Pad(low, high, zero), x, origin=x.origin)
