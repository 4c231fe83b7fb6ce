"""Choose the operands of a kernel's contractions that are worth prepacking.

A GEMM's inner loop reads its right operand in panels as wide as the register tile, a channels-last
convolution its weights.  If that operand is one array, in place, and the same in every call, it may
be stored in panels in the first place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.codegen.llvm.nests.product_plan import PanelOperand, ProductPlan
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.contract import contractions
from smelt.codegen.llvm.schedule.conv_plan import NHWC_VARIANT
from smelt.codegen.llvm.schedule.operands import packs_stored_bits, plain_load
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import Panel, read_panels
from smelt.kernel.walk import loads
from smelt.machine.blocks import UNPACKED
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
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
            panel_of[panel.param] = panel, _rows(kernel, c.operand)
    return tuple(panel_of.values())


@dataclass(frozen=True, slots=True)
class _Panelled:
    """A plan, and its operand that the inner loop reads in panels."""

    plan: ProductPlan
    operand: PanelOperand


def _rows(kernel: Kernel, c: PanelOperand) -> Index:
    """Return the rows that are multiplied with the operand, in all tasks.

    An axis that the code has split counts once, as a whole.
    """
    access = plain_load(c.item)
    assert access is not None
    operand_axes = {
        a for x in loads(kernel) if x.param == access.buffer for e in x.index for a in axes_of(e)
    }
    rows: Index = 1
    names = (a.partition(".")[0] for a in c.row_axes)
    for a in dict.fromkeys(names):
        if a not in operand_axes:
            rows = mul(rows, kernel.axis(a).extent)
    return rows


def _products(kernel: Kernel, target: Target) -> Iterator[_Panelled]:
    for phase in program(kernel).phases:
        yield from _panelled(schedule(phase, target).products.values())


def _panelled(plans: Iterable[ProductPlan]) -> Iterator[_Panelled]:
    for c in plans:
        operand = c.panel_operand()
        if operand is not None:
            yield _Panelled(c, operand)


def _candidates(kernel: Kernel, target: Target) -> Iterator[_Panelled]:
    """Yield the plans of a kernel's contractions.

    If several axes walk their columns (heads, and channels of each), as they would be if their
    right operand were in panels along the last one.
    """
    for phase in program(kernel).phases:
        plans = schedule(phase, target).products
        if plans and all(c.driver == "nchw" for c in plans.values()):
            nhwc = schedule(phase, target, NHWC_VARIANT)
            yield from _panelled(nhwc.products.values())
        if not plans.packed or not all(c.has_plain_columns for c in plans.packed):
            yield from _panelled(plans.values())
        else:
            yield from _panelled(contractions(phase, target).values())


def _panel(
    kernel: Kernel, c: _Panelled, constant: frozenset[str], *, open_sizes: bool
) -> Panel | None:
    """Return how the operand of a contraction is to be packed, or None."""
    plan, operand = c.plan, c.operand
    access, group = plain_load(operand.item), operand.group
    if open_sizes and operand.is_transposed:
        return None  # a task that packs transposed filters quickly has its panels in cache
    packs = operand.packs and not operand.is_prepacked
    if not packs or access is None or access.buffer not in constant:
        return None
    if not packs_stored_bits(operand.item, plan.item, group, kernel.param(access.buffer).dtype):
        return None
    reads = {x.index for x in loads(kernel) if x.param == access.buffer}
    if len(reads) != 1:
        return None
    (index,) = reads
    across, along = _dimension(index, plan.n), _dimension(index, plan.k)
    if across is None or along is None or across == along:
        return None
    shape = kernel.param(access.buffer).shape
    columns, depth = shape[across], shape[along]
    panel = Panel(
        access.buffer, across, along, plan.tile.columns, 1 if group is None else group.count
    )
    if not all(isinstance(d, int) for d in shape):
        return panel if open_sizes else None
    if not isinstance(columns, int) or not isinstance(depth, int) or columns < panel.width:
        return None
    in_place = operand.is_small and columns <= UNPACKED.mc and depth <= UNPACKED.kc
    return None if in_place else panel


def _dimension(index: tuple[Index, ...], axis: str) -> int | None:
    """Return the only dimension that an axis walks along."""
    dims = [a for a, e in enumerate(index) if axis in axes_of(e)]
    return dims[0] if len(dims) == 1 else None


def _helps(kernel: Kernel, panel: Panel, target: Target) -> bool:
    """Return whether all contractions that read the parameter would read its panels in place."""
    plans = [
        c
        for c in _products(read_panels(kernel, panel), target)
        if (access := plain_load(c.operand.item)) and access.buffer == panel.param
    ]
    return bool(plans) and all(c.operand.is_prepacked for c in plans)
