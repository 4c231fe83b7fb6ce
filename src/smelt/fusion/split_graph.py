"""Split a graph for chunks, after rewriting what chunks cannot have as it is.

A sum of half types is accumulated in float32 and rounded once. Chunks that accumulate into it must
keep it in float32 too: rounded in between, it would stop growing (256 + 1 is 256 in bfloat16).

    dw: bf16 = contract(dz, x)    ->    sums: f32 = contract(dz, x);  dw: bf16 = cast(sums)

Chunks cut a value along one axis. A value that is read both as it is and transposed would be cut
along two, although each reader could compute it: it depends on positions and small values only. It
is copied for each of its readers.

    h = where(i == j, c, 0);  h - p, h - q.T    ->    g = where(i == j, c, 0);  h - p, g - q.T
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from functools import cache

from smelt.backend.machine import Machine
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.chunking import CannotChunk, ChunkedGraph, NarrowSums, chunk_graph
from smelt.fusion.units import trace_of
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts
from smelt.ops.create import Constant, Input
from smelt.types.dtype import DType


def widen_sums(graph: Graph, sums: AbstractSet[Node]) -> tuple[Graph, Mapping[Node, Node]]:
    """Return the graph with `sums` in their accumulator type, and the new nodes.

    >>> from smelt.graph.text import parse, text
    >>> graph = parse(
    ...     "graph f(x: bf16[n,m], g: bf16[n]) {\\n"
    ...     '  v0 = contract(x, g) {spec="i,j; i -> j"}\\n  return v0\\n}'
    ... )
    >>> print(text(widen_sums(graph, {graph.outputs[0]})[0]))
    graph f(x: bf16[n,m], g: bf16[n]) {
      v0 = contract(x, g) {spec="i,j; i -> j", dtype=f32} : f32[m]
      v1 = cast(v0) {dtype=bf16} : bf16[m]
      return v1
    }
    """
    new: dict[Node, Node] = {}

    def change(node: Node, old: Node) -> Node:
        if old not in sums:
            new[old] = node
            return node
        accumulator_type = old.type.dtype.compute
        if any(f.name == "dtype" for f in fields(node.op)):
            wide_node = build.apply(
                replace(node.op, dtype=accumulator_type), *node.inputs, origin=node.origin
            )
        else:
            inputs = [
                _in_type(x, accumulator_type) if x.type.dtype == old.type.dtype else x
                for x in node.inputs
            ]
            wide_node = build.apply(node.op, *inputs, origin=node.origin)
        new[old] = wide_node
        return build.cast(wide_node, old.type.dtype, node.origin)

    return rebuild_from(graph, change), new


def _in_type(node: Node, dtype: DType) -> Node:
    """Return a value converted to a type; of a broadcast constant, the constant is converted."""
    chain = [node]
    while chain[-1].op.is_view:
        chain.append(chain[-1].inputs[0])
    constant = chain.pop()
    if not isinstance(constant.op, Constant):
        return build.cast(node, dtype, node.origin)
    converted = build.constant(constant.op.value, dtype)
    for view in reversed(chain):
        converted = build.apply(view.op, converted, origin=view.origin)
    return converted


CHEAP_OPERATOR_COST = 4.0
"""Maximum cost per element of an operator that is recomputed, such as a comparison or select."""
MAX_COPIES_PER_NODE = 16
"""Maximum copies per node of a graph.

