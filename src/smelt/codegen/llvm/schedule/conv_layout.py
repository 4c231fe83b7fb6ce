"""Products over windows that stand upright though their image or result has its channels first.

Squares of the image change rows with columns while they are packed, and squares of the sums when
all are there.  Between them tiles multiply as with channels last, without the margins between lines
that the other form computes in vain, and with weights that lie in panels, or whose squares are
turned as well.  Others would be gathered by every task: such products stay as they are, but for
those of few channels.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.llvm.instructions.dot_product import group_of
from smelt.codegen.llvm.schedule.contract import stored_axis
from smelt.codegen.llvm.schedule.conv_nhwc import CHANNELS, FEW, in_panels, upright_tile
from smelt.codegen.llvm.schedule.filter_contiguity import run_of
from smelt.codegen.llvm.schedule.operands import runs_along
from smelt.target import Target
from smelt.types.dtype import f32

if TYPE_CHECKING:
    from smelt.codegen.llvm.schedule.conv_plan import WindowPlan

TURNED = 10
"""Products that take as long as to turn one element and to store it again."""
SAVED = 0.1
"""What part of its products the usual form takes longer."""
UPRIGHT = "upright"
"""The form of a phase whose weights are taken to lie in panels, to see whether they had better."""


Sides: TypeAlias = tuple[bool, bool]
"""Whether squares of an image are turned, and of results."""


def choose_conv_layout(plan: WindowPlan, target: Target, form: str) -> Sides | None:
    """Whether squares of the image are turned, and of the results, if the only product of a phase
    had better stand upright so; None if not."""
    phase, last = plan.phase, plan.columns[-1]
    if not plan.depth or phase.places or phase.regions() or plan.item.dtype != f32:
        return None
    if not {*plan.others} <= {c.tap for c in plan.columns}:
        return None  # each tap's places are packed by themselves, taps along the line last
    if group_of(plan.item, plan.left, plan.right, phase.dtypes, target) is not None:
        return None
    deep, wide = phase.axes[plan.depth], phase.axes[plan.m]
    if not isinstance(deep, int) or not isinstance(wide, int):
        return None
    lying = runs_along(plan.right, (last.axis, last.tap or last.axis, plan.depth))
    stored = stored_axis(phase)
    if stored not in (plan.m, last.axis):
        return None
    image, result = lying != plan.depth, stored != plan.m
    over = plan.depth, plan.others
    width = upright_tile(target, target.vector_bytes // 4, odd=False).columns
    panels = in_panels(plan.left, plan.item, over, plan.m, width, phase)
    extents = {a: n for a in plan.others if isinstance(n := phase.axes[a], int)}
    runs = deep > FEW and run_of(plan.left, plan.m, plan.depth, extents) is not None
    if not (panels or runs or form == UPRIGHT or 0 < deep <= FEW):
        return None  # those of colours, and in squares, are soon packed
    taps = prod(extents.values())
    places = prod(c.step for c in plan.columns)
    turned = deep * places * -(-wide // CHANNELS) * image + wide * result
    return (image, result) if turned * TURNED < SAVED * deep * wide * taps else None


__all__ = ["UPRIGHT", "Sides", "choose_conv_layout"]
