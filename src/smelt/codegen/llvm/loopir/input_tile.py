"""Index the input of a convolution by position instead of by (output, tap).

An operand read at y*s + u*d, along an axis y of the result and a reduced axis u, has one value for
many pairs (y, u).  Packed for a microkernel, it has one axis of input positions y*s + u*d instead,
with a halo for the taps.  If the stride s > 1, positions are split into quotient and remainder (a
polyphase layout), so that what neighbouring results read is always contiguous:

    x[y*2 + u] for u < 3    is    x[at*2 + by], read at (at, by) = (y, 0), (y, 1), (y + 1, 0)

A pair of axes forms a window if no index expression changes when y moves by d while u moves back by
s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd

from smelt.codegen.llvm.loopir.items import Item, Load, Phase, Reduction
from smelt.codegen.llvm.loopir.rewrite import Cloner, Draft, dependencies
from smelt.ops.windows import WINDOW_STEPS
from smelt.python.dataclass import dataclass
from smelt.types.expr import (
    Index,
    add,
    axes_of,
    axis,
    coefficient,
    extents,
    floordiv,
    mod,
    mul,
    product,
    sub,
    substitute,
)

NO_AXIS = ""
"""The name of an axis that there is not."""


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """A column axis of a convolution's result, and its axes in the packed operand."""

    axis: str
    position_axis: str
    """The axis of input positions (their quotients by `step`); `axis` itself if no window slides
    along it."""
    tap: str = NO_AXIS
    """The reduced axis whose taps slide along `axis`."""
    step: int = 1
    dilation: int = 1
    remainder_axis: str = NO_AXIS
    """The axis of the positions' remainders by `step`, if `step` > 1."""
    taps: int = 1

    @property
    def halo(self) -> int:
        """Packed positions beyond the task's own: the halo."""
        return (self.taps - 1) * self.dilation // self.step

    def quotient(self, tap: int) -> int:
        """Return the packed positions between a column and what it reads for a tap."""
        return tap * self.dilation // self.step

    def remainder(self, tap: int) -> int:
        """Return the remainder of the positions that a tap reads."""
        return tap * self.dilation % self.step


def packed_order(columns: Sequence[WindowAxis], summed: Sequence[str]) -> tuple[str, ...]:
    """Return the axes of an operand packed by position, outer to inner, positions innermost."""
    taps = {c.tap for c in columns}
    rests = [c.remainder_axis for c in columns if c.remainder_axis]
    return (*(a for a in summed if a not in taps), *rests, *(c.position_axis for c in columns))


def packed_extents(columns: Sequence[WindowAxis], local: Mapping[str, Index]) -> dict[str, Index]:
    """Return the extents of the axes that replace columns, for a task's own extents."""
    packed: dict[str, Index] = {}
    for c in columns:
        packed |= {c.remainder_axis: c.step, c.position_axis: add(local[c.axis], c.halo)}
    return packed


