"""The planner's model asked again, at the sizes of a report.

A plan was made for the sizes of the first call; the report's may be others, so the predictions are
computed anew, term by term.  They are of a call that is repeated, whose code is in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.fusion.cost import INLINE_LAUNCH_NS, INLINE_START_NS, Cost
from smelt.fusion.plan import Plan
from smelt.fusion.predict import costs
from smelt.target import Target

__all__ = ["predict"]


def predict(plan: Plan, target: Target, sizes: Mapping[str, int]) -> list[Cost]:
    """The predicted cost of every cluster, in order; of one in rounds, that of all of them."""
    return [_repeated(c) for c in costs(plan, target, sizes)]


def _repeated(cost: Cost) -> Cost:
    """The cost with what starting a kernel takes in repeated calls, instead of what plans are
    charged for it."""
    starts, rest = divmod(cost.launch, INLINE_LAUNCH_NS)
    if rest or starts not in (1, 2):
        return cost  # it starts on other threads, or in a library
    launch = starts * INLINE_START_NS
    return replace(cost, total=cost.total - cost.launch + launch, launch=launch)
