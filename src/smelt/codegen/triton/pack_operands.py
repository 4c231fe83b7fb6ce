"""Copy an operand into the order that tiles read, in a launch before the product.

    v = dot(x[p,i+u,j+w,c], k[o,c,u,w] over c, u, w)      k_packed[u,w,c,o] = k[o,c,u,w]
                                                          ---- and in a second launch ----
                                                          .. k_packed[u,w,c,o] ..

A loop over the taps of a window has one tap in a step: neighbours along taps, as weights of PyTorch
are stored, would be loaded element by element from sectors of their own. Matrix units of tf32 and
of bytes read operands from shared memory that are contiguous along the sum: others are copied there
by elements, in every step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from smelt.codegen.triton.block_axes import dots_of
from smelt.codegen.triton.narrow_products import operand_loads
from smelt.kernel.canonical import names_of, unused_name
from smelt.kernel.ir import Block, Kernel, Load, Param, Store, Value
from smelt.kernel.walk import map_values
from smelt.ops.contract import bare_axis
from smelt.types.dtype import DType
from smelt.types.expr import evaluate, product

COPY_BLOCK = 1024
"""Positions of the last axis of a copy in a program."""


def pack_operands(
    launch: Kernel, sizes: Mapping[str, int], transposed: Collection[DType] = ()
) -> tuple[Kernel, ...]:
    """Return a launch for each copy of an operand, and the product last.

    Products whose operands all have `transposed` types get these contiguous along the sum, as far
    as their copies take no more memory than the results.
    """
    copies: list[Kernel] = []
    loads = operand_loads(launch) if len(dots_of(launch.body)) == 1 else {}
    transposes = all(launch.param(x.param).dtype in transposed for x in loads)
    for load in loads:
        order = _packed_order(launch, load, sizes, transposes=transposes)
        if order is None:
            continue
        axes = tuple(launch.axis(a) for a in order)
        param, name = (
            launch.param(load.param),
            unused_name(f"{load.param}_packed", {*names_of(launch)}),
        )
        packed = Param(name, param.dtype, tuple(a.extent for a in axes))
        place = tuple(a.index for a in axes)
        grid = (*(Block(a, 1) for a in order[:-1]), Block(order[-1], COPY_BLOCK))
        body = (Store(name, place, load),)
        copies.append(Kernel(f"{launch.name}_{name}", (param,), (packed,), axes, grid, body))
        launch = _reading(launch, load, replace(load, param=name, index=place), packed)
    return (*copies, launch)


def _packed_order(
    launch: Kernel, load: Load, sizes: Mapping[str, int], *, transposes: bool
) -> Sequence[str] | None:
    """Return the axes of a packed operand: taps, others, and last those of a tile.

    None for an operand whose neighbours are in a tile, or that is not read as a whole.
    """
    (dot,) = dots_of(launch.body)
    param, names = launch.param(load.param), [bare_axis(e) for e in load.index]
    axes = [a for a in names if a is not None]
    if len({*axes}) < len(names) or param.strides is not None or param.each or load.other:
        return None
    if any(launch.axis(a).extent != n for a, n in zip(axes, param.shape, strict=True)):
        return None
    extents = {a: int(evaluate(launch.axis(a).extent, sizes)) for a in axes}
    summed = [a for a in axes if a in dot.over]
    is_across = len(summed) == 1 and axes[-1] not in summed
    if transposes and is_across and prod(extents.values()) <= _result_elements(launch, sizes):
        return (*(a for a in axes if a not in summed), *summed)
    if not summed or axes[-1] not in summed:
        return None
    longest = max(summed, key=extents.__getitem__)
    taps = [a for a in summed if a != longest]
    others = [a for a in axes if a not in summed]
    if axes[-1] == longest or extents[axes[-1]] == 1 or not others:
        return None
    return (*taps, *others[:-1], longest, others[-1])


def _result_elements(launch: Kernel, sizes: Mapping[str, int]) -> int:
    return sum(int(evaluate(product(p.shape), sizes)) for p in launch.outputs)


def _reading(launch: Kernel, old: Load, new: Load, packed: Param) -> Kernel:
    """Return a launch that reads the packed operand."""

    def change(v: Value) -> Value:
        return new if v == old else v

    changed = map_values(launch, change)
    return replace(changed, inputs=(*launch.inputs, packed))
