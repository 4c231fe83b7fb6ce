"""Give a program several small matrices of a batch, which `tl.dot` multiplies pair by pair.

    grid b, m, n                                grid b/8, m, n
    y[b,m,n] = dot(x[b,m,k], w[b,k,n] over k)   tl.dot: [8, 16, 16] x [8, 16, 16]

A program of one small matrix has few bytes in flight, and several warps compute the same elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from smelt.codegen.triton.block_axes import dots_of, power_of_two
from smelt.codegen.triton.launch_work import LaunchWork
from smelt.codegen.triton.schedule import MIN_DOT, Schedule, least_dot
from smelt.kernel.ir import Block, Kernel
from smelt.kernel.transform.block import with_state_axes
from smelt.kernel.walk import Axes, axes_of_body, axes_of_value, end_axes, statements
from smelt.types.dtype import f32

MATRIX_ELEMENTS = 96
"""Maximum elements of a warp's results in a thread: Triton gives a warp all of a matrix."""
FEW_MATRICES = 8
"""Minimum positions of a batch for its axis to have enough of them."""
LONGEST_STEP = 64
"""Maximum summed elements of a matrix in one step."""
COUNTS = ((8, 4), (4, 4), (16, 4), (8, 8), (2, 2))
"""Matrices and warps of a program."""


def matrix_batches(
    launch: Kernel,
    base: Schedule,
    extents: Mapping[str, int],
    work: LaunchWork,
    warp_lanes: int,
) -> Iterator[tuple[Kernel, Schedule]]:
    """Yield schedules with several matrices in a program, each with its launch.

    `base` has one of them; a warp has `warp_lanes` threads. All of each small matrix is in the
    program, and so are its sums where they are short.
    """
    axis = _batch_axis(launch, base, extents)
    sums = zip(dots_of(launch.body), work.contractions, strict=True)
    if axis is None or not all(d.dtype.compute == f32 or c.nbytes == 1 for d, c in sums):
        return
    summed = Axes().union(*(c.over for c in work.contractions))
    lanes = {a: power_of_two(max(n, MIN_DOT)) for a, n in extents.items()}
    lanes |= {a: max(lanes[a], least_dot(launch)) for a in (*summed, *base.whole)}
    lanes |= {a: min(lanes[a], LONGEST_STEP) for a in summed if a in base.streams}
    blocks = [a for a, n in (*base.grid.items(), *base.streams.items()) if n > 1]
    elements = sum(
        math.prod(lanes[a] for a in c.result if a in (*blocks, *base.whole))
        for c in work.contractions
    )
    names = axes_of_body(launch.body)
    launch = replace(launch, body=tuple(with_state_axes(launch.body, Axes({axis}), names)))
    grid, streams = (
        {a: lanes[a] if n > 1 else n for a, n in x.items()} for x in (base.grid, base.streams)
    )
    is_one_step = all(extents[a] <= streams[a] for a in summed if a in streams)
    for count, warps in COUNTS:
        is_held = elements * count <= MATRIX_ELEMENTS * warps * warp_lanes
        if is_held and count <= power_of_two(extents[axis]):
            yield (
                launch,
                replace(
                    base,
                    grid={**grid, axis: count},
                    streams=streams,
                    warps=warps,
                    stages=1 if is_one_step else 2,
                    reason=f"{count} small matrices a program",
                ),
            )


def _batch_axis(launch: Kernel, base: Schedule, extents: Mapping[str, int]) -> str | None:
    """Return an axis of the grid along which all operands of contractions vary.

    None without one. Of several, the last one with enough positions, which are nearest in memory,
    else the longest. The ends of a loop are the same for all matrices of a program.
    """
    if not base.has_matrices:
        return None
    names = axes_of_body(launch.body)
    plain = Axes(
        b.axis for b in launch.grid if isinstance(b, Block) and (b.start, b.stop) == (None, None)
    )
    shared = Axes(a for a in plain if base.grid[a] == 1 and extents[a] > 1)
    for d in dots_of(launch.body):
        shared &= axes_of_value(d.left, names) & axes_of_value(d.right, names)
    for s in statements(launch):
        shared -= end_axes(s, names)
    several = [a for a in base.grid if a in shared]
    long = [a for a in several if extents[a] >= FEW_MATRICES]
    return long[-1] if long else max(several, key=extents.__getitem__, default=None)
