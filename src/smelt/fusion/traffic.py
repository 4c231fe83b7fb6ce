"""Bytes that a plan moves through main memory, exactly, and those without fusion.

Transfers are arrays read plus arrays written, by each kernel once: what a kernel reads again comes
from a cache.  Of an array that is read through a slice only the part that is read counts.  Views
are free; a view that is a result is a copy.

Rounds read the rows that they cut once, and everything else in every round; results that they add
to are read and written in every round.  What they hold in between stays in a cache: so
many rows are taken at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.blocks import WHOLE
from smelt.fusion.bitsets import Hints, at_hints, bits
from smelt.fusion.plan import Cluster, Plan
from smelt.fusion.region import Region, look, region_of
from smelt.fusion.units import Units


def traffic(plan: Plan, hints: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """For each cluster, bytes moved by it and by its operators one by one.

    `hints` are the sizes of a call.  Where an operator is computed by several clusters, the
    operator alone counts in the first of them, so that the sums compare two whole programs.
    """
    counter = _Counter(Units(plan.graph), Hints(hints))
    found: list[tuple[int, int]] = []
    seen = 0
    for cluster in plan.clusters:
        units = counter.units
        members = sum(1 << units.number[n] for n in cluster.nodes if units.is_unit(n))
        apart = 0
        for u in bits(members & ~seen):
            apart += counter.moved(look(units, 1 << u, 1 << u))
        moved = (
            counter.moved(region_of(units, cluster))
            if cluster.body is None
            else sum(n for side in moved_in_rounds(cluster, hints) for n in side)
        )
        found.append((moved, apart))
        seen |= members
    return tuple(found)


def moved_in_rounds(
    cluster: Cluster, hints: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of each operand and each result that the rounds of a cluster move."""
    assert cluster.body is not None
    rounds, known = cluster.body.rounds, Hints(hints)
    times = sum(1 for _ in rounds.each(known))
    read, written = [0] * len(cluster.inputs), [0] * len(cluster.outputs)
    for place in range(len(read)):
        whole = any(c.axis == WHOLE for c in rounds.reads if c.place == place)
        nbytes = at_hints(cluster.inputs[place].type.nbytes, known)
        read[place] = nbytes * (times if whole else 1)
    for c in rounds.makes:
        nbytes = at_hints(cluster.outputs[c.place].type.nbytes, known)
        written[c.place] = nbytes * (2 * times if c.axis == WHOLE else 1)
    return tuple(read), tuple(written)


class _Counter:
    def __init__(self, units: Units, hints: Hints) -> None:
        self.units = units
        self.elements = [at_hints(node.type.elements, hints) for node in units.values]
        self.extents = [at_hints(e, hints) for e in units.extents]

    def nbytes(self, v: int, elements: int) -> int:
        return elements * self.units.values[v].type.dtype.itemsize

    def moved(self, region: Region) -> int:
        """Bytes that one kernel (or call) reads and writes."""
        found = sum(self.nbytes(u, self.elements[u]) for u in bits(region.stored))
        if region.members & self.units.calls:
            unit = self.units.unit(region.members.bit_length() - 1)
            return found + sum(
                self.nbytes(e.producer, self.elements[e.producer]) for e in unit.edges
            )
        for v, masks in region.load_masks.items():
            walked = sum(self._positions(region.axes, mask) for mask in masks)
            found += self.nbytes(v, min(self.elements[v], walked))
        return found

    def _positions(self, axes: list[int], mask: int) -> int:
        found = 1
        for a in bits(mask):
            found *= self.extents[axes[a]]
        return found
