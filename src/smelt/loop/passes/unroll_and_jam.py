"""Run several independent iterations at once, and fuse the loops inside them.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(a: f32[n*m], z: out f32[n]; n, m)
...   each i in 0 .. n
...     each j in 0 .. m with s = sum 0.0
...       s <- a[i*m + j]
...     z[i] = s
... ''')
>>> print(text(Module("f", (unroll_and_jam(module.funcs[0], "i", 2),))))
func f(a: f32[m*n], z: out f32[n]; n, m)
  each i_1 in 0 .. (n//2)*2 by 2
    each j_1 in 0 .. m with s_1 = sum 0.0, s_2 = sum 0.0
      s_1 <- a[m*i_1 + j_1]
      s_2 <- a[m + m*i_1 + j_1]
    z[i_1] = s_1
    z[i_1 + 1] = s_2
  each i in (n//2)*2 .. n
    each j in 0 .. m with s = sum 0.0
      s <- a[m*i + j]
    z[i] = s

Loads of the copies that are equal are then one value. A fold of the outer loop keeps its order, and
so does what rows in order combine with elements of an array, which is read and written once:

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

from collections.abc import Collection
from dataclasses import replace

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Env, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.remainder import continued, copy_loop, whole_groups
from smelt.loop.walk import (
    Body,
    Names,
    Rewriter,
    bound,
    fresh,
    indices,
    loads,
    place_indices,
    rename,
    replace_loop,
    statements,
    values,
    with_body,
)
from smelt.types import expr
from smelt.types.affine import coefficient
from smelt.types.dtype import i64
from smelt.types.expr import atoms

__all__ = ["Module", "unroll_and_jam"]


PAIRED = 4
"""Maximum values that are added pairwise in their own type before a wider sum takes them."""


def unroll_and_jam(func: ir.Func, var: str, count: int, pairs: Collection[str] = ()) -> ir.Func:
    """Run `count` iterations of the loop over `var` at once; the remainder one by one.

    What is added to the arrays `pairs` is first added in fours in its own type. Raises
    LoopPassError if iterations are neither independent nor meet in single elements of arrays, or
    loops inside cannot be fused.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        if loop.kind not in ("each", "for") or loop.step != 1:
            raise LoopPassError(f"the loop over {var} is not `each` or `for` in steps of 1")
        _check_folds(loop)
        if loop.kind == "for":
            _check_places(loop)
        mid = whole_groups(loop, count)
        main = replace(loop, high=mid, step=count, body=())
        main = copy_loop(main, names, last=mid == loop.high)
        renamed = {c.name: m.name for c, m in zip(loop.carry, main.carry, strict=True)}
        renamed |= {c.position: m.position for c, m in zip(loop.carry, main.carry, strict=True)}
        at = ir.variable(main)
        copies = [
            rename(fresh(loop.body, names, {loop.var: expr.add(at, k)}), renamed)
            for k in range(count)
        ]
        body = _jam(copies, in_order=loop.kind == "for")
        body = _MergeStores(names, env, pairs).body(body) if loop.kind == "for" else body
        main = replace(main, body=body)
        rest = replace(loop, low=mid, carry=continued(loop, main, env))
        return (main,) if mid == loop.high else (main, rest)

    return replace_loop(func, var, change)


def _check_folds(loop: ir.For) -> None:
    """Refuse folds that copies side by side would do in another order."""
    inside = [s for x in loop.body if isinstance(x, ir.For) for s in statements(x.body)]
    inner = {c.name for s in statements(loop.body) if isinstance(s, ir.For) for c in s.carry}
    folds = [s.name for s in statements(loop.body) if isinstance(s, ir.Fold)]
    outer = [name for name in folds if name not in inner]
    crossing = {s.name for s in inside if isinstance(s, ir.Fold)} - inner
    if crossing or len(set(outer)) < len(outer):
        raise LoopPassError(f"{', '.join(sorted(crossing) or outer)} would be folded out of order")


