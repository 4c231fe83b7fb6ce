"""Divide launches whose streams carry more values than the registers of a program hold.

A stream over a short axis is one reduction, after which a loop may visit the rows in blocks:

    stream h with s = 0 [c]                       s = sum(exp(x[h,c] - m[h]) over h)
      s' = s + sum(exp(x[h,c] - m[h]) over h)

Results that have each column apart are a launch of their own, whose programs have few columns:

    grid p                                        grid r
    stream r of p with s = 0 [c]                  y[r] = max(x[r,c] over c)
      y[r] = max(x[r,c] over c)                   ---- and in a second launch ----
      s' = s + sum(x[r,c] over r)                 grid p, c/128
    s_parts[p,c] = s                              stream r of p with s = 0 [c]
                                                    s' = s + sum(x[r,c] over r)
                                                  s_parts[p,c] = s
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from smelt.codegen.triton.block_axes import block_axes, dots_of
from smelt.codegen.triton.live_values import live_sets, registers_of
from smelt.codegen.triton.schedule import choose_schedule
from smelt.codegen.triton.widen_columns import COLUMN_LANES
from smelt.errors import DeviceKernelError
from smelt.kernel.ir import (
    Block,
    Kernel,
    Let,
    Position,
    Statement,
    Stream,
    Value,
)
from smelt.kernel.transform.block import in_blocks
from smelt.kernel.transform.part import part_of, without_unused
from smelt.kernel.transform.stream_to_reduction import reductions_of
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_value,
    axes_used,
    is_free,
    statements,
    stores,
)
from smelt.types.expr import evaluate

PROCESSOR_REGISTERS = 1 << 16
"""Registers of a processor of Nvidia's GPUs, which a program may have at most."""
VALUE_SHARE = 7 / 8
"""Part of the registers that values have: each thread needs others for addresses and masks."""
SHORT_SUM = 64
"""Maximum positions of a stream that becomes a reduction: each value has all of them at a time."""


def split_states(
    launch: Kernel, sizes: Mapping[str, int] | None, registers: int = PROCESSOR_REGISTERS
) -> tuple[Kernel, ...]:
    """Return launches in place of one whose states and values exceed a processor's registers."""
    if sizes is None or not _exceeds(launch, sizes, registers):
        return (launch,)
    extents = {a.name: int(evaluate(a.extent, sizes)) for a in launch.axes}
    reduced = replace(launch, body=tuple(_without_short_streams(launch.body, extents)))
    if reduced.body != launch.body and not _exceeds(reduced, sizes, registers):
        return (reduced,)
    for axis in sorted(_carried(launch), key=lambda a: (-extents[a], a)):
        columns = _columns(launch, axis) if extents[axis] > COLUMN_LANES else None
        if columns is not None:
            rest = part_of(launch, {*stores(launch)} - {*stores(columns)})
            rest = _without_parts(rest)
            return (*split_states(rest, sizes, registers), columns) if rest.body else (columns,)
    return (launch,)


def _exceeds(launch: Kernel, sizes: Mapping[str, int], registers: int) -> bool:
    """Return whether a program carries states of whole rows, and its values exceed registers."""
    if not _carried(launch) or dots_of(launch.body):
        return False
    extents = {a.name: int(evaluate(a.extent, sizes)) for a in launch.axes}
    try:
        blocked = block_axes(launch, sizes)
        lanes = choose_schedule(blocked, sizes).lanes(extents)
    except DeviceKernelError:
        return True
    words = registers_of(live_sets(blocked), lanes, 1)
    return bool(_carried(blocked)) and words > VALUE_SHARE * registers


def _carried(launch: Kernel) -> Axes:
    """Return the axes of states that are in every program as a whole."""
    streams = [s for s in statements(launch) if isinstance(s, Stream)]
    names = axes_of_body(launch.body)
    carried = Axes().union(*(names[t.name] for s in streams for t in s.states))
    visited = Axes(b.axis for s in streams for b in s.blocks)
    return carried - visited - {b.axis for b in launch.grid if isinstance(b, Block)}


# ---- streams as reductions -----------------------------------------------------------------------


def _without_short_streams(
    body: Iterable[Statement], extents: Mapping[str, int]
) -> Iterable[Statement]:
    """Yield statements with reductions in place of streams over few positions.

    A name that several streams bind has the same value in all of them, or the streams stay.
    """
    bound: dict[str, Value] = {}
    for s in body:
        new = [s]
        if isinstance(s, Stream) and math.prod(extents[b.axis] for b in s.blocks) <= SHORT_SUM:
            new = reductions_of(s) or [s]
        bindings = {x.name: x.value for x in new if isinstance(x, Let | Position)}
        if any(bound.get(n, v) != v for n, v in bindings.items()):
            new, bindings = [s], {}
        yield from (x for x in new if not isinstance(x, Let | Position) or x.name not in bound)
        bound |= bindings


# ---- launches with few columns -------------------------------------------------------------------


def _columns(launch: Kernel, axis: str) -> Kernel | None:
    """Return a launch of the results that are computed apart along an axis."""
    every = {*stores(launch)}
    apart = [s for s in every if is_free(part_of(launch, [s]).body, axis)]
    if not apart:
        return None
    part = part_of(launch, apart)
    name = launch.name if len(apart) == len(every) else f"{launch.name}_{axis}"
    whole = replace(part, name=name, grid=(*launch.grid, Block(axis)))
    return in_blocks(whole, {axis: COLUMN_LANES})


def _without_parts(launch: Kernel) -> Kernel:
    """Return a launch with a program for each position of an axis in parts.

    Unchanged where parts carry a state from position to position.
    """
    *before, last = launch.body or (None,)
    if not isinstance(last, Stream) or last.states or len(last.blocks) != 1 or last.bounds:
        return launch
    (block,) = last.blocks
    names = axes_of_body(launch.body)
    ends = [axes_of_value(e, names) for e in (block.start, block.stop) if e is not None]
    parts = Axes().union(*ends)
    body = (*before, *last.body)
    grid = tuple(b for b in launch.grid if isinstance(b, Block) and b.axis not in parts)
    whole = replace(launch, grid=(*grid, Block(block.axis, 1)), body=body)
    is_shared = len(ends) == 2 and len(parts) == 1 and len(grid) == len(launch.grid) - 1
    if not is_shared or last.where is not None or parts & axes_used(replace(whole, grid=())):
        return launch
    return without_unused(whole) if is_free(body, block.axis) else launch
