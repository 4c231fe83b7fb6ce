"""Make one loop of two nested ones, so that short rows fill vectors.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[3], y: out f32[n*3]; n)
...   each i in 0 .. n
...     each j in 0 .. 3
...       y[i*3 + j] = x[j]
... ''')
>>> print(text(Module("f", (collapse(module.funcs[0], "i"),))))
func f(x: f32[3], y: out f32[n*3]; n)
  each i_1 in 0 .. n*3
    y[i_1] = x[i_1%3]

`join_rows` does so only where rows continue one another in every array, as in `y` alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import (
    Body,
    Names,
    indices,
    loop_around,
    loop_over,
    place_indices,
    replace_loop,
    statements,
    substitute,
    values,
    visit,
)
from smelt.python.dataclass import replace
from smelt.types import expr
from smelt.types.expr import Index, coefficient

__all__ = ["Module", "collapse", "join_rows"]


def collapse(func: ir.Func, var: str) -> ir.Func:
    """Join the loop over `var` with the only loop inside it.

    Raises LoopPassError unless both are independent in steps of 1, and the inner range is constant
    in the outer loop.
    """
    names = Names(func)

    def change(loop: ir.For) -> Body:
        inner = loop.body[0] if len(loop.body) == 1 else None
        if not isinstance(inner, ir.For) or {loop.kind, inner.kind} != {"each"}:
            raise LoopPassError(f"{var} is not `each` around one loop `each`")
        if inner.carry or loop.step != 1 or inner.step != 1:
            raise LoopPassError(f"{inner.var} carries values, or runs in steps")
        if any(a.name == var for e in (inner.low, inner.high) for a in expr.atoms(e)):
            raise LoopPassError(f"the range of {inner.var} varies along {var}")
        width = expr.maximum(expr.sub(inner.high, inner.low), 0)
        count = expr.maximum(expr.sub(loop.high, loop.low), 0)
        head = replace(loop, var=names.new(var), low=0, high=expr.mul(count, width), body=())
        at = ir.variable(head)
        if width == 0:
            raise LoopPassError(f"the loop over {inner.var} is empty")
        variables = {
            loop.var: expr.add(loop.low, expr.floordiv(at, width)),
            inner.var: expr.add(inner.low, expr.mod(at, width)),
        }
        return (replace(head, body=substitute(inner.body, variables)),)

    return replace_loop(func, var, change)


def join_rows(func: ir.Func, var: str) -> tuple[ir.Func, str]:
    """Collapse the loops around that over `var` while rows continue one another.

    Returns the name of the joined loop too: `var` if none is joined.
    """
    while (row := loop_around(func.body, var)) is not None:
        try:
            joined = collapse(func, row.var)
        except LoopPassError:
            break
        (name,) = (n for n in _loops(joined) if n not in _loops(func))
        body = loop_over(joined.body, name).body
        if any(coefficient(e, name) is None for s in statements(body) for e in _all_indices(s)):
            break
        func, var = joined, name
    return func, var


def _all_indices(s: ir.Statement) -> Iterator[Index]:
    yield from indices(s)
    for v in (x for root in values(s) for x in visit(root)):
        if isinstance(v, ir.Load):
            yield from place_indices(v.place)
        elif isinstance(v, ir.IndexValue):
            yield v.index


def _loops(func: ir.Func) -> set[str]:
    return {s.var for s in statements(func.body) if isinstance(s, ir.For)}