Chains in which each value reads the previous one twice have as many readers as paths.
"""


def rematerialize_cheap(graph: Graph, hints: Hints, least: int) -> Graph:
    """Copy large cheap values, and views of small ones, for each of their readers.

    `least` is the number of elements of a large value. Returns the graph itself if there is none,
    or if there would be too many copies.

    >>> from smelt.graph.text import parse, text
    >>> graph = parse(
    ...     "graph f(x: f32[n,1], p: f32[n,n]) {\\n"
    ...     "  v0 = exp(x)\\n  v1 = sub(p, v0)\\n  v2 = expand(v0) {shape=(n, n)}\\n"
    ...     "  v3 = neg(v2)\\n  v4 = permute(v3) {perm=(1, 0)}\\n"
    ...     "  v5 = add(v3, v4)\\n  return v1, v5\\n}"
    ... )
    >>> print(text(rematerialize_cheap(graph, Hints(n=100), 1000)))
    graph f(x: f32[n,1], p: f32[n,n]) {
      v0 = exp(x) : f32[n,1]
      v1 = sub(p, v0) : f32[n,n]
      v2 = expand(v0) {shape=(n, n)} : f32[n,n]
      v3 = neg(v2) : f32[n,n]
      v4 = expand(v0) {shape=(n, n)} : f32[n,n]
      v5 = neg(v4) : f32[n,n]
      v6 = permute(v5) {perm=(1, 0)} : f32[n,n]
      v7 = add(v3, v6) : f32[n,n]
      return v1, v7
    }
    """
    counts = use_counts(graph)

    def is_large(node: Node) -> bool:
        return at_hints(node.type.elements, hints) >= least

    @cache
    def is_cheap(node: Node) -> bool:
        if not is_large(node):
            return True
        if isinstance(node.op, Input) or not node.op.fusible:
            return False
        traced = trace_of(node)
        reduces = traced.reductions or traced.dots or traced.scatter_dims
        return (
            not reduces and traced.cost <= CHEAP_OPERATOR_COST and all(map(is_cheap, node.inputs))
        )

    def is_shared(x: Node) -> bool:
        return counts[x] > 1 and (is_cheap(x) if is_large(x) else x.op.is_view)

    shared = {x for x in graph.nodes() if is_shared(x)}
    max_copies = MAX_COPIES_PER_NODE * len(graph.nodes())
    copies = 0

    def change(node: Node, old: Node) -> Node:
        rebuilt: dict[Node, Node] = {}

        def copy(node: Node) -> Node:
            nonlocal copies
            if not (is_cheap(node) if is_large(node) else node.op.is_view):
                return node  # inputs and expensive values are not copied
            if node not in rebuilt:
                copies += 1
                inputs = tuple(map(copy, node.inputs))
                rebuilt[node] = Node(node.op, inputs, node.type, node.origin)
            return rebuilt[node]

        if shared.isdisjoint(old.inputs) or copies > max_copies:
            return node
        inputs = (
            copy(x) if y in shared else x for x, y in zip(node.inputs, old.inputs, strict=True)
        )
        return Node(node.op, tuple(inputs), node.type, node.origin)

    rebuilt = rebuild_from(graph, change)
    return graph if copies > max_copies else rebuilt


def split_graph(
    graph: Graph,
    large: Sequence[Node],
    target: Machine,
    hints: Hints,
    value_bytes: int,
    axes: Sequence[int] | None,
    *,
    saves_memory: bool,
    widens: bool,
) -> tuple[Graph, ChunkedGraph, list[Node]] | None:
    """Split a graph around `large` values, with wider sums or cheap values computed again.

    Returns the graph that was split, its parts, and its large values. None or CannotChunk as in
    `chunk_graph`; NarrowSums unless it `widens` sums.
    """
    values, may_rematerialize = list(large), True
    multiple = target.tiling.chunk_multiples[0]
    while True:
        try:
            cut = chunk_graph(
                graph, values, hints, value_bytes, multiple, axes, saves_memory=saves_memory
            )
            if cut is None:
                return None
            return graph, cut, values
        except NarrowSums as narrow:
            if not widens:
                raise
            graph, values = with_wide_sums(graph, narrow, values)
        except CannotChunk:
            elements = at_hints(values[0].type.elements, hints)
            rematerialized = rematerialize_cheap(graph, hints, elements)
            nodes = {*rematerialized.nodes()}
            if not may_rematerialize or rematerialized is graph or not {*values} & nodes:
                raise
            graph, may_rematerialize = rematerialized, False
            values = [n for n in values if n in nodes]


def with_wide_sums(
    graph: Graph, narrow: NarrowSums, values: Sequence[Node]
) -> tuple[Graph, list[Node]]:
    """Return a graph with sums in their accumulator types, and its nodes for some `values`."""
    graph, renamed = widen_sums(graph, narrow.sums)
    return graph, [renamed.get(n, n) for n in values]
