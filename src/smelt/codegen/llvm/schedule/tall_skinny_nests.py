"""The schedules of tall products: a nest for each, the last of which reads the sums where they are
made."""

from __future__ import annotations

from smelt.codegen.llvm.instructions.indexing import is_repeated
from smelt.codegen.llvm.loopir.items import Phase, accesses_of
from smelt.codegen.llvm.schedule.backward_slice import needed
from smelt.codegen.llvm.schedule.build_nests import Nest, Schedule, schedule
from smelt.codegen.llvm.schedule.operands import runs_across
from smelt.codegen.llvm.schedule.split_independent_outputs import disjoint, without_small
from smelt.codegen.llvm.schedule.tall_skinny import TallSkinnyPlan, readers, talls
from smelt.kernel.artifact import Form
from smelt.target import Target
from smelt.types.affine import coefficient
from smelt.types.expr import Index, axes_of


def scheduled(phase: Phase, target: Target, form: Form) -> list[Schedule]:
    """The loops of a phase in a form of its kernel, one after another: in those that take products
    with nothing but operators, each group of results that needs products of its own; of a map,
    small results before the others."""
    if form in ("tall", "few", "wide", "deep"):
        found = [_tall(p, talls(p, target, form)) for p in disjoint(phase)]
        made = [s for s in found if s is not None]
        if len(made) == len(found):
            return made
    return [schedule(p, target, form) for p in without_small(phase)]


def _tall(phase: Phase, products: tuple[TallSkinnyPlan, ...]) -> Schedule | None:
    if not products:
        return None
    nests = [_nest(phase, c) for c in products]
    last = products[-1]
    nests[-1].stores, nests[-1].items = phase.stores, readers(phase, [c.item for c in products])
    block = last.blocks(phase)
    taken = {last.m, last.n, *(c.k for c in products)}
    local = {a: block.get(a, n) for a, n in phase.axes.items() if a in taken}
    return Schedule(phase, last.tile.lanes, {c.item: c for c in products}, block, local, nests, {})


def _nest(phase: Phase, c: TallSkinnyPlan) -> Nest:
    """A product, with the nests that pack its operands."""
    order = (c.n, c.m) if c.turned else (c.m, c.n)
    left, right = (
        Nest(0, order, order[-1], saves=[x], items=needed(phase, [x], ()), packed=side)
        for order, x, side in (
            (c.left_order(), c.left, "left"),
            (c.right_order(), c.right, "right"),
        )
    )
    right.turned = [i for i in right.items if runs_across(i, c.n, c.k)]
    loads = accesses_of(right.items)
    even = all(coefficient(a.offset, c.n) is not None for a in loads)
    outside = any(c.n in axes_of(e) for a in loads for e, _ in a.limits)
    if not right.turned and even and (outside or any(_is_held(a.offset, c) for a in loads)):
        right.order = right.order[::-1]  # what is outside is tested, what is shared is gathered
    if c.deep:
        outer, inner = left.order
        left.turned = [i for i in left.items if runs_across(i, inner, outer)]
    return Nest(0, order, order[-1], product=c, packs=(left, right))


def _is_held(offset: Index, c: TallSkinnyPlan) -> bool:
    """Whether lanes of a vector of columns lie apart, and summed positions have the same ones."""
    return coefficient(offset, c.n) not in (0, 1) and is_repeated(offset, c.k)
