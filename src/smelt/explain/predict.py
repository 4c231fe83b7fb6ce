"""The planner's model asked again, at the sizes of a report.

A plan was made for the sizes of the first call; the report's may be others, so the predictions are
computed anew, term by term.  They are of a call that is repeated, whose code is in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.fusion.cost import INLINE_LAUNCH_NS, INLINE_START_NS, Cost, Model
from smelt.fusion.plan import Cluster, Plan
from smelt.fusion.region import region_of
from smelt.fusion.sets import Hints
from smelt.fusion.streams import streamed_along
from smelt.fusion.units import Units
from smelt.target import Target

__all__ = ["predict"]


def predict(plan: Plan, target: Target, sizes: Mapping[str, int]) -> list[Cost]:
    """The predicted cost of every cluster, in order."""
    units = Units(plan.graph)
    model = Model(units, target, Hints(sizes))
    return [_cost(model, cluster) for cluster in plan.clusters]


def _cost(model: Model, cluster: Cluster) -> Cost:
    region = region_of(model.units, cluster)
    if cluster.stream is not None:
        node, place = cluster.stream
        axis = region.ends[model.units.number[node]][place]
        found = streamed_along(model, region, axis)
        if found is not None:
            return _repeated(found)
    return _repeated(model.cost(region))


def _repeated(cost: Cost) -> Cost:
    """The cost with what starting a kernel takes in repeated calls, instead of what plans are
    charged for it."""
    starts, rest = divmod(cost.launch, INLINE_LAUNCH_NS)
    if rest or starts not in (1, 2):
        return cost  # it starts on other threads, or in a library
    launch = starts * INLINE_START_NS
    return replace(cost, total=cost.total - cost.launch + launch, launch=launch)
