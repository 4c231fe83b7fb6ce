"""Store the columns of short rows interleaved, as full vectors.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[n*2]; n)
...   each i in 0 .. n//4*4 by 4
...     y[i*2 : 4 * 2] = x[i : 4]
...     y[i*2 + 1 : 4 * 2] = x[i : 4] + 1.0
... ''')
>>> print(text(Module("f", (interleave_stores(module.funcs[0]),))))
func f(x: f32[n], y: out f32[n*2]; n)
  each i in 0 .. (n//4)*4 by 4
    y[i*2 : 8] = shuffle(interleave, x[i : 4], x[i : 4] + 1.0)

All columns of a row are stored in a row, else vectors stay apart.
"""

from __future__ import annotations

from itertools import groupby

from smelt.loop import ir
from smelt.loop.env import type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.walk import Body, Rewriter, statements, with_func_body
from smelt.types.expr import Expr, sub

__all__ = ["Module", "interleave_stores"]

MAX_INTERLEAVED = 16
"""Maximum columns that are interleaved in registers."""


def interleave_stores(func: ir.Func) -> ir.Func:
    """Replace stores to all columns of rows by one of whole rows."""
    if not any(map(_array_of, statements(func.body))):
        return func
    return with_func_body(func, _Interleaved(func).body(func.body))


class _Interleaved(Rewriter):
    def __init__(self, func: ir.Func) -> None:
        super().__init__()
        self.env = types_in(func)

    def body(self, body: Body) -> Body:
        out: list[ir.Statement] = []
        for array, run in groupby(super().body(body), _array_of):
            group = [*run]
            if array and (rows := self._rows([s for s in group if isinstance(s, ir.Store)])):
                group = [rows]
            out += group
        return tuple(out)

    def _rows(self, stores: list[ir.Store]) -> ir.Store | None:
        """Return one store of whole rows; None if stores lack some columns."""
        first, count = stores[0].place, len(stores)
        if isinstance(first.at, ir.Value) or not 1 < count <= MAX_INTERLEAVED:
            return None
        for k, p in enumerate(s.place for s in stores):
            if not isinstance(p.at, int | Expr) or sub(p.at, first.at) != k:
                return None
            if (p.stride, p.lanes, p.mask) != (count, first.lanes, first.mask):
                return None
        mask = first.mask
        if mask is not None:
            if type_of(mask, self.env).lanes != first.lanes:
                return None
            mask = ir.Shuffle((mask,) * count, "interleave")
        columns = ir.Shuffle(tuple(self._lanes_of(s) for s in stores), "interleave")
        return ir.Store(ir.Place(first.buffer, first.at, count * first.lanes, 1, mask), columns)

    def _lanes_of(self, s: ir.Store) -> ir.Value:
        is_scalar = type_of(s.value, self.env).lanes == 1
        return ir.Splat(s.value, s.place.lanes) if is_scalar else s.value


def _array_of(s: ir.Statement) -> str:
    """Return the array to which a statement stores vectors that are apart; empty for others."""
    if not isinstance(s, ir.Store) or s.join or s.nontemporal:
        return ""
    return s.place.buffer if s.place.lanes > 1 and s.place.stride != 1 else ""
