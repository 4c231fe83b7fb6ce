"""Which operands of a kernel's products are worth being packed ahead: those that tasks would pack.

A product's inner loop reads its right operand in panels as wide as the register tile, one over
windows with channels last its weights.  Where that operand is one array, as it lies, the same in
every call, it may as well lie in panels already.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.blocks import SMALL, SMALL_DEPTH
from smelt.codegen.llvm.loopir.items import Item
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import Schedule, schedule
from smelt.codegen.llvm.schedule.contract import Contraction, contractions
from smelt.codegen.llvm.schedule.conv_layout import UPRIGHT
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan
from smelt.codegen.llvm.schedule.filter_contiguity import lies_in_runs
from smelt.codegen.llvm.schedule.operands import load_of, packs_as_it_is
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import Panel, read_panels
from smelt.kernel.walk import loads
from smelt.target import Target
from smelt.types.expr import Index, axes_of, mul


def panels_of(
    kernel: Kernel, target: Target, constant: frozenset[str], *, open_sizes: bool = False
) -> tuple[tuple[Panel, Index], ...]:
    """How to pack parameters among `constant`, for a kernel that then packs none of them itself;
    with each the rows that are multiplied with it in a call.  With `open_sizes`, of shapes that are
    not known as well: the caller sees to it that they fill panels."""
    found: dict[str, tuple[Panel, Index]] = {}
    for c in _candidates(kernel, target):
        panel = _panel(kernel, c, constant, open_sizes=open_sizes)
        if panel is not None and panel.param not in found and _helps(kernel, panel, target):
            found[panel.param] = panel, _rows(kernel, c)
    return tuple(found.values())


_Panelled = Contraction | NhwcConvPlan
"""Products whose inner loop reads an operand in panels."""


def _operand(c: _Panelled) -> Item:
    """The operand that is read in panels."""
    return c.left if isinstance(c, NhwcConvPlan) else c.right


def _rows(kernel: Kernel, c: _Panelled) -> Index:
    """Rows that are multiplied with the operand, in all tasks.  An axis that the code has taken
    apart at a size counts once, whole."""
    access = load_of(_operand(c))
    assert access is not None
    own = {
        a for x in loads(kernel) if x.param == access.buffer for e in x.index for a in axes_of(e)
    }
    found: Index = 1
    rows = sorted(c.item.axes - {c.n}) if isinstance(c, NhwcConvPlan) else (c.m, *c.outer)
    names = (a.partition(".")[0] for a in rows if a is not None)
    for a in dict.fromkeys(names):
        if a not in own:
            found = mul(found, kernel.axis(a).extent)
    return found


def _products(kernel: Kernel, target: Target) -> Iterator[_Panelled]:
    for phase in program(kernel).phases:
        yield from _panelled(schedule(phase, target))


def _panelled(found: Schedule) -> Iterator[_Panelled]:
    return (c for c in found.products.values() if isinstance(c, _Panelled))


def _candidates(kernel: Kernel, target: Target) -> Iterator[_Panelled]:
    """The products of a kernel; those whose columns two axes walk (heads, and what each is) as they
    would be if their right operand lay in panels along the last one."""
    for number, phase in enumerate(program(kernel).phases):
        found = schedule(phase, target)
        if found.products and all(isinstance(p, ConvPlan) for p in found.products.values()):
            upright = schedule(program(kernel).phases[number], target, UPRIGHT)
            yield from _panelled(upright)
        if found.blocked or not _walked_by_two(found):
            yield from _panelled(found)
        else:  # the schedule has rewritten the phase
            yield from contractions(program(kernel).phases[number], target).values()


def _walked_by_two(found: Schedule) -> bool:
    """Whether all products have columns on several axes, none of which a window slides along."""
    return bool(found.products) and all(
        isinstance(p, ConvPlan | NhwcConvPlan) and not any(c.tap for c in p.columns)
        for p in found.products.values()
    )


def _panel(
    kernel: Kernel, c: _Panelled, constant: frozenset[str], *, open_sizes: bool
) -> Panel | None:
    """How the operand of a product is to be packed, if it can be."""
    access, operand = load_of(_operand(c)), _operand(c)
    packs = isinstance(c, NhwcConvPlan) or c.kind == "packed"
    if open_sizes and isinstance(c, NhwcConvPlan) and lies_in_runs(c) is not None:
        return None  # a task that packs squares soon has what its tiles read, and has it near
    if not packs or c.panels or access is None or access.buffer not in constant:
        return None
    group, together = (None, 1) if isinstance(c, NhwcConvPlan) else (c.group, c.together)
    if not packs_as_it_is(operand, c.item, group, kernel.param(access.buffer).dtype):
        return None
    reads = {x.index for x in loads(kernel) if x.param == access.buffer}
    if len(reads) != 1:
        return None
    (index,) = reads
    across, along = _dimension(index, c.n), _dimension(index, c.k)
    if across is None or along is None or across == along:
        return None
    shape = kernel.param(access.buffer).shape
    wide, deep = shape[across], shape[along]
    if open_sizes and not all(isinstance(d, int) for d in shape):
        return Panel(access.buffer, across, along, c.tile.columns, together)
    if not isinstance(wide, int) or not isinstance(deep, int) or wide < c.tile.columns:
        return None
    if not all(isinstance(d, int) for d in shape):
        return None
    small = (
        wide <= SMALL and deep <= SMALL_DEPTH and group is None and not isinstance(c, NhwcConvPlan)
    )
    return None if small else Panel(access.buffer, across, along, c.tile.columns, together)


def _dimension(index: tuple[Index, ...], axis: str) -> int | None:
    """The one dimension that an axis walks along."""
    found = [a for a, e in enumerate(index) if axis in axes_of(e)]
    return found[0] if len(found) == 1 else None


def _helps(kernel: Kernel, panel: Panel, target: Target) -> bool:
    """Whether the products that read the parameter would read its panels as they lie."""
    found = [
        c
        for c in _products(read_panels(kernel, panel), target)
        if (access := load_of(_operand(c))) and access.buffer == panel.param
    ]
    return bool(found) and all(c.panels for c in found)


__all__ = ["panels_of"]
