"""Streams that only fold: what every block adds to a state does not depend on any state.

Then the order of visits says nothing, and the stream is one fold over the whole axis, which may be
blocked, packed and vectorised like any other:

    stream k/64 with acc = 0 [m,n]
      acc' = acc + dot(x[m,k], w[n,k] over k)        is      acc = dot(x[m,k], w[n,k] over k)

A stream that folds what is itself folded (the results of a contraction, say) is left alone: its
blocks are what keeps those results in fast memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from smelt.kernel import ir as k
from smelt.kernel.walk import refs, statements, values_of, visit
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine

Fold = k.Reduce | k.Dot


def as_folds(body: Iterable[k.Statement]) -> tuple[k.Statement, ...]:
    """The statements of a kernel with its plain streams as folds."""
    found: list[k.Statement] = []
    for s in body:
        folds = _folds(s) if isinstance(s, k.Stream) else None
        found += [s] if folds is None else folds
    return tuple(found)


def _folds(s: k.Stream) -> list[k.Statement] | None:
    cut = any(e is not None for b in s.blocks for e in (b.start, b.stop, b.part))
    if cut or s.where is not None or s.sees or not s.states:
        return None
    states = {state.name: state for state in s.states}
    updates = {u.state: u for u in s.body if isinstance(u, k.Update)}
    lets = [x for x in s.body if isinstance(x, k.Let)]
    if len(lets) + len(updates) != len(s.body):
        return None
    kept = [k.Let(name, state.init) for name, state in states.items() if name not in updates]
    found: list[k.Statement] = [*kept, *lets]
    for name, update in updates.items():
        fold = block_fold(states[name], update, s)
        if fold is None or _holds_folds(fold, lets):
            return None
        axes = tuple(b.axis for b in s.blocks if b.axis not in fold.over)
        found.append(k.Let(name, replace(fold, over=(*fold.over, *axes))))
    used = {n for x in found for v in values_of(x) for n in _names(v)}
    return [x for x in found if not isinstance(x, k.Let) or x.name in used or x.name in states]


def _names(v: k.Value) -> set[str]:
    return {x.name for x in visit(v) if isinstance(x, k.Ref)}


def _holds_folds(fold: Fold, lets: list[k.Let]) -> bool:
    """Whether what is folded is itself folded from more, which a block keeps in fast memory."""
    bound = {x.name: x.value for x in lets}
    inside = [fold.arg] if isinstance(fold, k.Reduce) else [fold.left, fold.right]
    return any(isinstance(v, k.Reduce | k.Dot | k.Scan) for x in inside for v in _within(x, bound))


def block_fold(state: k.State, update: k.Update, stream: k.Stream) -> Fold | None:
    """What a block adds to a state that is nothing but a fold over all blocks; else None."""
    bound = {s.name: s.value for s in stream.body if isinstance(s, k.Let | k.Position)}
    value = update.value
    if (
        not isinstance(value, k.Apply)
        or len(value.args) != 2
        or k.Ref(state.name) not in value.args
    ):
        return None
    fold = value.args[1 - value.args.index(k.Ref(state.name))]
    if isinstance(fold, k.Ref) and not fold.next:
        fold = bound.get(fold.name, fold)
    if not isinstance(fold, k.Reduce | k.Dot):
        return None
    row = COMBINES[fold.combine if isinstance(fold, k.Reduce) else SUM_OF_PRODUCTS[0]]
    if row.scalar != value.op or not _starts_empty(state, row, fold):
        return None
    states = {s.state for s in statements((stream,)) if isinstance(s, k.Update)}
    visited = {b.axis for b in stream.blocks}
    inside = [fold.arg] if isinstance(fold, k.Reduce) else [fold.left, fold.right]
    whole = [v for x in inside for v in _within(x, bound)]
    return fold if all(_is_plain(v, states, visited) for v in whole) else None


def _starts_empty(state: k.State, row: Combine, fold: Fold) -> bool:
    init = state.init
    return isinstance(init, k.Const) and init == k.Const(row.identity(fold.dtype), init.dtype)


def _within(v: k.Value, bound: dict[str, k.Value]) -> Iterator[k.Value]:
    """All values that a value is made of, through names bound in the stream."""
    seen: set[str] = set()
    pending = [v]
    while pending:
        value = pending.pop()
        yield from visit(value)
        fresh = {n for n in refs(value) if n in bound} - seen
        seen |= fresh
        pending += [bound[n] for n in sorted(fresh)]


def _is_plain(v: k.Value, states: set[str], visited: set[str]) -> bool:
    """Whether a value is the same in whatever block it is looked at, and after whatever blocks."""
    match v:
        case k.Ref(name=name, next=following):
            return not following and name not in states
        case k.Reduce(over=over) | k.Dot(over=over):
            return not visited & set(over)
        case k.Scan(along=along):
            return along not in visited
        case k.Partial() | k.Extreme():
            return False
        case _:
            return True
