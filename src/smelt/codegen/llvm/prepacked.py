"""Pack the right operands of a kernel once per call, in a separate phase.

    kernel k0(x: f32[m,k], w: f32[k,n], ..)       w in panels:  p[j, k, i] = w[k, 32*j + i]
                                                  k0 reads p where it read w

A task that reduces full rows of a GEMM's result takes few rows, since their sums stay in cache, and
packs all of the right operand for them.  Here a phase before packs it for all tasks of all threads;
the code that follows is that for a prepacked constant operand.  The panels are memory that the
caller provides for the call, so their size is limited; the variant "packed" is for sizes within the
limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from smelt.codegen.llvm.loopir.items import Buffer, Phase, Program
from smelt.codegen.llvm.panels import prepackable_panels
from smelt.codegen.llvm.program import program
from smelt.kernel import ir as k
from smelt.kernel.artifact import SizeLimits
from smelt.kernel.packed_weights import Panel, packed_shape, read_panels
from smelt.kernel.walk import map_values, splits
from smelt.machine.blocks import PREPACKED, UNPACKED
from smelt.machine.target import Target
from smelt.types.expr import Index, add, mul, product, sub


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
