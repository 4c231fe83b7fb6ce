"""Rewrite streams for one program each: parts of an axis in one, columns in lanes.

The CPU splits a long axis over the grid to have tasks for its cores. A program visits all of it
here, since the launch that would merge the parts is not printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from smelt.codegen.triton.free_axes import Axes, axes_of_value
from smelt.kernel.ir import (
    Block,
    Extreme,
    Kernel,
    Let,
    Merge,
    Partial,
    Position,
    Split,
    Statement,
    Store,
    Stream,
    Update,
)
from smelt.kernel.walk import statements, values_of, visit

__all__ = ["join_parts", "widen_columns"]

COLUMN_LANES = 128
"""Neighbouring columns of a program: a row of them is one access of a warp's 32 x 16 bytes."""


def join_parts(kernel: Kernel) -> Kernel:
    """Return the kernel with one part: no split axis, and no merge of its states."""
    grid = tuple(b for b in kernel.grid if not isinstance(b, Split))
    if len(grid) == len(kernel.grid):
        return kernel
    return replace(kernel, grid=grid, body=tuple(_without_parts(kernel.body)))


def _without_parts(body: Iterable[Statement]) -> Iterable[Statement]:
    for s in body:
        if isinstance(s, Stream):
            blocks = tuple(replace(b, part=None) for b in s.blocks)
            yield replace(s, blocks=blocks, body=tuple(_without_parts(s.body)))
        elif not isinstance(s, Merge):
            yield s


def widen_columns(kernel: Kernel) -> Kernel:
    """Return the kernel with lanes along its last grid axis, where that is possible.

    A state that the kernel declares without the axis, which has one index there, gets it.
    """
    last = kernel.grid[-1] if kernel.grid else None
    every = list(statements(kernel))
    streams = [s for s in every if isinstance(s, Stream)]
    if not isinstance(last, Block) or last.size != 1 or not streams:
        return kernel
    in_blocks = {b.axis for s in streams for b in s.blocks} | {
        b.axis for b in kernel.grid if isinstance(b, Block)
    }
    has_whole_axes = any(a.name not in in_blocks for a in kernel.axes)
    names = _axes_of_names(every)
    if has_whole_axes or any(_needs_one_index(s, last.axis, names) for s in every):
        return kernel
    grid = (*kernel.grid[:-1], replace(last, size=COLUMN_LANES))
    return replace(kernel, grid=grid, body=tuple(_declared(kernel.body, last.axis, names)))


def _axes_of_names(every: Iterable[Statement]) -> dict[str, Axes]:
    """Return the axes of names and states, which may depend on one another."""
    names: dict[str, Axes] = {}
    before: dict[str, Axes] | None = None
    while names != before:
        before = dict(names)
        for s in every:
            if isinstance(s, Let | Position):
                names[s.name] = axes_of_value(s.value, names)
            elif isinstance(s, Update):
                axes = axes_of_value(s.value, names)
                names[s.state] = names.get(s.state, Axes()) | axes
            elif isinstance(s, Stream):
                for state in s.states:
                    axes = axes_of_value(state.init, names) | set(state.axes)
                    names[state.name] = names.get(state.name, Axes()) | axes
    return names


def _needs_one_index(s: Statement, axis: str, names: dict[str, Axes]) -> bool:
    """Return whether a statement controls a loop, or all lanes at once, by this axis."""
    if isinstance(s, Store) and s.join:
        return True
    inside = [v for root in values_of(s) for v in visit(root)]
    if any(isinstance(v, Partial | Extreme) for v in inside):
        return True
    if not isinstance(s, Stream):
        return False
    ends = [e for b in s.blocks for e in (b.start, b.stop, s.where) if e is not None]
    return bool(s.bounds) or any(axis in axes_of_value(e, names) for e in ends)


def _declared(body: Iterable[Statement], axis: str, names: dict[str, Axes]) -> Iterable[Statement]:
    for s in body:
        if not isinstance(s, Stream):
            yield s
            continue
        states = tuple(
            replace(t, axes=(*t.axes, axis)) if axis in names[t.name] - set(t.axes) else t
            for t in s.states
        )
        yield replace(s, states=states, body=tuple(_declared(s.body, axis, names)))
