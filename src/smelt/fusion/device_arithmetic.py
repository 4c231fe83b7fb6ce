"""Predict the arithmetic of operators on a GPU: the work of each unit, at that unit's rate.

Vector lanes, special functions and matrix units add up; nanoseconds are those of the whole device.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from smelt.backend.gpu import FULL_TILE, INSTRUCTIONS
from smelt.fusion.cascade.term import Term
from smelt.fusion.cost_model import Loads
from smelt.fusion.device_product_tiles import tile_sides
from smelt.fusion.trace import STEP_COST
from smelt.fusion.units import Unit
from smelt.ops.combine import COMBINES
from smelt.ops.cost import SPECIAL_COST
from smelt.types.dtype import DType, f32

if TYPE_CHECKING:
    from smelt.fusion.device_cost import DeviceModel

SCAN_INSTRUCTIONS = 10.0
"""Instructions per element of a scan: a tree of shuffles within a program."""


def step_ns(model: DeviceModel, unit: Unit) -> float:
    """Return the nanoseconds of one element or reduction step, with every processor busy."""
    traced = unit.trace
    dtype = _widest(model, unit)
    cost = traced.cost - traced.special_cost - STEP_COST * traced.dots
    if unit.scan_axis >= 0:
        cost += SCAN_INSTRUCTIONS / INSTRUCTIONS
    total_ns = model.gpu.element_ns(INSTRUCTIONS * max(cost, 0.0), dtype)
    total_ns += _special_ns(model, traced.specials, traced.special_cost, dtype)
    if not traced.dots:
        return total_ns
    sides = tile_sides(model, unit)
    # what is computed of an operand serves a whole row or column of the tile
    return total_ns / min(*sides, FULL_TILE) + _product_ns(model, unit, sides)


def term_ns(
    model: DeviceModel,
    t: Term,
    cost: float,
    times: float,
    sizes: Mapping[str, int],
    loads: Loads,
) -> float:
    """Return the time of computing a term of a stream `times` times; see `CostModel.term_ns`."""
    dtype = max((a.dtype for a in t.args or (t,)), key=lambda d: d.itemsize)
    if len(t.args) == 2 and _is_product(t):
        left, right = t.args
        rows, columns = (
            prod([sizes[n] for n in side if n in sizes])
            for side in (left.axes - right.axes, right.axes - left.axes)
        )
        types = _term_type(model, left, loads), _term_type(model, right, loads)
        return times * model.gpu.product_ns(types[0], types[1], rows, columns)
    if t.kind == "apply" and cost >= SPECIAL_COST:
        return times * _special_ns(model, 1, cost, dtype)
    return times * model.gpu.element_ns(INSTRUCTIONS * cost, dtype)


def _widest(model: DeviceModel, unit: Unit) -> DType:
    types = [model.units.values[e.producer].type.dtype for e in unit.edges]
    return max((unit.node.type.dtype, *types), key=lambda t: (t.itemsize, t.is_float))


def _special_ns(model: DeviceModel, count: int, cost: float, dtype: DType) -> float:
    """Return the time of special functions; in double precision they are polynomials."""
    if dtype.is_float and dtype.itemsize <= f32.itemsize:
        return count * model.gpu.special_ns
    return model.gpu.element_ns(INSTRUCTIONS * cost, dtype)


def _product_ns(model: DeviceModel, unit: Unit, sides: tuple[int, int]) -> float:
    """Return the time of one multiply-add of a contraction, by types and tile."""
    types = [_loaded_type(model, e.producer) for e in unit.edges]
    if len(types) != 2:
        return model.gpu.element_ns(1.0, _widest(model, unit))
    return model.gpu.product_ns(types[0], types[1], *sides)


def _loaded_type(model: DeviceModel, v: int) -> DType:
    """Return the type of a value before conversions, which a tile holds in memory's type."""
    while v >= len(model.units.inputs) and model.units.unit(v).trace.is_conversion:
        before = model.units.unit(v).edges[0].producer
        if model.itemsize[before] > model.itemsize[v]:
            break
        v = before
    return model.units.values[v].type.dtype


def _term_type(model: DeviceModel, t: Term, loads: Loads) -> DType:
    """Return the type of a term before conversions."""
    while t.kind == "cast" and t.args[0].dtype.itemsize <= t.dtype.itemsize:
        (t,) = t.args
    return model.units.values[loads[t][0]].type.dtype if t in loads else t.dtype


def _is_product(t: Term) -> bool:
    """Return whether a term is a contraction of two operands."""
    if t.kind == "opaque" and isinstance(t.value, tuple) and t.value[0] == "reduce":
        return t.value[1] not in COMBINES
    return t.kind == "dot"
