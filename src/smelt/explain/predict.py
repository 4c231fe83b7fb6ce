"""Predicted costs of a plan at the sizes of a report.

A plan was made for the sizes of the first call; the report's may differ, so the predictions are
computed again, term by term. They are for repeated calls, whose code is in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.backend import Machine
from smelt.backend.machine import Level
from smelt.fusion.cost import INLINE_LAUNCH_NS, INLINE_START_NS, Cost
from smelt.fusion.plan import Plan
from smelt.fusion.predict import predictions
from smelt.graph.ir import Node

__all__ = ["predict"]


def predict(
    plan: Plan, target: Machine, sizes: Mapping[str, int]
) -> tuple[list[Cost], Mapping[Node, Level]]:
    """Return the predicted cost of every cluster, and where the plan's values rest.

    The cost of a chunked cluster includes all chunks.
    """
    costs, levels = predictions(plan, target, sizes)
    return [_repeated(c) for c in costs], levels


def _repeated(cost: Cost) -> Cost:
    """Return the cost with the launch time of repeated calls instead of the planner's charge."""
    starts, rest = divmod(cost.launch, INLINE_LAUNCH_NS)
    if rest or starts not in (1, 2):
        return cost  # it is launched on other threads, or is a library call
    launch = starts * INLINE_START_NS
    return replace(cost, total=cost.total - cost.launch + launch, launch=launch)
