"""Rows in pieces: where a selection by position has one answer, only the chosen side is computed.

    y[i,j] = select(j < n, a[i,j], b[i, j - n])        joined arrays, margins, triangles, masks

The condition flips at one position of the vector axis.  Whole vectors before it and whole vectors
after it have loops of their own, in which the other side is neither loaded nor computed and what
the position says about limits is known; the vector in which it flips takes the general body:

    j           0 ....................... n ....................... 2n
    a alone     [a a a a][a a a a]
    tested                       [a a b b]
    b alone                              [b b b b][b b b b]
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import product as cases
from typing import TYPE_CHECKING

import numpy as np

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.access.nontemporal import main_loop
from smelt.codegen.llvm.access.proven_bounds import Limit
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Access, Item, accesses_of
from smelt.codegen.llvm.loops.versioning import needed
from smelt.dataclass import dataclass
from smelt.kernel.bounds import Facts, nonnegative, proves_inside
from smelt.ops.combine import CHOICE
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.dtype import bool_
from smelt.types.expr import Index, add, atoms, axis, mul, sub, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest

Value = ir.Value

MOST_CUTS = 3
"""Positions at which a row is cut: each makes the code of a body longer by one copy."""
MOST_ITEMS = 96
"""Values of a body beyond which copies of it cost more to compile than they save."""
DEAR = 4.0
"""Cycles a vector of an operator that is worth leaving out."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an axis, from the end of the one before, and what is known there."""

    last: Index | None
    """Position before which it ends; None: the end of the axis."""
    facts: Facts
    taken: dict[Item, bool]
    """Conditions with one answer."""
    limits: frozenset[Limit]
    """Limits that hold."""


def pieces(nest: Nest, name: str, extent: Index, given: Facts = ()) -> list[Piece]:
    """The stretches of an axis of a nest, where some facts hold; none where nothing is saved."""
    if len(nest.items) > MOST_ITEMS or nest.folds or nest.settings or nest.saves or nest.fixed:
        return []
    if nest.turned or nest.stages or any(i.kind in ("scan", "branch") for i in nest.items):
        return []
    return found_pieces(nest, name, extent, given, MOST_CUTS)


def found_pieces(nest: Nest, name: str, extent: Index, given: Facts, most: int) -> list[Piece]:
    """The same of any nest, with at most so many cuts."""
    gaps = {i: gap for i in nest.items if (gap := gap_of(i)) is not None}
    cuts = _in_order(_cuts(nest, gaps, name, extent), given, most)
    if not cuts:
        return []
    here, found = axis(name, extent), list[Piece]()
    flips = _Flips(name, {at: k for k, at in enumerate(cuts)}, extent)
    limits = {p: _ends(p) for x in accesses_of(nest.items) for p in x.limits}
    for k, (first, last) in enumerate(zip([0, *cuts], [*cuts, None], strict=True)):
        facts = (sub(here, first), sub(sub(extent if last is None else last, 1), here), *given)
        hold = frozenset(p for p, ends in limits.items() if flips.inside(p, ends, k, facts))
        found.append(Piece(last, facts, _answers(nest, gaps, flips, k, facts), hold))
    whole = work(nest.items, frozenset())
    return found if any(work(needed(nest, p.taken), p.limits) < whole for p in found) else []


def work(items: Iterable[Item], known: Container[Limit]) -> float:
    """What a body does: loads, tested ones twice, and whole functions."""
    total = 0.0
    for item in items:
        if isinstance(item.payload, Access):
            total += 1 + any(p not in known for p in item.payload.limits)
        elif item.kind == "apply" and isinstance(item.payload, str):
            total += SCALARS[item.payload].cost // DEAR
    return total


def _cuts(nest: Nest, gaps: dict[Item, Index], name: str, extent: Index) -> list[Index]:
    """The positions of an axis from which on, or up to which, some tests of selections hold.

    Those that depend on what is known further in only, or is computed, are left as they are."""
    asked = conditions(nest)
    inner = set(nest.order[nest.order.index(name) + 1 :])
    found: dict[Index, None] = {}
    for item, gap in gaps.items():
        flip = _flip(gap, name) if item in asked else None
        if flip is None or any(a.kind == "value" or a.name in inner for a in atoms(gap)):
            continue
        _, at = flip
        if not nonnegative(mul(at, -1)) and not nonnegative(sub(at, extent)):
            found[at] = None
    return list(found)


def _flip(gap: Index, name: str) -> tuple[bool, Index] | None:
    """Whether a gap is >= 0 from some position of an axis on, or before it, and that position."""
    step = coefficient(gap, name)
    if step not in (1, -1):
        return None
    rest = substitute(gap, {name: 0})
    return (True, mul(rest, -1)) if step == 1 else (False, add(rest, 1))


class _Flips:
    """What follows from the order of the cuts of an axis alone, which is cheaper than a proof."""

    def __init__(self, name: str, cuts: dict[Index, int], extent: Index) -> None:
        self.name, self.cuts, self.extent = name, cuts, extent
        self.found: dict[Index, tuple[bool, Index] | None] = {}

    def told(self, gap: Index, number: int) -> bool | None:
        """Whether a gap is >= 0 in a piece, if the order of the cuts says so."""
        if gap not in self.found:
            self.found[gap] = _flip(gap, self.name)
        flip = self.found[gap]
        if flip is not None and flip[1] in self.cuts:
            return flip[0] == (number > self.cuts[flip[1]])
        if flip is not None and flip[1] in (0, self.extent):
            return flip[0] == (flip[1] == 0)
        return None

    def holds(self, gap: Index, number: int, facts: Facts) -> bool | None:
        """Whether a gap is >= 0 in all of a piece, or in none of it."""
        if (told := self.told(gap, number)) is not None:
            return told
        if nonnegative(gap, facts):
            return True
        return False if nonnegative(sub(mul(gap, -1), 1), facts) else None

    def inside(self, limit: Limit, ends: Sequence[Index], number: int, facts: Facts) -> bool:
        """Whether a limit holds in all of a piece."""
        told = [self.told(gap, number) for gap in ends]
        return proves_inside(*limit, facts) if None in told else all(told)


