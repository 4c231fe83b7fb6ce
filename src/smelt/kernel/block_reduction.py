"""Find what a block of a stream adds to a reduction of all blocks.

stream k/64 with acc = 0 [m,n]
  acc' = acc + dot(x[m,k], w[n,k] over k)        dot(x[m,k], w[n,k] over k)
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.kernel import ir as k
from smelt.kernel.walk import children, refs, statements, visit
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS, Combine

ReductionValue = k.Reduce | k.Dot


def row_of(reduction: ReductionValue) -> Combine:
    """Return the operator that combines the elements of a reduction."""
    return COMBINES[reduction.combine if isinstance(reduction, k.Reduce) else SUM_OF_PRODUCTS[0]]


def accumulated(
    name: str, reduction: ReductionValue, axes: tuple[str, ...] = ()
) -> tuple[k.State, k.Update]:
    """Return a stream's state for a reduction, and its update in a block."""
    row, dtype = row_of(reduction), reduction.dtype.compute
    first = k.Const(row.identity(reduction.dtype), dtype)
    update = k.Update(name, k.Apply(row.scalar, (k.Ref(name), reduction)))
    return k.State(name, first, axes, dtype), update


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
    row = row_of(reduction)
    if row.scalar != value.op or not _starts_at_identity(state, row, reduction):
        return None
    states = {s.state for s in statements((stream,)) if isinstance(s, k.Update)}
    visited = {b.axis for b in stream.blocks}
    values = [v for x in children(reduction) for v in values_behind(x, bound)]
    return reduction if all(_is_block_independent(v, states, visited) for v in values) else None


def _starts_at_identity(state: k.State, row: Combine, reduction: ReductionValue) -> bool:
    init = state.init
    return isinstance(init, k.Const) and init == k.Const(row.identity(reduction.dtype), init.dtype)


def values_behind(v: k.Value, bound: dict[str, k.Value]) -> Iterator[k.Value]:
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
