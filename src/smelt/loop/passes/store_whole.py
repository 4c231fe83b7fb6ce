"""Store masked vectors of an array whole, where nothing reads what is past their end.

>>> from smelt.loop.ir import Const
>>> from smelt.loop.text import parse, text
>>> from smelt.types.dtype import f32
>>> module = parse('''
... tile f(x: f32[], p: out f32[]; n)
...   each i in 0 .. n by 8
...     on = prefix(n - i, 8)
...     p[i : 8 | on] = x[i : 8 | on]
... ''')
>>> print(text(Module("f", (store_whole(module.funcs[0], "p"),))))
tile f(x: f32[], p: out f32[]; n)
  each i in 0 .. n by 8
    on = prefix(-i + n, 8)
    p[i : 8] = x[i : 8 | on]

Packed rows end in such vectors: the next row overwrites them, and there is room behind the last.
What multiplies the last elements with others reads zeros there, or their code:

>>> print(text(Module("f", (store_whole(module.funcs[0], "p", Const(0.0, f32)),))))
tile f(x: f32[], p: out f32[]; n)
  each i in 0 .. n by 8
    on = prefix(-i + n, 8)
    p[i : 8] = select(on, x[i : 8 | on], 0.0)
"""

from __future__ import annotations

from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import Body, Rewriter, with_func_body
from smelt.python.dataclass import replace

__all__ = ["Module", "store_whole"]


def store_whole(func: ir.Func, array: str, other: ir.Const | None = None) -> ir.Func:
    """Remove the masks of what is stored to an array: `other` goes to the other lanes, if any."""
    return with_func_body(func, _Unmasked(array, other).body(func.body))


class _Unmasked(Rewriter):
    def __init__(self, array: str, other: ir.Const | None) -> None:
        super().__init__()
        self.array, self.other = array, other

    def statement(self, s: ir.Statement) -> Body:
        if isinstance(s, ir.Store) and s.place.buffer == self.array and s.place.mask is not None:
            value = s.value
            if self.other is not None:
                value = ir.Apply("select", (s.place.mask, value, self.other))
            return (replace(s, place=replace(s.place, mask=None), value=value),)
        return super().statement(s)
