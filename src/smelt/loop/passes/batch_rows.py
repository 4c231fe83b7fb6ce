"""Combine the lanes of several rows' folds at once.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n*4], z: out f32[n]; n)
...   each i in 0 .. n
...     m = across(max, x[4*i : 4])
...     z[i] = -m
... ''')
>>> print(text(Module("f", (batch_rows(module.funcs[0], "i", 4),))))
func f(x: f32[n*4], z: out f32[n]; n)
  each i_1 in 0 .. n by 4
    alloc m_1: f32[16] in task
    if n - i_1 < 4
      each k_1 in 0 .. 16 by 4
        m_1[k_1 : 4] = splat(0.0, 4)
    each i in i_1 .. min(i_1 + 4, n)
      m_1[i*4 - i_1*4 : 4] = x[i*4 : 4]
    m_2 = across(max, m_1[0 : 4], m_1[4 : 4], m_1[8 : 4], m_1[12 : 4])
    z[i_1 : 4 | prefix(n - i_1, 4)] = -m_2

Halves of a vector have fewer useful lanes in each step; a batch fills them with other rows. A row's
lanes are combined in the same order, so that its result does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import type_of, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import halves
from smelt.loop.steps import better
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
from smelt.python.dataclass import dataclass, replace
from smelt.types import expr
from smelt.types.expr import Expr, Index, coefficient

__all__ = ["Module", "batch_rows"]


def batch_rows(func: ir.Func, row: str, count: int) -> ir.Func:
    """Combine the lanes of `count` rows of the loop over `row` at once.

    Raises LoopPassError if vectors have fewer lanes, or a result goes elsewhere than to the row's
    element of an array.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        if loop.kind == "chunk" or loop.step != 1 or loop.carry:
            raise LoopPassError(f"the loop over {row} carries something, or has steps")
        batch = ir.For(loop.kind, names.new(row), loop.low, loop.high, (), count)
        first = ir.variable(batch)
        unread = [s for s in loop.body if _is_fold(s) and not _readers(s, loop)]
        loop = replace(loop, body=tuple(s for s in loop.body if s not in unread))
        results = _results(loop)
        scratch = {x: names.new(r.name) for r in results for x in r.across.args}
        types = {x: type_of(x, env) for x in scratch}
        if not results or any(t.lanes < count for t in types.values()):
            raise LoopPassError(f"{count} rows of {row} have no whole vectors of results")
        at = expr.mul(expr.sub(ir.variable(loop), first), count)
        inner: list[ir.Statement] = []
        held: set[ir.Value] = set()
        for s in loop.body:
            result = next((x for x in results if s in (x.store, ir.Let(x.name, x.across))), None)
            if result is None:
                inner.append(s)
            elif s is not result.store and not held.issuperset(result.across.args):
                places = [ir.Place(scratch[x], at, count) for x in result.across.args]
                inner += _held(result.across, types[result.across.args[0]].lanes, places, names)
                held.update(result.across.args)
        end = expr.minimum(expr.add(first, count), loop.high)
        rows = ir.For(loop.kind, row, first, end, tuple(inner))
        left = expr.sub(loop.high, first)
        few = ir.Apply("lt", (ir.position(left), ir.position(count)))
        arrays = [ir.Alloc(scratch[x], t.dtype, count * count, "task") for x, t in types.items()]
        clear = ir.If(few, tuple(_cleared(x, count, names) for x in arrays))
        ends = (s for x in results for s in _ends(x, scratch, loop, first, count, names))
        body = (*arrays, clear, rows, *ends)
        return (ir.For(batch.kind, batch.var, batch.low, batch.high, body, count),)

    return replace_loop(func, row, change)


@dataclass(frozen=True, slots=True)
class _Result:
    """A fold's value: its name, the lanes that it combines, and where it is stored."""

    name: str
    across: ir.Across
    store: ir.Store


def _results(loop: ir.For) -> list[_Result]:
    """Return what a row combines lanes to."""
    results: list[_Result] = []
    read = {x.place.buffer for s in statements(loop.body) for x in loads(*values(s))}
    for s in loop.body:
        if not isinstance(s, ir.Let) or not isinstance(s.value, ir.Across):
            continue
        readers = _readers(s, loop)
        store = readers[0] if len(readers) == 1 else None
        if not isinstance(store, ir.Store) or names_in(store.value) != {s.name}:
            raise LoopPassError(f"{s.name} is not just stored")
        place = store.place
        plain = not store.join and place.mask is None and place.lanes == 1
        plain = plain and isinstance(place.at, Expr) and place.buffer not in read
        if not plain or coefficient(_index(place), loop.var) != 1:
            raise LoopPassError(f"{s.name} is stored apart from the row before, or read")
        results.append(_Result(s.name, s.value, store))
    return results


def _is_fold(s: ir.Statement) -> bool:
    return isinstance(s, ir.Let) and isinstance(s.value, ir.Across)


def _readers(s: ir.Statement, loop: ir.For) -> list[ir.Statement]:
    assert isinstance(s, ir.Let)
    return [t for t in loop.body if t is not s and s.name in reads(t)]


def _index(place: ir.Place) -> Index:
    assert isinstance(place.at, int | Expr)
    return place.at


def _held(
    across: ir.Across, width: int, places: Sequence[ir.Place], names: Names
) -> Iterator[ir.Statement]:
    """Yield the stores of a row's lanes, as many as there are rows."""
    vectors = across.args
    while width > places[0].lanes:
        width //= 2
        refs = [ir.Ref(names.new("t")) for _ in vectors]
        yield from (ir.Let(x.name, v) for x, v in zip(refs, vectors, strict=True))
        tables = tuple(range(width)), tuple(range(width, 2 * width))
        if len(refs) == 1:
            vectors = (halves(refs[0], width, across.combine),)
        else:
            low, high = (tuple(ir.Shuffle((x,), "permute", t) for x in refs) for t in tables)
            vectors = better(across.combine, (high[0], high[1]), (low[0], low[1]))
    yield from map(ir.Store, places, vectors)


def _cleared(array: ir.Alloc, count: int, names: Names) -> ir.For:
    """Return a loop that defines the lanes of rows that may be missing."""
    var = names.new("k")
    place = ir.Place(array.name, expr.axis(var, array.elements), count)
    zero = ir.Splat(ir.Const(0, array.dtype), count)
    return ir.For("each", var, 0, array.elements, (ir.Store(place, zero),), count)


def _ends(
    result: _Result,
    scratch: Mapping[ir.Value, str],
    loop: ir.For,
    first: Index,
    count: int,
    names: Names,
) -> Iterator[ir.Statement]:
    """Yield what stores a batch's results, in a vector."""
    mask = ir.Prefix(expr.sub(loop.high, first), count)
    at = substitute_index(_index(result.store.place), {loop.var: first})
    lanes = tuple(
        ir.Load(ir.Place(scratch[x], r * count, count))
        for x in result.across.args
        for r in range(count)
    )
    old = ir.Ref(result.name), ir.position(ir.number(result.name))
    yield ir.Let(name := names.new(result.name), ir.Across(result.across.combine, lanes))
    swap = Rewriter(change=partial(_swap, old, ir.Ref(name)))
    place = ir.Place(result.store.place.buffer, at, count, 1, mask)
    yield ir.Store(place, swap.value(result.store.value))


def _swap(old: tuple[ir.Value, ...], new: ir.Value, v: ir.Value) -> ir.Value:
    return new if v in old else v
