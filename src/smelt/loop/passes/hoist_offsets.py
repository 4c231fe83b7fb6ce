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
    atom_index,
    bound,
    is_short,
    with_body,
    with_func_body,
)
from smelt.types.expr import Expr, Index, add, atoms, build, terms_of

__all__ = ["Module", "hoist_offsets"]


def hoist_offsets(func: ir.Func) -> ir.Func:
    """Move the invariant terms of index expressions in front of their loops."""
    return with_func_body(func, _Hoister(Names(func)).block(func.body))


class _Hoister:
    """Rewrites blocks, outer loops first."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def block(self, body: Body) -> Body:
        """Rewrite the loops of a block."""
        out: list[ir.Statement] = []
        for s in body:
            if isinstance(s, ir.For):
                lets, inner = ([], s) if s.kind == "chunk" else self._before(s)
                out += [*lets, with_body(inner, self.block(inner.body))]
            elif isinstance(s, ir.If):
                out.append(ir.If(s.cond, self.block(s.then), self.block(s.other), s.results))
            else:
                out.append(s)
        return tuple(out)

    def _before(self, s: ir.For) -> tuple[list[ir.Statement], ir.For]:
        """Return what is bound before a loop, and the loop."""
        varying = {s.var, *bound((s,))}
        lets: dict[Index, str] = {}

        def split(e: Index) -> Index:
            terms = dict(terms_of(e))
            fixed = {
                m: c
                for m, c in terms.items()
                if m and not any(x.name in varying for a in m for x in atoms(atom_index(a)))
            }
            part = build(fixed)
            if not isinstance(part, Expr) or is_short(part):
                return e
            if part not in lets:
                lets[part] = self.names.new("o")
            rest = build({m: c for m, c in terms.items() if m not in fixed})
            return add(ir.number(lets[part]), rest)

        body = _Split(split).body(s.body)
        bindings = [ir.Let(name, ir.position(part)) for part, name in lets.items()]
        return [*bindings], with_body(s, body)


class _Split(Rewriter):
    """Rebuilds statements with every index expression changed by a function."""

    def __init__(self, split: Callable[[Index], Index]) -> None:
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
