"""Unswitch loops: decide selections by outer positions before the rows, by a tree of branches.

Nested concatenations, as of the halves of a scan by doubling, end in selections of selections, of
which each position takes one side:

    y[i,k,j] = select(i % 2 < 1, select(i < 1, a[k,j], b[i - 1,k,j]), c[i//2,k,j])

Tested in the rows, all sides are loaded for every vector.  All rows of one `i` take the same sides,
so each path through the tests has loops of its own:

    for i:
        if i % 2 < 1:  if i < 1:  for k: y = a
                       else:      for k: y = b
        else:                     for k: y = c

The tests on a path may answer later ones, and prove its loads in bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from smelt.codegen.llvm.access.affine_predicates import gap_of
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, accesses_of
from smelt.codegen.llvm.loops.partition_selects import assuming, combine_answers, partition_axis
from smelt.codegen.llvm.loops.versioning import is_select, live_items
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.nests.pieces import Branch, Leaf, Limit, Piece, Tree
from smelt.kernel.bounds import Facts, nonnegative, proves_inside
from smelt.types.dtype import bool_
from smelt.types.expr import Index, atoms, mul, sub

MIN_SELECTS = 4
"""Minimum selections of a nest for a tree: fewer are cheap, or handled by other transformations."""
MIN_PATH_ELEMENTS = 256
"""Minimum elements of one path, which pay for its tests."""
MAX_PATHS = 40
"""Maximum paths of a tree: each has loops of its own."""
MAX_GROWTH = 3
"""Maximum values of all paths together, as a multiple of the nest's."""


class _TreeBuilder:
    """Builds the tree of a nest, within limits."""

    def __init__(self, env: Environment, decidable: frozenset[Item]) -> None:
        """`decidable`: conditions that are known before the loops around which the tree stands."""
        self.nest, self.decidable, self.before = env.nest, decidable, env.known_conditions
        self.ways = self.items = 0

    def grown(self, taken: dict[Item, bool], facts: Facts) -> Branch | Leaf | None:
        """Return the tree below some answers, or None if it is too large."""
        items = live_items(self.nest, self.before | taken)
        while (choice := self._next_select(items, taken)) is not None:
            condition = choice.args[0]
            answer = _proven_answer(condition, facts)
            if answer is None:
                yes = self.grown(
                    {**taken, condition: True}, (*facts, *_facts_of(condition, facts, True))
                )
                no = self.grown(
                    {**taken, condition: False}, (*facts, *_facts_of(condition, facts, False))
                )
                return None if yes is None or no is None else Branch(condition, yes, no)
            taken = {**taken, condition: answer}
            items = live_items(self.nest, self.before | taken)
        self.ways += 1
        self.items += len(items)
        if self.ways > MAX_PATHS or self.items > MAX_GROWTH * len(self.nest.items):
            return None
        limits = dict.fromkeys(p for x in accesses_of(items) for p in x.limits)
        hold: frozenset[Limit] = frozenset(p for p in limits if proves_inside(*p, facts))
        return Leaf(Piece(None, facts, taken, hold))

    def _next_select(self, items: Sequence[Item], taken: dict[Item, bool]) -> Item | None:
        """Return the last selection, nearest to the stores, that has no answer yet."""
        return next(
            (
                i
                for i in reversed(items)
                if is_select(i) and i.args[0] in self.decidable and i.args[0] not in taken
            ),
            None,
        )


def _proven_answer(condition: Item, facts: Facts) -> bool | None:
    """Return whether a condition holds, if the facts decide it."""
    gap = gap_of(condition)
    if gap is not None:
        if nonnegative(gap, facts):
            return True
        return False if nonnegative(_not(gap), facts) else None
    assert isinstance(condition, ssa.Apply)
    return combine_answers(condition.op, [_proven_answer(a, facts) for a in condition.args])


def _facts_of(condition: Item, facts: Facts, answer: bool) -> Facts:
    """Return what is >= 0 where an undecided condition has an answer."""
    gap = gap_of(condition)
    if gap is not None:
        return (gap if answer else _not(gap),)
    assert isinstance(condition, ssa.Apply)
    answers = [_proven_answer(a, facts) for a in condition.args]
    new_facts: Facts = ()
    for k, part in enumerate(condition.args):
        for holds in (True, False) if answers[k] is None else ():
            other = [*answers[:k], not holds, *answers[k + 1 :]]
            if combine_answers(condition.op, other) is (not answer):
                new_facts += _facts_of(part, facts, holds)
    return new_facts


def _not(gap: Index) -> Index:
    return sub(mul(gap, -1), 1)


def _is_decidable(condition: Item, vector: str | None) -> bool:
    """Return whether a condition compares positions only, not along vectors or computed."""
    if vector in condition.axes or condition.dtype != bool_:
        return False
    gap = gap_of(condition)
    if gap is not None:
        return all(a.kind != "value" for a in atoms(gap))
    logic = isinstance(condition, ssa.Apply) and all(a.dtype == bool_ for a in condition.args)
    return logic and all(_is_decidable(a, vector) for a in condition.args)


def _is_repeatable(nest: Nest) -> bool:
    """Return whether a nest's loops may be emitted several times: it neither reduces nor keeps."""
    if (
        nest.reductions
        or nest.state_updates
        or nest.scalars
        or nest.saves
        or nest.transposed
        or nest.stages
    ):
        return False
    return not any(isinstance(i, (ssa.UniformSelect, ssa.Scan, ssa.WindowRead)) for i in nest.items)


def decision_tree(env: Environment) -> Tree | None:
    """Return the tree of the current nest, or None if there is little to decide."""
    nest, vector, axes = env.nest, env.nest.vector, env.s.phase.axes
    if vector is None or not _is_repeatable(nest):
        return None
    choices = [i for i in env.items if is_select(i) and _is_decidable(i.args[0], vector)]
    if len(choices) < MIN_SELECTS:
        return None
    depth = max(env.depth(i.args[0]) for i in choices)
    if any(partition_axis(nest, a, axes[a]) for a in nest.order[:depth]):
        return None
    inner = [axes[a] for a in nest.order[depth:]]
    all_constant = all(isinstance(n, int) for n in inner)
    if all_constant and prod(n for n in inner if isinstance(n, int)) < MIN_PATH_ELEMENTS:
        return None
    root = _TreeBuilder(env, frozenset(i.args[0] for i in choices)).grown({}, ())
    return None if root is None else Tree(depth, root)


def run_unswitched(
    env: Environment, scope: Scope, depth: int, run: Callable[[Scope], None]
) -> bool:
    """Emit `run` for each path of the unswitching tree at this depth.

    Returns whether the tree is at this depth.
    """
    tree = env.tree
    if tree is None or tree.depth != depth:
        return False
    with env.within(tree=None):
        _emit_tree(env, tree.root, scope, run)
    return True


def _emit_tree(
    env: Environment, tree: Branch | Leaf, scope: Scope, run: Callable[[Scope], None]
) -> None:
    if isinstance(tree, Branch):
        with env.b.if_else(env.get(tree.condition, scope, False)) as (yes, no):
            with yes:
                _emit_tree(env, tree.yes, scope, run)
            with no:
                _emit_tree(env, tree.no, scope, run)
        return
    with assuming(env, tree.piece):
        run(Scope(scope))


__all__ = ["Tree", "decision_tree", "run_unswitched"]
