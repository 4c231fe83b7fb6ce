"""Ask for what a loop loads some iterations later.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   each i in 0 .. n // 16 * 16 by 16
...     y[i : 16] = exp(x[i : 16])
... ''')
>>> print(text(Module("f", (prefetch(module.funcs[0], "i", "x", 256),))))
func f(x: f32[n], y: out f32[n]; n)
  each i in 0 .. (n//16)*16 by 16
    prefetch x[i + 256]
    y[i : 16] = exp(x[i : 16])
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import (
    Body,
    bound,
    loads,
    place_indices,
    replace_loop,
    substitute_index,
    values,
)
from smelt.types import expr
from smelt.types.expr import Index

__all__ = ["Module", "prefetch"]


def prefetch(
    func: ir.Func, var: str, buffer: str, distance: Index, level: Literal[1, 2, 3] = 1
) -> ir.Func:
    """Prefetch the loads of `buffer` by the loop over `var`, `distance` positions ahead.

    Raises LoopPassError if the loop itself loads nothing from there whose place is known at the
    beginning of an iteration.
    """

    def change(loop: ir.For) -> Body:
        inner = set(bound(loop.body))
        ahead = {loop.var: expr.add(ir.variable(loop), distance)}
        hints: dict[ir.Prefetch, None] = {}
        for load in loads(*(v for s in loop.body for v in values(s))):
            at = load.place.at
            if load.place.buffer != buffer or not isinstance(at, expr.Expr):
                continue
            if inner.isdisjoint(a.name for e in place_indices(load.place) for a in expr.atoms(e)):
                place = ir.Place(buffer, substitute_index(at, ahead))
                hints[ir.Prefetch(place, level)] = None
        if not hints:
            raise LoopPassError(f"the loop over {var} loads nothing from {buffer} that is near")
        return (replace(loop, body=(*hints, *loop.body)),)

    return replace_loop(func, var, change)
