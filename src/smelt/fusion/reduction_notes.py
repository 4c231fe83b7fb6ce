"""What becomes of the folds over a streamed axis, in words for decisions."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.dataclass import dataclass
from smelt.fusion.cost import Model
from smelt.fusion.derived_stream import derived
from smelt.fusion.region import Region


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one fold that reads another one over the same axis."""

    fold: int
    reads: int
    reason: str
    how: str


_HOW = {
    "hoist": "what is read is applied once, at the end",
    "static": "taken from a fixed element, and shifted at the end",
    "dynamic": "what was summed is rescaled at every change",
    "monotone": "the function is applied to the last value alone",
}


def steps(model: Model, region: Region, a: int) -> Iterator[Step]:
    """Each dependency between the folds over a streamed axis, and what becomes of it."""
    made = derived(model.units, region, a)
    found, cascade = made.found, made.cascade
    for fold, how in cascade.how.items():
        for read in how.reads:
            again = how.action == "recompute"
            reason = "visited-again" if again else "carried"
            told = how.blocker if again else _HOW[how.of(read)]
            if fold in found.units and read in found.units:
                yield Step(found.units[fold], found.units[read], reason, told)