def _ends(limit: Limit) -> tuple[Index, Index]:
    """What is >= 0 where a limit holds."""
    e, n = limit
    return e, sub(sub(n, 1), e)


def conditions(nest: Nest) -> set[Item]:
    """Everything that conditions of selections are made of."""
    pending = [i.args[0] for i in nest.items if i.kind == "apply" and i.payload == CHOICE]
    found: set[Item] = set()
    while pending:
        item = pending.pop()
        if item not in found:
            found.add(item)
            pending += item.args
    return found


def _in_order(cuts: Sequence[Index], given: Facts, most: int) -> list[Index]:
    """As many cuts as stand in one known order, whatever the sizes."""
    kept: list[Index] = []
    for at in cuts:
        if len(kept) == most:
            break
        if not kept or nonnegative(sub(at, kept[-1]), given):
            kept.append(at)
            continue
        before = [c for c in kept if nonnegative(sub(at, c), given)]
        after = [c for c in kept if c not in before]
        if all(nonnegative(sub(c, at), given) for c in after):
            kept = [*before, at, *after]
    return kept


def _answers(
    nest: Nest, gaps: dict[Item, Index], flips: _Flips, number: int, facts: Facts
) -> dict[Item, bool]:
    """The conditions that have one answer in a piece, where the facts hold."""
    found: dict[Item, bool] = {}
    for item in nest.items:
        answer = None
        if item in gaps:
            answer = flips.holds(gaps[item], number, facts)
        elif item.kind == "apply" and all(x.dtype == bool_ for x in (item, *item.args)):
            answer = combined(str(item.payload), [found.get(a) for a in item.args])
        if answer is not None:
            found[item] = answer
    return found


def combined(op: str, args: Sequence[bool | None]) -> bool | None:
    """The truth value of an operator of which some operands are known.

    >>> combined("and", [None, False]), combined("or", [None, False]), combined("not", [True])
    (False, None, False)
    """
    choices = [(False, True) if a is None else (a,) for a in args]
    rule = SCALARS[op].numpy
    found = {bool(rule(*(np.array(a) for a in chosen))) for chosen in cases(*choices)}
    return found.pop() if len(found) == 1 else None


@contextmanager
def known(home: NestEmitter, piece: Piece) -> Generator[None]:
    """Emits what a stretch needs, knowing what is known there."""
    before = home.items, home.here, home.assumed, home.taken, home.accesses, home.combs
    home.taken = home.taken | piece.taken
    home.items = [i for i in needed(home.nest, home.taken) if i in home.here]
    home.here, home.assumed = frozenset(home.items), home.assumed | piece.limits
    home.accesses, home.combs = home.accesses_now(), home.combs_now()
    yield
    home.items, home.here, home.assumed, home.taken, home.accesses, home.combs = before


def by_rows(
    home: NestEmitter,
    name: str,
    found: Sequence[Piece],
    scope: Scope,
    run: Callable[[Facts], None],
) -> None:
    """Emits the loops inside of one position of an axis, for each of its stretches."""
    piece, *more = found
    if piece.last is None:
        with known(home, piece):
            run(piece.facts)
        return
    before = home.b.icmp_signed("<", scope.axis(name), home.index(piece.last, scope))
    with home.b.if_else(before) as (here, later):
        with here, known(home, piece):
            run(piece.facts)
        with later:
            by_rows(home, name, more, scope, run)


def by_vectors(
    home: NestEmitter,
    found: Sequence[Piece],
    scope: Scope,
    wide: int,
    at: Callable[[int, bool], Callable[[Value], None]],
) -> None:
    """Emits the loops over vectors of a row in stretches.

    `at` gives the body for so many lanes, with or without the mask of the row's end."""
    b, lanes = home.b, home.s.lanes
    position, high = home.ranges[home.nest.vector or ""]

    def walk(step: int) -> None:
        home.loop(position, end, step, at(step, False))

    for piece in found:
        last = high
        if piece.last is not None:
            cut = home.index(piece.last, scope)
            last = b.select(b.icmp_signed("<", cut, high), cut, high)
        with known(home, piece):
            for step in dict.fromkeys((wide, lanes)):
                left = b.sub(last, position)
                whole = b.add(position, b.and_(left, number(-step)))
                end = b.select(b.icmp_signed(">=", left, number(step)), whole, position)
                if step == wide:
                    main_loop(home, position, wide, lambda: walk(wide), scope)
                else:
                    walk(step)
                position = end
        end = b.select(b.icmp_signed("<", position, last), b.add(position, number(lanes)), position)
        home.loop(position, end, lanes, at(lanes, True))
        position = end


__all__ = [
    "MOST_CUTS",
    "Piece",
    "by_rows",
    "by_vectors",
    "combined",
    "conditions",
    "found_pieces",
    "known",
    "pieces",
    "work",
]
