"""Where the best element of an axis in parts stands: the best of each part, and its place.

A part says both, and the places of two parts join as those of one: a place that is not of the best
any more is none, and of those that are left the first counts.

    stream n/all of p with m = -inf, i = none
      m1 = max(x over n)
      i1 = argmax(x over n) + first(n)
      m' = max(m, m1)
      i' = min(select(m is as good as m', i, none), select(m1 is as good as m', i1, none))
    merge p: (m, i)

NaN wins and stays: two NaN are equally good.
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
from smelt.ops.combine import AS_GOOD, CHOICE, COMBINES, FIRST, SUM_OF_PRODUCTS
from smelt.types.dtype import DType, i8, i64
from smelt.types.expr import Index, axis, product


def winner(
    d: Definition, let: Let, along: Axis, axes: tuple[str, ...]
) -> tuple[tuple[State, State], tuple[Statement, ...]]:
    """The states of a fold whose result is a place along a split axis, and the statements of a
    part."""
    fold = let.value
    assert isinstance(fold, Reduce)
    row, dtype = COMBINES[fold.combine], dtype_of(fold.arg, _env(d))
    if dtype.kind == "bool":  # truths have no extremes
        fold, dtype = replace(fold, arg=Cast(fold.arg, i8)), i8
    best = COMBINES[row.winner]
    taken = {*d.axes, *(s.name for s in d.body if isinstance(s, Let))}
    held, top, place = _fresh((f"{let.name}{end}" for end in ("m", "b", "i")), taken)
    none = Const(COMBINES[FIRST].identity(i64), i64)
    states = (
        State(held, Const(best.identity(dtype), dtype), axes, dtype),
        State(let.name, none, axes, i64),
    )
    inner = product(d.axes[a].extent for a in fold.over if a != along.name)
    steps = (
        Let(top, Reduce(row.winner, fold.arg, fold.over, dtype)),
        Let(place, stands(fold, along, inner), let.origin),
        Update(held, Apply(best.scalar, (Ref(held), Ref(top)))),
        Update(let.name, joined(let.name, Ref(place), held, Ref(top), dtype)),
    )
    return states, steps


def stands(fold: Reduce, along: Axis, inner: Index) -> Value:
    """Where the best element of a part stands in the whole: places are counted along the split axis
    first, and each of its positions has `inner` places."""
    first: Value = Extreme(IndexValue(axis(along.name, along.extent), i64), largest=False)
    if inner != 1:
        first = Apply(SUM_OF_PRODUCTS[1], (first, IndexValue(inner, i64)))
    return Apply(COMBINES[SUM_OF_PRODUCTS[0]].scalar, (fold, first))


def joined(state: str, place: Value, held: str, top: Value, dtype: DType) -> Value:
    """The new place: the first of the old and a part's, as far as they are of the best."""
    none, new = Const(COMBINES[FIRST].identity(i64), i64), Ref(held, next=True)
    mine = Apply(CHOICE, (_as_good(Ref(held), new, dtype), Ref(state), none))
    found = Apply(CHOICE, (_as_good(top, new, dtype), place, none))
    return Apply(COMBINES[FIRST].scalar, (mine, found))


def _env(d: Definition) -> Env:
    """The types of everything in straight-line statements."""
    env = Env({p.name: p for p in (*d.outputs, *d.inputs)})
    env.bind_all(d.body)
    return env


def _as_good(x: Value, best: Value, dtype: DType) -> Value:
    """Whether x is the best of all, or NaN, than which nothing is better."""
    either, equal, differs = AS_GOOD
    same = Apply(equal, (x, best))
    return Apply(either, (same, Apply(differs, (x, x)))) if dtype.is_float else same


def _fresh(names: Iterable[str], taken: set[str]) -> list[str]:
    """Names that nothing else has."""
    found: list[str] = []
    for name in names:
        tries = (name, *(f"{name}{k}" for k in range(len(taken))))
        found.append(next(n for n in tries if n not in taken))
        taken.add(found[-1])
    return found
