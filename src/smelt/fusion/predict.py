"""Predict what a finished plan takes at any sizes: time, memory traffic, peak memory.

The search keeps the costs of what it joins; this recomputes them from a plan alone.

Traffic includes each array that a kernel reads or writes once: rereads come from a cache. Of an
array read through a slice, only the part that is read counts. Views are free; a view that is a
result is a copy.

Chunks read the rows that they cut once. What every chunk reads, and the results that they
accumulate into, count once as well if everything that a chunk touches fits the last-level cache;
otherwise the next chunk transfers them again. Intermediate values of a chunk stay in a cache, for
which the number of rows is chosen.

Array libraries run operators one after another. Plans are measured against the peak memory of that:
memory that fusion saves may be spent on precomputed constants.

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
from dataclasses import replace

from smelt.backend.machine import Level, Machine
from smelt.errors import InternalError
from smelt.fusion.bitsets import Hints, at_hints, bits
from smelt.fusion.cost import Model
from smelt.fusion.cost_model import Cost, CostModel, ValueSizes
from smelt.fusion.device_cost import DeviceModel, PricedGpu
from smelt.fusion.plan import Body, Cluster, Plan
from smelt.fusion.region import region_of
from smelt.fusion.streams import stream_cost
from smelt.fusion.units import Units, is_contraction, is_library
from smelt.graph.ir import Graph, Node
from smelt.kernel.chunks import WHOLE
from smelt.machine.target import Target
from smelt.ops.create import Input
from smelt.types.expr import add


def costs(plan: Plan, target: Machine, sizes: Mapping[str, int]) -> list[Cost]:
    """Return the predicted cost of every cluster, with all chunks of chunked ones."""
    return predictions(plan, target, sizes)[0]


def predictions(
    plan: Plan, target: Machine, sizes: Mapping[str, int]
) -> tuple[list[Cost], dict[Node, Level]]:
    """Return the cost of every cluster, and the level of memory where each value rests."""
    model = cost_model(Units(plan.graph), target, Hints(sizes))
    every = [
        _cost(model, c) if c.body is None else chunked_cost(c.body, target, sizes)
        for c in plan.clusters
    ]
    return every, dict(zip(model.units.values, model.resting_level, strict=True))


def chunked_cost(body: Body, target: Machine, sizes: Mapping[str, int]) -> Cost:
    """Return the predicted cost of all chunks of a body."""
    total = Cost()
    for rows, times in body.chunks.lengths(Hints(sizes)).items():
        for c in costs(body.plan, target, {**sizes, body.chunks.rows: rows}):
            total = replace(total, **{t: getattr(total, t) + times * getattr(c, t) for t in _SUMS})
    return total


_SUMS = (
    "total",
    "objective_ns",
    "launch",
    "arithmetic",
    "touch",
    "sweeps",
    "scratch",
    "partials",
    "streams",
    "read",
    "written",
)


def _cost(model: CostModel, cluster: Cluster) -> Cost:
    loop = cluster.loop
    if isinstance(model, DeviceModel) and loop is not None and loop.plan is None:
        return model.loop_cost(cluster)
    region = region_of(model.units, cluster)
    if cluster.stream is None:
        return model.cost(region)
    node, index = cluster.stream
    return stream_cost(model, region, region.reduced_axis_order[model.units.number[node]][index])


def cost_model(units: Units, machine: Machine, hints: Hints, extra_bytes: int = 0) -> CostModel:
    """Return the cost model of a graph on a machine.

    `extra_bytes` are touched by a call in addition to the graph's inputs and outputs.
    """
    if isinstance(machine, Target):
        return Model(units, machine.planning, hints, extra_bytes)
    if isinstance(machine, PricedGpu):
        return DeviceModel(units, machine, hints, extra_bytes)
    raise InternalError(f"no cost model for {machine.name}")


# ---- traffic ------------------------------------------------------------------------------------


def traffic(
    plan: Plan, hints: Mapping[str, int], cache_bytes: int = 0
) -> tuple[tuple[int, int], ...]:
    """Return the bytes moved by each cluster, and by its operators one by one.

    `hints` are the sizes of a call, `cache_bytes` is the size of the last-level cache. An operator
    that several clusters compute counts, by itself, in the first of them, so that the sums compare
    two full programs.
    """
    units = Units(plan.graph)
    values = ValueSizes(units, Hints(hints))
    bytes_by_cluster: list[tuple[int, int]] = []
    counted = 0
    for cluster in plan.clusters:
        members = sum(1 << units.number[n] for n in cluster.nodes if units.is_unit(n))
        unfused = sum(map(values.unfused_bytes, bits(members & ~counted)))
        moved = (
            values.moved_bytes(region_of(units, cluster))
            if cluster.body is None
            else sum(n for side in chunked_traffic(cluster, hints, cache_bytes) for n in side)
        )
        bytes_by_cluster.append((moved, unfused))
        counted |= members
    return tuple(bytes_by_cluster)


def chunked_traffic(
    cluster: Cluster, hints: Mapping[str, int], cache_bytes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of each operand and result that a cluster's chunks move.

    `cache_bytes` is the size of the last-level cache.
    """
    assert cluster.body is not None
    chunks, defaults = cluster.body.chunks, Hints(hints)
    is_cached = _chunk_bytes(cluster.body, defaults) <= cache_bytes
    times = 1 if is_cached else chunks.lengths(defaults).total()
    read, written = [0] * len(cluster.inputs), [0] * len(cluster.outputs)
    for index in range(len(read)):
        is_shared = any(c.axis == WHOLE for c in chunks.reads if c.place == index)
        nbytes = at_hints(cluster.inputs[index].type.nbytes, defaults)
        read[index] = nbytes * (times if is_shared else 1)
    for c in chunks.makes:
        nbytes = at_hints(cluster.outputs[c.place].type.nbytes, defaults)
        written[c.place] = nbytes * (2 * times if c.axis == WHOLE and not is_cached else 1)
    return tuple(read), tuple(written)


def _chunk_bytes(body: Body, hints: Hints) -> int:
    """Return the bytes of everything that a chunk reads, writes or keeps between its kernels."""
    sizes = Hints(body.block_sizes(hints))
    graph = body.plan.graph
    arrays = {
        *graph.inputs,
        *(n for n, c in zip(graph.outputs, body.chunks.makes) if not c.combine),
    }
    kept = [add(s.offset, s.nbytes) for s in body.plan.slots if s.offset is not None]
    return sum(at_hints(n.type.nbytes, sizes) for n in arrays) + max(
        (at_hints(end, sizes) for end in kept), default=0
    )


# ---- peak memory --------------------------------------------------------------------------------


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