def _check_places(loop: ir.For) -> None:
    """Refuse iterations in order that meet elsewhere than in one element of each loop inside.

    What is stored stands directly in these loops, so that each writes it once, at their ends.
    """
    inside = [*statements(loop.body)]
    walks = [s for s in loop.body if isinstance(s, ir.For) and s.kind == "each"]
    direct = [(w.var, s) for w in walks for s in w.body if isinstance(s, ir.Store)]
    stores = [s for s in inside if isinstance(s, ir.Store)]
    read = [x.place for s in inside for x in loads(*values(s))]
    is_merged = len(direct) == len(stores)
    for var, s in direct:
        same = [t for t in stores if t.place.buffer == s.place.buffer]
        loaded = [p for p in read if p.buffer == s.place.buffer]
        is_merged &= _is_element(s.place, var, {loop.var, *bound(loop.body)} - {var})
        is_merged &= all(p == s.place for p in (*loaded, *(t.place for t in same)))
        is_merged &= all(t.join == s.join for t in same) and not (s.join and loaded)
    if not is_merged:
        raise LoopPassError(f"iterations over {loop.var} meet in several places")
    if any(not c.combine for c in loop.carry):
        raise LoopPassError(f"the loop over {loop.var} carries something")


def _is_element(place: ir.Place, var: str, varying: set[str]) -> bool:
    """Return whether iterations over `var` have an element each, which nothing else moves."""
    if place.mask is not None or not isinstance(place.at, int | expr.Expr):
        return False
    names = {a.name for e in place_indices(place) for a in atoms(e)}
    return coefficient(place.at, var) not in (None, 0) and names.isdisjoint(varying)


class _MergeStores(Rewriter):
    """Writes an element once that copies of statements combine something with, one by one."""

    def __init__(self, names: Names, env: Env, pairs: Collection[str]) -> None:
        super().__init__()
        self.new_names, self.env, self.pairs = names, env, pairs
        self.joined: dict[ir.Place, list[ir.Store]] = {}
        self.stored: dict[ir.Place, ir.Value] = {}

    def value(self, v: ir.Value) -> ir.Value:
        """Return the value of an element that was written before."""
        stored = self.stored.get(v.place) if isinstance(v, ir.Load) else None
        return super().value(v) if stored is None else stored

    def statement(self, s: ir.Statement) -> Body:
        """Bind what is written."""
        match s:
            case ir.For() if any(isinstance(x, ir.Store) for x in s.body):
                self.joined, self.stored = {}, {}
                body = self.body(s.body)
                ends = [ir.Store(place, v) for place, v in self.stored.items()]
                ends += [self._total(place, x) for place, x in self.joined.items()]
                self.known.clear()
                return (with_body(s, (*body, *ends)),)
            case ir.Store(place, value, join):
                value = self.value(value)
                is_pair = place.buffer in self.pairs and isinstance(value, ir.Cast)
                held = value.arg if is_pair and isinstance(value, ir.Cast) else value
                name = self.new_names.new(place.buffer)
                is_index = self.env.arrays[place.buffer].dtype == i64
                new = ir.position(ir.number(name)) if is_index else ir.Ref(name)
                self.known.clear()
                if not join:
                    self.stored[place] = new
                else:
                    new = replace(value, arg=new) if is_pair else new
                    self.joined.setdefault(place, []).append(replace(s, value=new))
                return (ir.Let(name, held),)
            case _:
                return (self.rebuild(s),)

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


def _jam(copies: list[Body], *, in_order: bool = False) -> Body:
    """Run copies of statements side by side, with their loops fused.

    Statements of different iterations are independent, so that each may move before those of the
    iterations before it; `in_order` only for those of different iterations of the loops inside.
    """
    out: list[ir.Statement] = []
    for group in zip(*copies, strict=True):
        loops = [s for s in group if isinstance(s, ir.For)]
        if loops and _fusible(loops):
            out.append(_fused(loops, in_order))
        else:
            out += group
    return tuple(out)


def _fusible(loops: list[ir.For]) -> bool:
    """Whether loops have one range."""
    first = loops[0]
    return all(indices(x) == indices(first) and x.kind == first.kind for x in loops)


def _fused(loops: list[ir.For], in_order: bool) -> ir.For:
    first = loops[0]
    bodies = [first.body, *(rename(x.body, {x.var: first.var}) for x in loops[1:])]
    carry = tuple(c for x in loops for c in x.carry)
    body = tuple(s for b in bodies for s in b) if in_order else _jam(bodies)
    return replace(first, carry=carry, body=body)
