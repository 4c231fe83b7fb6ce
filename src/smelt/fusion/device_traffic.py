"""Predict the bytes that a kernel moves on a GPU: main memory, the shared cache, later passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from smelt.fusion.bitsets import bits
from smelt.fusion.schedule_model import ScheduleModel
from smelt.types.dtype import f32

if TYPE_CHECKING:
    from smelt.fusion.device_cost import DeviceModel


def traffic(model: DeviceModel, touched: Mapping[int, float]) -> tuple[float, float, float]:
    """Return bytes in main memory, bytes in the shared cache, and their time.

    `touched` has the bytes of each value, which come from where it rests.
    """
    memory = sum(n for v, n in touched.items() if model.resting_level[v] == "dram")
    cache = sum(n for v, n in touched.items() if model.resting_level[v] != "dram")
    return memory, cache, memory / model.gpu.memory_gbs + cache / model.gpu.cache_gbs


def reads(
    model: DeviceModel, schedule: ScheduleModel
) -> tuple[dict[int, float], float, float, float]:
    """Return the bytes of each value that is read, and of further reads.

    Those are tiles that several programs of a product read, the row of one program, and later
    passes over rows.
    """
    touched: dict[int, float] = {}
    tiles = row_bytes = swept = 0.0
    region = schedule.region
    for v, positions in region.loads.items():
        masks, itemsize = region.load_masks[v], model.itemsize[v]
        distinct = min(model.elements[v], sum(map(schedule.volume, masks)))
        touched[v] = float(distinct * itemsize)
        row_bytes += sum([schedule.row(m) for m in masks]) * itemsize
        passes = schedule.reads_by_nest.get(v)
        for k, (position, mask) in enumerate(zip(positions, masks, strict=True)):
            loaded = schedule.evaluations(mask)
            if any(not isinstance(t, int) for t in position):
                loaded = min(loaded, 2.0 * model.elements[v])  # windows share their lines
            times = 1 if passes is None else passes[k]
            tiles += max(loaded - distinct, 0.0) * itemsize * (schedule.has_contractions)
            swept += max(times - (k == 0), 0) * loaded * itemsize
    return touched, tiles, row_bytes, swept


def kept_bytes(model: DeviceModel, schedule: ScheduleModel) -> int:
    """Return the bytes of values that a program keeps between passes over its rows."""
    region = schedule.region
    return sum(
        schedule.row(region.masks[u][0]) * max(model.itemsize[u], f32.itemsize)
        for u in bits(schedule.kept)
    )
