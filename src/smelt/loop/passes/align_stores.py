"""Store full cache lines past the caches, from the first one of a row on.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   each j in 0 .. n
...     y[j] = x[j]
... ''')
>>> func, loops = align_stores(module.funcs[0], "j", 64, 8)
>>> loops
AlignedLoops(head='j_1', lines='j_2', other='j_3')
>>> print(text(Module("f", (func,))))
func f(x: f32[n], y: out f32[n]; n; y_skew)
  lead_1 = (-y_skew)%64
  if (n >= min(1, lead_1)*512) & (y_skew%4 == 0)
    start_1 = min(lead_1//4, n)
    each j_1 in 0 .. start_1
      y[j_1] = x[j_1]
    each j_2 in start_1 .. n
      y[j_2] nt = x[j_2]
  else
    each j_3 in 0 .. n
      y[j_3] = x[j_3]

`y_skew` is the address of the array, modulo a cache line. A short row that does not begin at a line
is stored as usual, since getting there costs an iteration of vectors.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import (
    Body,
    Names,
    bound,
    rename,
    replace_loop,
    substitute,
    substitute_index,
)
from smelt.ops.combine import BOTH
from smelt.python.dataclass import dataclass
from smelt.types.expr import Expr, Index, add, axis, floordiv, minimum, mod, mul, sub

__all__ = ["CACHE_LINE", "AlignedLoops", "Module", "align_stores", "skew_of"]

CACHE_LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class AlignedLoops:
    """Variables of loops: to the first cache line, from there on, and without one."""

    head: str
    lines: str
    other: str


def skew_of(buffer: str) -> str:
    """Return the name of an array's address modulo a cache line."""
    return f"{buffer}_skew"


def align_stores(
    func: ir.Func, var: str, step: int, min_steps: int = 1
) -> tuple[ir.Func, AlignedLoops]:
    """Cut the loop over `var`, which stores to one array, at the first cache line.

    Rows that do not begin at one are cut from `min_steps` times `step` elements on. Raises
    LoopPassError if the loop does not store once, at an index.
    """
    names = Names(func)
    loops = AlignedLoops(*(names.new(var) for _ in range(3)))
    lead, start = names.new("lead"), names.new("start")
    sizes = {p.name: p.dtype.itemsize for p in func.params}
    numbers: list[str] = []

    def change(s: ir.For) -> Body:
        place = _stored(s)
        assert isinstance(place.at, int | Expr)
        numbers.append(skew_of(place.buffer))
        size = sizes[place.buffer]
        first = substitute_index(place.at, {s.var: s.low})
        address = add(ir.number(numbers[0]), mul(first, size))
        begin = add(s.low, floordiv(ir.number(lead), size))
        needed = mul(min_steps * step, minimum(ir.number(lead), 1))
        is_long = _test("ge", sub(s.high, s.low), needed)
        whole_elements = _test("eq", mod(address, size), 0)
        aligned = (
            ir.Let(start, ir.position(minimum(begin, s.high))),
            _copy(s, loops.head, s.low, ir.number(start), names),
            _copy(s, loops.lines, ir.number(start), s.high, names, nontemporal=True),
        )
        return (
            ir.Let(lead, ir.position(mod(mul(address, -1), CACHE_LINE))),
            ir.If(
                ir.Apply(BOTH, (is_long, whole_elements)),
                aligned,
                (_copy(s, loops.other, s.low, s.high, names),),
            ),
        )

    func = replace_loop(func, var, change)
    return replace(func, numbers=(*func.numbers, *numbers)), loops


def _stored(s: ir.For) -> ir.Place:
    stores = [t.place for t in s.body if isinstance(t, ir.Store)]
    if len(stores) != 1 or not isinstance(stores[0].at, int | Expr):
        raise LoopPassError(f"the loop over {s.var} has {len(stores)} stores, not one at an index")
    return stores[0]


def _test(op: str, left: Index, right: Index) -> ir.Value:
    return ir.Apply(op, (ir.position(left), ir.position(right)))


def _copy(
    s: ir.For, var: str, low: Index, high: Index, names: Names, *, nontemporal: bool = False
) -> ir.For:
    """Return a copy of a loop over another range."""
    body = rename(s.body, {n: names.new(n) for n in bound(s.body)})
    body = substitute(body, {s.var: axis(var, s.high)})
    if nontemporal:
        body = tuple(replace(t, nontemporal=True) if isinstance(t, ir.Store) else t for t in body)
    return ir.For(s.kind, var, low, high, body)
