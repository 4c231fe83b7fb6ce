"""Simplify statements in which a condition has one value.

>>> from smelt.loop.env import types_in
>>> from smelt.loop.text import parse, statement_text
>>> func = parse('''
... func f(a: f32[n], y: out f32[n]; n; k)
...   each i in 0 .. n
...     if i < k
...       y[i] = select(i < k, a[i], 0.0) + a[i | i < k]
... ''').funcs[0]
>>> loop = func.body[0]
>>> (s,) = decide(loop.body, loop.body[0].cond, types_in(func), value=True)
>>> statement_text(s)
'y[i] = a[i] + a[i]'
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.kernel.bounds import COMPARISONS
from smelt.loop import ir
from smelt.loop.env import Env, type_of
from smelt.loop.walk import (
    Body,
    Rewriter,
    atom_index,
    reads,
    statements,
    substitute_index,
    values,
    visit,
    with_body,
)
from smelt.python.dataclass import dataclass, replace
from smelt.types import expr
from smelt.types.dtype import bool_
from smelt.types.expr import Index, coefficient


def decide(body: Body, cond: ir.Value, env: Env, *, value: bool) -> Body:
    """Return statements in which a condition is known to be `value`.

    `env` has the types of the names in `body`: a vector is not replaced by a scalar.
    """
    return decide_all(body, {cond: value}, env)


def decide_all(body: Body, answers: Mapping[ir.Value, bool], env: Env) -> Body:
    """Return statements in which several conditions are known."""
    return _Decide(answers, env).body(body) if answers else body


def conditions(loop: ir.For) -> tuple[ir.Value, ...]:
    """Return comparisons of index expressions that select, mask or branch inside a loop."""
    out: dict[ir.Value, None] = {}
    for s in statements(loop.body):
        for v in (x for root in values(s) for x in visit(root)):
            if isinstance(v, ir.Apply) and v.op in (*COMPARISONS, "eq", "ne"):
                if all(ir.as_index(a) is not None for a in v.args):
                    out[v] = None
    return tuple(out)


def gap_of(v: ir.Value) -> Index | None:
    """Return what is >= 0 where a comparison of positions holds, and only there."""
    if not isinstance(v, ir.Apply) or v.op not in COMPARISONS:
        return None
    left, right = map(ir.as_index, v.args)
    if left is None or right is None:
        return None
    left, right = _clamped(left, right), _clamped(right, left)
    if left is None or right is None:
        return None
    sign, shift = COMPARISONS[v.op]
    gap = expr.add(expr.mul(expr.sub(left, right), sign), shift)
    return None if expr.may_wrap(gap) else gap


def _clamped(e: Index, other: Index) -> Index | None:
    """Return what compares with positions as an index does, and is far from wrapping.

    A value of the program may be any integer; with positions added it may have wrapped (None).
    """
    values = [a for a in expr.atoms(e) if a.kind == "value"]
    if not values:
        return e
    if e != atom_index(values[0]) or any(a.kind == "value" for a in expr.atoms(other)):
        return None
    return expr.minimum(expr.maximum(e, -FARTHEST), FARTHEST)


FARTHEST = 1 << 62
"""Maximum distance of a value from positions: farther ones compare with them alike."""


@dataclass(frozen=True, slots=True)
class Flip:
    """Position of a loop from which on a comparison holds (`rising`), or before which."""

    at: Index
    rising: bool


def flip_of(gap: Index, var: str) -> Flip | None:
    """Return where a gap changes its sign along a loop, if it does once."""
    step = coefficient(gap, var)
    if not isinstance(step, int) or step == 0:
        return None
    first = substitute_index(gap, {var: 0})
    if step > 0:
        return Flip(expr.mul(expr.floordiv(first, step), -1), rising=True)
    return Flip(expr.add(expr.floordiv(first, -step), 1), rising=False)


def without_unread(body: Body) -> Body:
    """Leave out what is bound and not read."""
    needed, out = set[str](), list[ir.Statement]()
    for s in reversed(body):
        if isinstance(s, ir.Let) and s.name not in needed:
            continue
        if isinstance(s, ir.For):
            s = with_body(s, without_unread(s.body))
        elif isinstance(s, ir.If):
            s = replace(s, then=without_unread(s.then), other=without_unread(s.other))
        needed |= reads(s)
        out.append(s)
    return tuple(out[::-1])


class _Decide(Rewriter):
    def __init__(self, answers: Mapping[ir.Value, bool], env: Env) -> None:
        super().__init__(change=self._decided)
        self.answers, self.env = answers, env
        self.kinds = {type(v) for v in answers}

    def _decided(self, v: ir.Value) -> ir.Value:
        if type(v) in self.kinds and v in self.answers:
            return self._wide(ir.Const(self.answers[v], bool_), self._lanes(v))
        match v:
            case ir.Apply("select", (cond, left, right)) if (holds := _answer(cond)) is not None:
                chosen, dropped = (left, right) if holds else (right, left)
                if self._lanes(chosen) >= self._lanes(dropped):
                    return self._wide(chosen, self._lanes(cond))
                return v
            case ir.Apply("and" | "or" as op, (left, right)):
                return self._both(v, op, left, right)
            case ir.Apply("not", (cond,)) if (holds := _answer(cond)) is not None:
                return self._wide(ir.Const(not holds, bool_), self._lanes(cond))
            case ir.Load(place, other):
                return self._load(v, place, other)
            case _:
                return v

    def _both(self, v: ir.Value, op: str, left: ir.Value, right: ir.Value) -> ir.Value:
        for side, rest in ((left, right), (right, left)):
            if (holds := _answer(side)) is None:
                continue
            if holds == (op == "and"):
                return self._wide(rest, self._lanes(side))
            if self._lanes(rest) <= self._lanes(side):
                return side
        return v

    def _load(self, v: ir.Load, place: ir.Place, other: ir.Const | None) -> ir.Value:
        if place.mask is None or (holds := _answer(place.mask)) is None:
            return v
        if holds:
            return ir.Load(replace(place, mask=None))
        dtype = self.env.arrays[place.buffer].dtype.compute
        return self._wide(ir.Const(0, dtype) if other is None else other, place.lanes)

    def _wide(self, v: ir.Value, lanes: int) -> ir.Value:
        """Return a value in at least so many lanes: a fold counts them."""
        return ir.Splat(v, lanes) if self._lanes(v) == 1 < lanes else v

    def _lanes(self, v: ir.Value) -> int:
        return type_of(v, self.env).lanes

    def statement(self, s: ir.Statement) -> Body:
        new = self.rebuild(s)
        match new:
            case ir.If(ir.Const(value=holds), then, other, results):
                side = then if holds else other
                return tuple(
                    ir.Let(x.name, x.value) if isinstance(x, ir.Next) and x.name in results else x
                    for x in side
                )
            case ir.Store(place) if place.mask and (holds := _answer(place.mask)) is not None:
                return (replace(new, place=replace(place, mask=None)),) if holds else ()
            case _:
                return (new,)


def _answer(cond: ir.Value) -> bool | None:
    """Return the value of a constant condition; None if it varies."""
    match cond:
        case ir.Splat(ir.Const(value=holds, dtype=dtype)) if dtype == bool_:
            return bool(holds)
        case ir.Const(value=holds, dtype=dtype) if dtype == bool_:
            return bool(holds)
        case _:
            return None
