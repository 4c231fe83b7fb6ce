"""Lines that a stencil reads where they lie, and what of them is inside of an array.

Along a line of 7 results a vector of 16 lanes is half empty, and whatever is done once a line is
most of the work.  Where the weights have an axis beside those that windows slide over (the channels
of a depthwise convolution), vectors may run across lines: what is packed changes places with that
axis in registers, and the results change back.

    x[c,y,x] for 16 c   ->   places[y,x,c]   ->   sums[y,x,c]   ->   out[c,y,x]

The operand must be read as it lies, or widened from a half type.  Margins of it are zeros, which
are there before, so that what is turned is inside for sure.

Where channels lie last, vectors run along them anyway, and nothing is packed at all: each place is
read where it lies, or zeros instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from smelt.codegen.llvm.loopir.input_tile import NO_AXIS, Slid
from smelt.codegen.llvm.loopir.items import Access, Item, Phase
from smelt.dataclass import dataclass
from smelt.types.affine import coefficient
from smelt.types.dtype import bf16, f16
from smelt.types.expr import Index, axes_of, mul, substitute

TAPS = 16
"""Summed positions along a line at most."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Element at position p along each axis of places, and at c along the vectors' own: `start` +
    c*`apart` + the sum of p*`steps`."""

    buffer: str
    start: Index
    apart: Index
    steps: tuple[Index, ...]
    inside: tuple[tuple[tuple[int, Index], ...], ...]
    """For each axis of places what is asked of p: 0 <= p + low < extent, for pairs of these."""


def turnable(
    phase: Phase, left: Item, right: Item, columns: Sequence[Slid]
) -> tuple[str, Lines] | None:
    """The axis across which vectors may run, and the lines; None where they cannot be turned."""
    if not all(c.tap for c in columns) or columns[-1].taps > TAPS:
        return None
    found = _along(phase, right, columns)
    if found is None:
        return None
    access, steps, inside = found
    slid = {a for c in columns for a in (c.axis, c.tap)}
    across = [a for a in phase.grid if a in left.axes & right.axes and a not in slid]
    apart = [coefficient(access.offset, a) for a in across]
    if steps[-1] != 1 or not across or apart[-1] in (None, 0, 1):
        return None
    if axes_of(apart[-1] or 0):
        return None
    start = substitute(access.offset, dict.fromkeys((*slid, across[-1]), 0))
    return across[-1], Lines(access.buffer, start, apart[-1] or 0, steps, inside)


def lying(phase: Phase, right: Item, columns: Sequence[Slid]) -> Lines | None:
    """The lines of an operand whose vectors lie as they are read, at each place; None where they
    do not."""
    *slid, n = columns
    if n.tap or not all(c.tap for c in slid):
        return None
    found = _along(phase, right, slid, n.axis)
    if found is None:
        return None
    access, steps, inside = found
    moved = {a for c in slid for a in (c.axis, c.tap)}
    start = substitute(access.offset, dict.fromkeys((*moved, n.axis), 0))
    one = coefficient(access.offset, n.axis) == 1
    return Lines(access.buffer, start, 1, steps, inside) if one else None


_Inside: TypeAlias = tuple[tuple[tuple[int, Index], ...], ...]


def _along(
    phase: Phase, right: Item, columns: Sequence[Slid], lane: str = NO_AXIS
) -> tuple[Access, tuple[Index, ...], _Inside] | None:
    """How an operand is read that is a plain load: elements between neighbouring places along each
    axis of them, and what is asked of these; besides, it may vary along one that vectors have."""
    access = right.payload
    if not isinstance(access, Access) or right.args or access.positions:
        return None
    if phase.dtypes[access.buffer] not in (right.dtype, f16, bf16):
        return None
    slid = {a for c in columns for a in (c.axis, c.tap)}
    if {*axes_of(access.offset)} - slid - {*phase.grid, lane}:  # summed, and nothing slides
        return None
    steps = [coefficient(access.offset, c.tap if c.dilation == 1 else c.axis) for c in columns]
    wide = [(c, coefficient(access.offset, c.axis)) for c in columns]
    even = all(n == mul(s, c.step) for s, (c, n) in zip(steps, wide, strict=True) if s is not None)
    known = tuple(s for s in steps if s is not None)
    inside = _inside(access, columns)
    if inside is None or not even or len(known) < len(steps) or any(map(axes_of, known)):
        return None
    return access, known, inside


def _inside(
    access: Access, columns: Sequence[Slid]
) -> tuple[tuple[tuple[int, Index], ...], ...] | None:
    """What a load asks of each axis of places, if it asks for nothing else."""
    if access.limits and not access.gives_zero:
        return None
    found: list[list[tuple[int, Index]]] = [[] for _ in columns]
    for e, n in access.limits:
        own = [k for k, c in enumerate(columns) if {c.axis, c.tap} & {*axes_of(e)}]
        if len(own) != 1 or axes_of(n):
            return None
        c = columns[own[0]]
        low = substitute(e, {c.axis: 0, c.tap: 0})
        steps = coefficient(e, c.axis), coefficient(e, c.tap)
        if steps != (c.step, c.dilation) or not isinstance(low, int):
            return None
        found[own[0]].append((low, n))
    return tuple(map(tuple, found))


__all__ = ["Lines", "lying", "turnable"]
