"""The input rows of a depthwise convolution: strides, and which positions are in bounds.

Along a row of 7 results a vector of 16 lanes is half empty, and the overhead of each row dominates.
If the weights have an axis that no window slides along (the channels of a depthwise convolution),
vectors may run along that one: the input is transposed in registers while it is packed, and the
results are transposed back.

    x[c,y,x] for 16 c   ->   packed[y,x,c]   ->   sums[y,x,c]   ->   out[c,y,x]

The operand must be a plain load, or widened from a half type.  Padding is zero-filled before, so
that what is transposed is in bounds.

For channels last, vectors run along the channels anyway, and nothing is packed: each position is
read in place, or zeros instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from smelt.codegen.llvm.loopir.input_tile import NO_AXIS, WindowAxis
from smelt.codegen.llvm.loopir.items import Access, Item, Load, Phase
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bf16, f16
from smelt.types.expr import Index, axes_of, coefficient, mul, substitute

MAX_ROW_TAPS = 16
"""Maximum reduced positions along a row."""


@dataclass(frozen=True, slots=True)
class StridedRows:
    """Address of the element at position p along each position axis and lane c.

    `start` + c*`lane_stride` + the sum of p*`steps`.
    """

    buffer: str
    start: Index
    lane_stride: Index
    steps: tuple[Index, ...]
    bounds: tuple[tuple[tuple[int, Index], ...], ...]
    """Bounds checks of each position axis: 0 <= p + low < extent, for pairs (low, extent)."""


def transposable_rows(
    phase: Phase, left: Item, right: Item, columns: Sequence[WindowAxis]
) -> tuple[str, StridedRows] | None:
    """Return the axis for vectors after a transposition, and the rows; None if impossible."""
    if not all(c.tap for c in columns) or columns[-1].taps > MAX_ROW_TAPS:
        return None
    strided = _strided_load(phase, right, columns)
    if strided is None:
        return None
    access, steps, inside = strided
    slid = {a for c in columns for a in (c.axis, c.tap)}
    lane_axes = [a for a in phase.grid if a in left.axes & right.axes and a not in slid]
    strides_across = [coefficient(access.offset, a) for a in lane_axes]
    if steps[-1] != 1 or not lane_axes or strides_across[-1] in (None, 0, 1):
        return None
    if axes_of(strides_across[-1] or 0):
        return None
    start = substitute(access.offset, dict.fromkeys((*slid, lane_axes[-1]), 0))
    return lane_axes[-1], StridedRows(access.buffer, start, strides_across[-1] or 0, steps, inside)


def rows_in_place(phase: Phase, right: Item, columns: Sequence[WindowAxis]) -> StridedRows | None:
    """Return the rows of an operand that is contiguous along the vector axis, or None."""
    *slid, n = columns
    if n.tap or not all(c.tap for c in slid):
        return None
    strided = _strided_load(phase, right, slid, n.axis)
    if strided is None:
        return None
    access, steps, inside = strided
    moved = {a for c in slid for a in (c.axis, c.tap)}
    start = substitute(access.offset, dict.fromkeys((*moved, n.axis), 0))
    one = coefficient(access.offset, n.axis) == 1
    return StridedRows(access.buffer, start, 1, steps, inside) if one else None


_Inside: TypeAlias = tuple[tuple[tuple[int, Index], ...], ...]


def _strided_load(
    phase: Phase, right: Item, columns: Sequence[WindowAxis], lane: str = NO_AXIS
) -> tuple[Access, tuple[Index, ...], _Inside] | None:
    """Return how a plain load walks each position axis: its access, strides and bounds checks.

    Besides, the operand may vary along the vector axis `lane`.
    """
    if not isinstance(right, Load) or right.args or right.access.positions:
        return None
    access = right.access
    if phase.dtypes[access.buffer] not in (right.dtype, f16, bf16):
        return None
    slid = {a for c in columns for a in (c.axis, c.tap)}
    if (
        {*axes_of(access.offset)} - slid - {*phase.grid, lane}
    ):  # reduced, but no window slides along it
        return None
    steps = [coefficient(access.offset, c.tap if c.dilation == 1 else c.axis) for c in columns]
    wide = [(c, coefficient(access.offset, c.axis)) for c in columns]
    proportional = all(
        n == mul(s, c.step) for s, (c, n) in zip(steps, wide, strict=True) if s is not None
    )
    strides = tuple(s for s in steps if s is not None)
    inside = _bounds(access, columns)
    if (
        inside is None
        or not proportional
        or len(strides) < len(steps)
        or any(map(axes_of, strides))
    ):
        return None
    return access, strides, inside


def _bounds(
    access: Access, columns: Sequence[WindowAxis]
) -> tuple[tuple[tuple[int, Index], ...], ...] | None:
    """Return the bounds checks of each position axis; None if there are others."""
    if access.limits and not access.gives_zero:
        return None
    checks: list[list[tuple[int, Index]]] = [[] for _ in columns]
    for e, n in access.limits:
        column_numbers = [k for k, c in enumerate(columns) if {c.axis, c.tap} & {*axes_of(e)}]
        if len(column_numbers) != 1 or axes_of(n):
            return None
        c = columns[column_numbers[0]]
        low = substitute(e, {c.axis: 0, c.tap: 0})
        steps = coefficient(e, c.axis), coefficient(e, c.tap)
        if steps != (c.step, c.dilation) or not isinstance(low, int):
            return None
        checks[column_numbers[0]].append((low, n))
    return tuple(map(tuple, checks))
