"""Rewrite a stream as reductions where a block's contribution depends on no state.

The order of visits does not matter then, and each state is one reduction over whole axes, which
may be blocked, packed and vectorised like any other.

>>> from smelt.kernel.text import parse, text
>>> kernel = parse('''
... kernel f(x: f32[m,k], w: f32[n,k]) -> y: f32[m,n]
...   grid m, n
...   stream k/64 with acc = 0
...     acc' = acc + dot(x[m,k], w[n,k] over k)
...   y[m,n] = acc
... ''')
>>> stream, *rest = kernel.body
>>> print(text(replace(kernel, body=(*reductions_of(stream), *rest))))
kernel f(x: f32[m,k], w: f32[n,k]) -> y: f32[m,n]
  grid m, n
  acc = dot(x[m,k], w[n,k] over k)
  y[m,n] = acc
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.kernel.block_reduction import ReductionValue, block_reduction, values_behind
from smelt.kernel.ir import Extreme, Let, Partial, Position, Statement, Store, Stream, Update
from smelt.kernel.walk import children, joined_axes, refs, visit_statement


def reductions_of(s: Stream) -> list[Statement]:
    """Return what a stream computes, as reductions of its axes; none where steps differ."""
    states = {t.name: t for t in s.states}
    is_cut = any(e is not None for b in s.blocks for e in (b.start, b.stop, b.part))
    if is_cut or s.where is not None or s.bounds:
        return []
    result: list[Statement] = []
    for x in s.body:
        if isinstance(x, Update):
            reduction = block_reduction(states.pop(x.state), x, s)
            if reduction is None:
                return []
            axes = tuple(b.axis for b in s.blocks if b.axis not in reduction.over)
            result.append(Let(x.state, replace(reduction, over=(*reduction.over, *axes))))
        elif isinstance(x, Let | Position | Store) and not _reads_blocks(x, s):
            result.append(x)
        else:
            return []
    return [*(Let(name, t.init) for name, t in states.items()), *result]


def _reads_blocks(x: Let | Position | Store, s: Stream) -> bool:
    """Return whether a statement depends on the blocks of a stream, or on those before."""
    values = [*visit_statement(x)]
    visited = {b.axis for b in s.blocks}
    return (
        bool({u.state for u in s.body if isinstance(u, Update)}.intersection(refs(x)))
        or (isinstance(x, Store) and bool(x.join))
        or any(isinstance(v, Partial | Extreme) for v in values)
        or any(visited.intersection(joined_axes(v)) for v in values)
    )


def reads_reduction(reduction: ReductionValue, body: Sequence[Statement]) -> bool:
    """Return whether a reduction reads another one, directly or through bindings of a body."""
    bound = {x.name: x.value for x in body if isinstance(x, Let)}
    inside = (v for x in children(reduction) for v in values_behind(x, bound))
    return any(map(joined_axes, inside))
