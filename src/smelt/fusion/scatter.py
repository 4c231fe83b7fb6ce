"""What kernels cost that write at places which depend on data (`smelt.lower.scatter`).

Updates are visited one by one: what is computed for them runs along their rows, in vectors where
these are long, and for each part of the rows all places are looked at.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from smelt.blocks import JOINED_PARTS, JOINED_WIDTH
from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region

if TYPE_CHECKING:
    from smelt.fusion.cost import Model

VISIT_NS = 0.8
"""Nanoseconds of looking at a place, and as many of starting with an update that is taken up
(measured: 0.9 for an update of one element, whose sum waits for the one before)."""


def joined_work(model: Model, region: Region) -> tuple[float, int, float]:
    """Nanoseconds of arithmetic on one core, blocks of the grid, and bytes of the result that
    updates meet in no order."""
    units, sizes = model.units, [model.extents[e] for e in region.axes]
    u = region.stored.bit_length() - 1
    place, found = region.places[u][0], units.unit(u).trace
    ended = region.ended.get(u, 0)  # a single update ends no axis
    first = units.unit(u).rank
    own = [region.ends[u][k - first] if k >= 0 else -1 for k in found.beside]
    """Axes of the updates that the result has too."""
    places = [*own, *(t for t in place[found.joins :] if isinstance(t, int))]
    front = next((k for k, a in enumerate(own) if a < 0), len(own))
    rest = [a for a in places[front:] if a >= 0]
    width = prod([sizes[a] for a in rest])
    vector = 1 << rest[-1] if rest else 0
    lanes = model.lanes
    row = sizes[rest[-1]] if rest else 1
    visited = ended & ~sum(1 << a for a in {*rest})
    inside = ended | sum(1 << a for a in {*rest})

    def steps(mask: int) -> float:
        """Elements of what vectors compute for something along some axes."""
        count = prod([sizes[a] for a in bits(mask)])
        if not mask & ended:
            return float(count)
        if not mask & vector:
            return float(count * lanes)
        return count / row * (-(-row // lanes) * lanes)

    work = sum(
        model.step_ns[v] * steps(m) for v, masks in region.masks.items() if v != u for m in masks
    )
    work += model.step_ns[u] * steps(inside)
    parts = 1 if front else max(min(width // JOINED_WIDTH, JOINED_PARTS), 1)
    updates = prod([sizes[a] for a in bits(visited)])
    work += updates * VISIT_NS * (parts + 1)
    tasks = parts * prod([sizes[a] for a in own[:front]])
    return work, tasks, updates * width * float(model.itemsize[u])
