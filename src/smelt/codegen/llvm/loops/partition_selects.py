"""Partition rows at selections by position, and compute only the chosen side.

    y[i,j] = select(j < n, a[i,j], b[i, j - n])        concatenations, padding, triangles, masks

The condition flips at one position of the vector axis.  Full vectors before it and full vectors
after it have loops of their own, in which the other side is neither loaded nor computed, and bounds
checks that follow from the position are known; the vector in which it flips takes the general body:

    j           0 ....................... n ....................... 2n
    a alone     [a a a a][a a a a]
    tested                       [a a b b]
    b alone                              [b b b b][b b b b]
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import product as cases

import numpy as np

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.access.interleaved_loads import nest_load_groups
from smelt.codegen.llvm.access.nontemporal import main_loop
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Apply, Item, Load, Scan, UniformSelect, accesses_of
from smelt.codegen.llvm.loops.versioning import live_items
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.pieces import Limit, Piece
from smelt.kernel.bounds import Facts, nonnegative, proves_inside
from smelt.ops.combine import CHOICE
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.dtype import bool_
from smelt.types.expr import Index, add, atoms, axis, mul, sub, substitute

Value = ir.Value

MAX_CUTS = 3
"""Maximum positions at which a row is cut: each adds one copy of the body."""
MAX_BODY_ITEMS = 96
"""Maximum values of a body of which copies cost less to compile than they save."""
COSTLY_CYCLES = 4.0
"""Cycles for one vector of an operator that is worth leaving out."""


def partition_axis(nest: Nest, name: str, extent: Index, facts: Facts = ()) -> list[Piece]:
    """Partition an axis of a nest into pieces with constant conditions.

    `facts` hold on the whole axis.  Empty if nothing is saved.
    """
    if (
        len(nest.items) > MAX_BODY_ITEMS
        or nest.reductions
        or nest.state_updates
        or nest.saves
        or nest.scalars
    ):
        return []
    if (
        nest.transposed
        or nest.stages
        or any(isinstance(i, (UniformSelect, Scan)) for i in nest.items)
    ):
        return []
    return partition_axis_at_most(nest, name, extent, facts, MAX_CUTS)


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
    pending = [i.args[0] for i in nest.items if isinstance(i, Apply) and i.op == CHOICE]
    items: set[Item] = set()
    while pending:
        item = pending.pop()
        if item not in items:
            items.add(item)
            pending += item.args
    return items


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


def assuming(env: Environment, piece: Piece) -> AbstractContextManager[None]:
    """Emit code under what is known in a piece."""
    conditions = {**env.known_conditions, **piece.taken}
    items = [i for i in live_items(env.nest, conditions) if i in env.live_items]
    return env.within(
        known_conditions=conditions,
        items=items,
        live_items=frozenset(items),
        proven_limits=env.proven_limits | piece.limits,
        accesses=env.find_accesses(items),
        load_groups=nest_load_groups(env, items),
    )


def branch_on_pieces(
    env: Environment,
    name: str,
    row_pieces: Sequence[Piece],
    scope: Scope,
    run: Callable[[Facts], None],
) -> None:
    """Emit the loops inside of one position of an axis, branching on its pieces."""
    piece, *more = row_pieces
    if piece.last is None:
        with assuming(env, piece):
            run(piece.facts)
        return
    is_before = env.b.icmp_signed("<", scope.axis(name), env.index(piece.last, scope))
    with env.b.if_else(is_before) as (in_piece, later):
        with in_piece, assuming(env, piece):
            run(piece.facts)
        with later:
            branch_on_pieces(env, name, more, scope, run)


def run_pieces(
    env: Environment,
    row_pieces: Sequence[Piece],
    scope: Scope,
    wide: int,
    at: Callable[[int, bool], Callable[[Value], None]],
) -> None:
    """Emit the loops over a row's vectors, piece by piece.

    `at` returns the body for a number of lanes, with or without the mask of the row's end.
    """
    b, lanes = env.b, env.s.lanes
    position, high = env.ranges[env.nest.vector or ""]

    def walk(step: int) -> None:
        env.loop(position, end, step, at(step, False))

    for piece in row_pieces:
        last = high
        if piece.last is not None:
            cut = env.index(piece.last, scope)
            last = b.select(b.icmp_signed("<", cut, high), cut, high)
        with assuming(env, piece):
            for step in dict.fromkeys((wide, lanes)):
                remaining = b.sub(last, position)
                full_end = b.add(position, b.and_(remaining, number(-step)))
                end = b.select(b.icmp_signed(">=", remaining, number(step)), full_end, position)
                if step == wide:
                    main_loop(env, position, wide, lambda: walk(wide), scope)
                else:
                    walk(step)
                position = end
        end = b.select(b.icmp_signed("<", position, last), b.add(position, number(lanes)), position)
        env.loop(position, end, lanes, at(lanes, True))
        position = end


__all__ = [
    "MAX_CUTS",
    "Piece",
    "assuming",
    "body_cost",
    "branch_on_pieces",
    "combine_answers",
    "conditions",
    "partition_axis",
    "partition_axis_at_most",
    "run_pieces",
]
