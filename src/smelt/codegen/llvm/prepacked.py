"""Right operands that are packed once in a call, before a kernel's own tasks.

    kernel k0(x: f32[m,k], w: f32[k,n], ..)       w in panels:  p[j, k, i] = w[k, 32*j + i]
                                                  k0 reads p where it read w

A task that folds whole rows of a product takes few rows, since their sums stay in cache, and packs
all of the right operand for them.  Here a phase before that one packs it for all tasks of all
threads: the code that follows is that of an operand which has been constant, and packed long ago.
The panels are memory that the caller provides for the call, so there is a limit to them; the form
"packed" is for sizes within it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from smelt.blocks import PREPACKED, SMALL, SMALL_DEPTH
from smelt.codegen.llvm.loopir.items import Buffer, Program
from smelt.codegen.llvm.panels import panels_of
from smelt.codegen.llvm.program import program
from smelt.kernel import ir as k
from smelt.kernel.artifact import Limits
from smelt.kernel.packed_weights import Panel, panelled_shape, read_panels
from smelt.kernel.walk import map_values, splits
from smelt.target import Target
from smelt.types.expr import Index, add, mul, product, sub


def packed_limits(kernel: k.Kernel, target: Target) -> Limits:
    """Where the form pays: as many rows as packing takes, panels that are full, and operands that
    are neither so small that they are read as they lie nor larger than the limit."""
    limits: list[tuple[Index, int]] = []
    for panel, rows in _panels(kernel, target):
        shape = kernel.param(panel.param).shape
        size = product(shape)
        limits += [
            (sub(SMALL + 1, rows), 0),
            (sub(panel.width, shape[panel.across]), 0),
            (sub(SMALL * SMALL_DEPTH + 1, size), 0),
            (size, PREPACKED),
        ]
    return tuple(dict.fromkeys(limits))


def packed_program(kernel: k.Kernel, target: Target) -> Program:
    """The kernel with its operands packed by phases of their own, which come first."""
    plain, changed, phases, partials = program(kernel), kernel, [], list[Buffer]()
    for number, (panel, _) in enumerate(_panels(kernel, target)):
        name = f"{panel.param}.panels"
        pack = _packing(kernel, panel, name, f"{kernel.name}.pack{number}")
        (made,) = pack.outputs
        changed = _renamed(read_panels(changed, panel), panel.param, name)
        phases += program(pack).phases
        nbytes = mul(product(made.shape), made.dtype.itemsize)
        partials.append(Buffer(name, made.dtype, True, nbytes))
    phases += program(changed).phases
    buffers = [*plain.buffers, *partials]
    return Program(kernel.name, buffers, plain.strides, phases, partials)


def _panels(kernel: k.Kernel, target: Target) -> Iterator[tuple[Panel, Index]]:
    """The operands that can be packed so, with the rows that are multiplied by each: not of a
    stream, which meets its operands block by block, nor of short numbers in groups."""
    if splits(kernel) or any(isinstance(s, k.Stream) for s in kernel.body):
        return
    names = frozenset(p.name for p in kernel.inputs)
    for panel, rows in panels_of(kernel, target, names, open_sizes=True):
        if panel.group == 1:
            yield panel, rows


def _renamed(kernel: k.Kernel, old: str, new: str) -> k.Kernel:
    """The kernel with a parameter under another name."""
    inputs = tuple(replace(p, name=new) if p.name == old else p for p in kernel.inputs)
    return replace(
        map_values(
            kernel,
            lambda v: replace(v, param=new) if isinstance(v, k.Load) and v.param == old else v,
        ),
        inputs=inputs,
    )


def _packing(kernel: k.Kernel, panel: Panel, name: str, title: str) -> k.Kernel:
    """The kernel that packs an operand: 0 beyond its last column."""
    source = kernel.param(panel.param)
    shape = panelled_shape(source.shape, panel)
    axes = tuple(k.Axis(f"p{d}", n) for d, n in enumerate(shape))
    *others, panels, along, inside = (a.index for a in axes)
    index, rest = list[Index](), iter(others)
    for d in range(len(source.shape)):
        whole = add(mul(panels, panel.width), inside)
        index.append(whole if d == panel.across else along if d == panel.along else next(rest))
    zero = k.Const(0.0 if source.dtype.is_float else 0, source.dtype.compute)
    made = k.Param(name, source.dtype, shape)
    store = k.Store(name, tuple(a.index for a in axes), k.Load(source.name, tuple(index), zero))
    grid = tuple(k.Block(a.name, 1) for a in axes)
    return k.Kernel(title, (source,), (made,), axes, grid, (store,), facts=kernel.facts)


__all__ = ["packed_limits", "packed_program"]
