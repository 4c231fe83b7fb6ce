"""What the model says of a plan that is made: the cost of every cluster, at any sizes.

The search keeps the costs of what it joins; here they are asked for again, of a plan alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from smelt.fusion.bitsets import Hints
from smelt.fusion.cost import Cost, Model
from smelt.fusion.plan import Body, Cluster, Plan
from smelt.fusion.region import region_of
from smelt.fusion.streams import streamed_along
from smelt.fusion.units import Units
from smelt.target import Target

__all__ = ["costs", "in_turns"]


def costs(plan: Plan, target: Target, sizes: Mapping[str, int]) -> list[Cost]:
    """The predicted cost of every cluster, in order; of one in rounds, that of all its rounds."""
    model = Model(Units(plan.graph), target, Hints(sizes))
    return [
        _cost(model, c) if c.body is None else in_turns(c.body, target, sizes)
        for c in plan.clusters
    ]


def in_turns(body: Body, target: Target, sizes: Mapping[str, int]) -> Cost:
    """The predicted cost of all rounds of a body."""
    lengths = Counter(high - low for low, high in body.rounds.each(Hints(sizes)))
    found = Cost()
    for rows, times in lengths.items():  # the last round may be shorter
        for c in costs(body.plan, target, {**sizes, body.rounds.rows: rows}):
            found = replace(found, **{t: getattr(found, t) + times * getattr(c, t) for t in _SUMS})
    return found


_SUMS = (
    "total",
    "burden",
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


def _cost(model: Model, cluster: Cluster) -> Cost:
    region = region_of(model.units, cluster)
    if cluster.stream is not None:
        node, place = cluster.stream
        axis = region.ends[model.units.number[node]][place]
        found = streamed_along(model, region, axis)
        if found is not None:
            return found
    return model.cost(region)
