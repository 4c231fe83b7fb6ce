"""Run one of two versions of loops, by a condition that they do not change.

>>> from smelt.loop.text import parse, text
>>> func = parse('''
... func f(x: f32[n], y: out f32[n]; n; k)
...   each i in 0 .. n
...     y[i] = select(k < 3, exp(x[i]), x[i])
... ''').funcs[0]
>>> cond = func.body[0].body[0].value.args[0]
>>> print(text(Module("f", (version(func, cond, lambda f: f, {}),))))
func f(x: f32[n], y: out f32[n]; n; k)
  if k < 3
    each i in 0 .. n
      y[i] = exp(x[i])
  else
    each i_1 in 0 .. n
      y[i_1] = x[i_1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile

from smelt.loop import ir
from smelt.loop.env import types_in
from smelt.loop.ir import Module
from smelt.loop.passes.decide import decide, without_unread
from smelt.loop.walk import Body, Names, bound, fresh
from smelt.python.dataclass import replace

__all__ = ["Module", "version"]


def version(
    func: ir.Func,
    cond: ir.Value,
    change: Callable[[ir.Func], ir.Func],
    results: Mapping[str, ir.Value],
) -> ir.Func:
    """Change a function where a condition holds, and where it does not; branch between both.

    The condition depends on no loop. `results` are values after the loops, by their new names.
    """
    head = tuple(takewhile(lambda s: isinstance(s, ir.Let), func.body))
    shared, env = {*bound(head)}, types_in(func)
    nexts = tuple(ir.Next(name, value) for name, value in results.items())

    def side(*, holds: bool) -> tuple[ir.Func, Body]:
        body = without_unread((*decide(func.body, cond, env, value=holds), *nexts))
        new = change(replace(func, body=body[: len(body) - len(nexts)]))
        rest = (s for s in new.body if not (isinstance(s, ir.Let) and s.name in shared))
        return new, (*rest, *nexts)

    (then, one), (other, two) = side(holds=True), side(holds=False)
    names = Names(replace(func, body=(*then.body, *other.body)))
    branch = ir.If(cond, one, fresh(two, names), tuple(results))
    numbers = tuple(dict.fromkeys((*then.numbers, *other.numbers)))
    return replace(func, numbers=numbers, body=(*head, branch))
