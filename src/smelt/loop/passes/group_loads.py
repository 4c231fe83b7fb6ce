"""Group loads of vectors with a small stride: full vectors are read, of which each takes lanes.

Columns of rows of 3 are 3 elements apart. Loads of one stride that begin less than a stride apart
are read together, and if they leave no gap nothing of their vectors is masked:

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n*3], y: out f32[n]; n)
...   each i in 0 .. n//4*4 by 4
...     y[i : 4] = x[i*3 : 4 * 3] + x[i*3 + 2 : 4 * 3]
... ''')
>>> print(text(Module("f", (group_loads(module.funcs[0]),))))
func f(x: f32[n*3], y: out f32[n]; n)
  each i in 0 .. (n//4)*4 by 4
    v_1 = x[i*3 : 4 * 3 with 0, 2]
    v_2 = x[i*3 + 2 : 4 * 3 with -2, 0]
    y[i : 4] = v_1 + v_2

What a statement reads together is read before its operators: registers then hold
little else. Longer strides are gathers, unless at least half of the elements between are needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import Body, Names, Rewriter, loads, values, with_func_body
from smelt.types.expr import Index, constant_term, sub

__all__ = ["Module", "group_loads"]

FARTHEST_STEP = 4
"""Largest stride between lanes that is read as full vectors and shuffled."""
MAX_STEP = 16
"""Largest stride of a group that is read as vectors, if at least every second element is needed."""


def is_dense(step: int, members: int) -> bool:
    """Return whether reading everything in between is cheaper than gathering."""
    return step <= FARTHEST_STEP or (step <= MAX_STEP and 2 * members >= step)


def group_loads(func: ir.Func) -> ir.Func:
    """Note at each load with a small stride what is read together with it."""
    return with_func_body(func, _Grouped(Names(func)).body(func.body))


def groups_of(starts: Iterable[int], step: int) -> list[tuple[int, ...]]:
    """Group the starts that are less than a step behind the first of their group.

    >>> groups_of([0, 5, 1, 3], 3)
    [(0, 1), (3, 5)]
    """
    waiting, groups = sorted(starts), list[tuple[int, ...]]()
    while waiting:
        group = tuple(at for at in waiting if at < waiting[0] + step)
        groups.append(group)
        waiting = waiting[len(group) :]
    return groups


class _Grouped(Rewriter):
    """Rewrites blocks, each with groups of its own."""

    def __init__(self, new_names: Names) -> None:
        super().__init__()
        self.new_names = new_names
        self.lets: list[ir.Let] = []
        self.groups: dict[tuple[object, ...], dict[int, tuple[int, ...]]] = {}
        """The group of each start, by what the loads of groups have in common."""

    def body(self, body: Body) -> Body:
        outer, self.groups = self.groups, {}
        starts: dict[tuple[object, ...], set[int]] = {}
        for load in (v for s in body for v in loads(*values(s))):
            if (parts := _split(load.place)) is not None:
                key, start = parts
                starts.setdefault(key, set()).add(start)
        for key, members in starts.items():
            step = key[-1]
            assert isinstance(step, int)
            groups = groups_of(members, step)
            self.groups[key] = {at: group for group in groups for at in group}
        new = super().body(body)
        self.groups = outer
        return new

    def statement(self, s: ir.Statement) -> Body:
        outer, self.lets = self.lets, []
        new = self.rebuild(s)
        before, self.lets = self.lets, outer
        return (*before, new)

    def value(self, v: ir.Value) -> ir.Value:
        v = super().value(v)
        if not isinstance(v, ir.Load) or (parts := _split(v.place)) is None:
            return v
        key, start = parts
        p = v.place
        assert isinstance(p.stride, int)
        group = self.groups.get(key, {}).get(start, ())
        if not is_dense(p.stride, len(group)):
            return v
        apart = tuple(at - start for at in group)
        load = ir.Load(ir.Place(p.buffer, p.at, p.lanes, p.stride, p.mask, apart), v.other)
        if len(group) == 1:
            return load
        self.lets.append(ir.Let(self.new_names.new("v"), load))
        return ir.Ref(self.lets[-1].name)


def _split(p: ir.Place) -> tuple[tuple[object, ...], int] | None:
    """Return what a group's loads have in common, and where one starts."""
    if p.lanes == 1 or not isinstance(p.stride, int) or isinstance(p.at, ir.Value):
        return None
    if not 1 < p.stride <= MAX_STEP:
        return None
    start = constant_term(p.at)
    base: Index = sub(p.at, start)
    return (p.buffer, base, p.lanes, p.mask, p.stride), start
