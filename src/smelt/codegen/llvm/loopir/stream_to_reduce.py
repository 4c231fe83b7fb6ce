"""Rewrite streams as reductions where a block's contribution depends on no state.

The order of visits does not matter then, and the stream is one reduction over the whole axis, which
may be blocked, packed and vectorised like any other:

    stream k/64 with acc = 0 [m,n]
      acc' = acc + dot(x[m,k], w[n,k] over k)        is      acc = dot(x[m,k], w[n,k] over k)

A stream that reduces what is itself a reduction (the result of a contraction, say) is left alone:
its blocks keep those results in fast memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from smelt.kernel import ir as k
from smelt.kernel.walk import refs, statements, values_of, visit
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine

ReductionValue = k.Reduce | k.Dot


def streams_to_reductions(body: Iterable[k.Statement]) -> tuple[k.Statement, ...]:
    """Replace the plain streams among statements by reductions."""
    result: list[k.Statement] = []
    for s in body:
        reductions = _as_reductions(s) if isinstance(s, k.Stream) else None
        result += [s] if reductions is None else reductions
    return tuple(result)


def _as_reductions(s: k.Stream) -> list[k.Statement] | None:
    """Return a stream's statements as reductions, or None if it has to stay."""
    cut = any(e is not None for b in s.blocks for e in (b.start, b.stop, b.part))
    if cut or s.where is not None or s.bounds or not s.states:
        return None
    states = {state.name: state for state in s.states}
    updates = {u.state: u for u in s.body if isinstance(u, k.Update)}
    lets = [x for x in s.body if isinstance(x, k.Let)]
    if len(lets) + len(updates) != len(s.body):
        return None
    unchanged = [k.Let(name, state.init) for name, state in states.items() if name not in updates]
    bindings: list[k.Statement] = [*unchanged, *lets]
    for name, update in updates.items():
        reduction = block_reduction(states[name], update, s)
        if reduction is None or _reads_reduction(reduction, lets):
            return None
        axes = tuple(b.axis for b in s.blocks if b.axis not in reduction.over)
        bindings.append(k.Let(name, replace(reduction, over=(*reduction.over, *axes))))
    used = {n for x in bindings for v in values_of(x) for n in _names(v)}
    return [x for x in bindings if not isinstance(x, k.Let) or x.name in used or x.name in states]


def _names(v: k.Value) -> set[str]:
    return {x.name for x in visit(v) if isinstance(x, k.Ref)}


def _reads_reduction(reduction: ReductionValue, lets: list[k.Let]) -> bool:
    """Return whether a reduction reads another one, whose results a block keeps in fast memory."""
    bound = {x.name: x.value for x in lets}
    inside = (
        [reduction.arg] if isinstance(reduction, k.Reduce) else [reduction.left, reduction.right]
    )
    return any(
        isinstance(v, k.Reduce | k.Dot | k.Scan) for x in inside for v in _values_of(x, bound)
    )


def block_reduction(state: k.State, update: k.Update, stream: k.Stream) -> ReductionValue | None:
    """Return what a block contributes to a state, if all updates together are one reduction."""
    bound = {s.name: s.value for s in stream.body if isinstance(s, k.Let | k.Position)}
    value = update.value
    if (
        not isinstance(value, k.Apply)
        or len(value.args) != 2
        or k.Ref(state.name) not in value.args
    ):
        return None
    reduction = value.args[1 - value.args.index(k.Ref(state.name))]
    if isinstance(reduction, k.Ref) and not reduction.next:
        reduction = bound.get(reduction.name, reduction)
    if not isinstance(reduction, k.Reduce | k.Dot):
        return None
    row = COMBINES[reduction.combine if isinstance(reduction, k.Reduce) else SUM_OF_PRODUCTS[0]]
    if row.scalar != value.op or not _starts_at_identity(state, row, reduction):
        return None
    states = {s.state for s in statements((stream,)) if isinstance(s, k.Update)}
    visited = {b.axis for b in stream.blocks}
    inside = (
        [reduction.arg] if isinstance(reduction, k.Reduce) else [reduction.left, reduction.right]
    )
    values = [v for x in inside for v in _values_of(x, bound)]
    return reduction if all(_is_block_independent(v, states, visited) for v in values) else None


def _starts_at_identity(state: k.State, row: Combine, reduction: ReductionValue) -> bool:
    init = state.init
    return isinstance(init, k.Const) and init == k.Const(row.identity(reduction.dtype), init.dtype)


def _values_of(v: k.Value, bound: dict[str, k.Value]) -> Iterator[k.Value]:
    """Yield all values that a value depends on, through bindings in the stream."""
    seen: set[str] = set()
    pending = [v]
    while pending:
        value = pending.pop()
        yield from visit(value)
        new_names = {n for n in refs(value) if n in bound} - seen
        seen |= new_names
        pending += [bound[n] for n in sorted(new_names)]


def _is_block_independent(v: k.Value, states: set[str], visited: set[str]) -> bool:
    """Return whether a value is the same in every block, and after any other blocks."""
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
