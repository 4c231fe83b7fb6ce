"""Load lanes that lie apart once for consecutive iterations that read the same.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... tile f(s: f32[], x: f32[], p: out f32[]; n, g)
...   each k in 0 .. n
...     p[k*4 : 4] = s[k//8 : 4 * g] * x[k : 4 * n]
... ''')
>>> print(text(Module("f", (reuse_loads(module.funcs[0]),))))
tile f(s: f32[], x: f32[], p: out f32[]; n, g)
  for k in 0 .. n with last_1 = -4611686018427387904, kept_1 = splat(0.0, 4)
    at_1 = k//8
    if last_1 != at_1 with new_1
      new_1' = s[at_1 : 4 * g]
    else
      new_1' = kept_1
    p[k*4 : 4] = new_1 * x[k : 4 * n]
    last_1' = at_1
    kept_1' = new_1

A gather takes as long as twenty other instructions. Scales of a weight's groups, and numbers that
are packed several to a byte along a reduction, are the same elements for several of its positions.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.loop import ir
from smelt.loop.env import Env, type_of, types_in
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
    values,
    with_func_body,
)
from smelt.types.expr import Atom, Expr, Index, atoms

__all__ = ["Module", "reuse_loads"]

NOWHERE = -(1 << 62)
"""An offset that no element has."""


def reuse_loads(func: ir.Func) -> ir.Func:
    """Carry what gathers read from iteration to iteration, in loops without loops inside."""
    rewriter = _Loops(Names(func), types_in(func))
    return with_func_body(func, rewriter.body(func.body))


class _Loops(Rewriter):
    """Rewrites the innermost loops that carry nothing."""

    def __init__(self, names: Names, env: Env) -> None:
        super().__init__()
        self.new_names, self.env = names, env

    def statement(self, s: ir.Statement) -> Body:
        """Rewrite a loop, or those inside."""
        if not isinstance(s, ir.For) or any(isinstance(t, ir.For) for t in s.body):
            return (self.rebuild(s),)
        return (s if s.carry else self._with_carries(s),)

    def _with_carries(self, s: ir.For) -> ir.For:
        """Return a loop that carries what its gathers read, one condition for each offset."""
        shared: dict[Index, dict[ir.Load, str]] = {}
        for load in loads(*(v for t in s.body for v in values(t))):
            if isinstance(load.place.at, Expr) and _is_shared(load, s):
                shared.setdefault(load.place.at, {}).setdefault(load, self.new_names.new("new"))
        carry: list[ir.Carry] = []
        before: list[ir.Statement] = []
        after: list[ir.Statement] = []
        swap: dict[ir.Value, ir.Value] = {}
        for offset, names in shared.items():
            last, at = self.new_names.new("last"), self.new_names.new("at")
            position, there = ir.position(ir.number(at)), ir.number(at)
            carry.append(ir.Carry(last, ir.position(NOWHERE)))
            after.append(ir.Next(last, position))
            new, same = list[ir.Statement](), list[ir.Statement]()
            for load, name in names.items():
                kept, kind = self.new_names.new("kept"), type_of(load, self.env)
                carry.append(ir.Carry(kept, ir.Splat(ir.Const(0, kind.dtype), kind.lanes)))
                after.append(ir.Next(kept, ir.Ref(name)))
                new.append(ir.Next(name, replace(load, place=replace(load.place, at=there))))
                same.append(ir.Next(name, ir.Ref(kept)))
                swap[load] = ir.Ref(name)
            moved = ir.Apply("ne", (ir.position(ir.number(last)), position))
            before.append(ir.Let(at, ir.position(offset)))
            before.append(ir.If(moved, tuple(new), tuple(same), tuple(names.values())))
        if not shared:
            return s
        body = Rewriter(change=lambda v: swap.get(v, v)).body(s.body)
        return replace(s, kind="for", carry=tuple(carry), body=(*before, *body, *after))


def _is_shared(load: ir.Load, s: ir.For) -> bool:
    """Return whether a gather varies in a loop by quotients of its variable alone."""
    place, inner = load.place, {*bound(s.body)}
    written = {p.buffer for t in statements(s.body) if isinstance(t, ir.Store) for p in places(t)}
    if place.lanes == 1 or place.stride in (0, 1) or place.buffer in written:
        return False
    assert isinstance(place.at, Expr)
    mask = set[str]() if place.mask is None else names_in(place.mask)
    if not (mask | {a.name for a in atoms(place.at)}).isdisjoint(inner) or s.var in mask:
        return False
    terms = [a for monomial, _ in place.at.terms for a in monomial if _reads(a, s.var)]
    return bool(terms) and all(a.kind == "//" for a in terms)


def _reads(a: Atom, name: str) -> bool:
    return a.name == name or any(x.name == name for e in a.args for x in atoms(e))
