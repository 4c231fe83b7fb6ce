"""Ask between strips of a long loop whether its run was given up.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[1]; n)
...   for i in 0 .. n with s = 0.0
...     s' = s + x[i]
...   y[0] = s
... ''')
>>> print(text(Module("f", (poll_strips(module.funcs[0], "i", 512),))))
func f(x: f32[n], y: out f32[1]; n)
  for i_1 in 0 .. n by 512 with s = 0.0
    if i_1 > 0
      poll
    for i_2 in i_1 .. min(i_1 + 512, n) with s_1 = s
      s_1' = s_1 + x[i_2]
    s' = s_1
  y[0] = s
"""

from __future__ import annotations

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import read, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import copy_loop
from smelt.loop.walk import Body, Names, replace_loop
from smelt.python.dataclass import replace
from smelt.types import expr
from smelt.types.expr import Index

__all__ = ["Module", "poll_strips"]


def poll_strips(func: ir.Func, var: str, strip: Index) -> ir.Func:
    """Run a loop strip by strip, with a poll between; its steps divide `strip`.

    Raises LoopPassError if it folds, or runs tasks.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        if loop.kind == "chunk" or any(c.combine for c in loop.carry):
            raise LoopPassError(f"the loop over {var} folds, or runs tasks")
        outer = replace(loop, var=names.new(var), step=strip, body=())
        start = ir.variable(outer)
        end = expr.minimum(expr.add(start, strip), loop.high)
        later = ir.Apply("gt", (ir.position(start), ir.position(loop.low)))
        inner = copy_loop(replace(loop, low=start, high=end), names)
        pairs = [*zip(loop.carry, inner.carry, strict=True)]
        env.values.update((new.name, env.values[c.name]) for c, new in pairs)
        carry = tuple(replace(new, init=read(c.name, env)) for c, new in pairs)
        inner = replace(inner, carry=carry)
        nexts = (ir.Next(c.name, read(new.name, env)) for c, new in pairs)
        return (replace(outer, body=(ir.If(later, (ir.Poll(),)), inner, *nexts)),)

    return replace_loop(func, var, change)
