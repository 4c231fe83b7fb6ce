"""Plan the checks of a graph's inputs separately from what it computes.

A check reads little, such as the row numbers of a gather. Within the kernel that reads them too, it
is one more reduction over an axis whose rows are otherwise independent; that slows the kernel down
by more than the few bytes are worth, and takes longer to compile. If its inputs are a small share
of all traffic, the check is planned by itself and recomputes what both need.

>>> from smelt.graph.text import parse
>>> graph = parse('''graph f(x: f32[n,m], i: i64[k]) {
...   v0 = add(i, 1:i64)
...   v1 = gather(x, v0) {first=0}
...   v2 = lt(v0, 0:i64)
...   v3 = reduce.any(v2) {axes=(0,)}
...   return v1; check v3
... }''')
>>> rest, checks = split_checks(graph, Hints({"n": 1000, "m": 64, "k": 32}))
>>> [node.op.name for node in rest.nodes() if node.inputs]
['add', 'gather']
>>> [node.op.name for node in checks.nodes() if node.inputs]
['add', 'lt', 'reduce.any']
>>> split_checks(graph, Hints({"n": 1000, "m": 1, "k": 32000}))
"""

from __future__ import annotations

from dataclasses import replace

from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.plan import Plan
from smelt.fusion.units import is_free, trace_of
from smelt.graph.ir import Graph, Node
from smelt.ops.create import Input
from smelt.types.expr import product

MIN_MOVED_RATIO = 8
"""Minimum ratio of a graph's traffic to a separate check's inputs, which are read twice."""

MIN_POSITION_BYTES = 4
"""Bytes that a position counts at least.

Narrower ones are widened; one computed from no input is recomputed.
"""


def split_checks(graph: Graph, hints: Hints) -> tuple[Graph, Graph] | None:
    """Return the graph without its checks, and a graph of the checks alone.

    None if it has none, or if they are better computed with the rest.
    """
    if not graph.check_outputs or not graph.results:
        return None
    rest = replace(graph, outputs=graph.results, checks=0)
    check_graph = Graph(graph.name, (), graph.check_outputs)
    check_inputs = [n for n in check_graph.nodes() if isinstance(n.op, Input)]
    total_bytes = sum(at_hints(n.type.nbytes, hints) for n in (*graph.inputs, *rest.outputs))
    if not all(map(_is_light, check_graph.nodes())):
        return None
    positions = max(at_hints(product(n.type.shape), hints) for n in check_graph.nodes())
    input_bytes = sum(at_hints(n.type.nbytes, hints) for n in check_inputs)
    if MIN_MOVED_RATIO * max(input_bytes, MIN_POSITION_BYTES * positions) > total_bytes:
        return None
    copies: dict[Node, Node] = {}
    for n in check_graph.nodes():
        inputs = tuple(copies[x] for x in n.inputs)
        copies[n] = n if isinstance(n.op, Input) else Node(n.op, inputs, n.type, n.origin)
    outputs = tuple(copies[n] for n in check_graph.outputs)
    return rest, replace(graph, outputs=outputs, checks=len(outputs))


def _is_light(node: Node) -> bool:
    """Return whether a value can be computed twice.

    Reductions of booleans can; other reductions may be the main work of the graph.
    """
    if is_free(node) or isinstance(node.op, Input):
        return True
    return node.op.fusible and (not trace_of(node).reductions or node.type.dtype.kind == "bool")


def merge_plans(rest: Plan, checks: Plan) -> Plan:
    """Return one plan with the checks after the rest.

    Checks run in launches of their own, because they are too short for several threads.
    """
    count = len(rest.clusters)
    graph = replace(
        rest.graph,
        outputs=(*rest.graph.outputs, *checks.graph.outputs),
        checks=len(checks.graph.outputs),
    )
    check_clusters = (replace(c, name=f"check{k}") for k, c in enumerate(checks.clusters))
    check_launches = (tuple(count + k for k in group) for group in checks.launches)
    slots = (replace(s, first=s.first + count, last=s.last + count) for s in checks.slots)
    return Plan(
        graph,
        (*rest.clusters, *check_clusters),
        (*rest.launches, *check_launches),
        rest.decisions,
        (*rest.slots, *slots),
        rest.sizes,
    )
