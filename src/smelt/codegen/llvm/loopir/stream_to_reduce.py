"""Rewrite streams as reductions where a block's contribution depends on no state.

The order of visits does not matter then, and the stream is one reduction over the whole axis, which
may be blocked, packed and vectorised like any other:

    stream k/64 with acc = 0 [m,n]
      acc' = acc + dot(x[m,k], w[n,k] over k)        is      acc = dot(x[m,k], w[n,k] over k)

A stream that reduces what is itself a reduction (the result of a contraction, say) is left alone:
its blocks keep those results in fast memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from smelt.kernel import ir as k
from smelt.kernel.block_reduction import ReductionValue, block_reduction, values_behind
from smelt.kernel.walk import values_of, visit


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
        isinstance(v, k.Reduce | k.Dot | k.Scan) for x in inside for v in values_behind(x, bound)
    )
