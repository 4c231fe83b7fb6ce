"""What a graph's operators hold in memory when they run apart: one after another, as written.

That is what array libraries do, and what a plan is measured against: memory that fusion does not
need may be spent on constants that lie ready for their readers.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,256]) {
...   v0 = exp(x)
...   v1 = add(x, v0)
...   v2 = reduce.sum(v1) {axes=(1,)}
...   return v2
... }''')
>>> held_apart(graph, {"n": 10})  # one array, in which the sum of both is written, and the result
10280
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.bitsets import at_hints
from smelt.fusion.plan import Plan
from smelt.fusion.units import is_contraction, is_library
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Input

__all__ = ["held_apart", "held_by"]


def held_apart(graph: Graph, hints: Mapping[str, int]) -> int:
    """Bytes of results and of what lies between them at the fullest time, at the hints' sizes.

    Every value is freed after its last reader.  Views take nothing, nor do constants and positions;
    what is no product and no library call writes over an operand that nobody reads again, where
    both are of one size: no library holds less.
    """
    nodes = graph.nodes()
    last: dict[Node, int] = {}
    for at, node in enumerate(nodes):
        for x in node.inputs:
            last[_home(x)] = at
    last.update(dict.fromkeys(map(_home, graph.outputs), len(nodes)))
    ends: dict[int, list[Node]] = {}
    for home, at in last.items():
        ends.setdefault(at, []).append(home)
    live = most = 0
    for at, node in enumerate(nodes):
        gone = [x for x in ends.get(at, ()) if x is not node]
        size = 0 if _home(node) is not node else _nbytes(node, hints)
        over = any(size == _nbytes(x, hints) for x in map(_home, node.inputs) if x in gone)
        over = over and size > 0 and not is_contraction(node) and not is_library(node)
        most = max(most, live + (0 if over else size))
        live += size - sum(_nbytes(x, hints) for x in gone)
        if node not in last:
            live -= size
    return most


def held_by(plan: Plan, hints: Mapping[str, int]) -> int:
    """Bytes of a plan's arena and of its results, at the hints' sizes."""
    ends = [
        at_hints(s.offset, hints) + at_hints(s.nbytes, hints)
        for s in plan.slots
        if s.offset is not None and s.within is None
    ]
    results = sum(
        at_hints(s.nbytes, hints) for s in plan.slots if s.offset is None and s.reuses is None
    )
    return max(ends, default=0) + results


def _home(node: Node) -> Node:
    """The value whose memory a view shows."""
    while node.op.is_view and len(node.inputs) == 1:
        (node,) = node.inputs
    return node


def _nbytes(node: Node, hints: Mapping[str, int]) -> int:
    """Bytes that an operator brings; inputs are the caller's."""
    if isinstance(node.op, Input) or not node.inputs:
        return 0
    return at_hints(node.type.nbytes, hints)
