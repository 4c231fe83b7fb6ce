"""The planner's model asked again, at the sizes of a report.

A plan was made for the sizes of the first call; the report's may be others, so the predictions are
computed anew, term by term.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.cost import Cost, Model
from smelt.fusion.plan import Cluster, Plan
from smelt.fusion.region import look
from smelt.fusion.sets import Hints
from smelt.fusion.units import Units
from smelt.target import Target

__all__ = ["predict"]


def predict(plan: Plan, target: Target, sizes: Mapping[str, int]) -> list[Cost]:
    """The predicted cost of every cluster, in order."""
    units = Units(plan.graph)
    model = Model(units, target, Hints(sizes))
    return [_cost(model, units, cluster) for cluster in plan.clusters]


def _cost(model: Model, units: Units, cluster: Cluster) -> Cost:
    first = len(units.inputs)
    members = stored = 0
    for node in cluster.nodes:
        number = units.number.get(node, -1)
        if number >= first:
            members |= 1 << number
    for node in cluster.outputs:
        stored |= 1 << units.number[node]
    return model.cost(look(units, members, stored))
