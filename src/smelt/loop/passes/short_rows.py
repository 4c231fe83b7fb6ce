"""Give short rows a constant number of vectors, and like rows their own loops.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... tile f(x: f32[], p: out f32[]; m, n)
...   each i in 0 .. m + 1
...     each j in 0 .. n + 1
...       p[i*(n + 1) + j] = x[(i - 1)*n + j - 1 | (1 <= i) & (1 <= j)]
... ''')
>>> print(text(Module("f", (short_rows(masked_rows(module.funcs[0], "i", 8), 8, 2),))))
tile f(x: f32[], p: out f32[]; m, n)
  end_1 = min(1, m + 1)
  each i_1 in 0 .. end_1
    on_1 = prefix(n + 1, 8)
    p[i_1 + i_1*n : 8 | on_1] = 0.0
    on_4 = prefix(n - 7, 8)
    p[i_1 + i_1*n + 8 : 8 | on_4] = 0.0
  each i_2 in end_1 .. m + 1
    on_5 = prefix(n + 1, 8)
    p[i_2 + i_2*n : 8 | on_5] = x[i_2*n - n - 1 : 8 | on_5 & ~prefix(1, 8)]
    on_6 = prefix(n - 7, 8)
    p[i_2 + i_2*n + 8 : 8 | on_6] = x[i_2*n - n + 7 : 8 | on_6 & ~prefix(-7, 8)]

A row of 28 pixels and its padding is two vectors, whose masks are the same for all rows: LLVM moves
them in front of the loops.  Rows outside of the image have loops of their own, before and after.
"""

from __future__ import annotations

from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.passes.split_tests import split_tests
from smelt.loop.passes.unroll import unroll
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.walk import Body, Rewriter, statements, substitute, with_func_body
from smelt.python.dataclass import replace
from smelt.types.expr import add, mul

__all__ = ["Module", "masked_rows", "short_rows"]


def masked_rows(func: ir.Func, row: str, lanes: int) -> ir.Func:
    """Run the loops over elements of rows in masked vectors, by kind of row."""
    func, _ = split_tests(func, row)
    for s in [*statements(func.body)]:
        if isinstance(s, ir.For) and not any(isinstance(t, ir.For) for t in statements(s.body)):
            func = vectorize(func, s.var, lanes, "masked")
    return func


def short_rows(func: ir.Func, lanes: int, count: int) -> ir.Func:
    """Replace loops over masked vectors by `count` vectors."""
    return unroll(with_func_body(func, _Short(lanes, count).body(func.body)))


class _Short(Rewriter):
    def __init__(self, lanes: int, count: int) -> None:
        super().__init__()
        self.lanes, self.count = lanes, count

    def statement(self, s: ir.Statement) -> Body:
        if not isinstance(s, ir.For) or s.step != self.lanes:
            return super().statement(s)
        vector = ir.For("unroll", s.var, 0, self.count, ())
        at = add(s.low, mul(ir.variable(vector), self.lanes))
        return (replace(vector, body=substitute(s.body, {s.var: at})),)
