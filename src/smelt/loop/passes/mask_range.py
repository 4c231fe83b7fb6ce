"""Skip iterations in which a mask leaves nothing to do.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   each m in 0 .. n
...     each i in 0 .. n with b = max -inf
...       b <- select(i <= m, x[i], -inf)
...     y[m] = b
... ''')
>>> (loop,) = module.funcs[0].body[0].body[:1]
>>> (cond,) = conditions(loop)
>>> print(text(Module("f", (mask_range(module.funcs[0], "i", cond),))))
func f(x: f32[n], y: out f32[n]; n)
  each m in 0 .. n
    each i_1 in 0 .. m + 1 with b = max -inf
      b <- x[i_1]
    y[m] = b

Where the condition is false, iterations may only fold identities: they store nothing.
"""

from __future__ import annotations

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.decide import conditions, decide, flip_of, gap_of
from smelt.loop.passes.remainder import copy_loop
from smelt.loop.walk import Body, Names, bound, replace_loop, statements
from smelt.python.dataclass import replace
from smelt.types import expr

__all__ = ["Module", "conditions", "mask_range"]


def mask_range(func: ir.Func, var: str, cond: ir.Value) -> ir.Func:
    """Run the loop over `var` only where a comparison holds.

    Raises LoopPassError if other iterations have an effect, or the comparison does not flip once.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        gap = gap_of(cond)
        flip = None if gap is None or loop.step != 1 else flip_of(gap, var)
        if gap is None or flip is None or {a.name for a in expr.atoms(gap)} & {*bound(loop.body)}:
            raise LoopPassError(f"the comparison does not flip once along {var}")
        rest = decide(loop.body, cond, env, value=False)
        carries = {
            c.name: c for s in statements(func.body) if isinstance(s, ir.For) for c in s.carry
        }
        for s in statements(rest):
            if isinstance(s, ir.Store | ir.Call | ir.Next):
                raise LoopPassError(f"iterations over {var} have an effect beyond the mask")
            if isinstance(s, ir.Fold):
                dtype = type_of(s.value, env).dtype
                neutral = ir.identity(carries[s.name].combine, dtype)
                if s.position is not None or _scalar(s.value) != neutral:
                    raise LoopPassError(f"{s.name} folds more than identities beyond the mask")
        end = expr.maximum(loop.high, loop.low)
        cut = expr.minimum(expr.maximum(flip.at, loop.low), end)
        part = replace(loop, low=cut) if flip.rising else replace(loop, high=cut)
        part = replace(part, body=decide(loop.body, cond, env, value=True))
        return (copy_loop(part, names, last=True),)

    return replace_loop(func, var, change)


def _scalar(v: ir.Value) -> ir.Value:
    """Return the scalar in every lane of a value, if it is a splat."""
    return v.arg if isinstance(v, ir.Splat) else v
