"""Two versions of a nest: with and without what only some blocks need, such as a mask.

    s = select(n <= m, t, -inf) if last(n) > first(m) else t

The condition is one truth value for all of a block, so it is asked before the loops, not in them:
each version computes what its answer calls for, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.items import Item
from smelt.ops.combine import CHOICE

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest

Value = ir.Value


def question_of(nest: Nest) -> Item | None:
    """The condition by which a nest has two versions: the first one that something depends on."""
    if not nest.order:
        return None
    return next((i.args[0] for i in nest.items if i.kind == "branch"), None)


def is_choice(item: Item) -> bool:
    """Whether an item is one of two others, by its first operand."""
    return item.kind in ("apply", "branch") and item.payload == CHOICE


def needed(nest: Nest, taken: dict[Item, bool]) -> list[Item]:
    """The items of a nest that its roots need where some conditions have an answer."""
    own, wanted = set(nest.items), set[Item]()
    pending = [a for f in nest.folds for a in f.args] + [*nest.saves, *nest.fixed]
    pending += [x for s in nest.stores for x in (s.value, s.where) if x is not None]
    pending += [s.value for s in nest.settings]
    named = {n for s in nest.stores for n in s.access.positions}
    while pending or named:
        pending += [i for i in own if i.kind == "position" and _name(i) in named]
        named = set[str]()
        while pending:
            item = pending.pop()
            if item in wanted or item not in own:
                continue
            wanted.add(item)
            if is_choice(item) and item.args[0] in taken:
                pending.append(item.args[1 if taken[item.args[0]] else 2])
            else:
                pending += item.args
    return [i for i in nest.items if i in wanted]


def _name(item: Item) -> str:
    return str(getattr(item.payload, "name", ""))


def answered(home: NestEmitter, question: Item, scope: Scope, run: Callable[[], None]) -> None:
    """Runs a nest in two versions.  What becomes known for good in them is what either found."""
    b, top = home.b, home.top
    known = top.values
    asked = home.get(question, scope, False)
    ends: list[tuple[Any, dict[Item, Value]]] = []

    def version(answer: bool) -> None:
        top.values, home.taken = dict(known), {question: answer}
        run()
        ends.append((b.block, top.values))
        home.taken = {}

    with b.if_else(asked) as (cut, whole):
        with cut:
            version(True)
        with whole:
            version(False)
    top.values = known
    fresh = [i for i in ends[0][1] if i in ends[1][1] and i not in known]
    for item in fresh:
        phi = b.phi(ends[0][1][item].type)
        for block, values in ends:
            phi.add_incoming(values[item], block)
        known[item] = phi
