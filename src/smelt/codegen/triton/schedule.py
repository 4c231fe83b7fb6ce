"""Choose what a program of the grid computes: the lanes of each axis.

    schedule = choose_schedule(kernel, {"r": 4096, "c": 1000})

An axis of the grid is one index per program or a block of lanes; an axis of a stream is visited in
blocks; every other axis is in every program as a whole, padded to a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.triton.contractions import dots_of
from smelt.codegen.triton.refusal import refuse
from smelt.dataclass import dataclass
from smelt.kernel.ir import Block, Each, Kernel, Split, Stream
from smelt.kernel.walk import statements
from smelt.types.expr import evaluate

__all__ = ["ELEMENTS_PER_WARP", "Schedule", "choose_schedule", "power_of_two"]

MAP_LANES = 1024
"""Elements of a program without whole axes: 8 a thread in 4 warps, as Inductor's maps have."""
TILE_LANES = 4096
"""Elements that a program with whole or streamed axes should have at most."""
REGISTER_LANES = 1 << 15
"""Elements of a row from which a program's registers overflow."""
LEAST_DOT = 16
"""Least lanes along each axis of a `tl.dot`."""
DOT_LANES = 64
"""Most lanes of an axis of a kernel with contractions."""
ELEMENTS_PER_WARP = 256


@dataclass(frozen=True, slots=True)
class Schedule:
    """Lanes of axes: `grid` and `streams` have numbers (1: one index), `whole` the least ones."""

    grid: Mapping[str, int]
    streams: Mapping[str, int]
    whole: Mapping[str, int]


def choose_schedule(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> Schedule:
    """Return the schedule of a kernel; with sizes, of programs that fit the registers.

    Raises DeviceKernelError for roles of axes that are not printed, and for rows too long.
    """
    _check_roles(kernel)
    grid = {b.axis: _lanes(b) for b in kernel.grid if isinstance(b, Block)}
    streams = _streams(kernel)
    whole = [a.name for a in kernel.axes if a.name not in grid and a.name not in streams]
    dots = dots_of(kernel.body)
    least = dict.fromkeys(whole, LEAST_DOT if dots else 1)
    extents = {a.name: int(evaluate(a.extent, sizes)) for a in kernel.axes} if sizes else {}
    _check_rows(kernel.name, [extents.get(a, 1) for a in whole])
    if dots:
        return Schedule(_for_dots(grid), _for_dots(streams), least)
    if not whole and not streams and grid:
        last = list(grid)[-1]
        grid[last] = MAP_LANES if grid[last] == 1 else min(grid[last], MAP_LANES)
    limit = TILE_LANES if whole or streams else MAP_LANES
    for axis in whole:
        limit //= power_of_two(extents.get(axis, 1))
    if streams and any(n > 1 for n in grid.values()):
        grid = _within(grid, TILE_LANES // 32)
    grid = _within(grid, max(limit, 1))
    for n in grid.values():
        limit //= n
    return Schedule(grid, {a: min(n, max(limit, 1)) for a, n in streams.items()}, least)


def power_of_two(n: int) -> int:
    """Return the least power of two that is not less than n, at least 1.

    >>> power_of_two(1000), power_of_two(0)
    (1024, 1)
    """
    return 1 << max(n - 1, 0).bit_length()


def _lanes(block: Block) -> int:
    """Return the lanes of a block; an axis without blocks is visited in long ones."""
    return TILE_LANES if block.size is None else power_of_two(block.size)


def _streams(kernel: Kernel) -> dict[str, int]:
    blocks = [b for s in statements(kernel) if isinstance(s, Stream) for b in s.blocks]
    lanes: dict[str, int] = {}
    for b in blocks:
        if min(lanes.setdefault(b.axis, _lanes(b)), _lanes(b)) == 1 != lanes[b.axis]:
            refuse(kernel.name, "an axis that is visited in steps and in blocks")
    return lanes


def _check_roles(kernel: Kernel) -> None:
    for entry in kernel.grid:
        if isinstance(entry, Each):
            refuse(kernel.name, "a launch over families of arrays")
        if isinstance(entry, Split):
            refuse(kernel.name, "an axis split over the grid")
        if isinstance(entry, Block) and entry.size is None:
            refuse(kernel.name, "one block of a whole axis in the grid")


def _check_rows(kernel: str, extents: list[int]) -> None:
    longest = max(extents, default=0)
    if longest > REGISTER_LANES:
        refuse(kernel, f"a loop over a row of {longest} elements")


def _for_dots(lanes: Mapping[str, int]) -> dict[str, int]:
    return {a: n if n == 1 else min(max(n, LEAST_DOT), DOT_LANES) for a, n in lanes.items()}


def _within(lanes: Mapping[str, int], limit: int) -> dict[str, int]:
    """Halve blocks, outer ones first, until their product is at most `limit`."""
    total = 1
    for n in lanes.values():
        total *= n
    result: dict[str, int] = {}
    for axis, n in lanes.items():
        while total > limit and n > 1:
            n, total = n // 2, total // 2
        result[axis] = n
    return result
