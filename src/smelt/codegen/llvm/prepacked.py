"""Choose operands that are worth prepacking in panels, or pack them once per call.

A GEMM's inner loop reads its right operand in panels as wide as the register tile, a channels-last
convolution its weights.  If that operand is one array, in place, and the same in every call, it may
be stored in panels in the first place.

    kernel k0(x: f32[m,k], w: f32[k,n], ..)       w in panels:  p[j, k, i] = w[k, 32*j + i]
                                                  k0 reads p where it read w

A task that reduces full rows of a GEMM's result takes few rows, since their sums stay in cache, and
packs all of the right operand for them.  There a phase before packs it for all tasks of all
threads; the code that follows is that for a prepacked constant operand.  The panels are memory that
the caller provides for the call, so their size is limited; the variant "packed" is for sizes within
the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from smelt.codegen.llvm.loopir.items import Buffer, Phase, Program
from smelt.codegen.llvm.nests.product_plan import PanelOperand, ProductPlan
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.contract import contractions
from smelt.codegen.llvm.schedule.conv_plan import NHWC_VARIANT
from smelt.codegen.llvm.schedule.operands import packs_stored_bits, plain_load
from smelt.kernel import ir as k
from smelt.kernel.artifact import SizeLimits
from smelt.kernel.ir import Kernel
from smelt.kernel.packed_weights import Panel, packed_shape, read_panels
from smelt.kernel.walk import loads, map_values, splits
from smelt.machine.blocks import PREPACKED, UNPACKED
from smelt.machine.target import Target
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, add, axes_of, mul, product, sub


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


def packed_limits(kernel: k.Kernel, target: Target) -> SizeLimits:
    """Return the sizes for which the variant pays.

    Enough rows, full panels, and operands that are neither so small that they are read in place nor
    larger than the limit.
    """
    limits: list[tuple[Index, int]] = []
    for panel, rows in _panels(kernel, target):
        shape = kernel.param(panel.param).shape
        size = product(shape)
        limits += [
            (sub(UNPACKED.mc + 1, rows), 0),
            (sub(panel.width, shape[panel.n_dim]), 0),
            (sub(UNPACKED.mc * UNPACKED.kc + 1, size), 0),
            (size, PREPACKED),
        ]
    return tuple(dict.fromkeys(limits))


def packed_program(kernel: k.Kernel, target: Target) -> Program:
    """Lower a kernel with its operands packed by phases of their own, which come first."""
    original, changed = program(kernel), kernel
    phases, partials = list[Phase](), list[Buffer]()
    for number, (panel, _) in enumerate(_panels(kernel, target)):
        name = f"{panel.param}.panels"
        pack = _packing_kernel(kernel, panel, name, f"{kernel.name}.pack{number}")
        (panels_param,) = pack.outputs
        changed = _rename_param(read_panels(changed, panel), panel.param, name)
        phases += program(pack).phases
        nbytes = mul(product(panels_param.shape), panels_param.dtype.itemsize)
        partials.append(Buffer(name, panels_param.dtype, True, nbytes))
    phases += program(changed).phases
    buffers = (*original.buffers, *partials)
    return Program(kernel.name, buffers, original.strides, tuple(phases), tuple(partials))


def _panels(kernel: k.Kernel, target: Target) -> Iterator[tuple[Panel, Index]]:
    """Yield the operands to pack, with the rows that are multiplied with each.

    Not those of a stream, which meets its operands block by block, nor short numbers in groups.
    """
    if splits(kernel) or any(isinstance(s, k.Stream) for s in kernel.body):
        return
    names = frozenset(p.name for p in kernel.inputs)
    for panel, rows in prepackable_panels(kernel, target, names, open_sizes=True):
        if panel.group == 1:
            yield panel, rows


def _rename_param(kernel: k.Kernel, old: str, new: str) -> k.Kernel:
    inputs = tuple(replace(p, name=new) if p.name == old else p for p in kernel.inputs)
    return replace(
        map_values(
            kernel,
            lambda v: replace(v, param=new) if isinstance(v, k.Load) and v.param == old else v,
        ),
        inputs=inputs,
    )


def _packing_kernel(kernel: k.Kernel, panel: Panel, name: str, title: str) -> k.Kernel:
    """Return the kernel that packs an operand, with zeros after its last column."""
    source = kernel.param(panel.param)
    shape = packed_shape(source.shape, panel)
    axes = tuple(k.Axis(f"p{d}", n) for d, n in enumerate(shape))
    *others, panels, along, inside = (a.index for a in axes)
    index, other_indices = list[Index](), iter(others)
    for d in range(len(source.shape)):
        column = add(mul(panels, panel.width), inside)
        index.append(
            column if d == panel.n_dim else along if d == panel.k_dim else next(other_indices)
        )
    zero = k.Const(0.0 if source.dtype.is_float else 0, source.dtype.compute)
    panels_param = k.Param(name, source.dtype, shape)
    store = k.Store(name, tuple(a.index for a in axes), k.Load(source.name, tuple(index), zero))
    grid = tuple(k.Block(a.name, 1) for a in axes)
    return k.Kernel(title, (source,), (panels_param,), axes, grid, (store,), facts=kernel.facts)
