"""Store an array past the caches, if nothing reads it again.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   each i in 0 .. n // 16 * 16 by 16
...     y[i : 16] = x[i : 16]
... ''')
>>> print(text(Module("f", (nontemporal(module.funcs[0], "y"),))))
func f(x: f32[n], y: out f32[n]; n)
  each i in 0 .. (n//16)*16 by 16
    y[i : 16] nt = x[i : 16]

Masked, strided and scalar stores stay as they are: processors have no such stores for them.
"""

from __future__ import annotations

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import Body, Rewriter, loads, statements, values, with_func_body

__all__ = ["Module", "nontemporal"]


def nontemporal(func: ir.Func, buffer: str) -> ir.Func:
    """Mark the whole vectors that are stored to a parameter.

    Raises LoopPassError if the function reads the array, passes it on, or combines with it.
    """
    if not any(p.name == buffer and p.written for p in func.params):
        raise LoopPassError(f"{buffer} is not an array that {func.name} writes")
    for s in statements(func.body):
        read = {load.place.buffer for load in loads(*values(s))}
        if isinstance(s, ir.Call):
            read |= {w.buffer for w in s.windows}
        if isinstance(s, ir.Store) and s.join:
            read.add(s.place.buffer)
        if buffer in read:
            raise LoopPassError(f"{buffer} is read in {func.name}")
    return with_func_body(func, _Mark(buffer).body(func.body))


class _Mark(Rewriter):
    def __init__(self, buffer: str) -> None:
        super().__init__()
        self.buffer = buffer

    def statement(self, s: ir.Statement) -> Body:
        match s:
            case ir.Store(ir.Place(buffer, lanes=lanes, stride=1, mask=None) as place, value):
                if buffer == self.buffer and lanes > 1:
                    return (ir.Store(place, value, "", nontemporal=True),)
                return (s,)
            case _:
                return (self.rebuild(s),)
