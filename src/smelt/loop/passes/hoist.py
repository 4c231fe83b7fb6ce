"""Compute before a loop what does not vary in it.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[m], b: f32[n], y: out f32[m*n]; n, m)
...   each t in 0 .. n
...     each j in 0 .. m
...       g = exp(b[t])
...       y[t*m + j] = x[j] * g + sqrt(b[t])
... ''')
>>> print(text(Module("f", (hoist(module.funcs[0]),))))
func f(x: f32[m], b: f32[n], y: out f32[m*n]; n, m)
  each t in 0 .. n
    g = exp(b[t])
    kept_1 = sqrt(b[t])
    each j in 0 .. m
      y[m*t + j] = x[j] * g + kept_1

A load moves only if no store of the loop may write its array, and if the loop surely runs: before
an empty loop it could leave the array. Index expressions stay where they are read.
"""

from __future__ import annotations

from smelt.loop import ir
from smelt.loop.env import INDEX, Env, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    loads,
    names_in,
    places,
    statements,
    with_func_body,
)
from smelt.types import expr

__all__ = ["Module", "hoist"]


def hoist(func: ir.Func) -> ir.Func:
    """Move values that no iteration changes in front of their loops."""
    names, env = Names(func), types_in(func)
    return with_func_body(func, _from_loops(func.body, names, env))


def _from_loops(body: Body, names: Names, env: Env) -> Body:
    """Move values out of the loops of a block, inner loops first."""
    out: list[ir.Statement] = []
    for s in body:
        match s:
            case ir.For():
                inner = _from_loops(s.body, names, env)
                mover = _Hoist(s, inner, names, env)
                new = mover.body(inner)
                out += mover.moved
                out.append(ir.For(s.kind, s.var, s.low, s.high, new, s.step, s.carry))
            case ir.If(cond, then, other, results):
                left, right = (_from_loops(side, names, env) for side in (then, other))
                out.append(ir.If(cond, left, right, results))
            case _:
                out.append(s)
    return tuple(out)


class _Hoist(Rewriter):
    def __init__(self, loop: ir.For, body: Body, names: Names, env: Env) -> None:
        super().__init__()
        self.new_names, self.env = names, env
        self.varying = {*bound((loop,)), *bound(body)}
        inner = (s for s in statements(body) if not isinstance(s, ir.Prefetch))
        self.written = {p.buffer for s in inner for p in places(s)}
        self.runs = expr.positive(expr.sub(loop.high, loop.low))
        self.moved: list[ir.Statement] = []
        self.kept: dict[ir.Value, ir.Value] = {}

    def _is_worth_a_name(self, v: ir.Value) -> bool:
        v = v.arg if isinstance(v, ir.Splat) else v
        return not isinstance(
            v, ir.Const | ir.IndexValue | ir.Ref | ir.Lane | ir.LaneIndex | ir.Prefix
        )

    def _may_move(self, v: ir.Value) -> bool:
        if not self.varying.isdisjoint(names_in(v)):
            return False
        return all(self.runs and x.place.buffer not in self.written for x in loads(v))

    def value(self, v: ir.Value) -> ir.Value:
        if not self._is_worth_a_name(v) or not self._may_move(v):
            return super().value(v)
        if v not in self.kept:
            name = self.new_names.new("kept")
            self.moved.append(ir.Let(name, v))
            self.env.values[name] = kind = type_of(v, self.env)
            read = ir.position(ir.number(name)) if kind == INDEX else ir.Ref(name)
            self.kept[v] = read
        return self.kept[v]

    def statement(self, s: ir.Statement) -> Body:
        match s:
            case ir.Let(name, value) if self._may_move(value):
                self.moved.append(s)
                self.varying.discard(name)
                return ()
            case ir.If() | ir.For():
                runs, self.runs = self.runs, False  # it may never run
                new = self.rebuild(s)
                self.runs = runs
                return (new,)
            case _:
                return (self.rebuild(s),)
