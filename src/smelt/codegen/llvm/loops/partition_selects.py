"""Partition rows at selections by position, and compute only the chosen side.

    y[i,j] = select(j < n, a[i,j], b[i, j - n])        concatenations, padding, triangles, masks

The condition flips at one position of the vector axis.  Full vectors before it and full vectors
after it have loops of their own, in which the other side is neither loaded nor computed, and bounds
checks that follow from the position are known; the vector in which it flips takes the general body:

    j           0 ....................... n ....................... 2n
    a alone     [a a a a][a a a a]
    tested                       [a a b b]
    b alone                              [b b b b][b b b b]

A condition that has one answer for a whole block is tested before the loops, not in them: each
version computes what its answer requires, and nothing else.

    s = select(n <= m, t, -inf) if last(n) > first(m) else t
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import product as cases

import numpy as np

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.loopir.items import (
    Apply,
    Item,
    Load,
    Operation,
    Position,
    UniformSelect,
    accesses_of,
)
from smelt.codegen.llvm.nests.nest import Limit, Nest, Piece
from smelt.graph.walk import reachable
from smelt.kernel.bounds import Facts, nonnegative, proves_inside
from smelt.ops.combine import CHOICE
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import bool_
from smelt.types.expr import Index, add, atoms, axis, coefficient, mul, sub, substitute

Value = ir.Value

MAX_CUTS = 3
"""Maximum positions at which a row is cut: each adds one copy of the body."""
COSTLY_CYCLES = 4.0
"""Cycles for one vector of an operator that is worth leaving out."""


def partition_axis_at_most(
    nest: Nest, name: str, extent: Index, outer_facts: Facts, most: int
) -> list[Piece]:
    """Return the pieces of an axis of any nest, with at most `most` cuts."""
    gaps = {i: gap for i in nest.items if (gap := gap_of(i)) is not None}
    cuts = _ordered_cuts(_cuts(nest, gaps, name, extent), outer_facts, most)
    if not cuts:
        return []
    position, result = axis(name, extent), list[Piece]()
    flips = _Flips(name, {at: k for k, at in enumerate(cuts)}, extent)
    limits = {p: _bounds(p) for x in accesses_of(nest.items) for p in x.limits}
    for k, (first, last) in enumerate(zip([0, *cuts], [*cuts, None], strict=True)):
        facts = (
            sub(position, first),
            sub(sub(extent if last is None else last, 1), position),
            *outer_facts,
        )
        hold = frozenset(p for p, ends in limits.items() if flips.inside(p, ends, k, facts))
        result.append(Piece(last, facts, _answers(nest, gaps, flips, k, facts), hold))
    undivided_cost = body_cost(nest.items, frozenset())
    return (
        result
        if any(body_cost(live_items(nest, p.taken), p.limits) < undivided_cost for p in result)
        else []
    )


def body_cost(items: Iterable[Item], proven: Container[Limit]) -> float:
    """Return the cost of a body: its loads, tested ones twice, and its costly functions."""
    total = 0.0
    for item in items:
        if isinstance(item, Load):
            total += 1 + any(p not in proven for p in item.access.limits)
        elif isinstance(item, Apply):
            total += SCALARS[item.op].cost // COSTLY_CYCLES
    return total


def _cuts(nest: Nest, gaps: dict[Item, Index], name: str, extent: Index) -> list[Index]:
    """Return the positions of an axis at which tests of selections flip.

    Tests that depend on computed positions, or on axes further in, are left as they are.
    """
    tested = conditions(nest)
    inner = set(nest.order[nest.order.index(name) + 1 :])
    cuts: dict[Index, None] = {}
    for item, gap in gaps.items():
        flip = _flip(gap, name) if item in tested else None
        if flip is None or any(a.kind == "value" or a.name in inner for a in atoms(gap)):
            continue
        _, at = flip
        if not nonnegative(mul(at, -1)) and not nonnegative(sub(at, extent)):
            cuts[at] = None
    return list(cuts)


def _flip(gap: Index, name: str) -> tuple[bool, Index] | None:
    """Return the position at which the sign of a gap flips, and the direction.

    (True, p): the gap is >= 0 from p on; (False, p): before p.  None if its step is not 1 or -1.
    """
    step = coefficient(gap, name)
    if step not in (1, -1):
        return None
    offset = substitute(gap, {name: 0})
    return (True, mul(offset, -1)) if step == 1 else (False, add(offset, 1))


class _Flips:
    """Derives conditions in pieces from the order of cuts, which is cheaper than proofs."""

    def __init__(self, name: str, cuts: dict[Index, int], extent: Index) -> None:
        self.name, self.cuts, self.extent = name, cuts, extent
        self.found: dict[Index, tuple[bool, Index] | None] = {}

    def answer_by_order(self, gap: Index, number: int) -> bool | None:
        """Return whether a gap is >= 0 in a piece, by the order of cuts.

        None if the order does not decide it.
        """
        if gap not in self.found:
            self.found[gap] = _flip(gap, self.name)
        flip = self.found[gap]
        if flip is not None and flip[1] in self.cuts:
            return flip[0] == (number > self.cuts[flip[1]])
        if flip is not None and flip[1] in (0, self.extent):
            return flip[0] == (flip[1] == 0)
        return None

    def holds(self, gap: Index, number: int, facts: Facts) -> bool | None:
        """Return whether a gap is >= 0 everywhere in a piece or nowhere, else None."""
        if (answer := self.answer_by_order(gap, number)) is not None:
            return answer
        if nonnegative(gap, facts):
            return True
        return False if nonnegative(sub(mul(gap, -1), 1), facts) else None

    def inside(self, limit: Limit, ends: Sequence[Index], number: int, facts: Facts) -> bool:
        """Return whether a bounds check holds in all of a piece."""
        answers = [self.answer_by_order(gap, number) for gap in ends]
        return proves_inside(*limit, facts) if None in answers else all(answers)


def _bounds(limit: Limit) -> tuple[Index, Index]:
    """Return the expressions that are >= 0 where a bounds check holds."""
    e, n = limit
    return e, sub(sub(n, 1), e)


def conditions(nest: Nest) -> set[Item]:
    """Return everything that conditions of selections depend on."""
    roots = (i.args[0] for i in nest.items if isinstance(i, Apply) and i.op == CHOICE)
    return {*reachable(roots, lambda item: item.args)}


def is_split(nest: Nest) -> bool:
    """Return whether rows of a map have parts by selections: each is short enough for one loop."""
    if nest.reductions or nest.saves or nest.state_updates or nest.scalars:
        return False
    return any(gap_of(i) is not None for i in conditions(nest))


def _ordered_cuts(cuts: Sequence[Index], facts: Facts, most: int) -> list[Index]:
    """Return as many cuts as have one known order, whatever the sizes."""
    ordered: list[Index] = []
    for at in cuts:
        if len(ordered) == most:
            break
        if not ordered or nonnegative(sub(at, ordered[-1]), facts):
            ordered.append(at)
            continue
        before = [c for c in ordered if nonnegative(sub(at, c), facts)]
        after = [c for c in ordered if c not in before]
        if all(nonnegative(sub(c, at), facts) for c in after):
            ordered = [*before, at, *after]
    return ordered


def _answers(
    nest: Nest, gaps: dict[Item, Index], flips: _Flips, number: int, facts: Facts
) -> dict[Item, bool]:
    """Return the conditions that have one answer in a piece, given the facts."""
    answers: dict[Item, bool] = {}
    for item in nest.items:
        answer = None
        if item in gaps:
            answer = flips.holds(gaps[item], number, facts)
        elif isinstance(item, Apply) and all(x.dtype == bool_ for x in (item, *item.args)):
            answer = combine_answers(item.op, [answers.get(a) for a in item.args])
        if answer is not None:
            answers[item] = answer
    return answers


def combine_answers(op: str, args: Sequence[bool | None]) -> bool | None:
    """Return the truth value of an operator of which some operands are known.

    >>> (
    ...     combine_answers("and", [None, False]),
    ...     combine_answers("or", [None, False]),
    ...     combine_answers("not", [True]),
    ... )
    (False, None, False)
    """
    choices = [(False, True) if a is None else (a,) for a in args]
    rule = SCALARS[op].numpy
    results = {bool(rule(*(np.array(a) for a in chosen))) for chosen in cases(*choices)}
    return results.pop() if len(results) == 1 else None


# ---- what conditions decide ----------------------------------------------------------------------


def version_condition(nest: Nest) -> Item | None:
    """Return the condition by which a nest has two versions: the first one with dependents.

    It varies in none of the nest's loops, which may walk several positions of the grid.
    """
    if not nest.order:
        return None
    conditions = (i.args[0] for i in nest.items if isinstance(i, UniformSelect))
    return next((c for c in conditions if c.axes.isdisjoint(nest.order)), None)


def is_select(item: Item) -> bool:
    """Return whether an item selects between two others by its first operand."""
    return isinstance(item, Operation) and item.op == CHOICE


def live_items(nest: Nest, taken: dict[Item, bool]) -> list[Item]:
    """Return the items that a nest's roots need, given the answers of some conditions."""
    items, live = set(nest.items), set[Item]()
    pending = [a for f in nest.reductions for a in f.args] + [*nest.saves, *nest.scalars]
    pending += [x for s in nest.stores for x in (s.value, s.where) if x is not None]
    pending += [s.value for s in nest.state_updates]
    position_names = {n for s in nest.stores for n in s.access.positions}
    while pending or position_names:
        pending += [i for i in items if isinstance(i, Position) and i.name in position_names]
        position_names = set[str]()
        while pending:
            item = pending.pop()
            if item in live or item not in items:
                continue
            live.add(item)
            if is_select(item) and item.args[0] in taken:
                pending.append(item.args[1 if taken[item.args[0]] else 2])
            else:
                pending += item.args
    return [i for i in nest.items if i in live]
