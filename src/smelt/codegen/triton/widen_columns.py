"""Give a program several neighbouring columns of streams that have one each."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.triton.block_axes import dots_of
from smelt.kernel.ir import (
    Block,
    Extreme,
    Kernel,
    Partial,
    Statement,
    Store,
    Stream,
)
from smelt.kernel.transform.block import in_blocks
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_value,
    end_axes,
    statements,
    visit_statement,
)

COLUMN_LANES = 128
"""Neighbouring columns of a program: a row of them is one access of a warp's 32 x 16 bytes."""


def widen_columns(kernel: Kernel) -> Kernel:
    """Return the kernel with lanes along its last grid axis, where that is possible.

    A state that the kernel declares without the axis, which has one index there, gets it.
    """
    last = kernel.grid[-1] if kernel.grid else None
    every = list(statements(kernel))
    streams = [s for s in every if isinstance(s, Stream)]
    if not isinstance(last, Block) or last.size != 1 or not streams or dots_of(kernel.body):
        return kernel
    blocked = {b.axis for s in streams for b in s.blocks} | {
        b.axis for b in kernel.grid if isinstance(b, Block)
    }
    has_whole_axes = any(a.name not in blocked for a in kernel.axes)
    names = axes_of_body(kernel.body)
    if has_whole_axes or any(_needs_one_index(s, last.axis, names) for s in every):
        return kernel
    return in_blocks(kernel, {last.axis: COLUMN_LANES})


def has_several_rows(kernel: Kernel, axis: str) -> bool:
    """Return whether programs may have several positions of a grid axis.

    States that vary along it are declared with it, and no loop ends by it.
    """
    names = axes_of_body(kernel.body)
    every = list(statements(kernel))
    states = [t for s in every if isinstance(s, Stream) for t in s.states]
    return not any(_needs_one_index(s, axis, names) for s in every) and all(
        axis in t.axes for t in states if axis in names[t.name]
    )


def _needs_one_index(s: Statement, axis: str, names: Mapping[str, Axes]) -> bool:
    """Return whether a statement controls a loop, or all lanes at once, by this axis."""
    if isinstance(s, Store) and s.join:
        return True
    inside = [*visit_statement(s)]
    if any(isinstance(v, Partial) for v in inside):
        return True
    if any(isinstance(v, Extreme) and axis in axes_of_value(v.arg, names) for v in inside):
        return True
    return bool(isinstance(s, Stream) and s.bounds) or axis in end_axes(s, names)
