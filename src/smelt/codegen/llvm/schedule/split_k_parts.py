"""Split a GEMV whose factors are concatenated along k into one for each part.

Such a factor selects by k in every lane.  The order of a sum is free: summed part by part, nothing
is selected, and each part is read in the order in which it is stored.  Halves of bytes, say:

    dot(x[k], select(k%2 < 1, q[k//2] & 15, q[k//2] >> 4) over k)      k < 2*K
    is
    dot(x[2*p], q[p] & 15 over p) + dot(x[2*p + 1], q[p] >> 4 over p)      p < K

Other contractions stay as they are: packing selects an element once for many rows.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, lcm

from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.loopir.items import Apply, Dot, Item, Load, accesses_of, apply
from smelt.codegen.llvm.loopir.periodic_index import find_period
from smelt.codegen.llvm.loopir.rewrite import (
    Cloner,
    Draft,
    dependencies,
    depends_on_reduction,
    insert_before,
    prune,
)
from smelt.codegen.llvm.loops.fold_selects import selected_side
from smelt.kernel.bounds import proves_inside
from smelt.ops.combine import CHOICE, COMBINES, SUM_OF_PRODUCTS
from smelt.types.expr import Index, add, axes_of, axis, coefficient, floordiv, mod, mul, substitute

MAX_K_PARTS = 8
"""Maximum parts: eight numbers of four bits share a word of 32."""


def split_k_parts(draft: Draft, dot: Dot, right: Item, k: str) -> list[Dot]:
    """Replace a contraction over `k` by the sum of contractions over its parts.

    Returns these contractions; empty if the factors select nothing by `k`, or if the parts of
    `right` would be read with gaps.
    """
    phase = draft.phase
    extent = phase.axes[k]
    if not isinstance(extent, int) or phase.regions() or k in phase.cut:
        return []
    run, parts = _runs(dot, k, extent)
    if parts == 1:
        return []
    name = f"{k}.part"
    while name in phase.axes:
        name += "'"
    position = axis(name, extent // parts)
    starts = add(mul(floordiv(position, run), run * parts), mod(position, run))
    ats = [add(starts, first) for first in range(0, run * parts, run)]
    offsets = [a.offset for a in accesses_of(dependencies(right, {k}))]
    steps = {coefficient(substitute(e, {k: at}), name) for e in offsets for at in ats}
    if not steps <= {0, 1, None}:
        return []
    draft.add_axis(name, extent // parts)
    over = tuple(name if a == k else a for a in dot.over)
    part = replace(dot, over=over, positions=substitute(dot.positions, {k: position}))
    dots: list[Dot] = []
    for number, at in enumerate(ats):
        args = tuple(map(_PartCloner(draft, dot, k, at, number * run).of, dot.args))
        draft.insert(dot, copy := replace(part, args=args))
        dots.append(copy)
    plus = COMBINES[SUM_OF_PRODUCTS[0]].scalar
    total: Item = dots[0]
    for part in dots[1:-1]:
        total = insert_before(draft, dot, apply(plus, (total, part), dot.dtype))
    draft.replace(dot, Apply((total, dots[-1]), dot.axes, dot.dtype, plus, time=dot.time))
    live = set(prune(draft.phase).items)
    for item in draft.phase.items:
        if item not in live:
            draft.remove(item)
    return dots


class _PartCloner(Cloner):
    """Clones a factor for one part, where selections by position have one answer.

    `first` is a position in the part, which stands for all of them.
    """

    def __init__(self, draft: Draft, user: Item, k: str, at: Index, first: int) -> None:
        super().__init__(draft, user, {k: at})
        self.first = {k: first}

    def of(self, item: Item) -> Item:
        return super().of(selected_side(item, self.first))

    def changed(self, item: Item) -> Item:
        changed = super().changed(item)
        if not isinstance(changed, Load):
            return changed
        unproven = tuple(p for p in changed.access.limits if not proves_inside(*p))
        return replace(changed, access=replace(changed.access, limits=unproven))


def _runs(dot: Dot, k: str, extent: int) -> tuple[int, int]:
    """Return the length of runs along `k` that select alike, and how many repeat.

    One run if the factors select nothing by `k`, or not by it alone.
    """
    whole = extent, 1
    if any(depends_on_reduction(a, {k}) for a in dot.args):
        return whole
    factors = [i for a in dot.args for i in dependencies(a, {k})]
    pending = [i.args[0] for i in factors if isinstance(i, Apply) and i.op == CHOICE]
    period, flips = 1, set[int]()
    while pending:
        condition = pending.pop()
        gap = gap_of(condition)
        if gap is None:
            pending += [a for a in condition.args if k in a.axes]
        elif k in axes_of(gap):
            if (pattern := _pattern(gap, k, extent)) is None:
                return whole
            period, flips = lcm(period, pattern[0]), flips | pattern[1]
    run = gcd(period, *flips)
    parts = period // run
    return (run, parts) if parts <= MAX_K_PARTS and extent % period == 0 else whole


def _pattern(gap: Index, k: str, extent: int) -> tuple[int, set[int]] | None:
    """Return the period of a gap's sign along `k`, and where it flips.

    None if it depends on more, or has no short period.
    """
    step, first = coefficient(gap, k), substitute(gap, {k: 0})
    if isinstance(step, int) and isinstance(first, int):
        flip = -(first // step) if step > 0 else first // -step + 1
        return (extent, {flip}) if 0 < flip < extent else (1, set())
    index = find_period(gap, k)
    if index is None or index.step or not isinstance(index.first, int):
        return None
    signs = [x + index.first >= 0 for x in index.offsets]
    return index.period, {x for x in range(1, index.period) if signs[x] != signs[x - 1]}
