"""Fuse depthwise convolutions into the packer of the pointwise (1x1) convolution that reads them.

The pointwise convolution reads each depthwise result once for every block of weights, after a norm
and an activation.  With channels last the depthwise part reads its input in place; a task has one
row of its results at a time, in L1, and packs the pointwise convolution's image from it:

    for each row y:    sums[x, c] = depthwise(y)      image[y, x, c] = f(sums[x, c])
    then tiles:        out[y, x, m] += image[y, x, c] * weights[c, m]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.codegen.llvm.instructions.dot_product import choose_dot_instruction
from smelt.codegen.llvm.loopir.items import Dot, Item, Phase, Reduction
from smelt.codegen.llvm.loopir.rewrite import Draft, dependencies
from smelt.codegen.llvm.nests.contraction import renewed
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.conv_plan import window_plan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan, plan_depthwise_in_place
from smelt.machine.target import Target


def plan_depthwise_separable(
    phase: Phase, target: Target
) -> tuple[Phase, dict[Item, DepthwisePlan | NhwcConvPlan]]:
    """Plan the last contraction of a phase with depthwise ones fused into its packer.

    All other contractions must be depthwise convolutions that its image alone reads, one row of
    results after another.  Returns the rewritten phase; no plans if that is not so.
    """
    dots = [i for i in phase.items if isinstance(i, Dot)]
    if len(dots) < 2 or phase.cut or phase.regions() or phase.window_positions:
        return phase, {}
    draft = Draft(phase)
    *inner, last = dots
    plan = window_plan(last, draft, "", ordinary=True)
    if plan is None or plan.others or not plan.is_nhwc():
        return phase, {}
    if choose_dot_instruction(last, plan.left, plan.right, phase.dtypes, target) is not None:
        return phase, {}
    axes = [*(c.axis for c in plan.columns), plan.depth]
    candidates = [plan_depthwise_in_place(i, draft, target, plan.depth) for i in inner]
    depthwise = [c for c in candidates if c is not None and [x.axis for x in c.columns] == axes]
    if len(depthwise) < len(inner) or not _is_only_reader(phase, last, plan.right, inner):
        return phase, {}
    pointwise = replace(plan.plan_nhwc(target, alone=False), fuses_depthwise=True)
    lines = [
        replace(c.rewritten(target, ""), fused_lanes=pointwise.block, transpose_axis="")
        for c in depthwise
    ]
    assert all(c.rows_in_place is not None for c in lines)
    plans = [renewed(c, draft.latest) for c in (*lines, pointwise)]
    return draft.phase, {c.item: c for c in plans}


def _is_only_reader(phase: Phase, last: Item, image: Item, inner: Sequence[Item]) -> bool:
    """Return whether a contraction's image depends on some others, and nothing else does."""
    reductions = {i for i in phase.items if isinstance(i, Reduction)}
    image_reductions = {i for i in dependencies(image, {*phase.axes}) if i in reductions}
    roots = [i for i in phase.roots() if i is not last]
    read_elsewhere = {i for r in roots for i in _dependencies_except(r, last)} & {*inner}
    return image_reductions == {*inner} and reductions == {*inner, last} and not read_elsewhere


def _dependencies_except(root: Item, last: Item) -> set[Item]:
    """Return what a value depends on through paths that avoid one contraction."""
    pending, seen = [root], {root}
    while pending:
        item = pending.pop()
        new_args = [a for a in item.args if a not in seen and a is not last]
        seen.update(new_args)
        pending += new_args
    return seen
