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

from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    indices,
    inner_statements,
    is_short,
    value_indices,
    values,
    visit,
    with_body,
    with_func_body,
)
from smelt.types.expr import Atom, Expr, Index, add, atoms, build

__all__ = ["Module", "hoist_offsets"]


def hoist_offsets(func: ir.Func) -> ir.Func:
    """Move the invariant terms of index expressions in front of their loops."""
    return with_func_body(func, _Hoister(Names(func)).body(func.body))


class _Hoister(Rewriter):
    """Rewrites blocks once; `known` has what the loops around change, outer loops first."""

    def __init__(self, new_names: Names) -> None:
        super().__init__()
        self.new_names = new_names
        self.inside: dict[int, dict[Index, None]] = {}
        """Index expressions in statements, by the statement's identity."""

    def index(self, e: Index) -> Index:
        """Change an index expression."""
        return self.known.get(e, e)

    def body(self, body: Body) -> Body:
        """Rewrite the statements of a block, whose loops share what is bound before them."""
        out: list[ir.Statement] = []
        lets: dict[Index, str] = {}
        for s in body:
            if isinstance(s, ir.For):
                outer, head = self.known, self._rebuilt_loop(with_body(s, ()))
                if s.kind != "chunk":
                    count = len(lets)
                    self.known = self._changes(s, lets)
                    new = [*lets.items()][count:]
                    out += [ir.Let(name, ir.position(part)) for part, name in new]
                out.append(with_body(head, self.body(s.body)))
                self.known = outer
            elif isinstance(s, ir.If) or not self.known.keys().isdisjoint(self._indices(s)):
                out.append(self.rebuild(s))
            else:
                out.append(s)
        return tuple(out)

    def _changes(self, s: ir.For, lets: dict[Index, str]) -> dict[Index, Index]:
        """Return the new expressions of a loop; adds what is bound before it to `lets`."""
        varying = {ir.AT, s.var, *bound((s,))}

        def varies(a: Atom) -> bool:
            if not a.args:
                return a.name in varying
            return not varying.isdisjoint([x.name for e in a.args for x in atoms(e)])

        def split(e: Index) -> Index:
            assert isinstance(e, Expr)
            fixed = [t for t in e.terms if t[0] and not any(map(varies, t[0]))]
            part = Expr(tuple(fixed))
            if not fixed or is_short(part):
                return e
            if part not in lets:
                lets[part] = self.new_names.new("o")
            rest = tuple([t for t in e.terms if t not in fixed])
            return add(ir.number(lets[part]), build(dict(rest)))

        changes: dict[Index, Index] = {}
        for e in dict.fromkeys(e for t in s.body for e in self._indices(t)):
            new = split(self.known.get(e, e))
            if new is not e:
                changes[e] = new
        return changes

    def _indices(self, s: ir.Statement) -> dict[Index, None]:
        """Return the index expressions of a statement, and of those inside it."""
        if (out := self.inside.get(id(s))) is not None:
            return out
        read = (e for v in values(s) for x in visit(v) for e in value_indices(x))
        inside: dict[Index, None] = {e: None for e in (*indices(s), *read) if isinstance(e, Expr)}
        for t in inner_statements(s):
            inside |= self._indices(t)
        self.inside[id(s)] = inside
        return inside
