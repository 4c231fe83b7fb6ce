"""What a graph asks of its inputs, apart from what it computes of them.

A check reads little: positions, where what stands there is a row.  Inside of the kernel that reads
them it is one fold more over an axis whose rows are else computed by themselves, which makes that
kernel slower than the few bytes are worth, and larger to compile.  Where its inputs are a small
share of all that is moved it is planned by itself, and computes again what both need.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m], i: i64[k]) {
...   v0 = add(i, 1:i64)
...   v1 = gather(x, v0) {first=0}
...   v2 = lt(v0, 0:i64)
...   v3 = reduce.any(v2) {axes=(0,)}
...   return v1; check v3
... }''')
>>> rest, checks = apart(graph, Hints({"n": 1000, "m": 64, "k": 32}))
>>> [node.op.name for node in rest.nodes() if node.inputs]
['add', 'gather']
>>> [node.op.name for node in checks.nodes() if node.inputs]
['add', 'lt', 'reduce.any']
>>> apart(graph, Hints({"n": 1000, "m": 1, "k": 32000}))
"""

from __future__ import annotations

from dataclasses import replace

from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.plan import Plan
from smelt.fusion.units import is_free, trace_of
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Input
from smelt.types.expr import product

__all__ = ["apart", "together"]

SHARE = 8
"""Apart is a check whose inputs are at most this part of what a graph takes and gives: it reads
them again, 8 bytes for the position of one element that is read and written."""

LEAST = 4
"""Bytes that a position counts at least: one of fewer is widened, one that is computed from none is
computed again."""


def apart(graph: Graph, hints: Hints) -> tuple[Graph, Graph] | None:
    """The graph without its checks, and a graph of them alone; None if it has none, or if they are
    better computed with the rest."""
    if not graph.asked or not graph.results:
        return None
    rest = replace(graph, outputs=graph.results, checks=0)
    looked = Graph(graph.name, (), graph.asked)
    read = [n for n in looked.nodes() if isinstance(n.op, Input)]
    moved = sum(at_hints(n.type.nbytes, hints) for n in (*graph.inputs, *rest.outputs))
    if not all(map(_is_light, looked.nodes())):
        return None
    count = max(at_hints(product(n.type.shape), hints) for n in looked.nodes())
    given = sum(at_hints(n.type.nbytes, hints) for n in read)
    if SHARE * max(given, LEAST * count) > moved:
        return None
    made: dict[Node, Node] = {}
    for n in looked.nodes():
        inputs = tuple(made[x] for x in n.inputs)
        made[n] = n if isinstance(n.op, Input) else Node(n.op, inputs, n.type, n.origin)
    again = tuple(made[n] for n in looked.outputs)
    return rest, replace(graph, outputs=again, checks=len(again))


def _is_light(node: Node) -> bool:
    """Whether a value can be computed twice: folds of what is true or not are, others may be what
    the graph is about."""
    if is_free(node) or isinstance(node.op, Input):
        return True
    return node.op.fusible and (not trace_of(node).folds or node.type.dtype.kind == "bool")


def together(rest: Plan, checks: Plan) -> Plan:
    """One plan of both, the checks behind the rest: they are too short to be shared by threads."""
    count = len(rest.clusters)
    graph = replace(
        rest.graph,
        outputs=(*rest.graph.outputs, *checks.graph.outputs),
        checks=len(checks.graph.outputs),
    )
    more = (replace(c, name=f"check{k}") for k, c in enumerate(checks.clusters))
    later = (tuple(count + k for k in group) for group in checks.launches)
    slots = (replace(s, first=s.first + count, last=s.last + count) for s in checks.slots)
    return Plan(
        graph,
        (*rest.clusters, *more),
        (*rest.launches, *later),
        rest.decisions,
        (*rest.slots, *slots),
        rest.sizes,
    )
