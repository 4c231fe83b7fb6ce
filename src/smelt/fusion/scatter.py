"""Predict the cost of scatter kernels, which write at data-dependent positions.

Updates are applied one by one (`smelt.lower.scatter`). What is computed for them is vectorised
along their rows where these are long. The rows are split into parts; for each part all target
positions are examined.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.types.expr import evaluate

if TYPE_CHECKING:
    from smelt.fusion.cost_model import CostModel

VISIT_NS = 0.8
"""Nanoseconds to examine a target position, and as many to start an update that applies."""


def update_axes(model: CostModel, region: Region) -> tuple[list[int], list[int]]:
    """Return axes that updates share with the result, and those of changed rows.

    Among the shared axes, -1 stands for a computed position.
    """
    u = region.stored.bit_length() - 1
    position, traced = region.positions[u][0], model.units.unit(u).trace
    first = model.units.unit(u).rank
    shared_axes = [
        region.reduced_axis_order[u][k - first] if k >= 0 else -1 for k in traced.position_axes
    ]
    result_axes = [
        *shared_axes,
        *(t for t in position[traced.scatter_dims :] if isinstance(t, int)),
    ]
    leading = next((k for k, a in enumerate(shared_axes) if a < 0), len(shared_axes))
    return shared_axes, [a for a in result_axes[leading:] if a >= 0]


def scatter_tasks(
    model: CostModel, region: Region, shared_axes: Sequence[int], width: int
) -> tuple[int, int]:
    """Return the batches of a scatter kernel, and the parts of the rows in each."""
    leading = next((k for k, a in enumerate(shared_axes) if a < 0), len(shared_axes))
    batches = prod([model.extents[region.axes[a]] for a in shared_axes[:leading]])
    rows = model.elements[region.stored.bit_length() - 1] // max(width * batches, 1)
    parts = model.tiling.scatter_parts(rows, width, in_batches=leading > 0)
    return batches, int(evaluate(parts, {}))


def scatter_work(model: CostModel, region: Region) -> tuple[float, int, float]:
    """Return nanoseconds of arithmetic on one core, tasks, and bytes updated in random order."""
    sizes = [model.extents[e] for e in region.axes]
    u = region.stored.bit_length() - 1
    reduced = region.reduced_axes.get(u, 0)  # a single update has no axis
    shared_axes, row_axes = update_axes(model, region)
    width = prod([sizes[a] for a in row_axes])
    vector = 1 << row_axes[-1] if row_axes else 0
    lanes = model.lanes
    row = sizes[row_axes[-1]] if row_axes else 1
    visited = reduced & ~sum(1 << a for a in {*row_axes})
    all_axes = reduced | sum(1 << a for a in {*row_axes})

    def steps(mask: int) -> float:
        """Return the elements that vectors compute for something along some axes."""
        count = prod([sizes[a] for a in bits(mask)])
        if not mask & reduced:
            return float(count)
        if not mask & vector:
            return float(count * lanes)
        return count / row * (-(-row // lanes) * lanes)

    work = sum(
        model.step_ns[v] * steps(m) for v, masks in region.masks.items() if v != u for m in masks
    )
    work += model.step_ns[u] * steps(all_axes)
    batches, parts = scatter_tasks(model, region, shared_axes, width)
    updates = prod([sizes[a] for a in bits(visited)])
    work += updates * VISIT_NS * (parts + 1)
    tasks = parts * batches
    return work, tasks, updates * width * float(model.itemsize[u])
