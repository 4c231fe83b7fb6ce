"""Split a graph for chunks, after rewriting what chunks cannot have as it is."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.backend.machine import Machine
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.chunking import CannotChunk, ChunkedGraph, NarrowSums, chunk_graph
from smelt.fusion.rematerialize import rematerialize_cheap
from smelt.fusion.widen_accumulators import widen_sums
from smelt.graph.ir import Graph, Node


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
