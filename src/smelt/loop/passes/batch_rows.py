"""Combine the lanes of several rows' folds at once.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n*4], z: out f32[n]; n)
...   each i in 0 .. n
...     m = across(max, x[4*i : 4])
...     z[i] = -m
... ''')
>>> print(text(Module("f", (batch_rows(module.funcs[0], "i", 4, 16),))))
func f(x: f32[n*4], z: out f32[n]; n)
  each i_1 in 0 .. n by 4
    alloc m_1: f32[16] in task
    if n - i_1 < 4
      each k_1 in 0 .. 16 by 4
        m_1[k_1 : 4] = splat(0.0, 4)
    each i in i_1 .. min(i_1 + 4, n)
      m_1[i*4 - i_1*4 : 4] = x[i*4 : 4]
    z[i_1 : 4 | prefix(n - i_1, 4)] = -across(max, m_1[0 : 4], m_1[4 : 4], m_1[8 : 4], m_1[12 : 4])

Halves of a vector have fewer useful lanes in each step; a batch fills them with other rows. A row's
lanes are combined in the same order, so that its result does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Env, Type, type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import halves
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    loads,
    names_in,
    reads,
    replace_loop,
    statements,
    substitute_index,
    values,
)
from smelt.python.dataclass import dataclass
from smelt.types import expr
from smelt.types.affine import coefficient
from smelt.types.expr import Expr, Index

__all__ = ["Module", "batch_rows"]


def batch_rows(func: ir.Func, row: str, count: int, nbytes: int) -> ir.Func:
    """Combine the lanes of `count` rows of the loop over `row` at once.

    Each batch combines vectors of `nbytes`, or fewer. Raises LoopPassError if there are none, or a
    result goes elsewhere than to the row's element of an array.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        if loop.kind == "chunk" or loop.step != 1 or loop.carry:
            raise LoopPassError(f"the loop over {row} carries something, or has steps")
        batch = ir.For(loop.kind, names.new(row), loop.low, loop.high, (), count)
        first = ir.variable(batch)
        results = _results(loop, env, names, nbytes)
        if not results or any(count % x.rows for x in results):
            raise LoopPassError(f"{count} rows of {row} have no whole vectors of results")
        at = expr.sub(ir.variable(loop), first)
        inner: list[ir.Statement] = []
        for s in loop.body:
            result = next((x for x in results if s in (x.across, x.store)), None)
            if result is None:
                inner.append(s)
            elif s is result.across:
                inner += _held(result, at, names)
        end = expr.minimum(expr.add(first, count), loop.high)
        rows = ir.For(loop.kind, row, first, end, tuple(inner))
        left = expr.sub(loop.high, first)
        few = ir.Apply("lt", (ir.position(left), ir.position(count)))
        allocs = (ir.Alloc(x.scratch, x.type.dtype, count * x.rows, "task") for x in results)
        clear = ir.If(few, tuple(_cleared(x, count, names) for x in results))
        ends = (s for x in results for s in _ends(x, loop, first, count))
        body = (*allocs, clear, rows, *ends)
        return (ir.For(batch.kind, batch.var, batch.low, batch.high, body, count),)

    return replace_loop(func, row, change)


@dataclass(frozen=True, slots=True)
class _Result:
    """A fold's value: where it is bound and stored, and the scratch where its lanes wait.

    `rows` are those that one vector has the results of, and the lanes that wait of each.
    """

    across: ir.Let
    store: ir.Store
    scratch: str
    type: Type
    rows: int


def _results(loop: ir.For, env: Env, names: Names, nbytes: int) -> list[_Result]:
    """Return what a row combines lanes to."""
    results: list[_Result] = []
    read = {x.place.buffer for s in statements(loop.body) for x in loads(*values(s))}
    for s in loop.body:
        if not isinstance(s, ir.Let) or not isinstance(s.value, ir.Across):
            continue
        readers = [t for t in loop.body if t is not s and s.name in reads(t)]
        (arg, *others), store = s.value.args, readers[0] if len(readers) == 1 else None
        if not isinstance(store, ir.Store) or names_in(store.value) != {s.name} or others:
            raise LoopPassError(f"{s.name} is not just stored")
        place = store.place
        plain = not store.join and place.mask is None and place.lanes == 1
        plain = plain and isinstance(place.at, Expr) and place.buffer not in read
        if not plain or coefficient(_index(place), loop.var) != 1:
            raise LoopPassError(f"{s.name} is stored apart from the row before, or read")
        kind = type_of(arg, env)
        rows = min(kind.lanes, nbytes // kind.dtype.itemsize)
        results.append(_Result(s, store, names.new(s.name), kind, rows))
    return results


def _index(place: ir.Place) -> Index:
    assert isinstance(place.at, int | Expr)
    return place.at


def _held(result: _Result, at: Index, names: Names) -> Iterator[ir.Statement]:
    """Yield the store of a row's lanes, as many as there are rows."""
    assert isinstance(result.across.value, ir.Across)
    combine, (value,), lanes = result.across.value.combine, result.across.value.args, result.rows
    width = result.type.lanes
    while width > lanes:
        name, width = names.new(result.across.name), width // 2
        yield ir.Let(name, value)
        value = halves(ir.Ref(name), width, combine)
    yield ir.Store(ir.Place(result.scratch, expr.mul(at, lanes), lanes), value)


def _cleared(result: _Result, count: int, names: Names) -> ir.For:
    """Return a loop that defines the lanes of rows that may be missing."""
    var, lanes = names.new("k"), result.rows
    place = ir.Place(result.scratch, expr.axis(var, count * lanes), lanes)
    zero = ir.Splat(ir.Const(0, result.type.dtype), lanes)
    return ir.For("each", var, 0, count * lanes, (ir.Store(place, zero),), lanes)


def _ends(result: _Result, loop: ir.For, first: Index, count: int) -> Iterator[ir.Statement]:
    """Yield the stores of a batch's results, vector by vector."""
    lanes, name = result.rows, result.across.name
    assert isinstance(result.across.value, ir.Across)
    for k in range(0, count, lanes):
        begin = expr.add(first, k)
        mask = ir.Prefix(expr.sub(loop.high, begin), lanes)
        at = substitute_index(_index(result.store.place), {loop.var: begin})
        places = (ir.Place(result.scratch, (k + r) * lanes, lanes) for r in range(lanes))
        total = ir.Across(result.across.value.combine, tuple(map(ir.Load, places)))
        old = ir.Ref(name), ir.position(ir.number(name))
        swap = Rewriter(change=partial(_swap, old, total))
        place = ir.Place(result.store.place.buffer, at, lanes, 1, mask)
        yield ir.Store(place, swap.value(result.store.value))


def _swap(old: tuple[ir.Value, ...], new: ir.Value, v: ir.Value) -> ir.Value:
    return new if v in old else v
