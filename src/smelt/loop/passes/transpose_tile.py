"""Copy a tile through registers: read along one loop, stored along the other.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... tile f(x: f32[], y: out f32[]; n, rows)
...   each r in 0 .. 2
...     each k in 0 .. 2
...       y[k*8 + r] = x[min(r, rows - 1)*n + k | k < 1]
... ''')
>>> print(text(Module("f", (transpose_tile(module.funcs[0], "r", "k"),))))
tile f(x: f32[], y: out f32[]; n, rows)
  row_1 = x[min(0, rows - 1)*n : 2 | prefix(1, 2)]
  row_2 = x[min(1, rows - 1)*n : 2 | prefix(1, 2)]
  tile_1 = shuffle(transpose, row_1, row_2)
  y[0 : 2] = shuffle(permute, tile_1; 0, 1)
  y[8 : 2] = shuffle(permute, tile_1; 2, 3)

A row is one vector along the inner loop, a column one along the outer loop. What else the outer
loop does is done for each row; what the inner loop binds before it stores, for each column.
"""

from __future__ import annotations

from typing import NoReturn

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import types_in
from smelt.loop.ir import Module
from smelt.loop.passes.vectorize import Widen
from smelt.loop.walk import Body, Names, bound, fresh, names_in, replace_loop

__all__ = ["Module", "transpose_tile"]


def transpose_tile(func: ir.Func, row: str, column: str) -> ir.Func:
    """Replace loops over the rows and columns of a square by a transposition of vectors.

    Raises LoopPassError unless both are `each` of one constant length, and the inner one, the last
    statement of the outer one, ends with its only store.
    """
    env, names = types_in(func), Names(func)

    def change(outer: ir.For) -> Body:
        *before, inner = outer.body or (None,)
        if not isinstance(inner, ir.For) or inner.var != column:
            _refuse(f"the loop over {row} does not end with that over {column}")
        side = outer.high
        spans = {(s.kind, s.low, s.high, s.step, s.carry) for s in (outer, inner)}
        if spans != {("each", 0, side, 1, ())} or not isinstance(side, int):
            _refuse(f"the loops over {row} and {column} are not a square")
        *lets, store = inner.body
        if not isinstance(store, ir.Store) or not all(isinstance(s, ir.Let) for s in lets):
            _refuse(f"the loop over {column} does more than a store")
        if names_in(store.value) & {*bound(lets)}:
            _refuse(f"what is stored reads what the loop over {column} binds")
        wide = ir.Let("row", Widen(inner, side, env).value(store.value))
        rows = [fresh((*before, wide), names, {row: r, column: 0}) for r in range(side)]
        ends = [body[-1] for body in rows]
        tile = ir.Let(
            names.new("tile"),
            ir.Shuffle(tuple(ir.Ref(s.name) for s in ends if isinstance(s, ir.Let)), "transpose"),
        )
        place = Widen(outer, side, env).place(store.place)
        out = [s for body in rows for s in body]
        out.append(tile)
        for k in range(side):
            lanes = ir.Shuffle((ir.Ref(tile.name),), "permute", (*range(k * side, (k + 1) * side),))
            out += fresh((*lets, ir.Store(place, lanes)), names, {row: 0, column: k})
        return tuple(out)

    return replace_loop(func, row, change)


def _refuse(reason: str) -> NoReturn:
    raise LoopPassError(reason)
