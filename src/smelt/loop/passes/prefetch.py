"""Prefetch what loops load, and what they store, some iterations or rows later.

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

Rows that are apart in memory are out of reach of the hardware prefetcher:

>>> module = parse('''
... func f(x: f32[m*n], y: out f32[m*n]; m, n)
...   each r in 0 .. m
...     each i in 0 .. n // 16 * 16 by 16
...       y[r*n + i : 16] = exp(x[r*n + i : 16])
... ''')
>>> print(text(Module("f", (prefetch_rows(module.funcs[0], "r", 4),))))
func f(x: f32[m*n], y: out f32[m*n]; m, n)
  each r in 0 .. m
    each i in 0 .. (n//16)*16 by 16
      v_1 = x[n*r + i : 16]
      prefetch x[n*4 + n*r + i] level 2
      y[n*r + i : 16] = exp(v_1)

Of several vectors of an array in an iteration, the farthest one meets new lines first:

>>> module = parse('''
... func f(x: f32[n + 1], y: out f32[n]; n)
...   each i in 0 .. n // 16 * 16 by 16
...     y[i : 16] = x[i : 16] + x[i + 1 : 16]
... ''')
>>> print(text(Module("f", (prefetch_farthest(module.funcs[0], {"x": 64}),))))
func f(x: f32[n + 1], y: out f32[n]; n)
  each i in 0 .. (n//16)*16 by 16
    y[i : 16] = x[i : 16] + x[i + 1 : 16]
    prefetch x[i + 65] level 2
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Literal

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.ir import CACHE_LINE, Module
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    is_short,
    loads,
    place_indices,
    replace_loop,
    statements,
    substitute_index,
    values,
    with_body,
    with_func_body,
)
from smelt.python.dataclass import replace
from smelt.types import expr
from smelt.types.expr import Expr, Index, coefficient

__all__ = [
    "PAGE",
    "Module",
    "prefetch",
    "prefetch_block",
    "prefetch_farthest",
    "prefetch_page",
    "prefetch_rows",
    "prefetch_share",
    "prefetch_strips",
    "prefetch_written",
]

PAGE = 4096
"""Bytes that a hardware prefetcher does not cross: it begins anew in each page."""


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


def prefetch_rows(
    func: ir.Func,
    row: str,
    count: Index,
    length: Index = ir.UNKNOWN,
    level: Literal[1, 2] = 2,
) -> ir.Func:
    """Prefetch what the vectors in a loop over rows load `count` rows later.

    Arrays that the function writes are left out: what it reads there is near.
    Masked vectors of rows that are `length` elements apart, one after another, are followed by what
    comes a page later. Raises LoopPassError if there is no such loop.
    """
    names, distances = Names(func), dict[Index, str]()
    written = {s.place.buffer for s in statements(func.body) if isinstance(s, ir.Store)}
    sizes = {p.name: p.dtype.itemsize for p in func.params if p.name not in written}

    def ahead(place: ir.Place) -> Iterator[ir.Prefetch]:
        if place.lanes == 1 or not isinstance(place.at, Expr) or place.buffer not in sizes:
            return
        step = coefficient(place.at, row)
        if step is None or step == 0 or any(a.kind == "axis" for a in expr.atoms(step)):
            return
        if place.mask is None:
            yield from _lines(place, named(expr.mul(step, count)), level, sizes)
        elif step == length:
            yield from _lines(place, PAGE // sizes[place.buffer], 1, sizes)

    def named(distance: Index) -> Index:
        if isinstance(distance, int) or is_short(distance):
            return distance
        if distance not in distances:
            distances[distance] = names.new("ahead")
        return ir.number(distances[distance])

    rewriter = _AfterLoads(names, ahead)
    func = replace_loop(func, row, lambda s: (with_body(s, rewriter.body(s.body)),))
    lets = (ir.Let(name, ir.position(e)) for e, name in distances.items())
    return with_func_body(func, (*lets, *func.body))


def prefetch_page(func: ir.Func, full: Collection[str], masked: Collection[str]) -> ir.Func:
    """Prefetch what comes a page behind full, or masked, vectors that are loaded from arrays."""
    sizes = {p.name: p.dtype.itemsize for p in func.params}

    def ahead(place: ir.Place) -> Iterator[ir.Prefetch]:
        is_vector = place.lanes > 1 and place.stride == 1 and isinstance(place.at, Expr)
        if is_vector and place.buffer in (full if place.mask is None else masked):
            yield from _lines(place, PAGE // sizes[place.buffer], 1, sizes)

    return with_func_body(func, _AfterLoads(Names(func), ahead).body(func.body))


def prefetch_block(func: ir.Func, distances: Mapping[str, Index]) -> ir.Func:
    """Prefetch into L2 what is at some distances behind full vectors of arrays."""
    sizes = {p.name: p.dtype.itemsize for p in func.params}

    def ahead(place: ir.Place) -> Iterator[ir.Prefetch]:
        is_vector = place.lanes > 1 and place.stride == 1 and isinstance(place.at, Expr)
        if is_vector and place.mask is None and place.buffer in distances:
            yield from _lines(place, distances[place.buffer], 2, sizes)

    return with_func_body(func, _AfterLoads(Names(func), ahead).body(func.body))


def prefetch_farthest(func: ir.Func, distances: Mapping[str, Index]) -> ir.Func:
    """Prefetch into L2 what is some elements behind the farthest vectors of arrays.

    Other vectors of an innermost loop's iteration get to the same lines later.
    """
    sizes = {p.name: p.dtype.itemsize for p in func.params}

    def hints(s: ir.For) -> Iterator[ir.Prefetch]:
        last = dict[str, tuple[Expr, ir.Place]]()
        for load in loads(*(v for t in s.body for v in values(t))):
            place, at = load.place, load.place.at
            if place.lanes > 1 and place.stride == 1 and isinstance(at, Expr):
                far, _ = last.get(place.buffer, (at, place))
                if expr.nonnegative(expr.sub(at, far)):
                    last[place.buffer] = at, place
        for name, (_, place) in last.items():
            if name in distances:
                yield from _lines(place, distances[name], 2, sizes)

    for s in [*statements(func.body)]:
        if isinstance(s, ir.For) and not any(isinstance(t, ir.For) for t in s.body):
            func = replace_loop(func, s.var, lambda t: (with_body(t, (*t.body, *hints(t))),))
    return func


def prefetch_share(
    func: ir.Func, var: str, buffer: str, first: Index, share: Fraction, before: Index = 0
) -> ir.Func:
    """Prefetch an array from `first` on, while a loop walks something else.

    `share` elements for each one that the loop over `var` walks, of which `before` come before its
    own: the prefetches of a whole row stand in the loops over another one.
    """
    name = Names(func).new("at")
    size = next(p.dtype.itemsize for p in func.params if p.name == buffer)

    def change(s: ir.For) -> Body:
        walked = expr.add(before, expr.sub(ir.variable(s), s.low))
        done = expr.floordiv(expr.mul(walked, share.numerator), share.denominator)
        assert isinstance(s.step, int)
        at = ir.Let(name, ir.position(expr.add(first, done)))
        place = ir.Place(buffer, ir.number(name), ceil(s.step * share))
        return (with_body(s, (*s.body, at, *_lines(place, 0, 1, {buffer: size}))),)

    return replace_loop(func, var, change)


def prefetch_strips(func: ir.Func, strip: int, arrays: Collection[str]) -> ir.Func:
    """Prefetch what the loops inside of each loop by `strip` load in the next strip.

    Their prefetches are spread over the loops, as many for an array as a vector has cache lines.
    """
    sizes = {p.name: p.dtype.itemsize for p in func.params if p.name in arrays}

    def change(head: ir.For) -> Body:
        loops = [s for s in head.body if isinstance(s, ir.For)]
        start = ir.variable(head)
        begins: dict[ir.Place, None] = {}
        for s in loops:
            for load in loads(*(v for t in s.body for v in values(t))):
                p = load.place
                if p.buffer in sizes and p.lanes == s.step and isinstance(p.at, Expr):
                    begins[replace(p, at=substitute_index(p.at, {s.var: start}))] = None
        hints: list[list[ir.Prefetch]] = [[] for _ in loops]
        turn = 0
        for place in begins:
            parts = min(len(loops), max(place.lanes * sizes[place.buffer] // CACHE_LINE, 1))
            for part in range(parts):
                at = (turn + part) % len(loops)
                done = expr.floordiv(expr.sub(ir.variable(loops[at]), start), parts)
                ahead = expr.add(done, strip * (parts + part) // parts)
                some = replace(place, lanes=place.lanes // parts)
                hints[at] += _lines(some, ahead, 1, sizes)
            turn += parts
        new = {s.var: with_body(s, (*hints[k], *s.body)) for k, s in enumerate(loops)}
        body = (new[s.var] if isinstance(s, ir.For) else s for s in head.body)
        return (with_body(head, tuple(body)),)

    for s in [*statements(func.body)]:
        if isinstance(s, ir.For) and s.step == strip:
            func = replace_loop(func, s.var, change)
    return func


def prefetch_written(func: ir.Func, arrays: Collection[str]) -> ir.Func:
    """Prefetch the cache lines of arrays that full vectors are stored to a page later.

    No cache has the lines of a large result, and stores across lines wait for two of them. Stores
    past the caches need none.
    """
    sizes = {p.name: p.dtype.itemsize for p in func.params}
    rewriter = _BeforeStores(Names(func), arrays, sizes)
    return with_func_body(func, rewriter.body(func.body))


def _lines(
    place: ir.Place, far: Index, level: Literal[1, 2], sizes: dict[str, int], *, write: bool = False
) -> Iterator[ir.Prefetch]:
    """Yield prefetches of all cache lines of a vector, so many elements behind it."""
    assert not isinstance(place.at, ir.Value)
    size = sizes[place.buffer]
    for k in range(0, place.lanes * size, CACHE_LINE):
        line = ir.Place(place.buffer, expr.add(place.at, expr.add(far, k // size)))
        yield ir.Prefetch(line, level, write)


class _AfterLoads(Rewriter):
    """Adds prefetches behind each load that has some: first what a loop waits for."""

    def __init__(self, names: Names, ahead: Callable[[ir.Place], Iterator[ir.Prefetch]]) -> None:
        super().__init__()
        self.new_names, self.ahead = names, ahead

    def statement(self, s: ir.Statement) -> Body:
        """Add the prefetches of a statement."""
        if not isinstance(s, ir.Let | ir.Store | ir.Fold):
            return (self.rebuild(s),)
        out: list[ir.Statement] = []
        named: dict[ir.Load, ir.Value] = {}
        for load in loads(*values(s)):
            hints = () if load in named else tuple(self.ahead(load.place))
            if hints:
                name = self.new_names.new("v")
                named[load] = ir.Ref(name)
                out += [ir.Let(name, load), *hints]
        swap = Rewriter(change=lambda v: named.get(v, v) if isinstance(v, ir.Load) else v)
        return (*out, swap.rebuild(s))


class _BeforeStores(Rewriter):
    """Adds prefetches of what is stored later, between a value and its store."""

    def __init__(self, names: Names, arrays: Collection[str], sizes: dict[str, int]) -> None:
        super().__init__()
        self.new_names, self.arrays, self.sizes = names, arrays, sizes

    def statement(self, s: ir.Statement) -> Body:
        """Add the prefetches of a store."""
        if not isinstance(s, ir.Store):
            return (self.rebuild(s),)
        place = s.place
        if place.buffer not in self.arrays or place.lanes == 1 or place.mask is not None:
            return (s,)
        if s.nontemporal or not isinstance(place.at, int | Expr):
            return (s,)
        name = self.new_names.new("v")
        hints = _lines(place, PAGE // self.sizes[place.buffer], 1, self.sizes, write=True)
        return (ir.Let(name, s.value), *hints, replace(s, value=ir.Ref(name)))
