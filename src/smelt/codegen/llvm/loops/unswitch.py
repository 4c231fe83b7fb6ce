"""Selections by outer positions alone are decided before the rows, by a tree of branches.

Joined arrays that were joined before, as the halves of a scan by doubling are, end in selections of
selections, of which each place takes one side:

    y[i,k,j] = select(i % 2 < 1, select(i < 1, a[k,j], b[i - 1,k,j]), c[i//2,k,j])

Tested in the rows, all sides are loaded for every vector, and most of them for nothing.  All rows
of one `i` take the same sides, so each way through the tests has loops of its own:

    for i:
        if i % 2 < 1:  if i < 1:  for k: y = a
                       else:      for k: y = b
        else:                     for k: y = c

What a way has tested may answer what it has not asked yet, and proves limits of its loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.access.proven_bounds import Limit
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Item, accesses_of
from smelt.codegen.llvm.loops.partition_selects import Piece, combined, known, pieces
from smelt.codegen.llvm.loops.versioning import is_choice, needed
from smelt.dataclass import dataclass
from smelt.kernel.bounds import Facts, nonnegative, proves_inside
from smelt.types.dtype import bool_
from smelt.types.expr import Index, atoms, mul, sub

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest

LEAST_CHOICES = 4
"""Selections from which on a nest has a tree: fewer are cheap, or have loops of other kinds."""
LEAST_ELEMENTS = 256
"""Elements behind one way at least, which pay for its tests."""
MOST_WAYS = 40
"""Ways of a tree: each has loops of its own."""
MOST_ITEMS = 3
"""Times as many values as the nest has that all ways may have together."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way through the tests, and what is known there."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Fork:
    """A test, and what follows where it holds and where not."""

    asked: Item
    yes: Fork | Way
    no: Fork | Way


@dataclass(frozen=True, slots=True)
class Tree:
    """What is decided within so many loops of a nest."""

    depth: int
    root: Fork | Way


class _Growth:
    """The forks and ways of a nest in the making."""

    def __init__(self, home: NestEmitter, told: frozenset[Item]) -> None:
        """`told`: conditions that are known before the loops that the tree stands around."""
        self.nest, self.told, self.before = home.nest, told, home.taken
        self.ways = self.items = 0

    def grown(self, taken: dict[Item, bool], facts: Facts) -> Fork | Way | None:
        """What to ask where some conditions have answers; None where there is too much to ask."""
        items = needed(self.nest, self.before | taken)
        while (choice := self._open(items, taken)) is not None:
            asked = choice.args[0]
            answer = _answer(asked, facts)
            if answer is None:
                yes = self.grown({**taken, asked: True}, (*facts, *_facts(asked, facts, True)))
                no = self.grown({**taken, asked: False}, (*facts, *_facts(asked, facts, False)))
                return None if yes is None or no is None else Fork(asked, yes, no)
            taken = {**taken, asked: answer}
            items = needed(self.nest, self.before | taken)
        self.ways += 1
        self.items += len(items)
        if self.ways > MOST_WAYS or self.items > MOST_ITEMS * len(self.nest.items):
            return None
        limits = dict.fromkeys(p for x in accesses_of(items) for p in x.limits)
        hold: frozenset[Limit] = frozenset(p for p in limits if proves_inside(*p, facts))
        return Way(Piece(None, facts, taken, hold))

    def _open(self, items: Sequence[Item], taken: dict[Item, bool]) -> Item | None:
        """The last selection, nearest to what is stored, that has no answer yet."""
        return next(
            (
                i
                for i in reversed(items)
                if is_choice(i) and i.args[0] in self.told and i.args[0] not in taken
            ),
            None,
        )


def _answer(condition: Item, facts: Facts) -> bool | None:
    """Whether a condition holds, if facts tell."""
    gap = gap_of(condition)
    if gap is not None:
        if nonnegative(gap, facts):
            return True
        return False if nonnegative(_not(gap), facts) else None
    return combined(str(condition.payload), [_answer(a, facts) for a in condition.args])


def _facts(condition: Item, facts: Facts, answer: bool) -> Facts:
    """What is >= 0 where a condition has an answer that facts did not tell."""
    gap = gap_of(condition)
    if gap is not None:
        return (gap if answer else _not(gap),)
    told = [_answer(a, facts) for a in condition.args]
    found: Facts = ()
    for k, part in enumerate(condition.args):
        for holds in (True, False) if told[k] is None else ():
            other = [*told[:k], not holds, *told[k + 1 :]]
            if combined(str(condition.payload), other) is (not answer):
                found += _facts(part, facts, holds)
    return found


def _not(gap: Index) -> Index:
    return sub(mul(gap, -1), 1)


def _is_told(condition: Item, vector: str | None) -> bool:
    """Whether a condition is made of comparisons of positions, none along vectors or computed."""
    if vector in condition.axes or condition.dtype != bool_:
        return False
    gap = gap_of(condition)
    if gap is not None:
        return all(a.kind != "value" for a in atoms(gap))
    logic = condition.kind == "apply" and all(a.dtype == bool_ for a in condition.args)
    return logic and all(_is_told(a, vector) for a in condition.args)


def _is_plain(nest: Nest) -> bool:
    """Whether loops of a nest may be there several times: nothing is folded or kept in them."""
    if nest.folds or nest.settings or nest.fixed or nest.saves or nest.turned or nest.stages:
        return False
    return not any(i.kind in ("scan", "branch", "peek") for i in nest.items)


def tree_of(home: NestEmitter) -> Tree | None:
    """The tree of the present nest; None where there is little to decide."""
    nest, vector, axes = home.nest, home.nest.vector, home.s.phase.axes
    if vector is None or not _is_plain(nest):
        return None
    choices = [i for i in home.items if is_choice(i) and _is_told(i.args[0], vector)]
    if len(choices) < LEAST_CHOICES or any(pieces(nest, a, axes[a]) for a in nest.order):
        return None
    depth = max(home.depth(i.args[0]) for i in choices)
    inner = [axes[a] for a in nest.order[depth:]]
    few = all(isinstance(n, int) for n in inner)
    if few and prod(n for n in inner if isinstance(n, int)) < LEAST_ELEMENTS:
        return None
    found = _Growth(home, frozenset(i.args[0] for i in choices)).grown({}, ())
    return None if found is None else Tree(depth, found)


def in_branches(home: NestEmitter, scope: Scope, depth: int, run: Callable[[Scope], None]) -> bool:
    """Emits what `run` emits within so many loops for each way, if a tree stands there; whether one
    does."""
    tree = home.tree
    if tree is None or tree.depth != depth:
        return False
    home.tree = None
    _branched(home, tree.root, scope, run)
    home.tree = tree
    return True


def _branched(
    home: NestEmitter, tree: Fork | Way, scope: Scope, run: Callable[[Scope], None]
) -> None:
    if isinstance(tree, Fork):
        with home.b.if_else(home.get(tree.asked, scope, False)) as (yes, no):
            with yes:
                _branched(home, tree.yes, scope, run)
            with no:
                _branched(home, tree.no, scope, run)
        return
    with known(home, tree.piece):
        run(Scope(scope))


__all__ = ["Tree", "in_branches", "tree_of"]
