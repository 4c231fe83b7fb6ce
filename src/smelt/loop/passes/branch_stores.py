"""Test whether any lane of a vector is stored before computing it.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... tile f(x: f32[], y: out f32[], z: out f32[]; n, m)
...   each i in 0 .. n//4*4 by 4
...     v = x[i : 4]
...     w = exp(v)
...     y[i : 4 | prefix(m - i, 4)] = w
...     z[i : 4] = v
... ''')
>>> print(text(Module("f", (branch_stores(module.funcs[0]),))))
tile f(x: f32[], y: out f32[], z: out f32[]; n, m)
  each i in 0 .. (n//4)*4 by 4
    v = x[i : 4]
    on_1 = prefix(-i + m, 4)
    if across(any, on_1)
      w = exp(v)
      y[i : 4 | on_1] = w
    z[i : 4] = v

Most vectors have no lane inside of a range that is stored, and masked stores take long where no
memory is mapped.  The end of a loop has lanes in every vector: its mask is not tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.loop import ir
from smelt.loop.env import Env, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.walk import Body, Names, Rewriter, names_in, places, reads, with_func_body

__all__ = ["Module", "branch_stores"]


def branch_stores(func: ir.Func, end: str = "") -> ir.Func:
    """Put stores of vectors under conditions into branches, with what they alone read.

    `end` is the mask of the vectors at the end of a loop.
    """
    return with_func_body(func, _Branches(types_in(func), Names(func), end).body(func.body))


class _Branches(Rewriter):
    """Rewrites blocks, inner ones first."""

    def __init__(self, env: Env, new_names: Names, end: str) -> None:
        super().__init__()
        self.env, self.new_names, self.end = env, new_names, ir.Ref(end)

    def body(self, body: Body) -> Body:
        body = super().body(body)
        if not any(map(self._is_tested, body)):
            return body
        owners = self._owners(body)
        out: list[ir.Statement] = []
        inside: dict[int, list[ir.Statement]] = {}
        for k, s in enumerate(body):
            if (owner := owners.get(k)) is None:
                out.append(s)
            elif owner != k:
                inside.setdefault(owner, []).append(s)
            else:
                assert isinstance(s, ir.Store)
                assert s.place.mask is not None
                on = ir.Let(self.new_names.new("on"), s.place.mask)
                store = replace(s, place=replace(s.place, mask=ir.Ref(on.name)))
                some = ir.Across(ir.ANY, (ir.Ref(on.name),))
                out += [on, ir.If(some, (*inside.get(k, ()), store))]
        return tuple(out)

    def _is_tested(self, s: ir.Statement) -> bool:
        """Return whether a statement stores lanes that a condition selects."""
        if not isinstance(s, ir.Store) or s.place.mask in (None, self.end):
            return False
        assert s.place.mask is not None
        return type_of(s.place.mask, self.env).lanes > 1

    def _owners(self, body: Sequence[ir.Statement]) -> dict[int, int]:
        """Return the tested store that alone needs a statement, by their numbers."""
        owners: dict[int, int] = {}
        stored = {p.buffer for s in body for p in places(s)}
        needed: dict[str, set[int]] = {}
        """Tested stores that read a name; -1 stands for other statements and for masks."""
        for k, s in reversed([*enumerate(body)]):
            if self._is_tested(s):
                assert isinstance(s, ir.Store)
                owners[k] = k
                assert s.place.mask is not None
                for name in names_in(s.place.mask):
                    needed.setdefault(name, set()).add(-1)
            elif isinstance(s, ir.Let) and stored.isdisjoint(reads(s)):
                first, *others = needed.get(s.name, {-1})
                if first >= 0 and not others:
                    owners[k] = first
            for name in reads(s):
                needed.setdefault(name, set()).add(owners.get(k, -1))
        return owners
