"""The schedule of a tall product: one nest, which reads the sums where they are made."""

from __future__ import annotations

from smelt.codegen.llvm.items import Phase
from smelt.codegen.llvm.nests import Nest, Schedule, schedule
from smelt.codegen.llvm.operands import runs_across
from smelt.codegen.llvm.tall import Tall, needed, readers, tall
from smelt.kernel.built import Form
from smelt.target import Target


def scheduled(phase: Phase, target: Target, form: Form) -> Schedule:
    """The loops of a phase in a form of its kernel."""
    found = tall(phase, target, form) if form in ("tall", "few", "wide", "deep") else None
    return schedule(phase, target, form) if found is None else _tall(phase, found)


def _tall(phase: Phase, c: Tall) -> Schedule:
    order = (c.n, c.m) if c.turned else (c.m, c.n)
    made = readers(phase, c.item)
    nest = Nest(0, order, order[-1], stores=phase.stores, items=made, product=c)
    left, right = (
        Nest(0, order, order[-1], saves=[x], items=needed(phase, [x], c.item), packed=side)
        for order, x, side in (
            (c.left_order(), c.left, "left"),
            (c.right_order(), c.right, "right"),
        )
    )
    right.turned = [i for i in right.items if runs_across(i, c.n, c.k)]
    if c.deep:
        outer, inner = left.order
        left.turned = [i for i in left.items if runs_across(i, inner, outer)]
    nest.packs = (left, right)
    block = c.blocks(phase)
    local = {a: block.get(a, n) for a, n in phase.axes.items() if a in {c.m, c.n, c.k}}
    return Schedule(phase, c.tile.lanes, {c.item: c}, block, local, [nest], {})
