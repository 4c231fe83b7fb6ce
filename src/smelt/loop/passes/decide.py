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

from dataclasses import replace

from smelt.loop import ir
from smelt.loop.env import Env, type_of
from smelt.loop.walk import Body, Rewriter
from smelt.types.dtype import bool_


def decide(body: Body, cond: ir.Value, env: Env, *, value: bool) -> Body:
    """Return statements in which a condition is known to be `value`.

    `env` has the types of the names in `body`: a vector is not replaced by a scalar.
    """
    return _Decide(cond, env, value=value).body(body)


class _Decide(Rewriter):
    def __init__(self, cond: ir.Value, env: Env, *, value: bool) -> None:
        super().__init__(change=self._decided)
        self.cond, self.env = cond, env
        self.constant = ir.Const(value, bool_)

    def _decided(self, v: ir.Value) -> ir.Value:
        if v == self.cond:
            return self.constant
        match v:
            case ir.Apply("select", (ir.Const(value=holds), left, right)):
                chosen, dropped = (left, right) if holds else (right, left)
                return chosen if self._lanes(chosen) >= self._lanes(dropped) else v
            case ir.Apply("and" | "or" as op, (left, right)):
                return self._both(v, op, left, right)
            case ir.Apply("not", (ir.Const(value=holds),)):
                return ir.Const(not holds, bool_)
            case ir.Load(place, other):
                return self._load(v, place, other)
            case _:
                return v

    def _both(self, v: ir.Value, op: str, left: ir.Value, right: ir.Value) -> ir.Value:
        for side, rest in ((left, right), (right, left)):
            if isinstance(side, ir.Const) and bool(side.value) == (op == "and"):
                return rest
            if isinstance(side, ir.Const) and self._lanes(rest) == 1:
                return side
        return v

    def _load(self, v: ir.Load, place: ir.Place, other: ir.Const | None) -> ir.Value:
        if not isinstance(place.mask, ir.Const):
            return v
        if place.mask.value:
            return ir.Load(replace(place, mask=None))
        dtype = self.env.arrays[place.buffer].dtype.compute
        outside = ir.Const(0, dtype) if other is None else other
        return outside if place.lanes == 1 else ir.Splat(outside, place.lanes)

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
            case ir.Store(place) if isinstance(place.mask, ir.Const):
                return (replace(new, place=replace(place, mask=None)),) if place.mask.value else ()
            case _:
                return (new,)
