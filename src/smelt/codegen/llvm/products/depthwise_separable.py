"""Fuse a depthwise convolution into the packing of the pointwise GEMM which reads it.

The depthwise part is emitted row by row while the product packs its input.  If the input is made of
the sums and of per-channel values alone (a norm, an activation), the depthwise tiles apply that
epilogue in registers and store the packed input themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.loopir.items import Apply, Const, Item, Load
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.nests.product_plan import RIGHT_PART
from smelt.codegen.llvm.products.depthwise import Depthwise, Epilogue
from smelt.codegen.llvm.products.microkernel import strip_mine_axis
from smelt.codegen.llvm.products.packing import Packer
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.types.dtype import DType
from smelt.types.expr import axes_of, coefficient

Value = ir.Value


def find_epilogue(
    s: Schedule, c: DepthwisePlan, image: Item, dtypes: Mapping[str, DType]
) -> Epilogue | None:
    """Return the epilogue which makes the input of a product from a depthwise convolution's sums.

    None if it needs more than the sums and per-channel values, or other types.
    """
    ops, reads = list[Const | Apply](), list[Load]()
    needed = {*_needed(image, c.item)}
    for item in (i for i in s.phase.items if i in needed):
        if isinstance(item, Load):
            if not _is_fixed(item, c):
                return None
            reads.append(item)
        elif not isinstance(item, (Const, Apply)):
            return None
        else:
            ops.append(item)
        if item.dtype != c.item.dtype:
            return None
    stored = tuple(dtypes[i.access.buffer] for i in reads)
    if image not in needed:
        return None
    return Epilogue(s.phase.items.index(c.item), c.item, tuple(ops), tuple(reads), stored)


def _needed(image: Item, sums: Item) -> list[Item]:
    """Return all items from which an image is computed, up to the sums."""
    pending, needed = [image], dict[Item, None]()
    while pending:
        item = pending.pop()
        if item is not sums and item not in needed:
            needed[item] = None
            pending += item.args
    return [*needed]


def _is_fixed(item: Load, c: DepthwisePlan) -> bool:
    """Return whether a load has one value per channel, contiguous, or one for all."""
    access, pixel_axes = item.access, {k.axis for k in c.columns[:-1]}
    if access.limits or access.positions or item.args:
        return False
    channel_step = coefficient(access.offset, c.lane)
    return pixel_axes.isdisjoint(axes_of(access.offset)) and channel_step in (0, 1)


def fused_depthwise(env: Environment, image: Item) -> list[Depthwise]:
    """Return the depthwise convolutions which are fused into the product of an image."""
    plans = (
        (n, cast(DepthwisePlan, n.product))
        for n in env.s.nests
        if n.product is not None and n.product.driver == "depthwise_fused"
    )
    return [
        Depthwise(env, nest, c, find_epilogue(env.s, c, image, env.frame.dtypes))
        for nest, c in plans
    ]


def pack_by_rows(
    packer: Packer, nest: Nest, fused: Sequence[Depthwise], outer: Sequence[str]
) -> None:
    """Pack an image row by row, with the depthwise convolutions fused in.

    Convolutions with an epilogue store packed elements themselves; otherwise the packing nest reads
    one row of their results in scratch.
    """
    env, starts = packer.env, {a: packer.env.ranges[a][0] for a in nest.order}
    lane_starts = dict(env.starts)
    for stencil in fused:
        with env.within(products=stencil, starts=lane_starts):
            stencil.pack_operands()
        lane_starts = {
            **lane_starts,
            (None, stencil.c.lane): env.ranges[stencil.c.lane][0],
        }

    def rows(axes: Sequence[str]) -> None:
        if axes:
            strip_mine_axis(env, axes[0], 1, lambda: rows(axes[1:]))
            return
        row_starts = {**lane_starts, **{(None, a): env.ranges[a][0] for a in outer}}
        with env.within(products=fused[-1], starts=row_starts):
            for stencil in fused:
                if stencil.epilogue is not None:
                    strides = packer.packed_right_strides
                    stencil.store_to(
                        packer.at(RIGHT_PART, packed_row_offset(packer, starts, outer)),
                        {k.axis: strides[k.axis] for k in stencil.c.columns[:-1]},
                    )
                stencil.full_tiles()
        if any(stencil.epilogue is None for stencil in fused):
            with env.within(products=packer, starts=row_starts):
                packer.pack(nest, starts=starts)

    rows(outer)


def packed_row_offset(packer: Packer, starts: dict[str, Value], outer: Sequence[str]) -> Value:
    """Return the packed offset of the current row."""
    b, total = packer.b, ir.Constant(ir.IntType(64), 0)
    for a in outer:
        position = b.sub(packer.env.ranges[a][0], starts[a])
        total = b.add(total, b.mul(position, packer.packed_right_strides[a]))
    return total
