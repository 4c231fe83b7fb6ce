"""Decide which operands of a channels-first convolution are transposed to channels last.

The image is transposed tile by tile while it is packed, and the accumulators when all sums are
done.  Between them the microkernel runs as for channels last: without the padding columns between
rows that the channels-first plan computes in vain, and with weights that are prepacked, or
transposed as well.  If the weights would have to be gathered by every task, the convolution stays
channels first, except for few input channels.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.llvm.instructions.dot_product import choose_dot_instruction
from smelt.codegen.llvm.loopir.operand_strides import contiguous_axis
from smelt.codegen.llvm.schedule.contract import stored_axis
from smelt.codegen.llvm.schedule.conv_nhwc import (
    MAX_FEW_CHANNELS,
    TASK_CHANNELS,
    are_weights_prepacked,
    contiguous_filter_load,
    nhwc_tile,
)
from smelt.machine.target import Target
from smelt.types.dtype import f32

if TYPE_CHECKING:
    from smelt.codegen.llvm.schedule.conv_plan import WindowPlan

__all__ = ["NHWC_VARIANT", "Sides", "choose_conv_layout"]


TRANSPOSE_FMAS = 10
"""Multiply-adds that take as long as transposing one element and storing it again."""


MAX_TRANSPOSE_SHARE = 0.1
"""Largest transposition cost, as a share of the multiply-adds, that the channels-last plan makes up
for."""


NHWC_VARIANT = "nhwc"
"""The variant that assumes prepacked weights, to see whether prepacking would pay."""


Sides: TypeAlias = tuple[bool, bool]
"""Whether the image is transposed, and whether the results are."""


def choose_conv_layout(plan: WindowPlan, target: Target, form: str) -> Sides | None:
    """Return which of image and results to transpose for a channels-last plan.

    None if the convolution stays channels first.  It must be the only contraction of its phase.
    """
    phase, last = plan.phase, plan.columns[-1]
    if not plan.depth or phase.window_positions or phase.regions() or plan.item.dtype != f32:
        return None
    if not {*plan.others} <= {c.tap for c in plan.columns}:
        return None  # each tap's positions are packed separately, with taps along the row last
    if choose_dot_instruction(plan.item, plan.left, plan.right, phase.dtypes, target) is not None:
        return None
    in_channels, out_channels = phase.axes[plan.depth], phase.axes[plan.m]
    if not isinstance(in_channels, int) or not isinstance(out_channels, int):
        return None
    image_axis = contiguous_axis(plan.right, (last.axis, last.tap or last.axis, plan.depth))
    stored = stored_axis(phase)
    if stored not in (plan.m, last.axis):
        return None
    image, result = image_axis != plan.depth, stored != plan.m
    over = plan.depth, plan.others
    width = nhwc_tile(target, target.vector_bytes // 4, odd=False).columns
    prepacked = are_weights_prepacked(plan.left, plan.item, over, plan.m, width, phase)
    extents = {a: n for a in plan.others if isinstance(n := phase.axes[a], int)}
    contiguous = (
        in_channels > MAX_FEW_CHANNELS
        and contiguous_filter_load(plan.left, plan.m, plan.depth, extents) is not None
    )
    if not (prepacked or contiguous or form == NHWC_VARIANT or 0 < in_channels <= MAX_FEW_CHANNELS):
        return None  # packing strided weights costs too much, unless channels are few
    taps = prod(extents.values())
    phases = prod(c.step for c in plan.columns)
    transposed_elements = (
        in_channels * phases * -(-out_channels // TASK_CHANNELS) * image + out_channels * result
    )
    return (
        (image, result)
        if transposed_elements * TRANSPOSE_FMAS
        < MAX_TRANSPOSE_SHARE * in_channels * out_channels * taps
        else None
    )
