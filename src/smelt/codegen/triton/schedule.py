"""Choose what a program of the grid computes: the lanes of each axis.

    schedule = choose_schedule(kernel, {"r": 4096, "c": 1000})

An axis of the grid is one index per program or a block of lanes; every other axis of the kernel is
in every program as a whole, padded to a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from smelt.codegen.triton.refusal import refuse
from smelt.dataclass import dataclass
from smelt.kernel.ir import Block, Dot, Each, Kernel, Split, Stream
from smelt.kernel.walk import statements, values_of, visit
from smelt.types.expr import evaluate

__all__ = ["Schedule", "choose_schedule"]

MAP_ELEMENTS = 1024
"""Elements of a program without whole axes: 8 a thread in 4 warps, as Inductor's maps have."""
TILE_ELEMENTS = 4096
"""Elements that a program with whole axes and a block of the grid should have at most."""
MOST_ELEMENTS = 1 << 16
"""Elements of a value from which a program's registers overflow."""
LEAST_DOT = 16
"""Least lanes along each axis of a `tl.dot`."""
DOT_BLOCK = 64
"""Lanes of the rows and columns of a contraction."""
ELEMENTS_PER_WARP = 256


@dataclass(frozen=True, slots=True)
class Schedule:
    """Lanes of the axes: `grid` in the kernel's order (1: one index), `whole` padded to 2^k.

    `least` is the least number of lanes of a whole axis.
    """

    grid: tuple[tuple[str, int], ...]
    whole: tuple[str, ...]
    least: Mapping[str, int]

    def lanes(self, axis: str) -> int | None:
        """Return the lanes of a grid axis; None for a whole one."""
        return dict(self.grid).get(axis)


def choose_schedule(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> Schedule:
    """Return the schedule of a kernel; with sizes, of programs that fit the registers.

    Raises DeviceKernelError for roles of axes that are not printed, and for rows too long.
    """
    _check_roles(kernel)
    blocks = [b for b in kernel.grid if isinstance(b, Block) and b.size is not None]
    in_grid = {b.axis for b in blocks}
    whole = tuple(a.name for a in kernel.axes if a.name not in in_grid)
    contracted = _axes_of_dots(kernel)
    least = {a: LEAST_DOT if a in contracted else 1 for a in whole}
    lanes = {b.axis: power_of_two(b.size or 1) for b in blocks}
    if contracted:
        lanes = {a: DOT_BLOCK if a in contracted else 1 for a in lanes}
    elif not whole and blocks:
        last = blocks[-1].axis
        lanes[last] = MAP_ELEMENTS if lanes[last] == 1 else min(lanes[last], MAP_ELEMENTS)
    limit = TILE_ELEMENTS if whole else MAP_ELEMENTS
    if sizes is not None:
        extents = {a.name: int(evaluate(a.extent, sizes)) for a in kernel.axes}
        lanes = {a: min(n, power_of_two(extents[a])) for a, n in lanes.items()}
        limit //= _largest_tile(kernel, extents, least)
    if not contracted:
        lanes = _within(lanes, max(limit, 1))
    return Schedule(tuple(lanes.items()), whole, least)


def power_of_two(n: int) -> int:
    """Return the least power of two that is not less than n, at least 1.

    >>> power_of_two(1000), power_of_two(0)
    (1024, 1)
    """
    return 1 << max(n - 1, 0).bit_length()


def _check_roles(kernel: Kernel) -> None:
    for entry in kernel.grid:
        if isinstance(entry, Each):
            refuse(kernel.name, "a launch over families of arrays")
        if isinstance(entry, Split):
            refuse(kernel.name, "an axis split over the grid")
    if any(isinstance(s, Stream) for s in statements(kernel)):
        refuse(kernel.name, "a stream that carries state")


def _dots(kernel: Kernel) -> Iterator[Dot]:
    for statement in statements(kernel):
        for root in values_of(statement):
            yield from (v for v in visit(root) if isinstance(v, Dot))


def _axes_of_dots(kernel: Kernel) -> set[str]:
    if any(True for _ in _dots(kernel)):
        refuse(kernel.name, "a contraction")
    return set()


def _largest_tile(kernel: Kernel, extents: Mapping[str, int], least: Mapping[str, int]) -> int:
    """Return the elements of the longest whole axis; values with two of them are rare."""
    longest = max((max(power_of_two(extents[a]), n) for a, n in least.items()), default=1)
    if longest > MOST_ELEMENTS:
        refuse(kernel.name, f"a loop over a row of {longest} elements")
    return longest


def _within(lanes: dict[str, int], limit: int) -> dict[str, int]:
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
