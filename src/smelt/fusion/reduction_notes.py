"""Describe how the reductions over a streamed axis are carried, for decisions."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.fusion.cost_model import CostModel
from smelt.fusion.derived_stream import derive_stream
from smelt.fusion.region import Region
from smelt.python.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """The treatment of a reduction that reads another one over the same axis."""

    reduction: int
    reads: int
    reason: str
    how: str


_HOW = {
    "hoist": "what is read is applied once, at the end",
    "static": "taken from a fixed element, and shifted at the end",
    "dynamic": "what was summed is rescaled at every change",
    "monotone": "the function is applied to the last value alone",
}


def steps(model: CostModel, region: Region, a: int) -> Iterator[Step]:
    """Iterate over the dependencies between reductions of a streamed axis."""
    stream = derive_stream(model.units, region, a)
    collected, cascade = stream.collected, stream.cascade
    for reduction, treatment in cascade.treatments.items():
        for read in treatment.reads:
            is_recomputed = treatment.action == "recompute"
            reason = "visited-again" if is_recomputed else "carried"
            explanation = treatment.blocker if is_recomputed else _HOW[treatment.treatment_of(read)]
            if reduction in collected.units and read in collected.units:
                yield Step(collected.units[reduction], collected.units[read], reason, explanation)
