"""Choose the operands of a kernel's contractions that are worth prepacking.

A GEMM's inner loop reads its right operand in panels as wide as the register tile, a channels-last
convolution its weights.  If that operand is one array, in place, and the same in every call, it may
be stored in panels in the first place.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.blocks import SMALL, SMALL_DEPTH
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import Schedule, schedule
from smelt.codegen.llvm.schedule.contract import Contraction, contractions
from smelt.codegen.llvm.schedule.conv_layout import NHWC_VARIANT
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan, contiguous_filters
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan
from smelt.codegen.llvm.schedule.operands import packs_stored_bits, plain_load
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import Panel, read_panels
from smelt.kernel.walk import loads
from smelt.target import Target
from smelt.types.expr import Index, axes_of, mul


def prepackable_panels(
    kernel: Kernel, target: Target, constant: frozenset[str], *, open_sizes: bool = False
) -> tuple[tuple[Panel, Index], ...]:
    """Return how to prepack parameters among `constant` that tasks would pack otherwise.

    With each the rows that are multiplied with it in a call.  With `open_sizes`, also for symbolic
    shapes: the caller ensures that they fill panels.
    """
    panel_of: dict[str, tuple[Panel, Index]] = {}
    for c in _candidates(kernel, target):
        panel = _panel(kernel, c, constant, open_sizes=open_sizes)
        if panel is not None and panel.param not in panel_of and _helps(kernel, panel, target):
            panel_of[panel.param] = panel, _rows(kernel, c)
    return tuple(panel_of.values())


_Panelled = Contraction | NhwcConvPlan
"""Plans whose inner loop reads an operand in panels."""


def _operand(c: _Panelled) -> Item:
    """Return the operand that is read in panels."""
    return c.left if isinstance(c, NhwcConvPlan) else c.right


def _rows(kernel: Kernel, c: _Panelled) -> Index:
    """Return the rows that are multiplied with the operand, in all tasks.

    An axis that the code has split counts once, as a whole.
    """
    access = plain_load(_operand(c))
    assert access is not None
    operand_axes = {
        a for x in loads(kernel) if x.param == access.buffer for e in x.index for a in axes_of(e)
    }
    rows: Index = 1
    axes = sorted(c.item.axes - {c.n}) if isinstance(c, NhwcConvPlan) else (c.m, *c.outer)
    names = (a.partition(".")[0] for a in axes if a is not None)
    for a in dict.fromkeys(names):
        if a not in operand_axes:
            rows = mul(rows, kernel.axis(a).extent)
    return rows


def _products(kernel: Kernel, target: Target) -> Iterator[_Panelled]:
    for phase in program(kernel).phases:
        yield from _panelled(schedule(phase, target))


def _panelled(phase_schedule: Schedule) -> Iterator[_Panelled]:
    return (c for c in phase_schedule.products.values() if isinstance(c, _Panelled))


def _candidates(kernel: Kernel, target: Target) -> Iterator[_Panelled]:
    """Yield the plans of a kernel's contractions.

    If several axes walk their columns (heads, and channels of each), as they would be if their
    right operand were in panels along the last one.
    """
    for number, phase in enumerate(program(kernel).phases):
        phase_schedule = schedule(phase, target)
        if phase_schedule.products and all(
            isinstance(p, ConvPlan) for p in phase_schedule.products.values()
        ):
            nhwc = schedule(program(kernel).phases[number], target, NHWC_VARIANT)
            yield from _panelled(nhwc)
        if phase_schedule.blocked or not _has_plain_columns(phase_schedule):
            yield from _panelled(phase_schedule)
        else:  # planned anew, since the schedule has rewritten the phase
            yield from contractions(program(kernel).phases[number], target).values()


def _has_plain_columns(phase_schedule: Schedule) -> bool:
    """Return whether all plans have columns on several axes, but no windows."""
    return bool(phase_schedule.products) and all(
        isinstance(p, ConvPlan | NhwcConvPlan) and not any(c.tap for c in p.columns)
        for p in phase_schedule.products.values()
    )


def _panel(
    kernel: Kernel, c: _Panelled, constant: frozenset[str], *, open_sizes: bool
) -> Panel | None:
    """Return how the operand of a contraction is to be packed, or None."""
    access, operand = plain_load(_operand(c)), _operand(c)
    packs = isinstance(c, NhwcConvPlan) or c.kind == "packed"
    if open_sizes and isinstance(c, NhwcConvPlan) and contiguous_filters(c) is not None:
        return None  # a task that packs transposed filters quickly has its panels in cache
    if not packs or c.prepacked or access is None or access.buffer not in constant:
        return None
    group, together = (None, 1) if isinstance(c, NhwcConvPlan) else (c.group, c.group_size)
    if not packs_stored_bits(operand, c.item, group, kernel.param(access.buffer).dtype):
        return None
    reads = {x.index for x in loads(kernel) if x.param == access.buffer}
    if len(reads) != 1:
        return None
    (index,) = reads
    across, along = _dimension(index, c.n), _dimension(index, c.k)
    if across is None or along is None or across == along:
        return None
    shape = kernel.param(access.buffer).shape
    columns, depth = shape[across], shape[along]
    if open_sizes and not all(isinstance(d, int) for d in shape):
        return Panel(access.buffer, across, along, c.tile.columns, together)
    if not isinstance(columns, int) or not isinstance(depth, int) or columns < c.tile.columns:
        return None
    if not all(isinstance(d, int) for d in shape):
        return None
    small = (
        columns <= SMALL
        and depth <= SMALL_DEPTH
        and group is None
        and not isinstance(c, NhwcConvPlan)
    )
    return None if small else Panel(access.buffer, across, along, c.tile.columns, together)


def _dimension(index: tuple[Index, ...], axis: str) -> int | None:
    """Return the only dimension that an axis walks along."""
    dims = [a for a, e in enumerate(index) if axis in axes_of(e)]
    return dims[0] if len(dims) == 1 else None


def _helps(kernel: Kernel, panel: Panel, target: Target) -> bool:
    """Return whether all contractions that read the parameter would read its panels in place."""
    plans = [
        c
        for c in _products(read_panels(kernel, panel), target)
        if (access := plain_load(_operand(c))) and access.buffer == panel.param
    ]
    return bool(plans) and all(c.prepacked for c in plans)


__all__ = ["prepackable_panels"]
