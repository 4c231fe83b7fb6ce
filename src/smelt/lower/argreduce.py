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

from smelt.kernel import ir
from smelt.kernel.env import Env, dtype_of
from smelt.lower.define import Definition
from smelt.ops.combine import CHOICE, COMBINES, FIRST, SUM_OF_PRODUCTS, TIES_BEST
from smelt.types.dtype import DType, i8, i64
from smelt.types.expr import Index, axis, product


def argreduce_states(
    d: Definition, let: ir.Let, along: ir.Axis, axes: tuple[str, ...]
) -> tuple[tuple[ir.State, ir.State], tuple[ir.Statement, ...]]:
    """Return the states of a split positional reduction, and the statements of a part.

    `along` is the split axis; `axes` are the axes of the states.
    """
    reduction = let.value
    assert isinstance(reduction, ir.Reduce)
    combine, dtype = COMBINES[reduction.combine], dtype_of(reduction.arg, _env(d))
    if dtype.kind == "bool":  # max and min are not defined on bool
        reduction, dtype = replace(reduction, arg=ir.Cast(reduction.arg, i8)), i8
    best = COMBINES[combine.winner]
    names_taken = {*d.axes, *(s.name for s in d.body if isinstance(s, ir.Let))}
    best_name, part_best, part_position = _fresh(
        (f"{let.name}{end}" for end in ("m", "b", "i")), names_taken
    )
    none = ir.Const(COMBINES[FIRST].identity(i64), i64)
    states = (
        ir.State(best_name, ir.Const(best.identity(dtype), dtype), axes, dtype),
        ir.State(let.name, none, axes, i64),
    )
    inner = product(d.axes[a].extent for a in reduction.over if a != along.name)
    steps = (
        ir.Let(part_best, ir.Reduce(combine.winner, reduction.arg, reduction.over, dtype)),
        ir.Let(part_position, global_position(reduction, along, inner), let.origin),
        ir.Update(best_name, ir.Apply(best.scalar, (ir.Ref(best_name), ir.Ref(part_best)))),
        ir.Update(
            let.name,
            merge_positions(let.name, ir.Ref(part_position), best_name, ir.Ref(part_best), dtype),
        ),
    )
    return states, steps


def global_position(reduction: ir.Reduce, along: ir.Axis, inner: Index) -> ir.Value:
    """Return the position of a part's best element in the whole index space.

    Positions count along the split axis first; each of its positions holds `inner` elements.
    """
    first: ir.Value = ir.Extreme(ir.IndexValue(axis(along.name, along.extent), i64), largest=False)
    if inner != 1:
        first = ir.Apply(SUM_OF_PRODUCTS[1], (first, ir.IndexValue(inner, i64)))
    return ir.Apply(COMBINES[SUM_OF_PRODUCTS[0]].scalar, (reduction, first))


def merge_positions(
    state: str, position: ir.Value, best_name: str, part_best: ir.Value, dtype: DType
) -> ir.Value:
    """Merge the old position and a part's: the first whose element is the best.

    `best_name` names the state of the best element; `part_best` is the part's best.
    """
    none, new = ir.Const(COMBINES[FIRST].identity(i64), i64), ir.Ref(best_name, next=True)
    old_position = ir.Apply(CHOICE, (_as_good(ir.Ref(best_name), new, dtype), ir.Ref(state), none))
    part_position = ir.Apply(CHOICE, (_as_good(part_best, new, dtype), position, none))
    return ir.Apply(COMBINES[FIRST].scalar, (old_position, part_position))


def _env(d: Definition) -> Env:
    """Return a scope with everything bound in a definition."""
    env = Env({p.name: p for p in (*d.outputs, *d.inputs)})
    env.bind_all(d.body)
    return env


def _as_good(x: ir.Value, best: ir.Value, dtype: DType) -> ir.Value:
    """Return whether x equals the best element, or is NaN."""
    either, equal, differs = TIES_BEST
    same = ir.Apply(equal, (x, best))
    return ir.Apply(either, (same, ir.Apply(differs, (x, x)))) if dtype.is_float else same


def _fresh(names: Iterable[str], taken: set[str]) -> list[str]:
    """Return names that are not taken, and mark them as taken."""
    fresh: list[str] = []
    for name in names:
        candidates = (name, *(f"{name}{k}" for k in range(len(taken))))
        fresh.append(next(n for n in candidates if n not in taken))
        taken.add(fresh[-1])
    return fresh
