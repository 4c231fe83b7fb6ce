"""Compute the peak memory of a graph's operators when they run one after another, unfused.

Array libraries do that, and plans are measured against it: memory that fusion saves may be spent on
precomputed constants.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,256]) {
...   v0 = exp(x)
...   v1 = add(x, v0)
...   v2 = reduce.sum(v1) {axes=(1,)}
...   return v2
... }''')
>>> unfused_peak_bytes(
...     graph, {"n": 10}
... )  # one array, in which the sum of both is written, and the result
10280
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.bitsets import at_hints
from smelt.fusion.plan import Plan
from smelt.fusion.units import is_contraction, is_library
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Input


def unfused_peak_bytes(graph: Graph, hints: Mapping[str, int]) -> int:
    """Return the peak bytes of results and intermediate values, at the hints' sizes.

    Every value is freed after its last reader. Views, constants and positions take no memory. An
    operator other than a contraction or library call overwrites an operand of equal size that is
    not read again: no library needs less.
    """
    nodes = graph.nodes()
    last_reader: dict[Node, int] = {}
    for at, node in enumerate(nodes):
        for x in node.inputs:
            last_reader[_home(x)] = at
    last_reader.update(dict.fromkeys(map(_home, graph.outputs), len(nodes)))
    freed_at: dict[int, list[Node]] = {}
    for home, at in last_reader.items():
        freed_at.setdefault(at, []).append(home)
    live = peak = 0
    for at, node in enumerate(nodes):
        freed = [x for x in freed_at.get(at, ()) if x is not node]
        size = 0 if _home(node) is not node else _nbytes(node, hints)
        overwrites = any(size == _nbytes(x, hints) for x in map(_home, node.inputs) if x in freed)
        overwrites = overwrites and size > 0 and not is_contraction(node) and not is_library(node)
        peak = max(peak, live + (0 if overwrites else size))
        live += size - sum(_nbytes(x, hints) for x in freed)
        if node not in last_reader:
            live -= size
    return peak


def plan_peak_bytes(plan: Plan, hints: Mapping[str, int]) -> int:
    """Return the bytes of a plan's arena and of its results, at the hints' sizes."""
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
    """Return the value whose memory a view shows."""
    while node.op.is_view and len(node.inputs) == 1:
        (node,) = node.inputs
    return node


def _nbytes(node: Node, hints: Mapping[str, int]) -> int:
    """Return the bytes that an operator allocates; inputs belong to the caller."""
    if isinstance(node.op, Input) or not node.inputs:
        return 0
    return at_hints(node.type.nbytes, hints)