def positions_per_block(taps: int, most: int) -> int:
    """Return how many positions to pack together: a power of two.

    At most `most` reduced positions are packed, of which each position has `taps`.
    """
    return 1 << max((most // taps).bit_length() - 1, 0)


def find_window_axis(a: str, right: Item, over: list[str], phase: Phase) -> WindowAxis:
    """Find the reduced axis whose taps slide along a column axis, if there is one."""
    for tap in over:
        taps = phase.axes[tap]
        if not isinstance(taps, int):
            continue
        dependent = list(dependencies(right, {a, tap}))
        if any(isinstance(i, Reduction) for i in dependent):
            continue
        steps = find_steps(dependent, (a, tap), _steps_and_dilations(taps, phase.axes[a]), phase)
        if steps is not None:
            return WindowAxis(a, a, tap, *steps, NO_AXIS, taps)
    return WindowAxis(a, a)


def find_steps(
    items: Iterable[Item], axes: tuple[str, str], steps: Iterable[tuple[int, int]], phase: Phase
) -> tuple[int, int] | None:
    """Return the first of some `steps` and dilations with which two axes form a window."""
    name, tap = axes
    strides = [(e, coefficient(e, name), coefficient(e, tap)) for i in items for e in i.indices]
    for step, dilation in steps:
        by = {name: dilation, tap: -step}
        if all(_is_invariant(e, along, across, by, phase) for e, along, across in strides):
            return step, dilation
    return None


def _steps_and_dilations(taps: int, columns: Index) -> Iterator[tuple[int, int]]:
    """Yield the steps and dilations of windows which overlap.

    Strides that are multiples of each other could be taken for windows (heads of 160 in rows of 3
    of them), hence the limit by the number of columns.
    """
    for step in range(1, WINDOW_STEPS + 1):
        for dilation in range(1, WINDOW_STEPS + 1):
            separable = step == 1 or dilation == 1
            if isinstance(columns, int) and columns <= dilation:
                continue
            if separable and gcd(step, dilation) == 1 and taps * dilation > step:
                yield step, dilation


def _is_invariant(
    e: Index, along: Index | None, across: Index | None, moves: Mapping[str, int], phase: Phase
) -> bool:
    """Return whether an index stays the same when its two axes move by these numbers.

    By its strides along them, or by substitution if it has none.
    """
    if along is not None and across is not None:
        first_move, second_move = moves.values()
        return add(mul(along, first_move), mul(across, second_move)) == 0
    return _is_invariant_by_substitution(
        e, extents(e), tuple([(a, phase.axes[a], n) for a, n in moves.items()])
    )


@lru_cache(maxsize=1024)
def _is_invariant_by_substitution(
    e: Index, _: tuple[Index, ...], moves: tuple[tuple[str, Index, int], ...]
) -> bool:
    """Return whether an index is the same after moving axes, given as (axis, extent, distance).

    Cached, since each variant of a kernel repeats the question.
    """
    return substitute(e, {a: add(axis(a, extent), n) for a, extent, n in moves}) == e


def index_by_position(draft: Draft, user: Item, operand: Item, columns: list[WindowAxis]) -> Item:
    """Clone an operand with position axes instead of columns and taps.

    The entries of `columns` are replaced by ones which name the new axes.
    """
    at: dict[str, Index] = {}
    limits: dict[str, tuple[Index, Index]] = {}
    for k, c in enumerate(columns):
        if not c.tap:
            continue
        extent = draft.axes[c.axis]
        position_axis = draft.add_axis(f"{c.axis}.at", add(extent, c.halo))
        at[c.axis] = axis(position_axis, add(extent, c.halo))
        at[c.tap] = 0
        remainder_axis = NO_AXIS
        if c.step > 1:
            remainder_axis = draft.add_axis(f"{c.axis}.by", c.step)
            at[c.tap] = axis(remainder_axis, c.step)
            last = add(mul(sub(extent, 1), c.step), (c.taps - 1) * c.dilation + 1)
            position = add(mul(at[c.axis], c.step), at[c.tap])
            limits[c.axis] = (position, last)
        columns[k] = WindowAxis(
            c.axis, position_axis, c.tap, c.step, c.dilation, remainder_axis, c.taps
        )
    if not at:
        return operand
    return Cloner(draft, user, at, limits).of(operand)


class _RowCloner(Cloner):
    """Clones what a row is computed from, with bounds checks of its elements."""

    def __init__(
        self,
        draft: Draft,
        user: Item,
        at: Mapping[str, Index],
        limits: Mapping[str, tuple[Index, Index]],
        check: Callable[[tuple[Index, Index]], tuple[Index, Index]],
    ) -> None:
        super().__init__(draft, user, at, limits)
        self.check = check

    def changed(self, item: Item) -> Item:
        """Return an item with axes, computed positions and checks replaced."""
        changed = super().changed(item)
        if not isinstance(changed, Load):
            return changed
        limits = tuple(map(self.check, changed.access.limits))
        return replace(changed, access=replace(changed.access, limits=limits))


def flatten_row(
    draft: Draft, user: Item, operand: Item, c: WindowAxis, depth: str = "", channels: int = 1
) -> tuple[Item, str, WindowAxis]:
    """Clone an operand with one axis over a whole row: `channels` along `depth` for each position.

        x[y,at - 1,d], inside 0 <= at - 1 < w    is    x[y,q//3 - 1,q%3], inside 0 <= q - 3 < w*3

    Steps of windows are ignored: also skipped positions are included.  Returns the operand, the new
    axis, and what replaces the column: its own axis counts positions.
    """
    extent = mul(add(draft.axes[c.axis], c.halo), c.step * channels)
    name = draft.add_axis(f"{c.axis}.in", extent)
    q = axis(name, extent)
    position = floordiv(q, channels)
    at: dict[str, Index] = {c.axis: 0, **({c.tap: 0} if c.tap else {})}
    at |= {depth: mod(q, channels)} if depth else {}
    at[c.tap if c.step > 1 else c.axis] = position
    limits: dict[str, tuple[Index, Index]] = {}
    if c.step > 1:
        last = add(mul(sub(draft.axes[c.axis], 1), c.step), (c.taps - 1) * c.dilation + 1)
        limits[c.axis] = (position, last)
    clone = _RowCloner(
        draft, user, at, limits, lambda pair: _row_check(pair, q, name, channels)
    ).of(operand)
    remainder_axis = f"{c.axis}.by" if c.step > 1 else NO_AXIS
    return (
        clone,
        name,
        WindowAxis(c.axis, c.axis, c.tap, c.step, c.dilation, remainder_axis, c.taps),
    )


def _row_check(
    pair: tuple[Index, Index], q: Index, name: str, channels: int
) -> tuple[Index, Index]:
    """Rewrite a bounds check of positions to one of elements of a row.

    From 0 <= q//channels + c < n to 0 <= q + c*channels < n*channels, if the check has that form.
    """
    e, n = pair
    if name not in axes_of(e) or channels == 1:
        return pair
    position = axis(name, 1 << 40)
    c = sub(substitute(e, {name: mul(channels, position)}), position)
    if name in axes_of(c) or add(floordiv(q, channels), c) != e:
        return pair
    return add(q, mul(c, channels)), mul(n, channels)


def flatten_reduction(
    draft: Draft, user: Item, operand: Item, summed: Sequence[str]
) -> tuple[Item, str]:
    """Clone an operand with one axis over all of `summed`, and return that axis.

    All of `summed` but the first must have constant extents.
    """
    if len(summed) == 1:
        return operand, summed[0]
    extent = product(draft.axes[a] for a in summed)
    name = draft.add_axis("k", extent)
    at: dict[str, Index] = {}
    quotient: Index = axis(name, extent)
    for a in summed[:0:-1]:
        at[a], quotient = mod(quotient, draft.axes[a]), floordiv(quotient, draft.axes[a])
    at[summed[0]] = quotient
    return Cloner(draft, user, at).of(operand), name
