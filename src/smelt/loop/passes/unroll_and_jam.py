"""Run several independent iterations at once, and fuse the loops inside them.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(a: f32[n*m], z: out f32[n]; n, m)
...   each i in 0 .. n
...     each j in 0 .. m with s = sum 0.0
...       s <- a[i*m + j]
...     z[i] = s
... ''')
>>> print(text(Module("f", (unroll_and_jam(module.funcs[0], "i", 2),))))
func f(a: f32[m*n], z: out f32[n]; n, m)
  each i_1 in 0 .. (n//2)*2 by 2
    each j_1 in 0 .. m with s_1 = sum 0.0, s_2 = sum 0.0
      s_1 <- a[m*i_1 + j_1]
      s_2 <- a[m + m*i_1 + j_1]
    z[i_1] = s_1
    z[i_1 + 1] = s_2
  each i in (n//2)*2 .. n
    each j in 0 .. m with s = sum 0.0
      s <- a[m*i + j]
    z[i] = s

Loads of the copies that are equal are then one value. A fold of the outer loop keeps its order.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import continued, copy_loop, whole_groups
from smelt.loop.walk import Body, Names, fresh, indices, rename, replace_loop, statements
from smelt.types import expr

__all__ = ["Module", "unroll_and_jam"]


def unroll_and_jam(func: ir.Func, var: str, count: int) -> ir.Func:
    """Run `count` iterations of the loop over `var` at once; the remainder one by one.

    Raises LoopPassError if iterations are not independent, or loops inside cannot be fused.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        if loop.kind != "each" or loop.step != 1:
            raise LoopPassError(f"the loop over {var} is not `each` in steps of 1")
        _check_folds(loop)
        mid = whole_groups(loop, count)
        main = replace(loop, high=mid, step=count, body=())
        main = copy_loop(main, names, last=mid == loop.high)
        renamed = {c.name: m.name for c, m in zip(loop.carry, main.carry, strict=True)}
        renamed |= {c.position: m.position for c, m in zip(loop.carry, main.carry, strict=True)}
        at = ir.variable(main)
        copies = [
            rename(fresh(loop.body, names, {loop.var: expr.add(at, k)}), renamed)
            for k in range(count)
        ]
        main = replace(main, body=_jam(copies))
        rest = replace(loop, low=mid, carry=continued(loop, main, env))
        return (main,) if mid == loop.high else (main, rest)

    return replace_loop(func, var, change)


def _check_folds(loop: ir.For) -> None:
    """Refuse folds that copies side by side would do in another order."""
    inside = [s for x in loop.body if isinstance(x, ir.For) for s in statements(x.body)]
    inner = {c.name for s in statements(loop.body) if isinstance(s, ir.For) for c in s.carry}
    folds = [s.name for s in statements(loop.body) if isinstance(s, ir.Fold)]
    outer = [name for name in folds if name not in inner]
    crossing = {s.name for s in inside if isinstance(s, ir.Fold)} - inner
    if crossing or len(set(outer)) < len(outer):
        raise LoopPassError(f"{', '.join(sorted(crossing) or outer)} would be folded out of order")


def _jam(copies: list[Body]) -> Body:
    """Run copies of statements side by side, with their loops fused.

    Statements of different iterations are independent, so that each may move before those of the
    iterations before it.
    """
    out: list[ir.Statement] = []
    for group in zip(*copies, strict=True):
        loops = [s for s in group if isinstance(s, ir.For)]
        if loops and _fusible(loops):
            out.append(_fused(loops))
        else:
            out += group
    return tuple(out)


def _fusible(loops: list[ir.For]) -> bool:
    """Whether loops have one range."""
    first = loops[0]
    return all(indices(x) == indices(first) and x.kind == first.kind for x in loops)


def _fused(loops: list[ir.For]) -> ir.For:
    first = loops[0]
    bodies = [first.body, *(rename(x.body, {x.var: first.var}) for x in loops[1:])]
    carry = tuple(c for x in loops for c in x.carry)
    return replace(first, carry=carry, body=_jam(bodies))
