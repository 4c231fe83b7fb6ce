"""Merge argmax/argmin over a split axis: best element and position of each part.

Each part yields its best element and that element's position. Two parts merge like two elements:
a position whose element is no longer the best becomes `none`, and the first remaining position
wins.

    stream n/all of p with m = -inf, i = none
      m1 = max(x over n)
      i1 = argmax(x over n) + first(n)
      m' = max(m, m1)
      i' = min(select(m is as good as m', i, none), select(m1 is as good as m', i1, none))
    merge p: (m, i)

NaN is better than any number, and all NaN are equally good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from smelt.kernel.env import Env, dtype_of
from smelt.kernel.ir import (
    Apply,
    Axis,
    Cast,
    Const,
    Extreme,
    IndexValue,
    Let,
    Reduce,
    Ref,
    State,
    Statement,
    Update,
    Value,
)
from smelt.lower.define import Definition
from smelt.ops.combine import CHOICE, COMBINES, FIRST, SUM_OF_PRODUCTS, TIES_BEST
from smelt.types.dtype import DType, i8, i64
from smelt.types.expr import Index, axis, product


def argreduce_states(
    d: Definition, let: Let, along: Axis, axes: tuple[str, ...]
) -> tuple[tuple[State, State], tuple[Statement, ...]]:
    """Return the states of a split positional reduction, and the statements of a part.

    `along` is the split axis; `axes` are the axes of the states.
    """
    reduction = let.value
    assert isinstance(reduction, Reduce)
    combine, dtype = COMBINES[reduction.combine], dtype_of(reduction.arg, _env(d))
    if dtype.kind == "bool":  # max and min are not defined on bool
        reduction, dtype = replace(reduction, arg=Cast(reduction.arg, i8)), i8
    best = COMBINES[combine.winner]
    names_taken = {*d.axes, *(s.name for s in d.body if isinstance(s, Let))}
    best_name, part_best, part_position = _fresh(
        (f"{let.name}{end}" for end in ("m", "b", "i")), names_taken
    )
    none = Const(COMBINES[FIRST].identity(i64), i64)
    states = (
        State(best_name, Const(best.identity(dtype), dtype), axes, dtype),
        State(let.name, none, axes, i64),
    )
    inner = product(d.axes[a].extent for a in reduction.over if a != along.name)
    steps = (
        Let(part_best, Reduce(combine.winner, reduction.arg, reduction.over, dtype)),
        Let(part_position, global_position(reduction, along, inner), let.origin),
        Update(best_name, Apply(best.scalar, (Ref(best_name), Ref(part_best)))),
        Update(
            let.name,
            merge_positions(let.name, Ref(part_position), best_name, Ref(part_best), dtype),
        ),
    )
    return states, steps


def global_position(reduction: Reduce, along: Axis, inner: Index) -> Value:
    """Return the position of a part's best element in the whole index space.

    Positions count along the split axis first; each of its positions holds `inner` elements.
    """
    first: Value = Extreme(IndexValue(axis(along.name, along.extent), i64), largest=False)
    if inner != 1:
        first = Apply(SUM_OF_PRODUCTS[1], (first, IndexValue(inner, i64)))
    return Apply(COMBINES[SUM_OF_PRODUCTS[0]].scalar, (reduction, first))


def merge_positions(
    state: str, position: Value, best_name: str, part_best: Value, dtype: DType
) -> Value:
    """Merge the old position and a part's: the first whose element is the best.

    `best_name` names the state of the best element; `part_best` is the part's best.
    """
    none, new = Const(COMBINES[FIRST].identity(i64), i64), Ref(best_name, next=True)
    old_position = Apply(CHOICE, (_as_good(Ref(best_name), new, dtype), Ref(state), none))
    part_position = Apply(CHOICE, (_as_good(part_best, new, dtype), position, none))
    return Apply(COMBINES[FIRST].scalar, (old_position, part_position))


def _env(d: Definition) -> Env:
    """Return a scope with everything bound in a definition."""
    env = Env({p.name: p for p in (*d.outputs, *d.inputs)})
    env.bind_all(d.body)
    return env


def _as_good(x: Value, best: Value, dtype: DType) -> Value:
    """Return whether x equals the best element, or is NaN."""
    either, equal, differs = TIES_BEST
    same = Apply(equal, (x, best))
    return Apply(either, (same, Apply(differs, (x, x)))) if dtype.is_float else same


def _fresh(names: Iterable[str], taken: set[str]) -> list[str]:
    """Return names that are not taken, and mark them as taken."""
    fresh: list[str] = []
    for name in names:
        candidates = (name, *(f"{name}{k}" for k in range(len(taken))))
        fresh.append(next(n for n in candidates if n not in taken))
        taken.add(fresh[-1])
    return fresh
