"""Bytes that a plan moves through main memory, exactly, and those without fusion.

Transfers are arrays read plus arrays written, by each kernel once: what a kernel reads again comes
from a cache.  Of an array that is read through a slice only the part that is read counts.  Views
are free; a view that is a result is a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.fusion.plan import Plan
from smelt.fusion.region import look
from smelt.fusion.sets import Hints, at_hints, bits
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
        numbers = counter.units.number
        members = sum(1 << numbers[node] for node in cluster.nodes if node in numbers)
        stored = sum(1 << numbers[node] for node in cluster.outputs)
        apart = sum(counter.moved(1 << u, 1 << u) for u in bits(members & ~seen))
        found.append((counter.moved(members, stored), apart))
        seen |= members
    return tuple(found)


class _Counter:
    def __init__(self, units: Units, hints: Hints) -> None:
        self.units = units
        self.elements = [at_hints(node.type.elements, hints) for node in units.values]
        self.extents = [at_hints(e, hints) for e in units.extents]

    def nbytes(self, v: int, elements: int) -> int:
        return elements * self.units.values[v].type.dtype.itemsize

    def moved(self, members: int, stored: int) -> int:
        """Bytes that a set of units as one kernel reads and writes."""
        written = sum(self.nbytes(u, self.elements[u]) for u in bits(stored))
        if members & self.units.calls:
            unit = self.units.unit(members.bit_length() - 1)
            read = (self.nbytes(e.producer, self.elements[e.producer]) for e in unit.edges)
            return written + sum(read)
        region = look(self.units, members, stored)
        for v, masks in region.load_masks.items():
            walked = sum(self._positions(region.axes, mask) for mask in masks)
            written += self.nbytes(v, min(self.elements[v], walked))
        return written

    def _positions(self, axes: list[int], mask: int) -> int:
        found = 1
        for a in bits(mask):
            found *= self.extents[axes[a]]
        return found
