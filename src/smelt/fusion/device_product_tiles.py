"""Predict the tiles of contractions on a GPU: their sides, their number, their share of the rate.

A program has a tile of the result, which one that reduces the result has to have as a whole.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from smelt.backend.gpu import MIN_MATRIX_SIDE, TILE, tile_share
from smelt.fusion.bitsets import bits
from smelt.fusion.region import Region
from smelt.fusion.schedule_model import ScheduleModel
from smelt.fusion.units import Unit
from smelt.types.expr import Expr, axes_of

if TYPE_CHECKING:
    from smelt.fusion.device_cost import DeviceModel


def tile_sides(model: DeviceModel, unit: Unit) -> tuple[int, int]:
    """Return the rows and columns of a contraction's result that a tile may have.

    A block of windows has positions of one axis, and is padded to a power of two.
    """
    if len(unit.edges) != 2:
        return 1, 1
    left, right = (_axes_read(e.terms) for e in unit.edges)
    sides: list[int] = []
    for e, side in zip(unit.edges, (left - right, right - left), strict=True):
        lengths = [model.extents[unit.axes[k]] for k in side if k < unit.rank]
        has_windows = any(isinstance(t, Expr) for t in e.terms)
        padded = max((1 << (n - 1).bit_length() for n in lengths), default=1)
        sides.append(padded if has_windows else prod(lengths))
    return sides[0], sides[1]


def _consumed_lengths(model: DeviceModel, region: Region) -> list[int]:
    """Return the lengths of axes of products' results along which the same kernel reduces."""
    products = [u for u in region.reduced_axes if model.units.unit(u).trace.dots]
    first = min((region.levels[u] for u in products), default=0)
    return [
        min(model.extents[region.axes[a]] for a in bits(axes))
        for u, axes in region.reduced_axes.items()
        if products and u not in products and region.levels[u] > first and axes
    ]


def tile_factor(model: DeviceModel, region: Region) -> float:
    """Return the factor on products whose tiles are smaller than their results allow.

    A tile has an axis along which the same kernel reduces as a whole, or a block of a long one. It
    is not a matrix if such an axis has few positions, or if another product of the kernel has none:
    a program multiplies and sums the operands of all, or of none.
    """
    consumed = _consumed_lengths(model, region)
    products = [u for u in region.reduced_axes if model.units.unit(u).trace.dots]
    sides = [sorted(tile_sides(model, model.units.unit(u))) for u in products]
    most = TILE[0] * TILE[1]
    if (consumed and min(consumed) < MIN_MATRIX_SIDE) or any(short == 1 for short, _ in sides):
        most = MIN_MATRIX_SIDE**2
    elif consumed and max(consumed) > TILE[1]:
        most = prod(model.tiling.produced_block)
    tiles = [min(short, TILE[0]) * min(long, TILE[1]) for short, long in sides]
    return max((tile_share(n) / tile_share(min(n, most)) for n in tiles), default=1.0)


def most_programs(model: DeviceModel, schedule: ScheduleModel) -> int:
    """Return the programs of products whose tiles are the smallest for matrix units."""
    region = schedule.region
    if _consumed_lengths(model, region):
        return schedule.volume(region.grid) // MIN_MATRIX_SIDE
    most = 1
    for u in region.reduced_axes:
        if model.units.unit(u).trace.dots:
            sides = tile_sides(model, model.units.unit(u))
            tiles = prod(-(-n // MIN_MATRIX_SIDE) for n in sides)
            most = max(most, model.elements[u] // max(prod(sides), 1) * tiles)
    return min(most, schedule.volume(region.grid))


def _axes_read(terms: tuple[int | Expr, ...]) -> set[int]:
    named = {int(x[1:]) for t in terms if isinstance(t, Expr) for x in axes_of(t)}
    return named | {t for t in terms if isinstance(t, int) and t >= 0}
