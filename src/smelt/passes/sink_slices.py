"""Results that are made of a range of a product become ranges of what is made of all of it.

A kernel that computes a product stores ranges of its columns where the tiles have them.  What is
made of such a range one by one (queries that are scaled, the half of a gate that is activated) is
the same range of what would be made of the whole: said so, it is a range as well, and is computed
at the elements of that range alone.

    h = x @ w; tanh(h[:, :n]), h[:, n:]  ->  t = tanh(h); t[:, :n], h[:, n:]

Parts that meet are left to `divided`; views move in front of elementwise operators elsewhere, which
is why this pass runs behind those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import substitute_nodes, users
from smelt.ops.contract import Contract
from smelt.ops.elementwise import Cast, Map
from smelt.ops.view import Pad, Reshape, Slice
from smelt.types.expr import add, sub

__all__ = ["ranged"]

Readers = Mapping[Node, Sequence[Node]]


def ranged(graph: Graph) -> Graph:
    """Elementwise results of a range of a product become ranges of an elementwise result.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         ranged(
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
    made = _made(graph)
    results = {node: box for node in graph.outputs if (box := made.get(node)) is not None}
    if len(results) < 2 and not any(x in made.values() for x in graph.outputs):
        return graph
    wholes = Counter([*(box.inputs[0] for box in results.values()), *set(graph.outputs)])
    shared = {node for node, box in results.items() if wholes[box.inputs[0]] > 1}
    through = _through(shared, made, users(graph))
    new = dict[Node, Node]()
    for node in graph.nodes():
        if node in through:
            new[node] = _rebuilt(node, made[node], new)
    mapped = {x for x in through if not isinstance(x.op, Reshape)}
    moved = {node: _range(node, made[node], new[node]) for node in shared if node in new}
    return substitute_nodes(graph, moved) if mapped else graph


def _made(graph: Graph) -> dict[Node, Node]:
    """Ranges of products, or of what is made of one, and what is made of one range each."""
    whole, made, met = set[Node](), dict[Node, Node](), set[Node]()
    for x in graph.nodes():
        if isinstance(x.op, Contract):
            whole.add(x)
        elif isinstance(x.op, Slice):
            if x.inputs[0] in whole and all(step == 1 for step in x.op.steps):
                made[x] = x
        elif isinstance(x.op, Reshape) and x.inputs[0] in made:
            made[x] = made[x.inputs[0]]
        elif isinstance(x.op, (Map, Cast)):
            boxes = {made[z] for z in x.inputs if z in made}
            same = all(_stands_beside(z, x, made) for z in x.inputs)
            if len(boxes) > 1 or (boxes and not same) or not met.isdisjoint(x.inputs):
                met.add(x)
            elif boxes:
                made[x] = boxes.pop()
            elif any(z in whole and z.type.shape == x.type.shape for z in x.inputs):
                whole.add(x)
    return made


def _stands_beside(z: Node, x: Node, made: Mapping[Node, Node]) -> bool:
    """Whether an operand of what is made of a range is that, or can stand beside it: under another
    shape than the range's only numbers can."""
    if z in made:
        return z.type.shape == x.type.shape
    return not z.type.shape or all(
        y.type.shape == made[y].type.shape for y in x.inputs if y in made
    )


def _through(shared: Collection[Node], made: Mapping[Node, Node], readers: Readers) -> set[Node]:
    """The operators that make results of ranges, of results that nothing else has part of."""
    behind = dict[Node, set[Node]]()
    for node in shared:
        found, pending = set[Node](), [node]
        while pending:
            x = pending.pop()
            if x in made and made[x] is not x and x not in found:
                found.add(x)
                pending += x.inputs
        behind[node] = found
    every = set[Node]().union(*behind.values())
    alone = [found for found in behind.values() if all(every.issuperset(readers[x]) for x in found)]
    return set[Node]().union(*alone)


def _rebuilt(x: Node, box: Node, new: Mapping[Node, Node]) -> Node:
    """An operator on a range as one on the whole."""
    if isinstance(x.op, Reshape):
        return new.get(x.inputs[0], box.inputs[0])
    operands = [new.get(z) or (box.inputs[0] if z is box else _wide(z, box)) for z in x.inputs]
    return build.apply(x.op, *operands, origin=x.origin)


def _range(node: Node, box: Node, whole: Node) -> Node:
    """A result as the range of what is made of the whole."""
    found = build.apply(box.op, whole, origin=node.origin)
    if found.type.shape == node.type.shape:
        return found
    return build.apply(Reshape(node.type.shape), found, origin=node.origin)


def _wide(x: Node, box: Node) -> Node:
    """An operand beside a range as one beside the whole, with zeros that nobody sees around it."""
    op, whole = box.op, box.inputs[0].type.shape
    assert isinstance(op, Slice)
    lead = len(whole) - x.type.rank
    margins = [
        (0, 0) if n == 1 else (start, sub(more, add(start, size)))
        for n, start, size, more in zip(
            x.type.shape, op.starts[lead:], op.sizes[lead:], whole[lead:], strict=True
        )
    ]
    if all(margin == (0, 0) for margin in margins):
        return x
    low, high = zip(*margins, strict=True)
    zero = False if x.type.dtype.kind == "bool" else 0
    return build.apply(Pad(low, high, zero), x, origin=x.origin)
