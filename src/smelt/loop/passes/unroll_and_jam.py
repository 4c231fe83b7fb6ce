"""Run several rows at once that combine something with elements of an array, in order.

Loops inside are fused, and each element is read and written once. Rows keep their order:

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n*m], y: out f64[m]; n, m)
...   for i in 0 .. n
...     each j in 0 .. m
...       y[j] add = f64(x[i*m + j])
... ''')
>>> print(text(Module("f", (unroll_and_jam(module.funcs[0], "i", 4, {"y"}),))))
func f(x: f32[m*n], y: out f64[m]; n, m)
  for i_1 in 0 .. (n//4)*4 by 4
    each j_1 in 0 .. m
      y_1 = x[m*i_1 + j_1]
      y_2 = x[m + m*i_1 + j_1]
      y_3 = x[m*2 + m*i_1 + j_1]
      y_4 = x[m*3 + m*i_1 + j_1]
      y[j_1] = f64(y_1 + y_2 + (y_3 + y_4)) + y[j_1]
  for i in (n//4)*4 .. n
    each j in 0 .. m
      y[j] add = f64(x[m*i + j])
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Env, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import split_groups
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    copier,
    indices,
    loads,
    names_in,
    place_indices,
    places,
    replace_loop,
    statements,
    substitute_index,
    values,
    with_body,
)
from smelt.python.dataclass import replace
from smelt.types import expr
from smelt.types.dtype import i64
from smelt.types.expr import Index, atoms, coefficient

__all__ = ["Module", "jam", "unroll_and_jam"]


PAIRED = 4
"""Maximum values that are added pairwise in their own type before a wider sum takes them."""


def unroll_and_jam(func: ir.Func, var: str, count: int, pairs: Collection[str] = ()) -> ir.Func:
    """Run `count` iterations of a `for` loop at once; the remainder one by one.

    What is added to the arrays `pairs` is first added in fours in its own type. Raises
    LoopPassError if iterations meet in more than one element of each loop inside.
    """
    func, whole = split_groups(func, var, count)
    return jam(func, whole, count, pairs)


def jam(func: ir.Func, var: str, count: int, pairs: Collection[str] = ()) -> ir.Func:
    """Run `count` iterations at once of a loop that has a multiple of them.

    The first copy keeps its names. `pairs` and errors are those of `unroll_and_jam`.
    """
    env, names = types_in(func), Names(func)
    lets = [s for s in statements(func.body) if isinstance(s, ir.Let)]
    named = {s.name: s.value.index for s in lets if isinstance(s.value, ir.IndexValue)}

    def change(loop: ir.For) -> Body:
        if loop.kind != "for" or loop.step != 1:
            raise LoopPassError(f"the loop over {var} is not `for` in steps of 1")
        shared = _shared(loop)
        _check_places(loop, shared, named)
        return (_Rows(loop, count, names, env, pairs).run(shared),)

    return replace_loop(func, var, change)


def _shared(loop: ir.For) -> set[str]:
    """Return what all iterations bind alike: variables of loops inside, and indices and masks."""
    varying, shared = {loop.var, *(c.name for c in loop.carry)}, set[str]()

    def note(body: Body) -> None:
        for s in body:
            is_same = isinstance(s, ir.For | ir.Let) and _names(s).isdisjoint(varying)
            if isinstance(s, ir.For) and is_same:
                shared.add(s.var)
                varying.update(c.name for c in s.carry)
                varying.update(c.position for c in s.carry)
                note(s.body)
            elif isinstance(s, ir.Let) and is_same and isinstance(s.value, _INDICES):
                shared.add(s.name)
            else:
                varying.update(bound((s,)))

    note(loop.body)
    return shared


_INDICES = ir.Const | ir.IndexValue | ir.Prefix


def _names(s: ir.For | ir.Let) -> set[str]:
    """Return what a binding reads, or the range of a loop."""
    if isinstance(s, ir.Let):
        return names_in(s.value)
    return {a.name for e in indices(s) for a in atoms(e)}


def _check_places(loop: ir.For, shared: set[str], named: Mapping[str, Index]) -> None:
    """Refuse iterations in order that meet elsewhere than in one element of each loop inside.

    What is stored stands directly in these loops, so that each writes it once, at their ends. Loops
    that store to one array follow one another along it. Strides may be `named` indices.
    """
    walks = [s for s in loop.body if isinstance(s, ir.For) and s.kind == "each" and s.var in shared]
    rest = [*statements(s for s in loop.body if s not in walks)]
    written = {s.place.buffer for s in statements(loop.body) if isinstance(s, ir.Store)}
    moving = ({loop.var, *bound(loop.body)} - shared) | {w.var for w in walks}
    is_merged = written.isdisjoint({*_loaded(rest), *(p.buffer for s in rest for p in places(s))})
    ends: dict[str, tuple[Index, Index | None, Index]] = {}
    """First element and step of each array, and where the last loop over it has ended."""
    for walk in walks:
        elements = _elements(walk, moving - {walk.var}, named)
        others = {*_loaded(walk.body)} - {*(elements or ())}
        is_merged &= elements is not None and written.isdisjoint(others)
        for buffer, at in (elements or {}).items():
            first, step = substitute_index(at, {walk.var: 0}), coefficient(at, walk.var)
            start = (first, step, walk.low)
            is_merged &= ends.get(buffer, start) == start
            ends[buffer] = first, step, walk.high
    if not is_merged:
        raise LoopPassError(f"iterations over {loop.var} meet in several places")
    inner = (s for s in loop.body if isinstance(s, ir.For) and s.var in shared)
    if any(s.carry for s in (loop, *inner)):
        raise LoopPassError(f"the loop over {loop.var}, or one inside, carries something")


def _loaded(body: Iterable[ir.Statement]) -> Iterator[str]:
    return (x.place.buffer for s in statements(body) for x in loads(*values(s)))


def _elements(
    walk: ir.For, moving: set[str], named: Mapping[str, Index]
) -> dict[str, Index] | None:
    """Return the array elements that a loop stores; None if in several ways."""
    stores = [s for s in walk.body if isinstance(s, ir.Store)]
    inside = [*statements(walk.body)]
    if len(stores) < sum(isinstance(s, ir.Store) for s in inside):
        return None
    stored: dict[str, ir.Store] = {}
    elements: dict[str, Index] = {}
    for s in stores:
        at = _element(s.place, walk, moving, named)
        other = stored.setdefault(s.place.buffer, s)
        if at is None or (other.place, other.join) != (s.place, s.join):
            return None
        elements[s.place.buffer] = at
    for load in (x for s in inside for x in loads(*values(s))):
        store = stored.get(load.place.buffer)
        if store is not None and (store.join or _ungrouped(load.place) != store.place):
            return None
    return elements


def _ungrouped(place: ir.Place) -> ir.Place:
    """Return a place that is read alone, as a store writes it."""
    return replace(place, group=()) if place.group == (0,) else place


def _element(
    place: ir.Place, walk: ir.For, moving: set[str], named: Mapping[str, Index]
) -> Index | None:
    """Return the element of an iteration, if no other loop or iteration moves it."""
    if not isinstance(at := place.at, int | expr.Expr):
        return None
    read = {a.name for e in place_indices(place) for a in atoms(e)}
    read |= set() if place.mask is None else names_in(place.mask)
    step = coefficient(at, walk.var)
    is_single = place.lanes == 1 and place.mask is None
    is_vector = (place.lanes, substitute_index(place.stride, named)) == (walk.step, step)
    moves = step not in (None, 0) and (is_single or is_vector)
    return at if moving.isdisjoint(read) and moves else None


class _Rows:
    """Copies of rows in order: each element that they combine something with is written once."""

    def __init__(
        self, loop: ir.For, count: int, names: Names, env: Env, pairs: Collection[str]
    ) -> None:
        self.loop, self.count, self.names, self.env, self.pairs = loop, count, names, env, pairs
        self.joined: dict[ir.Place, list[ir.Store]] = {}
        self.stored: dict[ir.Place, ir.Value] = {}

    def run(self, shared: Collection[str]) -> ir.For:
        """Return the loop over rows."""
        loop, at, out = self.loop, ir.variable(self.loop), list[ir.Statement]()
        rows = [
            copier(loop.body, self.names, {loop.var: expr.add(at, k)}, shared, self._current)
            for k in range(1, self.count)
        ]
        rows.insert(0, Rewriter(change=self._current))
        for s in loop.body:
            if isinstance(s, ir.For) and s.var in shared:
                out.append(with_body(s, self._walk(s, rows, shared)))
            elif isinstance(s, ir.Let) and s.name in shared:
                out.append(s)
            else:
                out += [row.rebuild(s) for row in rows]
        return replace(loop, step=self.count, body=tuple(out))

    def _current(self, v: ir.Value) -> ir.Value:
        """Return the value of an element that was written before."""
        if not isinstance(v, ir.Load) or not self.stored:
            return v
        return self.stored.get(_ungrouped(v.place), v)

    def _walk(self, walk: ir.For, rows: Sequence[Rewriter], shared: Collection[str]) -> Body:
        """Return the statements of all rows, and then what they store."""
        self.joined, self.stored, out = {}, {}, list[ir.Statement]()
        for k, row in enumerate(rows):
            for s in walk.body:
                if k and isinstance(s, ir.Let) and s.name in shared:
                    continue
                new = row.rebuild(s)
                out.append(self._held(new) if isinstance(new, ir.Store) else new)
        out += [ir.Store(place, v) for place, v in self.stored.items()]
        out += [self._total(place, x) for place, x in self.joined.items()]
        self.stored = {}
        return tuple(out)

    def _held(self, s: ir.Store) -> ir.Let:
        """Bind what is written."""
        place, value = s.place, s.value
        is_pair = place.buffer in self.pairs and isinstance(value, ir.Cast)
        held = value.arg if is_pair and isinstance(value, ir.Cast) else value
        name = self.names.new(place.buffer)
        is_index = place.lanes == 1 and self.env.arrays[place.buffer].dtype == i64
        new = ir.position(ir.number(name)) if is_index else ir.Ref(name)
        if s.join:
            new = replace(value, arg=new) if is_pair else new
            self.joined.setdefault(place, []).append(replace(s, value=new))
        else:
            self.stored[place] = new
        return ir.Let(name, held)

    def _total(self, place: ir.Place, steps: list[ir.Store]) -> ir.Store:
        """Return the store of what several steps combine an element with."""
        parts = [s.value for s in steps]
        casts = [v for v in parts if isinstance(v, ir.Cast)]
        if place.buffer in self.pairs and len(casts) == len(parts):
            sums, count = [v.arg for v in casts], 1
            while count < PAIRED and len(sums) > 1 and len(sums) % 2 == 0:
                both = zip(sums[::2], sums[1::2], strict=True)
                sums, count = [ir.Apply("add", (a, b)) for a, b in both], 2 * count
            parts = [ir.Cast(v, casts[0].dtype) for v in sums]
        total: ir.Value = ir.Load(place)
        for value in parts:
            total = ir.Apply(steps[0].join, (value, total))
        return ir.Store(place, total)
