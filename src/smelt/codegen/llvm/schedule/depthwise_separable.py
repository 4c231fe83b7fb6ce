"""Products whose image is made of stencils: these are computed line by line while it is packed.

A 1x1 convolution after a depthwise one reads each of its results once for every block of weights,
after a norm and an activation.  With channels last the depthwise part is a stencil that reads lines
where they lie; of a task it has one line of results at a time, in the nearest cache, and what the
product packs is made of that:

    for each line y:   sums[x, c] = stencil(y)      image[y, x, c] = f(sums[x, c])
    then tiles:        out[y, x, m] += image[y, x, c] * weights[c, m]
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.llvm.instructions.dot_product import group_of
from smelt.codegen.llvm.loopir.clone import reached
from smelt.codegen.llvm.loopir.items import Item, Phase
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.schedule.conv_plan import window_plan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan, stencil_of
from smelt.target import Target


def over_stencils(phase: Phase, target: Target) -> dict[Item, DepthwisePlan | NhwcConvPlan]:
    """The last product of a phase and the stencils that all others are, if its image alone reads
    them, one line of results after another."""
    dots = [i for i in phase.items if i.kind == "dot"]
    if len(dots) < 2 or phase.cut or phase.regions() or phase.places:
        return {}
    *inner, last = dots
    plan = window_plan(last, phase, "", ordinary=True)
    if plan is None or plan.others or not plan.stands_upright():
        return {}
    if group_of(last, plan.left, plan.right, phase.dtypes, target) is not None:
        return {}
    axes = [*(c.axis for c in plan.columns), plan.depth]
    made = [stencil_of(i, phase, target, plan.depth) for i in inner]
    found = [c for c in made if c is not None and [x.axis for x in c.columns] == axes]
    if len(found) < len(inner) or not _hosts(phase, last, plan.right, inner):
        return {}
    host = replace(plan.upright(target, alone=False), hosts=True)
    lines = [replace(c.rewritten(target, ""), within=host.block, across="") for c in found]
    assert all(c.lies is not None for c in lines)
    return {**{c.item: c for c in lines}, last: host}


def _hosts(phase: Phase, last: Item, image: Item, inner: list[Item]) -> bool:
    """Whether the image of a product is made of some others, and nothing else is."""
    folded = {i for i in phase.items if i.kind in ("fold", "dot", "scan")}
    made = {i for i in reached(image, {*phase.axes}) if i in folded}
    roots = [i for i in phase.roots() if i is not last]
    beside = {i for r in roots for i in _without(r, last)} & {*inner}
    return made == {*inner} and folded == {*inner, last} and not beside


def _without(root: Item, last: Item) -> set[Item]:
    """What a value is made of, where that does not pass through one product."""
    pending, seen = [root], {root}
    while pending:
        item = pending.pop()
        fresh = [a for a in item.args if a not in seen and a is not last]
        seen.update(fresh)
        pending += fresh
    return seen


__all__ = ["over_stencils"]
