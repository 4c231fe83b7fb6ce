"""Choose the cost model of a machine."""

from __future__ import annotations

from smelt.backend.gpu import Gpu
from smelt.backend.machine import Machine
from smelt.errors import InternalError
from smelt.fusion.bitsets import Hints
from smelt.fusion.cost import Model
from smelt.fusion.cost_model import CostModel
from smelt.fusion.device_cost import DeviceModel
from smelt.fusion.units import Units
from smelt.machine.target import Target

__all__ = ["cost_model"]


def cost_model(units: Units, machine: Machine, hints: Hints, extra_bytes: int = 0) -> CostModel:
    """Return the cost model of a graph on a machine.

    `extra_bytes` are touched by a call in addition to the graph's inputs and outputs.
    """
    if isinstance(machine, Target):
        return Model(units, machine.planning, hints, extra_bytes)
    if isinstance(machine, Gpu):
        return DeviceModel(units, machine, hints, extra_bytes)
    raise InternalError(f"no cost model for {machine.name}")
