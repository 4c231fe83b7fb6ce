"""Split a loop in two, strip by strip: the first half's values wait in scratch.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   each i in 0 .. n
...     a = exp(x[i])
...     y[i] = a / erf(x[i])
... ''')
>>> print(text(Module("f", (distribute(module.funcs[0], "i", 1, 512),))))
func f(x: f32[n], y: out f32[n]; n)
  each i_1 in 0 .. n by 512
    alloc a_1: f32[512] in task
    each i_2 in i_1 .. min(i_1 + 512, n)
      a_2 = exp(x[i_2])
      a_1[-i_1 + i_2] = a_2
    each i_3 in i_1 .. min(i_1 + 512, n)
      y[i_3] = a_1[-i_1 + i_3] / erf(x[i_3])

Loops of few live values need no spills. Index expressions are computed again.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import INDEX, Env, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import copy_loop
from smelt.loop.walk import Body, Names, Rewriter, bound, names_in, reads, replace_loop
from smelt.types import expr
from smelt.types.expr import Index

__all__ = ["Module", "distribute"]


def distribute(func: ir.Func, var: str, at: int, strip: int) -> ir.Func:
    """Run the first `at` statements of a loop, then the others, strip by strip.

    Raises LoopPassError if iterations are not independent, or an array, a vector or a position
    that is loaded would have to wait.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        if loop.kind != "each" or loop.step != 1 or not 0 < at < len(loop.body):
            raise LoopPassError(f"the loop over {var} is not `each` of more than {at} statements")
        first, second = loop.body[:at], loop.body[at:]
        head = replace(loop, var=names.new(var), step=strip, body=())
        start = ir.variable(head)
        end = expr.minimum(expr.add(start, strip), loop.high)
        part = replace(loop, low=start, high=end, carry=())
        offset = expr.sub(ir.variable(part), start)
        allocs, stores, waiting, again = _waiting(first, second, env, names, offset, strip)
        one = copy_loop(replace(part, body=(*first, *stores)), names)
        waits = Rewriter(change=lambda v: waiting.get(v.name, v) if isinstance(v, ir.Ref) else v)
        swapped = waits.body((*again, *second))
        two = copy_loop(replace(part, body=swapped), names)
        return (replace(head, body=(*allocs, one, two)),)

    return replace_loop(func, var, change)


def _waiting(
    first: Body, second: Body, env: Env, names: Names, offset: Index, strip: int
) -> tuple[list[ir.Statement], list[ir.Statement], dict[str, ir.Value], list[ir.Statement]]:
    """Return scratch, stores to it, loads from it by name, and repeated statements."""
    crossing = set(bound(first)) & reads(*second)
    allocs: list[ir.Statement] = []
    stores: list[ir.Statement] = []
    again: list[ir.Statement] = []
    waiting: dict[str, ir.Value] = {}
    for s in reversed(first):
        if not isinstance(s, ir.Let) or s.name not in crossing:
            continue
        crossing.discard(s.name)
        dtype, lanes = type_of(s.value, env)
        if ir.as_index(s.value) is not None:
            again.insert(0, s)
            crossing |= set(bound(first)) & names_in(s.value)
        elif lanes > 1 or env.values[s.name] == INDEX:
            raise LoopPassError(f"{s.name} would have to wait as a vector or a position")
        else:
            scratch = names.new(s.name)
            place = ir.Place(scratch, offset)
            allocs.append(ir.Alloc(scratch, dtype, strip, "task"))
            stores.append(ir.Store(place, ir.Ref(s.name)))
            waiting[s.name] = ir.Load(place)
    if crossing:
        raise LoopPassError(f"{', '.join(sorted(crossing))} would have to wait")
    return allocs, stores, waiting, again
