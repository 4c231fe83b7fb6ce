"""Predict the cost of every cluster of a finished plan, at any sizes.

The search keeps the costs of what it joins; this recomputes them from a plan alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from smelt.backend.machine import Level, Machine
from smelt.errors import InternalError
from smelt.fusion.bitsets import Hints
from smelt.fusion.cost import Model
from smelt.fusion.cost_model import Cost, CostModel
from smelt.fusion.device_cost import DeviceModel, PricedGpu
from smelt.fusion.plan import Body, Cluster, Plan
from smelt.fusion.region import region_of
from smelt.fusion.streams import stream_cost
from smelt.fusion.units import Units
from smelt.graph.ir import Node
from smelt.machine.target import Target


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
    chunk_lengths = Counter(high - low for low, high in body.chunks.ranges(Hints(sizes)))
    total = Cost()
    for rows, times in chunk_lengths.items():  # the last chunk may be shorter
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
    if cluster.stream is not None:
        node, index = cluster.stream
        axis = region.reduced_axis_order[model.units.number[node]][index]
        prediction = stream_cost(model, region, axis)
        if prediction is not None:
            return prediction
    return model.cost(region)


def cost_model(units: Units, machine: Machine, hints: Hints, extra_bytes: int = 0) -> CostModel:
    """Return the cost model of a graph on a machine.

    `extra_bytes` are touched by a call in addition to the graph's inputs and outputs.
    """
    if isinstance(machine, Target):
        return Model(units, machine.planning, hints, extra_bytes)
    if isinstance(machine, PricedGpu):
        return DeviceModel(units, machine, hints, extra_bytes)
    raise InternalError(f"no cost model for {machine.name}")
