"""Predict the parts of rows and products that a GPU's programs share, and their merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backend.gpu import KernelWork, scan_parts
from smelt.fusion.bitsets import bits
from smelt.fusion.device_traffic import traffic
from smelt.fusion.schedule_model import ScheduleModel, members_before
from smelt.types.expr import evaluate

if TYPE_CHECKING:
    from smelt.fusion.device_cost import DeviceModel

PARTIAL_BYTES = 8
"""Bytes of a partial result, which is kept in double precision."""


def merge_work(model: DeviceModel, schedule: ScheduleModel) -> tuple[KernelWork, float]:
    """Return what the merge of a split reduction computes without the split axis.

    Arrays beside it are read, reduced and stored by the merge. One that reduces has a program
    for each position of the grid; others have the shape of their results, each program of which
    merges the states that it reads: last the bytes of those that are read again.
    """
    region, split = schedule.region, schedule.split
    parts = members_before(model.units, region, split)
    arithmetic, touched, again, reduces = 0.0, dict[int, float](), 0, False
    merged = [u for u, ended in region.reduced_axes.items() if ended & split]
    states = max((schedule.volume(region.masks[u][0]) for u in merged), default=0)
    programs = max(schedule.tasks() // schedule.parts, 1)
    for u, masks in region.masks.items():
        axes = masks[0] | region.reduced_axes.get(u, 0)
        if parts >> u & 1 or axes & split:
            continue
        arithmetic += model.step_ns[u] * schedule.evaluations(axes)
        reduces |= u in region.reduced_axes
        if region.stored >> u & 1:
            touched[u] = float(model.nbytes[u])
            again += max(schedule.volume(masks[0]) - states, 0)
            programs = max(programs, model.tiling.map_tasks(model.elements[u]))
        for v in bits(model.units.operands[u] & ~region.members):
            volumes = [schedule.volume(m) for m in region.load_masks[v] if not m & split]
            touched[v] = float(min(model.elements[v], sum(volumes)) * model.itemsize[v])
    memory, cache, _ = traffic(model, touched)
    if reduces:
        programs = max(schedule.tasks() // schedule.parts, 1)
    work = KernelWork(memory, cache, arithmetic, programs)
    return work, float(again * schedule.parts * PARTIAL_BYTES)


def scanned_parts(model: DeviceModel, schedule: ScheduleModel) -> int:
    """Return the parts of a scanned axis along which all results are stored."""
    region, scanned = schedule.region, schedule.region.scanned
    stored = (region.masks[u][0] for u in bits(region.stored))
    if not scanned or region.all_reduced & scanned or not all(m & scanned for m in stored):
        return 1
    return scan_parts(schedule.tasks(), schedule.volume(scanned), model.gpu.processors)


def split_k_parts(model: DeviceModel, schedule: ScheduleModel) -> int:
    """Return the parts of the reduction axis of a lone product, as lowering splits it."""
    region = schedule.region
    if not schedule.has_contractions or len(region.reduced_axes) != 1:
        return 1
    ((_, reduced),) = region.reduced_axes.items()
    longest = max((model.extents[region.axes[a]] for a in bits(reduced)), default=1)
    if schedule.tasks() >= model.tiling.min_product_tasks or longest < model.tiling.min_split_k:
        return 1
    return int(evaluate(model.tiling.split_k_parts(longest, schedule.tasks()), {}))


def partial_bytes(model: DeviceModel, schedule: ScheduleModel, products: int) -> float:
    """Return the bytes of partial results: of a split reduction, or of `products` of one."""
    region = schedule.region
    partial = products * sum(model.elements[u] for u in region.reduced_axes) * (products > 1)
    for u, ended in region.reduced_axes.items():
        if ended & schedule.split:
            partial += schedule.parts * schedule.volume(region.masks[u][0])
    return float(partial * PARTIAL_BYTES)
