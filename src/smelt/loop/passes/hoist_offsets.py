"""Bind the part of each offset that does not change in a loop before it.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[m], y: out f32[n*m + 7]; n, m)
...   chunk t in 0 .. n
...     each j in 0 .. m
...       y[t*m + j + 7] = x[j]
... ''')
>>> print(text(Module("f", (hoist_offsets(module.funcs[0]),))))
func f(x: f32[m], y: out f32[m*n + 7]; n, m)
  chunk t in 0 .. n
    o_1 = m*t
    each j in 0 .. m
      y[j + o_1 + 7] = x[j]

What is outside of tasks stays, and so do single variables and their multiples by numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    is_short,
    with_body,
    with_func_body,
)
from smelt.types.expr import Atom, Expr, Index, add, atoms, build

__all__ = ["Module", "hoist_offsets"]


def hoist_offsets(func: ir.Func) -> ir.Func:
    """Move the invariant terms of index expressions in front of their loops."""
    return with_func_body(func, _Hoister(Names(func)).block(func.body))


class _Hoister:
    """Rewrites blocks, outer loops first."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def block(self, body: Body) -> Body:
        """Rewrite the loops of a block, which share what is bound before them."""
        out: list[ir.Statement] = []
        lets: dict[Index, str] = {}
        for s in body:
            if isinstance(s, ir.For):
                before, inner = ([], s) if s.kind == "chunk" else self._before(s, lets)
                out += [*before, with_body(inner, self.block(inner.body))]
            elif isinstance(s, ir.If):
                out.append(ir.If(s.cond, self.block(s.then), self.block(s.other), s.results))
            else:
                out.append(s)
        return tuple(out)

    def _before(self, s: ir.For, lets: dict[Index, str]) -> tuple[list[ir.Let], ir.For]:
        """Return what is bound before a loop besides `lets`, and the loop."""
        varying = {ir.AT, s.var, *bound((s,))}
        new: list[ir.Let] = []

        def varies(a: Atom) -> bool:
            if not a.args:
                return a.name in varying
            return not varying.isdisjoint([x.name for e in a.args for x in atoms(e)])

        def split(e: Expr) -> Index:
            fixed = [t for t in e.terms if t[0] and not any(map(varies, t[0]))]
            part = Expr(tuple(fixed))
            if not fixed or is_short(part):
                return e
            if part not in lets:
                lets[part] = self.names.new("o")
                new.append(ir.Let(lets[part], ir.position(part)))
            rest = tuple([t for t in e.terms if t not in fixed])
            return add(ir.number(lets[part]), build(dict(rest)))

        body = _Split(split).body(s.body)
        return new, with_body(s, body)


class _Split(Rewriter):
    """Rebuilds statements with every index expression changed by a function."""

    def __init__(self, split: Callable[[Expr], Index]) -> None:
        super().__init__()
        self.split = split

    def index(self, e: Index) -> Index:
        """Change an index expression."""
        if isinstance(e, int):
            return e
        new = self.known.get(e)
        if new is None:
            new = self.known[e] = self.split(e)
        return new
